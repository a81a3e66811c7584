"""Join a replica to the log that it reads from now on: that of another site, or of a master that was restored.

A replica that is given another site's log continues there if the logs prove that it holds the same. With `--rebase`,
what the replica holds and the log lacks is undone first; where that is impossible, the replica is made anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError
from wlr.farm_log import FarmLog, home_log
from wlr.going_back import undo, way_back
from wlr.plan.failure import StepError
from wlr.plan.stop import Stop
from wlr.replay import Replay, Replicated
from wlr.same_database import is_same_database, refuse_other_database
from wlr.site_switch import leave, switch_site

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlr.engine.state import ReplicaState
    from wlr.plan.common_position import Point


def joined(replay: Replay, state: ReplicaState, *, rebases: bool, dry_run: bool) -> Replicated | None:
    """Join a replica to the log of `replay`. Return what was done, or None if the caller must roll it forward now.

    Args:
        replay: The replication.
        state: What the replica remembers.
        rebases: Rows may be undone, or the replica made anew.
        dry_run: Only report what would be done.

    Raises:
        InvalidError: It is another database, or nothing proves that the replica holds the same.
        ExpiredError: What would prove it was pruned.
    """
    if is_same_database(state, replay.database):
        return _join_past(replay, state, dry_run=dry_run) if rebases else None
    if state.position.history not in FarmLog(replay.database).histories:
        refuse_other_database(state, replay.database, replay.into)
    options = replay.database.storage_options
    try:
        done = switch_site(replay.into, replay.database, options, registers=replay.registers, dry_run=dry_run)
    except (InvalidError, ExpiredError) as error:
        if not rebases:
            raise
        return replay.make_anew(state, error.message, dry_run=dry_run)
    return Replicated(done.tick, state.clock, 0, 0, 0, None, is_dry_run=True) if dry_run else None


def _join_past(replay: Replay, state: ReplicaState, *, dry_run: bool) -> Replicated | None:
    """Undo what came after the last tick that replica and log share; make the replica anew where that is impossible."""
    database = replay.database
    if why := _beyond_failure(database, state):
        return replay.make_anew(state, why, dry_run=dry_run)
    why = _hindrance(replay, state)
    if not why:
        return None
    before = home_log(open_database(state.master, storage_options=database.storage_options))
    common = _last_common(before, FarmLog(database), state) if before else None
    way = way_back(before.database, state, Stop(common.position.tick)) if before and common else None
    if before is None or way is None or way.point is None or way.anew or _hindrance(replay, _at(way.point, state)):
        return replay.make_anew(state, why, dry_run=dry_run)
    if dry_run:
        return way.done(is_dry_run=True)
    try:
        undo(way, state, replay.into, before.database, replay.bulk)
    except StepError as error:
        return replay.make_anew(state, f"its rows cannot be undone: {error.cause}")
    with replay.into.open() as replica:
        replica.remember(replace(replica.state, master=database.url, attachment=None))
    leave(state, database, database.storage_options)
    return None


def _hindrance(replay: Replay, state: ReplicaState) -> str:
    """Return why the log does not lead on from where a replica stands, "" if it does."""
    try:
        Replay(replay.into, replay.database, Stop(), membership=replay.membership).rehearse(state)
    except (InvalidError, ExpiredError, CorruptError) as error:
        return error.message
    return ""


def _beyond_failure(database: FarmDatabase, state: ReplicaState) -> str:
    """Return why a replica that stopped at a transaction is made anew: a snapshot is beyond the transaction; or ""."""
    failure = state.failure
    if failure is None or max(database.snapshot_ticks(), default=0) < failure.tick:
        return ""
    return f"transaction {failure.tick} cannot be applied"


def _at(point: Point, state: ReplicaState) -> ReplicaState:
    return replace(state, position=point.position, batch_last=point.batch_last, clock=point.clock)


def _last_common(before: FarmLog, now: FarmLog, state: ReplicaState) -> Point | None:
    """Return the end of the last batch that both logs hold; None if there is none, or `before` is not the replica's."""
    here = state.position
    if before.chain(here.batch) != here.chain:
        return None
    shared = (number for number in reversed(before.numbers) if number <= here.batch and number in now.numbers)
    return next((now.end_of(number) for number in shared if before.chain(number) == now.chain(number)), None)
