"""Turn what a reader is told of its upstream, and what it remembers of it, into what it is to remember."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.attachment import Attachment, place_of, unregistered_id
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.upstreams import ORIGIN, Claim, release_claim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm.database import FarmDatabase


def attachment_of(
    database: FarmDatabase,
    before: Attachment | None,
    upstream: Sequence[str] | str | None,
    class_name: str | None,
    registries: Sequence[str] | str | None = None,
    reads: str = "",
) -> Attachment | None:
    """Return what a reader is to remember of its upstream.

    Args:
        database: The place that it was given, which holds the registry unless others are named.
        before: What it remembers; None if it reads what it is given.
        upstream: "auto" for a choice among all that are registered, URLs to choose from, one URL to be read, "none" for
            no upstream; None for what is remembered.
        class_name: Its class; None for what is remembered.
        registries: URLs of the registries, the one that decides first; empty for the place that it was given, None for
            what is remembered. A reader that is given some chooses.
        reads: URL of the place that it reads at present, or begins with while the registry is away.

    Raises:
        InvalidError: The options do not go together, or a URL is of another database.
    """
    known = before.registries if before else ()
    named = [registries] if isinstance(registries, str) else registries
    told = known if named is None else tuple(_url_of(database, url) for url in named)
    wanted = [upstream] if isinstance(upstream, str) else list(upstream or ())
    if wanted == ["none"]:
        if registries:
            raise InvalidError("a registry is of no use without an upstream", hint="Leave out --upstream none")
        return None
    if before is None and not wanted and not told:
        if class_name is not None:
            raise InvalidError(f"class {class_name} is of no use without an upstream", hint="--upstream auto")
        return None
    among = before.among if before and not wanted else ()
    if wanted not in ([], ["auto"]):
        among = tuple(_url_of(database, url) for url in wanted)
    name = class_name if class_name is not None else before.class_name if before else ""
    present = _with_registries(before or Attachment(database.url, url=reads), database, told)
    is_moved = before is not None and bool(wanted) and before.registry != present.registry
    if (present.among, present.class_name) == (among, name) and not is_moved:
        return present
    # What is claimed now is released when the new choice is made.
    return replace(present, among=among, class_name=name, chosen=None)


def _with_registries(before: Attachment, database: FarmDatabase, told: tuple[str, ...]) -> Attachment:
    """Change the registries that somebody remembers; until the next choice, it reads the same place."""
    registry = told[0] if told else database.url
    if told == before.registries:
        # The farm may have been moved.
        return replace(before, registry=registry)
    if registry == before.registry and before.upstream:
        return replace(before, registries=told)
    name = ORIGIN if before.url == registry else unregistered_id(before.url) if before.url else ""
    return replace(before, registry=registry, registries=told, upstream=name, slot=None, chosen=None)


def detach(database: FarmDatabase, before: Attachment | None, now: Attachment | None, reader: str) -> None:
    """Give up what a reader has claimed by registries that it leaves; nothing happens where the first is away."""
    if before is None or before.slot is None or (now is not None and now.registries == before.registries):
        return
    with suppress(FarmError):
        release_claim(place_of(database, before.registry), Claim(before.upstream, before.slot, reader))


def _url_of(database: FarmDatabase, url: str) -> str:
    place = open_database(url, storage_options=database.storage_options)
    if place.name != database.name:
        raise InvalidError(
            f"{url} is a place of database {place.name}, not of {database.name}",
            hint=f"Give the database's folder in the other farm, such as URL/{database.name}.",
            path=url,
        )
    return place.url
