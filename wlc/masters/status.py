"""The status of a master, read from the farm or from the master itself."""

from __future__ import annotations

import os
import shlex
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.farm.config import STARTED
from wlc.farm.errors import CorruptError, FencedError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople
from wlc.farm.reachable_past import Window, read_window
from wlc.farm.store import MissingError
from wlc.masters import adapters
from wlc.masters.contract import SourceDetails, database_of
from wlc.masters.fence import fence
from wlc.masters.lookup import opened_or_held, resolve, warn_of_farm
from wlc.masters.master_state import Fence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Config, Name
    from wlc.masters.contract import Source


@dataclass(frozen=True, slots=True)
class MasterStatus(ForPeople):
    """Status of a master. Fields that only the source itself knows are None if only the farm was read.

    Attributes:
        state: "active" or "stopped".
        tick: Last published tick, 0 before the first.
        clock: Its commit time, None before the first.
        batches: Number of batches published so far.
        unpublished: Pending transactions in the journal; None for a PostgreSQL master, which has no journal.
        bypassed: Tables changed without capture, with the evidence.
        slot: Of a PostgreSQL master: "reserved" if healthy; "unreserved", "lost" or "gone" otherwise.
        retained_bytes: Of a PostgreSQL master: size of the server's log that is retained until it is published.
        lsn: Of a PostgreSQL master: published position in the server's log.
        can_go_back_to: Time from which on every state can be restored, `can_go_back_to_tick`: its tick; None if nothing
            was published, or the farm cannot be read without its key.
        fenced: The reason why the source publishes nothing here: another master took its place, or it is a copy; None
            if it can publish.
        fenced_since: When an attempt to publish was first refused; None before the first.
        remedy: Commands for its owner in that case.
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
    slot: str | None = None
    retained_bytes: int | None = None
    lsn: str | None = None
    can_go_back_to: datetime | None = None
    can_go_back_to_tick: int | None = None
    fenced: str | None = None
    fenced_since: datetime | None = None
    remedy: str | None = None


def tables_to_change(source: str | os.PathLike[str], tables: Sequence[str] = ()) -> list[Name]:
    """List the tables whose replica identity `master` would change to FULL; arguments as for `master`.

    Examples:
        >>> for table in wlc.tables_to_change("postgresql://db.example.com/sales"):
        ...     print("ALTER TABLE", table.sql, "REPLICA IDENTITY FULL")
        ALTER TABLE "public"."orders" REPLICA IDENTITY FULL
    """
    return adapters.module_of(source).tables_to_change(os.fspath(source), tables)


def preparation(source: str | os.PathLike[str]) -> str:
    """Return SQL that a superuser must run once, so that the role in a PostgreSQL URL need not be a superuser.

    Args:
        source: URL of the database; nothing connects to it.

    Raises:
        InvalidError: A DuckDB file needs no preparation.

    Examples:
        >>> sql = wlc.preparation("postgresql://replicator@db.example.com/sales")
        >>> "ALTER ROLE" in sql
        True
    """
    return adapters.module_of(source).preparation(os.fspath(source))


def status(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> MasterStatus:
    """Return the status of a master, read from the source or from the farm; arguments as for `resolve`.

    If another process has the source open, the status is from the farm, with a warning.

    Examples:
        >>> status = wlc.status("sales")
        >>> status.state, status.tick, status.beat_s
        ('active', 3, 60.0)
    """
    if not adapters.is_source(db):
        return status_of(resolve(db, farm, storage_options=storage_options))
    with opened_or_held(db) as source:
        if isinstance(source, UnavailableError):
            found = status_of(resolve(db, farm, storage_options=storage_options))
            warn_of_farm(source)
            return found
        database = database_of(source.require_state(), storage_options, farm)
        found = status_of(database, source.details())
        fenced = _fence(source, database)
        if fenced is None:
            return found
        remedy = fenced.hint.replace("SOURCE", shlex.quote(os.fspath(db)))
        return replace(found, fenced=fenced.message, fenced_since=fenced.since, remedy=remedy)


def _fence(source: Source, database: FarmDatabase) -> Fence | None:
    """Return the reason why a master cannot publish, whether or not it has tried."""
    state = source.require_state()
    if not state.is_master:
        return None
    try:
        if (away := source.elsewhere()) is not None:
            raise away
        fence(database, database.config(), state)
    except FencedError as error:
        return state.fence or Fence(error.message, error.hint or "")
    return state.fence


def status_of(
    database: FarmDatabase, details: SourceDetails | None = None, config: Config | None = None
) -> MasterStatus:
    """Return the status of a master from its farm and, if it was read, the source itself."""
    config = config or database.config()
    details = details or SourceDetails()
    if details.warning:
        warnings.warn(details.warning, stacklevel=3)
    window = _window(database)
    return MasterStatus(
        name=config.name,
        state="active" if config.state == STARTED else "stopped",
        tick=config.tick,
        clock=config.write,
        beat_s=config.beat_s,
        batches=config.batches - 1,
        history=config.history,
        farm=database.url,
        snapshot=config.snapshot,
        log_bytes=database.log_bytes(),
        unpublished=details.unpublished,
        bypassed=details.bypassed,
        slot=details.slot,
        retained_bytes=details.retained_bytes,
        lsn=details.lsn,
        can_go_back_to=window.clock,
        can_go_back_to_tick=window.tick,
    )


def _window(database: FarmDatabase) -> Window:
    """Return the restorable states; unknown if manifests are unreadable, which `wlc farm verify` reports."""
    try:
        return read_window(database)
    except (InvalidError, CorruptError, MissingError):
        return Window(None, None)
