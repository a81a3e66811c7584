"""Make a replica, or roll it forward: checks the request, then `wlr.replay.run` executes it."""

from __future__ import annotations

import secrets
import shlex
import uuid
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Unpack

import wlc
from wlc.farm.clock import format_local, parse_age, parse_tick, parse_until, utc_now
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.keeping import find_tag
from wlc.farm.parameters import declared, takes
from wlc.farm.paths import is_tag_name
from wlc.farm.registry import is_registered, this_host
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import MissingError
from wlc.tiers.attachment import attachment_of, detach, place_of
from wlr.engine.adapters import target_at
from wlr.engine.contract import DatabaseFile
from wlr.engine.replica_state import ReplicaState
from wlr.replay.options import ReplicaOptions
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.patterns import described, listed
from wlr.replay.plan.row_filters import EVERYTHING
from wlr.replay.registration import as_replica, is_same_database, with_keys
from wlr.replay.run import Replay, Replicated
from wlr.replay.workers import workers

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.tiers.attachment import Attachment, Keepalive, Membership
    from wlr.engine.contract import Target
    from wlr.replay.plan.row_filters import RowFilters


@takes(ReplicaOptions)
def replicate(
    master: str | os.PathLike[str] | None = None,
    *,
    into: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    until: str | date | None = None,
    tick: int | str | None = None,
    waits: bool = False,
    filters: RowFilters | None = None,
    storage_options: Mapping[str, Any] | None = None,
    register: bool | None = None,
    keepalive: Keepalive | None = None,
    rebase: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ReplicaOptions],
) -> Replicated:
    """Make a replica from the newest suitable snapshot, or roll it forward from its position.

    Args:
        master: Name in the farm, URL of the database's folder there, or path of the master; remembered.
        into: The replica: a DuckDB file, the folder or URL of Parquet files, or the URL of a PostgreSQL database.
        farm: URL of the farm, for a bare name.
        until: Stop before the first transaction committed later; an aware time, or text as people type it; or a tag.
        tick: Stop after this transaction.
        waits: `tick` or `until` may be in the future; `is_target_reached` of the result reports their arrival.
        filters: Filters of rows, columns and values, see `wlr.row_filters`; remembered.
        storage_options: Options of the file systems of farm and Parquet replica; they override those that a master's
            path remembers.
        register: Register this replica in the farm, so that pruning keeps the files that it needs. By default, a new
            replica that stops at a time or a tick does not register: a copy of the past does not fall behind.
        keepalive: Keepalive of a program that follows; it reports between rounds that the replica runs.
        rebase: Undo transactions that the log lacks, or rebuild the replica.
        dry_run: Only report the plan.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: The target cannot be reached, or an argument is invalid. Nothing was changed.
        ExpiredError: The next batch was pruned: rebuild the replica.
        ReplayError, CorruptError: A transaction does not fit, or a file is damaged. All before it were applied.
        UnavailableError: The replica or the farm is in use or unreachable: try again.

    Examples:
        >>> wlr.replicate("sales", into="copy.duckdb", tick=2).tick
        2
        >>> wlr.replicate(into="copy.duckdb").tick
        3
    """
    target, state, database = _found(master, farm, into, storage_options, options)
    delay = options.get("delay")
    stop = _not_back(_stop(until, tick, delay, database, is_awaited=waits), state, delay)
    names = listed(options.get("tables"), options.get("ignore"))
    asked = _Asked(stop, _age(delay), names, options, rebase, _keyed(state, filters))
    is_past = stop != Stop() and not (stop.is_awaited or stop.is_moving)
    registers = _registers(state, database, options, is_past=is_past) if register is None else register
    job = _Job(target, state, asked, registers, dry_run, progress)
    return job.run_through(database, _attachment(database, job, options), keepalive)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The tables of a replica, and its options."""

    stop: Stop
    delay: timedelta
    patterns: tuple[str, ...] | None
    options: ReplicaOptions
    rebase: bool = False
    filters: RowFilters | None = None

    def is_changed(self, state: ReplicaState) -> bool:
        """Return whether the request changes the filters."""
        return self.filters is not None and self.filters.changes and not self.filters.is_same(state.filters)

    @property
    def delay_s(self) -> float:
        return self.delay.total_seconds()


@dataclass(frozen=True, slots=True)
class _Job:
    """One replication, from the database itself or an upstream."""

    target: Target
    state: ReplicaState | None
    asked: _Asked
    registers: bool
    is_dry_run: bool
    progress: Progress | None
    identity: str = field(default_factory=lambda: secrets.token_hex(8))

    def run_through(
        self, database: FarmDatabase, attachment: Attachment | None, keepalive: Keepalive | None
    ) -> Replicated:
        """Read the database itself, or an upstream of it."""
        if self.state is not None:
            database = _checked(self.state, self.asked, database)
        if self.state is not None and self.state.is_paused and not self.is_dry_run:
            return _paused(self.state, self.target, database, keepalive, registers=self.registers)
        try:
            done = self._run_through(database, attachment, keepalive)
        except FarmError as error:
            if error.hint:
                rebase = f"wlr replicate --into {shlex.quote(str(self.target))} --rebase"
                error.hint = error.hint.replace(bounds.REBASE, rebase)
            raise
        if keepalive is not None:
            self.target.expect_round()
        return done

    def _run_through(
        self, database: FarmDatabase, attachment: Attachment | None, keepalive: Keepalive | None
    ) -> Replicated:
        if not self.is_dry_run and self.state is not None and self.state.attachment is not None:
            detach(database, self.state.attachment, attachment, self.state.id)
        if attachment is None:
            return self.run(database)
        if not self.registers or self.is_dry_run:
            return self.run(_read_last(database, attachment))
        # Most replicas read the database itself.
        from wlc.tiers.attaching import read_through

        # A new replica registers before it exists, and under the same id when it is retried.
        job = self if self.state else replace(self, identity=_id_of(self.target))
        state = self.state or ReplicaState(job.identity, database.url, "")
        me = as_replica(state, self.target, self.asked.delay_s)
        return read_through(place_of(database, attachment.registry), me, attachment, job.run, keepalive)

    def run(self, place: FarmDatabase, membership: Membership | None = None) -> Replicated:
        # A failed upstream may have left a replica, and another process may have rolled it forward.
        state = self.state if membership is None else self.target.find_state()
        options = self.asked.options
        bulk = workers(options.get("engine", "auto"), place, options.get("spark_master"))
        replay = Replay(
            self.target,
            place,
            self.asked.stop,
            registers=self.registers,
            bulk=bulk,
            options=options,
            progress=self.progress,
            membership=membership,
            delay_s=self.asked.delay_s,
            identity=self.identity,
            key_file=self.asked.filters.key_file if self.asked.filters else "",
        )
        if state is not None and (self.asked.rebase or not is_same_database(state, place)):
            # Most replications keep their place.
            from wlr.replay.other_log import joined

            done = joined(replay, state, rebases=self.asked.rebase, dry_run=self.is_dry_run)
            if done is not None:
                return done
            state = self.target.read_state()
        if state is not None and not self.is_dry_run and self.asked.is_changed(state):
            # It needs DuckDB, which takes long to import.
            from wlr.replay.filters.new_filters import refilter

            state = refilter(replay, state, self.asked.filters or EVERYTHING)
        stop = self.asked.stop
        if state is not None and not stop.is_awaited and bounds.is_behind(state.position, state.clock, stop):
            # Most replications only go forward.
            from wlr.replay.going_back import go_back

            return go_back(replay, state, dry_run=self.is_dry_run)
        if self.is_dry_run:
            return replay.rehearse(state)
        if state is not None:
            return replay.roll_forward(state)
        return replay.make(self.asked.patterns or (), self.asked.filters or EVERYTHING)


def _found(
    master: str | os.PathLike[str] | None,
    farm: str | os.PathLike[str] | None,
    into: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    options: ReplicaOptions,
) -> tuple[Target, ReplicaState | None, FarmDatabase]:
    target = target_at(into, storage_options)
    adopts, swaps = options.get("adopt"), options.get("swap")
    if adopts and swaps:
        message = "--adopt and --swap exclude each other: the next swap would lose the owner's rows"
        raise InvalidError(message, hint="Give one of them.")
    file = DatabaseFile.of(target)
    if file is not None and adopts:
        file.adopt()
    if file is not None and swaps is not None:
        file.set_swaps(swaps)
    for each in declared(ReplicaOptions):
        each.check(target, each.flag, options)
    state = target.find_state()
    return target, state, _database(master, farm, state, storage_options)


def _registers(state: ReplicaState | None, database: FarmDatabase, options: ReplicaOptions, *, is_past: bool) -> bool:
    """Say whether a replica is noted for which its owner has not said so: a copy of the past only if it was before."""
    if not is_past or options.get("upstream") or options.get("registry"):
        return True
    return state is not None and (state.attachment is not None or is_registered(database, state.id))


def _id_of(target: Target) -> str:
    return checksum(f"{this_host()} {uuid.getnode()} {target}".encode())[:16]


def _attachment(database: FarmDatabase, job: _Job, options: ReplicaOptions) -> Attachment | None:
    """Return the replica's membership, changed by the request."""
    upstream, class_name, registry = options.get("upstream"), options.get("class_name"), options.get("registry")
    before = job.state.attachment if job.state else None
    if (before, upstream, class_name, registry) == (None,) * 4:
        return None
    reads = job.state.master if job.state else database.url
    wanted = attachment_of(database, before, upstream, class_name, registry, reads)
    if wanted is None and class_name is not None:
        raise InvalidError(f"class {class_name} needs an upstream", hint="--upstream auto")
    if (upstream is not None or registry) and wanted is not None and not wanted.pinned and not job.registers:
        raise InvalidError(
            "only a registered replica can choose its upstream",
            hint="Leave out --no-register, or name one place: --upstream URL",
        )
    return wanted


