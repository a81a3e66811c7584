"""What a new replica needs of a disk that is full."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from wlc.farm.errors import UnavailableError
from wlr.plan.failure import DISK_FULL

if TYPE_CHECKING:
    from wlr.engine.contract import NewReplica, Target


def with_space(error: UnavailableError, into: Target, new: NewReplica) -> UnavailableError:
    """Add to the error of a full disk how much a new replica needs, and how much is free now."""
    if DISK_FULL not in error.message or "://" in into.place.url:
        return error
    needed = sum(file.bytes for table in new.tables for file in table.files)
    place = next(folder for folder in into.place.path.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(place).free
    message = f"{error.message}; the snapshot's files have {needed} bytes, and {place} has {free} bytes free"
    return UnavailableError(message, hint=error.hint, path=error.path)
