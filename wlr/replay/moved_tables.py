"""Tables that a rename moves into a replica of some tables, or out of it.

A replica of some tables has no rows of the others. If a rename makes another table match the replica's patterns, its
rows come from the farm: the table is restored, as of that statement, to a scratch file, and loaded from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import PASSING
from wlc.dialect.duckdb.schema import schema_statements
from wlc.dialect.sql import literal
from wlc.farm.database import describe_file
from wlc.farm.model import WEIGHT, Change, DbObject, Ddl, DroppedObject, Name, TableFile
from wlc.farm.schema_fold import table_names
from wlr.replay.ddl.left_out import schema_move
from wlr.replay.plan.patterns import matches
from wlr.replay.plan.step import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from wlc.farm.model import Record, Transaction
    from wlr.engine.contract import Scan
    from wlr.replay.plan.step import Step


@dataclass(frozen=True, slots=True)
class EnteringTable:
    """A restored table.

    Attributes:
        schema: Statements that create it, its indexes and its comments.
        file: Its rows as a data file of the step, at `local`; None for an empty table.
    """

    schema: tuple[Ddl, ...]
    file: TableFile | None
    local: Path

    def records(self) -> list[Record]:
        """Return the records that create the table in a transaction."""
        rows = [Change(self.file.table, self.file.file.path, self.file.file.rows, 0)] if self.file else []
        return [*self.schema, *rows]


def with_moved(
    step: Step,
    patterns: Collection[str],
    holds: Callable[[Name], bool],
    restore: Callable[[Transaction, Name, Name], EnteringTable | None],
) -> tuple[Step, list[EnteringTable]]:
    """Rewrite a step of one transaction for a replica of some tables.

    Args:
        step: Its transaction may rename tables.
        patterns: Patterns of the replica's tables.
        holds: Returns whether the replica has a table before the step.
        restore: Restores a table as of a point within the transaction, given its old and its new name; None for a
            view.

    Returns:
        The step, which creates and fills entering tables, drops leaving ones, and leaves out statements about other
        tables; and the entering tables.
    """
    (transaction,) = step.transactions
    present: dict[tuple[bytes, bytes], bool] = {}
    records: list[Record] = []
    entering: list[EnteringTable] = []
    schemas = _SchemaMoves()

    def is_held(name: Name) -> bool:
        return present.get(name.folded, holds(name))

    for number, recorded in enumerate(transaction.records):
        record = schemas.rewritten(recorded, is_held, patterns)
        if record is None:
            continue
        tables = table_names(record) if isinstance(record, Ddl) and not schema_move(record) else []
        about = next((table for table in tables if isinstance(record, Ddl) and record.object in table.both), None)
        if not isinstance(record, Ddl) or about is None or about.before is None:
            records.append(record)
        elif (was_held := is_held(about.before)) == (is_wanted := matches(about.both[-1], patterns)):
            records += [record] if was_held else []
        elif about.is_renamed and about.after and is_wanted:
            part = replace(transaction, records=transaction.records[: number + 1])
            found = restore(part, about.before, about.after)
            entering += [found] if found else []
            records += found.records() if found else [record]
        elif about.is_renamed:
            records.append(_drop(about.before, record))
        else:
            records.append(record)
        for table in tables:
            if table.before != table.after or table.is_created:
                present |= {name.folded: name == table.after and matches(name, patterns) for name in table.both}
    files = {table.file.file.path: table.file for table in entering if table.file}
    whole = replace(transaction, records=tuple(records))
    return replace(step, transactions=(whole,), files={**step.files, **files}), entering


@dataclass(slots=True)
class _SchemaMoves:
    """Tables that enter or leave because a PostgreSQL master moved them to another schema.

    A PostgreSQL replica with both names runs the ALTER TABLE. With only one of the two names, it runs the DROP or
    CREATE that follow for other engines. All rows follow the CREATE.
    """

    entering: set[tuple[bytes, bytes]] = field(default_factory=set)
    leaving: set[tuple[bytes, bytes]] = field(default_factory=set)

    def rewritten(self, record: Record, is_held: Callable[[Name], bool], patterns: Collection[str]) -> Record | None:
        """Return the record for the replica, None to skip it."""
        if not isinstance(record, Ddl):
            return record
        if move := schema_move(record):
            old, new = move
            if is_held(old) and matches(new, patterns):
                return record
            if is_held(old):
                self.leaving.add(old.folded)
            elif matches(new, patterns):
                self.entering.add(new.folded)
            return None
        for table in table_names(record):
            if table.is_created and table.after and table.after.folded in self.entering:
                self.entering.remove(table.after.folded)
                return replace(record, original=None)
            if table.before and table.after is None and table.before.folded in self.leaving:
                self.leaving.remove(table.before.folded)
                return _drop(table.before, record)
        return record


def _drop(table: Name, renaming: Ddl) -> Ddl:
    original = None if renaming.original is None else f"DROP TABLE IF EXISTS {table.sql} CASCADE"
    does = (DroppedObject(DbObject("TABLE", table)),)
    return Ddl("DROP TABLE", table, f"DROP TABLE {table.sql}", renaming.search_path, original=original, does=does)


def read_entering(scan: Scan, renamed: Name, tick: int, local: Path) -> EnteringTable | None:
    """Read a restored table; None if there is no table of that name.

    Args:
        scan: Scan of the scratch file.
        renamed: The table's name.
        tick: Tick of the transaction that renames it.
        local: File for its rows.
    """
    name = next((found for found in scan.layouts if found.folded == renamed.folded), None)
    if name is None:
        return None
    layout = scan.layouts[name]
    indexes = {
        Name(name.schema, index)
        for (index,) in scan.connection.execute(
            "SELECT index_name FROM duckdb_indexes() WHERE schema_name = ? AND table_name = ?", [name.schema, name.name]
        ).fetchall()
    }
    before, after = schema_statements(scan.connection, scan.state.catalog)
    own = [ddl for ddl in before if ddl.object == name and ddl.kind in ("CREATE TABLE", "COMMENT")]
    own += [ddl for ddl in after if ddl.object in indexes]
    with scan.images(name) as images:
        query = f"SELECT CAST({tick} AS BIGINT) AS _tick, CAST(1 AS TINYINT) AS {WEIGHT}, * FROM ({images})"
        copied = scan.connection.execute(f"COPY ({query}) TO {literal(str(local))} ({PASSING})").fetchall()
    rows = int(copied[0][0])
    file = TableFile(describe_file(local, f"{LOCAL}{local.name}", rows), name, layout) if rows else None
    return EnteringTable(tuple(own), file, local)
