"""Where a master finds the circle of its database, which lies in the founder's folder."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.circle import FOUNDER, read_circle
from wlc.farm.database import open_database
from wlc.farm.errors import FencedError
from wlc.farm.store import join_url

if TYPE_CHECKING:
    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.masters.state import SiteState


def founder_of(database: FarmDatabase, site: SiteState) -> FarmDatabase:
    """Return the founder's folder, given the one of a site."""
    return founder_at(database, site.folder)


def founder_at(database: FarmDatabase, folder: str) -> FarmDatabase:
    """Return the founder's folder, given that of a site and its path below the founder's."""
    if folder == FOUNDER:
        return database
    url = database.url.rstrip("/").removesuffix(folder).rstrip("/")
    return open_database(url, storage_options=database.storage_options)


def site_database(founder: FarmDatabase, folder: str) -> FarmDatabase:
    """Return a site's folder, a whole farm database."""
    return (
        founder
        if folder == FOUNDER
        else open_database(join_url(founder.url, folder), storage_options=founder.storage_options)
    )


def without_site_that_lies(database: str, site: str) -> str:
    """Say how others go on without a site whose log cannot be believed, given the URL of any site's folder."""
    return f"to go on without this site: wlc leave {shlex.quote(database)} {site} --force"


def is_member(site: SiteState, circle: Circle) -> bool:
    """Say whether a site is one of a circle; another one may have its name since it left."""
    return (site.name, site.folder) in [(each.name, each.folder) for each in circle.sites]


def with_circle(site: SiteState, database: FarmDatabase) -> SiteState:
    """Return what a site remembers, with the circle as it is now; nothing changes while it is alone.

    Raises:
        FencedError: The site is not one of the circle any more.
    """
    circle = read_circle(founder_of(database, site))
    if not is_member(site, circle):
        raise FencedError(
            f"site {site.name} has left {circle.database}",
            hint="to publish this database by itself: wlc stop SOURCE, then wlc master SOURCE --name OTHER",
            path=database.url,
        )
    return replace(site, circle=circle) if circle.is_shared or site.circle else site
