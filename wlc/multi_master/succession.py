"""A successor takes over: it reads its own log as the former primary would have, and judges what that one has not."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.errors import FencedError
from wlc.farm.newest_batches import read_newest
from wlc.farm.vectors import expanded
from wlc.masters.circle_place import founder_of, site_database
from wlc.masters.publish import publish
from wlc.masters.site_step import EndedLog, SiteStep, Succession
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import Source


def take_over(source: Source, database: FarmDatabase, circle: Circle) -> None:
    """Let a site that contains all of the former primaries' logs lead the present term; nobody commits meanwhile.

    Args:
        source: The successor, which has not judged itself yet.
        database: Its place in the farm.
        circle: In which it is the primary.

    Raises:
        FencedError: Its log has transactions that it lost and no primary has taken. Make another site the primary.
    """
    with source.publishing(), source.without_commits():
        publish(source, database)
        state = source.require_state()
        if state.site is None or state.circle != circle:
            # Another site has become the primary meanwhile.
            return
        founder = founder_of(database, state.site)
        ended = tuple(
            EndedLog(site_database(founder, reign.folder), reign.history, reign.last, reign.batch)
            for reign in circle.reigns
            if reign.is_effective
        )
        last = ended[-1].database.read_batch(ended[-1].batch)[0]
        log = SiteLog(
            database,
            circle.site(state.site.name),
            last.history,
            last.last,
            {history: tick for history, tick in last.vector.items() if history != last.history},
            None,
            circle.lineage(),
            is_primary=False,
            may_change_schema=False,
        )
        own = _as_one(state.site.name, [step for step in log.steps() if step.transactions])
        newest = read_newest(database)
        if newest is not None and newest[0].handover is not None and newest[0].handover.term > circle.term:
            # The same, and nothing has been published since that would have met it.
            return
        _refuse_lost(source, own, circle, founder)
        source.require_site().take_over(Succession(own, dict(last.vector), ended), database.fetch)


def _refuse_lost(source: Source, own: SiteStep, circle: Circle, founder: FarmDatabase) -> None:
    """Refuse to judge own transactions that the database does not hold: others would take them, and it would not.

    Raises:
        FencedError: It was restored from a backup, and the former primary had not taken what it had published before.
    """
    state = source.require_state()
    held = expanded({**state.member.contained, state.history: state.tick}, circle.lineage())
    lost = [each for each in own.transactions if each.origin.tick > held.get(each.origin.history, 0)]
    if not lost:
        return
    name, former = state.member.name, next(reign.site for reign in reversed(circle.reigns) if reign.is_effective)
    others = sorted((site.name for site in circle.sites if site.name != name), key=lambda other: other != former)
    alone = f"wlc stop {shlex.quote(str(source))}, then wlc master {shlex.quote(str(source))} --name OTHER"
    raise FencedError(
        f"site {name} cannot take over as the primary: it was restored from a backup, and its log has"
        f" {len(lost)} transactions that its file lacks and site {former} has not taken",
        hint=f"let another site judge them: wlc role {shlex.quote(founder.url)} {others[0]} primary --lost {name};"
        f" wlc take there, then at {name}"
        if others
        else f"to publish the file by itself: {alone}",
        path=str(source),
    )


def _as_one(site: str, steps: list[SiteStep]) -> SiteStep:
    """Join steps: a transaction may depend on any that is rejected before it."""
    none = SiteStep(site, (), {}, {}, None, is_primary=False)
    return replace(SiteStep.joined([none, *steps]), contained={}, proof=None, is_alone=False, parts=())
