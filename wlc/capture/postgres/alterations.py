"""A transaction's alterations of tables of a PostgreSQL master, as statements in a valid order for replicas.

Most alterations concern one table. Two do not: a foreign key is rebuilt with the type of a column that it refers to,
and children lose a column with their parent. The event triggers describe each table after its alteration, one by one,
so statements for related tables are moved to the front.

Schema changes of a PostgreSQL master as statements: for replicas that are PostgreSQL, and for all others.

The event triggers describe a table before and after; the change is the difference. Columns are identified by their
numbers, which never change: a renamed column is not a new one. Every statement stands alone: names are qualified.

Replicas that are no PostgreSQL get columns and primary keys. A partitioned table is a view of its partitions there, and
what only PostgreSQL has (other constraints, indexes, views, functions, types) is in PostgreSQL's dialect alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.capture.postgres import effects
from wlc.capture.postgres.effects import POSTGRES, Carried
from wlc.capture.postgres.table_steps import Draft, attaching, column_sql, gone, stays, steps
from wlc.dialect.sql import quote
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from wlc.capture.postgres.described import DescribedColumn, DescribedTable
    from wlc.capture.postgres.table_steps import TableStep
    from wlc.farm.model import DdlEffect, Name


def create(table: DescribedTable) -> Iterator[Ddl | Carried]:
    """Create a table."""
    draft = yield from _created(table, table.held)
    yield from _attached(draft, table)
    yield from _rest(draft, table)


def create_apart(table: DescribedTable) -> Iterator[Ddl]:
    """Create a table of a snapshot, to which `connect` adds foreign keys and parents once all tables exist."""
    yield from _created(table, (name for name, found in table.held.items() if not found.is_foreign_key))


def connect(table: DescribedTable) -> Iterator[Ddl | Carried]:
    """Add parents and foreign keys to a table of a snapshot, once all tables exist."""
    keys = {name for name, found in table.constraints.items() if found.is_foreign_key}
    others = {name: found for name, found in table.constraints.items() if name not in keys}
    draft = Draft(replace(table, constraints=others, parents=()))
    yield from _attached(draft, table)
    for name in sorted(keys):
        if not table.constraints[name].is_inherited:
            yield _only(table, "ALTER TABLE", draft.add(name, table.constraints[name]), draft.effects())
    yield from _rest(draft, table)


def drop(table: DescribedTable) -> Iterator[Ddl]:
    """Drop a table."""
    name = table.qualified
    does = (DroppedObject(DbObject("TABLE", name)),)
    original, statement = f"DROP TABLE IF EXISTS {name.sql} CASCADE", f"DROP TABLE IF EXISTS {name.sql}"
    if table.is_root:
        yield _only(table, "DROP TABLE", original, does)
        yield _drop_view(name)
    else:
        yield Ddl("DROP TABLE", name, statement, original=original, does=does)


def alter(
    old: DescribedTable,
    new: DescribedTable,
    *,
    is_resent: bool,
    below: Iterable[tuple[DescribedTable, DescribedTable]] = (),
) -> Iterator[Ddl | Carried]:
    """Bring a table from one description to the next.

    Args:
        old: As it was.
        new: As it is.
        is_resent: All rows are sent again, and the table is empty until then, so columns may be rebuilt.
        below: Its children, and theirs, before and after the change.
    """
    draft = Draft(old.with_names_of(new))
    carried: list[DdlEffect] = []
    for step in steps(draft, old, new, is_resent=is_resent, below=below):
        before, redefined = draft.said, draft.redefined
        found = draft.effects()
        does = found if step.does is None else step.does
        if not step.statement:
            carried += does
        if step.duckdb is not None and not is_resent and not new.is_root:
            yield from _for_all(step, before, draft.table, does, redefined)
        elif step.statement:
            yield _only(new, "ALTER TABLE", step.statement, does)
    if carried:
        yield Carried(new.qualified, tuple(carried))
    yield from _rest(draft, new)
    if is_resent and not new.is_root:
        yield from _made_anew(old.qualified, new)
    elif new.is_root and old.qualified != new.qualified:
        yield _drop_view(old.qualified)


def _for_all(
    step: TableStep, before: DescribedTable, table: DescribedTable, does: tuple[DdlEffect, ...], redefined: str
) -> Iterator[Ddl]:
    """Yield a step for all kinds of replicas: one statement if its effects are the same everywhere."""
    statement, original = str(step.duckdb), step.statement
    plain = effects.altered(effects.bare(before), effects.bare(table), {redefined})
    ddl = Ddl("ALTER TABLE", table.qualified, statement, layout=table.layout, original=original, does=plain)
    yield from (ddl,) if does == plain or not original else effects.apart(ddl, does)


def _made_anew(name: Name, new: DescribedTable) -> Iterator[Ddl]:
    """Rebuild a table in replicas that are no PostgreSQL, from the former object of this name."""
    table = DbObject("TABLE", new.qualified)
    if name != new.qualified:
        gone = (DroppedObject(DbObject("TABLE", name)),)
        yield Ddl("DROP TABLE", name, f"DROP TABLE {name.sql}", original="", does=gone)
    does = (CreatedObject(table, replaces=name == new.qualified),)
    replaced = _duckdb_table(new, "CREATE OR REPLACE TABLE")
    yield Ddl("CREATE TABLE", new.qualified, replaced, layout=new.layout, original="", does=does)


def _drop_view(name: Name) -> Ddl:
    does = (DroppedObject(DbObject("VIEW", name)),)
    return Ddl("DROP VIEW", name, f"DROP VIEW IF EXISTS {name.sql}", original="", does=does)


def drop_remade_keys(old: DescribedTable, new: DescribedTable) -> Iterator[Ddl]:
    """Drop the foreign keys of a table that are rebuilt with the type of a column that they refer to."""
    draft = Draft(old)
    for name, constraint in old.held.items():
        if constraint.is_foreign_key and name in new.constraints and not stays(new, name, constraint):
            draft.drop(name)
            statement = f"ALTER TABLE {draft.sql} DROP CONSTRAINT IF EXISTS {quote(name)}"
            yield _only(old, "ALTER TABLE", statement, draft.effects())


def partition_view(root: DescribedTable, tables: Iterable[DescribedTable], *, replaces: bool = False) -> Ddl:
    """Create the view that represents a partitioned table in engines without such tables."""
    columns = root.layout.columns
    listed = ", ".join(quote(column.name) for column in columns)
    parts = [
        f"SELECT {listed} FROM {table.qualified.sql}"
        for table in sorted(tables, key=lambda table: table.qualified)
        if any(parent.oid == root.oid for parent in table.parents)
    ]
    nothing = ", ".join(f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in columns)
    body = " UNION ALL ".join(parts) or f"SELECT {nothing} WHERE false"
    does = (CreatedObject(DbObject("VIEW", root.qualified), replaces=replaces),)
    statement = f"CREATE OR REPLACE VIEW {root.qualified.sql} AS {body}"
    return Ddl("CREATE VIEW", root.qualified, statement, original="", does=does)


def depth(table: DescribedTable, tables: Mapping[int, DescribedTable]) -> int:
    """Count the partitioned tables around a table."""
    count = 0
    while table.parents and table.parents[0].oid in tables:
        table = tables[table.parents[0].oid]
        count += 1
    return count


def _created(table: DescribedTable, constraints: Iterable[str]) -> Generator[Ddl, None, Draft]:
    """Create a table with some of its constraints. A key that the farm has, too, comes with the table."""
    is_key = bool(table.layout.primary_key)
    inline = {name: found for name, found in table.constraints.items() if found.is_primary_key and is_key}
    draft = Draft(replace(table, constraints=inline, parents=()))
    statement = _create_sql(draft.table)
    if table.is_root:
        yield _only(table, "CREATE TABLE", statement, effects.created(draft.table))
    else:
        made, does = _duckdb_table(table, "CREATE TABLE"), (CreatedObject(DbObject("TABLE", table.qualified)),)
        yield Ddl("CREATE TABLE", table.qualified, made, layout=table.layout, original=statement, does=does)
    for name in sorted({*constraints} - inline.keys()):
        yield _only(table, "ALTER TABLE", draft.add(name, table.constraints[name]), draft.effects())
    return draft


# Parts ---------------------------------------------------------------------------------------------------------------


def _attached(draft: Draft, table: DescribedTable) -> Iterator[Ddl]:
    for step in attaching(draft, table):
        yield _only(table, "ALTER TABLE", step.statement, draft.effects())


def _rest(draft: Draft, table: DescribedTable) -> Iterator[Carried]:
    """Yield the remaining changes of a table after all its own statements."""
    draft.table = table
    if does := draft.effects():
        yield Carried(table.qualified, does)


# Text ----------------------------------------------------------------------------------------------------------------


def _only(table: DescribedTable, kind: str, statement: str, does: tuple[DdlEffect, ...]) -> Ddl:
    does = does or (AlteredObject(DbObject("TABLE", table.qualified)),)
    return Ddl(kind, table.qualified, statement, dialect=POSTGRES, does=does)


def _duckdb_table(table: DescribedTable, verb: str) -> str:
    layout = table.layout
    parts = [f"{quote(column.name)} {column.type}" for column in layout.columns]
    if layout.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, layout.primary_key))})")
    return f"{verb} {table.qualified.sql} ({', '.join(parts)})"


def _create_sql(table: DescribedTable) -> str:
    parts = [column_sql(column) for column in table.columns]
    parts += [f"CONSTRAINT {quote(name)} {found.definition}" for name, found in table.constraints.items()]
    partitioned = f" PARTITION BY {table.partition_key}" if table.is_root else ""
    return f"CREATE TABLE {table.qualified.sql} ({', '.join(parts)}){partitioned}"


@dataclass(slots=True)
class Altered:
    """A transaction altered a table, created it (there is no old description) or dropped it (there is no new one).

    Attributes:
        oid: Of the table.
        old: The table before.
        new: The table after.
        is_resent: All its rows follow.
        is_settled: All its rows have followed.
    """

    oid: int
    old: DescribedTable | None
    new: DescribedTable | None
    is_resent: bool = False
    is_settled: bool = False

    @property
    def is_named(self) -> bool:
        """Whether it gives a table a name that it had not before."""
        return self.new is not None and (self.old is None or self.old.qualified != self.new.qualified)

    def roots(self) -> set[int]:
        """Return the partitioned tables that it concerns: the table itself, and those it is or was part of."""
        described = (table for table in (self.old, self.new) if table is not None)
        return {self.oid, *(parent.oid for table in described for parent in table.parents)}


def statements(entry: Altered, later: Sequence[object]) -> Iterator[Ddl | Carried]:
    """Return the statements for an alteration.

    Args:
        entry: The alteration.
        later: Later changes of the transaction; alterations among them are of this class.
    """
    if entry.old is None and entry.new is not None:
        yield from create(entry.new)
    elif entry.old is not None and entry.new is None:
        yield from drop(entry.old)
    elif entry.old is not None and entry.new is not None:
        if entry.new.has_retyped(entry.old):
            for old, new in _first_alterations(entry, later):
                yield from drop_remade_keys(old, new)
        added = gone(entry.new, entry.old)
        below = tuple(_children(entry, later)) if added else ()
        new = _with_values(entry.new, added, below) if entry.new.is_root else entry.new
        yield from alter(entry.old, new, is_resent=entry.is_resent, below=below)


def _with_values(
    root: DescribedTable, added: list[DescribedColumn], below: Sequence[tuple[DescribedTable, DescribedTable]]
) -> DescribedTable:
    """Return a partitioned table with the values that rows of its partitions have in columns that were added."""
    for column in added:
        same = (c for old, new in below for c in gone(new, old) if c.name == column.name and c.missing is not None)
        if found := next(same, None):
            root = root.with_column(replace(column, missing=found.missing))
    return root


def _first_alterations(entry: Altered, later: Sequence[object]) -> Iterator[tuple[DescribedTable, DescribedTable]]:
    """Yield the first alterations of tables that were altered after another one, each with its original state."""
    seen = {entry.oid}
    for other in later:
        if isinstance(other, Altered) and other.oid not in seen:
            seen.add(other.oid)
            if other.old is not None and other.new is not None:
                yield other.old, other.new


def _children(entry: Altered, later: Sequence[object]) -> Iterator[tuple[DescribedTable, DescribedTable]]:
    """Yield likewise the children of a table, and theirs."""
    family = {entry.oid}
    for old, new in _first_alterations(entry, later):
        if family & {parent.oid for parent in old.parents}:
            family.add(old.oid)
            yield old, new
