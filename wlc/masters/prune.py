"""Delete log files and snapshots that no reader can need."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import parse_age, parse_time, utc_now
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.keeping import announced, read_policy, tags
from wlc.farm.paths import SNAPSHOTS, manifest_path
from wlc.farm.reachable_past import begins_empty, ends_of_histories, first_of_unbroken, read_window, window_of
from wlc.farm.registry import replicas
from wlc.farm.retry import CHANGE_ATTEMPTS
from wlc.masters.lookup import resolve
from wlc.masters.retention import DEADLINE, KEEP_FOR, Retention, SnapshotPoint, children, decide, held_bytes
from wlc.multi_master.unjudged import window_starts
from wlc.tiers.same_past import is_made_up

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from datetime import date, datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.keeping import KeepPolicy
    from wlc.farm.store import StoredObject

# No upload takes a day: an older unfinished one has no live writer.
_DEAD_S = 86400.0


def prune(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    dry_run: bool = False,
    deadline: timedelta | str = DEADLINE,
    reach: str | date | None = None,
    keep_for: timedelta | str = KEEP_FOR,
    needs_policy: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Retention:
    """Delete the log files and snapshots that neither the policy, a tag nor a live registered replica needs.

    Without a policy (`wlc.retention`) the newest snapshot and the log after it stay.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        dry_run: Decide only.
        deadline: How long a registered replica may be silent and still keep the log files that it needs.
        reach: Keep the files needed to replicate up to this time and any later one.
        keep_for: Keep the files that a reader that began this long ago, by the store's clock, may still be reading: a
            snapshot stays until the next one is older than this. As text, for example `1h`.
        needs_policy: Refuse to decide without a policy; for programs that prune unattended.
        storage_options: Options of the farm's file system, over those that a source remembers.

    Returns:
        The files that were (or with `dry_run` would be) deleted, and the reasons.

    Raises:
        InvalidError: The deadline is negative, there is no such database, or it has no policy although `needs_policy`
            is set. Nothing was deleted.
        FencedError: The source is a copy of a master.
        CorruptError: A manifest, a registration, a tag or the policy is damaged; nothing was deleted.

    Examples:
        >>> keeping = wlc.retention("sales", keep="30d")
        >>> wlc.prune("sales").delete_batches
        ()
    """
    deadline = parse_age(deadline)
    if deadline.total_seconds() < 0:
        raise InvalidError(f"deadline {deadline} is negative", hint="give a number of days, 7 for a week")
    database = resolve(db, farm, storage_options=storage_options, changes=not dry_run)
    database.config()  # Refuse a name that the farm does not hold, instead of treating it as empty.
    return prune_database(
        database,
        deadline=deadline,
        reach=None if reach is None else parse_time(reach),
        keep_for=parse_age(keep_for),
        dry_run=dry_run,
        needs_policy=needs_policy,
    )


def prune_database(
    database: FarmDatabase,
    *,
    deadline: timedelta = DEADLINE,
    reach: datetime | None = None,
    keep_for: timedelta = timedelta(0),
    now: datetime | None = None,
    dry_run: bool = False,
    needs_policy: bool = False,
) -> Retention:
    """Delete log files and snapshots that neither the policy, a tag nor a live replica needs.

    A crash in between is harmless: snapshots are deleted first, and log files from the oldest on, so that the remaining
    files are always a snapshot with an unbroken log; a later call deletes the rest. The log's first snapshot outlives
    the first log file: without it, the log would seem to begin with an empty database.

    Args:
        database: The farm database.
        deadline: How long a registered replica may be silent and still keep the log files that it needs.
        reach: Keep the files needed to replicate up to this time and any later one.
        keep_for: Keep the files that a reader that began this long ago may still be reading.
        now: Time of the decision; the machine's clock when omitted.
        dry_run: Decide only.
        needs_policy: Refuse to decide without a policy.

    Returns:
        The files that were (or with `dry_run` would be) deleted, and the reasons.

    Raises:
        InvalidError: There is no policy although `needs_policy` is set; nothing was deleted.
        CorruptError: A manifest, a registration, a tag or the policy is damaged; nothing was deleted.
    """
    points, listed = _points(database)
    numbers, time = database.batch_numbers(), now or utc_now()
    is_empty_first = begins_empty(points[0].position if points else None, numbers[0] if numbers else None)
    # A log without a snapshot stays.
    oldest = "" if is_empty_first or not points else points[0].position.history
    ends = ends_of_histories(database, numbers, oldest)

    windows: dict[str, int] = {}
    sizes: dict[int, int] = {}
    made_up: dict[int, bool] = {}

    def decided() -> Retention:
        # Registrations and tags are read last: a reader that registers later begins with a listed or a newer snapshot.
        registered = children(replicas(database))
        # Later judgements need fewer files.
        windows.update(windows or window_starts(database, numbers, registered))
        wanted = _policy(database, needs_policy=needs_policy), tags(database)
        while True:
            real = [point for point in points if not made_up.get(point.position.tick)]
            retention = decide(real, numbers, registered, time, deadline, reach, keep_for, windows, *wanted, ends)
            if _is_founded(database, retention, real, made_up):
                break
        retention = replace(retention, reasons=(*retention.reasons, *_ignored_reasons(made_up)))
        if retention.holding or retention.delete_batches:
            sizes.update(sizes or database.batch_bytes())
            retention = replace(retention, held_bytes=held_bytes(retention, sizes, windows))
        gone = tuple(manifest_path(tick).rpartition("/")[0] + "/" for tick in retention.delete_snapshots)
        freed = sum(sizes.get(number, 0) for number in retention.delete_batches)
        freed += sum(entry.bytes for entry in listed if entry.path.startswith(gone))
        retention = replace(retention, delete_bytes=freed)
        return _with_windows(database, retention, real, numbers, ends)

    retention = decided()
    return retention if dry_run else _pruned(database, retention, decided)


def _points(database: FarmDatabase) -> tuple[list[SnapshotPoint], list[StoredObject]]:
    """Return all snapshots by tick, and their files."""
    manifests = [database.read_manifest(tick) for tick in database.snapshot_ticks()]
    listed = list(database.store.list(SNAPSHOTS))
    arrived = {entry.path: entry.arrived for entry in listed}
    paths = [manifest_path(manifest.position.tick) for manifest in manifests]
    points = [
        SnapshotPoint(manifest.position, manifest.clock, arrived.get(path))
        for manifest, path in zip(manifests, paths, strict=True)
    ]
    return points, listed


def _policy(database: FarmDatabase, *, needs_policy: bool) -> KeepPolicy | None:
    policy = read_policy(database)
    if needs_policy and (policy is None or policy.keep is None):
        raise InvalidError(
            f"{database.url} has no retention policy, so unattended pruning deletes nothing",
            hint=f"wlc retention {shlex.quote(database.url)} --keep 30d",
            path=database.url,
        )
    return policy


def _is_founded(
    database: FarmDatabase, retention: Retention, points: Sequence[SnapshotPoint], made_up: dict[int, bool]
) -> bool:
    """Say whether only snapshots of the database's own master cause deletions; note forged ones.

    Otherwise an attacker who can add a snapshot could have everything else deleted.
    """
    if not (retention.delete_batches or retention.delete_snapshots):
        return True
    numbers = sorted(retention.keep_batches + retention.delete_batches)
    kept = {point.position.tick: point.position for point in points if point.position.tick in retention.keep_snapshots}
    for tick in kept.keys() - made_up.keys():
        made_up[tick] = is_made_up(database, kept[tick], numbers)
    return not any(made_up[tick] for tick in kept)


def _ignored_reasons(made_up: Mapping[int, bool]) -> tuple[str, ...]:
    return tuple(
        f"snapshot {tick} is ignored and stays: the log has no such moment, so its master did not take it"
        for tick in sorted(made_up)
        if made_up[tick]
    )


def _pruned(database: FarmDatabase, retention: Retention, decided: Callable[[], Retention]) -> Retention:
    """Delete only files chosen twice: before and after the announcement of the files that stay."""
    if not (retention.delete_batches or retention.delete_snapshots):
        _delete(database, retention)
        return retention
    # A process that crashed after its snapshot has left the configuration at an older one.
    database.repair_config(retention.keep_batches, retention.keep_snapshots)
    for _ in range(CHANGE_ATTEMPTS):
        before = retention
        assert before.after is not None
        with announced(database, before.after):
            # A reader that came from another place has registered before it checked that this place holds its files,
            # and a tag was written before the check of its tick.
            retention = decided()
            if _deletes_no_more(retention, before):
                _delete(database, retention)
                return retention
    raise UnavailableError(f"the files to keep of {database.url} change all the time", hint="try again later")


def _deletes_no_more(retention: Retention, before: Retention) -> bool:
    return set(retention.delete_batches) <= set(before.delete_batches) and set(retention.delete_snapshots) <= set(
        before.delete_snapshots
    )


def _with_windows(
    database: FarmDatabase,
    retention: Retention,
    points: Sequence[SnapshotPoint],
    numbers: Sequence[int],
    ends: Sequence[int],
) -> Retention:
    """Add the restorable states before and after pruning."""
    all_ = [(point.position, point.clock) for point in points]
    kept = [(position, clock) for position, clock in all_ if position.tick in retention.keep_snapshots]
    first = first_of_unbroken(numbers)
    commit = None
    if begins_empty(all_[0][0] if all_ else None, first):
        commit = read_window(database).clock
    after = window_of(kept, first_of_unbroken(retention.keep_batches), commit, ends)
    return replace(retention, before=window_of(all_, first, commit, ends), after=after)


def _delete(database: FarmDatabase, retention: Retention) -> None:
    for tick in retention.delete_snapshots:
        if tick != 0:
            database.delete_snapshot(tick)
    for number in retention.delete_batches:
        database.delete_batch(number)
    if 0 in retention.delete_snapshots:
        database.delete_snapshot(0)
    for number in database.leftover_numbers():
        database.delete_batch(number)
    for tick in database.leftover_snapshots():
        database.delete_snapshot(tick)
    for store in (database.store, database.logs):
        store.sweep(_DEAD_S)
