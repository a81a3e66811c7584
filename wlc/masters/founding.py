"""A master becomes the first of several sites: its database gets a circle, in which it is alone at first."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.circle import FOUNDER, SiteHistory, circle_object, founded
from wlc.farm.clock import utc_now
from wlc.farm.errors import InvalidError
from wlc.farm.paths import site_folder
from wlc.masters.claim import SiteMembership
from wlc.masters.contract import database_of
from wlc.masters.state import SiteState

if TYPE_CHECKING:
    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import Source
    from wlc.masters.state import MasterState


def founder(name: str) -> SiteMembership:
    """Return what the founder of a circle becomes.

    Raises:
        InvalidError: The name cannot name a site.
    """
    site_folder(name)

    site = SiteState(name, FOUNDER)

    def announce(state: MasterState) -> SiteState:
        _found(database_of(state), name, state)
        return site

    return SiteMembership(site, announce)


def found(source: Source, database: FarmDatabase, name: str) -> None:
    """Make a master the first site of its database; doing it twice changes nothing.

    Raises:
        InvalidError: It is a site under another name already.
    """
    state = source.require_state()
    membership = founder(name)
    if state.site is not None:
        if state.site.name != name:
            raise InvalidError(
                f"{source} is site {state.site.name} already", hint=f"wlc sites {shlex.quote(str(source))}"
            )
        return
    _found(database, name, state)
    source.remember(replace(state, site=membership.site))


def _found(database: FarmDatabase, name: str, state: MasterState) -> None:
    def change(present: Circle | None) -> Circle:
        if present is None:
            return founded(database.name, name, state.history, utc_now())
        first = present.site(name)
        if state.history in [each.history for each in first.histories]:
            return present
        if present.is_shared:
            raise InvalidError(
                f"{database.name} has other sites, which do not have what was written while {name} was stopped",
                hint=f"wlc sites {database.url}",
            )
        grown = replace(first, histories=(*first.histories, SiteHistory(state.history, state.parent)))
        return replace(present, sites=(grown,))

    circle_object(database).change(change)
