"""A replica of one site becomes another site, with a history and a folder of its own.

A site that cannot continue begins anew: with a new file, history and folder, under its name.

Transactions that the primary has not taken are not deleted: its file is renamed, and its log stays.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.opening import wal_of
from wlc.farm.clock import utc_now
from wlc.farm.config import STOPPED
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError, UnsupportedError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Taken
from wlc.farm.paths import SITES, site_folder
from wlc.farm.registry import register
from wlc.farm.store import MissingError, join_url
from wlc.farm.vectors import contains, expanded
from wlc.masters import adapters
from wlc.masters.claim import claim
from wlc.masters.contract import cannot_be_site, database_of
from wlc.masters.lookup import resolve
from wlc.masters.master_state import BEGINNING, SiteMembership, Wish
from wlc.masters.status import status_of
from wlc.multi_master.administration import heirs_of, stop
from wlc.multi_master.circle import FOUNDER, SiteHistory, change_circle, how_to_join_anew, naming, read_circle
from wlc.multi_master.circle_place import SiteState, founder_of, site_database
from wlc.multi_master.membership import refuse_primary_anew, with_site, with_site_anew
from wlc.multi_master.site_life import stopped_site
from wlc.multi_master.take_round import as_reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position
    from wlc.masters.contract import Source
    from wlc.masters.master_state import MasterState
    from wlc.masters.status import MasterStatus
    from wlc.multi_master.circle import Circle, CircleSite


def join(
    source: str | os.PathLike[str],
    *,
    name: str,
    site: str,
    farm: str | os.PathLike[str] | None = None,
    beat_s: float | None = None,
    again: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> MasterStatus:
    """Make a replica of a site another, writable site of its database.

    A crash in between is harmless: the same call continues.

    Args:
        source: A DuckDB replica of what `joined_from` returned, made by `wlr.replicate`, of all tables.
        name: Name or URL of the database in the farm.
        site: Name of the new site.
        farm: URL of the farm; WLC_FARM if omitted.
        beat_s: Longest wait of a committed transaction, seconds; that of the primary if omitted.
        again: The file replaces the site of that name, which cannot continue. See `begin_anew`.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has only one master, the name is taken, it is that of the primary, which cannot begin
            anew, or the file is not such a replica.
        UnsupportedError: It is no DuckDB file.
        ExpiredError: The replica is too old: the log after it was pruned.

    Examples:
        >>> start = wlc.joined_from("paris.duckdb", name="sales", site="paris")
        >>> done = wlr.replicate(start.url, into="paris.duckdb", tick=start.tick, register=False)
        >>> wlc.join("paris.duckdb", name="sales", site="paris").state
        'active'
    """
    refuse_server(source)
    founder = resolve(name, farm, storage_options=storage_options)
    circle = read_circle(founder, to_change=True)
    if again:
        with naming(lambda: founder.url):
            refuse_primary_anew(circle, site)
    with adapters.opened(source) as found:
        folder = found.state.site.folder if found.state is not None and found.state.site is not None else ""
        if found.require_site().held() is not None:
            if not again:
                _refuse_taken_name(founder, circle, site)
            folder = free_folder(founder, circle, site)
            if beat_s is None:
                beat_s = site_database(founder, circle.site(circle.primary).folder).config().beat_s
        contained, proofs = _held(found, founder, circle, site)
        remembered = SiteState(site, folder, contained, proofs)
        announcement = _Announcement(founder, circle, remembered, found, is_again=again)
        clock = _last_clock(founder, circle) if circle.is_mesh else None
        membership = SiteMembership(remembered, announcement.make, True, _announced(circle, remembered), clock)
        wish = Wish(
            farm=join_url(founder.url, SITES.rstrip("/")),
            name=folder.removeprefix(SITES),
            beat_s=beat_s,
            storage_options=storage_options or {},
            membership=membership,
        )
        database = claim(found, wish)
        _warn_of_sequences(database)
        return status_of(database, found.details())


@dataclass(frozen=True, slots=True)
class JoinedFrom(ForPeople):
    """The site of which a file first becomes a replica, before it becomes a site itself.

    Attributes:
        url: Folder of the site whose rows it gets.
        tick: Last tick of that site's log to take; None for all of it.
    """

    url: str
    tick: int | None = None


def joined_from(
    source: str | os.PathLike[str],
    *,
    name: str,
    site: str | None = None,
    farm: str | os.PathLike[str] | None = None,
    start: str | None = None,
    again: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> JoinedFrom | None:
    """Return the site of which `join` needs a replica; None if the file is already becoming a site.

    Args:
        source: The file that becomes a site.
        name: Name or URL of the database in the farm.
        site: Name of the new site, to refuse one that is taken before the rows are copied.
        farm: URL of the farm; WLC_FARM if omitted.
        start: Begin with the rows of this site, as far as the primary has them; those of the primary if omitted.
        again: As for `join`.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has only one master, the name is taken, or there is no such site.
        ExpiredError: No tick of `start` that the primary has is still in its log.
        UnsupportedError: The source is no DuckDB file, or `start` is not the primary of a mesh.

    Examples:
        >>> start = wlc.joined_from("paris.duckdb", name="sales", site="paris")
        >>> start.url.endswith("farm/sales")
        True
    """
    refuse_server(source)
    founder = resolve(name, farm, storage_options=storage_options)
    circle = read_circle(founder, to_change=True)
    other = circle.site(start or circle.primary)
    if adapters.is_source(source):
        with adapters.opened(source) as found:
            if found.require_site().held() is None and found.state is not None:
                return None
    if site is not None and not again:
        _refuse_taken_name(founder, circle, site)
    if circle.is_mesh and other.name != circle.primary:
        raise UnsupportedError(
            f"{circle.database} is a mesh, whose new sites begin with the rows of {circle.primary}",
            hint="leave out --from",
        )
    log = site_database(founder, other.folder)
    return JoinedFrom(log.url, None if other.name == circle.primary else _last_at_primary(founder, circle, other))


def _last_clock(founder: FarmDatabase, circle: Circle) -> datetime | None:
    """Return when the primary last committed: changes of the new site are newer, even if its clock is behind."""
    log = site_database(founder, circle.site(circle.primary).folder)
    numbers = log.batch_numbers()
    return log.read_batch(numbers[-1])[0].clock if numbers else None


def _last_at_primary(founder: FarmDatabase, circle: Circle, other: CircleSite) -> int:
    """Return the last tick of a site whose whole content the primary has published.

    Raises:
        ExpiredError: There is none in its log.
    """
    log = site_database(founder, other.folder)
    held = contained_by_primary(founder, circle)
    for number in reversed(log.batch_numbers()):
        batch = log.read_batch(number)[0]
        if contains(held, batch.vector, circle.lineage()):
            return batch.last
    raise ExpiredError(
        f"site {circle.primary} has taken none of the batches in the log of site {other.name}",
        hint=f"run wlc site take at {circle.primary}, then this command again; or leave out --from",
        path=log.url,
    )


def contained_by_primary(founder: FarmDatabase, circle: Circle) -> dict[str, int]:
    """Return the primary's published vector."""
    log = site_database(founder, circle.site(circle.primary).folder)
    numbers = log.batch_numbers()
    return expanded(log.read_batch(numbers[-1])[0].vector, circle.lineage()) if numbers else {}