def _read_last(database: FarmDatabase, attachment: Attachment) -> FarmDatabase:
    """Return the place of the last choice, or the only possible one, without a claim."""
    return place_of(database, attachment.pinned or attachment.url or database.url)


def _paused(
    state: ReplicaState, target: Target, database: FarmDatabase, keepalive: Keepalive | None, *, registers: bool
) -> Replicated:
    """Only report that the replica exists."""
    if registers:
        from wlc.tiers.attaching import register_paused

        register_paused(database, as_replica(state, target), state.attachment, keepalive)
    return Replicated(state.position.tick, state.clock, 0, 0, 0, None, is_paused=True, is_target_reached=False)


def _age(delay: str | timedelta | None) -> timedelta:
    return parse_age(delay) or timedelta(0)


def _stop(
    until: str | date | None,
    tick: int | str | None,
    delay: str | timedelta | None,
    database: FarmDatabase,
    *,
    is_awaited: bool,
) -> Stop:
    if sum(given is not None for given in (until, tick, delay)) > 1:
        raise InvalidError("--tick, --until and --delay exclude each other", hint="Give one of them.")
    if delay is not None:
        return Stop(None, utc_now() - _age(delay), is_moving=True)
    if until is None:
        return Stop(parse_tick(tick), is_awaited=is_awaited and tick is not None)
    now = utc_now()
    try:
        moment = parse_until(until, now)
    except InvalidError as error:
        return Stop(_tagged(database, str(until), error), is_awaited=is_awaited)
    if moment.replace(microsecond=0) > now and not is_awaited:
        message = f"{format_local(moment)} is in the future"
        raise InvalidError(message, hint="Leave --until out to go to the end, or wait with --follow.")
    return Stop(None, moment, is_awaited=is_awaited)


