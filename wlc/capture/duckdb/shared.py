"""What all connections of this process to one master have in common: commit order, ticks, and who publishes when."""

from __future__ import annotations

import json
import logging
import re
import threading
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import journal, source
from wlc.clock import read_time, utc_now
from wlc.errors import FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.model import Name, quote
from wlc.opening import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

_log = logging.getLogger("wlc")
# DuckDB names whoever has the file open: Conflicting lock is held in /usr/bin/python3 (PID 42) by user ann.
_LOCK_HOLDER = re.compile(r"held in (\S+).*?\(PID (\d+)\)")
_open: dict[str, Shared] = {}
_open_lock = threading.RLock()


@dataclass
class Shared:
    """State of one master database in this process.

    Attributes:
        base: The connection that keeps the database open; everybody else uses `root`.
        publish_lock: Held while publishing; whoever needs both locks takes this one first.
        commit_lock: Held from settling a transaction's tick until its COMMIT has returned, so that tick order is
            commit order.
        generation: Rises before and again after a COMMIT that changes the schema, so that it is odd in between.
        commits: Captured commits in this process; rises after a COMMIT has returned.
        beat_s: Seconds a committed transaction may wait; 0 publishes with every commit.
        publish: Called without arguments to publish what is journalled; set by whoever opens the master.
        storage_options: What whoever opens the master gave for its farm; secrets are kept nowhere else.
    """

    path: str
    catalog: str
    base: duckdb.DuckDBPyConnection
    state: dict[str, str]
    beat_s: float = 300.0
    last_tick: int = 0
    last_commit: datetime | None = None
    generation: int = 0
    commits: int = 0
    sequences: dict[Name, int | None] = field(default_factory=dict)
    publish: Callable[[], object] | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    failure: FarmError | None = None
    commit_lock: threading.RLock = field(default_factory=threading.RLock)
    publish_lock: threading.RLock = field(default_factory=threading.RLock)
    users: int = 0
    _roots: dict[int, duckdb.DuckDBPyConnection] = field(default_factory=dict)
    _roots_lock: threading.Lock = field(default_factory=threading.Lock)
    _removals: dict[Name, int] = field(default_factory=dict)
    _additions: dict[Name, int] = field(default_factory=dict)
    _tick: int = 0
    _layout: int = 0
    _waker: threading.Event = field(default_factory=threading.Event)
    _beating: threading.Thread | None = None

    @property
    def root(self) -> duckdb.DuckDBPyConnection:
        """A connection of the calling thread's own: DuckDB refuses two calls at once on one connection."""
        with self._roots_lock:
            thread = threading.get_ident()
            if thread not in self._roots:
                self._roots[thread] = self.base.cursor()
            return self._roots[thread]

    def close(self) -> None:
        """End the background thread and close the file."""
        self.stop_beating()
        # Others are kept from opening the file for the moment of closing it, and not while it is written to.
        with suppress(duckdb.Error):
            self.root.execute("CHECKPOINT")
        with alone(self.path), self._roots_lock:
            for connection in (*self._roots.values(), self.base):
                connection.close()
            self._roots.clear()

    def new_tick(self) -> int:
        """Give out a tick that no transaction had; one that is rolled back leaves a gap."""
        with self.commit_lock:
            self._tick = max(self._tick, self.last_tick) + 1
            return self._tick

    def new_layout(self) -> int:
        """Give out the number of a new image table."""
        with self.commit_lock:
            self._layout += 1
            return self._layout

    def commit_time(self) -> datetime:
        """The present time, but never before the last commit's: clocks may step back, the log may not."""
        now = utc_now()
        return max(now, self.last_commit) if self.last_commit else now

    def committed(
        self, tick: int, time: datetime, removed_from: Iterable[Name] = (), added_to: Iterable[Name] = ()
    ) -> None:
        """Note a commit and the tables whose rows it removed or changed, or that it added rows to; the lock is held."""
        self.last_tick, self.last_commit = tick, time
        self.commits += 1
        self._removals.update(dict.fromkeys(removed_from, self.commits))
        self._additions.update(dict.fromkeys(added_to, self.commits))

    def has_removed_since(self, table: Name, commits: int) -> bool:
        """Say whether rows of a table were removed or changed after the database had seen so many commits."""
        return self._removals.get(table, 0) > commits

    def has_changed_since(self, table: Name, commits: int) -> bool:
        """Say the same, or that rows were added."""
        return self.has_removed_since(table, commits) or self._additions.get(table, 0) > commits

    @contextmanager
    def changing_schema(self) -> Iterator[None]:
        """Around a COMMIT that changes the schema; the commit lock is held."""
        self.generation += 1
        try:
            yield
        finally:
            self.generation += 1

    def load(self) -> None:
        """Learn the last tick and layout from the journal."""
        schema = f"{quote(self.catalog)}.wlc"
        self.state = journal.read_state(self.root, self.catalog)
        layouts = journal.read_layouts(self.root, self.catalog)
        self._layout = max(layouts, default=0)
        committed = "entry NOT LIKE '%\"committed\": null%'"
        sources = [f"SELECT max(tick), arg_max(entry, tick) FILTER (WHERE {committed}) FROM {schema}.entries"]
        sources += [f"SELECT max(_tick), arg_max(_meta, _tick) FROM {schema}.j{number}" for number in layouts]
        journalled = self.root.execute(" UNION ALL ".join(sources)).fetchall()
        self.last_tick = max([int(self.state.get("tick", "0")), *(row[0] or 0 for row in journalled)])
        times = [json.loads(entry)["committed"] for _, entry in journalled if entry]
        times += [self.state[key] for key in ("clock", "began") if self.state.get(key)]
        self.last_commit = max(map(read_time, times), default=None)
        self.beat_s = float(self.state.get("beat_s", "300"))

    def remember(self, values: dict[str, str]) -> None:
        """Replace keys of `wlc.state`, all or none."""
        with self.commit_lock:
            self.root.execute("BEGIN")
            try:
                journal.write_state(self.root, self.catalog, values)
                self.root.execute("COMMIT")
            except BaseException:
                with suppress(duckdb.Error):
                    self.root.execute("ROLLBACK")
                raise
            self.load()

    @property
    def is_master(self) -> bool:
        """Whether changes are captured now."""
        return self.state.get("state") == "1"

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection on which all is read as of one moment, whatever others commit meanwhile."""
        with self.root.cursor() as connection:
            self.begin_reading(connection)
            yield connection
            connection.execute("ROLLBACK")

    def begin_reading(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Start a transaction that reads all as of now; the caller rolls it back."""
        connection.execute("BEGIN TRANSACTION READ ONLY")
        self.take_snapshot(connection)

    def take_snapshot(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a transaction that has just begun see what is committed now, of every transaction all or nothing.

        DuckDB 2.0 lets a transaction that looks for the first time while another one's COMMIT runs see a part of what
        that one wrote, and later more of it. So nobody looks for the first time while we commit.
        """
        with self.commit_lock:
            connection._table_kind((self.catalog, "wlc", "state"))

    def refuse_bypassed(self) -> None:
        """Raise UnsupportedError if tables are known to have been changed without the capture."""
        with self.reading() as connection:
            found = source.bypassed(connection, self.catalog)
        if found:
            listed = "; ".join(f"{name} {problem}" for name, problem in found.items())
            raise UnsupportedError(
                f"{self.path} was written to without wlc.connect(): {listed}", hint=f"wlc repair {self.path}"
            )

    def warn_bypassed(self) -> None:
        """Say so if tables are known to have been changed without the capture."""
        try:
            self.refuse_bypassed()
        except UnsupportedError as error:
            warnings.warn(f"{error.message}; {error.hint}", stacklevel=3)

    def start_beating(self) -> None:
        """Publish on every beat in the background until the last connection is closed."""
        if self._beating is None and self.publish is not None:
            self._waker.clear()
            self._beating = threading.Thread(target=self._beat, name=f"wlc beat {self.path}", daemon=True)
            self._beating.start()

    def stop_beating(self) -> None:
        """End the background thread; returns when it has."""
        if self._beating is not None:
            self._waker.set()
            self._beating.join()
            self._beating = None

    def _beat(self) -> None:
        while not self._waker.wait(self.beat_s or 1.0):
            self.try_publish()

    def try_publish(self) -> None:
        """Publish, and keep the reason if it fails: the user's commits must not, the next beat tries again."""
        try:
            with explained(self.path):
                if self.publish is not None:
                    self.publish()
            self.failure = None
        except FarmError as error:
            # The commit stands, and its program must not be told otherwise.
            self.failure = error
        if self.failure is not None:
            _log.warning("%s was not published: %s", self.path, self.failure)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Around what is no statement of the user's: DuckDB or the machine fails, for want of disk space, say."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        text = str(error).partition("\n")[0]
        hint = "nothing is lost; free disk space if there is none left, then try again"
        raise UnavailableError(f"{path} could not be published: {text}", hint=hint, path=path) from error


def open_shared(
    source: str, *, read_only: bool = False, config: dict[str, Any] | None = None, must_agree: bool = False
) -> Shared:
    """Open a DuckDB database once per process; every call must be paired with `close_shared`.

    Args:
        source: Path of the database.
        read_only: Open it for reading, unless it is open already.
        config: Settings of DuckDB, unless it is open already.
        must_agree: Refuse a database that is open already in another mode or with other settings.

    Raises:
        InvalidError: The file is not a DuckDB database.
        UnavailableError: Another process has it open.
        duckdb.ConnectionException: It is open in this process, and not as it must be.
    """
    key = source if source == ":memory:" else str(Path(source).resolve())
    with _open_lock:
        shared = _open.get(key)
        if shared is None:
            root = _connect(source, read_only=read_only, config=config)
            catalog = root.execute("SELECT current_database()").fetchall()[0][0]
            shared = Shared(source, catalog, root, {})
            if journal.read_state(root, catalog):
                shared.load()
            _open[key] = shared
        elif must_agree:
            # DuckDB itself compares them, and says so where they differ.
            _connect(shared.path, read_only=read_only, config=config).close()
        shared.users += 1
        return shared


def close_shared(shared: Shared) -> bool:
    """Give the database up; returns True if it was the last user of this process, and the file is closed."""
    with _open_lock:
        shared.users -= 1
        if shared.users:
            return False
        for key in [key for key, found in _open.items() if found is shared]:
            del _open[key]
    shared.close()
    return True


def _connect(source: str, *, read_only: bool, config: dict[str, Any] | None) -> duckdb.DuckDBPyConnection:
    try:
        with alone(source):
            return duckdb.connect(source, read_only=read_only, config=config or {})
    except duckdb.IOException as error:
        text = str(error)
        if "lock" in text.lower():
            holder = _LOCK_HOLDER.search(text)
            who = f"process {holder[2]} ({holder[1]})" if holder else "another process"
            raise UnavailableError(
                f"database {source} is open in {who}",
                hint="wait for it or end it; what is published can be asked of the farm: wlc status NAME --farm URL",
                path=source,
            ) from error
        raise InvalidError(f"{source} is not a DuckDB database: {text.splitlines()[0]}", path=source) from error
