"""The contract of replica engines: what every kind of target can do, and facets for what only some kinds can do.

The rows that a replica really holds, as images that DuckDB reads, whatever stores them.

The contract of who does large work for a target: its caller hands it in, since engines know no cluster.
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
from wlc.farm.human_form import Doing
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
        tick: As of which they are.
        layouts: Of the tables.
        files: Gives, for as long as it is entered, the local files with all rows of a table as data files hold them;
            their content is compared with its checksum if the second argument says so.
    """

    tick: int
    layouts: Mapping[Name, Layout]
    files: Callable[[Name, bool], AbstractContextManager[list[Path]]]


@dataclass(frozen=True, slots=True)
class Scan:
    """A replica that is open for reading.

    Attributes:
        connection: Where the queries of `images` run; nothing in it belongs to the replica.
        state: What the replica remembers.
        layouts: Of its replicated tables.
        images: Gives, for as long as it is entered, a query that selects all rows of a table in storage types, under
            the names that columns have in data files.
    """

    connection: duckdb.DuckDBPyConnection
    state: ReplicaState
    layouts: Mapping[Name, Layout]
    images: Callable[[Name], AbstractContextManager[str]]

    def is_changed(self, name: Name) -> bool:
        """Say whether a table certainly holds something else than the replay left in it."""
        told = self.state.digests.get(name)
        if not isinstance(told, Digest) or name not in self.layouts:
            return False
        try:
            return self.digest(name) != told
        except UnsupportedError:
            return False

    def digest(self, name: Name) -> Digest:
        """Read all rows of a table and return their digest."""
        # Importing DuckDB takes longer than the rest of this package.
        from wlc.dialect.duckdb.digest_sql import sum_rows

        with self.images(name) as query:
            return sum_rows(self.connection, self.layouts[name], f"({query})")


class Bulk(Protocol):
    """Does large work outside of this process."""

    def folding(self, work: Path) -> FoldsElsewhere | None:
        """Return who folds changes for a database; None if this process does.

        Args:
            work: Existing folder for the files with net changes.
        """

    def executor(self, local: Executor, url: str, storage_options: Mapping[str, Any]) -> Executor:
        """Return who works on the files of a replica.

        Args:
            local: Does all work in this process; it is closed with the executor that is returned.
            url: Path or URL of the replica.
            storage_options: Options of the replica's file system.
        """


# The hint where a place holds nothing but the replica.
DELETE_PLACE = "Delete the place itself, then: wlc forget DB ID"


