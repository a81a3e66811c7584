"""A DuckDB database as a source: its journal holds committed transactions until they are published."""

from __future__ import annotations

import shlex
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from wlc.capture.duckdb import digests, schema_change, setup, uncaptured, unpublished
from wlc.capture.duckdb.home import Doubt, noted_place
from wlc.capture.duckdb.opening import create_file
from wlc.capture.duckdb.repair import journal_difference, journal_found
from wlc.capture.duckdb.shared import Shared, close_shared, explained, look_into, open_shared
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import snapshot
from wlc.dialect.duckdb.opening import refuse_path
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.typed_names import file_meant
from wlc.masters.background import Publisher
from wlc.masters.contract import Remembered, Source, SourceDetails, bypassing, database_of
from wlc.masters.fence import announce_snapshot
from wlc.masters.publish import publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import duckdb

    from wlc.capture.duckdb.connection import Connection
    from wlc.farm.database import FarmDatabase
    from wlc.farm.errors import FencedError
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch, Digest, Manifest, Name
    from wlc.masters.compensation import Compensated, WantedChange
    from wlc.masters.contract import BatchContent, Gathered, PublishingPlace
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.duckdb.duckdb_site import DuckDBSite

# The functions of a source module ------------------------------------------------------------------------------------


@contextmanager
def opened(source: str, tables: Sequence[str] = ()) -> Iterator[DuckDBSource]:
    """Open a database file; see `SourceModule`."""
    if tables:
        raise InvalidError("all tables of a DuckDB master are replicated", hint="choose with wlr replicate --tables")
    shared = open_shared(str(_existing(source)))
    try:
        uncaptured.begin(shared)
        yield DuckDBSource(shared)
    finally:
        uncaptured.end(shared)
        close_shared(shared)


@contextmanager
def creating(source: str) -> Iterator[None]:
    """Create an empty database file unless it exists; remove it again if the body fails before it is a master."""
    path = _file(source)
    if path.exists():
        yield
        return
    refuse_path(path.absolute())
    create_file(source)
    try:
        yield
    except BaseException:
        # The farm's database may already belong to it, and to no other source.
        if _is_unclaimed(source):
            path.unlink(missing_ok=True)
        raise


def _is_unclaimed(source: str) -> bool:
    try:
        look_into(source)
    except InvalidError:
        return True
    except FarmError:
        pass
    return False


def look(source: str) -> Remembered:
    """Return what a file remembers, without changing it."""
    state, away = look_into(source)
    return Remembered(state, away)


def default_place(source: str) -> tuple[str, str] | None:
    """Return the farm beside the file, and the file's stem."""
    path = Path(source)
    return str(path.absolute().parent / "dbfarm"), path.stem


def held_place(source: str) -> PublishingPlace | None:
    """Return the place that the last process to open the file stored in its attribute."""
    return noted_place(source)


def tables_to_change(source: str, tables: Sequence[str]) -> list[Name]:  # noqa: ARG001 -- they stay as they are
    """Return no tables: the journal lies beside them."""
    return []


def preparation(source: str) -> NoReturn:
    """Refuse every file: a user who can write it can make it a master."""
    raise InvalidError(f"{source} is a DuckDB file, which needs no preparation", hint=f"wlc master {source}")


def check_run(source: str) -> NoReturn:
    """Refuse every file: only the process that has it open can publish it."""
    raise InvalidError(
        f"{source} is a DuckDB master: the process that writes it publishes it", hint=f"wlc flush {shlex.quote(source)}"
    )


def check_repair(source: str) -> None:
    """Refuse a file that does not exist; all others can be repaired."""
    _existing(source)


def connect(
    source: str,
    *,
    read_only: bool,
    config: dict[str, Any] | None,
    storage_options: Mapping[str, Any] | None,
    repair: bool = False,
) -> Connection:
    """Open a master to write to it with capture; see `wlc.connect`."""
    from wlc.capture.duckdb.connection import Connection  # Read-only commands start faster without this import.

    path = _existing(source)
    shared = open_shared(str(path), read_only=read_only, config=config, must_agree=True)
    try:
        shared.require_state()
        setup.check()
        if shared.is_master and shared.away is None and not read_only:
            uncaptured.begin(shared)
            found = DuckDBSource(shared)
            found.keep_options(storage_options or {})
            if shared.publisher is None:
                shared.publisher = Publisher(found, database_of(found.require_state()))
            if repair:
                found.publish_bypassed(shared.publisher.database)
            found.warn_bypassed()
            site = found.present_site
            if found.require_state().fence is not None or (site is not None and not site.has_settled_past):
                shared.publisher.reconcile()
            shared.publisher.start()
        return Connection(shared, shared.root.cursor())
    except BaseException:
        close_shared(shared)
        raise


