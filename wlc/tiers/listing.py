"""All databases of a farm with their verdicts, and all readers of a database."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, FarmError, InvalidError
from wlc.farm.health import Health, read_health
from wlc.farm.human_form import ForPeople
from wlc.farm.paths import ATTACHMENT, CONFIG, SITES, SNAPSHOTS, check_database_name
from wlc.farm.reachable_past import Window, read_window
from wlc.farm.registry import STUCK, known_replicas
from wlc.farm.store import MissingError, open_store
from wlc.masters.lookup import resolve
from wlc.masters.prune import prune_database
from wlc.masters.retention import DEADLINE
from wlc.tiers.overview import continuing_command, members_of
from wlc.tiers.standing import DAMAGED, UNREADABLE, WRONG, Facts, judge, place_of
from wlc.tiers.tree import read_tree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.registry import Replica
    from wlc.farm.store import Store
    from wlc.tiers.overview import TierMember

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class FarmEntry(ForPeople):
    """One database of a farm.

    Attributes:
        database: Its name; a site's name is `DATABASE/sites/SITE`.
        kind: "database", "site" of several masters, or "relay" that chooses its upstream; other relays look like
            databases.
        state: See `Standing`: ok, quiet, stopped; or unreadable, damaged, failing, silent, late, behind.
        why: One sentence; `remedy`: the next command to type, None if there is none.
        tick: Last published tick; `clock`: when it was committed; `age_s`: seconds since then. None before the first.
        seen: When the publisher was last seen; None if never.
        lag_s: Seconds that the slowest reader is behind; None without readers, or if unknown.
        can_go_back_to: Time from which on every state can be restored; None if nothing was published or the key is
            missing.
        verified: When `wlc farm verify` last read it, None for never.
        drilled: When `wlr replica drill` last restored it, None for never.
        bytes: Size of its log and snapshots.
    """

    database: str
    kind: str
    state: str
    why: str
    remedy: str | None = None
    tick: int | None = None
    clock: datetime | None = None
    age_s: float | None = None
    seen: datetime | None = None
    lag_s: float | None = None
    can_go_back_to: datetime | None = None
    verified: datetime | None = None
    drilled: datetime | None = None
    bytes: int | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether it needs attention."""
        return self.state in WRONG


@dataclass(frozen=True, slots=True)
class RegisteredReader(ForPeople):
    """A registered reader of a database.

    Attributes:
        kind: replica, relay, site or feed.
        tick: Last tick that it holds, None before the first.
        lag_s: Seconds between its last commit and the farm's; None if one of them is unknown.
        lag_transactions: Ticks between the two.
        seen: When it last registered; `is_overdue`: too long ago to keep files from being pruned.
        held_bytes: Bytes of the log that only its kind of reader keeps from being pruned; None without the farm's key.
    """

    id: str
    kind: str
    target: str
    host: str
    tick: int | None
    lag_s: float | None
    lag_transactions: int | None
    seen: datetime
    is_overdue: bool
    held_bytes: int | None


