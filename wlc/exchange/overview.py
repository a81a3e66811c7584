"""What the farm says of the sites of a database: who has published what, and who has read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.exchange.administration import founder_of_database
from wlc.farm.circle import read_circle
from wlc.farm.registry import SITE, known_replicas
from wlc.masters.place import site_database

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """One site as the farm shows it.

    Attributes:
        folder: URL of its folder, which a replica can read.
        tick: Last published tick; `clock`: when it was committed, None before the first.
        vector: Per history the last tick contained, as of its last batch.
        read_by: For each site that reads it the last tick read; 0 before the first.
        behind: Sites that read it and lack some of it.
        seen: When it last said that it had read another site's log, None before that.
    """

    site: str
    role: str
    folder: str
    history: str
    tick: int
    clock: datetime | None
    vector: Mapping[str, int]
    read_by: Mapping[str, int]
    behind: tuple[str, ...]
    seen: datetime | None


def sites(
    db: str | os.PathLike[str], *, farm: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> list[SiteStatus]:
    """Return the sites of a database, the founder first.

    Args:
        db: Name or URL of the database, or the file of one of its sites.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has one master only.
    """
    founder = founder_of_database(db, farm, storage_options)
    circle = read_circle(founder)
    places = {site.name: site_database(founder, site.folder) for site in circle.sites}
    readers = {name: _readers(place) for name, place in places.items()}
    found = []
    for site in circle.sites:
        place, read = places[site.name], readers[site.name]
        config, numbers = place.config(), place.batch_numbers()
        expected = {other.name for other in circle.sites if site in circle.sources_of(other.name)}
        read_by = {name: read[name][0] if name in read else 0 for name in sorted(expected)}
        newest = numbers[-1] if numbers else 0
        found.append(
            SiteStatus(
                site.name,
                site.role,
                place.url,
                config.history,
                config.tick,
                config.write,
                place.read_batch(newest)[0].vector if newest else {},
                read_by,
                tuple(name for name in read_by if (read[name][1] if name in read else 0) < newest),
                max((known[site.name][2] for known in readers.values() if site.name in known), default=None),
            )
        )
    return found


def _readers(place: FarmDatabase) -> dict[str, tuple[int, int, datetime]]:
    """Return the tick and batch that each site has read of a folder's log, and when it said so."""
    return {
        replica.id: (replica.position.tick, replica.position.batch, replica.seen)
        for replica in known_replicas(place)[0]
        if replica.kind == SITE and replica.position is not None
    }
