"""The part of its own log that a site needs until changes are judged.

The primary judges present and future changes of other sites by it. A secondary uses it to evict unjudged rows that
conflict with the primary's rows; see `wlc.multi_master.duckdb.eviction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.paths import SITES
from wlc.farm.registry import SITE, known_replicas
from wlc.multi_master.anchors import before, has_seen
from wlc.multi_master.circle import find_circle
from wlc.multi_master.circle_place import founder_at, site_database

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.registry import Replica
    from wlc.farm.vectors import Vector
    from wlc.multi_master.circle import Circle, CircleSite


def window_starts(database: FarmDatabase, numbers: Sequence[int], registered: Iterable[Replica]) -> dict[str, int]:
    """Return, by site that reads a site's log, the first batch needed to judge changes.

    The reader may have read further. The primary (in a mesh every site) judges another site's changes by the vector at
    their commit, and a secondary learns the primary's judgement later.

    Args:
        database: A farm database; the result is empty unless it is a site's.
        numbers: Numbers of its batches, rising.
        registered: Its readers.
    """
    readers = {replica.id for replica in registered if replica.kind == SITE}
    if not readers or not numbers:
        return {}
    founder = _founder(database)
    circle = find_circle(founder)
    if circle is None:
        return {}
    here = next((site for site in circle.sites if site_database(founder, site.folder).url == database.url), None)
    if here is not None and here.name != circle.primary and not circle.is_mesh:
        past = _learned(founder, circle, here)
        return {circle.primary: _first_unseen(database, numbers, circle, past)} if circle.primary in readers else {}
    judge, found = here.name if here is not None else circle.primary, {}
    for site in circle.sites:
        if site.name in readers - {judge} and (past_of := _last_judged(founder, circle, site, judge)) is not None:
            found[site.name] = _first_unseen(database, numbers, circle, past_of)
    return found


def _founder(database: FarmDatabase) -> FarmDatabase:
    """Return the folder that holds the circle if a database is one of several sites."""
    url, _, name = database.url.rstrip("/").rpartition(f"/{SITES}")
    # A farm may be called `sites`, too, and a bucket.
    return founder_at(database, SITES + name) if url and not url.endswith("/") and "/" not in name else database


def _learned(founder: FarmDatabase, circle: Circle, site: CircleSite) -> Vector:
    """Return the primary's vector at the position to which a secondary has read its log."""
    primary = site_database(founder, circle.site(circle.primary).folder)
    numbers = primary.batch_numbers()
    found = next((each for each in known_replicas(primary)[0] if each.id == site.name), None)
    last = found.position.batch if found and found.position else 0
    if not numbers:
        return {}
    if last in numbers:
        return primary.read_batch(last)[0].vector
    return before(primary.read_batch(numbers[0])[0], circle.lineage())


def _last_judged(founder: FarmDatabase, circle: Circle, site: CircleSite, judge: str) -> Vector | None:
    """Return a site's vector after its last batch that the judge has read; None if it has published nothing."""
    log = site_database(founder, site.folder)
    numbers = log.batch_numbers()
    if not numbers:
        return None
    read: Mapping[str, Replica] = {replica.id: replica for replica in known_replicas(log)[0]}
    reader = read.get(judge)
    last = reader.position.batch if reader and reader.position else 0
    unread = (log.read_batch(number)[0] for number in numbers if number > last)
    if (anew := next((batch for batch in unread if batch.parent is not None), None)) is not None:
        # It was restored from a backup, and its vector is smaller than before.
        return before(anew, circle.lineage())
    if last in numbers:
        return log.read_batch(last)[0].vector
    return before(log.read_batch(numbers[0])[0], circle.lineage())


def _first_unseen(database: FarmDatabase, numbers: Sequence[int], circle: Circle, past: Vector) -> int:
    """Return the first batch to keep: the last one whose content the vector contains, or the first one."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if has_seen(past, database.read_batch(numbers[middle])[0], circle.lineage()):
            low = middle + 1
        else:
            high = middle
    return numbers[max(low - 1, 0)]
