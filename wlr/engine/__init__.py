"""Targets that a replay can write to: one adapter for each kind behind one contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from wlc.model import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

    from wlc.model import DataFile, Manifest, Name, TableFile
    from wlr.plan import Step

BEAT_S = 300.0
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


class Target(Protocol):
    """A replica that is open for writing, by nobody else meanwhile."""

    state: State

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


def open_target(into: Path, folders: Sequence[Path] = ()) -> Target:
    """Open a replica for writing.

    Args:
        into: Where it is.
        folders: Folders that data files will be read from.

    Raises:
        InvalidError: It is no replica.
        UnavailableError: Another process, or this one, has it open.
    """
    from wlr.engine.duckdb.target import open_target as open_duckdb

    return open_duckdb(into, folders)


def find_state(into: Path) -> State | None:
    """Read what a replica remembers, None if nothing or an empty database is there; raises as `open_target` does."""
    from wlr.engine.duckdb.target import find_state as find_duckdb

    return find_duckdb(into)


def read_state(into: Path) -> State:
    """Read what a replica remembers, without writing anything; raises as `open_target` does."""
    from wlr.engine.duckdb.target import read_state as read_duckdb

    return read_duckdb(into)


def build(
    into: Path,
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
    from wlr.engine.duckdb.build import build as build_duckdb

    build_duckdb(into, state, manifest, fetch, release, folders=folders, progress=progress)


def read_master(source: Path) -> dict[str, str]:
    """Read what a master database says of itself: where its farm is and its name there; empty if it is no master.

    Raises:
        InvalidError: It is no database.
        UnavailableError: It is in use.
    """
    from wlr.engine.duckdb.target import read_master as read_duckdb

    return read_duckdb(source)
