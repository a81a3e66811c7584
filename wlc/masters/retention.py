"""Decide what of a farm database can be deleted; nothing is deleted here."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time
from wlc.farm.registry import RELAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.model import Position
    from wlc.farm.registry import Replica

DEADLINE = timedelta(days=7)
KEEP_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """A snapshot as a place to start from: its position, the commit time there, and when the store got it."""

    position: Position
    clock: datetime
    arrived: datetime | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """What can go, what stays, and why.

    Attributes:
        delete_batches: Numbers, rising.
        delete_snapshots: Ticks, rising.
        keep_batches: Numbers, rising.
        keep_snapshots: Ticks, rising.
        overdue: Registered replicas that were silent for longer than the deadline; they keep nothing.
        holding: Live replicas that need log files which no kept snapshot needs.
        held_bytes: For each of them, the bytes of those log files and their data files that it needs.
        reasons: Sentences for the DBA, at least one.
    """

    delete_batches: tuple[int, ...]
    delete_snapshots: tuple[int, ...]
    keep_batches: tuple[int, ...]
    keep_snapshots: tuple[int, ...]
    overdue: tuple[Replica, ...]
    holding: tuple[Replica, ...]
    reasons: tuple[str, ...]
    held_bytes: Mapping[str, int] = field(default_factory=dict)


def children(replicas: Iterable[Replica]) -> list[Replica]:
    """Return those that read this place. Others are here because it holds the registry of their tree.

    A relay counts, too, if no path leads from it to this place: nobody else keeps what it lacks. Paths that lead to
    somebody who chooses by another registry are fine: it is known where that reads.
    """
    known = {replica.id: replica for replica in replicas}
    return [replica for replica in known.values() if not replica.upstream or _is_cut_off(replica, known)]


def _is_cut_off(replica: Replica, known: Mapping[str, Replica]) -> bool:
    """Say whether a relay reads in a circle, or below what is not registered."""
    seen: set[str] = set()
    above: Replica | None = replica
    while above is not None and above.upstream and not above.registry and above.id not in seen:
        seen.add(above.id)
        above = known.get(above.upstream)
    return replica.kind == RELAY and (above is None or (bool(above.upstream) and not above.registry))


def held_bytes(
    retention: Retention,
    snapshots: Iterable[SnapshotPoint],
    sizes: Mapping[int, int],
    windows: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return how many bytes of the log each holding replica keeps that would be deleted without all of them.

    Args:
        retention: What was decided.
        snapshots: All of the farm database.
        sizes: Bytes of each batch.
        windows: As for `decide`.
    """
    judged = windows or {}
    first = min(point.position.batch for point in snapshots if point.position.tick in retention.keep_snapshots)
    return {
        replica.id: sum(size for number, size in sizes.items() if _needed_from(replica, judged) <= number < first)
        for replica in retention.holding
    }


