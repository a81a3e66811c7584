"""Commands of `wlr` on the status and the settings of a replica: status, beat, pause, lock."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta
from math import ceil
from typing import Annotated

import typer

import wlr
from wlc.farm.clock import format_age, parse_age
from wlc.farm.errors import ExceededError
from wlr.engine.adapters import locate as place_of

from .options import StorageOptions, Target, beat_of, storage_options
from .output import Report, Sentence, Value, for_person

# Fields of a status that report a fault, or a state that lasts until the owner ends it.
_WRONG = ("failure", "is_paused", "is_unlocked", "not_locked", "accepted", "dropped", "left_out")


def status(
    target: Target,
    max_lag: Annotated[
        str | None, typer.Option(metavar="AGE", help="End with exit code 9 if it is further behind than this: 10m.")
    ] = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Show the position, lag and last failure of a replica or feed."""
    most = parse_age(max_lag) if max_lag is not None else None
    options = storage_options(storage_option)
    found = wlr.feed_status(target, storage_options=options) or wlr.status(target, storage_options=options)
    yield for_person(found, _WRONG, unknown=("lag_s", "lag_transactions"))
    if most is not None:
        _check_lag(target, found.lag_s, found.lag_transactions, most)


def _check_lag(target: str, lag_s: float | None, lag_transactions: int | None, most: timedelta) -> None:
    """Refuse a lag above the limit, and an unknown lag.

    Raises:
        ExceededError: The lag is above the limit, or unknown.
    """
    place = place_of(target)
    if lag_s is None:
        why = "its farm cannot be read" if lag_transactions is None else "it holds no transaction yet"
        raise ExceededError(f"the lag of {place} is unknown: {why}", hint=f"wlc doctor {shlex.quote(target)}")
    if lag_s > most.total_seconds():
        raise ExceededError(
            f"{place} is {format_age(timedelta(seconds=ceil(lag_s)))} ({lag_transactions} transactions) behind, more"
            f" than {format_age(most)}",
            hint=f"wlc doctor {shlex.quote(target)}",
        )


def tick(target: Target, storage_option: StorageOptions = None) -> Report:
    """Show the last transaction that the replica holds."""
    return Value("tick", wlr.tick(target, storage_options=storage_options(storage_option)))


def clock(target: Target, storage_option: StorageOptions = None) -> Report:
    """Show the commit time of the replica's last transaction."""
    return Value("clock", wlr.clock(target, storage_options=storage_options(storage_option)))


def beat(
    target: Target,
    seconds: Annotated[
        str | None, typer.Argument(metavar="S", help="New polling beat in seconds, or as in 5m.")
    ] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show or set how often --follow checks for new log files."""
    beat_s = wlr.beat(target, beat_of(seconds), storage_options=storage_options(storage_option))
    often = f"every {format_age(timedelta(seconds=beat_s))}" if beat_s else "all the time"
    return Sentence(f"With --follow, {place_of(target)} looks for new log files {often}.", {"beat_s": beat_s})


def pause(target: Target, storage_option: StorageOptions = None) -> Report:
    """Pause a replica or a feed, until resumed.

    It stays there also for cron and --follow, until wlr replica resume.
    """
    wlr.pause(target, storage_options=storage_options(storage_option))
    said = f"{place_of(target)} is paused: it stays where it is until wlr replica resume."
    return Sentence(said, {"is_paused": True})


def resume(target: Target, storage_option: StorageOptions = None) -> Report:
    """Resume a paused replica or feed with its next round."""
    wlr.resume(target, storage_options=storage_options(storage_option))
    return Sentence(f"{place_of(target)} resumes with its next round.", {"is_paused": False})


def unlock(target: Target) -> Report:
    """Allow direct writes to replicated tables, to repair the replica."""
    wlr.unlock(target)
    said = f"{place_of(target)} is unlocked: its replicated tables can be written directly until wlr replica lock."
    return Sentence(said, {"is_unlocked": True})


def lock(target: Target) -> Report:
    """Refuse direct writes to replicated tables again.

    A new replica refuses them, too.
    """
    wlr.lock(target)
    said = f"{place_of(target)} is locked: direct writes to its replicated tables are refused."
    return Sentence(said, {"is_unlocked": False})


def drop(target: Target, storage_option: StorageOptions = None) -> Report:
    """Remove a replica that was made with --adopt from its file.

    What else is in the file stays.
    """
    forgotten = wlr.drop(target, storage_options=storage_options(storage_option))
    known = "and its farm has forgotten it" if forgotten else "but its farm still lists it: wlc farm forget DB ID"
    return Sentence(f"{place_of(target)} holds no replica any more, {known}.", {"is_forgotten": forgotten})


# Each with the example that its help shows.
COMMANDS = (
    (status, "status", "copy.duckdb --json"),
    (tick, "tick", "copy.duckdb"),
    (clock, "clock", "copy.duckdb"),
    (beat, "beat", "copy.duckdb 30"),
    (pause, "replica pause", "copy.duckdb"),
    (resume, "replica resume", "copy.duckdb"),
    (unlock, "replica unlock", "copy.duckdb"),
    (lock, "replica lock", "copy.duckdb"),
    (drop, "replica drop", "app.duckdb"),
)
