"""A copy of the database in which a round is tried: what it does there is exactly what it would do."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.capture.duckdb import packed
from wlc.capture.duckdb.shared import close_shared, open_shared
from wlc.dialect.duckdb.opening import wal_of
from wlc.farm.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.capture.duckdb.shared import Shared

# DuckDB writes the headers of a file anew with every checkpoint.
_HEADERS_BYTES = 3 * 4096
# Nobody commits while the file is copied, so that a second checkpoint has nothing to do.
_COPIES = 5


@contextmanager
def copied(shared: Shared) -> Iterator[Shared]:
    """Provide a copy of an open database, which is deleted afterwards.

    The copy has the name of the file, since statements may name their database, and its folder is beside it: that file
    system has room for files of this size. If the process dies, the next one that opens the file removes it.

    Raises:
        UnavailableError: The file system has no room for a second file, or checkpoints keep coming.
    """
    file = shared.file
    with tempfile.TemporaryDirectory(prefix=packed.prefix(file), dir=file.parent) as folder:
        copy = Path(folder) / file.name
        with shared.publish_lock, shared.commit_lock:
            _refuse_large(file)
            if not any(_copy(shared, copy) for _ in range(_COPIES)):
                raise UnavailableError(
                    f"{file} was checkpointed {_COPIES} times while it was copied for a dry run",
                    hint="run the command again",
                    path=str(file),
                )
        opened = open_shared(str(copy))
        try:
            opened.keep_options(shared.options)
            # It is the master of this round, and messages name the file that the user knows.
            opened.settle_here()
            opened.doubt = shared.doubt
            opened.path = shared.path
            yield opened
        finally:
            close_shared(opened)


def _refuse_large(file: Path) -> None:
    needed = file.stat().st_size + (wal.stat().st_size if (wal := wal_of(file)).exists() else 0)
    if needed > (free := shutil.disk_usage(file.parent).free):
        raise UnavailableError(
            f"{file} has {needed} bytes, and {file.parent} has {free} bytes free: a dry run works with a copy",
            hint=f"free disk space; wlc sites {shlex.quote(str(file))} shows without a copy who has published what",
            path=str(file),
        )


def _copy(shared: Shared, copy: Path) -> bool:
    """Copy the file and what is not in it yet, and say whether no checkpoint came between; nobody commits meanwhile.

    The log beside it may be closed again: whoever opens a database locks the file first.
    """
    if shared.opened is None:
        shared.opened = shared.file.open("rb")
    source, wal = shared.opened, wal_of(shared.file)
    headers = _headers(shared)
    source.seek(0)
    with copy.open("wb") as target:
        shutil.copyfileobj(source, target)
    wal_of(copy).unlink(missing_ok=True)
    if wal.exists():
        shutil.copyfile(wal, wal_of(copy))
    return _headers(shared) == headers


def _headers(shared: Shared) -> bytes:
    assert shared.opened is not None
    shared.opened.seek(0)
    return shared.opened.read(_HEADERS_BYTES)
