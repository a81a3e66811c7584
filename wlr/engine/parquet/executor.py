"""The executor that runs all work on files in this process."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from wlr.engine.alteration import alter
from wlr.engine.calculator import applying, connect, is_broken
from wlr.engine.table_files import fetched, publish
from wlr.replay.fold import file_rewrite, unfit_changes
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.fold.files import Alteration, Executor, FilePart, MergedFiles, MergeJob, assemble
from wlr.replay.fold.net_changes import sources
from wlr.replay.plan.failure import StepError, naming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import duckdb

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import Name, TableFile
    from wlc.farm.store import Store
    from wlr.replay.fold.file_rewrite import Merged, Piece


# Number of concurrent merges: a single merge leaves cores idle at its start and end.
_AT_ONCE = 2


class LocalExecutor(Executor):
    """Works in this process.

    Args:
        store: The replica's store.
        work: Folder for unfinished files, on the replica's disk if it has one.

    Attributes:
        published: Paths of all files that it has written.
    """

    def __init__(self, store: Store, work: Path) -> None:
        self.published: list[str] = []
        self._store = store
        self._work = work
        work.mkdir(parents=True, exist_ok=True)
        self._opened: duckdb.DuckDBPyConnection | None = None

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        # Opening takes a tenth of a run without new batches.
        if self._opened is None:
            self._opened = connect(self._work)
        return self._opened

    def _disconnect(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def merge(self, jobs: Sequence[MergeJob], fetch: Callable[[TableFile], Path]) -> list[MergedFiles]:
        return [self._merge(job, fetch) for job in jobs]

    def _merge(self, job: MergeJob, fetch: Callable[[TableFile], Path]) -> MergedFiles:
        with naming(job.table.name), self._folder() as folder, applying(folder):
            found = sources(job.change, lambda read: str(fetch(read.file)))
            refuse_other_images(self._connection, job.change, found)
            lows = [part.low for part in job.parts]
            routed = file_rewrite.route(self._connection, job.table, found, lows, folder / "changes")
            if job.table.key:
                return self._merge_parts(job, routed, folder)
            return self._merge_bag(job, routed.get(0, []), folder)

    def _merge_bag(self, job: MergeJob, changes: Sequence[Path], folder: Path) -> MergedFiles:
        connection, table = self._connection, job.table
        net = file_rewrite.net_of_bag(connection, table, changes, folder)
        shared: dict[int, list[Path]] = {}
        if net.removed:
            found = []
            for number, part in enumerate(job.parts):
                found.append(folder / f"found {number}.parquet")
                with fetched(self._store, part) as base:
                    file_rewrite.find_copies(connection, table, base.path, net.removed_file, found[-1])
            shares = file_rewrite.share_out(connection, table, net, found, folder) if found else {}
            shared = {number: [file] for number, file in shares.items()}
        if net.added:
            shared.setdefault(place_of_added(job.parts), []).append(net.added_file)
        outcome = self._merge_parts(job, shared, folder)
        if outcome.removed != net.removed:
            raise unfit_changes.missing(table.name, net.removed - outcome.removed, net.removed)
        return outcome

    def _merge_parts(self, job: MergeJob, changes: dict[int, list[Path]], folder: Path) -> MergedFiles:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = pool.map(lambda number: self._merge_part(job, number, changes[number], folder), sorted(changes))
            return assemble(job.parts, dict(zip(sorted(changes), done, strict=True)))

    def _merge_part(
        self, job: MergeJob, number: int, changes: list[Path], folder: Path
    ) -> tuple[Merged, tuple[FilePart, ...]]:
        part = job.parts[number] if number < len(job.parts) else None
        into = folder / f"part {number}"
        into.mkdir()
        with self._connection.cursor() as connection, fetched(self._store, part) if part else nullcontext() as base:
            merged = file_rewrite.merge(connection, job.table, base, changes, into)
        return merged, self._publish(job.table.name, job.tick, merged.pieces)

    def split(self, table: TargetTable, files: Sequence[Path], tick: int) -> tuple[FilePart, ...]:
        if not files:
            return ()
        with self._folder() as folder, applying(folder):
            return self._publish(table.name, tick, file_rewrite.split(self._connection, table, files, folder))

    def sort(self, table: TargetTable, parts: Sequence[FilePart], tick: int) -> tuple[FilePart, ...]:
        with ExitStack() as stack:
            files = [stack.enter_context(fetched(self._store, part)) for part in parts]
            return self.split(table, [file.path for file in files], tick)

    def alter(self, alteration: Alteration, parts: Sequence[FilePart], tick: int) -> tuple[FilePart, ...]:
        return tuple(part for old in parts for part in self._alter(alteration, old, tick))

    def _alter(self, alteration: Alteration, part: FilePart, tick: int) -> tuple[FilePart, ...]:
        with self._folder() as folder, fetched(self._store, part) as base:
            return self._publish(alteration.name, tick, [alter(alteration, base, folder)])

    def _publish(self, table: Name, tick: int, pieces: Iterable[Piece]) -> tuple[FilePart, ...]:
        parts = publish(self._store, table, tick, pieces)
        self.published += [part.file.path for part in parts]
        return parts

    def close(self) -> None:
        self._disconnect()
        shutil.rmtree(self._work, ignore_errors=True)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._work, ignore_cleanup_errors=True) as folder:
            try:
                yield Path(folder)
            except StepError:
                if is_broken(self._connection):
                    self._disconnect()
                raise


def place_of_added(parts: Sequence[FilePart]) -> int:
    """Choose the file of a bag that gets added rows: the last one while it is small, else a new one."""
    has_room = bool(parts) and parts[-1].file.rows < file_rewrite.ROWS_PER_FILE // 2
    return len(parts) - 1 if has_room else len(parts)