def databases(
    farm: str | os.PathLike[str] | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> list[FarmEntry]:
    """Return all databases of a farm, by name; can be empty.

    Args:
        farm: URL or path of the farm; WLC_FARM, or `dbfarm` in the present folder, if omitted.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no farm, or it is the folder of one database.
        UnavailableError: The farm is unreachable.

    Examples:
        >>> [(entry.database, entry.tick) for entry in wlc.databases()]
        [('sales', 3)]
    """
    url = os.fspath(farm) if farm is not None else os.environ.get("WLC_FARM") or ("dbfarm" if _is_here() else None)
    if url is None:
        raise InvalidError("no farm is given", hint="wlc list URL, or set WLC_FARM")
    store = open_store(url, storage_options)
    if store.exists(CONFIG):
        above = shlex.quote(store.url.rpartition("/")[0])
        raise InvalidError(f"{store.url} is a database, not a farm", hint=f"wlc list {above}")
    if "://" not in store.url and not Path(store.url).is_dir():
        raise InvalidError(f"there is no folder {store.url}", hint="wlc list URL, or wlc master SOURCE --farm URL")
    names = database_names(store)
    with ThreadPoolExecutor(_AT_ONCE if store.is_remote else 1) as pool:
        found = pool.map(lambda name: _entries(store.url, name, storage_options), names)
        return [entry for entries in found for entry in entries]


def _is_here() -> bool:
    return Path("dbfarm").is_dir()


def database_names(store: Store) -> list[str]:
    """Return the folders of a farm that can be databases, by name."""
    names = []
    for folder in store.folders():
        try:
            names.append(check_database_name(folder))
        except InvalidError:
            continue
    return names


def _entries(farm: str, name: str, options: Mapping[str, Any] | None) -> list[FarmEntry]:
    """Return a database and its other sites; nothing for any other folder."""
    store = open_store(f"{farm}/{name}", options)
    if not store.exists(CONFIG):
        return []
    sites = store.folders(SITES)
    kind = "site" if sites else "relay" if store.exists(ATTACHMENT) else "database"
    found = [entry_of(f"{farm}/{name}", name, kind, options)]
    others = [f"{name}/{SITES}{site}" for site in sites]
    others = [other for other in others if open_store(f"{farm}/{other}", options).exists(CONFIG)]
    return [*found, *(entry_of(f"{farm}/{other}", other, "site", options) for other in others)]


def entry_of(url: str, name: str, kind: str = "database", options: Mapping[str, Any] | None = None) -> FarmEntry:
    """Return the state of a database, always: if the farm is unreachable, the state is unreadable.

    Args:
        url: The database's folder.
        name: As the list of its farm names it.
        kind: See `FarmEntry`.
        options: Options of the farm's file system.
    """
    try:
        return _judged(open_database(url, storage_options=options), name, kind)
    except (FarmError, OSError) as error:
        return not_read(name, kind, error)


def not_read(name: str, kind: str, error: FarmError | OSError) -> FarmEntry:
    """Return the standing of a database after a read error."""
    state = DAMAGED if isinstance(error, CorruptError | MissingError) else UNREADABLE
    return FarmEntry(name, kind, state, str(error), error.hint if isinstance(error, FarmError) else None)


def _judged(database: FarmDatabase, name: str, kind: str) -> FarmEntry:
    now, config = utc_now(), database.config()
    damage, note, window, health = "", "", Window(None, None), Health()
    members: tuple[TierMember, ...] = ()
    try:
        health = read_health(database)
        members = members_of(read_tree(database, now), database.url)[1:]
        window = read_window(database)
    except InvalidError as error:
        note = f"; {error.message}"
    except (CorruptError, MissingError) as error:
        damage = error.message
    stuck = {
        f"{each.kind} {each.id} ({each.url})": continuing_command(each, database.url)
        for each in members
        if STUCK in (*each.marks, each.state)
    }
    place = place_of(name, database.url.removesuffix(f"/{name}"))
    found = judge(Facts(place, config, health, damage, stuck), now)
    return FarmEntry(
        name,
        kind,
        found.state,
        found.why + note,
        found.remedy,
        config.tick,
        config.write,
        max((now - config.write).total_seconds(), 0.0) if config.write else None,
        found.seen,
        max((member.lag_s for member in members if member.lag_s is not None), default=None),
        window.clock,
        health.verified.time if health.verified else None,
        health.drilled.time if health.drilled else None,
        database.log_bytes() + sum(entry.bytes for entry in database.store.list(SNAPSHOTS)),
    )


def readers(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[RegisteredReader]:
    """Return the registered readers of a database, by id; can be empty. Arguments as for `resolve`.

    Raises:
        InvalidError: There is no such database.
        CorruptError: A registration is damaged; the hint says how to continue.

    Examples:
        >>> [(reader.kind, reader.tick) for reader in wlc.readers("sales")]
        [('replica', 3), ('replica', 3)]
    """
    database = resolve(db, farm, storage_options=storage_options)
    config, now = database.config(), utc_now()
    found, wrong = known_replicas(database)
    if wrong:
        raise wrong[0]
    try:
        retention = prune_database(database, dry_run=True)
    except (InvalidError, CorruptError):
        held: Mapping[str, int] | None = None
    else:
        held = retention.held_bytes
    return [_reader(replica, config.tick, config.write, now, held) for replica in found]


def _reader(
    replica: Replica, tick: int, clock: datetime | None, now: datetime, held: Mapping[str, int] | None
) -> RegisteredReader:
    position = replica.position
    behind = max(tick - position.tick, 0) if position else None
    lag_s = 0.0 if behind == 0 else None
    if behind and clock is not None and replica.clock is not None:
        lag_s = max((clock - replica.clock).total_seconds(), 0.0)
    return RegisteredReader(
        replica.id,
        replica.kind,
        replica.target,
        replica.host,
        position.tick if position else None,
        lag_s,
        behind,
        replica.seen,
        now - replica.seen > DEADLINE,
        None if held is None else held.get(replica.id, 0),
    )
