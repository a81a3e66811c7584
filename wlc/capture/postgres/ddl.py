"""Schema changes of a PostgreSQL master as statements: for replicas that are PostgreSQL, and for all others.

The event triggers describe a table before and after; what happened is the difference. Columns are identified by their
numbers, which never change: a renamed column is not a new one. Every statement stands alone: names are qualified.

Replicas that are no PostgreSQL get columns and primary keys. A partitioned table is a view of its partitions there, and
what only PostgreSQL has (other constraints, indexes, views, functions, types) is in PostgreSQL's dialect alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.capture.postgres.types import constant_sql, duckdb_type
from wlc.dialect.sql import literal, quote
from wlc.farm.model import Ddl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wlc.capture.postgres.described import DescribedColumn, DescribedConstraint, DescribedTable

POSTGRES = "postgres"
_ALWAYS = {"a": "ALWAYS", "d": "BY DEFAULT"}


def create(table: DescribedTable, *, is_snapshot: bool = False) -> Iterator[Ddl]:
    """Create a table. In a snapshot, `connect` adds foreign keys and parents later."""
    name = table.qualified
    if table.is_root:
        yield _only(table, "CREATE TABLE", _create_sql(table, is_snapshot))
    else:
        layout = table.layout
        yield Ddl(
            "CREATE TABLE",
            name,
            _duckdb_table(table, "CREATE TABLE"),
            layout=layout,
            original=_create_sql(table, is_snapshot),
        )
    if not is_snapshot:
        yield from _attach(table, None)


def connect(table: DescribedTable) -> Iterator[Ddl]:
    """Add parents and foreign keys to a table of a snapshot, once all tables exist."""
    yield from _attach(table, None)
    for constraint, content in sorted(table.constraints.items()):
        if content.is_foreign_key and not content.is_inherited:
            yield _alter(table, f"ADD CONSTRAINT {quote(constraint)} {content.definition}")


def drop(table: DescribedTable) -> Ddl:
    """Drop a table."""
    name, kind = table.qualified, "VIEW" if table.is_root else "TABLE"
    statement = f"DROP {kind} IF EXISTS {name.sql}"
    return Ddl(f"DROP {kind}", name, statement, original=f"DROP TABLE IF EXISTS {name.sql} CASCADE")


def alter(
    old: DescribedTable,
    new: DescribedTable,
    *,
    is_resent: bool,
    below: Iterable[tuple[DescribedTable, DescribedTable]] = (),
) -> Iterator[Ddl]:
    """Bring a table from one description to the next.

    Args:
        old: As it was.
        new: As it is.
        is_resent: All rows are sent again, and the table is empty until then, so that columns may be made anew.
        below: Its children, and theirs, as they were and as they become with it.
    """
    draft = _Draft(old)
    for statement, ddl in _steps(draft, old, new, is_resent=is_resent, below=below):
        if ddl is None or is_resent or new.is_root:
            if statement:
                yield _only(new, "ALTER TABLE", statement)
        else:
            yield Ddl("ALTER TABLE", draft.table.qualified, ddl, layout=draft.table.layout, original=statement)
    if is_resent and not new.is_root:
        if old.qualified != new.qualified:
            yield Ddl("DROP TABLE", old.qualified, f"DROP TABLE {old.qualified.sql}", original="")
        replaced = _duckdb_table(new, "CREATE OR REPLACE TABLE")
        yield Ddl("CREATE TABLE", new.qualified, replaced, layout=new.layout, original="")
    elif new.is_root and old.qualified != new.qualified:
        yield Ddl("DROP VIEW", old.qualified, f"DROP VIEW IF EXISTS {old.qualified.sql}", original="")


def partition_view(root: DescribedTable, tables: Iterable[DescribedTable]) -> Ddl:
    """Create the view that stands for a partitioned table in engines without such tables."""
    columns = root.layout.columns
    listed = ", ".join(quote(column.name) for column in columns)
    parts = [
        f"SELECT {listed} FROM {table.qualified.sql}"
        for table in sorted(tables, key=lambda table: table.qualified)
        if any(parent.oid == root.oid for parent in table.parents)
    ]
    nothing = ", ".join(f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in columns)
    body = " UNION ALL ".join(parts) or f"SELECT {nothing} WHERE false"
    return Ddl("CREATE VIEW", root.qualified, f"CREATE OR REPLACE VIEW {root.qualified.sql} AS {body}", original="")


def depth(table: DescribedTable, tables: Mapping[int, DescribedTable]) -> int:
    """Count the partitioned tables around a table."""
    count = 0
    while table.parents and table.parents[0].oid in tables:
        table = tables[table.parents[0].oid]
        count += 1
    return count


# Differences ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """A table between two statements that alter it."""

    table: DescribedTable

    @property
    def sql(self) -> str:
        return self.table.qualified.sql


def _steps(
    draft: _Draft,
    old: DescribedTable,
    new: DescribedTable,
    *,
    is_resent: bool,
    below: Iterable[tuple[DescribedTable, DescribedTable]],
) -> Iterator[tuple[str, str | None]]:
    """Yield PostgreSQL's statement and DuckDB's, and keep the draft as it is after them.

    PostgreSQL changes what a table inherits with the statement for its parent: the table needs no statement itself.
    """
    yield from _renamed(draft, new)
    # A detached partition keeps its foreign keys or loses them (PostgreSQL 14): only then can they be dropped.
    for detached in _detach(new, old):
        yield detached.statement, None
    yield from _dropped_constraints(draft, old, new)
    yield from _dropped_columns(draft, old, new, below)
    after = {column.number: column for column in new.columns}
    yield from _renamed_columns(draft, after)
    yield from _renamed_constraints(draft, old, new)
    for column in draft.table.columns:
        changed = after[column.number]
        draft.table = draft.table.with_column(changed)
        for statement in _changed_column(column, changed, is_resent=is_resent):
            only = "ONLY " if statement.startswith(("SET DEFAULT", "DROP DEFAULT")) else ""
            yield f"ALTER TABLE {only}{draft.sql} ALTER COLUMN {quote(changed.name)} {statement}", None
    before = {column.number for column in old.columns}
    for column in new.columns:
        if column.number not in before:
            draft.table = replace(draft.table, columns=(*draft.table.columns, column))
            yield from _added_column(draft, column)
    draft.table = replace(draft.table, key=new.key)
    yield from _added_constraints(draft, old, new)
    for attached in _attach(new, old):
        yield attached.statement, None


def _renamed(draft: _Draft, new: DescribedTable) -> Iterator[tuple[str, str | None]]:
    if draft.table.schema != new.schema:
        # DuckDB cannot move a table to another schema: the event triggers have all rows sent again.
        yield f"ALTER TABLE {draft.sql} SET SCHEMA {quote(new.schema)}", None
        draft.table = replace(draft.table, schema=new.schema)
    if draft.table.name != new.name:
        statement = f"ALTER TABLE {draft.sql} RENAME TO {quote(new.name)}"
        draft.table = replace(draft.table, name=new.name)
        yield statement, statement


def _dropped_columns(
    draft: _Draft, old: DescribedTable, new: DescribedTable, below: Iterable[tuple[DescribedTable, DescribedTable]]
) -> Iterator[tuple[str, str | None]]:
    replaced = _replaced_columns(old, new)
    for column in gone(old, new):
        draft.table = draft.table.without_column(column)
        name, drops = quote(column.name), f"ALTER TABLE {draft.sql} DROP COLUMN"
        # In a replica a child keeps a column that the parent drops; a type that was dropped took it along.
        original = f"{drops} IF EXISTS {name} CASCADE"
        if column.is_inherited and column.name in replaced:
            # The child has the parent's new column already.
            original = ""
        yield original, f"{drops} {name}" if column.generated is None else None
        if original and column.name in replaced:
            for before, after in below:
                if column.name in (lost.name for lost in gone(before, after) if lost.is_inherited):
                    yield f"ALTER TABLE {before.qualified.sql} DROP COLUMN IF EXISTS {name} CASCADE", None


def gone(old: DescribedTable, new: DescribedTable) -> list[DescribedColumn]:
    """Return the columns that a table no longer has."""
    present = {column.number for column in new.columns}
    return [column for column in old.columns if column.number not in present]


def _replaced_columns(old: DescribedTable, new: DescribedTable) -> set[str]:
    """Return the names of columns that were dropped, and that new columns have."""
    return {column.name for column in gone(old, new)} & {column.name for column in gone(new, old)}


def _renamed_columns(draft: _Draft, after: Mapping[int, DescribedColumn]) -> Iterator[tuple[str, str | None]]:
    """Rename columns; two that swap their names use a third name in between."""
    while waiting := [column for column in draft.table.columns if column.name != after[column.number].name]:
        taken = {column.name for column in draft.table.columns}
        free = [column for column in waiting if after[column.number].name not in taken]
        column = free[0] if free else waiting[0]
        name = after[column.number].name if free else f"{column.name} {column.number}"
        statement = f"ALTER TABLE {draft.sql} RENAME COLUMN {quote(column.name)} TO {quote(name)}"
        key = tuple(name if part == column.name else part for part in draft.table.key)
        draft.table = replace(draft.table.with_column(replace(column, name=name)), key=key)
        yield "" if column.is_inherited else statement, statement if column.generated is None else None


def _changed_column(old: DescribedColumn, new: DescribedColumn, *, is_resent: bool) -> Iterator[str]:
    """Yield what follows `ALTER COLUMN c` for a column that stays."""
    if (old.declared, old.collation) != (new.declared, new.collation) and not new.is_inherited:
        if old.default is not None:
            yield "DROP DEFAULT"
            old = replace(old, default=None)
        collation = f" COLLATE {new.collation}" if new.collation else ""
        using = f" USING NULL::{new.type}" if is_resent and new.generated is None else ""
        yield f"TYPE {new.type}{collation}{using}"
    yield from _changed_expression(old, new)
    if old.identity and not new.identity:
        yield "DROP IDENTITY"
    if old.default != new.default:
        yield "DROP DEFAULT" if new.default is None else f"SET DEFAULT {new.default}"
    if old.nullable and not new.nullable:
        yield "SET NOT NULL"
    if new.identity and not old.identity:
        yield f"ADD {_identity(new)}"
    elif new.identity and old.identity:
        yield from _changed_identity(old, new)
    if new.nullable and not old.nullable:
        yield "DROP NOT NULL"


def _changed_expression(old: DescribedColumn, new: DescribedColumn) -> Iterator[str]:
    if old.generated is None or new.is_inherited:
        return
    if new.generated is None:
        yield "DROP EXPRESSION"
    elif old.expression != new.expression and (old.declared == new.declared or old.generated != new.generated):
        # PostgreSQL 17 has such a statement. Another type of the column brings its cast along, which is not shown.
        yield f"SET EXPRESSION AS ({new.generated})"


def _changed_identity(old: DescribedColumn, new: DescribedColumn) -> Iterator[str]:
    if old.identity != new.identity:
        yield f"SET GENERATED {_ALWAYS[str(new.identity)]}"
    before, after = (str(column.identity_options).partition(" INCREMENT BY ")[2] for column in (old, new))
    if before != after:
        yield " ".join(f"SET {option}" for option in sequence_options(f"INCREMENT BY {after}"))


def _added_column(draft: _Draft, column: DescribedColumn) -> Iterator[tuple[str, str | None]]:
    start = f"ALTER TABLE {draft.sql} ADD COLUMN"
    # It has come with that of a table above, unless a replica of some tables lacks that one.
    where = f"{start} IF NOT EXISTS" if column.is_inherited else start
    declared, missing = duckdb_type(column.base), column.missing
    # The description holds the value that existing rows got, so that a default such as now() is the same everywhere.
    default = f" DEFAULT {literal(missing)}::{column.type}" if missing is not None else ""
    original = f"{where} {_column_sql(replace(column, default=None))}{default}"
    if column.generated is not None:
        yield original, None
        return
    name = quote(column.name)
    value = f" DEFAULT {constant_sql(declared, missing)}" if missing is not None else ""
    yield original, f"{start} {name} {declared}{value}"
    if column.default is not None or missing is not None:
        default = "DROP DEFAULT" if column.default is None else f"SET DEFAULT {column.default}"
        bare = f"ALTER TABLE {draft.sql} ALTER COLUMN {name} DROP DEFAULT"
        yield (
            f"ALTER TABLE ONLY {draft.sql} ALTER COLUMN {name} {default}",
            bare if missing is not None else None,
        )


def _dropped_constraints(draft: _Draft, old: DescribedTable, new: DescribedTable) -> Iterator[tuple[str, str | None]]:
    for name, constraint in _held(old).items():
        if not _stays(new, name, constraint):
            # Replicas have what a child inherits as its own, too.
            yield f"ALTER TABLE {draft.sql} DROP CONSTRAINT IF EXISTS {quote(name)} CASCADE", None


def _stays(new: DescribedTable, name: str, constraint: DescribedConstraint) -> bool:
    """Say whether a constraint is still there, perhaps in other words or under another name."""
    same = new.constraints.get(name)
    # ALTER TYPE makes constraints anew.
    return any(other.is_same(constraint) for other in new.constraints.values()) or (
        same is not None
        and (same.is_inherited or (same.definition == constraint.definition and not constraint.is_foreign_key))
    )


def drop_remade_keys(old: DescribedTable, new: DescribedTable) -> Iterator[Ddl]:
    """Drop the foreign keys of a table that are made anew with the type of a column that they refer to."""
    for name, constraint in _held(old).items():
        if constraint.is_foreign_key and name in new.constraints and not _stays(new, name, constraint):
            yield _alter(old, f"DROP CONSTRAINT IF EXISTS {quote(name)}")


def _held(table: DescribedTable | None) -> dict[str, DescribedConstraint]:
    """Return the constraints that a replica has."""
    return {name: found for name, found in (table.constraints.items() if table else ()) if found.is_checked}


def _renamed_constraints(draft: _Draft, old: DescribedTable, new: DescribedTable) -> Iterator[tuple[str, str | None]]:
    before = {constraint.oid: name for name, constraint in _held(old).items()}
    for name, constraint in _held(new).items():
        was = before.get(constraint.oid, name)
        if was != name and not constraint.is_inherited:
            yield f"ALTER TABLE {draft.sql} RENAME CONSTRAINT {quote(was)} TO {quote(name)}", None


def _added_constraints(draft: _Draft, old: DescribedTable, new: DescribedTable) -> Iterator[tuple[str, str | None]]:
    before = _held(old)
    for name, constraint in _held(new).items():
        same = before.get(name)
        is_there = any(constraint.is_same(c) for c in before.values()) or (same is not None and _stays(new, name, same))
        if not is_there and constraint.is_local:
            yield f"ALTER TABLE {draft.sql} ADD CONSTRAINT {quote(name)} {constraint.definition}", None
        elif is_there and constraint.is_foreign_key and constraint.is_local:
            was = next((c for c in before.values() if c.oid == constraint.oid), constraint)
            if _timing(was) != _timing(constraint):
                yield f"ALTER TABLE {draft.sql} ALTER CONSTRAINT {quote(name)} {_timing(constraint)}", None


def _timing(constraint: DescribedConstraint) -> str:
    """Return when a foreign key is checked."""
    text = constraint.definition.removesuffix(" NOT VALID").removesuffix(" NOT ENFORCED")
    if text.endswith("DEFERRABLE INITIALLY DEFERRED"):
        return "DEFERRABLE INITIALLY DEFERRED"
    return "DEFERRABLE INITIALLY IMMEDIATE" if text.endswith(" DEFERRABLE") else "NOT DEFERRABLE"


def _detach(table: DescribedTable, old: DescribedTable) -> Iterator[Ddl]:
    """Disconnect a table from parents that it had."""
    present = {parent.oid for parent in table.parents}
    for parent in old.parents:
        if parent.oid not in present:
            sql = parent.qualified.sql
            detach = f"ALTER TABLE {sql} DETACH PARTITION {table.qualified.sql}"
            yield _only(table, "ALTER TABLE", detach) if old.bound is not None else _alter(table, f"NO INHERIT {sql}")


def _attach(table: DescribedTable, old: DescribedTable | None) -> Iterator[Ddl]:
    """Connect a table to its new parents."""
    before = {parent.oid for parent in old.parents} if old else set()
    for parent in table.parents:
        if parent.oid in before:
            continue
        sql = parent.qualified.sql
        if table.bound is not None:
            attach = f"ALTER TABLE {sql} ATTACH PARTITION {table.qualified.sql} {table.bound}"
            yield _only(table, "ALTER TABLE", attach)
        else:
            yield _alter(table, f"INHERIT {sql}")


# Text ----------------------------------------------------------------------------------------------------------------


def _only(table: DescribedTable, kind: str, statement: str) -> Ddl:
    return Ddl(kind, table.qualified, statement, dialect=POSTGRES)


def _alter(table: DescribedTable, what: str) -> Ddl:
    return _only(table, "ALTER TABLE", f"ALTER TABLE {table.qualified.sql} {what}")


def _duckdb_table(table: DescribedTable, verb: str) -> str:
    layout = table.layout
    parts = [f"{quote(column.name)} {column.type}" for column in layout.columns]
    if layout.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, layout.primary_key))})")
    return f"{verb} {table.qualified.sql} ({', '.join(parts)})"


def _create_sql(table: DescribedTable, is_snapshot: bool) -> str:
    parts = [_column_sql(column) for column in table.columns]
    for name, constraint in sorted(_held(table).items(), key=lambda item: (not item[1].is_primary_key, item[0])):
        if not (is_snapshot and constraint.is_foreign_key):
            parts.append(f"CONSTRAINT {quote(name)} {constraint.definition}")
    partitioned = f" PARTITION BY {table.partition_key}" if table.is_root else ""
    return f"CREATE TABLE {table.qualified.sql} ({', '.join(parts)}){partitioned}"


def _column_sql(column: DescribedColumn) -> str:
    text = f"{quote(column.name)} {column.type}"
    if column.collation:
        text += f" COLLATE {column.collation}"
    if column.generated is not None:
        text += f" GENERATED ALWAYS AS ({column.generated}) STORED"
    elif column.identity:
        text += f" {_identity(column)}"
    elif column.default is not None:
        text += f" DEFAULT {column.default}"
    return text if column.nullable else f"{text} NOT NULL"


def _identity(column: DescribedColumn) -> str:
    return f"GENERATED {_ALWAYS[str(column.identity)]} AS IDENTITY ({column.identity_options})"


def sequence_options(options: str) -> list[str]:
    """Split options of a sequence as `wlc.sequence_options` writes them."""
    return re.findall(r"(?:INCREMENT BY|MINVALUE|MAXVALUE|START WITH|CACHE) -?\d+|(?:NO )?CYCLE", options)
