"""Who is a site of a circle: decided by pure functions from one circle to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.circle import FOUNDER, PRIMARY, SECONDARY, STAR, Circle, CircleSite, PastHistory, SiteHistory
from wlc.farm.errors import InvalidError
from wlc.farm.paths import site_folder
from wlc.farm.vectors import Heir

if TYPE_CHECKING:
    from datetime import datetime

Heirs = Mapping[str, Heir]
NO_HEIRS: Heirs = {}


def founded(database: str, site: str, history: str, now: datetime, reading: str = STAR) -> Circle:
    """Return the circle of a database with one site."""
    site_folder(site)  # It refuses what cannot name a site.
    founder = CircleSite(site, FOUNDER, PRIMARY, (SiteHistory(history),), now)
    return Circle(database, 1, site, reading, site, (founder,))


def with_site(circle: Circle, name: str, history: SiteHistory, now: datetime, folder: str = "") -> Circle:
    """Return the circle with another site, or with a site's next history; `folder` is called after it if omitted.

    Raises:
        InvalidError: The name is taken by a site that this one did not grow from.
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
    """Return the circle in which a site has begun anew in another folder; its role, and what it owns, stay its own.

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
            f"{name} is the primary of {circle.database}, by whose log all other sites go: it cannot begin anew",
            hint=_how_another_leads(circle),
        )


def without_site(circle: Circle, name: str, heirs: Heirs = NO_HEIRS) -> Circle:
    """Return the circle without a site; its histories stay known, and who contains them.

    Raises:
        InvalidError: There is no such site, or others need it.
    """
    site = circle.site(name)
    if name == circle.primary:
        raise InvalidError(
            f"{name} is the primary of {circle.database}, whose log all other sites read",
            hint=_how_another_leads(circle),
        )
    owned = [str(rule.table) for rule in circle.rules if rule.site == name]
    if owned:
        raise InvalidError(f"only site {name} may write {owned[0]}", hint=f"wlc rule DB {owned[0]} owner --site OTHER")
    rest = tuple(each for each in circle.sites if each.name != name)
    return replace(circle, sites=rest, past=(*circle.past, *_past_of(site, heirs)))


def _how_another_leads(circle: Circle) -> str:
    """Say what to type so that another site is the primary, after which this one can do what others can."""
    other = next((each.name for each in circle.sites if each.role == SECONDARY), None)
    if circle.is_mesh or other is None:
        return f"{circle.primary} stays the primary as long as there is no secondary; wlc sites DB"
    return (
        f"let another site become the primary first: wlc role FILE {other} primary, with the file of site"
        f" {circle.primary}; or, if that is lost: wlc role DB {other} primary --lost {circle.primary}"
    )


def _past_of(site: CircleSite, heirs: Heirs) -> list[PastHistory]:
    return [PastHistory(each.history, each.parent, heirs.get(each.history)) for each in site.histories]


def _with(circle: Circle, site: CircleSite) -> Circle:
    return replace(circle, sites=tuple(site if each.name == site.name else each for each in circle.sites))