def _announced(circle: Circle, site: SiteState) -> str:
    """Return the history by which peers know a site whose join was interrupted; "" if they do not know it."""
    return next((each.history for each in circle.sites if (each.name, each.folder) == (site.name, site.folder)), "")


def free_folder(founder: FarmDatabase, circle: Circle, site: str) -> str:
    """Return an unused folder for a new site: not one of a present site, nor one with a former site's log."""
    taken = {each.folder for each in circle.sites}
    for number in count(1):
        folder = site_folder(site, number)
        if folder not in taken:
            try:
                site_database(founder, folder).config()
            except MissingError:
                return folder
    raise AssertionError


def refuse_server(source: str | os.PathLike[str]) -> None:
    """Refuse the URL of a server: only a file can be a site."""
    scheme, mark, _ = os.fspath(source).partition("://")
    if mark:
        raise cannot_be_site(f"a {scheme}:// database")


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
    """Refuse the name of an existing site.

    Raises:
        InvalidError: The name is taken.
    """
    if site.lower() in [each.name.lower() for each in circle.sites]:
        raise InvalidError(
            f"{circle.database} has a site {site} already",
            hint="choose another name with --site; if that site cannot continue: "
            f"{how_to_join_anew(founder.url, site)}",
            path=founder.url,
        )


