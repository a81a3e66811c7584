"""Who still has what was pruned of a log that a site reads; looked up after a take has failed, for its error."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.human_form import duration
from wlc.farm.vectors import contains, merged
from wlc.masters.circle_place import site_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.farm.errors import ExpiredError
    from wlc.multi_master.missing_steps import SiteLog


@dataclass(frozen=True, slots=True)
class Cover:
    """Who has what was pruned.

    Attributes:
        told: What the message says of it.
        hint: The command that uses it; None if that is the hint of the error.
    """

    told: str
    hint: str | None = None


def name_cover(error: ExpiredError, look: Callable[[], Cover | None]) -> None:
    """Let an error also say who has what was pruned, if somebody has."""
    # The farm may be out of reach by now, or other logs damaged: nothing that fails here may hide the error.
    with suppress(Exception):
        if (found := look()) is not None:
            error.message = f"{error.message}; {found.told}"
            error.args, error.hint = (error.message,), found.hint or error.hint


def site_that_covers(lacking: SiteLog, others: Iterable[SiteLog], file: str) -> Cover | None:
    """Say which other site of a mesh has what was pruned of a log.

    Args:
        lacking: The log.
        others: Those that the reader reads, this one among them.
        file: The reader's.
    """
    wanted = lacking.pruned()
    if contains(lacking.mine, wanted, lacking.lineage):
        return None
    for other in others:
        # Another log may be damaged, too.
        with suppress(Exception):
            held = merged(lacking.mine, other.readable(), lacking.lineage)
            if other.site.name != lacking.site.name and contains(held, wanted, lacking.lineage):
                name = other.site.name
                return Cover(f"site {name} has it", f"wlc take {shlex.quote(file)} --from {name}")
    return None


def snapshot_that_covers(founder: FarmDatabase, circle: Circle, now: datetime) -> Cover | None:
    """Name the snapshot with which a site begins that is made anew."""
    primary = circle.site(circle.primary)
    log = site_database(founder, primary.folder)
    ticks = log.snapshot_ticks()
    if not ticks:
        return None
    clock = log.read_manifest(ticks[-1]).clock
    age = duration(max(now - clock, timedelta(0)))
    return Cover(f"the newest snapshot of site {primary.name} is of tick {ticks[-1]}, {age} old")
