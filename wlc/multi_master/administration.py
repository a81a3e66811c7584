"""An owner's changes of the circle: roles, and sites that leave."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc.farm.config import STARTED, STOPPED
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.model import Origin
from wlc.farm.registry import known_replicas, unregister
from wlc.farm.store import MissingError
from wlc.farm.vectors import Heir, expanded
from wlc.masters import adapters
from wlc.masters.lookup import opened_master, resolve
from wlc.masters.publish import publish
from wlc.multi_master.anchors import has_seen
from wlc.multi_master.circle import NONE, PASS, PRIMARY, change_circle, find_circle, naming, read_circle
from wlc.multi_master.circle_place import founder_at, site_database
from wlc.multi_master.handover import hand_over
from wlc.multi_master.membership import with_role, without_site

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.multi_master.circle import Circle, CircleSite


def founder_of_database(
    db: str | os.PathLike[str], farm: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> FarmDatabase:
    """Open the founder's folder, given the database's name or URL, or the file of any of its sites."""
    database = resolve(db, farm, storage_options=storage_options)
    above, _, name = database.url.rstrip("/").rpartition("/sites/")
    # A farm may be called `sites`, too, and a bucket.
    if not above or above.endswith("/") or "/" in name:
        return database
    founder = founder_at(database, f"sites/{name}")
    return founder if find_circle(founder) is not None else database


def set_role(
    db: str | os.PathLike[str],
    site: str,
    role: str,
    *,
    lost: str | None = None,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Circle:
    """Give a site another role, and return the circle.

    A site becomes the primary by a batch in the log of the present primary, which continues as a secondary. Nothing is
    judged until the new primary takes. A crash in between is harmless: the same call continues.

    Args:
        db: Name or URL of the database, or the file of one of its sites. To change the primary, the file of the present
            primary, which first publishes pending transactions.
        site: The site; `role`: primary, secondary, none or pass.
        role: Its new role.
        lost: The present primary, if its file is not available: its unpublished transactions are judged if it comes
            back.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such site or role, the role cannot follow the present one, or the file is not that of
            the primary.
        UnsupportedError: The sites are a mesh, in which the primary cannot change.

    Examples:
        >>> circle = wlc.set_role("sales.duckdb", "rome", "primary")
        >>> circle.primary
        'rome'
    """
    founder = founder_of_database(db, farm, storage_options)
    # Users can type hints unchanged.
    named = shlex.quote(founder.url)
    if role in (PRIMARY, PASS) and read_circle(founder).is_mesh:
        raise UnsupportedError(
            f"{founder.url} is a mesh of sites, where no site decides for the others: role {role} has no meaning",
            hint=f"the first site goes on as the one that changes the schema; wlc site list {named}",
        )
    if role != PRIMARY:
        if lost is not None:
            raise InvalidError(
                "--lost names the primary that another site succeeds", hint=f"wlc site role {named} {site} {role}"
            )
        return change_circle(founder, lambda circle: with_role(circle, site, role))
    circle = read_circle(founder)
    if circle.site(site).role == PRIMARY:
        return circle
    if lost is None:
        return _hand_over_from(db, founder, circle, site, storage_options)
    if lost != circle.primary:
        raise InvalidError(
            f"site {lost} is not the primary of {circle.database}: that is {circle.primary}",
            hint=f"wlc site role {named} {site} primary --lost {circle.primary}",
        )
    return hand_over(founder, site)


def _hand_over_from(
    db: str | os.PathLike[str],
    founder: FarmDatabase,
    circle: Circle,
    site: str,
    storage_options: Mapping[str, Any] | None,
) -> Circle:
    """Publish a primary's pending transactions and hand over, given its file."""
    wrong = InvalidError(
        f"site {circle.primary} is the primary of {circle.database}, and must publish its pending transactions before "
        f"{site} is",
        hint=f"name its file: wlc site role FILE {site} primary; or, if it is lost or cannot be reached:"
        f" wlc site role {shlex.quote(founder.url)} {site} primary --lost {circle.primary}",
    )
    if not adapters.is_source(db):
        raise wrong
    with opened_master(db, storage_options) as (source, database):
        state = source.require_state()
        if state.site is None or state.site.name != circle.primary:
            raise wrong
        with source.publishing():
            publish(source, database)
            hand_over(founder, site)
            # The former primary continues as a secondary at once, under a new history.
            source.require_site().has_settled_past = False
            publish(source, database)
    return read_circle(founder)


