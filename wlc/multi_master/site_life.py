"""The part of a site's life cycle common to all engines: its hooks in publishing, beginning and stopping.

A master becomes the first of several sites: its database gets a circle, in which it is alone at first.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.errors import FencedError, InvalidError
from wlc.farm.paths import site_folder
from wlc.masters.claim import claim
from wlc.masters.contract import SiteSource, database_of
from wlc.masters.master_state import SiteMembership
from wlc.multi_master import restored
from wlc.multi_master.circle import FOUNDER, MESH, STAR, SiteHistory, circle_object, find_circle, how_to_join_anew
from wlc.multi_master.circle_place import SiteState, founder_of, is_member, with_circle
from wlc.multi_master.membership import founded

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch
    from wlc.masters.contract import Source
    from wlc.masters.master_state import MasterState, Wish
    from wlc.multi_master.circle import Circle


class SiteLife(SiteSource):
    """The operations of a database as a site, on top of its engine's."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def claim(self, wish: Wish, site: str | None, *, is_mesh: bool) -> FarmDatabase:
        state = self._source.state
        if state is not None and not state.is_master:
            site = _former_site(self._source, state, wish, site)
        elif state is not None and site is not None and not wish.is_moved:
            database = database_of(state, wish.storage_options)
            _found_running(self._source, state, database, site, is_mesh=is_mesh)
            return database
        membership = _founder(site, state, is_mesh=is_mesh) if site is not None else None
        return claim(self._source, replace(wish, membership=membership))

    def refuse_end(self, database: FarmDatabase) -> None:
        site = self._source.require_state().member
        circle = find_circle(founder_of(database, site))
        others = [each.name for each in circle.sites if each.name != site.name] if circle is not None else []
        if circle is not None and others and circle.primary == site.name:
            raise InvalidError(
                f"{self._source} is the primary of {circle.database}, whose log is read by {', '.join(others)}",
                hint="let another site become the primary first:"
                f" wlc site role {shlex.quote(str(self._source))} {others[0]} primary; or let the other sites leave:"
                f" wlc site leave {shlex.quote(database.url)} {others[0]}",
            )

    def reconcile_log(self, database: FarmDatabase) -> None:
        restored.reconcile_log(self._source, database)

    def reconcile_end(self, database: FarmDatabase) -> None:
        self.has_settled_past = False
        self.reconcile_log(database)
        if (state := self._source.require_state()).has_ended:
            raise FencedError(
                f"a handover ended history {state.history} of {database.name}, and {database.url} does not hold it",
                hint="put the folder back",
                path=database.url,
            )

    def follow_circle(self, database: FarmDatabase) -> MasterState:
        state = self._source.require_state()
        if (site := with_circle(state.member, database)) != state.site:
            # The rule was checked against the published tables. Pending transactions may have changed them since.
            self.refuse_rules(site)
            self._source.remember(replace(state, site=site))
        return self._source.require_state()

    def follow_handover(self, database: FarmDatabase, batch: Batch, chain: str) -> None:
        restored.step_down(self._source, database, batch, chain)


def _founder(name: str, former: MasterState | None, *, is_mesh: bool) -> SiteMembership:
    """Return the membership of a circle's founder; `former` is its former state; `is_mesh`: the circle becomes a mesh.

    Raises:
        InvalidError: The name cannot name a site.
    """
    site_folder(name)
    contained = former.site.contained if former is not None and former.site is not None else {}
    site = SiteState(name, FOUNDER, contained)

    def announce(state: MasterState) -> SiteState:
        _found(database_of(state), name, state, is_mesh=is_mesh)
        return site

    return SiteMembership(site, announce)


