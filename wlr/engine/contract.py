"""The contract of replica engines: the operations of every target, and facets of some kinds of targets.

The actual rows of a replica, as images that DuckDB reads, for every engine.

The contract of executors of large work: the caller passes one in, since engines know no cluster.
"""

from __future__ import annotations

import shlex
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.human_form import Doing, Progress
from wlc.farm.model import Digest
from wlc.farm.typed_names import file_meant
from wlr.replay.plan.failure import MEMORY_HINT, ContradictionError, StepError
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    import duckdb

    from wlc.farm.model import DataFile, Ddl, Layout, Manifest, Name, SnapshotTable, TableFile
    from wlr.engine.place import Place
    from wlr.engine.quarantine_tables import Quarantined
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.fold.files import Executor
    from wlr.replay.fold.net_changes import FoldsElsewhere
    from wlr.replay.plan.failure import Obstacle
    from wlr.replay.plan.log_steps import Limits
    from wlr.replay.plan.retention import PrunedTicks
    from wlr.replay.plan.step import Step


@dataclass(frozen=True, slots=True)
class StoredTables:
    """The tables of a replica whose rows are in files that never change.

    Attributes:
        tick: Tick of the tables.
        layouts: Layouts of the tables.
        files: Context that gives the local files with all rows of a table, in the format of data files; the second
            argument asks to compare them with their checksums.
    """

    tick: int
    layouts: Mapping[Name, Layout]
    files: Callable[[Name, bool], AbstractContextManager[list[Path]]]


@dataclass(frozen=True, slots=True)
class Scan:
    """A replica that is open for reading.

    Attributes:
        connection: Runs the queries of `images`; it holds no data of the replica.
        state: The replica's state.
        layouts: Layouts of its replicated tables.
        images: Context that gives a query for all rows of a table, in storage types, with the column names of data
            files.
    """

    connection: duckdb.DuckDBPyConnection
    state: ReplicaState
    layouts: Mapping[Name, Layout]
    images: Callable[[Name], AbstractContextManager[str]]

    def is_changed(self, name: Name) -> bool:
        """Return whether a table was certainly changed since the replay."""
        known = self.state.digests.get(name)
        if not isinstance(known, Digest) or name not in self.layouts:
            return False
        try:
            return self.digest(name) != known
        except UnsupportedError:
            return False

    def digest(self, name: Name) -> Digest:
        """Read all rows of a table and return their digest."""
        # Importing DuckDB takes longer than the rest of this package.
        from wlc.dialect.duckdb.digest_sql import sum_rows

        with self.images(name) as query:
            return sum_rows(self.connection, self.layouts[name], f"({query})")


class Bulk(Protocol):
    """Executes large work outside of this process."""

    def folding(self, work: Path) -> FoldsElsewhere | None:
        """Return the folder of changes for a database; None for this process.

        Args:
            work: Existing folder for the files with net changes.
        """

    def executor(self, local: Executor, url: str, storage_options: Mapping[str, Any]) -> Executor:
        """Return the executor for the files of a replica.

        Args:
            local: Executes all work in this process; the returned executor closes it.
            url: Path or URL of the replica.
            storage_options: Options of the replica's file system.
        """


# Hint for a place that holds only the replica.
DELETE_PLACE = "Delete the place itself, then: wlc farm forget DB ID"


