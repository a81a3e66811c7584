"""The place of a read: a database of a farm, or a replica; and the files of a replica's table.

Local copies of a farm's data files, for the duration of a read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm import typed_names
from wlc.farm.clock import parse_moment, parse_tick, parse_until
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.typed_names import tables_meant
from wlr.engine.adapters import target_at
from wlr.engine.contract import Lake
from wlr.replay.plan.bounds import Stop

if TYPE_CHECKING:
    import os
    from collections.abc import Container, Iterable, Mapping
    from datetime import date

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import DataFile, Name, TableFile
    from wlr.engine.contract import Target


def opened(
    place: str | os.PathLike[str], farm: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> FarmDatabase | Target:
    """Open the place that a text names: the farm of a name, a URL or a master; else a replica.

    Raises:
        InvalidError: It is neither.
        UnavailableError: It is unreachable, or in use.
    """
    try:
        database = wlc.resolve(place, farm, storage_options=storage_options)
        database.config()
    except (InvalidError, UnavailableError) as error:
        # The farm may come from WLC_FARM, which does not apply to a replica.
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


def files(
    into: str | os.PathLike[str],
    table: str,
    *,
    tick: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return paths or URLs of the files of a table, for any Parquet tool.

    Args:
        into: A Parquet replica.
        table: `schema.table`, or `table` in schema main.
        tick: As of this tick; the current one if omitted.
        storage_options: Options of the replica's file system.

    Returns:
        Files in key order; empty for a table without rows. They stay until their tick is pruned.

    Raises:
        InvalidError: There is no such replica or table.
        ExpiredError: The tick was pruned, or is before the replica's first one.

    Examples:
        >>> len(wlr.files("lake", "orders"))
        1
    """
    return Lake.required(target_at(into, storage_options), "wlr lake files").files(table, parse_tick(tick))


def stop_of(tick: int | str | None, until: str | date | None) -> Stop:
    """Return the stop of a read.

    Raises:
        InvalidError: Both are given, or one is invalid.
    """
    if tick is not None and until is not None:
        raise InvalidError("tick and until exclude each other", hint="Leave one of them out.")
    return Stop(parse_tick(tick), None if until is None else parse_until(until))


def stop_at(moment: int | str | date | None, option: str) -> Stop:
    """Return the stop at a tick or a time, at the end for None; raises InvalidError for anything else."""
    if moment is None:
        return Stop()
    found = parse_moment(moment, option)
    return Stop(found) if isinstance(found, int) else Stop(None, found)


def named_table(wanted: str, tables: Iterable[Name], where: str) -> Name:
    """Resolve a table that the user typed: `schema.table`, or `table` in schema main; see `wlc.farm.typed_names`.

    Raises:
        InvalidError: There is no such table; the hint has similar names.
    """
    known = list(tables)
    if (found := typed_names.find(wanted, known)) is not None:
        return found
    raise InvalidError(f"there is no table {wanted} {where}", hint=tables_meant(wanted, known))


class LocalCopies:
    """Local copies of some data files of a farm database; a file of a local farm is read in place.

    Args:
        database: The farm database.
        is_checked: Compare each file with its checksum, which reads all of it. With signatures, files are always
            compared.
        only: Paths of the files to compare, if another task compares the others; None for all.

    Attributes:
        local: Local paths of the files, by their paths in the farm.
    """

    def __init__(self, database: FarmDatabase, *, is_checked: bool = True, only: Container[str] | None = None) -> None:
        self._database = database
        self._is_checked = is_checked or bool(database.keys.verifying)
        self._only = only
        self.local: dict[str, str] = {}

    def fetch_log(self, files: Iterable[TableFile]) -> None:
        """Fetch data files of batches, verified."""
        for file in files:
            if file.file.path not in self.local:
                self.local[file.file.path] = str(self._database.fetch(file, is_checked=self._checks(file.file.path)))

    def fetch_snapshot(self, tick: int | None, files: Iterable[DataFile]) -> None:
        """Fetch data files of the snapshot at a tick, verified."""
        wanted = [file for file in files if file.path not in self.local]
        if not wanted or tick is None:
            return
        manifest = self._database.read_manifest(tick)
        for file in wanted:
            local = self._database.fetch_snapshot(manifest, file, is_checked=self._checks(file.path))
            self.local[file.path] = str(local)

    def _checks(self, path: str) -> bool:
        return self._is_checked and (self._only is None or path in self._only)

    def release(self) -> None:
        """Release all copies."""
        for file in self.local.values():
            self._database.release(Path(file))
        self.local.clear()
