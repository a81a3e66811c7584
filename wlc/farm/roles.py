"""Roles of sites: which may follow which, and the circle after a change of primary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.circle import NONE, PASS, PRIMARY, ROLES, SECONDARY
from wlc.farm.errors import CorruptError, InvalidError

if TYPE_CHECKING:
    from wlc.farm.circle import Circle, CircleSite, Reign
    from wlc.farm.model import Handover


def with_role(circle: Circle, name: str, role: str) -> Circle:
    """Return the circle in which a site has another role.

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
            hint=f"wlc role FILE {other} primary, with the file of site {circle.primary}",
        )
    refuse_role(site, role)
    return replace(circle, sites=tuple(replace(each, role=role) if each is site else each for each in circle.sites))


def refuse_role(site: CircleSite, role: str) -> None:
    """Refuse a role that cannot follow the one that a site has.

    Raises:
        InvalidError: It cannot.
    """
    if PASS in (role, site.role) and NONE not in (role, site.role):
        raise InvalidError(
            f"site {site.name} has the role {site.role}, which {role} cannot follow",
            hint=f"wlc role DB {site.name} none",
        )


def with_primary(circle: Circle, handover: Handover, reign: Reign) -> Circle:
    """Return the circle after a handover; nothing changes if that was noted before.

    If the successor has left meanwhile, the former primary succeeds itself, in a new history.

    Args:
        circle: As it is.
        handover: What the last batch of the primary's history says.
        reign: The term that it ends.

    Raises:
        CorruptError: It is not the end of the present term.
    """
    if handover.term <= circle.term:
        return circle
    if handover.term != circle.term + 1 or reign.site != circle.primary:
        raise CorruptError(
            f"batch {reign.batch} of site {reign.site} begins term {handover.term} of {circle.database}, which is in"
            f" term {circle.term} of {circle.primary}",
            hint="wlc sites DB",
        )
    primary = handover.to if handover.to in [site.name for site in circle.sites] else circle.primary
    return replace(_led_by(circle, primary), reigns=(*circle.reigns, reign))


def with_successor_of_none(circle: Circle, known: Circle, to: str) -> Circle:
    """Return the circle in which a site succeeds a primary that has no history: its last one was ended before.

    Such a primary has decided nothing, and cannot before it has entered its next history into the circle. So there is
    nothing to end, and replacing the circle settles who came first.

    Args:
        circle: As it is.
        known: As it was read; nothing changes if the primary has gone on since.
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