def _tagged(database: FarmDatabase, name: str, no_time: InvalidError) -> int:
    """Return the tick of a tag, given the error of its name as a time."""
    if not is_tag_name(name):
        raise no_time
    try:
        return find_tag(database, name).tick
    except MissingError:
        raise
    except InvalidError as error:
        message = f"{name!r} is neither a time nor a tag of {database.name}"
        raise InvalidError(message, hint=f"{error.hint}. {no_time.hint}") from error


def _database(
    master: str | os.PathLike[str] | None,
    farm: str | os.PathLike[str] | None,
    state: ReplicaState | None,
    storage_options: Mapping[str, Any] | None,
) -> FarmDatabase:
    if master is None:
        if state is None:
            raise InvalidError("a new replica needs a master", hint="wlr replicate MASTER --into TARGET")
        known = state.attachment.registry if state.attachment else state.master
        return open_database(known, storage_options=storage_options)
    return wlc.resolve(master, farm, storage_options=storage_options)


def _not_back(stop: Stop, state: ReplicaState | None, delay: str | timedelta | None) -> Stop:
    """Keep the position of a delayed replica that is ahead of its delay."""
    if delay is not None and state is not None and state.clock and stop.until and state.clock > stop.until:
        return Stop(state.position.tick)
    return stop


def _keyed(state: ReplicaState | None, filters: RowFilters | None) -> RowFilters | None:
    """Return filters with the key of their hashes: the replica's key unless another file is given."""
    known = state.filters if state else EVERYTHING
    if filters is None:
        return None
    # It needs DuckDB, which takes long to import.
    from wlr.replay.filters.images import other_key, with_key

    keyed = with_key(filters if filters or not known else replace(known, key_file=filters.key_file), known.key_file)
    if keyed.key_mark and known.key_mark not in ("", keyed.key_mark):
        raise other_key(keyed.key_file)
    return replace(keyed, changes=filters.changes)


def _checked(state: ReplicaState, asked: _Asked, database: FarmDatabase) -> FarmDatabase:
    """Return the database with the keys of the replica, after checking its tables and filters."""
    if asked.patterns is not None and asked.patterns != state.tables:
        message = f"the replica holds {described(state.tables)}"
        raise InvalidError(message, hint="Make another replica for other tables.")
    if asked.filters is not None and not asked.filters.changes and not asked.filters.is_same(state.filters):
        held = "; ".join(map(str, state.filters.tables)) or "whole tables"
        change = "--change-filters rebuilds the named tables. " if state.filters else ""
        raise InvalidError(
            f"the replica holds {held}", hint=f"{change}Or make another replica for other rows or columns."
        )
    return with_keys(state.verify, database)
