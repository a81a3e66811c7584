"""Handover: a batch in the former publisher's own log fences it.

A new master of a log (`wlc.masters.claim`) creates the next batch of the former history, and continues after it. The
publisher of a derived database (`wlr.replay.derivation.publishing`) begins its own history with that number. A
primary's successor:

    1. batch n+1 of the primary's log is created: one transaction without records, and in its footer the successor and
       the next term
    2. circle.json is replaced: the successor is the primary, and the former one a secondary

The first step decides. Publishers create batches exclusively, in the order of their numbers, so the primary either came
first with an ordinary batch, and the handover takes the next number, or it finds its history ended. The second step
only follows: a site that reads the batch repeats it after a crash in between. No clock and no lease is involved, and a
primary that was suspended for an hour can publish nothing more under its old history.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, FencedError, InvalidError
from wlc.farm.log_end import last_batch
from wlc.farm.model import Handover
from wlc.farm.newest_batches import read_newest
from wlc.farm.paths import CIRCLE
from wlc.farm.vectors import expanded
from wlc.masters.fence import advance_config
from wlc.multi_master.circle import PRIMARY, FormerTerm, change_circle, naming, read_circle
from wlc.multi_master.circle_place import site_database
from wlc.multi_master.membership import refuse_role, with_primary, with_successor_of_none

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch
    from wlc.multi_master.circle import Circle


def hand_over(founder: FarmDatabase, to: str) -> Circle:
    """Make another site the primary, and return the circle. A crash in between is harmless: call it again.

    Args:
        founder: The founder's folder.
        to: The successor. It takes over with its next take; nothing is judged before.

    Raises:
        InvalidError: There is no such site, its role is pass, or a third site has become the primary meanwhile.
        FencedError: The log of the primary lacks ticks that another site has taken.
        UnavailableError: The outcome is unknown. Call it again.
    """
    circle = read_circle(founder, to_change=True)
    former = circle.primary
    while circle.primary == former != to:
        with naming(lambda: founder.url):
            refuse_role(circle.site(to), PRIMARY)
        circle = _end_history(founder, circle, to)
    if circle.primary != to:
        raise InvalidError(
            f"site {circle.primary} has become the primary of {circle.database} meanwhile",
            hint=f"wlc site role {shlex.quote(founder.url)} {to} primary --lost {circle.primary}, if it is to be {to}"
            " all the same",
        )
    return circle


def succeed_oneself(founder: FarmDatabase, site: str) -> Circle:
    """End the history of a primary that continues from an earlier tick of it, and return the circle.

    It is its own successor: its commits since that tick are judged like another site's, and all other sites continue by
    the ended history. A crash in between is harmless: call it again.

    Args:
        founder: The founder's folder.
        site: The primary. Nothing changes if another site has become the primary meanwhile.
    """
    circle = read_circle(founder, to_change=True)
    while circle.primary == site and not circle.has_ended(circle.site(site).history):
        circle = _end_history(founder, circle, site)
    return circle


def _end_history(founder: FarmDatabase, circle: Circle, to: str) -> Circle:
    """Try once to end the history of the present primary, and return the circle as it is then."""
    primary = circle.site(circle.primary)
    log = site_database(founder, primary.folder)
    newest = read_newest(log)
    if newest is not None and (newest[0].term or 0) > circle.term:
        # Another process crashed before the circle followed, or the circle has changed since it was read.
        return _present(founder, log, newest[0], circle)
    if circle.has_ended(primary.history):
        return change_circle(founder, lambda present: with_successor_of_none(present, circle, to))
    history, term = circle.site(circle.primary).histories[-1], circle.term + 1
    batch = last_batch(log, newest, history.history, history.parent)
    batch = replace(batch, term=term, handover=Handover(to, term))
    if to != primary.name:
        _refuse_rolled_back(founder, circle, batch)
    try:
        log.publish(batch, {})
    except FencedError:
        # The primary, or another handover, came first.
        return read_circle(founder)
    advance_config(log, batch)
    return note_handover(founder, log, batch)


def _refuse_rolled_back(founder: FarmDatabase, circle: Circle, batch: Batch) -> None:
    """Refuse a handover under a tick that another site has taken: the log of the primary was lost or rolled back.

    Raises:
        FencedError: It was. Nothing was changed.
    """
    primary = circle.primary
    for other in circle.sites:
        newest = None
        # Taking from a site with a damaged log reports the damage.
        with suppress(CorruptError):
            newest = read_newest(site_database(founder, other.folder)) if other.name != primary else None
        seen = expanded(newest[0].vector, circle.lineage()).get(batch.history, 0) if newest else 0
        if seen >= batch.first:
            raise FencedError(
                f"the log of site {primary} was lost or rolled back: it ends at tick {batch.first - 1}, and site"
                f" {other.name} has taken tick {seen}",
                hint=f"put the folder back, a relay has the same files; or at site {primary}: wlc flush FILE",
                path=site_database(founder, circle.site(primary).folder).url,
            )


def _present(founder: FarmDatabase, log: FarmDatabase, newest: Batch, known: Circle) -> Circle:
    """Return the circle in which the newest batch of a primary's log was written, or to which it leads.

    Raises:
        CorruptError: The circle is older than the log.
    """
    circle = note_handover(founder, log, newest) if newest.handover is not None else read_circle(founder)
    if circle.term <= known.term:
        raise CorruptError(
            f"{log.url} is in term {newest.term}, and {founder.url}/{CIRCLE} in term {circle.term}",
            hint="restore circle.json from a backup that is as new as the log",
            path=log.url,
        )
    return circle


def note_handover(founder: FarmDatabase, log: FarmDatabase, batch: Batch) -> Circle:
    """Update the circle after a handover in a primary's log; can be repeated.

    Args:
        founder: The founder's folder.
        log: Folder of the primary whose history the batch ends.
        batch: The batch.

    Raises:
        CorruptError: The batch does not end the present term.
    """
    handover = batch.handover
    assert handover is not None

    def follow(circle: Circle) -> Circle:
        if handover.term <= circle.term:
            return circle
        primary = circle.site(circle.primary)
        is_effective = circle.term == 1 or _has_led(log, batch, circle.term)
        return with_primary(
            circle,
            handover,
            FormerTerm(primary.name, primary.folder, batch.history, batch.last, batch.number, is_effective),
        )

    return change_circle(founder, follow)


def _has_led(log: FarmDatabase, batch: Batch, term: int) -> bool:
    """Say whether a primary had taken over before a handover: its later batches are in its term."""
    return batch.number > 1 and (log.read_batch(batch.number - 1)[0].term or 0) >= term
