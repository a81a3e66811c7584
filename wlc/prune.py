"""Delete what nobody can need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.clock import utc_now
from wlc.registry import replicas
from wlc.retention import DEADLINE, Retention, SnapshotPoint, decide

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from wlc.farm import FarmDatabase

# No upload takes a day: what is half done for longer has no writer any more.
_DEAD_S = 86400.0


def prune(
    database: FarmDatabase,
    *,
    deadline: timedelta = DEADLINE,
    reach: datetime | None = None,
    now: datetime | None = None,
    dry_run: bool = False,
) -> Retention:
    """Delete log files and snapshots that neither the newest snapshot nor a live replica needs.

    Dying in between is harmless: snapshots go first and log files from the oldest on, so that what is left is always
    a snapshot with an unbroken log; a later call deletes the rest.

    Args:
        database: The farm database.
        deadline: How long a registered replica may be silent before it no longer holds log files back.
        reach: Keep what is needed to replicate up to this time and any later one.
        now: Time of the decision; the machine's clock when omitted.
        dry_run: Decide only.

    Returns:
        What was, or with `dry_run` would be, deleted and why.

    Raises:
        CorruptError: A manifest or a registration is damaged; nothing was deleted.
    """
    manifests = [database.read_manifest(tick) for tick in database.snapshot_ticks()]
    retention = decide(
        [SnapshotPoint(manifest.position, manifest.clock) for manifest in manifests],
        database.batch_numbers(),
        replicas(database),
        now or utc_now(),
        deadline,
        reach,
    )
    if not dry_run:
        _delete(database, retention)
    return retention


def _delete(database: FarmDatabase, retention: Retention) -> None:
    for tick in retention.delete_snapshots:
        database.delete_snapshot(tick)
    for number in retention.delete_batches:
        database.delete_batch(number)
    for number in database.leftover_numbers():
        database.delete_batch(number)
    for tick in database.leftover_snapshots():
        database.delete_snapshot(tick)
    for store in (database.store, database.logs):
        store.sweep(_DEAD_S)
