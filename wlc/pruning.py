"""`wlc.prune` for whoever has a name, a URL or a source rather than an open farm database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.errors import InvalidError
from wlc.inquiry import resolve
from wlc.prune import prune as prune_database
from wlc.retention import DEADLINE, Retention

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from datetime import datetime, timedelta


def prune(
    db: str | os.PathLike[str],
    farm: str | None = None,
    *,
    dry_run: bool = False,
    deadline: timedelta = DEADLINE,
    reach: datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Retention:
    """Delete the log files and snapshots that neither the newest snapshot nor a live registered replica needs.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        farm: Where a bare name is looked up; WLC_FARM when omitted.
        dry_run: Decide only.
        deadline: How long a registered replica may be silent before it no longer holds log files back.
        reach: Keep what is needed to replicate up to this time and any later one.
        storage_options: Options of the farm's file system, over those that a source remembers.

    Returns:
        What was, or with `dry_run` would be, deleted and why.

    Raises:
        InvalidError: The deadline is negative, or there is no such database.
        CorruptError: A manifest or a registration is damaged; nothing was deleted.
    """
    if deadline.total_seconds() < 0:
        raise InvalidError(f"deadline {deadline} is negative", hint="give a number of days, 7 for a week")
    database = resolve(db, farm, storage_options=storage_options)
    database.config()  # A name that the farm does not hold is refused, not found to have nothing to delete.
    return prune_database(database, deadline=deadline, reach=reach, dry_run=dry_run)
