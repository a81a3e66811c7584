"""Changes of objects that are no tables (schemas, types, sequences, functions, indexes, views) as statements.

The event triggers describe such an object before and after, like tables; the change is the difference. The form of the
user's statement does not matter: alone, in a script, or inside a function.

The order of creation of tables and other objects of a PostgreSQL master: each after its dependencies.

A column may have the row type of another table or view, so the order of kinds alone (types, tables, views) is not
enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from wlc.capture.postgres.effects import POSTGRES, Carried
from wlc.capture.postgres.table_steps import sequence_options
from wlc.dialect.sql import literal, quote
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Name, RenamedObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wlc.capture.postgres.described import DescribedObject
    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.model import DdlEffect


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
    """Return the dependencies of each table and object of the database, as the caller's transaction sees them."""
    found: dict[Thing, list[Thing]] = {}
    for catalog, oid, other_catalog, other in connection.execute(_NEEDS):
        found.setdefault((catalog, oid), []).append((other_catalog, other))
    return found


def in_order(things: Iterable[_T], needs: Mapping[_T, Iterable[_T]]) -> Iterator[_T]:
    """Yield all objects, each after its dependencies, otherwise in the given order."""
    waiting = dict.fromkeys(things)

    def pull(thing: _T) -> Iterator[_T]:
        if thing in waiting:
            del waiting[thing]
            for needed in needs.get(thing, ()):
                yield from pull(needed)
            yield thing

    while waiting:
        yield from pull(next(iter(waiting)))


EXTENSION = "CREATE EXTENSION"
# Kinds of objects that a PostgreSQL replica must have.
KINDS = {"index", "view", "materialized view", "sequence", "type", "domain", "function", "procedure", "aggregate"}
_REPLACED = ("view", "function", "procedure")
_ROUTINES = ("function", "procedure", "aggregate")


def changed(old: DescribedObject | None, new: DescribedObject | None) -> Iterator[Ddl | Carried]:
    """Yield the statements from one description of an object to the next.

    Args:
        old: The former object; None if it is new.
        new: The present object; None if it was dropped.
    """
    if old is None and new is not None:
        yield from create(new)
    elif new is None and old is not None:
        yield from _dropped(old)
    elif old is not None and new is not None:
        yield from _altered(old, new)


def is_left_out(new: DescribedObject) -> bool:
    """Say whether an object was made that a PostgreSQL replica cannot have."""
    return new.kind in KINDS and new.definition is None and not _is_part(new)


def qualified(found: DescribedObject) -> Name:
    """Return its name, that of a function without arguments."""
    return Name(found.schema, found.name)


def schema(name: str) -> Ddl:
    """Create a schema."""
    made, statement = Name(name, name), f"CREATE SCHEMA IF NOT EXISTS {quote(name)}"
    return Ddl("CREATE SCHEMA", made, statement, original=statement, does=(CreatedObject(DbObject("SCHEMA", made)),))


def extension(name: str) -> Ddl:
    """Say that tables, indexes, views or types need an extension; only a superuser of a replica creates it."""
    made, statement = Name(name, name), f"{EXTENSION} IF NOT EXISTS {quote(name)}"
    return Ddl(EXTENSION, made, statement, dialect=POSTGRES, does=(CreatedObject(DbObject("EXTENSION", made)),))


def create(new: DescribedObject) -> Iterator[Ddl]:
    """Make an object."""
    if new.kind == "schema":
        yield schema(new.schema)
    elif new.kind == "sequence":
        statement = _duckdb_sequence(new, "CREATE SEQUENCE IF NOT EXISTS")
        does = (CreatedObject(_object(new)),)
        yield Ddl("CREATE SEQUENCE", qualified(new), statement, original=_own(new, str(new.definition)), does=does)
    elif new.definition is not None and not _is_part(new):
        yield _made(new)


def refresh(view: DescribedObject) -> Ddl:
    """Fill a materialized view that was created before the rows that it reads."""
    statement = f"REFRESH MATERIALIZED VIEW {view.identity}"
    return _postgres("REFRESH MATERIALIZED VIEW", view, statement, AlteredObject(_object(view)))


def _dropped(old: DescribedObject) -> Iterator[Ddl]:
    kind = old.kind.upper()
    # The index of a partition goes with the one above it.
    if old.definition is None or _is_part(old):
        return
    text, does = f"DROP {kind} IF EXISTS {old.identity} CASCADE", DroppedObject(_object(old), _of(old))
    if old.kind in ("schema", "sequence"):
        # The sequence of an identity column goes with the identity.
        original = _own(old, text) if old.kind == "sequence" else text
        yield Ddl(f"DROP {kind}", qualified(old), text, original=original, does=(does,))
    else:
        yield _postgres(f"DROP {kind}", old, text, does)


