"""The beginning of a history: a database and its place in the farm become one another's."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wlc.clock import format_time, utc_now
from wlc.config import STARTED, STOPPED
from wlc.errors import InvalidError
from wlc.model import Origin
from wlc.ownership import change_config, known, own
from wlc.store import AlreadyExistsError, MissingError
from wlc.store.options import remembered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm import FarmDatabase
    from wlc.model import Config


class Source(Protocol):
    """A database that becomes a master."""

    @property
    def state(self) -> Mapping[str, str]:
        """What it remembers of itself; empty if it has never been a master."""

    def check(self) -> None:
        """Refuse what cannot be captured, before anything is changed."""

    def install(self, state: Mapping[str, str]) -> None:
        """Make in it what the capture needs, in place of what is left of an earlier history, and remember `state`."""

    def has_objects(self) -> bool:
        """Say whether a replica could not start from nothing."""

    def take_snapshot(self, database: FarmDatabase) -> object:
        """Publish a snapshot at the tick that it remembers."""

    def remember(self, values: Mapping[str, str]) -> None:
        """Replace keys of what it remembers."""


def begin(
    source: Source,
    database: FarmDatabase,
    farm: str,
    logs: str | None,
    beat_s: float,
    storage_options: Mapping[str, Any],
) -> None:
    """Start a history: claim the farm's database while it counts as stopped, take the snapshot, then start both.

    Dying in between leaves a database of ours that counts as stopped, from which the next attempt starts over.

    Raises:
        InvalidError: The farm has a database of this name, and it is not ours or not stopped.
    """
    source.check()
    present = _claimable(database, source.state)
    where = from_anywhere(logs) if logs is not None else (present.logs if present else "wlc_logs")
    if logs is not None:
        database.probe_logs(where)
    state = {
        "farm": farm,
        "name": database.name,
        "history": uuid.uuid4().hex[:16],
        **_end(database, present),
        "beat_s": str(beat_s),
        "logs": where,
        "options": remembered(storage_options),
        "state": "0",
    }
    source.install(state)
    _claim(database, present, replace(known(state), state=STOPPED))
    if present is not None or source.has_objects():
        source.take_snapshot(database)
    change_config(database, lambda config: replace(own(config, state), state=STARTED))
    source.remember({"state": "1"})


def from_anywhere(url: str) -> str:
    """A URL or path that means the same from any working directory."""
    return url if "://" in url else str(Path(url).absolute())


def _claimable(database: FarmDatabase, old: Mapping[str, str]) -> Config | None:
    """The stopped database in the farm that a new history may follow, None where there is none yet.

    One that is ours also counts as stopped where only we were, or where we died before we were its master.
    """
    config = _present(database)
    if config is None:
        return None
    is_ours = config.history == old.get("history")
    is_parent = bool(old.get("parent")) and config.history == json.loads(old["parent"])["history"]
    if (is_ours and old.get("state") != "1") or ((is_ours or is_parent) and config.state == STOPPED):
        return config
    raise _taken(database)


def _claim(database: FarmDatabase, present: Config | None, claim: Config) -> None:
    """Make the farm's database ours, unless somebody else did since we looked."""

    def take_over(config: Config) -> Config:
        if config not in (present, claim):
            raise _taken(database)
        return claim

    if present is not None:
        change_config(database, take_over)
        return
    try:
        database.create_config(claim)
    except AlreadyExistsError as error:
        raise _taken(database) from error


def _taken(database: FarmDatabase) -> InvalidError:
    return InvalidError(
        f"farm database {database.name} exists already and is not this one's",
        hint="choose another name with --name, or stop its master first: wlc stop SOURCE",
        path=database.url,
    )


def _end(database: FarmDatabase, present: Config | None) -> dict[str, str]:
    """Where the log ends that a new history follows: asked of the farm, since the database may be an older copy."""
    if present is None:
        return {"batch": "0", "tick": "0", "chain": "", "clock": "", "vector": "{}", "parent": ""}
    numbers = database.batch_numbers()
    batch, chain = database.read_batch(numbers[-1]) if numbers else (None, "")
    last = max(present.tick, batch.last if batch else 0)
    # The tick in between is as late as the new history's snapshot: before that, the old history is what there was.
    clock_ = max(filter(None, (utc_now(), batch.clock if batch else None, present.write)))
    return {
        "batch": str(batch.number if batch else 0),
        # What happened between two histories was not captured. The tick in between stands for it, so that no position
        # of the new history can be taken for one of the old.
        "tick": str(last + 1),
        "chain": chain,
        "clock": format_time(clock_),
        "vector": json.dumps(dict(batch.vector) if batch else {}),
        "parent": json.dumps(asdict(Origin(present.history, last))),
    }


def _present(database: FarmDatabase) -> Config | None:
    try:
        return database.config()
    except MissingError:
        return None
