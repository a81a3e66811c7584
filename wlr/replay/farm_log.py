"""A farm's log as `wlr.replay.plan.common_position` reads it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cached_property
from itertools import chain as chained
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.farm import digest
from wlc.farm.database import open_database
from wlc.farm.digest import Ledger
from wlc.farm.errors import FarmError
from wlc.farm.model import Position
from wlc.farm.paths import SITES
from wlc.farm.vectors import NO_LINEAGE, Lineage
from wlc.multi_master.circle import find_circle
from wlr.engine.replica_state import START
from wlr.replay.plan import bounds
from wlr.replay.plan.common_position import NOTHING, Point, end_of, of_footer, of_snapshot, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Digest, Manifest, Name, TableFile, Taken
    from wlc.multi_master.circle import Circle
    from wlr.replay.plan.bounds import Stop


class FarmLog:
    """A farm database's log, which caches its batches. It is a `SourceLog` and a `HomeLog`.

    Attributes:
        database: The farm database.
        numbers: Numbers of its batches at the time of creation, rising.
    """

    def __init__(self, database: FarmDatabase) -> None:
        self.database = database
        database.config()
        self.numbers = database.batch_numbers()
        self._batches: dict[int, tuple[Batch, str]] = {}

    def batch(self, number: int) -> tuple[Batch, str]:
        """Read a batch and its chain hash."""
        if number not in self._batches:
            self._batches[number] = self.database.read_batch(number)
        return self._batches[number]

    def chain(self, number: int) -> str | None:
        """Return the chain hash of a batch, None if unknown."""
        if number in self.numbers:
            return self.batch(number)[1]
        return self.batch(number + 1)[0].previous if number + 1 in self.numbers else None

    def earlier_proofs(self) -> Iterator[Taken]:
        """Yield the positions in other logs that batches had read, the newest first."""
        for number in reversed(self.numbers):
            yield from self.batch(number)[0].taken

    # Sites

    @cached_property
    def _circle(self) -> Circle | None:
        url = self.database.url.rstrip("/")
        founder, _, site = url.rpartition(f"/{SITES}")
        place = self.database
        if founder and "/" not in site:
            place = open_database(founder, storage_options=self.database.storage_options)
        return find_circle(place)

    @cached_property
    def site(self) -> str:
        """Name of the site, or of the database if it has one master."""
        for site in self._circle.sites if self._circle else ():
            if f"{self.database.url.rstrip('/')}/".endswith(f"/{site.folder}/"):
                return site.name
        founder = [site.name for site in self._circle.sites if site.folder == "."] if self._circle else []
        return founder[0] if founder else self.database.name

    @property
    def histories(self) -> set[str]:
        """All histories that sites of the database ever had; none if it has one master."""
        circle = self._circle
        sites = (each for site in circle.sites for each in site.histories) if circle else ()
        return {each.history for each in (*sites, *(circle.past if circle else ()))}

    @cached_property
    def lineage(self) -> Lineage:
        """The parents of histories."""
        return self._circle.lineage() if self._circle else NO_LINEAGE

    # Places

    def end_of(self, number: int) -> Point:
        """Return the place after a batch."""
        return self._timed(end_of(*self.batch(number)))

    def _timed(self, point: Point) -> Point:
        """Find the commit time of a place whose batch has only rolled-back transactions before it."""
        earlier = (self.batch(number)[0].clock for number in reversed(self.numbers) if number < point.position.batch)
        start = (place.clock for place in (self.start,) if place)
        clock = point.clock or next(filter(None, chained(earlier, start)), None)
        return replace(point, clock=clock)

    def last_place(self, stop: Stop, here: Position) -> Point | None:
        """Return the last place up to a stop and up to a position, None if the log does not reach back to it."""
        for number in reversed([number for number in self.numbers if number <= here.batch]):
            batch, chain = self.batch(number)
            beyond = (n for n, t in enumerate(batch.transactions) if t.tick > here.tick or not stop.includes(t))
            count = next(beyond, len(batch.transactions))
            if count == len(batch.transactions):
                return self.end_of(number)
            if count:
                before = self.batch(number - 1)[0] if number - 1 in self.numbers else None
                known = of_footer(before) if before else self.start.contained if self.start else NOTHING
                return self._timed(within(batch, chain, count, known))
        start = self.start
        if start is None and self.numbers[:1] == [1]:
            start = Point(START, 0, NOTHING)
        if start is not None and (stop.tick is None or start.position.tick <= stop.tick):
            is_early = stop.until is None or start.clock is None or start.clock <= stop.until
            return start if is_early else None
        return None

    # Snapshots and digests

    @cached_property
    def start(self) -> Point | None:
        """Position before the first batch, None if unknown."""
        first = self.numbers[0] if self.numbers else None
        last = self.batch(first)[0].first if first else None
        for tick in reversed(self.database.snapshot_ticks()):
            if last is None or tick < last:
                manifest = self.database.read_manifest(tick)
                position = manifest.position
                if first is None or position.batch == first - 1:
                    clock = manifest.clock if position.tick else None
                    return Point(position, position.tick, of_snapshot(manifest), manifest.catalog, clock)
        return None

    def digests(self, position: Position) -> dict[Name, Digest]:
        """Return the known digests at a position."""
        manifest = self._snapshot_before(position)
        known = dict(manifest.digests) if manifest else {}
        here = manifest.position if manifest else START
        first = here.batch + 1 if manifest else (self.numbers or [1])[0]
        for number in range(first, position.batch + 1):
            batch, chain = self.batch(number)
            if not bounds.goes_on(batch, here):
                known = {}
            if batch.last > position.tick:
                return self._within(batch, position.tick, known)
            known, here = digest.after(known, batch), Position(batch.history, batch.last, number, chain)
        return known

    def _snapshot_before(self, position: Position) -> Manifest | None:
        for tick in reversed(self.database.snapshot_ticks()):
            if tick <= position.tick:
                manifest = self.database.read_manifest(tick)
                if manifest.position.batch <= position.batch:
                    return manifest
        return None

    def _within(self, batch: Batch, tick: int, known: Mapping[Name, Digest]) -> dict[Name, Digest]:
        """Add up the changes of a batch up to a tick."""
        files = {file.file.path: file for file in batch.files}
        with tempfile.TemporaryDirectory(prefix="wlr-digests-") as work:
            ledger = Ledger(known, _total(self.database, files, Path(work)))
            ledger.follow(t for t in batch.transactions if t.committed and t.tick <= tick)
            return ledger.all()


def _total(database: FarmDatabase, files: Mapping[str, TableFile], work: Path) -> Callable[[str, int, int], int]:
    # It needs DuckDB, which takes long to import.
    from wlc.dialect.duckdb.digest_sql import sum_images
    from wlr.engine.calculator import connect

    def total(path: str, first: int, last: int) -> int:
        local = database.fetch(files[path])
        connection = connect(work)
        try:
            source = f"{rows_of(local)} WHERE _tick BETWEEN {first} AND {last}"
            return sum_images(connection, files[path].layout, source)
        finally:
            connection.close()
            database.release(local)

    return total


def home_log(database: FarmDatabase) -> FarmLog | None:
    """Return the log that a replica reads, None if it cannot be reached."""
    try:
        return FarmLog(database)
    except FarmError:
        return None