def _altered(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl | Carried]:
    if new.kind in ("sequence", "schema"):
        yield from _altered_sequence(old, new) if new.kind == "sequence" else _renamed_schema(old, new)
        return
    if _is_part(old) or _is_part(new):
        # The index of a partition becomes part of that of the table above, or is on its own from now on.
        if not _is_part(old):
            yield Carried(qualified(new), (DroppedObject(_object(old), _of(old)),))
        elif not _is_part(new):
            yield Carried(qualified(new), tuple(_made(new).does))
        return
    if new.kind == "index" and list(map(bool, old.parts["unique"])) != list(map(bool, new.parts["unique"])):
        # A column is generated no more.
        yield Carried(qualified(new), tuple(_made(new, replaces=True).does))
    if old.definition is None or new.definition is None:
        yield from (*_dropped(old), *create(new))
        return
    yield from _moved(old, new)
    yield from _altered_parts(old, new)
    if new.kind in _REPLACED and old.definition != new.definition:
        yield _made(new, replaces=True)


def _altered_parts(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    match new.kind:
        case "type" if " AS ENUM (" in str(new.definition):
            yield from _altered_enum(old, new)
        case "type" if new.parts is not None:
            yield from _altered_composite(old, new)
        case "domain":
            yield from _altered_domain(old, new)
        case "view" | "materialized view":
            for before, after in zip(old.parts, new.parts, strict=False):
                if before != after:
                    does = AlteredObject(_object(new), columns=((before, after),))
                    yield _alter(new, f"RENAME COLUMN {quote(before)} TO {quote(after)}", does)


def _moved(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    """Rename an object, and move it to another schema. Indexes move with their tables."""
    kind, arguments, name = f"ALTER {new.kind.upper()}", _arguments(old), old.name
    if new.schema != old.schema and new.kind != "index":
        where = f"{quote(old.schema)}.{quote(name)}{arguments}"
        does = RenamedObject(_object(old), Name(new.schema, name))
        yield _postgres(kind, new, f"{kind} {where} SET SCHEMA {quote(new.schema)}", does)
    if new.name != name:
        where = f"{quote(new.schema)}.{quote(name)}{arguments}"
        does = RenamedObject(replace(_object(old), name=Name(new.schema, name)), qualified(new), _of(new))
        yield _postgres(kind, new, f"{kind} {where} RENAME TO {quote(new.name)}", does)


def _renamed_schema(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    """Rename a schema without tables and sequences. DuckDB has no statement for that."""
    if old.name != new.name:
        renamed = f"ALTER SCHEMA {quote(old.name)} RENAME TO {quote(new.name)}"
        yield _postgres("ALTER SCHEMA", new, renamed, RenamedObject(_object(old), qualified(new)))
        gone = (DroppedObject(_object(old)),)
        yield Ddl("DROP SCHEMA", qualified(old), f"DROP SCHEMA IF EXISTS {quote(old.name)}", original="", does=gone)
        yield replace(schema(new.name), original="")


def _altered_enum(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    labels = dict(old.parts)
    for oid, label in new.parts:
        if oid in labels and labels[oid] != label:
            does = AlteredObject(_object(new), values=((labels[oid], label),))
            yield _alter(new, f"RENAME VALUE {literal(labels[oid])} TO {literal(label)}", does)
    before: str | None = None
    for oid, label in new.parts:
        if oid not in labels:
            first = next((text for number, text in new.parts if number in labels), None)
            place = f" AFTER {literal(before)}" if before is not None else f" BEFORE {literal(first)}" if first else ""
            does = AlteredObject(_object(new), values=((None, label),))
            yield _alter(new, f"ADD VALUE {literal(label)}{place}", does)
        before = label


def _altered_composite(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    before = {number: rest for number, *rest in old.parts}
    after = {number for number, *_ in new.parts}
    for number, (name, *_) in before.items():
        if number not in after:
            yield _alter(new, f"DROP ATTRIBUTE IF EXISTS {quote(name)} CASCADE")
    for number, name, kind, declared in new.parts:
        if number not in before:
            yield _alter(new, f"ADD ATTRIBUTE {quote(name)} {kind}")
            continue
        name_before, _, declared_before = before[number]
        if name_before != name:
            does = AlteredObject(_object(new), columns=((name_before, name),))
            yield _alter(new, f"RENAME ATTRIBUTE {quote(name_before)} TO {quote(name)}", does)
        if declared_before != declared:
            yield _alter(new, f"ALTER ATTRIBUTE {quote(name)} TYPE {kind}")


def _altered_domain(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    before, after, domain = old.parts["constraints"], new.parts["constraints"], qualified(new)
    for oid, (name, _) in before.items():
        if oid not in after:
            yield _alter(new, f"DROP CONSTRAINT IF EXISTS {quote(name)}", DroppedObject(_check(new, name), domain))
    if old.parts["default"] != new.parts["default"]:
        default = new.parts["default"]
        yield _alter(new, "DROP DEFAULT" if default is None else f"SET DEFAULT {default}")
    if old.parts["is_required"] != new.parts["is_required"]:
        yield _alter(new, "SET NOT NULL" if new.parts["is_required"] else "DROP NOT NULL")
    for oid, (name, definition) in after.items():
        if oid not in before:
            does = CreatedObject(_check(new, name), of=domain)
            yield _alter(new, f"ADD CONSTRAINT {quote(name)} {definition}", does)
        elif (was := before[oid][0]) != name:
            renamed = RenamedObject(_check(new, was), Name(new.schema, name), domain)
            yield _alter(new, f"RENAME CONSTRAINT {quote(was)} TO {quote(name)}", renamed)


def _altered_sequence(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    """Alter a sequence. DuckDB can neither rename nor alter one; its value follows at the end of the batch."""
    was, now = (found.parts["is_identity"] for found in (old, new))
    is_moved = old.identity != new.identity
    if is_moved:
        gone = (DroppedObject(_object(old)),)
        yield Ddl("DROP SEQUENCE", qualified(old), f"DROP SEQUENCE IF EXISTS {old.identity}", original="", does=gone)
        if not now:
            yield from _moved(old, new)
    # The sequence of an identity column is made, and dropped, with the identity.
    if was == now:
        is_same = (old.parts["type"], old.parts["options"]) == (new.parts["type"], new.parts["options"])
        if not is_same and not now:
            text = str(new.definition).replace("CREATE SEQUENCE", "ALTER SEQUENCE", 1)
            does = AlteredObject(_object(new))
            yield _postgres("ALTER SEQUENCE", new, f"{text} RESTART WITH {new.parts['start']}", does)
        made = (CreatedObject(_object(new), replaces=not is_moved),)
        replaced = _duckdb_sequence(new, "CREATE OR REPLACE SEQUENCE")
        yield Ddl("CREATE SEQUENCE", qualified(new), replaced, original="", does=made)


def _duckdb_sequence(new: DescribedObject, verb: str) -> str:
    options = (option for option in sequence_options(new.parts["options"]) if not option.startswith("CACHE"))
    return f"{verb} {qualified(new).sql} {' '.join(options).replace('START WITH', 'START')}"


def _own(new: DescribedObject, text: str) -> str:
    return "" if new.parts["is_identity"] else text


def _is_part(found: DescribedObject) -> bool:
    """Say whether it is the index of a partition, which comes and goes with the index of the table above."""
    return found.kind == "index" and bool(found.parts["is_part"])


def _arguments(found: DescribedObject) -> str:
    if found.kind not in _ROUTINES:
        return ""
    return found.identity[len(found.identity.partition("(")[0]) :]


def _object(found: DescribedObject) -> DbObject:
    is_routine = found.kind in _ROUTINES
    return DbObject(found.kind.upper(), qualified(found), tuple(found.parts) if is_routine else None)


def _check(domain: DescribedObject, name: str) -> DbObject:
    return DbObject("DOMAIN CONSTRAINT", Name(domain.schema, name))


def _of(found: DescribedObject) -> Name | None:
    return Name(*found.parts["table"]) if found.kind == "index" else None


def _made(new: DescribedObject, *, replaces: bool = False) -> Ddl:
    unique = tuple(new.parts["unique"]) if new.kind == "index" else ()
    made = CreatedObject(_object(new), replaces=replaces, of=_of(new), unique=unique)
    checks = sorted(name for name, _ in new.parts["constraints"].values()) if new.kind == "domain" else ()
    does = (made, *(CreatedObject(_check(new, name), of=qualified(new)) for name in checks))
    return _postgres(f"CREATE {new.kind.upper()}", new, str(new.definition), *does)


def _alter(new: DescribedObject, what: str, *does: DdlEffect) -> Ddl:
    kind = f"ALTER {new.kind.upper()}"
    return _postgres(kind, new, f"{kind} {new.identity} {what}", *(does or (AlteredObject(_object(new)),)))


def _postgres(kind: str, found: DescribedObject, statement: str, *does: DdlEffect) -> Ddl:
    return Ddl(kind, qualified(found), statement, dialect=POSTGRES, does=does)
