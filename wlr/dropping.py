"""Remove a replica from a database that holds more than it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.errors import FarmError
from wlr.engine.adapters import target_at
from wlr.engine.contract import DELETE_PLACE, DatabaseFile

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


def drop(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Remove a replica from the DuckDB file that it was adopted into, and let its farm forget it.

    Args:
        into: The file; what else it holds stays.
        storage_options: Options of the farm's file system.

    Returns:
        Whether the farm has forgotten it. Otherwise `wlc.forget` does that.

    Raises:
        InvalidError: There is no replica, it has the place for itself, or something of the owner's depends on it.
        UnavailableError: The file is in use.
    """
    target = target_at(into, storage_options)
    state = target.read_state()
    DatabaseFile.required(target, "wlr drop", DELETE_PLACE).remove()
    registered = state.attachment.registry if state.attachment else state.master
    try:
        wlc.forget(registered, state.id, storage_options=storage_options)
    except FarmError:
        # It was not registered, or the farm is out of reach.
        return False
    return True
