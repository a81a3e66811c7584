"""What ties a master to its place in the farm: both know whose it is, and `wlc.config` follows what is published.

A master, whatever its source, remembers keys and values: `farm name history batch tick chain clock vector parent beat_s
logs options state`, and of DuckDB `began`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.clock import format_time, read_time, utc_now
from wlc.config import STARTED, STOPPED
from wlc.errors import CorruptError, FencedError, UnavailableError
from wlc.model import Config, Origin, Position
from wlc.paths import snapshot_folder
from wlc.store import ConflictError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from wlc.farm import FarmDatabase
    from wlc.model import Batch

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Flushed:
    """What one flush published; `tick` is the last published one afterwards."""

    batches: int
    transactions: int
    rows: int
    tick: int


def known(state: Mapping[str, str]) -> Config:
    """The config as a master would write it by its own state."""
    parent = json.loads(state["parent"]) if state.get("parent") else None
    return Config(
        "",
        state.get("logs", "wlc_logs"),
        STARTED,
        int(state["batch"]) + 1,
        float(state["beat_s"]),
        read_time(state["clock"]) if state.get("clock") else None,
        state["name"],
        state["history"],
        int(state["tick"]),
        Origin(**parent) if parent else None,
    )


def reached(state: Mapping[str, str]) -> tuple[Position, datetime, dict[str, int]]:
    """Return what a snapshot says of the moment at which all is published: position, clock, vector."""
    position = Position(state["history"], int(state["tick"]), int(state["batch"]), state["chain"])
    told = state.get("clock") or state.get("began")
    clock = read_time(told) if told else utc_now()
    vector = json.loads(state.get("vector") or "{}")
    return position, clock, {**vector, state["history"]: position.tick} if position.tick else vector


def after(batch: Batch, chain: str) -> dict[str, str]:
    """Return what a master remembers of a batch once it is published."""
    values = {"batch": str(batch.number), "tick": str(batch.last), "chain": chain, "parent": ""}
    values["vector"] = json.dumps(dict(batch.vector))
    return {**values, "clock": format_time(batch.clock)} if batch.clock else values


def announce_snapshot(database: FarmDatabase, state: Mapping[str, str], tick: int) -> None:
    """Let `wlc.config` name a new snapshot.

    Raises:
        FencedError: The farm's database is another master's.
    """
    folder = snapshot_folder(tick)
    change_config(database, lambda config: replace(own(config, state), snapshot=folder))


def change_config(database: FarmDatabase, change: Callable[[Config], Config]) -> Config:
    """Replace `wlc.config` by compare-and-swap until nobody else changes it in between.

    Args:
        database: Whose config.
        change: Function from the present config to the new one; returns its argument to leave it alone.
    """
    for _ in range(_ATTEMPTS):
        config, version = database.config_versioned()
        changed = change(config)
        if changed == config:
            return config
        try:
            database.replace_config(changed, version)
        except ConflictError:
            continue
        return changed
    raise UnavailableError(f"wlc.config of {database.name} keeps changing", hint="try again", path=database.url)


def own(config: Config, state: Mapping[str, str]) -> Config:
    """Return the config, unless it is another history's.

    Raises:
        FencedError: It is.
    """
    if config.history != state["history"]:
        raise FencedError(f"another master took {config.name} over meanwhile", hint="choose another name with --name")
    return config


def fence(config: Config, state: Mapping[str, str]) -> None:
    """Refuse to publish into a farm database that is not ours any more.

    Raises:
        FencedError: Another history has begun there, it was stopped from elsewhere, or log files are to go elsewhere.
    """
    if config.history != state["history"]:
        raise FencedError(
            f"farm database {config.name} is at history {config.history}, this master at {state['history']}",
            hint="another copy became its master; to publish this one, too: wlc stop SOURCE, then"
            " wlc master SOURCE --name OTHER",
        )
    # Whoever can write wlc.config must not have our rows written somewhere else.
    if config.logs != known(state).logs:
        raise FencedError(
            f"wlc.config of farm database {config.name} says logs={config.logs}, this master knows {known(state).logs}",
            hint="put logs= right there; to publish elsewhere: wlc stop SOURCE, then wlc master SOURCE --logs URL",
        )
    if config.state == STOPPED:
        raise FencedError(
            f"farm database {config.name} was stopped",
            hint="wlc stop SOURCE, then wlc master SOURCE, which starts a new history from a snapshot",
        )


def present_config(database: FarmDatabase, state: Mapping[str, str]) -> Config:
    """The present config, made again from the log files and what the master knows where it is lost or damaged."""
    try:
        return database.config()
    except (MissingError, CorruptError):
        return database.rebuild_config(known(state))


def advance_config(database: FarmDatabase, batch: Batch) -> None:
    """Let `wlc.config` follow; it can always be rebuilt, so only a fence matters here."""
    written = batch.clock

    def follow(config: Config) -> Config:
        if config.batches > batch.number:
            return config
        return replace(config, batches=batch.number + 1, tick=batch.last, write=written or config.write)

    change_config(database, follow)


def header(state: Mapping[str, str], number: int) -> dict[str, Any]:
    """Return what a batch says that does not come from its transactions."""
    parent = json.loads(state["parent"]) if state.get("parent") else None
    return {
        "database": state["name"],
        "number": number,
        "history": state["history"],
        "previous": state["chain"],
        "vector": json.loads(state.get("vector") or "{}"),
        "parent": Origin(**parent) if parent else None,
    }


def outdated(database: FarmDatabase, number: int) -> FencedError:
    """Build the error for a batch that is not there by what this master remembers."""
    return FencedError(
        f"batch {number} of {database.name} was published by another master, or by this one before it was restored",
        hint="run exactly one master; to go on from this copy: wlc stop SOURCE, then wlc master SOURCE, which starts"
        " a new history",
        path=database.url,
    )


def settle(state: Mapping[str, str], database: FarmDatabase) -> None:
    """After all is published: put `wlc.config` right if it was lost or damaged or an earlier run left it behind.

    Raises:
        FencedError: The farm's database is another master's.
    """
    config = present_config(database, state)
    fence(config, state)
    published = int(state["batch"])
    if config.batches > published + 1:
        raise outdated(database, published + 1)
    if config.batches <= published:
        database.rebuild_config()
