"""Shared by all connections of this process to one master: the state, commit order, ticks and the publisher."""

from __future__ import annotations

import shlex
import shutil
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import duckdb

from wlc.capture.duckdb import frames, home, journal, known_objects, opening, packed
from wlc.capture.duckdb.captured_tables import MacroChanges, SeenCatalog
from wlc.capture.duckdb.commit_lock import CommitLock, LastChanges
from wlc.capture.duckdb.home import Doubt, Home, decode_home, elsewhere, encode_home, home_at
from wlc.capture.duckdb.opening import connect
from wlc.capture.duckdb.packed import Packing
from wlc.dialect.duckdb.opening import alone
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.farm.clock import utc_now
from wlc.farm.config import BEAT_S
from wlc.farm.errors import FencedError, UnavailableError
from wlc.farm.store import join_url
from wlc.farm.store.options import lay_over
from wlc.masters.contract import PublishingPlace, require_state
from wlc.masters.master_state import changes, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from wlc.farm.model import Name
    from wlc.masters.background import Publisher
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.duckdb.commits import SiteCommits

_open: dict[str, Shared] = {}
_open_lock = threading.RLock()


@dataclass
class Shared:
    """State of one master database in this process.

    Attributes:
        base: The connection that keeps the database open; all other code uses `root`.
        publish_lock: Held while publishing; a thread that needs both locks takes this one first.
        commit_lock: Held from the assignment of a transaction's tick until its COMMIT has returned, so that tick order
            is commit order. Independent inserts share it: their relative order does not matter, and readers and writers
            of the journal wait until all of them are committed.
        generation: Rises before and again after a COMMIT that changes the schema, so that it is odd in between.
        seen: The catalog of the latest generation that a connection has read.
        commits: Captured commits in this process; rises after a COMMIT has returned.
        beat_s: Seconds a committed transaction may wait; 0 publishes with every commit.
        here: Where the file was when it was opened.
        file: The database's file, as an absolute path.
        state: The stored state of the database; None if it has never been a master.
        publisher: Publishes in the background; None until a capturing connection is opened.
        row_settings_vary: A statement of some connection may have changed which rows CHECK constraints accept.
        macro_changes: Of the schema and the attached databases, by all connections.
        work: Folder for files until they are published, if the database may write only there; else None.
        confined_by: Settings of its connections that cut it off from files or lock its settings.
        options: Options of the farm's file system given to this process; secrets are stored nowhere else.
        opened: The file, if this process reads it beside DuckDB, which must close it first: a process that closes a
            file releases all its locks on that file (POSIX), including DuckDB's.
        parked: Tables with parked rows, see `wlc.multi_master.duckdb.parking`; None while rows to park are searched.
        doubt: Tables that may hold uncaptured rows; `written`: the last session's entry about that.
        macro_definitions: Of the committed macros; None if they were not read.
        emptied: Last tick up to which this process has emptied the journal.
        tidied: The generation in which no image table of an outdated layout was left; None if unknown.
        defined: Definitions of the tables when they were last compared; None before that.
        warned: Tables that this process has warned of.
        is_stranded: Parked rows may have to be restored before the database is used.
    """

    path: str
    catalog: str
    base: duckdb.DuckDBPyConnection
    here: Home
    file: Path
    state: MasterState | None = None
    beat_s: float = BEAT_S
    last_tick: int = 0
    last_commit: datetime | None = None
    generation: int = 0
    seen: SeenCatalog | None = None
    commits: int = 0
    sequences: dict[Name, int | None] = field(default_factory=dict)
    publisher: Publisher | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    commit_lock: CommitLock = field(default_factory=CommitLock)
    publish_lock: threading.RLock = field(default_factory=threading.RLock)
    row_settings_vary: bool = False
    macro_changes: MacroChanges = field(default_factory=MacroChanges)
    work: Path | None = None
    confined_by: Mapping[str, str] = field(default_factory=dict)
    users: int = 0
    opened: BinaryIO | None = None
    parked: tuple[Name, ...] | None = ()
    macro_definitions: tuple[str, ...] | None = None
    emptied: int = -1
    tidied: int | None = None
    is_stranded: bool = False
    doubt: Doubt = field(default_factory=Doubt)
    written: str | None = None
    defined: frozenset[tuple[str, ...]] | None = None
    warned: frozenset[str] = frozenset()
    _roots: dict[int, duckdb.DuckDBPyConnection] = field(default_factory=dict)
    _roots_lock: threading.Lock = field(default_factory=threading.Lock)
    has_settled_past: bool = False
    last_changes: LastChanges = field(default_factory=LastChanges)
    _tick: int = 0
    _layout: int = 0
    _home: Home | None = None
    _site: SiteCommits | None = None
    _witnessed: datetime | None = None

    @property
    def root(self) -> duckdb.DuckDBPyConnection:
        """A connection of the calling thread: DuckDB refuses concurrent calls on one connection."""
        with self._roots_lock:
            thread = threading.get_ident()
            if thread not in self._roots:
                self._roots[thread] = self.base.cursor()
            return self._roots[thread]

    @property
    def site(self) -> SiteCommits | None:
        """Its commits as a site; None while there is no other site."""
        state = self.state
        if state is None or state.site is None or state.site.circle is None:
            return None
        if self._site is None:
            from wlc.multi_master.duckdb import commits  # A plain master never loads what only sites need.

            frames.hide()

            self._site = commits.SiteCommits(self.require_state)
        return self._site

    @property
    def is_in_mesh(self) -> bool:
        """Whether it is one of several sites that all read each other."""
        return (site := self.site) is not None and site.circle.is_mesh

    @property
    def away(self) -> FencedError | None:
        """The reason why this file is not the master of its stored state; None if it is, or was never one."""
        return elsewhere(self.state.name, self._home, self.here, self.path) if self.state else None

    def close(self) -> None:
        """End the background publisher and close the file."""
        if self.publisher is not None:
            self.publisher.stop()
        if self.is_master:
            with suppress(duckdb.Error, OSError):
                self.write(self.doubt_to_note())
        # Other processes wait only while the file is closed, not while it is written.
        with suppress(duckdb.Error):
            self.root.execute("CHECKPOINT")
        with alone(self.path), self._roots_lock:
            for connection in (*self._roots.values(), self.base):
                connection.close()
            self._roots.clear()
            if self.opened is not None:
                self.opened.close()
            home.note_settled(self.file, self._settled_tick())
        if self.work is not None:
            shutil.rmtree(self.work, ignore_errors=True)

    def _settled_tick(self) -> int | None:
        """The last tick if all is published and nothing in doubt; sites also have others' transactions to judge."""
        state = self.state
        if state is None or not state.is_master or self.away or state.site or self.doubt.is_open:
            return None
        return state.tick if state.tick >= self.last_tick else None

    def doubt_to_note(self) -> dict[str, str]:
        """Return what the next session must know of the doubt; empty if nothing was written since that was stored."""
        return home.to_note(self.file, self.doubt, self.written)

    def watch(self, *, is_new: bool = False) -> None:
        """Determine the doubt about a file that was just opened; a new master has none."""
        self.doubt = home.found(self.file, self.written) if self.is_master and not is_new else Doubt()

    @property
    def packing(self) -> Packing | None:
        """The packing of large change sets; None if other sites compare their rows."""
        # A site learns of other sites only when it reads the circle.
        return Packing(self.file, self.work) if self.require_state().site is None else None

    def allow_work(self) -> None:
        """Reserve a writable folder before a statement cuts the database off from files."""
        self.work = opening.allow(self.root, self.work)

    def new_tick(self) -> int:
        """Return an unused tick; a transaction that rolls back leaves a gap."""
        with self.commit_lock.turn:
            self._tick = max(self._tick, self.last_tick) + 1
            return self._tick

    def new_ticks(self, count: int) -> int:
        """Reserve consecutive ticks, and return the first one."""
        with self.commit_lock.turn:
            first = self.new_tick()
            self._tick += count - 1
            return first

    def new_layout(self) -> int:
        """Return the number of a new image table."""
        with self.commit_lock.turn:
            self._layout += 1
            return self._layout

    def commit_time(self) -> datetime:
        """Return the present time, or the last commit's if later: clocks may step back, the log must not."""
        now, last = utc_now(), self.last_commit
        if last is None:
            return now
        return max(now, last if (site := self.site) is None else site.earliest_after(last))

    def next_commit(self) -> tuple[int, datetime]:
        """Return the tick and the time of a transaction that shares the commit lock.

        Later calls return greater ticks and no earlier times, regardless of the order of commits.
        """
        with self.commit_lock.turn:
            self.last_commit = self.commit_time()
            return self.new_tick(), self.last_commit

    def witness(self, time: datetime) -> None:
        """Make all further commits later than a commit of another site."""
        with self.commit_lock:
            self._witnessed = max(time, self._witnessed) if self._witnessed else time
            self.last_commit = max(time, self.last_commit) if self.last_commit else time

    def committed(
        self,
        tick: int,
        time: datetime,
        removed_from: Iterable[Name] = (),
        added_to: Iterable[Name] = (),
        altered: Iterable[Name] = (),
    ) -> None:
        """Record a commit: tables with removed, changed or added rows, and altered or dropped tables.

        The caller holds the commit lock.
        """
        with self.commit_lock.turn:
            if tick > self.last_tick:
                self.last_tick, self.last_commit = tick, max(time, self.last_commit or time)
            self.commits += 1
            self.last_changes.note(self.commits, removed_from, added_to, altered)

    @contextmanager
    def changing_schema(self) -> Iterator[None]:
        """Mark the duration of a COMMIT that changes the schema; the caller holds the commit lock."""
        self.generation += 1
        try:
            yield
        finally:
            self.generation += 1

    def load(self) -> None:
        """Read the state, the last tick and the last layout from the journal."""
        values = journal.read_state(self.root, self.catalog)
        known = decode(values, self.path)
        if known is None:
            return
        self._home, self.written = decode_home(values.get("home")), values.get(home.KEY)
        self.state = replace(known, options=lay_over(known.options, self.options))
        layouts = journal.read_layouts(self.root, self.catalog)
        self._layout = max(layouts, default=0)
        tick, committed = journal.last_commit(self.root, self.catalog, layouts)
        self.last_tick = max(known.tick, tick)
        self.last_commit = max(filter(None, (committed, known.clock, known.began, self._witnessed)), default=None)
        self.beat_s = known.beat_s
        if self.is_master and self.away is None:
            home.note_place(self.file, PublishingPlace(join_url(known.farm, known.name), known.options))

    def require_state(self) -> MasterState:
        """Return the state of a database that is or was a master.

        Raises:
            InvalidError: It has never been a master.
        """
        if self.state is None:
            self.refuse_replica()
        return require_state(self.state, self.path)

    def refuse_replica(self) -> None:
        """Refuse a database that takes its rows from another master.

        Raises:
            InvalidError: It is a replica.
        """
        journal.refuse_replica(self.root, self.catalog, self.path)

    def remember(self, state: MasterState) -> None:
        """Replace the state in the journal atomically."""
        with self.commit_lock:
            self.write(changes(self.state, state))

    def adopt_place(self) -> None:
        """Store that this file is the master's."""
        self.write({"home": encode_home(self.here)})

    def parked_rows(self, connection: duckdb.DuckDBPyConnection) -> ParkedRows:
        """Return the parked rows, of tables that are captured."""

        def is_known(name: Name) -> bool:
            return any(name == known for known, _ in journal.read_layouts(connection, self.catalog).values())

        return ParkedRows(connection, self.catalog, "wlc", is_known=is_known)

    def rescue(self) -> None:
        """Wait until no rows are parked, and restore rows that a crash or a failure has left parked.

        Raises:
            UnavailableError: They no longer fit, or the machine fails.
        """
        if self.is_stranded:
            with self.commit_lock:
                # The thread that parks rows holds the lock, and may call this, too.
                if self.parked == ():
                    if back := self.parked_rows(self.root).rescue(self.path):
                        self.committed(self.last_tick, self.commit_time(), back, back)
                    self.is_stranded = False

    def renew_home(self) -> None:
        """Store changes of the master's home without a move of the file: the machine was restarted."""
        if self.state is None or self._home is None or self.away is not None:
            return
        renewed = replace(self.here, path=self._home.path)
        if renewed != self._home:
            with suppress(duckdb.Error):
                self.write({"home": encode_home(renewed)})

    def write(self, values: dict[str, str]) -> None:
        """Replace keys of `wlc.state` atomically."""
        with self.commit_lock:
            if values:
                self.root.execute("BEGIN")
                try:
                    journal.write_state(self.root, self.catalog, values)
                    self.root.execute("COMMIT")
                except BaseException:
                    with suppress(duckdb.Error):
                        self.root.execute("ROLLBACK")
                    raise
            self.load()

    def keep_options(self, options: Mapping[str, Any]) -> None:
        """Override the options of the farm's file system for all users of the database."""
        self.options = lay_over(self.options, options)
        if self.state is not None:
            self.state = replace(self.state, options=lay_over(self.state.options, options))

    @property
    def is_master(self) -> bool:
        """Whether changes are captured now."""
        return self.state is not None and self.state.is_master

    @property
    def publishes_to(self) -> str:
        """URL of its folder in the farm."""
        state = self.require_state()
        return join_url(state.farm, state.name)

    def refuse_writes(self) -> None:
        """Refuse to capture changes that could never be published.

        Raises:
            FencedError: The file is a copy of the master, or another master took its place in the farm.
        """
        if self.state is None or not self.state.is_master:
            return
        if (away := self.away) is not None:
            raise away
        if (fence := self.state.fence) is not None:
            source = shlex.quote(self.path)
            raise FencedError(
                f"{self.path} refuses writes, which could not be published: {fence.message}",
                hint=fence.hint.replace("SOURCE", source),
                path=self.path,
            )

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Provide a connection that reads a consistent snapshot, regardless of concurrent commits."""
        with self.root.cursor() as connection:
            self.begin_reading(connection)
            yield connection
            connection.execute("ROLLBACK")

    def begin_reading(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Start a transaction that reads the present snapshot; the caller rolls it back."""
        connection.execute("BEGIN TRANSACTION READ ONLY")
        self.take_snapshot(connection)

    def take_snapshot(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Fix the snapshot of a transaction that has just begun: it sees each present commit entirely.

        If a transaction of DuckDB 2.0 reads for the first time during another one's COMMIT, it sees a part of that
        one's changes, and later more. So no transaction reads for the first time during a captured COMMIT.
        """
        with self.commit_lock:
            self.rescue()
            connection._table_kind((self.catalog, "wlc", "state"))


@contextmanager
def explained(path: str, outcome: str = "could not be published") -> Iterator[None]:
    """Translate errors of DuckDB and the operating system that occur outside user statements."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        text = str(error).partition("\n")[0]
        hint = "nothing is lost; free disk space if there is none left, then try again"
        if isinstance(error, (duckdb.PermissionException, duckdb.InvalidInputException)):
            again = f"wlc flush {shlex.quote(path)}"
            hint = f"nothing is lost; close the connection, whose settings forbid that, then: {again}"
        raise UnavailableError(f"{path} {outcome}: {text}", hint=hint, path=path) from error


def open_shared(
    source: str, *, read_only: bool = False, config: dict[str, Any] | None = None, must_agree: bool = False
) -> Shared:
    """Open a DuckDB database once per process; every call must be paired with `close_shared`.

    Args:
        source: Path of the database.
        read_only: Open it for reading, unless it is already open.
        config: Settings of DuckDB, unless it is already open.
        must_agree: Refuse a database that is already open in another mode or with other settings.

    Raises:
        InvalidError: The file is not a DuckDB database.
        UnavailableError: Another process has it open. duckdb.ConnectionException: It is open in this process with
        another mode or other settings.
    """
    key = _key(source)
    with _open_lock:
        shared = _open.get(key)
        if shared is None:
            first, last = opening.split(config)
            root = connect(source, read_only=read_only, config=first)
            try:
                work = opening.confine(root, last, writes=not read_only)
                catalog = root.execute("SELECT current_database()").fetchall()[0][0]
                file = Path(source).absolute()
                shared = Shared(source, catalog, root, home_at(source), file, work=work, confined_by=last)
                shared.load()
                if shared.state is not None and read_only:
                    shared.parked_rows(root).refuse(source, f"wlc flush {shlex.quote(source)}")
                if not read_only:
                    shared.watch()
                    shared.is_stranded = shared.state is not None
                    shared.rescue()
                    shared.renew_home()
                    packed.sweep(file)
                    if shared.is_master:
                        packed.create(root, catalog)
                        known_objects.create(root, catalog)
            except BaseException:
                # A reference to the error would keep the file open, too.
                root.close()
                raise
            _open[key] = shared
        elif must_agree:
            # DuckDB itself compares mode and settings, and raises an error if they differ.
            first, last = opening.split(config)
            if last != shared.confined_by:
                # DuckDB's wording: it did not get these settings when it opened the file.
                raise duckdb.ConnectionException(
                    "Connection Error: Can't open a connection to same database file with a different configuration"
                    " than existing connections"
                )
            connect(shared.path, read_only=read_only, config=first).close()
        shared.users += 1
        return shared


def look_into(source: str) -> tuple[MasterState, FencedError | None]:
    """Return a database's stored state, and the reason if it is only a copy of that master; change nothing.

    Raises:
        InvalidError: The file is not a DuckDB database, or has never been a master.
        UnavailableError: Another process has it open.
    """
    # No other thread opens the file for writing meanwhile: DuckDB would refuse that.
    with _open_lock:
        if (shared := _open.get(_key(source))) is not None:
            return shared.require_state(), shared.away
        try:
            connection = connect(source, read_only=True, config=None)
        except duckdb.ConnectionException:
            # This process has it open for writing with DuckDB alone, which does not allow a second mode.
            connection = connect(source, read_only=False, config=None)
        try:
            catalog = connection.execute("SELECT current_database()").fetchall()[0][0]
            values = journal.read_state(connection, catalog)
            if (state := decode(values, source)) is None:
                journal.refuse_replica(connection, catalog, source)
            state = require_state(state, source)
            return state, elsewhere(state.name, decode_home(values.get("home")), home_at(source), source)
        finally:
            connection.close()


def close_shared(shared: Shared) -> bool:
    """Release the database; returns True if this was its last user in this process, and the file is closed."""
    with _open_lock:
        shared.users -= 1
        if shared.users:
            return False
        for key in [key for key, found in _open.items() if found is shared]:
            del _open[key]
    shared.close()
    return True


def _key(source: str) -> str:
    return source if source == ":memory:" else str(Path(source).resolve())