def decide(
    snapshots: Iterable[SnapshotPoint],
    batches: Iterable[int],
    replicas: Iterable[Replica],
    now: datetime,
    deadline: timedelta = DEADLINE,
    reach: datetime | None = None,
    keep_for: timedelta = timedelta(0),
    windows: Mapping[str, int] | None = None,
) -> Retention:
    """Decide what can be deleted.

    The newest snapshot and everything after it always stays, and so does the batch that holds its position: the chain
    goes on from there. A live replica keeps the batch of its position and all later ones; a replica that never reported
    a position keeps all. While the first batch stays, so does the snapshot before it: without a snapshot, readers
    assume that the log begins with an empty database.

    Args:
        snapshots: All of the farm database.
        batches: Numbers of all published batches.
        replicas: All that are registered.
        now: Time of the decision.
        deadline: How long a replica may be silent and still keep the log files that it needs.
        reach: Keep what is needed to replicate up to this time and any later one; None keeps the newest snapshot only.
        keep_for: Keep what was the newest snapshot so long ago, and all after it: somebody may have begun with it.
        windows: For sites among the replicas the batch from which the log is needed to judge their changes.
    """
    judged = windows or {}
    starts = sorted(snapshots, key=lambda start: (start.position.batch, start.position.tick))
    numbers = sorted(batches)
    registered = sorted(replicas, key=lambda replica: replica.id)
    overdue = tuple(replica for replica in registered if now - replica.seen > deadline)
    live = tuple(replica for replica in registered if now - replica.seen <= deadline)
    if not starts:
        reason = "there is no snapshot, so the whole log is needed; take one with: wlc snapshot SOURCE"
        kept = tuple(numbers)
        return Retention((), (), kept, (), overdue, (), (reason, *_overdue_reasons(overdue, now)))
    oldest, young = _oldest_kept(starts, reach), list[str]()
    if keep_for and (known := _newest_before(starts, now - keep_for)) < oldest:
        young.append(_keep_for_reason(starts[oldest], keep_for))
        oldest = known
    holding = tuple(replica for replica in live if _needed_from(replica, judged) < starts[oldest].position.batch)
    needed = min([starts[oldest].position.batch, *(_needed_from(replica, judged) for replica in holding)])
    gone = [start for start in starts[:oldest] if start.position.batch > 0 or needed > 1]
    return Retention(
        delete_batches=tuple(number for number in numbers if number < needed),
        delete_snapshots=tuple(sorted(start.position.tick for start in gone)),
        keep_batches=tuple(number for number in numbers if number >= needed),
        keep_snapshots=tuple(sorted(start.position.tick for start in starts if start not in gone)),
        overdue=overdue,
        holding=holding,
        reasons=(
            _start_reason(starts[oldest]),
            *young,
            *(_holding_reason(replica, judged) for replica in holding),
            *_overdue_reasons(overdue, now),
        ),
    )


def _oldest_kept(starts: Sequence[SnapshotPoint], reach: datetime | None) -> int:
    """Return the index of the last snapshot from which `reach` can be reached, or of the first snapshot."""
    if reach is None:
        return len(starts) - 1
    early_enough = [index for index, start in enumerate(starts) if start.clock <= reach]
    return early_enough[-1] if early_enough else 0


def _newest_before(starts: Sequence[SnapshotPoint], time: datetime) -> int:
    """Return the index of the last snapshot that was there at a time, or of the first snapshot."""
    there = [index for index, start in enumerate(starts) if start.arrived is None or start.arrived <= time]
    return there[-1] if there else 0


def _needed_from(replica: Replica, windows: Mapping[str, int]) -> int:
    read = replica.position.batch if replica.position else 0
    return min(read, windows.get(replica.id, read))


def _start_reason(start: SnapshotPoint) -> str:
    tick, clock = start.position.tick, format_time(start.clock)
    return f"the snapshot at tick {tick} ({clock}) and everything after it stays; what is older is not needed by it"


def _keep_for_reason(start: SnapshotPoint, keep_for: timedelta) -> str:
    tick = start.position.tick
    return (
        f"the snapshot at tick {tick} is less than {keep_for} old, so that somebody may still be reading what is before"
        " it; --keep-for sets how long that stays"
    )


def _holding_reason(replica: Replica, windows: Mapping[str, int]) -> str:
    if replica.position is None:
        return f"replica {replica.id} ({replica.target}) never told how far it is, so it keeps all log files"
    tick, batch = replica.position.tick, replica.position.batch
    if (needed := _needed_from(replica, windows)) < batch:
        return (
            f"changes of site {replica.id} are judged by log files from batch {needed} on; wlc take at the primary"
            " judges those that it has published"
        )
    return f"replica {replica.id} ({replica.target}) is at tick {tick}, so it keeps log files from batch {batch} on"


def _overdue_reasons(overdue: Iterable[Replica], now: datetime) -> list[str]:
    return [
        f"replica {replica.id} ({replica.target} of {replica.user} on {replica.host}) was last heard of at "
        f"{format_time(replica.seen)}, {(now - replica.seen).days} days ago, and holds nothing back"
        for replica in overdue
    ]
