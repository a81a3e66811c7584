"""The files of a table of a Parquet replica, for tools that read Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.farm.clock import parse_tick
from wlr.engine.adapters import target_at
from wlr.engine.contract import Lake

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


def files(
    into: str | os.PathLike[str],
    table: str,
    *,
    tick: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return paths or URLs of the files of a table, for any Parquet tool.

    Args:
        into: A Parquet replica.
        table: `schema.table`, or `table` in schema main.
        tick: As of this tick; the current one if omitted.
        storage_options: Options of the replica's file system.

    Returns:
        Files in key order; empty for a table without rows. They stay until their tick is pruned.

    Raises:
        InvalidError: There is no such replica or table.
        ExpiredError: The tick was pruned, or is before the replica's first one.

    Examples:
        >>> len(wlr.files("lake", "orders"))
        1
    """
    return Lake.required(target_at(into, storage_options), "wlr lake files").files(table, parse_tick(tick))
