"""The order in which tables and other objects of a PostgreSQL master can be created: each behind what it is made with.

A column may have the type that the rows of another table or of a view are, so that the order of the kinds alone
(types, tables, views) is not enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wlc.dialect.postgres.connection import Connection

_T = TypeVar("_T")
# The number of a system catalog, and that of an object in it.
Thing = tuple[int, int]
# The number of pg_class is the same in every database.
CATALOG_OF_TABLES = 1259

# Which tables and objects others are made with. The catalogs note attributes at the relation of a composite type, what
# a view reads at its rule, the checks of a domain at the constraint, and arrays, multiranges and the rows of a table
# or view as types of their own.
_NEEDS = """
    SELECT CASE WHEN c.relkind IN ('c', 'f') OR k.oid IS NOT NULL THEN 'pg_type'::regclass
            WHEN w.oid IS NOT NULL THEN 'pg_class'::regclass ELSE d.classid END::oid,
        coalesce(CASE WHEN c.relkind IN ('c', 'f') THEN c.reltype END, k.contypid, w.ev_class, d.objid),
        CASE WHEN n.oid IS NOT NULL THEN 'pg_class'::regclass ELSE d.refclassid END::oid,
        coalesce(n.oid, r.rngtypid, e.oid, d.refobjid)
    FROM pg_depend d
    LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
    LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid AND k.contypid <> 0
    LEFT JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
    LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
    LEFT JOIN pg_type e ON e.oid = t.typelem LEFT JOIN pg_range r ON r.rngmultitypid = coalesce(e.oid, t.oid)
    LEFT JOIN pg_class n ON n.relkind IN ('r', 'p', 'v', 'm') AND n.oid = coalesce(e.typrelid, t.typrelid)
    -- A sequence that a table owns goes with it, and comes before it.
    WHERE d.refobjid >= 16384 AND d.deptype IN ('n', 'a') AND c.relkind IS DISTINCT FROM 'S'
"""


def needs(connection: Connection) -> dict[Thing, list[Thing]]:
    """Return what each table and object of the database is made with, as the caller's transaction sees it."""
    found: dict[Thing, list[Thing]] = {}
    for catalog, oid, other_catalog, other in connection.execute(_NEEDS):
        found.setdefault((catalog, oid), []).append((other_catalog, other))
    return found


def in_order(things: Iterable[_T], needs: Mapping[_T, Iterable[_T]]) -> Iterator[_T]:
    """Yield all things, each behind those that it needs, and otherwise in their order."""
    waiting = dict.fromkeys(things)

    def pull(thing: _T) -> Iterator[_T]:
        if thing in waiting:
            del waiting[thing]
            for needed in needs.get(thing, ()):
                yield from pull(needed)
            yield thing

    while waiting:
        yield from pull(next(iter(waiting)))
