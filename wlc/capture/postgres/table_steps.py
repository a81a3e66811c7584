"""From one description of a table of a PostgreSQL master to the next, statement by statement.

Columns are identified by their numbers, which never change: a renamed column is not a new one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wlc.capture.postgres import effects
from wlc.capture.postgres.types import constant_sql, duckdb_type
from wlc.dialect.sql import literal, quote
from wlc.farm.model import AlteredObject, DbObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wlc.capture.postgres.described import DescribedColumn, DescribedConstraint, DescribedTable
    from wlc.farm.model import DdlEffect


_ALWAYS = {"a": "ALWAYS", "d": "BY DEFAULT"}


class TableStep(NamedTuple):
    """A step from one description of a table to the next.

    Attributes:
        statement: In PostgreSQL; "" if the table changes with the statement for another one.
        duckdb: In replicas that are no PostgreSQL, None if they have nothing to do.
        does: The statement's effects if they differ from the draft's changes.
    """

    statement: str
    duckdb: str | None = None
    does: tuple[DdlEffect, ...] | None = None


class Draft:
    """A table between two statements that alter it.

    Attributes:
        table: The present table.
        said: The table at the last call of `effects`.
        redefined: The statement's column, if it stays.
    """

    def __init__(self, table: DescribedTable) -> None:
        self.table = self.said = table
        self.redefined = ""

    @property
    def sql(self) -> str:
        return self.table.qualified.sql

    def add(self, name: str, constraint: DescribedConstraint) -> str:
        """Add a constraint, and return the statement for that."""
        self.table = replace(self.table, constraints={**self.table.constraints, name: constraint})
        return f"ALTER TABLE {self.sql} ADD CONSTRAINT {quote(name)} {constraint.definition}"

    def drop(self, constraint: str) -> None:
        """Drop a constraint."""
        kept = {name: found for name, found in self.table.constraints.items() if name != constraint}
        self.table = replace(self.table, constraints=kept)

    def effects(self) -> tuple[DdlEffect, ...]:
        """Return the effects on the table since the last call."""
        found = effects.altered(self.said, self.table, {self.redefined})
        self.said, self.redefined = self.table, ""
        return found


def steps(
    draft: Draft,
    old: DescribedTable,
    new: DescribedTable,
    *,
    is_resent: bool,
    below: Iterable[tuple[DescribedTable, DescribedTable]],
) -> Iterator[TableStep]:
    """Yield PostgreSQL's statement and DuckDB's, and keep the draft as it is after them.

    PostgreSQL changes what a table inherits with the statement for its parent: the table needs no statement itself.
    """
    yield from _renamed(draft, new)
    # A detached partition keeps its foreign keys or loses them (PostgreSQL 14): only then can they be dropped.
    yield from _detached(draft, new, old)
    yield from _dropped_constraints(draft, old, new)
    yield from _dropped_columns(draft, old, new, below)
    after = {column.number: column for column in new.columns}
    yield from _renamed_columns(draft, new, after)
    yield from _renamed_constraints(draft, old, new)
    for column in draft.table.columns:
        changed = after[column.number]
        draft.table = draft.table.with_column(changed)
        for statement in _changed_column(column, changed, is_resent=is_resent):
            only = "ONLY " if statement.startswith(("SET DEFAULT", "DROP DEFAULT")) else ""
            draft.redefined = changed.name
            yield TableStep(f"ALTER TABLE {only}{draft.sql} ALTER COLUMN {quote(changed.name)} {statement}")
    before = {column.number for column in old.columns}
    for column in new.columns:
        if column.number not in before:
            draft.table = replace(draft.table, columns=(*draft.table.columns, column))
            yield from _added_column(draft, column)
    draft.table = replace(draft.table, key=new.key)
    yield from _added_constraints(draft, old, new)
    yield from attaching(draft, new)


def _renamed(draft: Draft, new: DescribedTable) -> Iterator[TableStep]:
    if draft.table.schema != new.schema:
        # DuckDB cannot move a table to another schema: the event triggers have all rows sent again.
        statement = f"ALTER TABLE {draft.sql} SET SCHEMA {quote(new.schema)}"
        draft.table = replace(draft.table, schema=new.schema)
        yield TableStep(statement)
    if draft.table.name != new.name:
        statement = f"ALTER TABLE {draft.sql} RENAME TO {quote(new.name)}"
        draft.table = replace(draft.table, name=new.name)
        yield TableStep(statement, statement)


def _dropped_columns(
    draft: Draft, old: DescribedTable, new: DescribedTable, below: Iterable[tuple[DescribedTable, DescribedTable]]
) -> Iterator[TableStep]:
    replaced = _replaced_columns(old, new)
    for column in gone(old, new):
        draft.table = draft.table.without_column(column)
        name, drops = quote(column.name), f"ALTER TABLE {draft.sql} DROP COLUMN"
        # In a replica a child keeps a column that the parent drops; a type that was dropped took it along.
        original, said = f"{drops} IF EXISTS {name} CASCADE", None
        if column.is_inherited and column.name in replaced:
            # The child has the parent's new column already, and the statement for the parent said so.
            original, said = "", ()
        yield TableStep(original, f"{drops} {name}" if column.generated is None else None, said)
        if original and column.name in replaced:
            for before, after in below:
                if column.name in (lost.name for lost in gone(before, after) if lost.is_inherited):
                    steps = ((column.name, None),) if column.generated is None else ()
                    does = (AlteredObject(DbObject("TABLE", before.qualified), columns=steps),)
                    yield TableStep(
                        f"ALTER TABLE {before.qualified.sql} DROP COLUMN IF EXISTS {name} CASCADE", does=does
                    )


def gone(old: DescribedTable, new: DescribedTable) -> list[DescribedColumn]:
    """Return the columns that a table no longer has."""
    present = {column.number for column in new.columns}
    return [column for column in old.columns if column.number not in present]


def _replaced_columns(old: DescribedTable, new: DescribedTable) -> set[str]:
    """Return the names of columns that were dropped, and that new columns have."""
    return {column.name for column in gone(old, new)} & {column.name for column in gone(new, old)}


def _renamed_columns(draft: Draft, new: DescribedTable, after: Mapping[int, DescribedColumn]) -> Iterator[TableStep]:
    """Rename columns; two that swap their names use a third name in between."""
    while waiting := [column for column in draft.table.columns if column.name != after[column.number].name]:
        taken = {column.name for column in draft.table.columns}
        free = [column for column in waiting if after[column.number].name not in taken]
        column = free[0] if free else waiting[0]
        name = after[column.number].name if free else f"{column.name} {column.number}"
        statement = f"ALTER TABLE {draft.sql} RENAME COLUMN {quote(column.name)} TO {quote(name)}"
        key = tuple(name if part == column.name else part for part in draft.table.key)
        constraints = draft.table.worded_as(new, column.number)
        draft.table = replace(draft.table.with_column(replace(column, name=name)), key=key, constraints=constraints)
        yield TableStep("" if column.is_inherited else statement, statement if column.generated is None else None)


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


def _added_column(draft: Draft, column: DescribedColumn) -> Iterator[TableStep]:
    start = f"ALTER TABLE {draft.sql} ADD COLUMN"
    # It has come with that of a table above, unless a replica of some tables lacks that one.
    where = f"{start} IF NOT EXISTS" if column.is_inherited else start
    declared, missing = duckdb_type(column.base), column.missing
    # The description holds the value that existing rows got, so that a default such as now() is the same everywhere.
    default = f" DEFAULT {literal(missing)}::{column.type}" if missing is not None else ""
    original = f"{where} {column_sql(replace(column, default=None))}{default}"
    if column.generated is not None:
        yield TableStep(original)
        return
    name = quote(column.name)
    value = f" DEFAULT {constant_sql(declared, missing)}" if missing is not None else ""
    yield TableStep(original, f"{start} {name} {declared}{value}")
    if column.default is not None or missing is not None:
        default = "DROP DEFAULT" if column.default is None else f"SET DEFAULT {column.default}"
        bare = f"ALTER TABLE {draft.sql} ALTER COLUMN {name} DROP DEFAULT"
        draft.redefined = column.name
        yield TableStep(
            f"ALTER TABLE ONLY {draft.sql} ALTER COLUMN {name} {default}", bare if missing is not None else None
        )


def _dropped_constraints(draft: Draft, old: DescribedTable, new: DescribedTable) -> Iterator[TableStep]:
    for name, constraint in old.held.items():
        if not stays(new, name, constraint):
            draft.drop(name)
            # Replicas have what a child inherits as its own, too.
            yield TableStep(f"ALTER TABLE {draft.sql} DROP CONSTRAINT IF EXISTS {quote(name)} CASCADE")


def stays(new: DescribedTable, name: str, constraint: DescribedConstraint) -> bool:
    """Say whether a constraint is still there, perhaps in other words or under another name."""
    same = new.constraints.get(name)
    # ALTER TYPE makes constraints anew.
    return any(other.is_same(constraint) for other in new.constraints.values()) or (
        same is not None
        and same.columns == constraint.columns
        and (same.is_inherited or (same.definition == constraint.definition and not constraint.is_foreign_key))
    )


def _renamed_constraints(draft: Draft, old: DescribedTable, new: DescribedTable) -> Iterator[TableStep]:
    before = {constraint.oid: name for name, constraint in old.held.items()}
    for name, constraint in new.held.items():
        was = before.get(constraint.oid, name)
        if was != name and not constraint.is_inherited:
            renamed = draft.table.constraints[was]
            draft.drop(was)
            draft.add(name, renamed)
            yield TableStep(f"ALTER TABLE {draft.sql} RENAME CONSTRAINT {quote(was)} TO {quote(name)}")


def _added_constraints(draft: Draft, old: DescribedTable, new: DescribedTable) -> Iterator[TableStep]:
    before = old.held
    for name, constraint in new.held.items():
        same = before.get(name)
        is_there = any(constraint.is_same(c) for c in before.values()) or (same is not None and stays(new, name, same))
        if not is_there and constraint.is_local:
            yield TableStep(draft.add(name, constraint))
        elif is_there and constraint.is_foreign_key and constraint.is_local:
            was = next((c for c in before.values() if c.oid == constraint.oid), constraint)
            if _timing(was) != _timing(constraint):
                yield TableStep(f"ALTER TABLE {draft.sql} ALTER CONSTRAINT {quote(name)} {_timing(constraint)}")


def _timing(constraint: DescribedConstraint) -> str:
    """Return when a foreign key is checked."""
    text = constraint.definition.removesuffix(" NOT VALID").removesuffix(" NOT ENFORCED")
    if text.endswith("DEFERRABLE INITIALLY DEFERRED"):
        return "DEFERRABLE INITIALLY DEFERRED"
    return "DEFERRABLE INITIALLY IMMEDIATE" if text.endswith(" DEFERRABLE") else "NOT DEFERRABLE"


def _detached(draft: Draft, table: DescribedTable, old: DescribedTable) -> Iterator[TableStep]:
    """Disconnect a table from parents that it had."""
    present = {parent.oid for parent in table.parents}
    for parent in old.parents:
        if parent.oid not in present:
            sql = parent.qualified.sql
            draft.table = replace(draft.table, parents=tuple(p for p in draft.table.parents if p.oid != parent.oid))
            detach = f"ALTER TABLE {sql} DETACH PARTITION {draft.sql}"
            yield TableStep(detach if old.bound is not None else f"ALTER TABLE {draft.sql} NO INHERIT {sql}")


def attaching(draft: Draft, table: DescribedTable) -> Iterator[TableStep]:
    """Connect a table to its new parents."""
    before = {parent.oid for parent in draft.table.parents}
    for parent in table.parents:
        if parent.oid in before:
            continue
        sql = parent.qualified.sql
        draft.table = replace(draft.table, parents=(*draft.table.parents, parent))
        attach = f"ALTER TABLE {sql} ATTACH PARTITION {draft.sql} {table.bound}"
        yield TableStep(attach if table.bound is not None else f"ALTER TABLE {draft.sql} INHERIT {sql}")


# Text ----------------------------------------------------------------------------------------------------------------


def column_sql(column: DescribedColumn) -> str:
    """Return a column as PostgreSQL's CREATE TABLE has it."""
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
