"""Targets that a replay can write to: one adapter for each kind behind one contract."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from wlc import fields
from wlc.clock import format_time
from wlc.errors import InvalidError
from wlc.model import Position
from wlr.engine.place import Place, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

    from wlc.farm import FarmDatabase
    from wlc.model import DataFile, Digest, Manifest, Name, TableFile
    from wlr.engine.parquet.folder import Folder
    from wlr.engine.scan import Scan
    from wlr.plan import Limits, Step

__all__ = [
    "BEAT_S",
    "ENGINES",
    "MEMORY_VARIABLE",
    "SPARK_ROWS",
    "SPARK_VARIABLE",
    "START",
    "Bulk",
    "Failure",
    "Place",
    "State",
    "StepError",
    "Target",
    "as_failure",
    "build",
    "failure_json",
    "find_state",
    "locate",
    "open_target",
    "read_master",
    "read_state",
    "scanned",
    "spark_rows",
]

BEAT_S = 300.0
ENGINES = ("auto", "local", "spark")
# One process of two cores rewrites so many rows in about half a minute; a Spark session takes ten seconds to start.
SPARK_ROWS = 100_000_000
SPARK_VARIABLE = "WLR_SPARK_ROWS"
# Environment variable with the most memory an engine may use, such as "2GB".
MEMORY_VARIABLE = "WLR_MEMORY_LIMIT"
START = Position("", 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """The transaction that could not be applied, and why; `table` and `key` where they are known."""

    tick: int
    table: str | None
    key: str | None
    cause: str
    at: datetime

    def __str__(self) -> str:
        where = f", table {self.table}" if self.table else ""
        return f"transaction {self.tick}{where}{f', {self.key}' if self.key else ''}: {self.cause}"


def failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """Write a failure."""
    return None if failure is None else {**asdict(failure), "at": format_time(failure.at)}


def as_failure(value: object) -> Failure | None:
    """Read what `failure_json` wrote.

    Raises:
        ValueError, KeyError: It is something else.
    """
    if value is None:
        return None
    content = fields.as_object(value)
    table, key = (None if content[name] is None else fields.as_text(content[name]) for name in ("table", "key"))
    cause, at = fields.as_text(content["cause"]), fields.as_time(content["at"])
    return Failure(fields.as_tick(content["tick"]), table, key, cause, at)


@dataclass(frozen=True, slots=True)
class State:
    """What a replica remembers of itself, stored in the target.

    Attributes:
        id: Random id under which it registers.
        master: URL of the database's folder in the farm.
        catalog: Name that DDL text gives the database.
        tables: Patterns of the tables it replicates; empty for all.
        position: How far it has come; `clock` is the time of its last transaction.
        batch_last: Last tick of the batch of that position.
        accepted: Ticks of transactions that were, or are to be, skipped.
        is_unlocked: Its owner allows direct writes to replicated tables.
        keep: How many old ticks of a Parquet replica stay readable, or for how long; empty for all.
        digests: What its tables hold; see `wlr.engine.tally`.
        verify: Keys of which one has to have signed what is read from the farm, as text; empty if none has.
    """

    id: str
    master: str
    catalog: str
    tables: tuple[str, ...] = ()
    position: Position = START
    batch_last: int = 0
    clock: datetime | None = None
    beat_s: float = BEAT_S
    failure: Failure | None = None
    accepted: frozenset[int] = field(default_factory=frozenset)
    is_unlocked: bool = False
    keep: str = ""
    digests: Mapping[Name, Digest | None] = field(default_factory=dict)
    verify: str = ""


class StepError(Exception):
    """A step could not be applied; nothing of it was.

    Args:
        cause: What the engine said, or what does not fit.
        table: The table at fault if known; `key` the row.
        is_shortage: The machine had too little memory: fewer transactions at once may do.
        is_reference: A foreign key was broken, perhaps only because transactions were folded.
    """

    def __init__(
        self,
        cause: str,
        *,
        table: str | None = None,
        key: str | None = None,
        is_shortage: bool = False,
        is_reference: bool = False,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.table = table
        self.key = key
        self.is_shortage = is_shortage
        self.is_reference = is_reference


@dataclass(frozen=True, slots=True)
class Bulk:
    """How to do large work.

    Attributes:
        engine: "local", "spark", or "auto", which takes Spark from `spark_rows` on.
        database: The farm's database; tasks of Spark read its files themselves.
        spark_master: Spark master to start a session at; that of the environment if omitted.
        spark_rows: Row images in a step, and rows in the files they may touch, from which on "auto" takes Spark.
    """

    engine: str
    database: FarmDatabase
    spark_master: str | None = None
    spark_rows: int = SPARK_ROWS


class Target(Protocol):
    """A replica that is open for writing, by nobody else meanwhile."""

    state: State

    @property
    def limits(self) -> Limits:
        """How much a step may hold."""

    @property
    def parents(self) -> Mapping[Name, Collection[Name]]:
        """For each table those that its foreign keys refer to."""

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        """Apply a step and the position behind it in one transaction.

        Raises:
            StepError: It cannot be applied as it is; nothing was.
            UnavailableError: The machine failed, not the step.
        """

    def update(self, **values: Any) -> None:
        """Store new values of fields of the state."""

    def __enter__(self) -> Target: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def spark_rows() -> int:
    """Return from how many rows of work on "auto" takes Spark; the environment may say.

    Raises:
        InvalidError: It says something that is no number.
    """
    text = os.environ.get(SPARK_VARIABLE, str(SPARK_ROWS))
    if not text.isdecimal():
        raise InvalidError(f"{SPARK_VARIABLE}={text} is no number of rows", hint=f"export {SPARK_VARIABLE}=100000000")
    return int(text)


def open_target(place: Place, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> Target:
    """Open a replica for writing.

    Args:
        place: Where it is.
        folders: Folders that data files will be read from.
        bulk: How to do large work; in this process if omitted.

    Raises:
        InvalidError: It is no replica.
        UnavailableError: Another process, or this one, has it open.
    """
    if place.is_parquet:
        from wlr.engine.parquet.target import open_target as open_parquet

        return open_parquet(_folder(place), bulk)
    if place.is_postgres:
        from wlr.engine.postgres.target import open_target as open_postgres

        return open_postgres(place, folders, bulk)
    from wlr.engine.duckdb.target import open_target as open_duckdb

    return open_duckdb(place.path, folders, bulk)


def find_state(place: Place) -> State | None:
    """Read what a replica remembers, None if nothing or an empty database is there; raises as `open_target` does."""
    if place.is_parquet:
        from wlr.engine.parquet.target import find_state as find_parquet

        return find_parquet(_folder(place))
    if place.is_postgres:
        from wlr.engine.postgres.target import find_state as find_postgres

        return find_postgres(place)
    from wlr.engine.duckdb.target import find_state as find_duckdb

    return find_duckdb(place.path)


def read_state(place: Place) -> State:
    """Read what a replica remembers, without writing anything; raises as `open_target` does."""
    if place.is_parquet:
        from wlr.engine.parquet.target import read_state as read_parquet

        return read_parquet(_folder(place))
    if place.is_postgres:
        from wlr.engine.postgres.target import read_state as read_postgres

        return read_postgres(place)
    from wlr.engine.duckdb.target import read_state as read_duckdb

    return read_duckdb(place.path)


def build(
    place: Place,
    state: State,
    manifest: Manifest | None,
    fetch: Callable[[DataFile], Path],
    release: Callable[[Path], None],
    *,
    folders: Sequence[Path] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Make a new replica from a snapshot, or an empty one; there is none until all of it is there.

    Raises:
        InvalidError: Something is in the way.
        UnavailableError: Another process is building it.
        UnsupportedError: The snapshot cannot be loaded.
    """
    if place.is_parquet:
        from wlr.engine.parquet.build import Source
        from wlr.engine.parquet.build import build as build_parquet

        build_parquet(_folder(place), state, manifest, Source(fetch, release), progress)
        return
    if place.is_postgres:
        from wlr.engine.postgres.build import build as build_postgres

        build_postgres(place, state, manifest, fetch, release, folders=folders, progress=progress)
        return
    from wlr.engine.duckdb.build import build as build_duckdb

    build_duckdb(place.path, state, manifest, fetch, release, folders=folders, progress=progress)


