"""A database as master: beginning, flushing, snapshots, stopping, and what there is to know about it.

A source is the path of a DuckDB file or the URL of a PostgreSQL database; what is done to the latter is in
`wlc.capture.postgres.master`.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.begin import Source, begin, from_anywhere
from wlc.config import STARTED, STOPPED, parse_beat
from wlc.errors import FarmError, FencedError, GapError, InvalidError
from wlc.farm import FarmDatabase, open_database
from wlc.ownership import change_config, known, own, settle
from wlc.paths import check_database_name
from wlc.store import MissingError
from wlc.store.options import lay_over, merged

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import ModuleType

    from wlc.capture.duckdb.connection import Connection
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.postgres.master import PostgresSource
    from wlc.model import Config, Manifest, Name
    from wlc.ownership import Flushed


@dataclass(frozen=True, slots=True)
class Status:
    """State of a master, as its farm and, where the source was given, its journal tell it.

    Attributes:
        state: "started" or "stopped".
        tick: Last published tick, 0 before the first.
        clock: Its commit time, None before the first.
        batches: Number of batches published so far.
        unpublished: Transactions that wait in the journal; None where only the farm was asked.
        bypassed: Tables changed without capture, and how that shows; empty where only the farm was asked.
    """

    name: str
    state: str
    tick: int
    clock: datetime | None
    beat_s: float
    batches: int
    history: str
    farm: str
    snapshot: str
    log_bytes: int
    unpublished: int | None = None
    bypassed: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PostgresStatus(Status):
    """State of a PostgreSQL master that was asked itself.

    Attributes:
        slot: "reserved" while all is well; "unreserved", "lost" or "gone" otherwise; None once it was stopped.
        retained_bytes: Size of the server's log that is kept until it is published.
        lsn: Up to where in the server's log is published.
    """

    slot: str | None = None
    retained_bytes: int = 0
    lsn: str = ""


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
        with _postgres().opened(os.fspath(source), tables) as found:
            database = _begin(
                found, str(found), found.database_name, Path.cwd(), farm, name, logs, beat_s, storage_options
            )
            return _postgres_status(database, found)
    if tables:
        raise InvalidError("all tables of a DuckDB master are replicated", hint="choose with wlr replicate --tables")
    path = _existing(source)
    with _opened(path) as shared:
        database = _begin(
            DuckDBSource(shared), str(path), path.stem, path.parent, farm, name, logs, beat_s, storage_options
        )
        return _status(database, shared)


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
    database = open_database(name, url, options)
    database.store.probe()
    begin(source, database, url, logs, beat_s, options)
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
        from wlc.capture.duckdb import journal

        with self._shared.commit_lock:
            journal.write_state(self._shared.root, self._shared.catalog, dict(values))
            self._shared.load()


def tables_to_change(source: str | os.PathLike[str], tables: Sequence[str] = ()) -> list[Name]:
    """List the tables of a PostgreSQL database that `master` would give REPLICA IDENTITY FULL; arguments as there."""
    with _postgres().opened(os.fspath(source)) as found:
        names: list[Name] = found.tables_to_change(tables)
        return names


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

    path = _existing(database)
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
        published: Flushed = _postgres().flush(os.fspath(source), storage_options)
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
    published: Flushed = _postgres().run(os.fspath(source), storage_options, is_stopped, tell)
    return published


def snapshot(source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """Take a new snapshot at the current tick; what is journalled is published first.

    Raises:
        UnsupportedError: Something bypassed the capture, so that no tick describes the database.
    """
    if is_postgres(source):
        with _postgres().opened_master(os.fspath(source), storage_options) as (found, database):
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
        _postgres().stop(os.fspath(source), storage_options)
        return status(source, storage_options=storage_options)
    from wlc.capture.duckdb import journal

    with _master(source, storage_options) as (shared, database), shared.publish_lock, shared.commit_lock:
        try:
            _end_history(shared, database)
        except (FencedError, MissingError, GapError) as error:
            warnings.warn(f"{source} publishes no more, and the farm is left as it is: {error}", stacklevel=2)
        journal.write_state(shared.root, shared.catalog, {"state": "2"})
        shared.load()
        try:
            return _status(database, shared)
        except MissingError:
            return _status(database, shared, replace(known(shared.state), state=STOPPED))


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
    """
    from wlc.capture.duckdb import repair as repairing
    from wlc.publisher import publish

    with _master(source, storage_options) as (shared, database):
        publish(shared, database)
        repairing.journal_difference(shared, Path(published))
        return publish(shared, database)


