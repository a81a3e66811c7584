"""Executors: who does the work on files, this process or Spark's tasks, with the same kernel."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol

from wlc.datafiles import hash_file
from wlc.errors import CorruptError
from wlc.farm import describe_file
from wlc.store import MissingError
from wlr.engine import fit
from wlr.engine.duckdb.changes import sources
from wlr.engine.duckdb.connection import applying
from wlr.engine.parquet import kernel
from wlr.engine.parquet.alter import alter
from wlr.engine.parquet.connection import connect
from wlr.engine.parquet.folder import table_prefix
from wlr.engine.parquet.kernel import Merged, Piece
from wlr.engine.parquet.version import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wlc.model import Name, TableFile
    from wlc.store import Store
    from wlr.engine.parquet.alter import Alteration
    from wlr.fold import TargetTable
    from wlr.plan import TableChange


@dataclass(frozen=True, slots=True)
class Job:
    """One table's part of a step: the files it has, and what changes.

    Attributes:
        tick: That of the step, for the names of new files.
    """

    table: TargetTable
    change: TableChange
    parts: tuple[Part, ...]
    tick: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table's files after a job, and what of `Merged` adds up for the whole table."""

    parts: tuple[Part, ...]
    removed: int
    added: int
    total: int


class Executor(Protocol):
    """Does the work of steps."""

    def merge(self, job: Job, fetch: Callable[[TableFile], Path]) -> Outcome:
        """Apply the net change of a table.

        Raises:
            StepError: It does not fit the rows that are there.
        """

    def split(self, table: TargetTable, files: Sequence[Path], tick: int) -> tuple[Part, ...]:
        """Cut all rows of a table into new files."""

    def sort(self, table: TargetTable, parts: Sequence[Part], tick: int) -> tuple[Part, ...]:
        """Cut all rows of a table into files anew, because its key is another one."""

    def alter(self, alteration: Alteration, parts: Sequence[Part], tick: int) -> tuple[Part, ...]:
        """Rewrite all files of a table after its columns changed."""

    def close(self) -> None:
        """Give up what the executor holds."""


# Files that are merged at the same time: one alone leaves cores idle while it begins and ends.
_AT_ONCE = 2


class LocalExecutor:
    """Works in this process.

    Args:
        store: Where the replica is.
        work: Folder for what is under way, on the same disk if the replica is on one.

    Attributes:
        published: Paths of all files that it has written.
    """

    def __init__(self, store: Store, work: Path) -> None:
        self.published: list[str] = []
        self._store = store
        self._work = work
        work.mkdir(parents=True, exist_ok=True)
        self._connection = connect(work)

    def merge(self, job: Job, fetch: Callable[[TableFile], Path]) -> Outcome:
        with self._folder() as folder, applying(folder):
            found = sources(job.change, lambda read: str(fetch(read.file)))
            lows = [part.low for part in job.parts]
            routed = kernel.route(self._connection, job.table, found, lows, folder / "changes")
            if job.table.key:
                return self._merge_parts(job, routed, folder)
            return self._merge_bag(job, routed.get(0, []), folder)

    def _merge_bag(self, job: Job, changes: Sequence[Path], folder: Path) -> Outcome:
        connection, table = self._connection, job.table
        net = kernel.net_of_bag(connection, table, changes, folder)
        shared: dict[int, list[Path]] = {}
        if net.removed:
            found = []
            for number, part in enumerate(job.parts):
                found.append(folder / f"found {number}.parquet")
                with fetched(self._store, part) as base:
                    kernel.find_copies(connection, table, base.path, net.removed_file, found[-1])
            shares = kernel.share_out(connection, table, net, found, folder) if found else {}
            shared = {number: [file] for number, file in shares.items()}
        if net.added:
            shared.setdefault(place_of_added(job.parts), []).append(net.added_file)
        outcome = self._merge_parts(job, shared, folder)
        if outcome.removed != net.removed:
            raise fit.missing(table.name, net.removed - outcome.removed, net.removed)
        return outcome

    def _merge_parts(self, job: Job, changes: dict[int, list[Path]], folder: Path) -> Outcome:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = pool.map(lambda number: self._merge_part(job, number, changes[number], folder), sorted(changes))
            return assemble(job.parts, dict(zip(sorted(changes), done, strict=True)))

    def _merge_part(self, job: Job, number: int, changes: list[Path], folder: Path) -> tuple[Merged, tuple[Part, ...]]:
        part = job.parts[number] if number < len(job.parts) else None
        into = folder / f"part {number}"
        into.mkdir()
        with self._connection.cursor() as connection, fetched(self._store, part) if part else nullcontext() as base:
            merged = kernel.merge(connection, job.table, base, changes, into)
        return merged, self._publish(job.table.name, job.tick, merged.pieces)

    def split(self, table: TargetTable, files: Sequence[Path], tick: int) -> tuple[Part, ...]:
        if not files:
            return ()
        with self._folder() as folder, applying(folder):
            return self._publish(table.name, tick, kernel.split(self._connection, table, files, folder))

    def sort(self, table: TargetTable, parts: Sequence[Part], tick: int) -> tuple[Part, ...]:
        with ExitStack() as stack:
            files = [stack.enter_context(fetched(self._store, part)) for part in parts]
            return self.split(table, [file.path for file in files], tick)

    def alter(self, alteration: Alteration, parts: Sequence[Part], tick: int) -> tuple[Part, ...]:
        return tuple(part for old in parts for part in self._alter(alteration, old, tick))

    def _alter(self, alteration: Alteration, part: Part, tick: int) -> tuple[Part, ...]:
        with self._folder() as folder, fetched(self._store, part) as base:
            return self._publish(alteration.name, tick, [alter(alteration, base, folder)])

    def _publish(self, table: Name, tick: int, pieces: Iterable[Piece]) -> tuple[Part, ...]:
        parts = publish(self._store, table, tick, pieces)
        self.published += [part.file.path for part in parts]
        return parts

    def close(self) -> None:
        self._connection.close()
        shutil.rmtree(self._work, ignore_errors=True)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._work, ignore_cleanup_errors=True) as folder:
            yield Path(folder)


