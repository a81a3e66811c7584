"""The facts of a report on a database; the page and the command's JSON show the same values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import wlc
from wlc.farm.clock import parse_time, utc_now
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.paths import parse_log_path
from wlc.farm.reachable_past import Window
from wlc.farm.read_ahead import read_ahead
from wlc.multi_master.circle import find_circle
from wlc.tiers.listing import entry_of
from wlr.care.doctor import GOOD, NOTE, WRONG, Checkup, examine
from wlr.care.farm_audit import FarmAudit, verify_farm

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from wlc import FarmEntry, RegisteredReader, SiteStatus
    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.keeping import KeepPolicy, Tag
    from wlc.farm.model import Batch
    from wlc.tiers.overview import TierMember


_PERIOD = timedelta(days=30)
# A report reads the log files of its period; more would take too long.
_MOST_BATCHES = 5_000
_MOST_SNAPSHOTS = 100
_URGENCY = (WRONG, NOTE, GOOD)

_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class SnapshotFact:
    """A snapshot: `rows` and `bytes` are those of all its tables together."""

    tick: int
    clock: datetime
    tables: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchFact:
    """The facts of a batch at its publication.

    Attributes:
        arrived: Time of its log file, by the store's clock.
        waited_s: Wait of its oldest transaction until then.
        rows: Rows in its data files, added and removed, so an update counts twice.
        bytes: Size of its log file and its data files.
    """

    number: int
    arrived: datetime
    waited_s: float
    transactions: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableDay:
    """Rows of one table in the data files of one day (UTC), added and removed."""

    table: str
    day: date
    rows: int


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """Everything that a report shows.

    Attributes:
        made: Time of the report.
        since: Start of the log that was read; `is_cut`: the period has more batches than a report reads, so `since` is
            later than requested.
        entry: State of the database, as in the list of its farm.
        log_bytes: Size of the whole log; `snapshot_bytes`: of the snapshots that are listed.
        can_go_back_to: Oldest time from which every state can be restored; None before the first publication.
        older_ticks: Single restorable states before it.
        rows: Rows of all tables in the newest snapshot, None without one.
        bytes_per_row: Average over the batches that were read; None without rows.
        snapshots: The newest first, at most 100; `snapshot_count`: all of them.
        batches: Batches of the period, rising.
        tables: Changed rows per table and day, rising by day.
        readers: Registered readers; `tiers`: the tree of relays and their readers; `sites`: sites of several masters.
        checks: Results of `wlr.examine`, failed checks first.
        audit: Result of `wlr.verify_farm`; None if not requested.
        problems: Read errors, as sentences.
    """

    database: str
    url: str
    made: datetime
    since: datetime
    is_cut: bool
    entry: FarmEntry
    tick: int
    clock: datetime | None
    beat_s: float
    log_bytes: int
    snapshot_bytes: int
    can_go_back_to: datetime | None
    can_go_back_to_tick: int | None
    older_ticks: tuple[int, ...]
    policy: KeepPolicy | None
    tags: tuple[Tag, ...]
    rows: int | None
    bytes_per_row: float | None
    snapshot_count: int
    snapshots: tuple[SnapshotFact, ...]
    batches: tuple[BatchFact, ...]
    tables: tuple[TableDay, ...]
    readers: tuple[RegisteredReader, ...]
    tiers: tuple[TierMember, ...]
    sites: tuple[SiteStatus, ...]
    checks: tuple[Checkup, ...]
    audit: FarmAudit | None
    problems: tuple[str, ...]


def report(
    db: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    since: str | date | None = None,
    verify: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> DatabaseReport:
    """Gather the facts of a database: its log, its window, its readers, and faults.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that remembers its farm.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        since: Start of the period; 30 days ago if omitted. At most 5,000 batches are read.
        verify: Also verify the farm's files, which reads all files that no earlier run has verified.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and the unit.

    Returns:
        The facts; damages are among its problems.

    Raises:
        InvalidError: There is no such database, or the time cannot be understood.
        UnavailableError: The farm is unreachable.

    Examples:
        >>> wlr.report("sales").problems
        ()
    """
    database = wlc.resolve(db, farm, storage_options=storage_options)
    now = utc_now()
    begin = now - _PERIOD if since is None else parse_time(since, now)
    status = wlc.status(database.url, storage_options=storage_options)
    ask = _Asking(database, storage_options)
    log = ask(lambda: _log(database, begin, progress), _Log())
    ticks = database.snapshot_ticks()[::-1]
    snapshots = tuple(filter(None, (ask(partial(_snapshot, database, tick), None) for tick in ticks[:_MOST_SNAPSHOTS])))
    keeping = ask(partial(wlc.retention, database.url, storage_options=storage_options), None)
    window = keeping.window if keeping else Window(None, None)
    return DatabaseReport(
        database=database.name,
        url=database.url,
        made=now,
        since=log.batches[0].arrived if log.is_cut else begin,
        is_cut=log.is_cut,
        entry=entry_of(database.url, database.name, options=storage_options),
        tick=status.tick,
        clock=status.clock,
        beat_s=status.beat_s,
        log_bytes=status.log_bytes,
        snapshot_bytes=sum(snapshot.bytes for snapshot in snapshots),
        can_go_back_to=window.clock,
        can_go_back_to_tick=window.tick,
        older_ticks=window.older,
        policy=keeping.policy if keeping else None,
        tags=ask.all(wlc.tags),
        rows=snapshots[0].rows if snapshots else None,
        bytes_per_row=log.bytes_per_row,
        snapshot_count=len(ticks),
        snapshots=snapshots,
        batches=log.batches,
        tables=log.tables,
        readers=ask.all(wlc.readers),
        tiers=ask(lambda: wlc.tier_tree(database.url, storage_options=storage_options).members, ()),
        sites=ask.all(wlc.sites) if ask(partial(find_circle, database), None) else (),
        checks=tuple(sorted(ask.all(examine), key=lambda check: _URGENCY.index(check.state))),
        audit=verify_farm(database.url, storage_options=storage_options, progress=progress) if verify else None,
        problems=tuple(dict.fromkeys(ask.problems)),
    )


class _Asking:
    """Gathers facts; a failure becomes a sentence, because a page with an error is better than none."""

    def __init__(self, database: FarmDatabase, storage_options: Mapping[str, Any] | None) -> None:
        self._url, self._options = database.url, storage_options
        self.problems: list[str] = []

    def __call__(self, what: Callable[[], _Fact], otherwise: _Fact) -> _Fact:
        try:
            return what()
        except (CorruptError, InvalidError) as error:
            self.problems.append(error.message)
            return otherwise

    def all(self, what: Callable[..., Iterable[_Fact]]) -> tuple[_Fact, ...]:
        return self(lambda: tuple(what(self._url, storage_options=self._options)), ())


@dataclass(frozen=True, slots=True)
class _Log:
    batches: tuple[BatchFact, ...] = ()
    tables: tuple[TableDay, ...] = ()
    is_cut: bool = False

    @property
    def bytes_per_row(self) -> float | None:
        rows = sum(batch.rows for batch in self.batches)
        return round(sum(batch.bytes for batch in self.batches) / rows, 1) if rows else None


def _log(database: FarmDatabase, begin: datetime, progress: Progress | None) -> _Log:
    """Read the log files that arrived since a time, at most the newest 5,000."""
    arrived = {
        number: entry.arrived
        for entry in database.logs.list(f"{database.name}_", recursive=False)
        if (number := parse_log_path(database.name, entry.path)) and entry.arrived >= begin
    }
    numbers, sizes = sorted(arrived)[-_MOST_BATCHES:], database.batch_bytes()
    batches, rows = [], Counter[tuple[date, str]]()
    for batch, _ in read_ahead(numbers, database.read_batch, is_remote=database.logs.is_remote):
        at = arrived[batch.number]
        batches.append(_batch(batch, at, sizes[batch.number]))
        for file in batch.files:
            rows[(batch.clock or at).astimezone(UTC).date(), str(file.table)] += file.file.rows
        if progress is not None:
            progress(len(batches), len(numbers), "log files")
    tables = tuple(TableDay(table, day, count) for (day, table), count in sorted(rows.items()))
    return _Log(tuple(batches), tables, len(numbers) < len(arrived))


def _batch(batch: Batch, arrived: datetime, size: int) -> BatchFact:
    first = next((each.committed for each in batch.transactions if each.committed), arrived)
    waited_s = round(max((arrived - first).total_seconds(), 0.0), 3)
    rows = sum(file.file.rows for file in batch.files)
    return BatchFact(batch.number, arrived, waited_s, len(batch.transactions), rows, size)


def _snapshot(database: FarmDatabase, tick: int) -> SnapshotFact:
    manifest = database.read_manifest(tick)
    files = [file for table in manifest.tables for file in table.files]
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return SnapshotFact(tick, manifest.clock, len(manifest.tables), rows, size)


def published_per_hour(database: FarmDatabase, now: datetime) -> tuple[int, ...]:
    """Return the number of log files that arrived in each of the last 24 hours, the oldest hour first."""
    counts = [0] * 24
    for entry in database.logs.list(f"{database.name}_", recursive=False):
        hours = int((now - entry.arrived) / timedelta(hours=1))
        if parse_log_path(database.name, entry.path) and 0 <= hours < len(counts):
            counts[-1 - hours] += 1
    return tuple(counts)