def _existing(source: str) -> Path:
    path = _file(source)
    if not path.exists():
        make = f"wlc master {shlex.quote(source)} --create makes it"
        if not path.suffix:
            # Commands on a farm take the database's name there, this one takes the file.
            file = shlex.quote(f"{source}.duckdb")
            make = f"name the master's file, such as {file}; wlc master {file} --create makes one"
        meant = file_meant(path)
        hint = f"did you mean {meant}? If not: {make}" if meant else make
        raise InvalidError(f"there is no database {source}", hint=hint, path=source)
    if path.is_dir():
        raise InvalidError(
            f"{source} is a folder, not a DuckDB database", hint=f"ls {shlex.quote(source)}", path=source
        )
    return path


def _file(source: str) -> Path:
    if not source or source.startswith(":memory:"):
        raise InvalidError(
            "a database in memory cannot be a master", hint="wlc master sales.duckdb --create makes a file"
        )
    path = Path(source)
    if not path.parent.is_dir():
        folder = path.parent
        raise InvalidError(f"there is no folder {folder}", hint=f"mkdir -p {shlex.quote(str(folder))}", path=source)
    return path


# The source ----------------------------------------------------------------------------------------------------------


class DuckDBSource(Source):
    """A DuckDB database that this process has open."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __str__(self) -> str:
        return self._shared.path

    @property
    def state(self) -> MasterState | None:
        return self._shared.state

    @property
    def site(self) -> DuckDBSite:
        from wlc.multi_master.duckdb import duckdb_site  # A plain master never loads what only sites need.

        return duckdb_site.DuckDBSite(self, self._shared, DuckDBSource)

    @property
    def beat_s(self) -> float:
        return self._shared.beat_s

    @beat_s.setter
    def beat_s(self, beat_s: float) -> None:
        self._shared.beat_s = beat_s

    @property
    def default_name(self) -> str:
        return Path(self._shared.path).stem

    @property
    def default_folder(self) -> Path:
        return Path(self._shared.path).parent

    def elsewhere(self) -> FencedError | None:
        return self._shared.away

    def adopt_place(self) -> bool:
        self._shared.adopt_place()
        return True

    def keep_options(self, options: Mapping[str, Any]) -> None:
        if options:
            self._shared.keep_options(options)
            self._redirect_publisher()

    # Becoming a master

    def check(self, *, is_replica: bool = False) -> None:
        setup.check()
        if is_replica:
            setup.check_replica(self._shared)
        else:
            self._shared.refuse_replica()

    def require_state(self) -> MasterState:
        return self._shared.require_state()

    def install(self, state: MasterState) -> None:
        setup.begin(self._shared, state)
        self._redirect_publisher()

    def _redirect_publisher(self) -> None:
        """Make open connections publish to the place in the present state."""
        if self._shared.publisher is not None:
            self._shared.publisher.database = database_of(self.require_state())

    def has_objects(self) -> bool:
        # Listing all objects takes long, and most databases have a table.
        root, catalog = self._shared.root, self._shared.catalog
        return bool(duckdb_catalog.table_names(root, catalog) or schema_change.objects(root, catalog))

    def remember(self, state: MasterState) -> None:
        with self._shared.commit_lock:
            if state.site is not None and self.require_state().site is None:
                self.site.unpack()
            self._shared.remember(state)

    # Publishing

    def working(self) -> AbstractContextManager[None]:
        return explained(self._shared.path)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        with self._shared.publish_lock:
            yield

    def refuse_gap(self) -> None:
        """Refuse a copy of the file; the journal loses nothing."""
        if (away := self.elsewhere()) is not None:
            raise away

    def last_place(self) -> str:
        return ""

    def is_idle(self) -> bool:
        shared = self._shared
        if shared.last_tick > shared.require_state().tick:
            return False
        if shared.last_tick <= shared.emptied:
            return True
        with shared.reading() as connection:
            return unpublished.is_empty(connection, shared.catalog)

    @contextmanager
    def gather(self, upto: str, *, is_each: bool) -> Iterator[Gathered | None]:  # noqa: ARG002 -- there is no such place
        with self._gathered(1 if is_each else unpublished.MOST_TRANSACTIONS) as gathered:
            yield gathered

    @contextmanager
    def gather_again(self, batch: Batch) -> Iterator[Gathered | None]:
        with self._gathered(len(batch.transactions)) as gathered:
            yield gathered

    @contextmanager
    def _gathered(self, most: int) -> Iterator[_Waiting | None]:
        shared = self._shared
        with shared.root.cursor() as connection, tempfile.TemporaryDirectory(prefix="wlc-", dir=shared.work) as folder:
            shared.begin_reading(connection)
            found = unpublished.pending(connection, shared.catalog, most)
            yield _Waiting(shared, connection, found, Path(folder)) if found.logged else None

    # Occasional work of a master

    def take_snapshot(self, database: FarmDatabase, *, is_first: bool, progress: Progress | None = None) -> Manifest:
        """Copy the database at exactly the last published tick, while other connections continue to write."""
        shared = self._shared
        if not is_first and (found := uncaptured.found(shared)):
            raise bypassing(self, found.problems)
        with shared.root.cursor() as connection:
            # Most transactions are published while others write, so that commits wait only for the rest.
            with shared.publish_lock:
                publish(self, database)
            with shared.publish_lock, shared.commit_lock:
                publish(self, database)
                shared.begin_reading(connection)
                state = self.require_state()
            try:
                reached = state.reached()
                catalog = shared.catalog
                held = digests.read(connection, catalog)
                known = snapshot.Known(digests.known(held), digests.known_quick(held), str(self))
                manifest = snapshot.take(
                    connection,
                    shared.catalog,
                    database,
                    reached.position,
                    reached.clock,
                    reached.vector,
                    known,
                    shared.work,
                    progress,
                )
            finally:
                connection.execute("ROLLBACK")
        announce_snapshot(database, state)
        shared.doubt = Doubt()
        if known.is_news:
            self._note_digests(manifest, known)
        return manifest

    def _note_digests(self, manifest: Manifest, known: snapshot.Known) -> None:
        """Store the digests that a snapshot has read, unless more was published since."""
        shared = self._shared
        with shared.root.cursor() as connection, shared.publish_lock, shared.commit_lock:
            if self.require_state().tick == manifest.position.tick:
                connection.execute("BEGIN")
                held = digests.read(connection, shared.catalog)
                rows = digests.rows_of(held)
                digests.write(connection, shared.catalog, held, rows, manifest.digests, known.quick)
                connection.execute("COMMIT")

    def bypassed(self) -> dict[str, str]:
        shared = self._shared
        return uncaptured.found(shared).problems if uncaptured.may_exist(shared) else {}

    def compensate(self, changes: Sequence[WantedChange], *, force: bool, dry_run: bool) -> Compensated:
        from wlc.capture.duckdb import compensation  # It imports all that a program's own statements need.

        return compensation.compensate(self._shared, changes, force=force, dry_run=dry_run)

    def warn_bypassed(self) -> None:
        shared, found = self._shared, self.bypassed()
        if not found.keys() <= shared.warned:
            error = bypassing(self, found)
            warnings.warn(f"{error.message}; {error.hint}", stacklevel=3)
        shared.warned = frozenset(found)

    def details(self) -> SourceDetails:
        shared = self._shared
        with shared.reading() as connection:
            waiting = unpublished.count_pending(connection, shared.catalog)
        found = uncaptured.found(shared).problems if shared.is_master else {}
        warning = str(shared.away) if shared.is_master and shared.away else None
        return SourceDetails(waiting, found, warning=warning)

    def verify(self, database: FarmDatabase) -> tuple[Mapping[Name, Digest], Mapping[Name, Digest]]:  # noqa: ARG002
        catalog = self._shared.catalog
        with self._shared.reading() as connection:
            return snapshot.digests(connection, catalog), unpublished.expected_digests(
                connection, catalog, self._shared.work
            )

    def journal_difference(self, published: Path | None) -> None:
        journal_difference(self._shared, published)

    def publish_bypassed(self, database: FarmDatabase) -> None:
        if not (found := self.bypassed()):
            return
        with self.working(), self.publishing():
            publish(self, database)
            with self._shared.commit_lock:
                # What is captured is no difference, so commits wait from here on.
                publish(self, database)
                journal_found(self._shared, database, uncaptured.found(self._shared))
            tick = publish(self, database).tick
        problem = bypassing(self, found).message
        warnings.warn(f"{problem}; this is repaired, and published as tick {tick}", stacklevel=3)

    def without_commits(self) -> AbstractContextManager[Any]:
        return self._shared.commit_lock

    def uninstall(self) -> None:
        """Leave the journal: transactions that could not be published stay in it."""


class _Waiting:
    """Journalled transactions as a read transaction sees them; see `wlc.masters.contract.Gathered`."""

    def __init__(
        self, shared: Shared, connection: duckdb.DuckDBPyConnection, waiting: unpublished.Pending, folder: Path
    ) -> None:
        self._shared, self._connection, self._waiting, self._folder = shared, connection, waiting, folder

    def write(self) -> BatchContent:
        shared = self._shared
        return unpublished.write_batch(
            self._connection, shared.catalog, self._waiting, self._folder, shared.require_state()
        )

    def matches(self, batch: Batch) -> bool:
        return unpublished.matches(self._waiting, batch)

    def note(self, batch: Batch, chain: str) -> None:
        self._connection.execute("ROLLBACK")
        unpublished.acknowledge(self._connection, self._shared, self._waiting, batch, chain, self._folder)
