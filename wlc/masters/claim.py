"""The beginning of a history: a database claims its place in the farm."""

from __future__ import annotations

import os
import shlex
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.addresses import absolute
from wlc.farm.clock import utc_now
from wlc.farm.config import BEAT_S, STARTED, STOPPED, parse_beat
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import InvalidError
from wlc.farm.log_end import chain_after, end_log, final_batch
from wlc.farm.model import Origin
from wlc.farm.paths import LOGS, check_database_name
from wlc.farm.seal.keys import options_to_remember
from wlc.farm.store import AlreadyExistsError, MissingError
from wlc.farm.store.options import lay_over
from wlc.masters.contract import database_of
from wlc.masters.fence import own
from wlc.masters.master_state import MasterState, Wish

if TYPE_CHECKING:
    from wlc.farm.errors import FencedError
    from wlc.farm.model import Batch, Config
    from wlc.masters.contract import Source


def claim(source: Source, wish: Wish) -> FarmDatabase:
    """Make a source a master, and return its place in the farm.

    Raises:
        InvalidError: The name or beat is invalid; the source is a master already; or the farm's database of this name
            belongs to another source or is not stopped.
        UnsupportedError: The store ignores preconditions, or the source cannot be captured.
    """
    if wish.beat_s is not None:
        parse_beat(str(wish.beat_s))
    old = _former(source, wish)
    if old is not None and old.is_master:
        if wish.is_moved:
            return _moved_place(source, old, wish)
        raise InvalidError(
            f"{source} is a master already, as {old.name} in {old.farm}", hint=f"wlc status {shlex.quote(str(source))}"
        )
    name = check_database_name(wish.name if wish.name is not None else old.name if old else source.default_name)
    # A copy publishes into the same farm, too, unless its owner specifies another.
    known = source.state
    farm = wish.farm or os.environ.get("WLC_FARM") or (_home(known) if known else _beside(source))
    farm = absolute(farm)
    # Remembered options belong to one farm.
    options = lay_over(known.options if known and farm in (known.farm, _home(known)) else {}, wish.storage_options)
    to_remember = options_to_remember(options)
    database = open_database(name, farm, {**options, **to_remember})
    database.keys.check()
    database.store.probe()
    is_copied_here = known is not None and (known.farm, known.name) == (farm, name) and not wish.is_moved
    joins = wish.membership is not None and wish.membership.is_replica
    place = _Place(database, old, source.elsewhere() if is_copied_here else None, joins)
    _begin(source, place, replace(wish, farm=farm, storage_options=to_remember))
    return database


def _former(source: Source, wish: Wish) -> MasterState | None:
    """Return the source's former state; None for a copy, which is no master until it begins a history.

    A copy that takes the master's place continues its history if the engine can, and otherwise begins a new history
    there.
    """
    old = source.state
    if old is None or source.elsewhere() is None:
        return old
    if not wish.is_moved:
        return None
    is_continuing = source.adopt_place() and old.is_master
    return source.state if is_continuing else replace(old, state=STOPPED)