def status(
    db: str | os.PathLike[str], farm: str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> Status:
    """State of a master, asked of the source or of the farm; arguments as for `resolve`."""
    if is_postgres(db):
        postgres = _postgres()
        with postgres.opened(os.fspath(db)) as found:
            postgres.require_state(found)
            return _postgres_status(postgres.database_of(found, storage_options, farm), found)
    if _is_source(db):
        with _opened(_existing(db)) as shared:
            _require_state(shared, Path(db))
            return _status(_database_of(shared, storage_options), shared)
    return _status(resolve(db, farm, storage_options=storage_options), None)


def tick(
    db: str | os.PathLike[str], farm: str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> int:
    """Last published tick, 0 before the first; arguments as for `resolve`."""
    return resolve(db, farm, storage_options=storage_options).config().tick


def clock(
    db: str | os.PathLike[str], farm: str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> datetime | None:
    """Commit time of the last published transaction, None before the first; arguments as for `resolve`."""
    return resolve(db, farm, storage_options=storage_options).config().write


def beat(
    db: str | os.PathLike[str],
    beat_s: float | None = None,
    farm: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> float:
    """Show or set the beat, seconds; masters that are open follow at their next beat."""
    database = resolve(db, farm, storage_options=storage_options)
    if beat_s is None:
        return database.config().beat_s
    parse_beat(str(beat_s))
    if _is_source(db):
        from wlc.capture.duckdb import journal

        with _opened(Path(db)) as shared:
            journal.write_state(shared.root, shared.catalog, {"beat_s": str(beat_s)})
            shared.load()
    return change_config(database, lambda config: replace(config, beat_s=beat_s)).beat_s


def resolve(
    db: str | os.PathLike[str], farm: str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> FarmDatabase:
    """The farm database that a name, a URL or a source stands for.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        farm: Where a bare name is looked up; WLC_FARM when omitted.
        storage_options: Options of the farm's file system, over those that a source remembers.

    Raises:
        InvalidError: A source that has never been a master, or a bare name without a farm.
    """
    if is_postgres(db):
        postgres = _postgres()
        with postgres.opened(os.fspath(db)) as found:
            postgres.require_state(found)
            database: FarmDatabase = postgres.database_of(found, storage_options, farm)
            return database
    if not _is_source(db):
        return open_database(os.fspath(db), farm, storage_options)
    path = Path(db)
    try:
        with _opened(path) as shared:
            _require_state(shared, path)
            return _database_of(shared, storage_options, farm)
    except FarmError as error:
        beside = path.parent / "dbfarm" / path.stem
        if error.exit_code != 75 or not (beside / "wlc.config").exists():
            raise
        # The source is in use; its farm at the default place can be asked all the same.
        return open_database(str(beside))


def _is_source(db: str | os.PathLike[str]) -> bool:
    text = os.fspath(db)
    return "://" not in text and Path(text).is_file()


def is_postgres(source: str | os.PathLike[str]) -> bool:
    """Say whether a source is the URL of a PostgreSQL database."""
    return os.fspath(source).startswith(("postgresql://", "postgres://"))


def _existing(source: str | os.PathLike[str]) -> Path:
    if is_postgres(source):
        raise InvalidError(
            "a PostgreSQL master is written to with PostgreSQL's own programs",
            hint="psql URL; what is committed is published by wlc run URL",
        )
    path = Path(source)
    if not path.exists():
        raise InvalidError(
            f"there is no database {path}", hint=f"create it with DuckDB first, then: wlc master {path}", path=str(path)
        )
    if path.is_dir():
        raise InvalidError(f"{path} is a folder, not a DuckDB database", path=str(path))
    return path


@contextmanager
def _opened(path: Path, *, read_only: bool = False) -> Iterator[Shared]:
    from wlc.capture.duckdb.shared import close_shared, open_shared

    shared = open_shared(str(path), read_only=read_only)
    try:
        yield shared
    finally:
        close_shared(shared)


def _open_master(path: Path, *, read_only: bool, config: dict[str, Any] | None) -> Shared:
    from wlc.capture.duckdb import probe
    from wlc.capture.duckdb.shared import close_shared, open_shared

    shared = open_shared(str(path), read_only=read_only, config=config, must_agree=True)
    try:
        _require_state(shared, path)
        probe.check()
    except BaseException:
        close_shared(shared)
        raise
    return shared


@contextmanager
def _master(
    source: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Iterator[tuple[Shared, FarmDatabase]]:
    path = _existing(source)
    with _opened(path) as shared:
        _require_state(shared, path)
        if not shared.is_master:
            raise InvalidError(f"{path} was stopped", hint=f"wlc master {path} starts a new history", path=str(path))
        yield shared, _attach_publisher(shared, storage_options)


def _require_state(shared: Shared, path: Path) -> dict[str, str]:
    if not shared.state:
        raise InvalidError(f"{path} is not a master", hint=f"wlc master {path}", path=str(path))
    return shared.state


def _attach_publisher(shared: Shared, storage_options: Mapping[str, Any] | None) -> FarmDatabase:
    """Tell the connections of this process how to publish; options given now hold for all of them."""
    from wlc.publisher import publish

    shared.storage_options = lay_over(shared.storage_options, storage_options or {})
    database = _database_of(shared)
    if shared.publish is None or storage_options:
        shared.publish = lambda: publish(shared, database)
    return database


def _database_of(
    shared: Shared, storage_options: Mapping[str, Any] | None = None, farm: str | None = None
) -> FarmDatabase:
    """The master's place in the farm, with the options it remembers, those of this process, and those given now."""
    state = shared.state
    options = lay_over(merged(state.get("options"), shared.storage_options), storage_options or {})
    return open_database(state["name"], farm or state["farm"], options)


def _postgres() -> ModuleType:
    """The half of the masters that needs PostgreSQL's drivers."""
    try:
        from wlc.capture.postgres import master as postgres
    except ImportError as error:
        message = f"PostgreSQL needs packages that are not installed: {error}"
        raise InvalidError(message, hint="pip install 'dbfarm[postgres]'") from error
    return postgres


def _postgres_status(database: FarmDatabase, source: PostgresSource) -> PostgresStatus:
    base = _status(database, None)
    if not source.is_master:
        return PostgresStatus(**_fields(base), lsn=source.state["lsn"])
    if warning := source.retention_warning():
        warnings.warn(warning, stacklevel=3)
    slot, bypassed = source.slot(), source.bypassed()
    return PostgresStatus(
        **{**_fields(base), "bypassed": bypassed},
        slot=slot.status if slot else "gone",
        retained_bytes=slot.retained_bytes if slot else 0,
        lsn=source.state["lsn"],
    )


def _fields(status_: Status) -> dict[str, Any]:
    return {field.name: getattr(status_, field.name) for field in fields(status_)}


def _status(database: FarmDatabase, shared: Shared | None, config: Config | None = None) -> Status:
    config = config or database.config()
    unpublished, bypassed = None, None
    if shared is not None:
        from wlc.capture.duckdb import source as journalled

        with shared.reading() as connection:
            unpublished = journalled.count_pending(connection, shared.catalog)
            found = journalled.bypassed(connection, shared.catalog) if shared.is_master else {}
        bypassed = {str(name): problem for name, problem in found.items()}
    return Status(
        config.name,
        "started" if config.state == STARTED else "stopped",
        config.tick,
        config.write,
        config.beat_s,
        config.batches - 1,
        config.history,
        database.url,
        config.snapshot,
        database.log_bytes(),
        unpublished,
        bypassed,
    )
