"""The beginning of a history: a database claims its place in the farm."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.config import BEAT_S, STARTED, STOPPED, parse_beat
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import InvalidError
from wlc.farm.model import Origin
from wlc.farm.paths import LOGS, check_database_name
from wlc.farm.seal.keys import ALLOW_UNENCRYPTED, Keys
from wlc.farm.store import AlreadyExistsError, MissingError
from wlc.farm.store.options import lay_over
from wlc.masters.fence import own
from wlc.masters.state import MasterState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.model import Config
    from wlc.masters.source import Source


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants of a new master; None leaves it to what was before, or to the default."""

    farm: str | None = None
    name: str | None = None
    logs: str | None = None
    beat_s: float | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def claim(source: Source, wish: Wish) -> FarmDatabase:
    """Make a source a master, and return its place in the farm.

    Raises:
        InvalidError: A bad name or beat; it is a master already; or the farm has a database of this name that does not
            belong to the source, or is not stopped.
        UnsupportedError: The store ignores preconditions, or the source cannot be captured.
    """
    if wish.beat_s is not None:
        parse_beat(str(wish.beat_s))
    old = source.state
    if old is not None and old.is_master:
        raise InvalidError(f"{source} is a master already, as {old.name} in {old.farm}", hint=f"wlc status {source}")
    name = check_database_name(wish.name if wish.name is not None else old.name if old else source.default_name)
    farm = wish.farm or os.environ.get("WLC_FARM") or (old.farm if old else str(source.default_folder / "dbfarm"))
    farm = _absolute(farm)
    # Remembered options belong to the farm for which they were given.
    options = lay_over(old.options if old and old.farm == farm else {}, wish.storage_options)
    # Whoever publishes later must not forget that there are keys.
    options |= Keys(options).noted()
    database = open_database(name, farm, options)
    database.keys.check()
    database.store.probe()
    # The user must say every time that older objects may be unencrypted.
    options = {key: value for key, value in options.items() if key != ALLOW_UNENCRYPTED}
    _begin(source, database, replace(wish, farm=farm, storage_options=options))
    return database


def _begin(source: Source, database: FarmDatabase, wish: Wish) -> None:
    """Claim the farm's database while it counts as stopped, take the snapshot, then start both.

    Dying in between leaves a database of ours that counts as stopped, from which the next attempt starts over.
    """
    source.check()
    old = source.state
    present = _claimable(database, old)
    if wish.logs is not None:
        database.probe_logs(_absolute(wish.logs))
    state = _first_state(database, present, old, wish)
    source.install(state)
    _take_over(database, present, replace(state.config(), state=STOPPED))
    if present is not None or source.has_objects():
        source.take_snapshot(database, is_first=True)
    database.change_config(lambda config: replace(own(config, state), state=STARTED))
    source.remember(replace(source.require_state(), state=STARTED))


def _absolute(url: str) -> str:
    """Return a URL or path that means the same from any working directory."""
    return url if "://" in url else str(Path(url).absolute())


def _claimable(database: FarmDatabase, old: MasterState | None) -> Config | None:
    """Return the config of the stopped database that a new history may follow; None if there is no database yet.

    A database of ours also counts as stopped where only we were stopped, or where we died before we were its master.
    """
    try:
        config = database.config()
    except MissingError:
        return None
    is_ours = old is not None and config.history == old.history
    is_parent = old is not None and old.parent is not None and config.history == old.parent.history
    is_unfinished = is_ours and old is not None and not old.is_master
    if is_unfinished or ((is_ours or is_parent) and config.state == STOPPED):
        return config
    raise _taken(database)


def _take_over(database: FarmDatabase, present: Config | None, ours: Config) -> None:
    """Make the farm's database ours, unless somebody else did since we looked."""

    def take_over(config: Config) -> Config:
        if config not in (present, ours):
            raise _taken(database)
        return ours

    if present is not None:
        database.change_config(take_over)
        return
    try:
        database.create_config(ours)
    except AlreadyExistsError as error:
        raise _taken(database) from error


def _taken(database: FarmDatabase) -> InvalidError:
    return InvalidError(
        f"farm database {database.name} exists already and belongs to another source",
        hint="choose another name with --name, or stop its master first: wlc stop SOURCE",
        path=database.url,
    )


def _first_state(database: FarmDatabase, present: Config | None, old: MasterState | None, wish: Wish) -> MasterState:
    """Return where a new history begins. The farm says where the log ends: the source may be an older copy."""
    former_beat_s = present.beat_s if present else old.beat_s if old else BEAT_S
    former_logs = present.logs if present else LOGS
    assert wish.farm is not None
    state = MasterState(
        farm=wish.farm,
        name=database.name,
        history=uuid.uuid4().hex[:16],
        batch=0,
        tick=0,
        chain="",
        clock=None,
        vector={},
        parent=None,
        beat_s=former_beat_s if wish.beat_s is None else wish.beat_s,
        logs=former_logs if wish.logs is None else _absolute(wish.logs),
        options=wish.storage_options,
    )
    if present is None:
        return state
    numbers = database.batch_numbers()
    batch, chain = database.read_batch(numbers[-1]) if numbers else (None, "")
    last = max(present.tick, batch.last if batch else 0)
    return replace(
        state,
        batch=batch.number if batch else 0,
        # What happened between two histories was not captured. The tick in between stands for it, so that no position
        # of the new history can be taken for one of the old.
        tick=last + 1,
        chain=chain,
        # The tick in between is as late as the new history's snapshot: before that, the old history is valid.
        clock=max(filter(None, (utc_now(), batch.clock if batch else None, present.write))),
        vector=dict(batch.vector) if batch else {},
        parent=Origin(present.history, last),
    )
