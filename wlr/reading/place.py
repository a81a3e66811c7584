"""What a reader names: a database of a farm, or a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm import table_names
from wlc.farm.clock import parse_time
from wlc.farm.did_you_mean import tables_meant
from wlc.farm.errors import InvalidError, UnavailableError
from wlr.engine.adapters import target_at
from wlr.plan.stop import Stop

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name
    from wlr.engine.contract import Target


def opened(
    place: str | os.PathLike[str], farm: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> FarmDatabase | Target:
    """Open what a text names: the farm of a name, a URL or a master; else a replica.

    Raises:
        InvalidError: It is neither.
        UnavailableError: It is out of reach, or in use.
    """
    try:
        database = wlc.resolve(place, farm, storage_options=storage_options)
        database.config()
    except (InvalidError, UnavailableError) as error:
        # The farm may come from WLC_FARM, which says nothing about what this text names.
        if (target := _replica(place, storage_options)) is not None:
            return target
        raise error from None
    return database


def _replica(place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Target | None:
    try:
        target = target_at(place, storage_options)
        return target if target.find_state() is not None else None
    except InvalidError:
        return None


def stop_of(tick: int | None, until: str | datetime | None) -> Stop:
    """Return where a read stops.

    Raises:
        InvalidError: Both are given, or one is invalid.
    """
    if tick is not None and until is not None:
        raise InvalidError("tick and until exclude each other", hint="Leave one of them out.")
    if tick is not None and tick < 0:
        raise InvalidError(f"{tick} is not a tick", hint="A tick is a number from 0 on: tick=0.")
    return Stop(tick, None if until is None else parse_time(until))


def named_table(wanted: str, tables: Iterable[Name], where: str) -> Name:
    """Return the table that a user names: `schema.table`, or `table` in schema main; see `wlc.farm.table_names`.

    Raises:
        InvalidError: There is no such table; the hint has those that are like it.
    """
    known = list(tables)
    if (found := table_names.find(wanted, known)) is not None:
        return found
    raise InvalidError(f"there is no table {wanted} {where}", hint=tables_meant(wanted, known))
