"""A replica's life: made from a snapshot, rolled forward along the log, stopped where it is told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc import paths
from wlc.clock import parse_time, utc_now
from wlc.config import TICK_MAX
from wlc.errors import FarmError, InvalidError, UnavailableError
from wlc.farm import open_database
from wlc.store.options import merged
from wlr import engine as engines
from wlr import plan
from wlr.lake import parse_keep
from wlr.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from wlc.farm import FarmDatabase
    from wlr.engine import Failure, State
    from wlr.replay import Result


@dataclass(frozen=True, slots=True)
class Status:
    """Where a replica stands.

    Attributes:
        lag_s: Seconds between the replica's clock and the farm's; `lag_transactions`: ticks between them. None where
            the farm cannot be asked.
        failure: The transaction that could not be applied, None if the last run went well.
        tables: Patterns of the tables it replicates; empty for all.
        is_unlocked: Its owner allows direct writes to replicated tables.
        keep: How many old ticks of a Parquet replica stay readable, or for how long; empty for all.
    """

    master: str
    tick: int
    clock: datetime | None
    lag_s: float | None
    lag_transactions: int | None
    failure: Failure | None
    beat_s: float
    tables: tuple[str, ...]
    accepted: tuple[int, ...]
    is_unlocked: bool
    history: str
    keep: str = ""


# Public functions ----------------------------------------------------------------------------------------------------


def replicate(
    master: str | os.PathLike[str] | None = None,
    *,
    into: str | os.PathLike[str],
    farm: str | None = None,
    until: str | datetime | None = None,
    tick: int | None = None,
    tables: Sequence[str] | None = None,
    keep: str | None = None,
    engine: str = "auto",
    spark_master: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    register: bool = True,
    dry_run: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Result:
    """Make a replica from the newest suitable snapshot, or roll it forward from where it stands.

    Args:
        master: Name in the farm, URL of the database's folder there, or path of the master; remembered.
        into: The replica: a DuckDB file; the folder or URL of a Parquet replica; or the URL of a PostgreSQL database,
            see `engine.locate`.
        farm: URL of the farm, for a bare name.
        until: Stop before the first transaction committed later; an aware time, or text as people type it.
        tick: Stop after this transaction.
        tables: Patterns such as `main.sales_*`; only tables that fit one are replicated. For a new replica only.
        keep: How many old ticks of a Parquet replica stay readable, or for how long ("3 days"); remembered. `prune`
            removes the rest.
        engine: Who does large work: "local" is this process, "spark" is Spark, "auto" decides by its size.
        spark_master: Master to start a Spark session at, if there is none.
        storage_options: Options of the farm's file system, and of a Parquet replica's, over those that a master given
            by its path remembers. A replica remembers none: give them every time, or set the usual AWS variables.
        register: Tell the farm of this replica, so that it keeps what the replica needs.
        dry_run: Only say what would be done.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: The target cannot be reached, or a name or file is none. Nothing was changed.
        ExpiredError: What comes next was pruned: make the replica anew.
        ReplayError: A transaction cannot be applied. All before it are: repair the replica and try again, or accept.
        CorruptError: A file of the farm is damaged. What was applied before it is right.
        UnavailableError: The replica or the farm is in use or out of reach: try again.
    """
    target, place = _target(until, tick), engines.locate(into, storage_options)
    state = engines.find_state(place)
    database = _database(master, farm, state, storage_options)
    if state is not None and state.verify and not database.keys.verifying:
        # The replica asks for signatures since it was made, whether its keys are given again or not.
        options = {**(database.storage_options or {}), "verify_key": state.verify}
        database = open_database(database.url, storage_options=options)
    if engine not in engines.ENGINES:
        raise InvalidError(f"there is no engine {engine!r}", hint=f"Give one of {', '.join(engines.ENGINES)}.")
    if keep is not None:
        _check_keep(place, keep)
    bulk = engines.Bulk(engine, database, spark_master, engines.spark_rows())
    run = Replay(place, database, target, registers=register, bulk=bulk, keep=keep, progress=progress)
    if state is not None:
        _check_same(state, tables)
    if dry_run:
        return run.rehearse(state)
    return run.make(tuple(tables or ())) if state is None else run.roll_forward()


def status(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Status:
    """Say where a replica stands, and how far behind the farm.

    Raises:
        InvalidError: It is no replica.
        UnavailableError: It is in use.
    """
    state = engines.read_state(engines.locate(into, storage_options))
    lag_s, lag_transactions = _lag(state, storage_options)
    return Status(
        state.master,
        state.position.tick,
        state.clock,
        lag_s,
        lag_transactions,
        state.failure,
        state.beat_s,
        state.tables,
        tuple(sorted(state.accepted)),
        state.is_unlocked,
        state.position.history,
        state.keep,
    )


def tick(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> int:
    """Return the last transaction that a replica holds, 0 before the first; raises as `status` does."""
    return engines.read_state(engines.locate(into, storage_options)).position.tick


def clock(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> datetime | None:
    """Return the commit time of the last transaction that a replica holds; raises as `status` does."""
    return engines.read_state(engines.locate(into, storage_options)).clock


def beat(
    into: str | os.PathLike[str], beat_s: float | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> float:
    """Return, or set, how often a following replica looks for new log files, in seconds.

    Raises:
        InvalidError: The beat is negative or no number.
    """
    if beat_s is None:
        return engines.read_state(engines.locate(into, storage_options)).beat_s
    if not 0 <= beat_s <= TICK_MAX:
        raise InvalidError(f"a beat of {beat_s} seconds is none", hint="Give 0 or more seconds.")
    with engines.open_target(engines.locate(into, storage_options)) as target:
        target.update(beat_s=float(beat_s))
    return float(beat_s)


def accept(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Failure:
    """Skip exactly the transaction that failed: the next replication goes on after it.

    Returns:
        The failure that was accepted.

    Raises:
        InvalidError: No transaction has failed.
    """
    place = engines.locate(into, storage_options)
    with engines.open_target(place) as target:
        failure = target.state.failure
        if failure is None:
            raise InvalidError(f"no transaction has failed in {place}", hint=f"wlr status {place}", path=str(place))
        target.update(accepted=target.state.accepted | {failure.tick}, failure=None)
    return failure


def unlock(into: str | os.PathLike[str]) -> None:
    """Allow direct writes to replicated tables, to repair the replica; `lock` ends it."""
    with engines.open_target(engines.locate(into)) as target:
        target.update(is_unlocked=True)


def lock(into: str | os.PathLike[str]) -> None:
    """Refuse direct writes to replicated tables, as it is from the start."""
    with engines.open_target(engines.locate(into)) as target:
        target.update(is_unlocked=False)


# What is asked for ---------------------------------------------------------------------------------------------------


def _target(until: str | datetime | None, tick: int | None) -> plan.Target:
    if until is not None and tick is not None:
        raise InvalidError("--tick and --until exclude each other", hint="Give one of them.")
    if tick is not None and tick < 0:
        raise InvalidError(f"tick {tick} is none", hint="Ticks are 0 (before the first transaction), 1, 2, …")
    if isinstance(until, str):
        until = parse_time(until, utc_now())
    if until is not None and until.tzinfo is None:
        until = until.astimezone()
    if until is not None and until > utc_now():
        message = f"{until.isoformat()} lies in the future: what will be committed until then is not known"
        raise InvalidError(message, hint="Leave --until out to go to the end.")
    return plan.Target(tick, until)


def _database(
    master: str | os.PathLike[str] | None,
    farm: str | None,
    state: State | None,
    storage_options: Mapping[str, Any] | None,
) -> FarmDatabase:
    if master is None:
        if state is None:
            raise InvalidError("a new replica needs a master", hint="wlr replicate MASTER --into TARGET")
        return open_database(state.master, storage_options=storage_options)
    return database_of(master, farm, storage_options)


def database_of(
    master: str | os.PathLike[str], farm: str | None, storage_options: Mapping[str, Any] | None
) -> FarmDatabase:
    """Open the farm database that a name, a URL or the path of a master stands for.

    Raises:
        InvalidError: It stands for none.
    """
    text = os.fspath(master)
    if "://" not in text and Path(text).is_file():
        return _database_of_source(Path(text), farm, storage_options)
    return open_database(text, farm, storage_options)


def _database_of_source(source: Path, farm: str | None, storage_options: Mapping[str, Any] | None) -> FarmDatabase:
    """Find the farm of a master by asking the master itself, or, while that is in use, at the default place."""
    try:
        known = engines.read_master(source)
    except UnavailableError:
        beside = source.absolute().parent / "dbfarm" / source.stem
        if farm is None and not (beside / paths.CONFIG).is_file():
            raise
        return open_database(source.stem, farm or str(beside.parent), storage_options)
    if "farm" not in known:
        raise InvalidError(f"{source} is not a master", hint=f"wlc master {source}", path=str(source))
    return open_database(known["name"], farm or known["farm"], merged(known.get("options"), storage_options))


def _check_keep(place: engines.Place, keep: str) -> None:
    if not place.is_parquet:
        message = f"{place} is {place.kind}, which holds one tick: --keep is for Parquet replicas"
        raise InvalidError(message, hint="Leave --keep out.")
    parse_keep(keep)


def _check_same(state: State, tables: Sequence[str] | None) -> None:
    if tables is not None and tuple(tables) != state.tables:
        has = f"tables {', '.join(state.tables)}" if state.tables else "all tables"
        raise InvalidError(f"the replica was made of {has}", hint="Make another replica for other tables.")


def _lag(state: State, storage_options: Mapping[str, Any] | None) -> tuple[float | None, int | None]:
    try:
        config = open_database(state.master, storage_options=storage_options).config()
    except FarmError:
        return None, None
    behind = max(config.tick - state.position.tick, 0)
    if behind == 0:
        return 0.0, 0
    if config.write is None or state.clock is None:
        return None, behind
    return max((config.write - state.clock).total_seconds(), 0.0), behind
