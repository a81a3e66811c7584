"""A database as master: beginning, writing, flushing, snapshots, stopping.

A source is the path of a DuckDB file or the URL of a PostgreSQL database; what is done to the latter is in
`wlc.capture.postgres.master`.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.begin import Source, begin, from_anywhere
from wlc.config import STOPPED, parse_beat
from wlc.errors import FencedError, GapError, InvalidError
from wlc.farm import FarmDatabase, open_database
from wlc.inquiry import (
    Status,
    database_of,
    existing,
    is_postgres,
    opened,
    postgres_masters,
    postgres_status,
    require_state,
    status,
    status_of,
)
from wlc.keys import ALLOW_UNENCRYPTED, Keys
from wlc.ownership import change_config, known, own, settle
from wlc.paths import check_database_name
from wlc.store import MissingError
from wlc.store.options import lay_over, merged

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wlc.capture.duckdb.connection import Connection
    from wlc.capture.duckdb.shared import Shared
    from wlc.model import Digest, Manifest, Name
    from wlc.ownership import Flushed


def master(
    source: str | os.PathLike[str],
    *,
    farm: str | None = None,
    name: str | None = None,
    logs: str | None = None,
    beat_s: float = 300,
    tables: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> Status:
    """Make a database a master: its farm folder, `wlc.config`, and a snapshot unless it is empty.

    Args:
        source: Path of an existing DuckDB database, or URL of a PostgreSQL database.
        farm: URL of the farm; WLC_FARM or `dbfarm` beside the source if omitted.
        name: Name in the farm; the file's stem, or the database's name, if omitted.
        logs: URL of another place for the log files.
        beat_s: Longest wait of a committed transaction, seconds; 0 publishes each at once.
        tables: Patterns of the tables to replicate, of PostgreSQL only; all if there are none.
        storage_options: Options of the farm's file system; secrets among them are not remembered.

    Raises:
        InvalidError: No such database, a bad name or beat, or it is a master already.
        UnsupportedError: The store ignores preconditions, or a column cannot be replicated.
    """
    parse_beat(str(beat_s))
    if is_postgres(source):
        with postgres_masters().opened(os.fspath(source), tables) as found:
            database = _begin(
                found, str(found), found.database_name, Path.cwd(), farm, name, logs, beat_s, storage_options
            )
            return postgres_status(database, found)
    if tables:
        raise InvalidError("all tables of a DuckDB master are replicated", hint="choose with wlr replicate --tables")
    path = existing(source)
    with opened(path) as shared:
        database = _begin(
            DuckDBSource(shared), str(path), path.stem, path.parent, farm, name, logs, beat_s, storage_options
        )
        return status_of(database, shared)


def _begin(
    source: Source,
    shown: str,
    stem: str,
    folder: Path,
    farm: str | None,
    name: str | None,
    logs: str | None,
    beat_s: float,
    storage_options: Mapping[str, Any] | None,
) -> FarmDatabase:
    old = source.state
    if old.get("state") == "1":
        raise InvalidError(
            f"{shown} is a master already, as {old['name']} in {old['farm']}", hint=f"wlc status {shown}"
        )
    name = check_database_name(old.get("name", stem) if name is None else name)
    url = farm or os.environ.get("WLC_FARM") or old.get("farm") or str(folder / "dbfarm")
    url = from_anywhere(url)
    # What is remembered belongs to the farm that it was given for.
    options = merged(old.get("options") if url == old.get("farm") else None, storage_options)
    # Whoever publishes later must not forget that there are keys.
    options |= Keys(options).noted()
    database = open_database(name, url, options)
    database.keys.check()
    database.store.probe()
    # That older objects may be plain is said each time.
    begin(source, database, url, logs, beat_s, {k: v for k, v in options.items() if k != ALLOW_UNENCRYPTED})
    return database


class DuckDBSource:
    """A DuckDB database as `wlc.begin` sees it."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    @property
    def state(self) -> Mapping[str, str]:
        return self._shared.state

    def check(self) -> None:
        from wlc.capture.duckdb import probe

        probe.check()

    def install(self, state: Mapping[str, str]) -> None:
        from wlc.capture.duckdb import setup

        setup.begin(self._shared, dict(state))

    def has_objects(self) -> bool:
        from wlc.capture.duckdb import schema

        return bool(schema.objects(self._shared.root, self._shared.catalog))

    def take_snapshot(self, database: FarmDatabase) -> Manifest:
        from wlc.publisher import take_snapshot

        return take_snapshot(self._shared, database)

    def remember(self, values: Mapping[str, str]) -> None:
        self._shared.remember(dict(values))


