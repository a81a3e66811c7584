"""Membership of a circle: pure functions from one circle to the next.

Rules of a mesh, in which every site reads all others: the writers of each table, and the maximum difference of clocks.

No site decides for the others. The newest change of a row counts, by the time of its first commit, then by history and
tick. All sites decide alike, in any order of reading, if each site's next commit is later than all commits that it has
taken.

Roles of sites: valid transitions, and the circle after a change of primary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.paths import site_folder
from wlc.farm.vectors import Heir
from wlc.multi_master.circle import (
    FOUNDER,
    NONE,
    OWNER,
    PASS,
    PRIMARY,
    ROLES,
    SECONDARY,
    SHARED_RULES,
    STAR,
    Circle,
    CircleSite,
    PastHistory,
    SiteHistory,
)

if TYPE_CHECKING:
    from datetime import datetime

    from wlc.farm.model import Handover, Name
    from wlc.multi_master.circle import FormerTerm


# A transaction committed further than this ahead of the reader's clock waits: otherwise the changes of a clock far
# ahead would always win.
AHEAD = timedelta(minutes=5)
# The smallest step of a clock.
STEP = timedelta(microseconds=1)


def author_of(circle: Circle, history: str) -> str | None:
    """Return the site of a history, None if the site has left or is unknown."""
    return next((site.name for site in circle.sites if history in [each.history for each in site.histories]), None)


def may_write(circle: Circle, site: str | None, table: Name) -> bool:
    """Say whether a site of a mesh may write a table: one without a rule belongs to the primary."""
    rule = circle.rule_of(table)
    if rule is not None and rule.rule in SHARED_RULES:
        return True
    return site == (rule.site if rule is not None and rule.rule == OWNER else circle.primary)


def with_role(circle: Circle, name: str, role: str) -> Circle:
    """Return the circle with a site's new role.

    Raises:
        InvalidError: There is no such role or site, or the role cannot follow the present one.
    """
    if role not in ROLES:
        raise InvalidError(f"{role!r} is no role of a site", hint=f"the roles are {', '.join(ROLES)}")
    site = circle.site(name)
    if site.role == role:
        return circle
    if PRIMARY in (role, site.role):
        other = name if role == PRIMARY else next((each.name for each in circle.sites if each.name != name), "OTHER")
        raise InvalidError(
            f"site {circle.primary} is the primary of {circle.database} until it hands over to another one",
            hint=f"wlc site role FILE {other} primary, with the file of site {circle.primary}",
        )
    refuse_role(site, role)
    return replace(circle, sites=tuple(replace(each, role=role) if each is site else each for each in circle.sites))


def refuse_role(site: CircleSite, role: str) -> None:
    """Refuse a role that cannot follow the present one.

    Raises:
        InvalidError: It cannot.
    """
    if PASS in (role, site.role) and NONE not in (role, site.role):
        raise InvalidError(
            f"site {site.name} has the role {site.role}, which {role} cannot follow",
            hint=f"wlc site role DB {site.name} none",
        )


def with_primary(circle: Circle, handover: Handover, former_term: FormerTerm) -> Circle:
    """Return the circle after a handover, unchanged if it already contains the handover.

    If the successor has left meanwhile, the former primary succeeds itself, in a new history.

    Args:
        circle: The present circle.
        handover: From the last batch of the primary's history.
        former_term: The term that it ends.

    Raises:
        CorruptError: It is not the end of the present term.
    """
    if handover.term <= circle.term:
        return circle
    if handover.term != circle.term + 1 or former_term.site != circle.primary:
        raise CorruptError(
            f"batch {former_term.batch} of site {former_term.site} begins term {handover.term} of {circle.database},"
            f" which is in term {circle.term} of {circle.primary}",
            hint="wlc site list DB",
        )
    primary = handover.to if handover.to in [site.name for site in circle.sites] else circle.primary
    return replace(_led_by(circle, primary), former_terms=(*circle.former_terms, former_term))


def with_successor_of_none(circle: Circle, known: Circle, to: str) -> Circle:
    """Return the circle in which a site succeeds a primary without a history, whose last one has ended.

    Such a primary has decided nothing, and cannot before it has entered its next history into the circle. So there is
    no history to end, and the compare-and-swap of the circle decides which process came first.

    Args:
        circle: The present circle.
        known: The circle that was read; nothing changes if the primary has continued since.
        to: The successor.
    """
    if (circle.term, circle.primary) != (known.term, known.primary) or to not in [site.name for site in circle.sites]:
        return circle
    return _led_by(circle, to) if circle.has_ended(circle.site(circle.primary).history) else circle


def _led_by(circle: Circle, primary: str) -> Circle:
    """Return the circle in its next term, led by a site."""

    def role(site: CircleSite) -> str:
        return PRIMARY if site.name == primary else SECONDARY if site.role == PRIMARY else site.role

    sites = tuple(replace(site, role=role(site)) for site in circle.sites)
    return replace(circle, term=circle.term + 1, primary=primary, ddl=primary, sites=sites)


Heirs = Mapping[str, Heir]
NO_HEIRS: Heirs = {}


def founded(database: str, site: str, history: str, now: datetime, reading: str = STAR) -> Circle:
    """Return the circle of a database with one site."""
    site_folder(site)  # It refuses invalid names of sites.
    founder = CircleSite(site, FOUNDER, PRIMARY, (SiteHistory(history),), now)
    return Circle(database, 1, site, reading, site, (founder,))


def with_site(circle: Circle, name: str, history: SiteHistory, now: datetime, folder: str = "") -> Circle:
    """Return the circle with another site, or with a site's next history; `folder` defaults to the site's name.

    Raises:
        InvalidError: Another site has the name.
    """
    folder = folder or site_folder(name)
    present = next((site for site in circle.sites if site.name.lower() == name.lower()), None)
    if present is None:
        return replace(circle, sites=(*circle.sites, CircleSite(name, folder, SECONDARY, (history,), now)))
    if present.history == history.history:
        return circle
    if history.parent is None or history.parent.history != present.history:
        raise InvalidError(
            f"{circle.database} has a site {present.name} already", hint="choose another name with --site"
        )
    grown = replace(present, histories=(*present.histories, history))
    return _with(circle, grown)


def with_site_anew(circle: Circle, name: str, history: SiteHistory, now: datetime, folder: str, heirs: Heirs) -> Circle:
    """Return the circle in which a site has begun anew in another folder; it keeps its role and its tables.

    Raises:
        InvalidError: The site is the primary.
    """
    present = circle.site(name)
    if present.history == history.history:
        return circle
    refuse_primary_anew(circle, name)
    begun = replace(present, folder=folder, histories=(history,), joined=now)
    return _with(replace(circle, past=(*circle.past, *_past_of(present, heirs))), begun)


def refuse_primary_anew(circle: Circle, name: str) -> None:
    """Refuse to let the primary begin anew.

    Raises:
        InvalidError: The site is the primary.
    """
    if name == circle.primary:
        raise InvalidError(
            f"{name} is the primary of {circle.database}, and all other sites depend on its log: it cannot begin anew",
            hint=_how_another_leads(circle),
        )


def without_site(circle: Circle, name: str, heirs: Heirs = NO_HEIRS) -> Circle:
    """Return the circle without a site; its histories stay known, with their heirs.

    Raises:
        InvalidError: There is no such site, or other sites need it.
    """
    site = circle.site(name)
    if name == circle.primary:
        raise InvalidError(
            f"{name} is the primary of {circle.database}, whose log all other sites read",
            hint=_how_another_leads(circle),
        )
    owned = [str(rule.table) for rule in circle.rules if rule.site == name]
    if owned:
        raise InvalidError(
            f"only site {name} may write {owned[0]}", hint=f"wlc site rule DB {owned[0]} owner --site OTHER"
        )
    rest = tuple(each for each in circle.sites if each.name != name)
    return replace(circle, sites=rest, past=(*circle.past, *_past_of(site, heirs)))


def _how_another_leads(circle: Circle) -> str:
    """Return the command that makes another site the primary, so that this one can leave or begin anew."""
    other = next((each.name for each in circle.sites if each.role == SECONDARY), None)
    if circle.is_mesh or other is None:
        return f"{circle.primary} stays the primary while there is no secondary; wlc site list DB"
    return (
        f"let another site become the primary first: wlc site role FILE {other} primary, with the file of site"
        f" {circle.primary}; or, if that is lost: wlc site role DB {other} primary --lost {circle.primary}"
    )


def _past_of(site: CircleSite, heirs: Heirs) -> list[PastHistory]:
    return [PastHistory(each.history, each.parent, heirs.get(each.history)) for each in site.histories]


def _with(circle: Circle, site: CircleSite) -> Circle:
    return replace(circle, sites=tuple(site if each.name == site.name else each for each in circle.sites))
