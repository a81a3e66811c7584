"""Read the changes of a table as Arrow batches, transaction by transaction, from any tick on."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.dialect.duckdb import fold
from wlc.dialect.types import load_sql
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.model import WEIGHT
from wlr.engine.calculator import connect, reading
from wlr.reading import query
from wlr.reading.place import LocalCopies, stop_at
from wlr.reading.trace import FeedTransaction, RemovedRows, contents_at, plan_feed, refuse_broken, tick_at
from wlr.replay import log_reader
from wlr.replay.plan.bounds import Stop

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import date, datetime

    import duckdb
    import pyarrow as pa

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Layout, Name
    from wlr.reading.trace import FeedPlan
    from wlr.replay.plan.step import Read

# Only transactions with more rows than this are split into several batches.
BATCH_ROWS = 122_880


def changes(
    db: str | os.PathLike[str],
    table: str,
    *,
    since: int | str | date | None = None,
    until: int | str | date | None = None,
    snapshot: bool = False,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows that transactions removed from a table and added to it.

    The columns are those of the table at the end of the range, then `_tick`, `_weight` (-1 for a removed row, 1 for an
    added one; an update is one of each), `_committed` and `_user`. Rows are in the order of ticks, removed ones first.
    Images of an older layout are mapped by name: a missing column is NULL, another type is cast, and the read fails if
    the cast loses anything. To continue, pass the last tick that was read as `since=`.

    Args:
        db: Name in the farm, URL of the database's folder, or path of the master.
        table: `schema.table`, or `table` in schema main.
        since: Only transactions after this tick or time; from the beginning of the log if omitted.
        until: Only transactions up to this tick or time, included; all published ones if omitted.
        snapshot: Begin with all rows of the table at `since`, with weight 1 and that tick; without `since`, at the end.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.

    Returns:
        Batches, each of whole transactions; only a transaction of more than 122,880 rows takes several. Can be empty.

    Raises:
        InvalidError: There is no such database or table, the range is ahead of the farm, or no changes lead through it.
        ExpiredError: The beginning of the range was pruned.
        UnsupportedError: The table was renamed in the range, or a schema change cannot be followed.
        CorruptError: A file is damaged.

    Examples:
        >>> for batch in wlr.changes("sales", "orders", since=2):
        ...     print(batch.select(["item", "_weight"]).to_pylist())
        [{'item': 'ink', '_weight': -1}, {'item': 'blue ink', '_weight': 1}]
    """
    database = wlc.resolve(db, farm, storage_options=storage_options)
    feed = ChangeFeed.open(database, table, since, until, is_whole=snapshot)
    return feed.batches(load_sql, lambda selected: f"SELECT * FROM ({selected}) ORDER BY _tick, {WEIGHT}")


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive transactions for one query; `removed` are rows that no data file lists."""

    transactions: tuple[FeedTransaction, ...]
    removed: tuple[RemovedRows, ...]

    @property
    def first(self) -> int:
        return self.transactions[0].tick

    @property
    def last(self) -> int:
        return self.transactions[-1].tick


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """The changes of a table in a range of ticks.

    Attributes:
        name: Name of the table in the log.
        layout: Layout of the table at the end of the range.
        first: The first tick of the range.
        last: The last tick.
        whole: Contents of the table before the range, and their moment; None if not wanted.
        leads: The changes must continue from the contents before the range.
    """

    database: FarmDatabase
    name: Name
    layout: Layout
    first: int
    last: int
    whole: RemovedRows | None = None
    leads: bool = True

    @classmethod
    def open(
        cls,
        database: FarmDatabase,
        table: str,
        since: int | str | date | None,
        until: int | str | date | None,
        *,
        is_whole: bool,
    ) -> ChangeFeed:
        """Find a table and a range; arguments and errors are those of `changes`."""
        end = log_reader.last_tick(database, database.batch_numbers())
        begin, stop = _moment_of(since, "since", end), _moment_of(until, "until", end)
        name, contents, last = contents_at(database, table, stop)
        # A tick without changes can end the range, too.
        last = last if stop.tick is None else max(last, stop.tick)
        if since is None:
            after = last if is_whole else 0
        else:
            after = tick_at(database, begin) if begin.tick is None else begin.tick
        whole = None
        if is_whole:
            name_then, held, _ = contents_at(database, str(name), Stop(tick=after))
            refuse_broken(name_then, held)
            whole = RemovedRows(held, FeedTransaction(after, _moment(database, after), None))
        return cls(database, name, contents.layout, after + 1, last, whole)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [*(query.feed_column(column.name) for column in self.layout.stored), *(name for name, _ in query.FEED)]

    def schema(self, loads: query.Loads) -> pa.Schema:
        """Return the schema of the batches, even without any batch."""
        images = f"SELECT *, 0::BIGINT AS _tick, 1::TINYINT AS {WEIGHT} FROM ({query.nothing_sql(self.layout)})"
        with tempfile.TemporaryDirectory(prefix="wlr-changes-") as work, connect(Path(work)) as connection:
            connection.register(query.TRANSACTIONS, query.transactions_table(()))
            selected = query.feed_sql(self.layout, self.layout, self.columns, images, loads)
            return connection.sql(selected).to_arrow_reader().schema

    def batches(
        self, loads: query.Loads, shaped: Callable[[str], str], note: Callable[[int], None] = lambda _: None
    ) -> Iterator[pa.RecordBatch]:
        """Read the changes.

        Args:
            loads: Makes the values of the table's columns.
            shaped: Makes a query of whole transactions from one that selects their images in any order.
            note: Called with the last tick of a run of transactions after all its batches were read. The farm is read
                only between two runs.
        """
        runs = self._runs()
        return self._batches(runs, loads, shaped, note)

    @contextmanager
    def images(self) -> Iterator[str]:
        """Context that gives a query for all images of the range as stored, with weights.

        Unlike in `batches`, rows of an older layout get the values that schema changes gave them.
        """
        if self.first > self.last:
            yield f"SELECT *, 0 AS {WEIGHT} FROM ({query.nothing_sql(self.layout)})"
            return
        plan = self._plan()
        copies = LocalCopies(self.database)
        columns = fold.stored_columns(self.layout)
        try:
            with reading(f"changes of {self.name}"):
                selects = [f"SELECT *, 0 AS {WEIGHT} FROM ({query.nothing_sql(self.layout)})"]
                for rows in plan.removed:
                    held = self._held_rows_sql(rows, copies)
                    values = fold.named_values_sql(rows.values, columns)
                    selects.append(f"SELECT {values}, -1 AS {WEIGHT} FROM ({held})")
                parts = plan.parts()
                copies.fetch_log(part.read.file for part in parts)
                local = ((copies.local[part.read.file.file.path], part) for part in parts)
                sources = [fold.RowImages((path,), p.read.first, p.read.last, p.values) for path, p in local]
                yield " UNION ALL ".join([*selects, *([fold.raw_sql(self.layout, sources)] if sources else [])])
        finally:
            copies.release()

    def _batches(
        self,
        planned: tuple[Sequence[Read], Sequence[_Run]],
        loads: query.Loads,
        shaped: Callable[[str], str],
        note: Callable[[int], None],
    ) -> Iterator[pa.RecordBatch]:
        reads, runs = planned
        with tempfile.TemporaryDirectory(prefix="wlr-changes-") as work:
            connection = connect(Path(work))
            copies = LocalCopies(self.database)
            try:
                with reading(f"changes of {self.name}"):
                    if self.whole is not None:
                        whole = self._held_sql(self.whole, copies, loads, weight=1)
                        yield from _given(connection, shaped(whole), (self.whole.transaction,))
                        note(self.whole.transaction.tick)
                    for run in runs:
                        own = [read for read in reads if read.first <= run.last and read.last >= run.first]
                        selects = [self._held_sql(rows, copies, loads, weight=-1) for rows in run.removed]
                        selects += self._images_sql(own, run, copies, loads)
                        yield from _given(connection, shaped(" UNION ALL ".join(selects)), run.transactions)
                        note(run.last)
                        copies.release()
            finally:
                copies.release()
                connection.close()

    def _runs(self) -> tuple[Sequence[Read], Sequence[_Run]]:
        if self.first > self.last:
            return (), ()
        plan = self._plan()
        counts: dict[FeedTransaction, int] = dict(plan.transactions)
        for rows in plan.removed:
            held = rows.contents
            total = sum(file.rows for file in held.files) + held.added - held.removed
            counts[rows.transaction] = counts.get(rows.transaction, 0) + total
        runs: list[_Run] = []
        gathered: list[FeedTransaction] = []
        waiting = 0
        for transaction, count in sorted(counts.items(), key=lambda item: item[0].tick):
            if gathered and waiting + count > BATCH_ROWS:
                runs.append(_run(gathered, plan.removed))
                gathered, waiting = [], 0
            gathered.append(transaction)
            waiting += count
        if gathered:
            runs.append(_run(gathered, plan.removed))
        return plan.reads, runs

    def _plan(self) -> FeedPlan:
        batches = batches_of(self.database, self.first, self.last, leads=self.leads)
        return plan_feed(self.database, batches, self.name, (self.first, self.last))

    def _held_sql(self, rows: RemovedRows, copies: LocalCopies, loads: query.Loads, weight: int) -> str:
        """Select all rows of a table as images of one weight."""
        images = query.held_sql(self._held_rows_sql(rows, copies), rows.transaction.tick, weight)
        return f"({query.feed_sql(self.layout, rows.contents.layout, self.columns, images, loads)})"

    def _held_rows_sql(self, rows: RemovedRows, copies: LocalCopies) -> str:
        held = rows.contents
        copies.fetch_snapshot(held.snapshot, held.files)
        copies.fetch_log(part.read.file for part in held.parts)
        return query.rows_sql(held, copies.local)

    def _images_sql(self, reads: Sequence[Read], run: _Run, copies: LocalCopies, loads: query.Loads) -> list[str]:
        copies.fetch_log(read.file for read in reads)
        selects = []
        for old, same in groupby(reads, key=lambda read: read.file.layout):
            images = " UNION ALL ".join(
                query.images_sql(
                    old, copies.local[read.file.file.path], max(read.first, run.first), min(read.last, run.last)
                )
                for read in same
            )
            selects.append(f"({query.feed_sql(self.layout, old, self.columns, images, loads)})")
        return selects


def batches_of(database: FarmDatabase, first: int, last: int, *, leads: bool = True) -> list[tuple[Batch, str]]:
    """Read the log files of a range of ticks, both included, whose changes must continue from the contents before.

    Raises:
        ExpiredError: The first of them was pruned.
        InvalidError: With them, or between them, a history begins that does not continue the one before.
    """
    # From the beginning of the log, the earlier contents do not matter.
    after = first - 1 if leads and first > 1 else None
    try:
        return log_reader.batches_of(database, first, last, after=after)
    except ExpiredError as error:
        numbers = database.batch_numbers()
        oldest = database.read_batch(numbers[0])[0]
        begins = oldest.first - 1 if oldest.parent is None else oldest.first
        hint = f"Begin with --since {begins} (since={begins}), or with all rows: --snapshot (snapshot=True)."
        raise ExpiredError(error.message, hint=hint) from error


def _moment_of(given: int | str | date | None, option: str, end: int) -> Stop:
    """Read a tick or a time; refuse a tick after the farm's last one."""
    stop = stop_at(given, option)
    if stop.tick is not None and stop.tick > end:
        message = f"{option}: tick {stop.tick} is not published: the farm's last one is {end}"
        raise InvalidError(message, hint=f"--{option} {end} ({option}={end})")
    return stop


def _moment(database: FarmDatabase, tick: int) -> datetime | None:
    """Return the commit time of a transaction; None if its log was pruned."""
    if tick in database.snapshot_ticks():
        return database.read_manifest(tick).clock
    try:
        batch, _ = database.read_batch(log_reader.batch_of(database, tick))
    except (ExpiredError, InvalidError):
        return None
    known = (t.committed for t in reversed(batch.transactions) if t.committed is not None and t.tick <= tick)
    return next(known, None)


def _run(transactions: Sequence[FeedTransaction], removed: Sequence[RemovedRows]) -> _Run:
    own = tuple(rows for rows in removed if transactions[0].tick <= rows.transaction.tick <= transactions[-1].tick)
    return _Run(tuple(transactions), own)


def _given(
    connection: duckdb.DuckDBPyConnection, sql: str, transactions: Sequence[FeedTransaction]
) -> Iterator[pa.RecordBatch]:
    connection.register(query.TRANSACTIONS, query.transactions_table(transactions))
    for batch in connection.sql(sql).to_arrow_reader(BATCH_ROWS):
        if batch.num_rows:
            yield batch
