"""The status of a replica: its position, its lag behind the farm, its last failure."""

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


# A round holds the file of a replica while it applies a step, which usually takes less than this.
_PATIENCE_S = 3.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class ReplicaStatus(ForPeople):
    """The status of a replica.

    Attributes:
        master: The place that it reads.
        lag_s: Seconds between the replica's clock and the farm's; None if the farm cannot be read.
        lag_transactions: Ticks between the two; None if the farm cannot be read.
        failure: The transaction that could not be applied; None if the last run succeeded.
        tables: Patterns of the tables it replicates; empty for all.
        is_unlocked: Its owner allows direct writes to replicated tables.
        not_locked: Why no lock can refuse direct writes to replicated tables; empty for a replica that can be locked.
        is_paused: Its owner has paused it.
        keep: Retention of old ticks of a Parquet replica: a number, or an age; empty for all.
        open_tables: Format in which a Parquet replica's tables are open to readers, "delta"; empty for none.
        left_out: Objects without rows that it lacks because its engine cannot hold or make them, or because only
            PostgreSQL has them (views, indexes, constraints …), by name, with the cause.
        upstream: Id of the upstream that it chose or is pinned to, as `wlc tier show` shows it; empty if its place is
            fixed.
        registries: URLs of the registries from which it chooses; the first one decides. Empty likewise.
        filters: Filters of its partly replicated tables, in words.
        proofs: If it reads a site: the positions of this site in the logs of the others, which prove to
            `wlr replica switch` that the replica can continue from there.
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
    not_locked: str = ""


def status(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> ReplicaStatus:
    """Return the status of a replica, with its lag behind the farm.

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
        not_locked=state.not_locked,
    )


def chosen(attachment: Attachment | None) -> tuple[str, tuple[str, ...]]:
    """Return the id of a reader's upstream, and the registries that list it."""
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
    """Read a replica's state; wait for a moment if another process uses it."""
    target, end = target_at(into, storage_options), time.monotonic() + _PATIENCE_S
    while True:
        try:
            return target.read_state()
        except UnavailableError as error:
            if time.monotonic() >= end:
                error.hint = error.hint or "wlc farm replicas DB shows its registration in the farm"
                raise
        time.sleep(_LOOK_EVERY_S)


def lag(
    master: str, tick: int, clock: datetime | None, storage_options: Mapping[str, Any] | None
) -> tuple[float | None, int | None]:
    """Return the lag of a reader at a tick and commit time, in seconds and ticks; None if unknown."""
    # Reading only the position of a replica needs no farm.
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