class Target(ABC):
    """A place that a replica of one kind is in, or can be made in.

    Attributes:
        noun: What such a place is, for messages.
        place: Where it is.
    """

    noun: ClassVar[str]

    def __init__(self, place: Place) -> None:
        self.place = place

    def __str__(self) -> str:
        return str(self.place)

    def is_settled(self) -> bool:
        """Say whether the last run ended in order, so that a round without news need not open the replica."""
        return False

    def expect_round(self) -> None:  # noqa: B027 - Most engines have nothing to prepare.
        """Prepare for being opened again soon, by the same process."""

    @abstractmethod
    def find_state(self) -> ReplicaState | None:
        """Read what a replica remembers; None if nothing is there, or an empty database.

        Raises:
            InvalidError: Something else is there.
            UnavailableError: It is in use or cannot be reached.
            CorruptError: The replica is damaged.
        """

    def read_state(self) -> ReplicaState:
        """Read what a replica remembers, without writing anything; raises as `find_state` does.

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
            InvalidError: Something is in the way.
            UnavailableError: Another process is building it.
            UnsupportedError: The snapshot cannot be loaded.
        """

    @abstractmethod
    def open(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenReplica:
        """Open the replica for writing; nobody else can until it is closed.

        Args:
            folders: Folders that data files will be read from.
            bulk: How to do large work; in this process if omitted.

        Raises:
            InvalidError: There is no replica.
            UnavailableError: Another process, or this one, has it open.
        """

    @abstractmethod
    def scanned(self, work: Path, storage_options: Mapping[str, Any] | None = None) -> AbstractContextManager[Scan]:
        """Open the replica to read its rows.

        Args:
            work: A folder for what does not fit into memory.
            storage_options: Options of the farm's file system, where the column types of a replica may be recorded.

        Raises:
            InvalidError: There is no replica.
            UnavailableError: It is in use.
            CorruptError: One of its files is damaged.
        """


class Facet(Target):
    """A target with an ability that only some kinds of replicas have.

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
            asked: The option, key or command, which needs the facet.
            hint: The way out, if leaving out an option or key is not one.

        Raises:
            FarmError: The target lacks the facet; the class is `error`.
        """
        if (found := cls.of(target)) is not None:
            return found
        known = f"wlr status {shlex.quote(str(target))}" if asked.startswith("wlr ") else f"Leave {asked} out."
        raise cls.error(f"{target} is {target.noun}: {asked} is for {cls.owners}", hint=hint or known, path=str(target))


class Rebuildable(Facet):
    """A replica can be made anew in its place."""

    owners = "DuckDB and Parquet replicas"
    error = UnsupportedError

    @abstractmethod
    def rebuild(self, new: NewReplica) -> None:
        """Make the replica that is there anew, all or nothing.

        Raises:
            InvalidError: Something of the replica's owner would be lost.
        """


class Guarded(Facet):
    """Others could write to its tables: a lock refuses that, and a quarantine keeps rows of accepted transactions."""

    owners = "DuckDB and PostgreSQL replicas"
    error = UnsupportedError


class Roles(Facet):
    """The database has roles, which can get privileges."""

    owners = "PostgreSQL replicas"


class DatabaseFile(Facet):
    """A replica can share its file with an owner, or swap the file for a second one, which never blocks readers."""

    owners = "DuckDB files"

    @abstractmethod
    def adopt(self) -> None:
        """Let the replica be made inside the database that is there, beside what it holds."""

    @abstractmethod
    def refuse_taken(self, statements: Iterable[Ddl], patterns: tuple[str, ...]) -> None:
        """Refuse to make a replica that would have something with the name of what is there already.

        Args:
            statements: Those that will make it; read only where something is there.
            patterns: Of the tables that it will have.

        Raises:
            InvalidError: A name is taken; nothing was written.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the replica, and nothing else, from the database that it was adopted into.

        Raises:
            InvalidError: There is no replica, or it is all that the file holds.
        """

    @abstractmethod
    def owned(self, statements: Iterable[Ddl]) -> list[str]:
        """Return the objects of the file that belong to its owner, for a message.

        Args:
            statements: Those that have made what is replicated, but for tables.
        """

    @abstractmethod
    def set_swaps(self, swaps: bool) -> None:
        """Let rounds go to a second file that then takes the replica's place, or end that."""

    @abstractmethod
    def wants_swaps(self, known: bool) -> bool:
        """Say whether rounds go to a second file from now on, given what the replica remembers of that."""

    @abstractmethod
    def open_to_roll(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenReplica:
        """Open the replica to apply the log from wherever what is opened stands, which may be behind the replica.

        Arguments and errors are those of `Target.open`.
        """

    @abstractmethod
    def begins_again(self) -> bool:
        """Give up what stood behind the replica when it was opened to roll; say whether there was such a thing."""


class Lake(Facet):
    """A replica keeps old ticks, in files that never change and that other programs can read."""

    owners = "Parquet replicas"

    @abstractmethod
    def check_keep(self, keep: str) -> None:
        """Check how much of the past should stay readable, as the user typed it.

        Raises:
            InvalidError: The text is invalid.
        """

    @abstractmethod
    def check_open_tables(self, kind: str) -> None:
        """Check which readers can read the tables, as the user typed it.

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
            ExpiredError: The tick was pruned, or passed over.
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
    """A replica that is open for writing, which nobody else can open meanwhile.

    Attributes:
        state: What it remembers, as last committed.
        limits: How much a step may hold.
    """

    state: ReplicaState
    limits: Limits

    @property
    def parents(self) -> Mapping[Name, Collection[Name]]:
        """For each table those that its foreign keys refer to; empty where a step checks no foreign keys."""
        return {}

    @abstractmethod
    def holds(self, table: Name) -> bool:
        """Say whether a table of the master is replicated here; the case of letters does not matter."""

    @abstractmethod
    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        """Apply a step and the position behind it in one transaction.

        Raises:
            StepError: The step cannot be applied; the replica was not changed.
            UnavailableError: The machine failed, not the step.
        """

    def obstacle(self, step: Step, error: StepError) -> Obstacle | None:  # noqa: ARG002
        """Say what in the replica itself kept a step of one transaction from being applied; None if nothing did."""
        return None

    @abstractmethod
    def remember(self, state: ReplicaState) -> None:
        """Store a new state.

        Raises:
            UnsupportedError: An engine without a guard cannot be unlocked.
        """

    def quarantine(self, state: ReplicaState, kept: Sequence[Quarantined]) -> None:  # noqa: ARG002
        """Store a new state, and in the same transaction what an accepted transaction would have done.

        Args:
            state: The new state.
            kept: Nothing in a replica that is not `Guarded`. Files lie in the folders that the replica was opened with.
        """
        self.remember(state)

    def quarantined(self, work: Path) -> list[Quarantined]:  # noqa: ARG002
        """Return what is in quarantine; files are written to a folder."""
        return []

    def move(self, state: ReplicaState) -> None:
        """Store a state at another position at which the replica holds the same rows, in another log."""
        self.remember(state)

    @abstractmethod
    def close(self) -> None:
        """Let others open the replica."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_WATCH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class NewReplica:
    """What a new replica is made of.

    Attributes:
        state: What it remembers from the start.
        manifest: The snapshot to load; None for an empty replica.
        fetch: Returns a local file with the content of one of the snapshot's files.
        release: Takes such a file back.
        folders: Folders that data files will be read from.
        progress: Called with rows done, rows in all, and what is being done.
    """

    state: ReplicaState
    manifest: Manifest | None
    fetch: Callable[[DataFile], Path]
    release: Callable[[Path], None]
    folders: Sequence[Path] = ()
    progress: Callable[[int, int, str], None] | None = None

    @property
    def tables(self) -> list[SnapshotTable]:
        """The snapshot's tables that the replica will have."""
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
            load_table: Loads one table from local files and returns how many rows the table has then.
            loading: The connection that loads it, which says how far it is; None for another engine.

        Raises:
            CorruptError: A table has other columns, or another number of rows, than the manifest says.
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
        """Tell now and then which share of the present statement is done, from 0 to 1."""
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
        hint: What to do if the part does not fit the engine.

    Raises:
        UnavailableError: The machine has too little memory.
        UnsupportedError: The part does not fit the engine.
        CorruptError: The part did something else than it says.
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