def connect(
    database: str | os.PathLike[str],
    read_only: bool = False,
    config: dict[str, Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Connection:
    """Open a master's database with capture; a drop-in for `duckdb.connect`.

    Args:
        database: Path of the database.
        read_only: Open it for reading; nothing is captured, since nothing can be written.
        config: Settings of DuckDB.
        storage_options: Options of the farm's file system, over those that the database remembers; they hold until
            the last connection of this process is closed.

    Raises:
        InvalidError: No such database, or it has never been a master.
        UnavailableError: Another process has it open.
        duckdb.ConnectionException: This process has it open with another `read_only` or `config`.
    """
    from wlc.capture.duckdb.connection import Connection
    from wlc.capture.duckdb.shared import close_shared

    path = existing(database)
    shared = _open_master(path, read_only=read_only, config=config)
    try:
        if shared.is_master and not read_only:
            _attach_publisher(shared, storage_options)
            shared.warn_bypassed()
            shared.start_beating()
        return Connection(shared, shared.root.cursor())
    except BaseException:
        close_shared(shared)
        raise


def flush(source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Flushed:
    """Publish what is journalled, now.

    Args:
        source: Path of the master's database.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Raises:
        FencedError: The farm's database is another master's.
        UnavailableError: The farm cannot be reached.
    """
    if is_postgres(source):
        published: Flushed = postgres_masters().flush(os.fspath(source), storage_options)
        return published
    from wlc.publisher import publish

    with _master(source, storage_options) as (shared, database):
        shared.warn_bypassed()
        flushed = publish(shared, database)
        settle(shared.state, database)
        return flushed


def run(
    source: str | os.PathLike[str],
    *,
    is_stopped: threading.Event,
    tell: Callable[[Flushed], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Flushed:
    """Publish what a PostgreSQL master commits, on the beat, until told to stop.

    Args:
        source: URL of the master. A DuckDB master is published by the process that writes it.
        is_stopped: Set it to finish the batch that is being published and return.
        tell: Called after every round that published something.
        storage_options: As for `flush`.

    Returns:
        What all rounds published.
    """
    if not is_postgres(source):
        raise InvalidError(
            f"{source} is no PostgreSQL database: a DuckDB master is published by the process that writes it",
            hint=f"wlc flush {source}",
        )
    # Imported here: it needs PostgreSQL's drivers.
    postgres_masters()
    from wlc.capture.postgres.running import run as run_postgres

    return run_postgres(os.fspath(source), storage_options, is_stopped, tell)


def snapshot(source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """Take a new snapshot at the current tick; what is journalled is published first.

    Raises:
        UnsupportedError: Something bypassed the capture, so that no tick describes the database.
    """
    if is_postgres(source):
        with postgres_masters().opened_master(os.fspath(source), storage_options) as (found, database):
            manifest: Manifest = found.take_later_snapshot(database)
            return manifest
    from wlc.publisher import take_snapshot

    with _master(source, storage_options) as (shared, database):
        shared.refuse_bypassed()
        return take_snapshot(shared, database)


def stop(source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Status:
    """Publish the rest and end the history; later writes are not captured.

    A copy that was fenced off, or whose farm is gone, is stopped without touching the farm: what it has not published
    stays in it alone.
    """
    if is_postgres(source):
        postgres_masters().stop(os.fspath(source), storage_options)
        return status(source, storage_options=storage_options)
    with _master(source, storage_options) as (shared, database), shared.publish_lock, shared.commit_lock:
        try:
            _end_history(shared, database)
        except (FencedError, MissingError, GapError) as error:
            warnings.warn(f"{source} publishes no more, and the farm is left as it is: {error}", stacklevel=2)
        shared.remember({"state": "2"})
        try:
            return status_of(database, shared)
        except MissingError:
            return status_of(database, shared, replace(known(shared.state), state=STOPPED))


def _end_history(shared: Shared, database: FarmDatabase) -> None:
    from wlc.capture.duckdb.source import count_pending
    from wlc.publisher import publish

    config = database.config()
    is_ended = config.history == shared.state["history"] and config.state == STOPPED
    if is_ended and not count_pending(shared.root, shared.catalog):
        # We died before the database could note it.
        return
    publish(shared, database)
    settle(shared.state, database)
    change_config(database, lambda config: replace(own(config, shared.state), state=STOPPED))


def repair(
    source: str | os.PathLike[str],
    *,
    published: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> Flushed:
    """Publish what bypassed the capture: the difference between the database and its published state.

    Args:
        source: Path of the master's database.
        published: A replica of the farm database at its last tick, made by `wlr.replicate`.
        storage_options: As for `flush`.

    Raises:
        InvalidError: The replica stands elsewhere: flush, replicate, and try again.
    """
    from wlc.capture.duckdb import repair as repairing
    from wlc.publisher import publish

    with _master(source, storage_options) as (shared, database):
        publish(shared, database)
        repairing.journal_difference(shared, Path(published))
        return publish(shared, database)


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """What comparing a table of a master with what was captured gave.

    Attributes:
        outcome: "same"; "differs": rows were written without the capture; "unknown": it is not known what it must hold.
        rows: How many it has, None if it is not there.
        expected: How many it must have, None where that is not known.
    """

    table: str
    outcome: str
    rows: int | None
    expected: int | None


def verify_source(
    source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> list[SourceCheck]:
    """Read every row of a master, and compare what its tables hold with what was captured.

    It finds what was written without the capture even where as many rows were removed as were added. A PostgreSQL
    master is published first, up to the moment that is looked at.

    Args:
        source: Path or URL of the master.
        storage_options: As for `flush`.

    Returns:
        Every table, by name.
    """
    if is_postgres(source):
        with postgres_masters().opened_master(os.fspath(source), storage_options) as (master_, database):
            held, expected = master_.verify(database)
    else:
        from wlc.capture.duckdb.source import expected_digests
        from wlc.snapshot import digests

        with _master(source, storage_options) as (shared, _), shared.reading() as connection:
            held, expected = digests(connection, shared.catalog), expected_digests(connection, shared.catalog)
    return [_source_check(name, held.get(name), expected.get(name)) for name in sorted(held.keys() | expected.keys())]


def _source_check(name: Name, held: Digest | None, expected: Digest | None) -> SourceCheck:
    from wlc.digest import compared

    outcome = compared(held, expected)
    return SourceCheck(str(name), outcome, held.rows if held else None, expected.rows if expected else None)


def _open_master(path: Path, *, read_only: bool, config: dict[str, Any] | None) -> Shared:
    from wlc.capture.duckdb import probe
    from wlc.capture.duckdb.shared import close_shared, open_shared

    shared = open_shared(str(path), read_only=read_only, config=config, must_agree=True)
    try:
        require_state(shared, path)
        probe.check()
    except BaseException:
        close_shared(shared)
        raise
    return shared


@contextmanager
def _master(
    source: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Iterator[tuple[Shared, FarmDatabase]]:
    from wlc.capture.duckdb.shared import explained

    path = existing(source)
    with opened(path) as shared:
        require_state(shared, path)
        if not shared.is_master:
            raise InvalidError(f"{path} was stopped", hint=f"wlc master {path} starts a new history", path=str(path))
        with explained(str(path)):
            yield shared, _attach_publisher(shared, storage_options)


def _attach_publisher(shared: Shared, storage_options: Mapping[str, Any] | None) -> FarmDatabase:
    """Tell the connections of this process how to publish; options given now hold for all of them."""
    from wlc.publisher import publish

    shared.storage_options = lay_over(shared.storage_options, storage_options or {})
    database = database_of(shared)
    if shared.publish is None or storage_options:
        shared.publish = lambda: publish(shared, database)
    return database
