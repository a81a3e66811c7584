"""Decide which files of a farm database can be deleted; nothing is deleted here."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time
from wlc.farm.human_form import ForPeople
from wlc.farm.reachable_past import begins_empty, is_joined
from wlc.farm.registry import RELAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.keeping import KeepPolicy, Tag
    from wlc.farm.model import Position
    from wlc.farm.reachable_past import Window
    from wlc.farm.registry import Replica

DEADLINE = timedelta(days=7)
KEEP_FOR = timedelta(hours=1)

_NO_SNAPSHOT = "there is no snapshot, so the whole log is needed; take one with: wlc snapshot SOURCE"


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """A snapshot as a starting point: its position, the commit time there, and when the store received it."""

    position: Position
    clock: datetime
    arrived: datetime | None = None


@dataclass(frozen=True, slots=True)
class Retention(ForPeople):
    """The files to delete, the files to keep, and the reasons.

    Attributes:
        delete_batches: Numbers, rising.
        delete_snapshots: Ticks, rising.
        keep_batches: Numbers, rising.
        keep_snapshots: Ticks, rising.
        overdue: Registered replicas that were silent for longer than the deadline; they keep nothing.
        holding: Live replicas that need log files which no kept snapshot needs.
        held_bytes: For each of them, the bytes of the log files and data files that it keeps.
        reasons: Sentences for the DBA, at least one.
        needed_from: The oldest batch that is needed without any reader.
        has_policy: The owner has set a policy.
        before: The restorable states before deletion; `after`: those after it.
        delete_bytes: Size of the log files, data files and snapshots to delete.
    """

    delete_batches: tuple[int, ...]
    delete_snapshots: tuple[int, ...]
    keep_batches: tuple[int, ...]
    keep_snapshots: tuple[int, ...]
    overdue: tuple[Replica, ...]
    holding: tuple[Replica, ...]
    reasons: tuple[str, ...]
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    needed_from: int = 0
    has_policy: bool = False
    before: Window | None = None
    after: Window | None = None
    delete_bytes: int = 0


def children(replicas: Iterable[Replica]) -> list[Replica]:
    """Return the readers of this place. Other registrations are here because it holds the registry of their tree.

    A relay also counts if no path leads from it to this place: no other place keeps the files that it lacks. Paths to a
    relay that chooses by another registry count as paths: its upstream is known there.
    """
    known = {replica.id: replica for replica in replicas}
    return [replica for replica in known.values() if not replica.upstream or _is_cut_off(replica, known)]


def _is_cut_off(replica: Replica, known: Mapping[str, Replica]) -> bool:
    """Say whether a relay reads in a cycle, or below an unregistered relay."""
    seen: set[str] = set()
    above: Replica | None = replica
    while above is not None and above.upstream and not above.registry and above.id not in seen:
        seen.add(above.id)
        above = known.get(above.upstream)
    return replica.kind == RELAY and (above is None or (bool(above.upstream) and not above.registry))


def held_bytes(
    retention: Retention, sizes: Mapping[int, int], windows: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return per holding replica the bytes of the log that it keeps from deletion, as if no other replica held them.

    Args:
        retention: The decision.
        sizes: Bytes of each batch.
        windows: As for `decide`.
    """
    judged, first = windows or {}, retention.needed_from
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
    policy: KeepPolicy | None = None,
    tags: Iterable[Tag] = (),
    ends: Sequence[int] = (),
) -> Retention:
    """Decide what can be deleted.

    The newest snapshot, the batch that holds its position, and everything after it always stay. A live replica keeps
    the batch of its position and all later ones; a replica without position keeps all. While the first batch stays, so
    does the snapshot before it: otherwise the log would seem to begin with an empty database. The remaining log has no
    gap; before it, a policy and tags keep single snapshots.

    Args:
        snapshots: All snapshots of the farm database.
        batches: Numbers of all published batches.
        replicas: All registered replicas.
        now: Time of the decision.
        deadline: How long a replica may be silent and still keep the log files that it needs.
        reach: Keep the files needed to replicate up to this time and any later one; None keeps the newest snapshot.
        keep_for: Keep the snapshot that was the newest this long ago, and all later files, for readers of it.
        windows: First batch needed to judge the changes of each site.
        policy: The owner's policy.
        tags: Ticks that stay restorable. A tag keeps its snapshot, or else the log from the snapshot before.
        ends: Ticks beyond which the log does not lead from a snapshot before them.
    """
    judged, numbers = windows or {}, sorted(batches)
    starts = sorted(snapshots, key=lambda start: (start.position.batch, start.position.tick))
    registered = sorted(replicas, key=lambda replica: replica.id)
    overdue = tuple(replica for replica in registered if now - replica.seen > deadline)
    live = tuple(replica for replica in registered if now - replica.seen <= deadline)
    has_policy = policy is not None and policy.keep is not None
    if not starts:
        why = (_NO_SNAPSHOT, *_overdue_reasons(overdue, now))
        return Retention((), (), tuple(numbers), (), overdue, (), why, has_policy=has_policy)
    if policy is not None and policy.keep is not None:
        reach = min(now - policy.keep, reach or now)
    oldest, base, reasons = _oldest_kept(starts, numbers, now, reach, keep_for)
    single = _last_of_periods(starts[:oldest], policy) if policy is not None else set()
    pinned = [_pinned(starts, oldest, numbers, tag, ends) for tag in tags]
    single.update(pin.snapshot for pin in pinned if pin.snapshot is not None)
    singles = [starts[index] for index in sorted(single)]
    base = _with_own_batches(singles, min([base, *(pin.batch for pin in pinned)]))
    holding = tuple(replica for replica in live if _needed_from(replica, judged) < base)
    needed = _with_own_batches(singles, min([base, *(_needed_from(replica, judged) for replica in holding)]))
    kept = [s for s in starts[:oldest] if s in singles or (s.position.batch == 0 and needed <= 1)] + starts[oldest:]
    return Retention(
        delete_batches=tuple(number for number in numbers if number < needed),
        delete_snapshots=tuple(sorted(start.position.tick for start in starts if start not in kept)),
        keep_batches=tuple(number for number in numbers if number >= needed),
        keep_snapshots=tuple(sorted(start.position.tick for start in kept)),
        overdue=overdue,
        holding=holding,
        reasons=(
            *reasons,
            *_single_reason(singles),
            *(pin.reason for pin in pinned if pin.reason),
            *(_holding_reason(replica, judged) for replica in holding),
            *_overdue_reasons(overdue, now),
        ),
        needed_from=base,
        has_policy=has_policy,
    )


