"""How much of its own log a primary needs to judge what other sites have published or still will."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.anchors import before, has_seen
from wlc.farm.circle import find_circle
from wlc.farm.registry import SITE, known_replicas
from wlc.masters.place import site_database

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wlc.farm.circle import Circle, CircleSite
    from wlc.farm.database import FarmDatabase
    from wlc.farm.registry import Replica
    from wlc.farm.vectors import Vector


def window_starts(database: FarmDatabase, numbers: Sequence[int], registered: Iterable[Replica]) -> dict[str, int]:
    """Return for each site that reads a primary the batch from which its changes are judged.

    A site may have read more than that: what it committed before it did is judged by what it had seen then.

    Args:
        database: A farm database; nothing is returned unless it is that of a primary.
        numbers: Of its batches, rising.
        registered: Who reads it.
    """
    readers = {replica.id for replica in registered if replica.kind == SITE}
    circle = find_circle(database) if readers and numbers else None
    if circle is None:
        return {}
    found = {}
    for site in circle.sites:
        if site.name in readers and (past := _last_judged(database, circle, site)) is not None:
            found[site.name] = _first_unseen(database, numbers, circle, past)
    return found


def _last_judged(founder: FarmDatabase, circle: Circle, site: CircleSite) -> Vector | None:
    """Return what a site contained after its last batch that the primary has read; None if it has published nothing."""
    log = site_database(founder, site.folder)
    numbers = log.batch_numbers()
    if not numbers:
        return None
    read: Mapping[str, Replica] = {replica.id: replica for replica in known_replicas(log)[0]}
    primary = read.get(circle.primary)
    last = primary.position.batch if primary and primary.position else 0
    if last in numbers:
        return log.read_batch(last)[0].vector
    return before(log.read_batch(numbers[0])[0])


def _first_unseen(database: FarmDatabase, numbers: Sequence[int], circle: Circle, past: Vector) -> int:
    """Return the batch to keep from on: the last one whose content the vector contains, or the first one."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if has_seen(past, database.read_batch(numbers[middle])[0], circle.lineage()):
            low = middle + 1
        else:
            high = middle
    return numbers[max(low - 1, 0)]