def _former_site(source: Source, state: MasterState, wish: Wish, site: str | None) -> str | None:
    """Return the site as which a stopped database begins a history, None if it is no site.

    Raises:
        InvalidError: Other sites would never get the changes since the last history, or it has left them.
    """
    if state.site is None or wish.name not in (None, state.name):
        return site
    if source.elsewhere() is not None and not wish.is_moved:
        return site
    former = state.site
    first = founder_of(database_of(state, wish.storage_options), former)
    circle = find_circle(first) or state.circle
    if circle is None:
        return site or former.name
    target = shlex.quote(str(source))
    if not is_member(former, circle):
        raise InvalidError(
            f"{source} was site {former.name} of {circle.database}, which it has left",
            hint=f"to publish this database by itself: wlc master {target} --name OTHER",
        )
    if circle.is_shared:
        raise stopped_site(source, former, circle, first)
    if not former.is_founder:
        raise InvalidError(
            f"{source} was site {former.name} of {circle.database} and was stopped: only the folder of its first site"
            " can begin again",
            hint=f"to publish this database by itself: wlc master {target} --name OTHER",
        )
    if site not in (None, former.name):
        raise InvalidError(f"{source} was site {former.name}", hint=f"wlc master {target} --site {former.name}")
    return former.name


def stopped_site(source: Source, former: SiteState, circle: Circle, founder: FarmDatabase) -> InvalidError:
    """Build the error for a stopped site whose later changes the other sites would never get."""
    target = shlex.quote(str(source))
    if former.name == circle.primary:
        begin = "let the other sites leave (wlc site leave), wlc master again, and let them join with new files"
    else:
        begin = how_to_join_anew(founder.url, former.name, target)
    return InvalidError(
        f"{source} was site {former.name} of {circle.database} and was stopped: later changes are in no log",
        hint=f"{begin}; or publish this database by itself: wlc master {target} --name OTHER",
    )


def _found_running(source: Source, state: MasterState, database: FarmDatabase, name: str, *, is_mesh: bool) -> None:
    """Make a master the first site of its database; can be repeated.

    Raises:
        InvalidError: It is already a site under another name, or there are other sites and they are no mesh.
    """
    site_folder(name)
    if state.site is not None:
        if state.site.name != name:
            raise InvalidError(
                f"{source} is site {state.site.name} already", hint=f"wlc site list {shlex.quote(str(source))}"
            )
        if (remembered := state.circle) is not None:
            # The farm may have lost it.
            circle_object(founder_of(database, state.site)).change(
                lambda present: _read_as(present or remembered, is_mesh=is_mesh)
            )
            return
        if not state.site.is_founder:
            return
    _found(database, name, state, is_mesh=is_mesh)
    if state.site is None:
        source.remember(replace(state, site=SiteState(name, FOUNDER, own=state.tick)))


def _found(database: FarmDatabase, name: str, state: MasterState, *, is_mesh: bool) -> None:
    def change(present: Circle | None) -> Circle:
        if present is None:
            return founded(database.name, name, state.history, utc_now(), MESH if is_mesh else STAR)
        present = _read_as(present, is_mesh=is_mesh)
        first = present.site(name)
        if state.history in [each.history for each in first.histories]:
            return present
        if present.is_shared:
            raise InvalidError(
                f"{database.name} has other sites, which lack the changes made while {name} was stopped",
                hint=f"wlc site list {database.url}",
            )
        grown = replace(first, histories=(*first.histories, SiteHistory(state.history, state.parent)))
        return replace(present, sites=(grown,))

    circle_object(database).change(change)


def _read_as(circle: Circle, *, is_mesh: bool) -> Circle:
    """Return the circle as a mesh if requested: only a lone site without rules can still choose it."""
    if circle.is_mesh or not is_mesh:
        return circle
    if circle.is_shared or circle.rules or circle.former_terms:
        why = "has other sites" if circle.is_shared else "has rules" if circle.rules else "had another primary"
        raise InvalidError(
            f"{circle.database} {why}, which is a star of sites, and cannot become a mesh any more",
            hint="publish a copy of the file as a database of its own: wlc master COPY --name OTHER --site NAME --mesh",
        )
    return replace(circle, reading=MESH)
