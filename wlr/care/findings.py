"""Turns the result of a check into an error with the next command."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from wlc.farm.clock import format_age, format_time
from wlc.farm.errors import CorruptError
from wlr.engine.adapters import locate

if TYPE_CHECKING:
    from datetime import timedelta

    from wlr.care.drills import Drill
    from wlr.care.farm_audit import FarmAudit
    from wlr.care.verification import Verified


def check_audit(audit: FarmAudit, db: str, window: str | timedelta | None = None) -> None:
    """Refuse a farm with problems, or one whose window is too short.

    Args:
        audit: Result of `verify_farm`.
        db: The user's name of the database.
        window: The requested window.

    Raises:
        CorruptError: The farm has a problem.
    """
    if audit.problems:
        count = len(audit.problems)
        raise CorruptError(
            f"{audit.url} has {count} {'problem' if count == 1 else 'problems'}; {audit.problems[0].path}:"
            f" {audit.problems[0].problem}",
            hint="restore the files, or end the history and begin a new one: wlc stop SOURCE, wlc master SOURCE",
        )
    if audit.covers_window is False and window is not None:
        wanted = window if isinstance(window, str) else format_age(window)
        since = format_time(audit.can_go_back_to) if audit.can_go_back_to else "nothing"
        raise CorruptError(
            f"{audit.url} does not reach {wanted} back: its oldest restorable state is {since}"
            f" (tick {audit.can_go_back_to_tick})",
            hint=f"keep more from now on: wlc retention {shlex.quote(db)} --keep {shlex.quote(wanted)}",
        )


def check_verified(found: Verified, target: str) -> None:
    """Refuse a replica whose digests differ from its master's log.

    Raises:
        CorruptError: A table differs, or cannot be verified.
    """
    place = locate(target)
    if found.differing:
        listed = [check.table for check in found.differing]
        options = "".join(f" --table {shlex.quote(name)}" for name in listed)
        raise CorruptError(
            f"{', '.join(listed)} of {place} {'differs' if len(listed) == 1 else 'differ'} from the master at"
            f" tick {found.tick}",
            hint=f"wlr repair {shlex.quote(str(place))}{options}",
        )
    if found.unverifiable:
        listed = [check.table for check in found.unverifiable]
        raise CorruptError(
            f"{', '.join(listed)} of {place} cannot be verified: the log has lost their digests",
            hint=f"wlc farm verify {shlex.quote(found.master)}",
        )


def check_drill(done: Drill, db: str) -> None:
    """Refuse a restored database whose digests differ from the log.

    Raises:
        CorruptError: A table differs.
    """
    if not done.is_sound:
        raise CorruptError(
            f"restored to tick {done.tick}, {', '.join(done.differing)} of {done.database} differ from the log",
            hint=f"wlc farm verify {shlex.quote(db)} --full",
        )
