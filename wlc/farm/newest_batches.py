"""The newest batches of a log, found without listing the older ones."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from wlc.farm import paths
from wlc.farm.errors import CorruptError, GapError
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    from wlc.farm.model import Batch, Config
    from wlc.farm.store import Store


class Log(Protocol):
    """The parts of a farm database that are needed to find its newest batches."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def logs(self) -> Store: ...
    def config(self) -> Config: ...
    def batch_numbers(self, after: int = 0) -> list[int]: ...
    def read_batch(self, number: int) -> tuple[Batch, str]: ...


def numbers_from(database: Log, number: int) -> list[int]:
    """Return the numbers of the published batches from a number on, rising; can be empty.

    A store that can start a listing anywhere needs one request. A directory is always listed whole, so there the newest
    number is found from `wlc.config` by probing for the numbers after it. A batch missing in between counts as
    published; the reader that opens it reports the gap.
    """
    if database.logs.seeks or number < 1:
        return database.batch_numbers(after=max(number - 1, 0))
    try:
        newest = max(database.config().batches - 1, number)
    except (MissingError, CorruptError):
        return database.batch_numbers(after=number - 1)
    while _exists(database, newest + 1):
        newest += 1
    for first in (number, number + 1):
        if _exists(database, first) and _exists(database, newest):
            return list(range(first, newest + 1))
    return database.batch_numbers(after=number - 1)


def numbers_after(database: Log, missing: int) -> list[int]:
    """Return the numbers of published batches after a missing one; empty unless the log has a gap there."""
    if not database.logs.seeks:
        try:
            if database.config().batches <= missing + 1 and not _exists(database, missing + 1):
                return []
        except (MissingError, CorruptError):
            pass
    return database.batch_numbers(after=missing)


def read_newest(database: Log) -> tuple[Batch, str] | None:
    """Return the newest batch and its chain hash, None if nothing was published.

    Where listings lag, the newest batch is found by its name: a publisher that continued after an older one could not
    publish.
    """
    newest = max(database.batch_numbers(), default=0)
    with suppress(MissingError, CorruptError):
        named = database.config().batches - 1
        if named > newest and _exists(database, named):
            newest = named
    while _exists(database, newest + 1):
        newest += 1
    return database.read_batch(newest) if newest else None


def read_log_file(database: Log, number: int) -> bytes:
    """Return the bytes of a log file.

    Raises:
        GapError: It is missing while later ones exist.
        MissingError: Neither it nor a later one exists.
    """
    path = paths.log_path(database.name, number)
    where = f"{database.logs.url}/{path}"
    try:
        return database.logs.read(path)
    except MissingError as error:
        later = numbers_after(database, number)
        if not later:
            raise MissingError(f"batch {number} of {database.name} is not published", path=where) from error
    try:
        # It may have been published together with the later one, after the first read.
        return database.logs.read(path)
    except MissingError as error:
        message = f"batch {number} of {database.name} is missing, batch {later[0]} is there"
        hint = (
            f"Put it back, or see which ticks can be reached without it: wlc retention {shlex.quote(database.url)};"
            " wlr replicate --rebase makes a replica anew"
        )
        raise GapError(message, hint=hint, path=where) from error


def _exists(database: Log, number: int) -> bool:
    return database.logs.exists(paths.log_path(database.name, number))
