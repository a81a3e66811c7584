"""A database owner's choice of files to keep: the retention policy, and tags."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import format_time, parse_age, parse_tick, utc_now
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.keeping import (
    KeepPolicy,
    Tag,
    add_tag,
    announced_windows,
    change_policy,
    check_tag_name,
    delete_tag,
    end_policy,
    read_policy,
)
from wlc.farm.keeping import tags as all_tags
from wlc.farm.reachable_past import Window, not_restorable, read_window
from wlc.farm.registry import this_host, this_user
from wlc.masters.lookup import resolve

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase


@dataclass(frozen=True, slots=True)
class Keeping(ForPeople):
    """The retention policy and the restorable states; `policy` is None if none is set."""

    policy: KeepPolicy | None
    window: Window


def retention(
    db: str | os.PathLike[str],
    *,
    keep: timedelta | str | None = None,
    keep_daily: int | None = None,
    keep_weekly: int | None = None,
    snapshot_every: timedelta | str | None = None,
    delete: bool = False,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Keeping:
    """Return or set the retention policy: the files that `prune` keeps, and the interval of snapshots.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        keep: Every state of this period stays restorable; as text, for example `30d`. None changes nothing.
        keep_daily: Before that, keep the last snapshot of each of so many days that have one.
        keep_weekly: Before those, keep the last snapshot of each of so many weeks that have one.
        snapshot_every: The publisher takes a snapshot when the newest one is this old; zero ends that.
        delete: Delete the policy.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such database, or the policy is invalid. Nothing was changed.
        CorruptError: The present policy is damaged.
        FencedError: The source is a copy of a master, and the call would change the policy.

    Examples:
        >>> wlc.retention("sales", keep="30d", keep_daily=7).policy.keep_daily
        7
    """
    given = {
        "keep": parse_age(keep),
        "keep_daily": keep_daily,
        "keep_weekly": keep_weekly,
        "snapshot_every": parse_age(snapshot_every),
    }
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if wanted.get("snapshot_every") == timedelta(0):
        wanted["snapshot_every"] = None
    if delete and wanted:
        raise InvalidError("a policy is either set or deleted", hint=f"wlc retention {shlex.quote(str(db))} --delete")
    database = _opened(db, farm, storage_options, changes=bool(wanted) or delete)
    if delete:
        end_policy(database)
    try:
        policy = change_policy(database, lambda now: replace(now, **wanted)) if wanted else read_policy(database)
    except InvalidError as error:
        error.hint = error.hint and error.hint.replace("DB", shlex.quote(str(db)))
        raise
    return Keeping(policy, read_window(database))


def tags(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Tag]:
    """Return the tags of a database, ordered by tick and name; can be empty. Arguments as for `resolve`.

    Examples:
        >>> tag = wlc.tag("sales", "before-migration")
        >>> [(tag.name, tag.tick) for tag in wlc.tags("sales")]
        [('before-migration', 3)]
    """
    return all_tags(_opened(db, farm, storage_options))


def tag(
    db: str | os.PathLike[str],
    name: str,
    tick: int | str | None = None,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Tag:
    """Give a tick a name, which protects the tick from pruning.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        name: Neither a time nor a number: letters, digits, '_', '-' and '.', at most 64.
        tick: The last published one if omitted.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The name is invalid or names another tick, or the tick is not published yet, or cannot be
            restored: a history began there with a later snapshot.
        ExpiredError: The tick was pruned.

    Examples:
        >>> wlc.tag("sales", "before-migration").tick
        3
    """
    check_tag_name(name)
    database = _opened(db, farm, storage_options, changes=True)
    config = database.config()
    wanted = config.tick if tick is None else parse_tick(tick)
    if wanted > config.tick:
        raise InvalidError(
            f"tick {wanted} is not published: the last one of {database.name} is {config.tick}",
            hint=f"Use --tick {config.tick}, or publish first: wlc flush SOURCE",
        )
    _refuse_unreachable(database, wanted)
    made = add_tag(database, Tag(name, wanted, utc_now(), f"{this_user()}@{this_host()}"))
    try:
        # A pruning process may have read the tags before this one was written.
        _refuse_unreachable(database, wanted)
    except (ExpiredError, InvalidError):
        delete_tag(database, name)
        raise
    return made


def untag(
    db: str | os.PathLike[str],
    name: str,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Tag:
    """Delete a tag, and return it; `prune` may then delete the files that it kept.

    Raises:
        InvalidError: There is no such tag.

    Examples:
        >>> tag = wlc.tag("sales", "before-migration")
        >>> wlc.untag("sales", "before-migration").tick
        3
    """
    return delete_tag(_opened(db, farm, storage_options, changes=True), name)


def _refuse_unreachable(database: FarmDatabase, tick: int) -> None:
    announced = announced_windows(database)
    window = read_window(database)
    if (lost := window.lost_with(tick)) is not None:
        first, last = lost
        start = None if last is None else last + 1
        raise not_restorable(f"tick {tick} of {database.name}", first - 1, start, can="tagged")
    if window.holds(tick) and all(left.holds(tick) for left in announced):
        return
    window = window if not window.holds(tick) else next(left for left in announced if not left.holds(tick))
    since = f", {format_time(window.clock)}" if window.clock else ""
    nearest = [f"--tick {near}" for near in (*window.older, window.tick) if near is not None]
    reached = "to no tick and all later ones" if window.tick is None else f"to tick {window.tick}{since}"
    later = "" if window.tick is None else " and later ones"
    raise ExpiredError(
        f"tick {tick} of {database.name} was pruned, or a log file on the way is missing: restorable is {reached}",
        hint=f"The ticks that can be tagged are {', '.join(nearest)}{later}.",
    )


def _opened(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None,
    options: Mapping[str, Any] | None,
    *,
    changes: bool = False,
) -> FarmDatabase:
    database = resolve(db, farm, storage_options=options, changes=changes)
    database.config()  # A name that the farm does not hold is refused.
    return database