# What both executors do with files -----------------------------------------------------------------------------------


@contextmanager
def fetched(store: Store, part: Part) -> Iterator[Piece]:
    """Have a part as a verified local file.

    Raises:
        CorruptError: It is missing, or not what was written.
    """
    where = f"{store.url}/{part.file.path}"
    try:
        file = store.fetch(part.file.path)
    except MissingError as error:
        raise CorruptError(f"{where} is missing", hint="Make the replica anew.", path=where) from error
    try:
        if file.stat().st_size != part.file.bytes or hash_file(file) != part.file.sha256:
            raise CorruptError(f"{where} is not as it was written", hint="Make the replica anew.", path=where)
        yield Piece(file, part.file.rows, part.low, part.high)
    finally:
        store.release(file)


def publish(store: Store, table: Name, tick: int, pieces: Iterable[Piece]) -> tuple[Part, ...]:
    """Put new files into the replica under names that nobody else chooses; they count once a manifest names them."""
    prefix, stamp = table_prefix(table, tick), token_hex(6)
    parts = []
    for number, piece in enumerate(pieces):
        path = f"{prefix}{stamp}-{number}.parquet"
        part = Part(describe_file(piece.path, path, piece.rows), piece.low, piece.high)
        store.create(path, piece.path)
        parts.append(part)
    return tuple(parts)


def place_of_added(parts: Sequence[Part]) -> int:
    """Say which file of a bag gets added rows: the last one while it is small, else a new one."""
    has_room = bool(parts) and parts[-1].file.rows < kernel.ROWS_PER_FILE // 2
    return len(parts) - 1 if has_room else len(parts)


def assemble(parts: Sequence[Part], results: dict[int, tuple[Merged, tuple[Part, ...]]]) -> Outcome:
    """Put a table together again from files that stay and those that came in place of others."""
    together: list[Part] = []
    for number in range(max([len(parts), *(number + 1 for number in results)])):
        merged, new = results.get(number, (None, ()))
        if number < len(parts) and (merged is None or merged.keeps_base):
            together.append(parts[number])
        together += new
    removed, added, total = (
        sum(getattr(merged, what) for merged, _ in results.values()) for what in ("removed", "added", "total")
    )
    return Outcome(tuple(together), removed, added, total)