@dataclass(frozen=True, slots=True)
class _Announcement:
    """The announcement of a new site to its peers."""

    founder: FarmDatabase
    circle: Circle
    site: SiteState
    source: Source
    is_again: bool

    @property
    def target(self) -> str:
        """The site's file, as messages and registrations name it."""
        return str(self.source)

    def make(self, state: MasterState) -> SiteState:
        """Register the site with the sites that it reads, and its readers with it, then enter the circle."""
        for other in self.circle.sites:
            if self.circle.is_mesh or other.name == self.circle.primary:
                proof = self.site.proof_of(other.name)
                register(site_database(self.founder, other.folder), as_reader(self.site, self.target, proof))
                reader = SiteState(other.name, other.folder)
                register(site_database(self.founder, self.site.folder), as_reader(reader, other.name, None))
        history = SiteHistory(state.history, state.parent)

        def change(present: Circle) -> Circle:
            if self.is_again and self.site.name in [each.name for each in present.sites]:
                heirs = heirs_of(self.founder, present, present.site(self.site.name))
                return with_site_anew(present, self.site.name, history, utc_now(), self.site.folder, heirs)
            return with_site(present, self.site.name, history, utc_now(), self.site.folder)

        joined = replace(self.site, circle=change_circle(self.founder, change))
        if not self.circle.is_mesh:
            return joined
        primary = self.circle.site(self.circle.primary)
        proof = self.site.proof_of(primary.name)
        log, last = site_database(self.founder, primary.folder), proof.batch if proof else 0
        floor = self.source.require_site().inherit(log, last, self.circle)
        return replace(joined, floor=floor)


def _held(
    source: Source, founder: FarmDatabase, circle: Circle, site: str
) -> tuple[Mapping[str, int], tuple[Taken, ...]]:
    """Return the vector of a database that becomes a site, and its position in the primary's log."""
    position = source.require_site().held()
    state = source.state
    if position is None:
        if state is None or state.site is None or state.site.name != site or state.is_master:
            what = f"is a master, {state.name}, and" if state is not None and state.is_master else "is"
            raise InvalidError(f"{source} {what} no replica of {circle.database}", hint=_how_to_join(founder, site))
        if state.state == STOPPED:
            raise stopped_site(source, state.site, circle, founder)
        return state.site.contained, state.site.proofs
    for other in circle.sites:
        if position.history in ("", *(history.history for history in other.histories)):
            contained, proof = _contained(site_database(founder, other.folder), other, position)
            break
    else:
        raise InvalidError(
            f"{source} is a replica of another database or site than those of {circle.database}",
            hint=_how_to_join(founder, site),
        )
    if other.name == circle.primary:
        return contained, (proof,) if proof else ()
    if circle.is_mesh:
        raise InvalidError(
            f"{source} is a replica of site {other.name}, and new sites of a mesh begin with the rows of"
            f" {circle.primary}",
            hint=_how_to_join(founder, site),
        )
    if not contains(contained_by_primary(founder, circle), contained, circle.lineage()):
        raise InvalidError(
            f"site {circle.primary} has not taken all transactions of site {other.name} that {source} holds",
            hint=f"run wlc site take at {circle.primary}, then this command again",
        )
    # The site then reads the primary's log, beginning at its vector.
    return contained, ()


def _how_to_join(founder: FarmDatabase, site: str) -> str:
    return f"name a file that is not there: wlc site join FILE --name {shlex.quote(founder.url)} --site {site}"


def _contained(log: FarmDatabase, site: CircleSite, position: Position) -> tuple[Mapping[str, int], Taken | None]:
    """Return the vector of a site's log at the end of the batch of a replica's position."""
    if position.batch == 0:
        vector = {position.history: position.tick} if position.history and position.tick else {}
        if vector and site.folder != FOUNDER:
            # It began with the rows of another site.
            vector |= log.read_manifest(position.tick).vector
        return vector, None
    try:
        batch, chain = log.read_batch(position.batch)
    except (MissingError, CorruptError) as error:
        raise ExpiredError(
            f"batch {position.batch} of site {site.name}, the replica's position, was pruned",
            hint="remove the file and join again",
        ) from error
    if chain != position.chain:
        raise InvalidError(f"the replica has another past than site {site.name}", hint="remove it and join again")
    if position.tick < batch.last and position.tick:
        raise InvalidError(
            f"the replica stands at tick {position.tick}, within batch {batch.number}",
            hint=f"wlr replicate {shlex.quote(log.url)} --into FILE brings it to the end",
        )
    return dict(batch.vector), Taken(site.name, batch.history, batch.last, batch.number, chain)


