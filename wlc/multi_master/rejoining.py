"""A site that cannot go on begins anew: with a new file, history and folder, under its name.

What it had written and the primary has not taken is not thrown away: its file is set aside, and its log stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.opening import wal_of
from wlc.farm.circle import naming, read_circle
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.membership import refuse_primary_anew
from wlc.masters import adapters
from wlc.masters.circle_place import founder_of, site_database
from wlc.masters.contract import database_of
from wlc.masters.lookup import resolve
from wlc.masters.state import BEGINNING
from wlc.multi_master.administration import stop
from wlc.multi_master.joining import contained_by_primary

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.masters.state import MasterState


@dataclass(frozen=True, slots=True)
class GivenUp(ForPeople):
    """What a site gives up that begins anew: nobody takes it any more.

    Attributes:
        published: Transactions of its own in its log that the primary has not published as taken.
        rows: Of these, by table.
        unpublished: Transactions in its file that are in no log, whoever wrote them.
        log: URL of the folder of its log, which stays as it is.
        kept_as: The name under which its file stays; None if it is not there.
    """

    published: int
    rows: Mapping[str, int]
    unpublished: int
    log: str
    kept_as: str | None

    @property
    def is_nothing(self) -> bool:
        """Whether nothing gets lost."""
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
    """Make room for a new file of a site that cannot go on; `joined_from` and `join` with `again` come after it.

    The site publishes no more, and its file gets another name. End its programs before. Dying in between is harmless:
    the same call goes on.

    Args:
        source: The site's file, or the place of its new one.
        name: Name or URL of the database in the farm.
        site: Name of the site.
        farm: URL of the farm; WLC_FARM if omitted.
        dry_run: Only say what gets lost.
        storage_options: Options of the farm's file system.

    Returns:
        What gets lost; None if the file is on its way to be the new site's.

    Raises:
        InvalidError: The site is the primary, or the file is that of something else.
        UnavailableError: Another process has the file open.
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
    """Return what a file remembers as that site, and how much of it is in no log; None if it is a replica, or absent.

    Raises:
        InvalidError: It is a master, and not that site.
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
                hint=f"wlc join NEW.duckdb --name {founder.url} --site {site} --again",
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
