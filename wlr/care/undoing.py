"""Undo transactions of a master: their negated net change is a new transaction, or several if DuckDB needs them."""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parquet_sql import PASSING
from wlc.dialect.sql import literal
from wlc.farm.clock import parse_tick
from wlc.farm.errors import ChangedSinceError, ExpiredError, InvalidError, UnsupportedError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Change, Clear, Ddl
from wlc.farm.schema_fold import touched_tables
from wlc.masters.compensation import WantedChange
from wlc.masters.operations import compensate
from wlr.engine.calculator import connect
from wlr.reading.change_feed import ChangeFeed, batches_of
from wlr.reading.place import named_table
from wlr.reading.trace import tables_at
from wlr.replay import log_reader
from wlr.replay.plan.bounds import Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name, Transaction
    from wlc.masters.compensation import ChangedRows


@dataclass(frozen=True, slots=True)
class Undone(ForPeople):
    """The result of undoing transactions.

    Attributes:
        tick: The new transaction, the last one of several; None if there was nothing to undo, or in a dry run.
        undone: Number of undone transactions.
        tables: Number of changed rows per table.
        is_dry_run: Nothing was written.
        transactions: Number of new, consecutive transactions.
    """

    tick: int | None
    undone: int
    tables: tuple[ChangedRows, ...]
    is_dry_run: bool = False
    transactions: int = 0


def undo(
    source: str | os.PathLike[str],
    first: int | str,
    last: int | str | None = None,
    *,
    table: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Undone:
    """Undo transactions of a master by a new one, which restores the old values of their rows.

    A row that later transactions changed is a conflict, and nothing is written. A row with its old values is skipped,
    so an undo with an unknown outcome can be repeated; but in a table without a primary key, removed rows would be
    added twice. Pending transactions are published first.

    DuckDB cannot remove a row and its referring row in one transaction. Such an undo takes several transactions,
    referring rows first; no other transaction commits between them, and nothing is written if the last would fail.

    Args:
        source: Path of the master.
        first: The first transaction.
        last: The last one, included; only the first one if omitted.
        table: Undo only changes of this table: `schema.table`, or `table` in schema main.
        force: Restore the old values even of rows that were changed since.
        dry_run: Write nothing, and report the plan.
        storage_options: Options of the farm's file system.

    Raises:
        ChangedSinceError: Rows were changed since; `conflicts` has them. Nothing was written.
        UnsupportedError: One of the transactions changes the schema, or a table was altered since, or this kind of
            master has no undo.
        ExpiredError: The log that holds them was pruned.
        InvalidError: There are no such transactions, or the old rows break a constraint.
        UnavailableError: The machine failed after committing some of several new transactions. Repeat the undo.

    Examples:
        >>> wlr.undo("sales.duckdb", 3).tick
        4
        >>> wlr.read("sales", "orders", where="id = 2").fetchall()
        [(2, 'ink')]
    """
    first = parse_tick(first, "first")
    last = first if last is None else parse_tick(last, "last")
    # This also refuses a place that is no master, before reading anything.
    compensate(source, (), dry_run=True, storage_options=storage_options)
    database = wlc.resolve(source, storage_options=storage_options)
    if last > log_reader.last_tick(database, database.batch_numbers()):
        wlc.flush(source, storage_options=storage_options)
    shown = shlex.quote(os.fspath(source))
    ticks = str(first) if first == last else f"{first}:{last}"
    with tempfile.TemporaryDirectory(prefix="wlr-undo-") as work:
        try:
            count, changes = _changes(database, (first, last), table, Path(work))
            done = compensate(source, changes, force=force, dry_run=dry_run, storage_options=storage_options)
        except ChangedSinceError as error:
            chosen = f" --table {shlex.quote(table)}" if table is not None else ""
            error.hint = f"wlc undo {shown} --tick {ticks}{chosen} --force restores the old values in any case"
            raise
        except ExpiredError as error:
            raise ExpiredError(
                f"the log of transactions {ticks} was pruned: {error.message}",
                hint=f"wlc list {shlex.quote(database.url.rpartition('/')[0])} shows the oldest restorable state",
            ) from error
    return Undone(done.tick, count, done.tables, dry_run, done.transactions)


def _changes(
    database: FarmDatabase, ticks: tuple[int, int], table: str | None, work: Path
) -> tuple[int, list[WantedChange]]:
    """Write the files that undo transactions; return the number of transactions, and the files."""
    first, last = ticks
    end = log_reader.last_tick(database, database.batch_numbers())
    if not 1 <= first <= last <= end:
        message = f"there are no transactions {first} to {last}: the last one is {end}"
        raise InvalidError(message, hint=f"--tick {min(max(first, 1), end)}:{end}")
    found = [t for t in _transactions(database, ticks) if t.committed is not None]
    tables = tables_at(database, Stop(tick=last))
    wanted = named_table(table, tables, f"at tick {last}") if table is not None else None
    _refuse_schema_changes(found, wanted)
    touched = {r.table for t in found for r in t.records if isinstance(r, Change | Clear)}
    names = sorted(touched) if wanted is None else [wanted] if wanted in touched else []
    if not names:
        of_table = f" of {wanted}" if wanted is not None else ""
        message = f"{'transaction' if first == last else 'transactions'} {first}{_to(ticks)} changed no row{of_table}"
        raise InvalidError(message, hint=f"wlc log {shlex.quote(database.url)} --tick {max(1, first - 5)}:{last + 5}")
    changes = []
    for number, name in enumerate(names):
        feed = ChangeFeed(database, name, tables[name].layout, first, last, leads=False)
        changes.append(WantedChange(name, feed.layout, _written(feed, work / f"{number}.parquet")))
    return sum(1 for t in found if _changes_any(t, names)), changes


def _to(ticks: tuple[int, int]) -> str:
    first, last = ticks
    return f" to {last}" if last > first else ""


def _changes_any(transaction: Transaction, names: Sequence[Name]) -> bool:
    return any(isinstance(r, Change | Clear) and r.table in names for r in transaction.records)


def _transactions(database: FarmDatabase, ticks: tuple[int, int]) -> list[Transaction]:
    first, last = ticks
    return [
        transaction
        for batch, _ in batches_of(database, first, last, leads=False)
        for transaction in batch.transactions
        if first <= transaction.tick <= last
    ]


def _refuse_schema_changes(found: Sequence[Transaction], wanted: Name | None) -> None:
    for transaction in found:
        for record in transaction.records:
            if not isinstance(record, Ddl) or (wanted is not None and wanted not in touched_tables(record)):
                continue
            tick = transaction.tick
            raise UnsupportedError(
                f"transaction {tick} changes the schema, which cannot be undone: {record.kind} {record.object}",
                hint=f"undo the transactions before and after {tick}, or only a table that it does not change: --table",
            )


def _written(feed: ChangeFeed, path: Path) -> Path:
    """Write the net change of a table with negated weights."""
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as spill,
        connect(Path(spill)) as connection,
        feed.images() as images,
    ):
        query = f"SELECT * REPLACE ({fold.NEGATED}) FROM ({fold.sum_sql(feed.layout, images)})"
        connection.execute(f"COPY ({query}) TO {literal(str(path))} ({PASSING})")
    return path
