"""What there is to know about a master: asked of the farm, or of the master itself.

A source is the path of a DuckDB file or the URL of a PostgreSQL database.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.config import STARTED, parse_beat
from wlc.errors import FarmError, InvalidError
from wlc.farm import FarmDatabase, open_database
from wlc.ownership import change_config
from wlc.store.options import lay_over, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from types import ModuleType

    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.postgres.master import PostgresSource
    from wlc.model import Config, Name


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


def tables_to_change(source: str | os.PathLike[str], tables: Sequence[str] = ()) -> list[Name]:
    """List the tables of a PostgreSQL database that `master` would give REPLICA IDENTITY FULL; arguments as there."""
    with postgres_masters().opened(os.fspath(source)) as found:
        names: list[Name] = found.tables_to_change(tables)
        return names


def status(
    db: str | os.PathLike[str], farm: str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> Status:
    """State of a master, asked of the source or of the farm; arguments as for `resolve`."""
    if is_postgres(db):
        postgres = postgres_masters()
        with postgres.opened(os.fspath(db)) as found:
            postgres.require_state(found)
            return postgres_status(postgres.database_of(found, storage_options, farm), found)
    if is_source(db):
        with opened(existing(db)) as shared:
            require_state(shared, Path(db))
            return status_of(database_of(shared, storage_options), shared)
    return status_of(resolve(db, farm, storage_options=storage_options), None)


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
    if is_source(db):
        with opened(Path(db)) as shared:
            shared.remember({"beat_s": str(beat_s)})
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
        postgres = postgres_masters()
        with postgres.opened(os.fspath(db)) as found:
            postgres.require_state(found)
            database: FarmDatabase = postgres.database_of(found, storage_options, farm)
            return database
    if not is_source(db):
        return open_database(os.fspath(db), farm, storage_options)
    path = Path(db)
    try:
        with opened(path) as shared:
            require_state(shared, path)
            return database_of(shared, storage_options, farm)
    except FarmError as error:
        beside = path.parent / "dbfarm" / path.stem
        if error.exit_code != 75 or not (beside / "wlc.config").exists():
            raise
        # The source is in use; its farm at the default place can be asked all the same.
        return open_database(str(beside))


def is_source(db: str | os.PathLike[str]) -> bool:
    """Say whether this is the path of a DuckDB file that is there."""
    text = os.fspath(db)
    return "://" not in text and Path(text).is_file()


def is_postgres(source: str | os.PathLike[str]) -> bool:
    """Say whether a source is the URL of a PostgreSQL database."""
    return os.fspath(source).startswith(("postgresql://", "postgres://"))


def existing(source: str | os.PathLike[str]) -> Path:
    """Return the path of a DuckDB file that is to be there."""
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
def opened(path: Path, *, read_only: bool = False) -> Iterator[Shared]:
    """Open a DuckDB master's file."""
    from wlc.capture.duckdb.shared import close_shared, open_shared

    shared = open_shared(str(path), read_only=read_only)
    try:
        yield shared
    finally:
        close_shared(shared)


def require_state(shared: Shared, path: Path) -> dict[str, str]:
    """Return what a database remembers; refuse one that has never been a master."""
    if not shared.state:
        raise InvalidError(f"{path} is not a master", hint=f"wlc master {path}", path=str(path))
    return shared.state


def database_of(
    shared: Shared, storage_options: Mapping[str, Any] | None = None, farm: str | None = None
) -> FarmDatabase:
    """The master's place in the farm, with the options it remembers, those of this process, and those given now."""
    state = shared.state
    options = lay_over(merged(state.get("options"), shared.storage_options), storage_options or {})
    return open_database(state["name"], farm or state["farm"], options)


def postgres_masters() -> ModuleType:
    """The half of the masters that needs PostgreSQL's drivers."""
    try:
        from wlc.capture.postgres import master as postgres
    except ImportError as error:
        message = f"PostgreSQL needs packages that are not installed: {error}"
        raise InvalidError(message, hint="pip install 'dbfarm[postgres]'") from error
    return postgres


def postgres_status(database: FarmDatabase, source: PostgresSource) -> PostgresStatus:
    """State of a PostgreSQL master, with a warning where its server keeps much of its log."""
    base = status_of(database, None)
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


def status_of(database: FarmDatabase, shared: Shared | None, config: Config | None = None) -> Status:
    """State of a master as its farm tells it, and its journal where it was opened."""
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
