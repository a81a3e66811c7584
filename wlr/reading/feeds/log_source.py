"""Reads the farm for a feed: its start, and all records from its position to the end of the log."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain as chained
from typing import TYPE_CHECKING

from wlc.farm import newest_batches
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.model import Position
from wlc.farm.read_ahead import Fetcher
from wlc.farm.store import MissingError
from wlr.reading.feeds.formats import Note, RowChange, RunGathering, items_of
from wlr.reading.feeds.rendering import FeedPiece, Renderer
from wlr.replay import log_reader
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.patterns import idle, matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Manifest, Name
    from wlc.tiers.attachment import Membership
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.formats import Format, RowsRun


@dataclass(frozen=True, slots=True)
class FeedReached:
    """All records up to a position were given."""

    position: Position
    batch_last: int
    clock: datetime | None


Found = FeedPiece | FeedReached


class FeedReader:
    """Reads the records of a feed.

    Args:
        database: The farm database.
        form: The feed's format.
        bytes_max: Approximate memory for rendered records; 0 for no limit.
        membership: The feed's part in a tree of tiers; None if its place is fixed.
    """

    def __init__(
        self, database: FarmDatabase, form: Format, bytes_max: int, membership: Membership | None = None
    ) -> None:
        self._database = database
        self._membership = membership
        self._form = form
        self._fetcher = Fetcher(database)
        self._renderer = Renderer(form, self._fetcher.fetch, bytes_max, log_reader.local_folders(database))
        # The last rendered record, given now or written before.
        self._last = (0, 0)
        # Whether the snapshot exists, checked before it is read.
        self._manifest = cache(self._read_manifest)
        # The log files from a position on; the first one is read already.
        self._ahead: tuple[Position, Iterator[tuple[Batch, str]]] | None = None

    @property
    def renderer(self) -> Renderer:
        """The renderer of lines."""
        return self._renderer

    def close(self) -> None:
        """Remove local copies of data files."""
        self._renderer.close()
        self._fetcher.close()

    def check(self, state: FeedState) -> None:
        """Refuse a state from which the log does not continue, before reading on.

        Raises:
            ExpiredError: The next batch was pruned, or a later history began with changes that are in no log.
            CorruptError: The farm has another history.
            UnavailableError: A relay lags behind the feed: wait.
        """
        if state.snapshot is not None:
            self._manifest(state.snapshot)
            return
        assert state.position is not None
        batches = self._after(state.position, state.batch_last)
        first = next(batches, None)
        self._ahead = state.position, batches if first is None else chained((first,), batches)

    def found(self, state: FeedState) -> Iterator[Found]:
        """Yield all records from a state to the end of the log; raises as `check` does, or for a damaged file."""
        if state.snapshot is not None:
            manifest = self._manifest(state.snapshot)
            yield from self._of_snapshot(manifest, state)
            end = manifest.position
            written = state.written if state.written and state.written[0] > end.tick else None
            state = replace(state, position=end, batch_last=end.tick, written=written)
        assert state.position is not None
        yield from self._of_log(state, state.position)

    def _read_manifest(self, tick: int) -> Manifest:
        try:
            return self._database.read_manifest(tick)
        except MissingError as error:
            message = f"the snapshot at tick {tick} was pruned before the feed had written all of it"
            raise ExpiredError(message, path=self._database.url) from error

    def _of_snapshot(self, manifest: Manifest, state: FeedState) -> Iterator[Found]:
        base = 0
        for table in manifest.tables:
            if not matches(table.table, state.tables):
                continue
            local = [self._database.fetch_snapshot(manifest, file) for file in table.files]
            try:
                for piece in self._renderer.snapshot(manifest, table, local, base):
                    left = piece if state.written is None else piece.after(state.written)
                    if len(left.records):
                        yield left
            finally:
                for file in local:
                    self._database.release(file)
            base += sum(file.rows for file in table.files)
        yield FeedReached(manifest.position, manifest.position.tick, manifest.clock if manifest.position.tick else None)

    def _of_log(self, state: FeedState, position: Position) -> Iterator[Found]:
        gathering, reached = RunGathering(has_columns=self._form.has_columns), None
        # Written records after the position are rendered again from their transaction on, and left out.
        after = max(position.tick, state.written[0] - 1 if state.written else 0)
        for batch, chain in self._batches(state, position):
            for item in items_of(batch, after, state.tables):
                run = gathering.add(item) if isinstance(item, RowChange) else gathering.take()
                if run is not None:
                    yield from self._of_run(run, state)
                if isinstance(item, Note):
                    yield from self._of_note(item, state)
            reached = FeedReached(Position(batch.history, batch.last, batch.number, chain), batch.last, batch.clock)
            if not gathering.is_empty:
                continue
            yield reached
            reached = None
        if (run := gathering.take()) is not None:
            yield from self._of_run(run, state)
        if reached is not None:
            yield reached

    def _batches(self, state: FeedState, position: Position) -> Iterator[tuple[Batch, str]]:
        """Yield the log files from a position on."""
        ahead, self._ahead = self._ahead, None
        batches = ahead[1] if ahead and ahead[0] == position else self._after(position, state.batch_last)
        for batch, chain in batches:
            # The chain hash identifies the position's own batch, which may be the last one of the history before.
            if batch.number == position.batch and batch.last <= position.tick:
                continue
            with _as_expired(position):
                bounds.refuse_break(batch, position)
            yield batch, chain
            position = Position(batch.history, batch.last, batch.number, chain)

    def _after(self, position: Position, batch_last: int) -> Iterator[tuple[Batch, str]]:
        config = self._database.config()
        # A feed does not read older batches, but the witness may have seen them.
        before = 0 if self._database.witness else position.batch
        numbers = newest_batches.numbers_from(self._database, before)
        end, last = log_reader.last_tick(self._database, numbers, config), max([config.batches - 1, *numbers[-1:]])
        log_reader.refuse_rolled_back(self._database, numbers, end)
        log_reader.refuse_lost_position(self._database, self._membership, position, end, last)
        first = bounds.first_batch_to_read(position, batch_last, numbers, self._database.snapshot_ticks)
        forks: Mapping[str, int] = {}
        if position.history != config.history:
            newest_first = (self._database.read_batch(number)[0] for number in reversed(numbers))
            with _as_expired(position):
                forks = bounds.refuse_beyond_break(newest_first, position, config.history, Stop())
        return bounds.counting(log_reader.batches_from(self._database, first, numbers, position), forks)

    def _of_run(self, run: RowsRun, state: FeedState) -> Iterator[Found]:
        self._fetcher.expect(run.files.values())
        for piece in self._renderer.rows(run, self._count(run.first)):
            self._last = piece.last
            left = piece if state.written is None else piece.after(state.written)
            if len(left.records):
                yield left
        self._fetcher.release(set())

    def _of_note(self, note: Note, state: FeedState) -> Iterator[Found]:
        tick = note.transaction.tick
        n = self._count(tick) + 1
        self._last = (tick, n)
        if state.written is None or self._last > state.written:
            yield self._renderer.note(note, n)

    def _count(self, tick: int) -> int:
        return self._last[1] if self._last[0] == tick else 0


@contextmanager
def _as_expired(position: Position) -> Iterator[None]:
    """Report an unreachable history like a pruned log: only a snapshot helps."""
    try:
        yield
    except InvalidError as error:
        raise ExpiredError(error.message, position=position) from error


# Where a feed begins -------------------------------------------------------------------------------------------------


def beginning(database: FarmDatabase, start: int | datetime | None) -> tuple[Position, int]:
    """Return the position before the first transaction of a feed, and the last tick of its batch.

    Args:
        database: The farm database.
        start: Tick of the first transaction, or the earliest commit time; None for all of the log.

    Raises:
        ExpiredError: It was pruned.
        InvalidError: It is ahead of the farm.
    """
    numbers = database.batch_numbers()
    end = log_reader.last_tick(database, numbers)
    if isinstance(start, int) and start > end + 1:
        raise InvalidError(
            f"tick {start} is not published: the farm's last one is {end}",
            hint=f"--from {end + 1} begins with the next one.",
        )
    if not numbers:
        return _at_the_end(database)
    if start is None or isinstance(start, int):
        number = log_reader.batch_of(database, start or 1)
        if start is None and numbers[0] > 1:
            raise ExpiredError(f"the log of {database.name} before batch {numbers[0]} was pruned")
    else:
        number = _batch_at(database, numbers, start)
    if number > numbers[-1]:
        return _at_the_end(database)
    batch, chain = database.read_batch(number)
    if isinstance(start, int):
        first = start
    else:
        early = (t.tick for t in batch.transactions if start and (t.committed is None or t.committed < start))
        first = max(early, default=0) + 1
    if first < batch.first or (first == batch.first and batch.parent is None):
        position = log_reader.end_before(batch, numbers, database.read_batch)
        return position, position.tick
    return Position(batch.history, first - 1, number, chain), batch.last


def _at_the_end(database: FarmDatabase) -> tuple[Position, int]:
    numbers = database.batch_numbers()
    if not numbers:
        config = database.config()
        ticks = database.snapshot_ticks()
        if ticks:
            position = database.read_manifest(ticks[-1]).position
            return position, position.tick
        return Position(config.history, config.tick), config.tick
    batch, chain = database.read_batch(numbers[-1])
    return Position(batch.history, batch.last, batch.number, chain), batch.last


def _batch_at(database: FarmDatabase, numbers: list[int], start: datetime) -> int:
    """Return the number of the first batch with a transaction from a time on, one more than the last without one."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        clock = database.read_batch(numbers[middle])[0].clock
        if clock is None or clock < start:
            low = middle + 1
        else:
            high = middle
    if low == 0 and numbers[0] > 1:
        batch, _ = database.read_batch(numbers[0])
        first = next((t.committed for t in batch.transactions if t.committed), None)
        if first is None or first > start:
            raise ExpiredError(f"the log of {database.name} before batch {numbers[0]} was pruned")
    return numbers[low] if low < len(numbers) else numbers[-1] + 1


def refuse_idle_tables(database: FarmDatabase, patterns: tuple[str, ...]) -> None:
    """Refuse a pattern that matches no table of the newest snapshot or of the log after it.

    Raises:
        InvalidError: A pattern matches none; the hint lists the tables.
    """
    if not patterns:
        return
    manifest = log_reader.choose_snapshot(database, Stop())
    tables: set[Name] = {table.table for table in manifest.tables} if manifest else set()
    if not (left := idle(patterns, tables)):
        return
    from wlr.replay.ddl.left_out import created_by

    steps = log_reader.steps_after(database, manifest, Stop())
    tables.update(name for step in steps for transaction in step.transactions for name in created_by(transaction))
    bounds.refuse_idle(left, tables, "--table")