class Target(ABC):
    """A place that holds a replica of one kind, or can hold one.

    Attributes:
        noun: The kind of place, for messages.
        place: Its path or URL.
    """

    noun: ClassVar[str]

    def __init__(self, place: Place) -> None:
        self.place = place

    def __str__(self) -> str:
        return str(self.place)

    def is_settled(self) -> bool:
        """Return whether the last run ended regularly, so that a round without batches need not open the replica."""
        return False

    def expect_round(self) -> None:  # noqa: B027 - Most engines have nothing to prepare.
        """Prepare to be opened again soon by the same process."""

    @abstractmethod
    def find_state(self) -> ReplicaState | None:
        """Read a replica's state; None if the place does not exist, or is an empty database.

        Raises:
            InvalidError: The place holds something else.
            UnavailableError: It is in use or cannot be reached.
            CorruptError: The replica is damaged.
        """

    def read_state(self) -> ReplicaState:
        """Read a replica's state, without writing; raises as `find_state` does.

        Raises:
            InvalidError: There is no replica.
        """
        state = self.find_state()
        if state is None:
            raise no_replica(str(self.place))
        return state

    @abstractmethod
    def build(self, new: NewReplica) -> None:
        """Make a new replica, all or nothing.

        Raises:
            InvalidError: An existing object is in the way.
            UnavailableError: Another process is building it.
            UnsupportedError: The snapshot cannot be loaded.
        """

    @abstractmethod
    def open(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenReplica:
        """Open the replica for writing; other processes cannot until it is closed.

        Args:
            folders: Folders that data files will be read from.
            bulk: Executes large work; this process if omitted.

        Raises:
            InvalidError: There is no replica.
            UnavailableError: Another process, or this one, has it open.
        """

    @abstractmethod
    def scanned(self, work: Path, storage_options: Mapping[str, Any] | None = None) -> AbstractContextManager[Scan]:
        """Open the replica to read its rows.

        Args:
            work: Folder for spilled data.
            storage_options: Options of the farm's file system, which may hold the column types of a replica.

        Raises:
            InvalidError: There is no replica.
            UnavailableError: It is in use.
            CorruptError: One of its files is damaged.
        """


class Facet(Target):
    """A target with an ability of only some kinds of replicas.

    Attributes:
        owners: Replicas of these kinds, for messages.
        error: The error of other targets.
    """

    owners: ClassVar[str]
    error: ClassVar[type[FarmError]] = InvalidError

    @classmethod
    def of(cls, target: Target) -> Self | None:
        """Return the target if it has the facet, otherwise None."""
        return target if isinstance(target, cls) else None

    @classmethod
    def required(cls, target: Target, asked: str, hint: str = "") -> Self:
        """Return the target, which must have the facet.

        Args:
            target: The target that an option, key or command was given for.
            asked: The option, key or command that needs the facet.
            hint: The remedy, if it is not to leave the option or key out.

        Raises:
            FarmError: The target lacks the facet; the class is `error`.
        """
        if (found := cls.of(target)) is not None:
            return found
        known = f"wlr status {shlex.quote(str(target))}" if asked.startswith("wlr ") else f"Leave {asked} out."
        raise cls.error(f"{target} is {target.noun}: {asked} is for {cls.owners}", hint=hint or known, path=str(target))


class Rebuildable(Facet):
    """A replica can be rebuilt in its place."""

    owners = "DuckDB and Parquet replicas"
    error = UnsupportedError

    @abstractmethod
    def rebuild(self, new: NewReplica) -> None:
        """Rebuild the existing replica, all or nothing.

        Raises:
            InvalidError: The replica's owner would lose data.
        """


class Guarded(Facet):
    """Users can write to its tables: a lock refuses that, and a quarantine keeps rows of accepted transactions."""

    owners = "DuckDB and PostgreSQL replicas"
    error = UnsupportedError


class Roles(Facet):
    """The database has roles that can get privileges."""

    owners = "PostgreSQL replicas"


class DatabaseFile(Facet):
    """A replica can share its file with an owner, or swap the file for a second one, which never blocks readers."""

    owners = "DuckDB files"

    @abstractmethod
    def adopt(self) -> None:
        """Make the replica inside an existing database, beside the owner's objects."""

    @abstractmethod
    def refuse_taken(self, statements: Iterable[Ddl], patterns: tuple[str, ...]) -> None:
        """Refuse a replica with the name of an existing object.

        Args:
            statements: The statements that will make it; read only if the database has objects.
            patterns: Patterns of its tables.

        Raises:
            InvalidError: A name is taken; nothing was written.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove only the replica from the database that it was adopted into.

        Raises:
            InvalidError: There is no replica, or the file holds only the replica.
        """

    @abstractmethod
    def owned(self, statements: Iterable[Ddl]) -> list[str]:
        """Return the objects of the file that belong to its owner, for a message.

        Args:
            statements: Those that have made what is replicated, but for tables.
        """

    @abstractmethod
    def check_storage_version(self, version: str) -> None:
        """Check a storage version that the user typed.

        Raises:
            InvalidError: There is no such version, or the replica exists and has another one.
        """

    @abstractmethod
    def set_swaps(self, swaps: bool) -> None:
        """Switch rounds to a second file that replaces the replica's file afterwards, on or off."""

    @abstractmethod
    def wants_swaps(self, known: bool) -> bool:
        """Return whether rounds use a second file from now on, given the remembered setting."""

    @abstractmethod
    def open_to_roll(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenReplica:
        """Open a file of the replica to apply the log from its position, which may be behind the replica's.

        Arguments and errors are those of `Target.open`.
        """

    @abstractmethod
    def begins_again(self) -> bool:
        """Discard a file that was behind the replica when it was opened to roll; return whether there was one."""


class Lake(Facet):
    """A replica keeps old ticks, in immutable files that other programs can read."""

    owners = "Parquet replicas"

    @abstractmethod
    def check_keep(self, keep: str) -> None:
        """Check a retention of old ticks that the user typed.

        Raises:
            InvalidError: The text is invalid.
        """

    @abstractmethod
    def check_open_tables(self, kind: str) -> None:
        """Check a kind of readers that the user typed.

        Raises:
            InvalidError: There is no such kind.
        """

    @abstractmethod
    def files(self, table: str, tick: int | None = None) -> list[str]:
        """Return paths or URLs of the files that hold a table at a tick; see `wlr.files`."""

    @abstractmethod
    def stored_tables(self, tick: int | None = None) -> StoredTables:
        """Return the tables as of a tick, the current one if omitted.

        Raises:
            InvalidError: There is no replica, or it has not reached the tick.
            ExpiredError: The tick was pruned, or a step passed over it.
        """

    @abstractmethod
    def prune(self, keep: str | None = None, *, dry_run: bool = False) -> PrunedTicks:
        """Remove ticks that need not stay readable; see `wlr.prune`."""

    @abstractmethod
    def as_snapshot(self, database: str) -> tuple[Manifest, dict[str, Path]]:
        """Return a replica on a local disk as a snapshot of a farm database.

        Args:
            database: Name of the farm database.

        Returns:
            The manifest, without a vector, and a local file for each path that it names.
        """


class OpenReplica(ABC):
    """A replica that is open for writing; other processes cannot open it until it is closed.

    Attributes:
        state: Its last committed state.
        limits: Size limits of a step.
    """

    state: ReplicaState
    limits: Limits

    @property
    def parents(self) -> Mapping[Name, Collection[Name]]:
        """Tables that each table's foreign keys refer to; empty if steps check no foreign keys."""
        return {}

    @abstractmethod
    def holds(self, table: Name) -> bool:
        """Return whether a table of the master is replicated here, comparing names case-insensitively."""

    @abstractmethod
    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        """Apply a step and the position after it in one transaction.

        Raises:
            StepError: The step cannot be applied; the replica was not changed.
            UnavailableError: The machine failed, not the step.
        """

    def obstacle(self, step: Step, error: StepError) -> Obstacle | None:  # noqa: ARG002
        """Return the obstacle in the replica itself that blocked a step of one transaction; None without one."""
        return None

    @abstractmethod
    def remember(self, state: ReplicaState) -> None:
        """Store a new state.

        Raises:
            UnsupportedError: An engine without a guard cannot be unlocked.
        """

    def quarantine(self, state: ReplicaState, kept: Sequence[Quarantined]) -> None:  # noqa: ARG002
        """Store a new state, and in the same transaction the rows of an accepted transaction.

        Args:
            state: The new state.
            kept: The rows; empty in a replica that is not `Guarded`. Files are in the folders that the replica was
                opened with.
        """
        self.remember(state)

    def quarantined(self, work: Path) -> list[Quarantined]:  # noqa: ARG002
        """Return the rows in quarantine, as files in a folder."""
        return []

    def move(self, state: ReplicaState) -> None:
        """Store a state at a position in another log with the same rows."""
        self.remember(state)

    @abstractmethod
    def close(self) -> None:
        """Allow other processes to open the replica."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_WATCH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class NewReplica:
    """The contents of a new replica.

    Attributes:
        state: Its first state.
        manifest: The snapshot to load; None for an empty replica.
        fetch: Returns a local file with the content of one of the snapshot's files.
        release: Removes such a file.
        folders: Folders that data files will be read from.
        progress: Called with rows done, rows in all, and what is being done.
    """

    state: ReplicaState
    manifest: Manifest | None
    fetch: Callable[[DataFile], Path]
    release: Callable[[Path], None]
    folders: Sequence[Path] = ()
    progress: Progress | None = None

    @property
    def tables(self) -> list[SnapshotTable]:
        """The snapshot's tables that are replicated."""
        if self.manifest is None:
            return []
        return [table for table in self.manifest.tables if matches(table.table, self.state.tables)]

    @property
    def rows(self) -> int:
        """Rows of the tables."""
        return sum(map(_rows, self.tables))

    def load(
        self,
        load_table: Callable[[SnapshotTable, list[Path]], int],
        loading: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        """Load all tables.

        Args:
            load_table: Loads one table from local files and returns its number of rows.
            loading: The connection that loads it and reports its progress; None for another engine.

        Raises:
            CorruptError: A table has other columns, or another number of rows, than in the manifest.
        """
        # Importing DuckDB takes longer than the rest of this package.
        from wlr.engine.calculator import connect_free_of

        with connect_free_of("main") as connection:
            self._load(connection, load_table, loading)

    def _load(
        self,
        connection: duckdb.DuckDBPyConnection,
        load_table: Callable[[SnapshotTable, list[Path]], int],
        loading: duckdb.DuckDBPyConnection | None,
    ) -> None:
        from wlc.dialect.duckdb.file_columns import refuse_other_rows

        total, done = self.rows, 0
        for table in self.tables:
            what, rows = f"loading {table.table}", _rows(table)
            self._tell(done, total, what)
            fetched = [self.fetch(file) for file in table.files]
            paths = {str(local): file.path for local, file in zip(fetched, table.files, strict=True)}
            try:
                refuse_other_rows(connection, table, paths)
                with self._watching(loading, lambda share: self._tell(done + int(share * rows), total, what)):  # noqa: B023
                    found = load_table(table, fetched)
            finally:
                for file in fetched:
                    self.release(file)
            if found != rows:
                message = f"the snapshot's table {table.table} has {found} rows, the manifest says {rows}"
                raise CorruptError(message)
            done += found
        self._tell(done, total, "loaded")

    @contextmanager
    def _watching(self, loading: duckdb.DuckDBPyConnection | None, tell: Callable[[float], None]) -> Iterator[None]:
        """Report periodically the finished share of the current statement, from 0 to 1."""
        if loading is None or self.progress is None:
            yield
            return
        # https://duckdb.org/docs/current/configuration/overview: DuckDB counts only if it may show a bar.
        loading.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        has_ended = threading.Event()

        def watch() -> None:
            while not has_ended.wait(_WATCH_EVERY_S):
                if (percent := loading.query_progress()) > 0:
                    tell(min(percent / 100, 1.0))

        watcher = threading.Thread(target=watch, name="loading", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            has_ended.set()
            watcher.join()

    def _tell(self, done: int, total: int, what: str) -> None:
        if self.progress:
            self.progress(done, total, Doing(what, rows=done))


def _rows(table: SnapshotTable) -> int:
    return sum(file.rows for file in table.files)


def no_replica(where: str) -> InvalidError:
    """Build the error for a place without a replica."""
    hint = f"wlr replicate MASTER --into {shlex.quote(where)}"
    if "://" not in where and (meant := file_meant(Path(where))):
        hint = f"did you mean {meant}? If not: {hint}"
    return InvalidError(f"there is no replica {where}", hint=hint, path=where)


@contextmanager
def loading(what: str, hint: str) -> Iterator[None]:
    """Turn a `StepError` into the error for a part of a snapshot that cannot be loaded.

    Args:
        what: The part of the snapshot.
        hint: The remedy if the part does not fit the engine.

    Raises:
        UnavailableError: The machine has too little memory.
        UnsupportedError: The part does not fit the engine.
        CorruptError: The part's effects differ from the recorded ones.
    """
    try:
        yield
    except ContradictionError as error:
        hint = "wlc snapshot SOURCE, at the master, writes another snapshot; then replicate again."
        raise CorruptError(f"{what} of the snapshot cannot be loaded: {error.cause}", hint=hint) from error
    except StepError as error:
        message = f"{what} of the snapshot cannot be loaded: {error.cause}"
        if error.is_shortage:
            raise UnavailableError(message, hint=MEMORY_HINT) from error
        raise UnsupportedError(message, hint=error.remedy or hint) from error
