"""Where a feed stands: its position, its lag behind the farm, what it dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm.human_form import ForPeople
from wlr.replica_status import chosen, lag

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class FeedStatus(ForPeople):
    """Where a feed stands.

    Attributes:
        lag_s: Seconds between the feed's clock and the farm's; None if the farm cannot be read.
        lag_transactions: Ticks between the two; None if the farm cannot be read.
        tables: Patterns of its tables; empty for all.
        dropped: Records that were not written since the feed began.
        is_paused: Its owner wants it to stay where it is.
        upstream: Id of the upstream that it chose or is pinned to, as `wlc tiers` shows it; empty if it reads what it
            is given.
        registries: URLs of the registries that it chooses by; the first one decides. Empty likewise.
    """

    name: str
    master: str
    to: str
    tick: int
    clock: datetime | None
    lag_s: float | None
    lag_transactions: int | None
    tables: tuple[str, ...]
    format: str
    dropped: int
    is_paused: bool
    history: str
    upstream: str = ""
    registries: tuple[str, ...] = ()


def feed_status(
    target: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> FeedStatus | None:
    """Return where a feed stands; None if `target` is no feed.

    Args:
        target: The file that it writes, or its place in the farm, `DB/feeds/NAME`.
        storage_options: Options of the farm's file system.

    Raises:
        CorruptError: What it remembers is damaged.
    """
    from wlr.feeds.lookup import feed_at

    memory = feed_at(target, storage_options)
    found = memory.load() if memory is not None else None
    if found is None:
        return None
    state, _ = found
    tick = state.position.tick if state.position else 0
    behind = lag(state.master, tick, state.clock, storage_options)
    return FeedStatus(
        state.name,
        state.master,
        state.to,
        tick,
        state.clock,
        *behind,
        state.tables,
        state.format,
        state.dropped,
        state.is_paused,
        state.history,
        *chosen(state.attachment),
    )