def _oldest_kept(
    starts: Sequence[SnapshotPoint],
    numbers: Sequence[int],
    now: datetime,
    reach: datetime | None,
    keep_for: timedelta,
) -> tuple[int, int, list[str]]:
    """Return the index of the first snapshot of those that all stay, the first batch that is needed then, and why."""
    oldest = len(starts) - 1
    if reach is not None:
        early_enough = [index for index, start in enumerate(starts) if start.clock <= reach]
        if not early_enough:
            first = min([starts[0].position.batch, *numbers[:1]])
            return 0, first, [f"no snapshot is as old as {format_time(reach)}, so everything stays"]
        oldest = early_enough[-1]
    young = []
    if keep_for and (known := _newest_before(starts, now - keep_for)) < oldest:
        young.append(_keep_for_reason(starts[oldest], keep_for))
        oldest = known
    return oldest, starts[oldest].position.batch, [_start_reason(starts[oldest]), *young]


def _last_of_periods(starts: Sequence[SnapshotPoint], policy: KeepPolicy) -> set[int]:
    """Return the indexes of snapshots older than its window that a policy keeps; snapshots are given in order."""
    days: set[object] = set()
    weeks: set[object] = set()
    kept = set()
    for index in reversed(range(len(starts))):
        clock = starts[index].clock.astimezone(UTC)
        day, week = clock.date(), clock.isocalendar()[:2]
        if day in days:
            continue
        if len(days) < policy.keep_daily:
            days.add(day)
            kept.add(index)
        elif week not in weeks and len(weeks) < policy.keep_weekly:
            weeks.add(week)
            kept.add(index)
    return kept