def _moved_place(source: Source, old: MasterState, wish: Wish) -> FarmDatabase:
    """Return the place of a master that continues; its farm may have been moved, too, for example with its folder."""
    given = wish.farm or os.environ.get("WLC_FARM")
    for farm in dict.fromkeys(absolute(url) for url in (given, old.farm, _beside(source)) if url):
        database = database_of(old, wish.storage_options, farm)
        with suppress(MissingError):
            if database.config().history == old.history:
                if farm != old.farm:
                    database.store.probe()
                    source.remember(replace(old, farm=farm))
                return database
    try:
        # Another master may have taken the place; publishing then fails.
        database = database_of(old, wish.storage_options)
        database.config()
    except MissingError as error:
        hint = f"If the farm was moved, name it: wlc master {shlex.quote(str(source))} --moved --farm URL"
        raise MissingError(error.message, hint=hint, path=error.path) from error
    return database


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the farm that a source claims.

    Attributes:
        old: The source's former state; None if it was no master, or is a copy.
        away: The reason why the source is not the master that its state names in this place; None if it is, or was a
            master elsewhere.
        is_site: It is the folder of a site that joins.
    """

    database: FarmDatabase
    old: MasterState | None
    away: FencedError | None
    is_site: bool = False

    def taken(self) -> InvalidError:
        """Build the error for a place that belongs to another source."""
        if self.is_site:
            return InvalidError(
                f"another site has taken the folder {self.database.url} meanwhile",
                hint="run the command again, with a file that is not there",
                path=self.database.url,
            )
        message = f"farm database {self.database.name} exists already and belongs to another source"
        hint = "choose another name with --name, or stop its master first: wlc stop SOURCE"
        if self.away is not None:
            message, hint = f"{message}: {self.away.message}", self.away.hint or hint
        return InvalidError(message, hint=hint, path=self.database.url)


def _begin(source: Source, place: _Place, wish: Wish) -> None:
    """Claim the farm's database while it counts as stopped, take the snapshot, then start both.

    A crash in between leaves this source's database in the state of a stopped one, and the next attempt starts over.
    """
    if wish.membership is None or not wish.membership.is_replica:
        source.check()
    database = place.database
    if wish.logs is not None:
        database.probe_logs(absolute(wish.logs))
    present = _claimable(place)
    # An interrupted join has published nothing, and its peers do not know all of its histories.
    end = final_batch(database, present) if present is not None and not place.is_site else None
    state = _first_state(database, present, end, place.old, wish)
    if wish.membership is not None:
        site = wish.membership.site
        state = replace(state, site=site, vector={**site.contained, **state.vector})
    source.install(state)
    _take_over(place, present, state, end)
    if present is not None or source.has_objects():
        source.take_snapshot(database, is_first=True, progress=wish.progress)
    state = source.require_state()
    if wish.membership is not None:
        began = max((time for time in (state.began, wish.membership.not_before) if time), default=None)
        state = replace(state, site=wish.membership.announce(state), began=began)
    database.change_config(lambda config: replace(own(config, state), state=STARTED))
    source.remember(replace(state, state=STARTED))


def _home(state: MasterState) -> str:
    """Return the farm of a master; a site's folder lies within the folder of the farm's database."""
    return state.farm if state.site is None or state.site.is_founder else state.farm.rsplit("/", 2)[0]


def _beside(source: Source) -> str:
    """Return the farm of a source for which no other is given."""
    return str(source.default_folder / "dbfarm")


def _claimable(place: _Place) -> Config | None:
    """Return the config of the stopped database that a new history may follow; None if there is no database yet.

    This source's own database also counts as stopped if only the source was stopped, or a crash interrupted its claim.
    """
    old = place.old
    try:
        config = place.database.config()
    except MissingError:
        return None
    is_ours = old is not None and config.history == old.history
    is_parent = old is not None and old.parent is not None and config.history == old.parent.history
    if old is not None and is_ours and not old.is_master and config.state != STOPPED:
        # The next attempt may crash, too, and stores only its own history.
        config = place.database.change_config(lambda present: replace(own(present, old), state=STOPPED))
    if (is_ours or is_parent) and config.state == STOPPED:
        return config
    raise place.taken()


def _take_over(place: _Place, present: Config | None, state: MasterState, end: Batch | None) -> None:
    """Claim the farm's database unless another process did meanwhile, and end the log of its last master."""
    ours = replace(state.config(), state=STOPPED)
    if present is not None:
        # The configuration must not state the end of the log before the log is ended.
        claimed = (
            ours if end is None else replace(ours, batches=present.batches, tick=present.tick, write=present.write)
        )

        def take_over(config: Config) -> Config:
            if config not in (present, claimed):
                raise place.taken()
            return claimed

        def go_behind(config: Config) -> Config:
            return replace(own(config, state), batches=ours.batches, tick=ours.tick, write=ours.write)

        place.database.change_config(take_over)
        if end is not None:
            end_log(place.database, end)
            place.database.change_config(go_behind)
        return
    try:
        place.database.create_config(ours)
    except AlreadyExistsError as error:
        raise place.taken() from error


def _first_state(
    database: FarmDatabase, present: Config | None, end: Batch | None, old: MasterState | None, wish: Wish
) -> MasterState:
    """Return where a new history begins: after the batch that ends the log, if there is one."""
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
        logs=former_logs if wish.logs is None else absolute(wish.logs),
        options=wish.storage_options,
    )
    if present is None:
        return state
    if end is None:
        return _begun_again(state, present, wish.membership.announced if wish.membership else "")
    return replace(
        state,
        batch=end.number,
        # Changes between two histories were not captured. One tick is skipped for them, so that no position of the new
        # history equals one of the old history.
        tick=max(present.tick, end.last) + 1,
        chain=chain_after(database, end),
        # The skipped tick has the time of the new history's snapshot: until then, the old history is valid.
        clock=max(filter(None, (utc_now(), end.clock, present.write))),
        vector=dict(end.vector),
        parent=Origin(present.history, end.last),
    )


def _begun_again(state: MasterState, present: Config, announced: str) -> MasterState:
    """Return where a history begins if the former one was interrupted before it could publish.

    Peers accept a history that grew from one that they know, possibly from an earlier attempt.
    """
    is_known = announced in ("", present.history)
    return replace(
        state,
        tick=present.tick + 1,
        clock=max(filter(None, (utc_now(), present.write))),
        parent=Origin(present.history, present.tick) if is_known else present.parent,
    )
