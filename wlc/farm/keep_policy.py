"""How much of the past a farm database keeps, and how often a snapshot is due: one document that its owner sets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import JsonForm, JsonKey, as_beat
from wlc.farm.paths import RETENTION
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.database import FarmDatabase

COUNT_MOST = 100_000
# A hundred years: a time before the present one must stay a time.
AGE_MOST = timedelta(days=36_525)
_Age = Annotated[timedelta, JsonForm(lambda value: timedelta(seconds=as_beat(value)), timedelta.total_seconds)]


@dataclass(frozen=True, slots=True)
class KeepPolicy(ForPeople):
    """What pruning keeps, and when a snapshot is due.

    Attributes:
        keep: Every transaction of this long can be gone back to; None: pruning has no policy.
        keep_daily: Of what is older, the last snapshot of each of so many days (UTC) that have one.
        keep_weekly: Of what is older than those, the last snapshot of each of so many weeks (ISO 8601) that have one.
        snapshot_every: Whoever publishes takes a snapshot when the newest one is so old; None: nobody does.
    """

    may_have_info: ClassVar = True
    keep: Annotated[_Age | None, JsonKey("keep_s")] = None
    keep_daily: int = 0
    keep_weekly: int = 0
    snapshot_every: Annotated[_Age | None, JsonKey("snapshot_every_s")] = None


def checked(policy: KeepPolicy) -> KeepPolicy:
    """Return a policy that makes sense.

    Raises:
        InvalidError: It does not; the hint says which option is missing or what it can be.
    """
    if policy.keep is None and (policy.keep_daily or policy.keep_weekly):
        message = "daily and weekly snapshots are kept of what is older than --keep, which is missing"
        raise InvalidError(message, hint="wlc retention DB --keep 30d --keep-daily 30 --keep-weekly 12")
    for option, age in (("--keep", policy.keep), ("--snapshot-every", policy.snapshot_every)):
        if age is not None and not timedelta(0) <= age <= AGE_MOST:
            raise InvalidError(f"{option} is more than 100 years, or negative", hint=f"{option} 30d")
    if policy.snapshot_every is not None and policy.snapshot_every < timedelta(seconds=1):
        raise InvalidError("--snapshot-every is less than a second", hint="--snapshot-every 1d")
    for option, count in (("--keep-daily", policy.keep_daily), ("--keep-weekly", policy.keep_weekly)):
        if not 0 <= count <= COUNT_MOST:
            raise InvalidError(f"{option} {count} is invalid", hint=f"{option} 30; at most {COUNT_MOST}")
    return policy


_DOCUMENT = Document("retention", KeepPolicy, check=checked, hint="Delete {where}, and set it again: wlc retention")
encode_policy, decode_policy = _DOCUMENT.encode, _DOCUMENT.decode


def read_policy(database: FarmDatabase) -> KeepPolicy | None:
    """Return the policy of a farm database, None if nobody has set one.

    Raises:
        CorruptError: It is damaged. Delete nothing.
    """
    found = _policy_object(database).load()
    return found[0] if found else None


def change_policy(database: FarmDatabase, change: Callable[[KeepPolicy], KeepPolicy]) -> KeepPolicy:
    """Replace the policy by what a function makes of it, and return that.

    Raises:
        InvalidError: The new policy makes no sense. Nothing was changed.
        CorruptError: The present one is damaged.
    """
    return _policy_object(database).change(lambda present: checked(change(present or KeepPolicy())))


def end_policy(database: FarmDatabase) -> None:
    """Forget the policy; pruning asks again, and nobody takes snapshots."""
    database.store.delete(RETENTION)


def _policy_object(database: FarmDatabase) -> VersionedObject[KeepPolicy]:
    where = f"{database.url}/{RETENTION}"
    return VersionedObject(database.store, RETENTION, encode_policy, lambda data: decode_policy(data, where))