@dataclass(frozen=True, slots=True)
class _Pin:
    """The files that a tag keeps: the log from a batch on, and the snapshot with that index if it is the oldest."""

    batch: int
    snapshot: int | None = None
    reason: str = ""


def _pinned(
    starts: Sequence[SnapshotPoint], oldest: int, numbers: Sequence[int], tag: Tag, ends: Sequence[int]
) -> _Pin:
    everything = max([starts[-1].position.batch, *numbers])
    if tag.tick >= starts[oldest].position.tick:
        return _Pin(everything)
    before = [index for index in range(oldest) if starts[index].position.tick <= tag.tick]
    if before and starts[before[-1]].position.tick == tag.tick:
        return _Pin(everything, before[-1], f"tag {tag.name} keeps the snapshot at tick {tag.tick}")
    first = numbers[0] if numbers else None
    start = starts[before[-1]].position.tick if before else 0
    if any(start <= end < tag.tick for end in ends):
        return _Pin(everything, None, f"tag {tag.name} at tick {tag.tick} cannot be reached")
    if before and is_joined(starts[before[-1]].position, first):
        batch = starts[before[-1]].position.batch
        return _Pin(batch, before[-1], f"tag {tag.name} at tick {tag.tick} keeps log files from batch {batch} on")
    if begins_empty(starts[0].position if starts else None, first):
        return _Pin(1, None, f"tag {tag.name} at tick {tag.tick} keeps all log files")
    return _Pin(everything, None, f"tag {tag.name} at tick {tag.tick} cannot be reached any more")


def _with_own_batches(kept: Iterable[SnapshotPoint], first: int) -> int:
    """Return the first batch to keep, so that the log does not begin right after the batch of a single snapshot.

    A snapshot can lie within its batch. If the rest of the batch were deleted, the next batch would seem to continue
    from the snapshot.
    """
    for batch in sorted({start.position.batch for start in kept}, reverse=True):
        if batch == first - 1:
            first = batch
    return first


def _newest_before(starts: Sequence[SnapshotPoint], time: datetime) -> int:
    """Return the index of the last snapshot that existed at a time, or of the first snapshot."""
    there = [index for index, start in enumerate(starts) if start.arrived is None or start.arrived <= time]
    return there[-1] if there else 0


def _needed_from(replica: Replica, windows: Mapping[str, int]) -> int:
    read = replica.position.batch if replica.position else 0
    return min(read, windows.get(replica.id, read))


def _start_reason(start: SnapshotPoint) -> str:
    tick, clock = start.position.tick, format_time(start.clock)
    return f"the snapshot at tick {tick} ({clock}) and everything after it stays; it needs no older files"


def _keep_for_reason(start: SnapshotPoint, keep_for: timedelta) -> str:
    tick = start.position.tick
    return (
        f"the snapshot at tick {tick} is less than {keep_for} old, so a reader may still need the files before it; "
        "--keep-for sets how long that stays"
    )


def _single_reason(singles: Sequence[SnapshotPoint]) -> list[str]:
    if not singles:
        return []
    shown = ", ".join(str(start.position.tick) for start in singles)
    return [f"single snapshots stay for days and weeks, and for tags: tick{'s' if len(singles) > 1 else ''} {shown}"]


def _holding_reason(replica: Replica, windows: Mapping[str, int]) -> str:
    if replica.position is None:
        return f"replica {replica.id} ({replica.target}) has never reported its position, so it keeps all log files"
    tick, batch = replica.position.tick, replica.position.batch
    if (needed := _needed_from(replica, windows)) < batch:
        return (
            f"changes between this site and {replica.id} are judged by log files from batch {needed} on; fewer are "
            "needed after wlc site take at the primary and then at the other site"
        )
    return f"replica {replica.id} ({replica.target}) is at tick {tick}, so it keeps log files from batch {batch} on"


def _overdue_reasons(overdue: Iterable[Replica], now: datetime) -> list[str]:
    return [
        f"replica {replica.id} ({replica.target} of {replica.user} on {replica.host}) was last seen at "
        f"{format_time(replica.seen)}, {(now - replica.seen).days} days ago, and holds nothing back"
        for replica in overdue
    ]
