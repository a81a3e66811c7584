"""The sites of a database in the farm: published ticks of each, and ticks that the others have read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Change, Clear, RowsRead, RowsRefreshed
from wlc.farm.registry import SITE, known_replicas
from wlc.farm.vectors import expanded
from wlc.multi_master.administration import founder_of_database
from wlc.multi_master.circle import NONE, read_circle
from wlc.multi_master.circle_place import site_database

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Record
    from wlc.multi_master.circle import Circle, CircleSite


@dataclass(frozen=True, slots=True)
class SiteStatus(ForPeople):
    """One site as the farm shows it.

    Attributes:
        folder: URL of its folder, which a replica can read.
        tick: Last published tick; `clock`: when it was committed, None before the first.
        vector: Per history the last tick contained, as of its last batch.
        read_by: Last tick read, by reading site; 0 before the first.
        contained_by: Last tick of this site that each other site has, directly or indirectly.
        behind: Reading sites that lack some ticks.
        delay_s: Age of the oldest missing transaction, by reading site; 0 if none is missing, None if it was pruned.
        window_rows: Rows of the primary's log that the site is not known to contain: its changes of these are in
            conflict. For the primary the greatest number of any site.
        window_age_s: Age of the oldest of them.
        is_stable: The site contains the primary's refresh after its last rejection; for the primary: all sites do.
        seen: When it last registered a position in another site's log, None before the first.
    """

    site: str
    role: str
    folder: str
    history: str
    tick: int
    clock: datetime | None
    vector: Mapping[str, int]
    read_by: Mapping[str, int]
    contained_by: Mapping[str, int]
    behind: tuple[str, ...]
    delay_s: Mapping[str, float | None]
    window_rows: int
    window_age_s: float
    is_stable: bool
    seen: datetime | None


def sites(
    db: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[SiteStatus]:
    """Return the sites of a database, the founder first.

    Args:
        db: Name or URL of the database, or the file of one of its sites.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has one master only.

    Examples:
        >>> [(site.site, site.role) for site in wlc.sites("sales")]
        [('oslo', 'primary'), ('rome', 'secondary')]
    """
    founder = founder_of_database(db, farm, storage_options)
    circle = read_circle(founder)
    logs = {site.name: _PublishedLog(circle, site, site_database(founder, site.folder)) for site in circle.sites}
    now = utc_now()
    # In a mesh no site decides, so no transaction waits for a decision.
    ticks = {} if circle.is_mesh else _contained_by(logs[circle.primary], logs)
    lacking = {
        name: logs[circle.primary].lacking(tick, now) for name, tick in ticks.items() if circle.site(name).role != NONE
    }
    return [
        _status(log, logs, list(lacking.values()) if name == circle.primary else [lacking.get(name, _NOTHING)], now)
        for name, log in logs.items()
    ]


def _status(
    log: _PublishedLog, logs: Mapping[str, _PublishedLog], lacking: Sequence[_Lacking], now: datetime
) -> SiteStatus:
    name = log.site.name
    return SiteStatus(
        name,
        log.site.role,
        log.place.url,
        log.config.history,
        log.config.tick,
        log.config.write,
        log.vector,
        {reader: log.read_by(reader).tick for reader in log.expected},
        _contained_by(log, logs),
        tuple(reader for reader in log.expected if log.read_by(reader).batch < log.newest),
        {reader: log.delay_s(reader, now) for reader in log.expected},
        max((each.rows for each in lacking), default=0),
        max((each.age_s for each in lacking), default=0.0),
        not any(each.is_refreshed for each in lacking),
        max((seen for other in logs.values() if (seen := other.read_by(name).seen) is not None), default=None),
    )


def _contained_by(log: _PublishedLog, logs: Mapping[str, _PublishedLog]) -> dict[str, int]:
    history, lineage = log.site.history, log.circle.lineage()
    return {
        name: max(expanded(other.vector, lineage).get(history, 0), log.read_by(name).tick)
        for name, other in sorted(logs.items())
        if name != log.site.name
    }


@dataclass(frozen=True, slots=True)
class _Read:
    """A site's position in a log, and when it registered it."""

    tick: int
    batch: int
    seen: datetime | None


@dataclass(frozen=True, slots=True)
class _Lacking:
    """The part of a log that a site lacks: rows, age of the oldest, and whether it has a refresh."""

    rows: int
    age_s: float
    is_refreshed: bool


_NOTHING = _Lacking(0, 0.0, is_refreshed=False)


class _PublishedLog:
    """One site's log in the farm."""

    def __init__(self, circle: Circle, site: CircleSite, place: FarmDatabase) -> None:
        self.circle, self.site, self.place = circle, site, place
        self.config, self.numbers = place.config(), place.batch_numbers()
        self.newest = self.numbers[-1] if self.numbers else 0
        self._batches: dict[int, Batch] = {}
        self.vector = self._batch(self.newest).vector if self.newest else {}
        self.expected = sorted(other.name for other in circle.sites if site in circle.sources_of(other.name))
        self._readers = {
            replica.id: _Read(replica.position.tick, replica.position.batch, replica.seen)
            for replica in known_replicas(place)[0]
            if replica.kind == SITE and replica.position is not None
        }

    def read_by(self, name: str) -> _Read:
        return self._readers.get(name, _Read(0, 0, None))

    def delay_s(self, reader: str, now: datetime) -> float | None:
        """Return the age of the oldest transaction that a reader lacks."""
        read = self.read_by(reader).batch
        if read >= self.newest:
            return 0.0
        if read + 1 not in self.numbers:
            return None
        times = [each.committed for each in self._batch(read + 1).transactions if each.committed]
        return _age_s(min(times, default=now), now)

    def lacking(self, tick: int, now: datetime) -> _Lacking:
        """Return the unpruned part of the log after a tick."""
        rows, oldest, is_refreshed = 0, now, False
        for number in reversed(self.numbers):
            batch = self._batch(number)
            if batch.last <= tick:
                break
            for each in (each for each in batch.transactions if each.tick > tick and each.committed):
                rows += sum(map(_rows, each.records))
                oldest = min(oldest, each.committed or now)
                is_refreshed = is_refreshed or any(
                    isinstance(record, RowsRefreshed) and not record.kept for record in each.records
                )
        return _Lacking(rows, _age_s(oldest, now), is_refreshed)

    def _batch(self, number: int) -> Batch:
        if number not in self._batches:
            self._batches[number] = self.place.read_batch(number)[0]
        return self._batches[number]


def _rows(record: Record) -> int:
    """Return the number of rows in a record; an updated row has two images."""
    if isinstance(record, Change):
        return max(record.added, record.removed)
    if isinstance(record, Clear):
        return record.removed
    return record.rows if isinstance(record, RowsRead | RowsRefreshed) else 0


def _age_s(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())