def _folder(place: Place) -> Folder:
    from wlr.engine.parquet.folder import Folder

    return Folder(place.url, place.storage_options)


@contextmanager
def scanned(place: Place, work: Path, storage_options: Mapping[str, Any] | None = None) -> Iterator[Scan]:
    """Open a replica to read its rows.

    Args:
        place: Where it is.
        work: A folder for what does not fit into memory.
        storage_options: Options of the farm's file system, which knows more of a PostgreSQL replica's types.

    Raises:
        InvalidError: It is no replica.
        UnavailableError: It is in use.
        CorruptError: One of its files is damaged.
    """
    if place.is_parquet:
        from wlr.engine.parquet.scan import scanned as scan_parquet

        scan = scan_parquet(_folder(place), work)
    elif place.is_postgres:
        from wlr.engine.postgres.scan import scanned as scan_postgres

        scan = scan_postgres(place, work, storage_options)
    else:
        from wlr.engine.duckdb.scan import scanned as scan_duckdb

        scan = scan_duckdb(place.path, work)
    with scan as opened:
        yield opened


def read_master(source: Path) -> dict[str, str]:
    """Read what a master database says of itself: where its farm is and its name there; empty if it is no master.

    Raises:
        InvalidError: It is no database.
        UnavailableError: It is in use.
    """
    from wlr.engine.duckdb.target import read_master as read_duckdb

    return read_duckdb(source)