def leave(
    db: str | os.PathLike[str],
    site: str,
    *,
    farm: str | os.PathLike[str] | None = None,
    force: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Circle:
    """Remove a site from the circle: it stops publishing, and vectors stop naming its history. Returns the circle.

    Args:
        db: Name or URL of the database, or the file of one of its sites.
        site: The site that leaves.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        force: Remove it although other sites lack some of its transactions, which they then never get.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such site, it is the primary, or other sites lack some of its transactions.

    Examples:
        >>> circle = wlc.leave("sales", "rome")
        >>> [site.name for site in circle.sites]
        ['oslo']
    """
    founder = founder_of_database(db, farm, storage_options)
    with naming(lambda: founder.url):
        return _leave(founder, site, force=force)


def _leave(founder: FarmDatabase, site: str, *, force: bool) -> Circle:
    circle = read_circle(founder, to_change=True)
    leaving = circle.site(site)
    without_site(circle, site)
    place = site_database(founder, leaving.folder)
    if not force:
        _refuse_unread(place, circle, leaving)
    # It publishes no more, so the check stays valid.
    stop(place)
    if not force:
        try:
            _refuse_unread(place, circle, leaving)
        except InvalidError:
            place.change_config(lambda config: replace(config, state=STARTED))
            raise
    heirs = heirs_of(founder, circle, leaving)
    left = change_circle(founder, lambda circle: without_site(circle, site, heirs))
    for other in left.sites:
        unregister(site_database(founder, other.folder), site)
    return left


def stop(place: FarmDatabase) -> None:
    """End a site's publications; a site without its folder cannot publish anyway."""
    with suppress(MissingError):
        place.change_config(lambda config: replace(config, state=STOPPED))


def heirs_of(founder: FarmDatabase, circle: Circle, leaving: CircleSite) -> dict[str, Heir]:
    """Return the position in the primary's log that contains all transactions of a leaving site that any site has.

    Transactions that the primary has taken and not yet published are missing: vectors then still name that history.
    """
    log, place = site_database(founder, circle.site(circle.primary).folder), site_database(founder, leaving.folder)
    numbers, its = log.batch_numbers(), place.batch_numbers()
    if not numbers:
        return {}
    newest, lineage = log.read_batch(numbers[-1])[0], circle.lineage()
    contained, at = expanded(newest.vector, lineage), Origin(newest.history, newest.last)
    ends = {each.history: contained.get(each.history, 0) for each in leaving.histories}
    if its and has_seen(contained, last := place.read_batch(its[-1])[0], lineage):
        # Ticks after the last taken one only repeat other sites' transactions.
        ends[last.history] = last.last
    return {history: Heir(at, last) for history, last in ends.items() if last}


def _refuse_unread(place: FarmDatabase, circle: Circle, leaving: CircleSite) -> None:
    """Refuse while a site that reads the log has not read all of it."""
    numbers = place.batch_numbers()
    if not numbers:
        return
    read = {replica.id: replica.position.batch for replica in known_replicas(place)[0] if replica.position}
    for other in circle.sites:
        # The primary must read the site's transactions from before its role became none.
        reads = other.name == circle.primary or leaving in circle.sources_of(other.name)
        done = read.get(other.name, 0)
        if reads and done < numbers[-1]:
            first = f"wlc site role DB {leaving.name} secondary; " if leaving.role == NONE else ""
            raise InvalidError(
                f"site {other.name} has read site {leaving.name} up to batch {done} of {numbers[-1]}",
                hint=f"{first}run wlc site take at {other.name} first; --force gives up the transactions that it lacks",
            )
