"""Prefetching of data files and log files from a remote store."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, TypeVar

from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, TableFile

# Requests at once. A log file with many transactions is large, so that fewer of those are kept in memory.
_AT_ONCE = 16
_TRANSACTIONS_AHEAD = 20_000

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class Fetcher:
    """Fetches data files, each once, until they are released.

    Args:
        database: The farm database.
    """

    def __init__(self, database: FarmDatabase) -> None:
        self._database = database
        self._local: dict[str, Path] = {}
        self._coming: dict[str, Future[Path]] = {}
        self._expected: dict[str, TableFile] = {}
        self._pool: ThreadPoolExecutor | None = None

    def expect(self, files: Iterable[TableFile]) -> None:
        """Note the files that will be needed next; fetching starts when the first of them is needed."""
        if self._database.logs.is_remote:
            self._expected = {file.file.path: file for file in files}

    def put(self, local: dict[str, Path]) -> None:
        """Use local files in place of the farm's files with these paths."""
        self._local.update(local)

    def forget(self, paths: Iterable[str]) -> None:
        """Forget local files that `put` added."""
        for path in paths:
            self._local.pop(path, None)

    def fetch(self, file: TableFile) -> Path:
        """Return a local copy of a file, verified."""
        path = file.file.path
        if path not in self._local:
            self._begin(file)
            coming = self._coming.pop(path, None)
            self._local[path] = coming.result() if coming else self._database.fetch(file)
        return self._local[path]

    def _begin(self, wanted: TableFile) -> None:
        """Begin to fetch the expected files if the wanted file is one of them."""
        if wanted.file.path not in self._expected:
            return
        self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="farm fetch")
        for path, file in self._expected.items():
            if path not in self._local:
                self._coming[path] = self._pool.submit(self._database.fetch, file)
        self._expected = {}

    def release(self, kept: frozenset[str] | set[str]) -> None:
        """Release the local copies of all files but these."""
        self._expected = {}
        for path, coming in list(self._coming.items()):
            del self._coming[path]
            if not coming.cancel():
                with suppress(FarmError):
                    self._local[path] = coming.result()
        for path in set(self._local) - kept:
            self._database.release(self._local.pop(path))

    def close(self) -> None:
        """Release everything."""
        self.release(set())
        if self._pool:
            self._pool.shutdown()
            self._pool = None


def read_ahead(
    numbers: Sequence[int], read: Callable[[int], tuple[Batch, str]], *, is_remote: bool
) -> Iterator[tuple[Batch, str]]:
    """Read batches in order; from a remote store several at once, fewer if they are large."""
    if not is_remote:
        yield from map(read, numbers)
        return
    most = 1
    with (
        ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="farm log") as pool,
        closing(in_order(pool, read, numbers, lambda: most)) as batches,
    ):
        for batch, chain in batches:
            most = max(1, min(_AT_ONCE, 2 * most, _TRANSACTIONS_AHEAD // max(len(batch.transactions), 1)))
            yield batch, chain


def in_order(
    pool: Executor, call: Callable[[_Given], _Found], given: Iterable[_Given], most: Callable[[], int]
) -> Generator[_Found]:
    """Call a function for several arguments at once, and give the results in the order of the arguments.

    Args:
        pool: Pool that runs the calls.
        call: The function.
        given: Its arguments.
        most: Says how many calls may be ahead of the result that is given next.
    """
    waiting: deque[Future[_Found]] = deque()
    rest = iter(given)
    try:
        while True:
            waiting.extend(pool.submit(call, value) for value in islice(rest, max(0, most() - len(waiting))))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for coming in waiting:
            coming.cancel()


def one_ahead(pool: Executor, items: Iterator[_Found]) -> Generator[_Found]:
    """Yield the items of an iterator, none of which is None, while a pool of one thread fetches the next one."""
    with closing(in_order(pool, lambda _: next(items, None), count(), lambda: 2)) as found:
        yield from takewhile(lambda item: item is not None, found)
