"""What only Parquet replicas have: files that others read, and old ticks that stay readable until they are pruned."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.clock import unit_s, utc_now
from wlc.errors import ExpiredError, InvalidError
from wlr import engine

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from wlr.engine.parquet.folder import Folder
    from wlr.engine.parquet.version import Version

_AGE = re.compile(r"([0-9]{1,18})\s*(s|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)")
# What a run that was killed had begun to write; longer ago than any file takes.
_HALF_WRITTEN_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the past stays readable: `ticks` before the current one, or those current within `age`; None: all."""

    ticks: int | None = None
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be.

    Attributes:
        ticks: Ticks that cannot be read any more, rising.
        files: Data files removed; `bytes`: their size.
        oldest: The oldest tick that can still be read.
    """

    ticks: tuple[int, ...]
    files: int
    bytes: int
    oldest: int
    is_dry_run: bool = False


def parse_keep(text: str) -> Keep:
    """Read how much of the past is to stay: a number of old ticks, an age such as "3 days", or "" for all.

    Raises:
        InvalidError: It is neither.
    """
    if not text.strip():
        return Keep()
    found = _AGE.fullmatch(text.strip().lower())
    is_number = re.fullmatch(r"[0-9]{1,18}", text.strip())
    if found is None and not is_number:
        raise InvalidError(f"{text!r} is neither a number of ticks nor an age", hint="--keep 10 or --keep '3 days'")
    try:
        if found is None:
            return Keep(ticks=int(text))
        return Keep(age=timedelta(seconds=int(found.group(1)) * unit_s(found.group(2))))
    except OverflowError as error:
        raise InvalidError(f"{text!r} is longer than time can be told", hint="Leave --keep out to keep all.") from error


def files(
    into: str | os.PathLike[str],
    table: str,
    *,
    tick: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return paths or URLs of the files that hold a table, to be read by any Parquet tool.

    Args:
        into: A Parquet replica.
        table: `schema.table`, or `table` in schema main.
        tick: As of this tick; the current one if omitted.
        storage_options: Options of the replica's file system.

    Returns:
        Files in key order; empty for a table without rows. They stay until their tick is pruned.

    Raises:
        InvalidError: No such replica or table.
        ExpiredError: The tick was pruned, or lies before the replica's beginning.
    """
    folder = _folder(into, storage_options)
    version = _version(folder, tick)
    name = table if "." in table else f"main.{table}"
    for found in version.tables:
        if str(found.table) == name:
            return [f"{folder.url}/{part.file.path}" for part in found.parts]
    known = ", ".join(str(found.table) for found in version.tables) or "none"
    raise InvalidError(f"{folder.url} has no table {name}", hint=f"Its tables: {known}.", path=folder.url)


def prune(
    into: str | os.PathLike[str],
    *,
    keep: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Pruned:
    """Remove ticks of a Parquet replica that need not be readable any more, and every file that nothing names.

    Args:
        into: A Parquet replica.
        keep: How much stays, see `parse_keep`; what the replica remembers if omitted, all if it remembers nothing.
        dry_run: Only say what would be removed.
        storage_options: Options of the replica's file system.
    """
    from wlr.engine.parquet.target import open_target, read_state

    folder = _folder(into, storage_options)
    if dry_run:
        # Nothing is written, not even a lease: this can be asked while a run is under way.
        state = read_state(folder)
        return replace(_surplus(folder, state.position.tick, state.keep if keep is None else keep)[0], is_dry_run=True)
    with open_target(folder) as target:
        found, paths = _surplus(folder, target.state.position.tick, target.state.keep if keep is None else keep)
        target.remove(paths)
        folder.store.sweep(_HALF_WRITTEN_S)
    return found


def _surplus(folder: Folder, current: int, keep: str) -> tuple[Pruned, list[str]]:
    """Find what need not stay; the paths come in the order in which to remove them."""
    wanted, listed = parse_keep(keep), folder.manifests(current)
    versions = [(tick, path, folder.read_version(path)) for tick, path in listed]
    kept = keep_ticks([(tick, version.made) for tick, _, version in versions], wanted, utc_now())
    gone = [(tick, path) for tick, path, _ in versions if tick not in kept]
    named = {
        part.file.path
        for tick, _, version in versions
        if tick in kept
        for table in version.tables
        for part in table.parts
    }
    # Files of a later tick belong to a run that is under way.
    surplus = [(path, size) for tick, path, size in folder.data_files() if tick <= current and path not in named]
    pruned = Pruned(tuple(tick for tick, _ in gone), len(surplus), sum(size for _, size in surplus), min(kept))
    # Manifests first: without one, a tick is not there, and its files can go at any time.
    return pruned, [*(path for _, path in gone), *(path for path, _ in surplus)]


def keep_ticks(made: Sequence[tuple[int, datetime]], keep: Keep, now: datetime) -> set[int]:
    """Decide which ticks stay readable; the last one always does.

    Args:
        made: Every tick and when it became the current one, rising; at least one.
        keep: What is wanted.
        now: The present.
    """
    if keep.ticks is not None:
        return {tick for tick, _ in made[-keep.ticks - 1 :]}
    if keep.age is None:
        return {tick for tick, _ in made}
    # A tick is the current one until the next is made.
    ends = [when for _, when in made[1:]]
    recent = {tick for (tick, _), end in zip(made, ends, strict=False) if now - end < keep.age}
    return recent | {made[-1][0]}


def _folder(into: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Folder:
    from wlr.engine.parquet.folder import Folder

    place = engine.locate(into, storage_options)
    if not place.is_parquet:
        message = f"{place} is {place.kind}, not a Parquet replica"
        raise InvalidError(message, hint="wlr status TARGET", path=str(place))
    return Folder(place.url, place.storage_options)


def _version(folder: Folder, tick: int | None) -> Version:
    current = folder.read_current(folder.require()[0])
    if tick is None or tick == current.position.tick:
        return current
    if tick > current.position.tick:
        message = f"{folder.url} is at tick {current.position.tick}, not yet at {tick}"
        raise InvalidError(message, hint=f"wlr replicate --into {folder.url} --tick {tick}", path=folder.url)
    listed = folder.manifests(tick)
    # Between two manifests the replica never stood, so that nobody can read it there.
    if not listed or listed[-1][0] != tick:
        ticks = ", ".join(str(known) for known, _ in folder.manifests(current.position.tick)[-10:])
        message = f"{folder.url} cannot be read at tick {tick}"
        raise ExpiredError(message, hint=f"It can at {ticks}; others were pruned or passed over.", path=folder.url)
    return folder.read_version(listed[-1][1])
