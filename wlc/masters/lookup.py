"""The farm database that a name, a URL or a source denotes, and the master of a source.

Position of a master's log, and its beat: read from the farm's `wlc.config` in few milliseconds.
"""

from __future__ import annotations

import os
import shlex
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import parse_age
from wlc.farm.config import parse_beat
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.farm.health import change_health
from wlc.farm.paths import CONFIG
from wlc.farm.store.options import lay_over
from wlc.masters import adapters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime, timedelta

    from wlc.masters.contract import Source


def resolve(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    changes: bool = False,
) -> FarmDatabase:
    """Open the farm database that a name, a URL or a source denotes.

    The place of a source that another process uses is read from a note beside the file. Without a note, its farm is
    expected at `farm`, in WLC_FARM, or at the default place.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system, over those that a source remembers.
        changes: The caller will change the farm, which a copy of a master must not do.

    Raises:
        InvalidError: The source has never been a master, or a bare name is given without a farm.
        UnavailableError: The source is in use, and there is no farm at the default place.
        FencedError: The source is a copy of a master, and the call would change the farm.

    Examples:
        >>> wlc.resolve("sales").name
        'sales'
    """
    if not adapters.is_source(db):
        return open_database(os.fspath(db), farm, storage_options)
    source = os.fspath(db)
    module = adapters.module_of(source)
    try:
        found = module.look(source)
    except UnavailableError:
        if farm is None and (held := module.held_place(source)) is not None:
            return open_database(held.url, None, lay_over(held.options, storage_options or {}))
        if (place := module.default_place(source)) is None:
            raise
        default_farm, name = place
        farm = farm or os.environ.get("WLC_FARM")
        if farm is None and not (Path(default_farm) / name / CONFIG).is_file():
            raise
        return open_database(name, farm or default_farm, storage_options)
    if changes and found.away is not None:
        raise found.away
    from wlc.masters.contract import database_of

    return database_of(found.state, storage_options, farm)


@contextmanager
def opened_or_held(source: str | os.PathLike[str]) -> Iterator[Source | UnavailableError]:
    """Open a source to read its state; yield the error if another process has it open: then the farm can be read."""
    with ExitStack() as stack:
        found: Source | UnavailableError
        try:
            found = stack.enter_context(adapters.opened(source))
        except UnavailableError as error:
            found = error
        yield found


def warn_of_farm(held: UnavailableError) -> None:
    """Warn that the result is from the farm, because another process has the source open."""
    warnings.warn(f"{held.message}: this is what the farm knows", stacklevel=3)


@contextmanager
def opened_master(
    source: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Iterator[tuple[Source, FarmDatabase]]:
    """Open a master; the options apply to all users of the source in this process.

    Raises:
        InvalidError: It has never been a master, or was stopped.
    """
    from wlc.masters.contract import database_of

    with adapters.opened(source) as found:
        if not found.require_state().is_master:
            raise InvalidError(
                f"{found} was stopped",
                hint=f"wlc master {shlex.quote(str(found))} starts a new history",
                path=str(found),
            )
        found.keep_options(storage_options or {})
        with found.working(), _hints_for(str(found)):
            yield found, database_of(found.require_state(), storage_options)


@contextmanager
def _hints_for(source: str) -> Iterator[None]:
    """Write the source's name into hints, so that users can type them unchanged."""
    try:
        yield
    except FarmError as error:
        if error.hint:
            error.hint = error.hint.replace("SOURCE", shlex.quote(source))
        raise


def tick(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Return the last published tick, 0 before the first; arguments as for `resolve`.

    Examples:
        >>> wlc.tick("sales")
        3
    """
    return resolve(db, farm, storage_options=storage_options).config().tick


def clock(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> datetime | None:
    """Return the commit time of the last published transaction, None before the first; arguments as for `resolve`.

    Examples:
        >>> wlc.clock("sales") == wlr.clock("copy.duckdb")
        True
    """
    return resolve(db, farm, storage_options=storage_options).config().write


def beat(
    db: str | os.PathLike[str],
    beat_s: float | None = None,
    farm: str | os.PathLike[str] | None = None,
    *,
    expect_every: timedelta | str | None = None,
    sign_every: timedelta | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> float:
    """Return or set the beat, seconds; masters that are open follow at their next beat.

    Args:
        db: As for `resolve`.
        beat_s: The new beat; 0 publishes every commit.
        farm: As for `resolve`.
        expect_every: Longest acceptable time between two commits, for example `1h`; zero: unlimited. `wlc.databases`
            and the service report a database as late if its last commit is older.
        sign_every: How often an idle publisher gives a sign of life; zero: never.
        storage_options: As for `resolve`.

    Raises:
        InvalidError: The beat is invalid.
        FencedError: The source is a copy of the master that owns the beat.

    Examples:
        >>> wlc.beat("sales", 10)
        10.0
    """
    given = {"expect_every": parse_age(expect_every), "sign_every": parse_age(sign_every)}
    changed: dict[str, Any] = {name: age for name, age in given.items() if age is not None}
    database = resolve(db, farm, storage_options=storage_options, changes=beat_s is not None or bool(changed))
    if changed:
        database.config()  # Refuse a name that the farm does not hold.
        change_health(database, lambda health: replace(health, **changed))
    if beat_s is None:
        return database.config().beat_s
    beat_s = parse_beat(str(beat_s))
    if adapters.is_source(db):
        with adapters.opened(db) as source:
            source.remember(replace(source.require_state(), beat_s=beat_s))
    return database.change_config(lambda config: replace(config, beat_s=beat_s)).beat_s
