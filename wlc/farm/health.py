"""A database's health beside its log: the publisher's last sign of life, and the last verification and drill.

A reader needs only one small object. A publisher writes a sign when it has published nothing for a while, and at a
clean close. So a reader distinguishes three cases: nothing was committed, the publisher has finished, the publisher
died.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.clock import utc_now
from wlc.farm.documents import Document
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import JsonKey, Omitted
from wlc.farm.keeping import AGE_MOST, AgeInSeconds
from wlc.farm.paths import HEALTH
from wlc.farm.registry import this_host, this_user
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.database import FarmDatabase

SIGN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Sign(ForPeople):
    """A sign of life of a publisher.

    Attributes:
        history: The history that it publishes.
        seen: When it gave the sign, by its own clock.
        source: The published database, without a password; `host`: name of its machine; `user`: its owner.
        is_closed: It ended on purpose, and has published everything.
        failure: Why it cannot publish at present; empty if it can.
    """

    history: str
    seen: datetime
    source: str
    host: str
    user: str
    is_closed: Omitted[bool] = False
    failure: Omitted[str] = ""


@dataclass(frozen=True, slots=True)
class Proof(ForPeople):
    """When a database was last verified or restored in a drill, up to which tick, and what was wrong."""

    time: datetime
    tick: int
    failure: Omitted[str] = ""


@dataclass(frozen=True, slots=True)
class Health(ForPeople):
    """A database's health beside its log.

    Attributes:
        publisher: Its last sign; None before the first.
        verified: The last `wlc farm verify`; `drilled`: the last `wlr replica drill`; None if there was none.
        sign_every: How often an idle publisher gives a sign; zero: never.
        expect_every: Longest acceptable time between two commits; zero: unlimited.
    """

    may_have_info: ClassVar = True
    publisher: Sign | None = None
    verified: Proof | None = None
    drilled: Proof | None = None
    sign_every: Annotated[AgeInSeconds, JsonKey("sign_every_s")] = SIGN_EVERY
    expect_every: Annotated[AgeInSeconds, JsonKey("expect_every_s")] = timedelta(0)


# Signs that may be missing: one that is late, and one that a store refused.
_MISSING_SIGNS = 3


def last_seen(health: Health, clock: datetime | None) -> datetime | None:
    """Return when a publisher was last seen: its last sign, or its last commit."""
    said = health.publisher.seen if health.publisher else None
    return max((time for time in (said, clock) if time is not None), default=None)


def is_silent(health: Health, clock: datetime | None, now: datetime) -> bool:
    """Say whether a publisher has stopped giving signs without a clean close.

    Args:
        health: The database's health.
        clock: Time of the last published commit.
        now: The present.
    """
    seen = last_seen(health, clock)
    if health.publisher is None or health.publisher.is_closed or seen is None or not health.sign_every:
        return False
    return now - seen > _MISSING_SIGNS * health.sign_every


def _checked(health: Health) -> Health:
    for option, age in (("--sign-every", health.sign_every), ("--expect-every", health.expect_every)):
        if not timedelta(0) <= age <= AGE_MOST:
            raise InvalidError(f"{option} is more than 100 years, or negative", hint=f"{option} 1h")
        if age and age < timedelta(seconds=1):
            raise InvalidError(f"{option} is less than a second", hint=f"{option} 1m")
    return health


_DOCUMENT = Document("health", Health, check=_checked, hint="Delete {where}; the publisher writes it again.")
encode_health, decode_health = _DOCUMENT.encode, _DOCUMENT.decode


def health_object(database: FarmDatabase) -> VersionedObject[Health]:
    """Return the object that holds a database's health."""
    where = f"{database.url}/{HEALTH}"
    return VersionedObject(database.store, HEALTH, encode_health, lambda data: decode_health(data, where))


def read_health(database: FarmDatabase) -> Health:
    """Return a database's health; empty before the first sign.

    Raises:
        CorruptError: It is damaged.
    """
    found = health_object(database).load()
    return found[0] if found else Health()


def change_health(database: FarmDatabase, change: Callable[[Health], Health]) -> Health:
    """Replace the health with the result of a function, and return it.

    Raises:
        InvalidError: The result is invalid, or the farm is read-only. Nothing was changed.
        CorruptError: The present one is damaged.
    """
    return health_object(database).change(lambda present: _checked(change(present or Health())))


def note_proof(database: FarmDatabase, *, verified: Proof | None = None, drilled: Proof | None = None) -> None:
    """Record a verification or drill that has just ended; skip it if the farm is read-only for this user."""
    with suppress(FarmError):
        change_health(
            database,
            lambda health: replace(health, verified=verified or health.verified, drilled=drilled or health.drilled),
        )


def sign_of(history: str, source: str, *, is_closed: bool = False, failure: str = "") -> Sign:
    """Return a sign of this process, dated now."""
    return Sign(history, utc_now(), source, this_host(), this_user(), is_closed, failure)


def proof(tick: int, failure: str = "") -> Proof:
    """Return the result of a verification or drill that has just ended."""
    return Proof(utc_now(), tick, failure)
