"""A successor takes over: it reads its own log as the former primary would have, and judges what that one has not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.exchange.reading import SiteLog
from wlc.masters.contract import EndedLog, SiteStep, Succession
from wlc.masters.place import founder_of, site_database
from wlc.masters.publish import publish

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
    """
    with source.publishing(), source.stopping():
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
        source.take_over(Succession(own, dict(last.vector), ended), database.fetch)


def _as_one(site: str, steps: list[SiteStep]) -> SiteStep:
    """Join steps: a transaction may depend on any that is rejected before it."""
    transactions = [each for step in steps for each in step.transactions]
    files = {path: file for step in steps for path, file in step.files.items()}
    numbered = tuple(replace(each, line=line) for line, each in enumerate(transactions, start=1))
    return SiteStep(site, numbered, files, {}, None, is_primary=False)
