"""Removes old ticks of a Parquet replica, and the files that only they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlr.engine.adapters import target_at
from wlr.engine.contract import Lake

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlr.plan.retention import PrunedTicks


def prune(
    into: str | os.PathLike[str],
    *,
    keep: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> PrunedTicks:
    """Remove ticks of a Parquet replica that need not stay readable, and every file that no tick names.

    Args:
        into: A Parquet replica.
        keep: How much stays: a number of old ticks, an age such as "3 days", or "" for all; what the replica
            remembers if omitted.
        dry_run: Only say what would be removed.
        storage_options: Options of the replica's file system.

    Raises:
        InvalidError: There is no such replica, or `keep` is neither.
        UnavailableError: Another process is writing to the replica: try again.
    """
    return Lake.required(target_at(into, storage_options), "wlr prune").prune(keep, dry_run=dry_run)
