"""Where a replica stands: its position, its lag behind the farm, its last failure."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.human_form import ForPeople
from wlr.engine.adapters import target_at

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.model import Taken
    from wlc.tiers.attachment import Attachment
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.plan.failure import Failure


# A round holds the file of a replica while it applies a step, which mostly takes less than this.
_PATIENCE_S = 3.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class ReplicaStatus(ForPeople):
    """Where a replica stands.

    Attributes:
        master: The place that it reads.
        lag_s: Seconds between the replica's clock and the farm's; None if the farm cannot be read.
        lag_transactions: Ticks between the two; None if the farm cannot be read.
        failure: The transaction that could not be applied; None if the last run succeeded.
        tables: Patterns of the tables it replicates; empty for all.
        is_unlocked: Its owner allows direct writes to replicated tables.
        is_paused: Its owner wants it to stay where it is.
        keep: How many old ticks of a Parquet replica stay readable, or for how long; empty for all.
        open_tables: Whose readers a Parquet replica's tables are open to, "delta"; empty for nobody.
        left_out: What it does not have because its engine cannot hold or make it, or because only PostgreSQL has it
            (views, indexes, constraints …), by name, with the cause. It holds no rows.
        upstream: Id of the upstream that it chose or is pinned to, as `wlc tier show` shows it; empty if it reads what
            it was given.
        registries: URLs of the registries that it chooses by; the first one decides. Empty likewise.
        filters: What it holds of the tables that it has not whole, in words.
        proofs: If it reads a site: how far that one had read the logs of the others, which proves to
            `wlr replica switch` that the replica can go on from there.
    """

    master: str
    tick: int
    clock: datetime | None
    lag_s: float | None
    lag_transactions: int | None
    failure: Failure | None
    beat_s: float
    tables: tuple[str, ...]
    accepted: tuple[int, ...]
    is_unlocked: bool
    is_paused: bool
    history: str
    keep: str = ""
    open_tables: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    upstream: str = ""
    registries: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    proofs: tuple[Taken, ...] = ()


def status(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> ReplicaStatus:
    """Return where a replica stands, and how far it is behind the farm.

    Args:
        into: The replica.
        storage_options: Options of the file systems of replica and farm.

    Raises:
        InvalidError: There is no replica.
        UnavailableError: Another process has been using it for some seconds: try again.

    Examples:
        >>> status = wlr.status("copy.duckdb")
        >>> status.tick, status.lag_transactions
        (3, 0)
    """
    state = _state(into, storage_options)
    lag_s, lag_transactions = lag(state.master, state.position.tick, state.clock, storage_options)
    return ReplicaStatus(
        state.master,
        state.position.tick,
        state.clock,
        lag_s,
        lag_transactions,
        state.failure,
        state.beat_s,
        state.tables,
        tuple(sorted(state.accepted)),
        state.is_unlocked,
        state.is_paused,
        state.position.history,
        state.keep,
        state.open_tables,
        state.left_out,
        *chosen(state.attachment),
        filters=tuple(map(str, state.filters.tables)),
        proofs=state.contained.proofs,
    )


def chosen(attachment: Attachment | None) -> tuple[str, tuple[str, ...]]:
    """Return the id of the upstream that a reader reads, and the registries that know it."""
    return (attachment.upstream, attachment.registries or (attachment.registry,)) if attachment else ("", ())


def tick(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> int:
    """Return the last transaction that a replica holds, 0 before the first; raises as `status` does.

    Examples:
        >>> wlr.tick("copy.duckdb")
        3
    """
    return _state(into, storage_options).position.tick


def clock(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> datetime | None:
    """Return the commit time of the last transaction that a replica holds; raises as `status` does.

    Examples:
        >>> wlr.clock("copy.duckdb") == wlc.clock("sales")
        True
    """
    return _state(into, storage_options).clock


def _state(into: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> ReplicaState:
    """Read what a replica remembers of itself; wait for a moment for another process that is using it."""
    target, end = target_at(into, storage_options), time.monotonic() + _PATIENCE_S
    while True:
        try:
            return target.read_state()
        except UnavailableError as error:
            if time.monotonic() >= end:
                error.hint = error.hint or "wlc farm replicas DB shows what its farm knows of it"
                raise
        time.sleep(_LOOK_EVERY_S)


def lag(
    master: str, tick: int, clock: datetime | None, storage_options: Mapping[str, Any] | None
) -> tuple[float | None, int | None]:
    """Return how far a reader at a tick and commit time is behind the farm, in seconds and ticks; None if unknown."""
    # Who asks a replica only where it stands needs nothing of the farm.
    from wlc.farm.database import open_database

    try:
        config = open_database(master, storage_options=storage_options).config()
    except FarmError:
        return None, None
    behind = max(config.tick - tick, 0)
    if behind == 0:
        return 0.0, 0
    if config.write is None or clock is None:
        return None, behind
    return max((config.write - clock).total_seconds(), 0.0), behind
