"""Continue a replica from another place or log: a relay, another site, or a restored master.

Switch a replica to another place: one with the same bytes, or another site with the same transactions.

Continue a replica of one site from another site's log if no row must be copied: `wlr.replay.plan.common_position`.

Join a replica to its new log: that of another site, or of a restored master.

A replica continues from another site's log if the logs prove that both hold the same. With `--rebase`, transactions
that the new log lacks are undone first; if that is impossible, the replica is rebuilt.
"""

from __future__ import annotations

import shlex
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Position
from wlc.farm.registry import register as register_at
from wlc.farm.registry import unregister
from wlc.tiers.attachment import Attachment, detach
from wlc.tiers.same_past import is_same_place, prove_same_past
from wlr.engine.adapters import target_at
from wlr.reading.feeds.rounds import feed_reader
from wlr.replay.farm_log import FarmLog, home_log
from wlr.replay.going_back import undo, way_back
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.common_position import Refusal, meeting_point
from wlr.replay.plan.failure import StepError
from wlr.replay.registration import is_same_database, refuse_other_database, register_replica, with_keys
from wlr.replay.run import Replay, Replicated

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.versioned import VersionedObject
    from wlr.engine.contract import Target
    from wlr.engine.replica_state import ReplicaState
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.replay.plan.common_position import Point


def switch(
    into: str | os.PathLike[str],
    upstream: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    register: bool = True,
    dry_run: bool = False,
) -> Switched:
    """Switch a replica to another place, after proving that no row must be copied.

    The chain of log files proves a place with the same bytes. For another site of the same database, the proof is that
    of `wlr.fast_forward` and the digests of all rows.

    A replica that chooses its upstream is pinned to the place; `wlr replicate --upstream auto` ends that. A feed is
    pinned in any case; `wlr feed --upstream none` ends that.

    Args:
        into: The replica; or the file of a feed, or its place in the farm, `DB/feeds/NAME`.
        upstream: Name in the farm or URL of the database's folder in the new place, for example of a relay.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the file systems of replica and farm.
        register: Register the replica there, so that pruning keeps the files that it needs.
        dry_run: Only check whether it is possible.

    Raises:
        InvalidError: There is no replica or no such database, the place does not hold the replica's position yet, or
            nothing proves that a site holds the same.
        ExpiredError: The place begins after the replica's position.
        CorruptError: The place has another history. The replica stays with its former place.

    Examples:
        >>> shipped = wlc.ship("sales", to="relay")
        >>> wlr.switch("copy.duckdb", "relay/sales").tick
        3
    """
    from wlr.reading.feeds.feed_state import feed_at

    memory = feed_at(into, storage_options)
    if memory is not None and (found := memory.load()) is not None:
        database = wlc.resolve(upstream, farm, storage_options=storage_options)
        return _switch_feed(memory, found[0], database, registers=register)
    target = target_at(into, storage_options)
    database = wlc.resolve(upstream, farm, storage_options=storage_options)
    if not is_same_database(target.read_state(), database):
        return switch_site(target, database, storage_options, registers=register, dry_run=dry_run)
    with target.open() as replica:
        state = replica.state
        database = with_keys(state.verify, database)
        prove_same_past(database, state.position)
        if dry_run:
            return Switched(state.position.tick, state.master, database.url, is_dry_run=True)
        if register:
            register_replica(database, state, target)
            prove_again(database, state)
        attachment = state.attachment and replace(
            state.attachment, among=(database.url,), upstream="", slot=None, chosen=None
        )
        replica.remember(replace(state, master=database.url, attachment=attachment))
    leave(state, database, storage_options)
    return Switched(state.position.tick, state.master, database.url)


def _switch_feed(
    memory: VersionedObject[FeedState], state: FeedState, database: FarmDatabase, *, registers: bool
) -> Switched:
    """Pin a feed to a place; its next round continues there and releases its former claims."""
    if state.master.rstrip("/").rpartition("/")[2] != database.name:
        message = f"feed {state.name} reads {state.master}, not {database.url}"
        raise InvalidError(message, hint="Give a folder of the same database.", path=database.url)
    database = with_keys(state.verify, database)
    position = state.position or Position(state.history, state.snapshot or 0)
    if state.position is not None:
        prove_same_past(database, position)
    if registers:
        register_at(database, feed_reader(state))
        if state.position is not None:
            prove_same_past(database, position)

    def pinned(there: FeedState | None) -> FeedState:
        known = there or state
        before = known.attachment or Attachment(known.master, url=known.master)
        return replace(known, attachment=replace(before, among=(database.url,), chosen=None))

    memory.change(pinned)
    return Switched(position.tick, state.master, database.url)


@dataclass(frozen=True, slots=True)
class Switched(ForPeople):
    """The places that a replica read before and reads now.

    Attributes:
        tick: The replica's position in the new log; no row was written.
        is_dry_run: Nothing was changed.
    """

    tick: int
    before: str
    now: str
    is_dry_run: bool = False