@dataclass(frozen=True, slots=True)
class GivenUp(ForPeople):
    """Losses of a site that begins anew: other sites will not take these transactions.

    Attributes:
        published: Its own transactions in its log that the primary has not taken and published.
        rows: Their rows, by table.
        unpublished: Transactions in its file that are in no log, its own and others.
        log: URL of the folder of its log, which stays unchanged.
        kept_as: The new name of its file; None if there is no file.
    """

    published: int
    rows: Mapping[str, int]
    unpublished: int
    log: str
    kept_as: str | None

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is lost."""
        return not self.published and not self.unpublished


def begin_anew(
    source: str | os.PathLike[str],
    *,
    name: str,
    site: str,
    farm: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> GivenUp | None:
    """Make room for a new file of a site that cannot continue; call `joined_from` and `join` with `again` afterwards.

    The site stops publishing, and its file is renamed. End its programs before. A crash in between is harmless: the
    same call continues.

    Args:
        source: The site's file, or the place of its new one.
        name: Name or URL of the database in the farm.
        site: Name of the site.
        farm: URL of the farm; WLC_FARM if omitted.
        dry_run: Only report the losses.
        storage_options: Options of the farm's file system.

    Returns:
        The losses; None if the file is already becoming the new site's.

    Raises:
        InvalidError: The site is the primary, or the file belongs to another database.
        UnavailableError: Another process has the file open.

    Examples:
        >>> lost = wlc.begin_anew("rome.duckdb", name="sales", site="rome", dry_run=True)
        >>> lost.is_nothing
        True
    """
    founder = resolve(name, farm, storage_options=storage_options)
    circle = read_circle(founder, to_change=True)
    with naming(lambda: founder.url):
        refuse_primary_anew(circle, site)
    state, unpublished = _of_file(source, founder, site)
    if state is not None and state.state == BEGINNING:
        return None
    present = next((each for each in circle.sites if each.name == site), None)
    is_there = Path(source).is_file()
    if is_there and state is None:
        # A replica, made for a join that was interrupted.
        return None
    folder = present.folder if present is not None else state.site.folder if state and state.site else ""
    log = site_database(founder, folder) if folder else founder
    published, rows = _not_taken(founder, circle, log) if folder else (0, {})
    aside = _free_name(Path(source)) if is_there else None
    if not dry_run:
        if folder:
            stop(log)
        if aside is not None:
            _rename(Path(source), aside)
    return GivenUp(published, rows, unpublished, log.url, str(aside) if aside else None)


def _of_file(source: str | os.PathLike[str], founder: FarmDatabase, site: str) -> tuple[MasterState | None, int]:
    """Return a file's state as that site, and its number of transactions in no log; None for a replica or no file.

    Raises:
        InvalidError: It is a master, but not that site.
    """
    if not Path(source).is_file():
        return None, 0
    with adapters.opened(source) as found:
        state = found.state
        if state is None or found.require_site().held() is not None:
            return None, 0
        known = state.site
        if known is None or known.name != site or founder_of(database_of(state), known).url != founder.url:
            raise InvalidError(
                f"{source} is a master of {state.name}, and not site {site} of {founder.url}",
                hint=f"wlc site join NEW.duckdb --name {founder.url} --site {site} --again",
            )
        return state, found.details().unpublished or 0


def _not_taken(founder: FarmDatabase, circle: Circle, log: FarmDatabase) -> tuple[int, dict[str, int]]:
    """Return how many own transactions of a site's log the primary has not published, and their rows by table."""
    held, number, rows = contained_by_primary(founder, circle), 0, Counter[str]()
    for last in reversed(log.batch_numbers()):
        batch = log.read_batch(last)[0]
        known = held.get(batch.history, 0)
        if batch.last <= known:
            break
        for each in batch.transactions:
            if each.tick > known and each.origin is None and each.committed and each.records:
                number += 1
                for record in each.records:
                    if (table := getattr(record, "table", None)) is not None:
                        rows[str(table)] += getattr(record, "rows", 0)
    return number, dict(sorted(rows.items()))


def _free_name(path: Path) -> Path:
    number = 1
    while (found := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return found


def _rename(path: Path, aside: Path) -> None:
    """Give a database another name, its write-ahead log first: without it the file alone would be an older state."""
    for old, new in ((wal_of(path), wal_of(aside)), (path, aside)):
        if old.exists():
            old.rename(new)
