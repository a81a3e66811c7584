"""A replica of one site becomes another site, with a history and a folder of its own."""

from __future__ import annotations

import os
import shlex
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.exchange.taking import as_reader
from wlc.farm.circle import SiteHistory, change_circle, read_circle, with_site
from wlc.farm.clock import utc_now
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError, UnsupportedError
from wlc.farm.model import Taken
from wlc.farm.paths import SITES, site_folder
from wlc.farm.registry import register
from wlc.farm.store import MissingError, join_url
from wlc.masters import adapters
from wlc.masters.claim import SiteMembership, Wish, claim, name_taken
from wlc.masters.lookup import resolve
from wlc.masters.place import site_database
from wlc.masters.state import SiteState
from wlc.masters.status import status_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.circle import Circle, CircleSite
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position
    from wlc.masters.contract import Source
    from wlc.masters.state import MasterState
    from wlc.masters.status import MasterStatus


def join(
    source: str | os.PathLike[str],
    *,
    name: str,
    site: str,
    farm: str | None = None,
    beat_s: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MasterStatus:
    """Make a replica of the primary another site of its database, which is written from now on.

    Dying in between is harmless: the same call goes on.

    Args:
        source: A DuckDB replica of the primary, made by `wlr.replicate`, of all tables and up to its last batch.
        name: Name or URL of the database in the farm.
        site: Name of the new site.
        farm: URL of the farm; WLC_FARM if omitted.
        beat_s: Longest wait of a committed transaction, seconds; 300 if omitted.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has one master only, the name is taken, or the file is not such a replica.
        UnsupportedError: It is no DuckDB file.
        ExpiredError: The replica is too old: what came after it was pruned.
    """
    _refuse_server(source)
    founder = resolve(name, farm, storage_options=storage_options)
    circle = read_circle(founder)
    with adapters.opened(source) as found:
        if found.held() is not None:
            _refuse_taken_name(founder, circle, site)
        contained, proof = _held(found, founder, circle, site)
        remembered = SiteState(site, site_folder(site), contained, (proof,) if proof else ())
        announcement = _Announcement(founder, circle, remembered, str(found))
        membership = SiteMembership(remembered, announcement.make, is_replica=True)
        wish = Wish(
            farm=join_url(founder.url, SITES.rstrip("/")),
            name=site,
            beat_s=beat_s,
            storage_options=storage_options or {},
            membership=membership,
        )
        database = claim(found, wish)
        _warn_of_sequences(database)
        return status_of(database, found.details())


def joined_from(
    source: str | os.PathLike[str],
    *,
    name: str,
    site: str | None = None,
    farm: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str | None:
    """Return the URL of the site of which `join` needs a replica; None if the file has begun to be a site.

    Args:
        source: The file that is to become a site.
        name: Name or URL of the database in the farm.
        site: Name of the new site, to refuse one that is taken before the rows are copied.
        farm: URL of the farm; WLC_FARM if omitted.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has one master only, or the name is taken.
        UnsupportedError: The source is no DuckDB file.
    """
    _refuse_server(source)
    founder = resolve(name, farm, storage_options=storage_options)
    circle = read_circle(founder)
    if adapters.is_source(source):
        with adapters.opened(source) as found:
            if found.held() is None and found.state is not None:
                return None
    if site is not None:
        _refuse_taken_name(founder, circle, site)
    return site_database(founder, circle.site(circle.primary).folder).url


def _refuse_server(source: str | os.PathLike[str]) -> None:
    """Refuse what is no file, before anything is asked of it.

    Raises:
        UnsupportedError: It is the URL of a server.
    """
    scheme, mark, _ = os.fspath(source).partition("://")
    if mark:
        raise UnsupportedError(
            f"a {scheme}:// database cannot be a site: only DuckDB files can, PostgreSQL sites do not exist yet",
            hint="wlc join FILE.duckdb --name DB --site NAME; a server can hold a replica: wlr replicate DB --into URL",
        )


def _warn_of_sequences(database: FarmDatabase) -> None:
    """Warn of keys that every site would number alike."""
    ticks = database.snapshot_ticks()
    for table in database.read_manifest(ticks[-1]).tables if ticks else ():
        for column in table.layout.stored:
            if column.name in table.layout.primary_key and "nextval(" in (column.default or "").lower():
                warnings.warn(
                    f"key column {column.name} of {table.table} defaults to a sequence, which gives every site the same"
                    " numbers: two sites insert different rows under one key. Let each site insert keys of a range of"
                    " its own, make the site a part of the key, or use keys of type UUID with the default uuid()",
                    stacklevel=3,
                )


def _refuse_taken_name(founder: FarmDatabase, circle: Circle, site: str) -> None:
    """Refuse the name of a site that there is, or was: its folder holds its log.

    Raises:
        InvalidError: The name is taken.
    """
    place = site_database(founder, site_folder(site))
    if site.lower() in [each.name.lower() for each in circle.sites]:
        raise name_taken(place.url, site)
    with suppress(MissingError):
        place.config()
        raise name_taken(place.url, site)


@dataclass(frozen=True, slots=True)
class _Announcement:
    """How a new site becomes known to the others."""

    founder: FarmDatabase
    circle: Circle
    site: SiteState
    target: str

    def make(self, state: MasterState) -> SiteState:
        """Register at the primary what the site has read, and the primary at the site, then enter the circle."""
        primary = self.circle.site(self.circle.primary)
        proof = self.site.proof_of(primary.name)
        register(site_database(self.founder, primary.folder), as_reader(self.site, self.target, proof))
        reader = SiteState(primary.name, primary.folder)
        register(site_database(self.founder, self.site.folder), as_reader(reader, primary.name, None))
        history = SiteHistory(state.history, state.parent)
        circle = change_circle(self.founder, lambda present: with_site(present, self.site.name, history, utc_now()))
        return replace(self.site, circle=circle)


def _held(source: Source, founder: FarmDatabase, circle: Circle, site: str) -> tuple[Mapping[str, int], Taken | None]:
    """Return what a database contains that is to become a site, and where it stands in the primary's log."""
    position = source.held()
    state = source.state
    if position is None:
        if state is None or state.site is None or state.site.name != site or state.is_master:
            raise InvalidError(
                f"{source} is no replica of {circle.database}",
                hint="wlc join makes the file: name one that is not there",
            )
        return state.site.contained, state.site.proof_of(circle.primary)
    primary = circle.site(circle.primary)
    if position.history not in ("", *(history.history for history in primary.histories)):
        raise InvalidError(
            f"{source} is a replica of another database or site than {primary.name}",
            hint="wlc join makes the file: name one that is not there",
        )
    return _contained(site_database(founder, primary.folder), primary, position)


def _contained(log: FarmDatabase, primary: CircleSite, position: Position) -> tuple[Mapping[str, int], Taken | None]:
    """Return the vector of the primary's log at the end of the batch in which a replica stands."""
    if position.batch == 0:
        vector = {position.history: position.tick} if position.history and position.tick else {}
        return vector, None
    try:
        batch, chain = log.read_batch(position.batch)
    except (MissingError, CorruptError) as error:
        raise ExpiredError(
            f"batch {position.batch} of site {primary.name}, where the replica stands, was pruned",
            hint="remove the file and join again",
        ) from error
    if chain != position.chain:
        raise InvalidError(f"the replica has another past than site {primary.name}", hint="remove it and join again")
    if position.tick < batch.last and position.tick:
        raise InvalidError(
            f"the replica stands at tick {position.tick}, within batch {batch.number}",
            hint=f"wlr replicate {shlex.quote(log.url)} --into FILE brings it to the end",
        )
    return dict(batch.vector), Taken(primary.name, batch.history, batch.last, batch.number, chain)