def switch_site(
    target: Target,
    database: FarmDatabase,
    storage_options: Mapping[str, Any] | None,
    *,
    registers: bool,
    dry_run: bool,
) -> Switched:
    """Continue a replica of one site from the log of another one.

    Raises:
        InvalidError: It is another database, or nothing proves that the replica holds the same.
        ExpiredError: The proof was pruned.
    """
    state = target.read_state()
    database = with_keys(state.verify, database)
    source = FarmLog(database)
    if state.position.history not in source.histories:
        refuse_other_database(state, database, target)
    home = home_log(with_keys(state.verify, open_database(state.master, storage_options=storage_options)))
    with (
        tempfile.TemporaryDirectory(prefix="wlr-switch-") as work,
        target.scanned(Path(work), storage_options) as scan,
    ):
        held = {name: scan.digest(name) for name in scan.layouts}
        state = scan.state
    chosen = "the replica holds chosen rows, columns or values of some tables"
    # No log has digests of chosen rows.
    found = Refusal(chosen, "") if state.filters else meeting_point(state, source, home, held)
    if isinstance(found, Refusal):
        raise _refused(found, target, database, state)
    if dry_run:
        return Switched(found.position.tick, state.master, database.url, is_dry_run=True)
    moved = replace(
        state,
        master=database.url,
        position=found.position,
        batch_last=found.batch_last,
        clock=found.clock or state.clock,
        contained=found.contained,
        catalog=found.catalog or state.catalog,
        digests={name: digest for name, digest in source.digests(found.position).items() if name in held},
        failure=None,
        attachment=None,
    )
    with target.open() as replica:
        if replica.state.position != state.position:
            raise UnavailableError(f"another process rolled {target} forward", hint="try again", path=str(target))
        if registers:
            register_replica(database, moved, target)
            prove_again(database, moved)
        replica.move(moved)
    leave(state, database, storage_options)
    return Switched(found.position.tick, state.master, database.url)


def _refused(refusal: Refusal, target: Target, database: FarmDatabase, state: ReplicaState) -> FarmError:
    url, into = shlex.quote(database.url), shlex.quote(str(target))
    common = f"; the last tick that both hold is {refusal.common}" if refusal.common is not None else ""
    kind = ExpiredError if refusal.is_expired else InvalidError
    return kind(
        f"{target} cannot continue from {database.url}: {refusal.reason}{common}",
        hint=refusal.nearest.replace("--into TARGET", f"--into {into}")
        or f"wlr replicate {url} --into {into} --rebase",
        path=str(target),
        position=state.position,
    )


def leave(state: ReplicaState, database: FarmDatabase, storage_options: Mapping[str, Any] | None) -> None:
    """Remove a replica's claims and its registration at its former place."""
    detach(database, state.attachment, None, state.id)
    before = open_database(state.master, storage_options=storage_options)
    if not is_same_place(before, database):
        # The former place may be gone, which may be the reason for the switch.
        with suppress(FarmError):
            unregister(before, state.id)


def prove_again(database: FarmDatabase, state: ReplicaState) -> None:
    """Check that nothing was pruned before the replica was registered; then its former place may forget it."""
    try:
        prove_same_past(database, state.position)
    except FarmError:
        if state.master != database.url:
            with suppress(FarmError):
                unregister(database, state.id)
        raise


def joined(replay: Replay, state: ReplicaState, *, rebases: bool, dry_run: bool) -> Replicated | None:
    """Join a replica to the log of `replay`. Return the result, or None if the caller must roll it forward now.

    Args:
        replay: The replication.
        state: The replica's state.
        rebases: Rows may be undone, or the replica rebuilt.
        dry_run: Only report the result.

    Raises:
        InvalidError: It is another database, or nothing proves that the replica holds the same.
        ExpiredError: The proof was pruned.
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
        return replay.rebuild(state, error.message, dry_run=dry_run)
    return Replicated(done.tick, state.clock, 0, 0, 0, None, is_dry_run=True) if dry_run else None


def _join_past(replay: Replay, state: ReplicaState, *, dry_run: bool) -> Replicated | None:
    """Undo transactions after the last tick that replica and log share; rebuild the replica if that is impossible."""
    database = replay.database
    if why := _beyond_failure(database, state):
        return replay.rebuild(state, why, dry_run=dry_run)
    why = _hindrance(replay, state)
    if not why:
        return None
    before = home_log(open_database(state.master, storage_options=database.storage_options))
    common = _last_common(before, FarmLog(database), state) if before else None
    way = way_back(before.database, state, Stop(common.position.tick)) if before and common else None
    if before is None or way is None or way.point is None or way.obstacle or _hindrance(replay, _at(way.point, state)):
        return replay.rebuild(state, why, dry_run=dry_run)
    if dry_run:
        return way.done(is_dry_run=True)
    try:
        undo(way, state, replay.into, before.database, replay.bulk)
    except StepError as error:
        return replay.rebuild(state, f"its rows cannot be undone: {error.cause}")
    with replay.into.open() as replica:
        replica.remember(replace(replica.state, master=database.url, attachment=None))
    leave(state, database, database.storage_options)
    return None


def _hindrance(replay: Replay, state: ReplicaState) -> str:
    """Return why the log does not continue from a replica's position, "" if it does."""
    try:
        Replay(replay.into, replay.database, Stop(), membership=replay.membership).rehearse(state)
    except (InvalidError, ExpiredError, CorruptError) as error:
        return error.message
    return ""


def _beyond_failure(database: FarmDatabase, state: ReplicaState) -> str:
    """Return why a replica that stopped at a failed transaction is rebuilt: a later snapshot exists; "" without one."""
    failure = state.failure
    if failure is None or max(database.snapshot_ticks(), default=0) < failure.tick:
        return ""
    return f"transaction {failure.tick} cannot be applied"


def _at(point: Point, state: ReplicaState) -> ReplicaState:
    return replace(state, position=point.position, batch_last=point.batch_last, clock=point.clock)


def _last_common(before: FarmLog, now: FarmLog, state: ReplicaState) -> Point | None:
    """Return the end of the last common batch of both logs; None if there is none, or `before` is not the replica's."""
    here = state.position
    if before.chain(here.batch) != here.chain:
        return None
    shared = (number for number in reversed(before.numbers) if number <= here.batch and number in now.numbers)
    return next((now.end_of(number) for number in shared if before.chain(number) == now.chain(number)), None)
