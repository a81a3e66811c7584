"""The health of a database: one verdict for the list of a farm, the checkup, the pages and the service."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.farm.config import STOPPED
from wlc.farm.health import is_silent, last_seen
from wlc.farm.human_form import ForPeople, ago, duration, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.health import Health
    from wlc.farm.model import Config

# States that need no attention; then those that do, from the worst on.
OK, QUIET, IS_STOPPED = "ok", "quiet", "stopped"
UNREADABLE, DAMAGED, FAILING, SILENT, LATE, BEHIND = "unreadable", "damaged", "failing", "silent", "late", "behind"
WRONG = (UNREADABLE, DAMAGED, FAILING, SILENT, LATE, BEHIND)
STATES = (*WRONG, IS_STOPPED, QUIET, OK)


@dataclass(frozen=True, slots=True)
class Standing(ForPeople):
    """The verdict on a database.

    Attributes:
        state: "ok": its publisher runs; "quiet": the publisher closed, or none has ever given a sign; "stopped": `wlc
            stop`. States that need attention: "unreadable", "damaged", "failing": the publisher runs but cannot
            publish, "silent": it died, "late": no commit for longer than `expect_every`, "behind": a reader does not
            advance.
        why: One sentence.
        remedy: The next command to type; None if there is none.
        seen: When the publisher was last seen; None if never.
    """

    state: str
    why: str
    remedy: str | None = None
    seen: datetime | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether it needs attention."""
        return self.state in WRONG


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts for a verdict on a database.

    Attributes:
        place: The database as a command names it.
        damage: Damage found in its files; empty for none.
        stuck: The stuck readers, as messages name them, and the commands that continue them.
    """

    place: str
    config: Config
    health: Health
    damage: str = ""
    stuck: Mapping[str, str] = field(default_factory=dict)


def judge(facts: Facts, now: datetime) -> Standing:
    """Return the verdict on a database: its worst problem, or none."""
    config, health = facts.config, facts.health
    if damage := facts.damage or _disproved(health, now):
        return Standing(DAMAGED, damage, f"wlc farm verify {facts.place}")
    if config.state == STOPPED:
        return Standing(IS_STOPPED, "its owner stopped it")
    sign = health.publisher
    if sign is None or sign.history != config.history:
        return _of_readers(facts, now) or Standing(QUIET, "no publisher has reported")
    seen = last_seen(health, config.write) or sign.seen
    who = f"the publisher of {sign.source} on {sign.host}"
    failure = f"; it could not publish: {sign.failure}" if sign.failure else ""
    if is_silent(health, config.write, now):
        why = f"{who} has given no sign for {duration(whole_seconds(now - seen))}, and did not close{failure}"
        again = f"on {sign.host}: wlc flush {shlex.quote(sign.source)}; then start its program again"
        return Standing(SILENT, why, again, seen)
    if sign.failure:
        return Standing(FAILING, f"{who} cannot publish: {sign.failure}", None, seen)
    if (found := _of_readers(facts, now)) is not None:
        return replace(found, seen=seen)
    if sign.is_closed:
        return Standing(QUIET, f"{who} closed {ago(seen, now)}", None, seen)
    return Standing(OK, f"{who} is there", None, seen)


def _of_readers(facts: Facts, now: datetime) -> Standing | None:
    """Return the verdict on late commits or stuck readers; None if there are none."""
    expected, clock = facts.health.expect_every, facts.config.write
    if expected and (clock is None or now - clock > expected):
        age = "no transaction was ever published" if clock is None else f"the last commit was {ago(clock, now)}"
        return Standing(LATE, f"{age}, and one is expected every {duration(expected)}")
    if facts.stuck:
        return Standing(BEHIND, f"{', '.join(facts.stuck)}: no progress", next(iter(facts.stuck.values())))
    return None


def _disproved(health: Health, now: datetime) -> str:
    """Return the errors of the last verification or drill; empty if there were none."""
    proofs = (("wlc farm verify", health.verified), ("wlr replica drill", health.drilled))
    found = (f"{what}, {ago(at.time, now)}: {at.failure}" for what, at in proofs if at is not None and at.failure)
    return "; ".join(found)


def place_of(name: str, farm: str) -> str:
    """Return a database of a farm as a command names it."""
    return f"{shlex.quote(name)} --farm {shlex.quote(farm)}"
