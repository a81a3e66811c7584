"""A DuckDB database as one of several sites: what its source does besides what every master does."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.capture.duckdb import packed, unpublished
from wlc.capture.duckdb.captured_tables import CapturedTables
from wlc.capture.duckdb.sites import (
    adoption,
    exceptions,
    inheritance,
    own_past,
    rehearsal,
    resubmission,
    stepping_down,
    succeeding,
    taking,
)
from wlc.capture.duckdb.sites.commits import SiteCommits
from wlc.farm.circle import naming
from wlc.masters.site_life import SiteLife

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    import duckdb

    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Name, Position, TableFile
    from wlc.masters.circle_place import SiteState
    from wlc.masters.contract import Source
    from wlc.masters.rejected import ConflictCounter, RejectedRow, RejectionCount
    from wlc.masters.site_step import SiteStep, Succession, TakenCount
    from wlc.masters.state import MasterState


class DuckDBSite(SiteLife):
    """What a DuckDB database that this process has open does as a site; `source_of` makes a source of a copy."""

    def __init__(self, source: Source, shared: Shared, source_of: Callable[[Shared], Source]) -> None:
        super().__init__(source)
        self._shared, self._source_of = shared, source_of

    # Becoming a site

    def release(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Remove what a replica has besides its tables, in the transaction in which it becomes a site."""
        adoption.release(connection, self._shared.catalog)

    def unpack(self) -> None:
        """Let the journal hold all row images itself, since sites compare them; the caller has the commit lock."""
        shared = self._shared
        with shared.root.cursor() as connection, own_past.transaction(connection, shared):
            waiting = unpublished.pending(connection, shared.catalog, sys.maxsize)
            packed.unpack(connection, shared.catalog, waiting.others, shared.work)

    def held(self) -> Position | None:
        return adoption.position(self._shared.root, self._shared.catalog)

    def refuse_rules(self, site: SiteState) -> None:
        if site.circle is None or not site.circle.is_mesh or site.circle.ddl != site.name:
            return
        state = replace(self._shared.require_state(), site=site)
        commits = SiteCommits(lambda: state)
        with self._shared.reading() as connection, naming(commits.founder_url):
            tables = CapturedTables(connection, self._shared.catalog)
            tables.refresh(-1)
            commits.refuse_schema_in_mesh((), tables)

    def take(self, steps: Iterable[SiteStep], fetch: Callable[[TableFile], Path]) -> TakenCount:
        return taking.take(self._shared, steps, fetch)

    @contextmanager
    def rehearsal(self) -> Iterator[Source]:
        with rehearsal.copied(self._shared) as copy:
            yield self._source_of(copy)

    def inherit(self, log: FarmDatabase, last: int, circle: Circle) -> Mapping[str, int]:
        with self._shared.root.cursor() as connection:
            return inheritance.inherit(connection, self._shared.catalog, log, last, circle)

    def disinherit(self) -> None:
        with self._shared.root.cursor() as connection:
            inheritance.disinherit(connection, self._shared.catalog)

    def note_contained(self, site: str, tick: int) -> None:
        shared = self._shared
        with shared.commit_lock, shared.root.cursor() as connection:
            exceptions.note_contained(connection, shared.catalog, site, tick)

    @property
    def has_settled_past(self) -> bool:
        return self._shared.has_settled_past

    @has_settled_past.setter
    def has_settled_past(self, has_settled_past: bool) -> None:
        self._shared.has_settled_past = has_settled_past

    def take_back(self, batch: Batch, chain: str, fetch: Callable[[TableFile], Path]) -> int:
        return own_past.take_back(self._shared, batch, chain, fetch)

    def pass_sequences(self, given: Mapping[Name, int]) -> None:
        own_past.pass_sequences(self._shared, given)

    def renew(self, state: MasterState) -> None:
        own_past.renew(self._shared, state)

    def what_only_a_primary_writes(self) -> str | None:
        return stepping_down.what_only_a_primary_writes(self._shared)

    def step_down(self, state: MasterState) -> None:
        stepping_down.step_down(self._shared, state)

    def take_over(self, succession: Succession, fetch: Callable[[TableFile], Path]) -> None:
        with self._shared.publish_lock, self._shared.commit_lock:
            succeeding.take_over(self._shared, succession, fetch)

    def rejected_rows(self, since: datetime | None = None) -> list[RejectedRow]:
        with self._shared.reading() as connection:
            return exceptions.read(connection, self._shared.catalog, since)

    def resubmit(self, source: str, tick: int, count: int | None) -> int:
        return resubmission.resubmit(self._shared, source, tick, count)

    def conflict_counters(self) -> list[ConflictCounter]:
        with self._shared.reading() as connection:
            return exceptions.counters(connection, self._shared.catalog)

    def rejection_counts(self) -> list[RejectionCount]:
        with self._shared.reading() as connection:
            return exceptions.counted(connection, self._shared.catalog)
