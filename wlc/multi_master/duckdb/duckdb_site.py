"""A DuckDB database as one of several sites: the operations of its source beyond those of every master."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.capture.duckdb import packed, unpublished
from wlc.capture.duckdb.captured_tables import CapturedTables
from wlc.capture.duckdb.shared import close_shared, open_shared
from wlc.dialect.duckdb.opening import wal_of
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.json_records import record_of
from wlc.farm.model import Position
from wlc.multi_master.anchors import before
from wlc.multi_master.circle import naming
from wlc.multi_master.duckdb import (
    conflict_window,
    own_past,
    rejected_rows,
    resubmission,
    stepping_down,
    succeeding,
    taking,
)
from wlc.multi_master.duckdb.commits import SiteCommits
from wlc.multi_master.site_life import SiteLife

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Name, TableFile
    from wlc.masters.contract import Source
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.circle_place import SiteState
    from wlc.multi_master.site_step import (
        ConflictCounter,
        RejectedRow,
        RejectionMark,
        Rejections,
        SiteStep,
        Succession,
        TakenCount,
    )


# DuckDB rewrites the headers of a file at every checkpoint.
_HEADERS_BYTES = 3 * 4096
# Commits are locked out during the copy, so a second checkpoint has nothing to do.
_COPIES = 5


class DuckDBSite(SiteLife):
    """The site operations of a DuckDB database that this process has open; `source_of` makes a source of a copy."""

    def __init__(self, source: Source, shared: Shared, source_of: Callable[[Shared], Source]) -> None:
        super().__init__(source)
        self._shared, self._source_of = shared, source_of

    # Becoming a site

    def unpack(self) -> None:
        """Unpack all row images into the journal, because sites compare them; the caller holds the commit lock."""
        shared = self._shared
        with shared.root.cursor() as connection, own_past.transaction(connection, shared):
            waiting = unpublished.pending(connection, shared.catalog, sys.maxsize)
            packed.unpack(connection, shared.catalog, waiting.entries, shared.work)

    def held(self) -> Position | None:
        connection, catalog = self._shared.root, self._shared.catalog
        query = "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND (schema_name, table_name) = ('wlr', 'state')"
        if not connection.execute(query, [catalog]).fetchall():
            return None
        values = dict(connection.execute(f"SELECT key, value FROM {quote(catalog)}.wlr.state").fetchall())
        is_open = bool(connection.execute(f"SELECT 1 FROM {quote(catalog)}.wlr.guard LIMIT 1").fetchall())
        if is_open or values.get("accepted", "[]") != "[]" or values.get("patterns", "[]") != "[]":
            raise InvalidError(
                "a replica that was unlocked, skipped a transaction or leaves tables out cannot become a site",
                hint="make a new one: wlr replicate DB --into FILE",
            )
        content = json.loads(values["position"])
        return record_of(Position).read(content) if content else Position("", 0)

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
        # The copy has the name of the file, since statements may name their database, and its folder is beside it: that
        # file system has room for files of this size. If the process dies, the next one that opens the file removes it.
        shared = self._shared
        file = shared.file
        with tempfile.TemporaryDirectory(prefix=packed.prefix(file), dir=file.parent) as folder:
            copy = Path(folder) / file.name
            with shared.publish_lock, shared.commit_lock:
                _refuse_large(file)
                if not any(_copy(shared, copy) for _ in range(_COPIES)):
                    raise UnavailableError(
                        f"{file} was checkpointed {_COPIES} times while it was copied for a dry run",
                        hint="run the command again",
                        path=str(file),
                    )
            opened = open_shared(str(copy))
            try:
                opened.keep_options(shared.options)
                # It is the master of this round, and messages name the file that the user knows.
                opened.adopt_place()
                opened.doubt = shared.doubt
                opened.path = shared.path
                yield self._source_of(opened)
            finally:
                close_shared(opened)

    def inherit(self, log: FarmDatabase, last: int, circle: Circle) -> Mapping[str, int]:
        numbers = [number for number in log.batch_numbers() if number <= last]
        with self._shared.root.cursor() as connection:
            conflict_window.create(connection)
            for number in numbers:
                conflict_window.add_batch(connection, log.read_batch(number)[0], log, circle)
            connection.execute(
                f"CREATE OR REPLACE TABLE {self._inherited} AS SELECT DISTINCT * FROM {conflict_window.WINDOW}"
            )
        return before(log.read_batch(numbers[0])[0], circle.lineage()) if numbers and numbers[0] > 1 else {}

    def disinherit(self) -> None:
        with self._shared.root.cursor() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {self._inherited}")

    @property
    def _inherited(self) -> str:
        return f"{quote(self._shared.catalog)}.wlc.{conflict_window.INHERITED}"

    def note_contained(self, site: str, tick: int) -> None:
        shared = self._shared
        with shared.commit_lock, shared.root.cursor() as connection:
            rejected_rows.note_contained(connection, shared.catalog, site, tick)

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
            return rejected_rows.read(connection, self._shared.catalog, since)

    def resubmit(self, source: str, tick: int, count: int | None) -> int:
        return resubmission.resubmit(self._shared, source, tick, count)

    def conflict_counters(self) -> list[ConflictCounter]:
        with self._shared.reading() as connection:
            return rejected_rows.counters(connection, self._shared.catalog)

    def rejection_mark(self) -> RejectionMark:
        with self._shared.reading() as connection:
            return rejected_rows.mark(connection, self._shared.catalog)

    def rejected_since(self, mark: RejectionMark) -> Rejections:
        name = self._shared.require_state().member.name
        with self._shared.reading() as connection:
            return rejected_rows.since(connection, self._shared.catalog, mark, name)


def _refuse_large(file: Path) -> None:
    needed = file.stat().st_size + (wal.stat().st_size if (wal := wal_of(file)).exists() else 0)
    if needed > (free := shutil.disk_usage(file.parent).free):
        raise UnavailableError(
            f"{file} has {needed} bytes, and {file.parent} has {free} bytes free: a dry run works with a copy",
            hint=f"free disk space; wlc site list {shlex.quote(str(file))} shows without a copy what each site has "
            "published",
            path=str(file),
        )


def _copy(shared: Shared, copy: Path) -> bool:
    """Copy the file and its write-ahead log, and say whether no checkpoint intervened; commits are locked out.

    Closing the log file is safe: only the file itself has a lock, taken by the process that opens it.
    """
    if shared.opened is None:
        shared.opened = shared.file.open("rb")
    source, wal = shared.opened, wal_of(shared.file)
    headers = _headers(shared)
    source.seek(0)
    with copy.open("wb") as target:
        shutil.copyfileobj(source, target)
    wal_of(copy).unlink(missing_ok=True)
    if wal.exists():
        shutil.copyfile(wal, wal_of(copy))
    return _headers(shared) == headers


def _headers(shared: Shared) -> bytes:
    assert shared.opened is not None
    shared.opened.seek(0)
    return shared.opened.read(_HEADERS_BYTES)
