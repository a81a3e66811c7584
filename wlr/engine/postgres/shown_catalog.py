"""Reads the PostgreSQL catalog, to compare it with the recorded effects of statements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from wlc.farm.model import Check, Name, Reference, Unique
from wlc.farm.schema_fold import FoldedIndex, FoldedTable, SchemaFold, ordered
from wlr.engine.postgres.catalog import USER
from wlr.engine.postgres.replica_connection import fetch
from wlr.replay.ddl.claims import ShownCatalog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.model import TableConstraint

_Shown = TypeVar("_Shown")
_NAMES = """
    (SELECT coalesce(json_agg(a.attname ORDER BY place), '[]') FROM unnest({numbers}) WITH ORDINALITY u (number, place)
        JOIN pg_attribute a ON a.attrelid = {table} AND a.attnum = u.number)
"""
# The farm records neither a server's internal constraints nor unvalidated ones.
_CONSTRAINTS = f"""
    SELECT coalesce(json_agg(json_build_array(k.contype, {_NAMES.format(numbers="k.conkey", table="c.oid")},
        pn.nspname, p.relname, {_NAMES.format(numbers="k.confkey", table="k.confrelid")})), '[]')
    FROM pg_constraint k LEFT JOIN pg_class p ON p.oid = k.confrelid
    LEFT JOIN pg_namespace pn ON pn.oid = p.relnamespace
    WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'c', 'f') AND (k.contype = 'f' OR k.convalidated)
        AND NOT EXISTS (SELECT FROM pg_constraint w WHERE w.oid = k.conparentid AND w.conrelid = k.conrelid)
"""
_TABLES = f"""
    SELECT n.nspname, c.relname, c.oid::bigint, (SELECT coalesce(string_agg(concat_ws(' ', attname, atttypid, atttypmod,
            attnotnull), ',' ORDER BY attnum), '') FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0),
        (SELECT coalesce(json_agg(json_build_array(attname, attgenerated <> '') ORDER BY attnum), '[]')
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
        ({_CONSTRAINTS}),
        (SELECT coalesce(json_agg(json_build_array(pn.nspname, p.relname) ORDER BY inhseqno), '[]') FROM pg_inherits
            JOIN pg_class p ON p.oid = inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE inhrelid = c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {USER}
    ORDER BY 1, 2
"""
_INDEXES = f"""
    SELECT n.nspname, i.relname, c.relname, CASE WHEN x.indisunique THEN (
            SELECT json_agg(a.attname ORDER BY k.place) FROM unnest(x.indkey::int2[]) WITH ORDINALITY k (number, place)
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
            WHERE k.place <= x.indnkeyatts) ELSE '[]' END, x.indisunique AND x.indpred IS NOT NULL
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
    JOIN pg_namespace n ON n.oid = i.relnamespace
    WHERE {USER} AND x.indisvalid AND NOT i.relispartition
        AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = x.indexrelid AND conrelid = x.indrelid)
"""
_ENUMS = f"""
    SELECT n.nspname, t.typname, array_agg(e.enumlabel::text) FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
    JOIN pg_namespace n ON n.oid = t.typnamespace WHERE {USER} GROUP BY 1, 2
"""
# Tables that this transaction created, altered or dropped; dropped ones have no name any more.
_TOUCHED = """
    SELECT DISTINCT relation::bigint FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'
        AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
"""


def shown(connection: Connection, *, has_generated: bool) -> ShownCatalog:
    """Return the tables, indexes and enums of a database.

    Args:
        connection: The connection.
        has_generated: Statements record generated columns; those of a PostgreSQL master do not.
    """
    fold, ids, definitions = SchemaFold(), {}, {}
    hidden: dict[Name, set[str]] = {}
    for schema, own, oid, definition, listed, constraints, parents in fetch(connection, _TABLES):
        name = Name(schema, own)
        ids[name], definitions[name] = oid, definition
        hidden[name] = set() if has_generated else {column for column, is_generated in listed if is_generated}
        columns = tuple(column for column, _ in listed if column not in hidden[name])
        key = next((tuple(c[1]) for c in constraints if c[0] == "p" and hidden[name].isdisjoint(c[1])), ())
        others = ordered(_constraint(*c) for c in constraints if c[0] != "p" or not key)
        above = tuple(Name(*parent) for parent in parents)
        fold.tables[name] = FoldedTable(name, columns, key, others, above)
    for schema, own, table, columns, is_partial in fetch(connection, _INDEXES):
        of = Name(schema, table)
        unique = (*(None if column in hidden.get(of, ()) else column for column in columns), *[None] * is_partial)
        fold.indexes[Name(schema, own)] = FoldedIndex(of, unique)
    values = {Name(schema, own): frozenset(listed) for schema, own, listed in fetch(connection, _ENUMS)}
    return ShownCatalog(fold, ids, definitions, values=values, may_lack=True)


def shown_after(connection: Connection, before: ShownCatalog, *, has_generated: bool) -> ShownCatalog:
    """Return the catalog with the changes of the open transaction, without concurrent changes to tables."""
    now = shown(connection, has_generated=has_generated)
    touched = {oid for (oid,) in fetch(connection, _TOUCHED)}
    names, present = {oid: name for name, oid in before.ids.items()}, {*now.ids.values()}
    others = {name for name, oid in now.ids.items() if oid not in touched and names.get(oid, name) == name}
    others |= {name for name, oid in before.ids.items() if oid not in touched | present}

    def chosen(new: Mapping[Name, _Shown], old: Mapping[Name, _Shown]) -> dict[Name, _Shown]:
        kept = {name: found for name, found in old.items() if name in others}
        return {name: found for name, found in new.items() if name not in others} | kept

    tables = chosen(now.schema.tables, before.schema.tables)
    for name in others & tables.keys() & now.ids.keys():
        # A referred table may have been renamed.
        found = now.schema.tables[name]
        tables[name] = replace(tables[name], constraints=found.constraints, parents=found.parents)
    indexes = {name: index for name, index in now.schema.indexes.items() if index.of not in others}
    indexes |= {name: index for name, index in before.schema.indexes.items() if index.of in others}
    return replace(
        now,
        schema=SchemaFold(tables, indexes),
        ids=chosen(now.ids, before.ids),
        definitions=chosen(now.definitions, before.definitions),
    )


def _constraint(kind: str, columns: list[str], schema: str, table: str, keys: list[str]) -> TableConstraint:
    if kind == "c":
        return Check(tuple(columns), "")
    return Reference(tuple(columns), Name(schema, table), tuple(keys)) if kind == "f" else Unique(tuple(columns))
