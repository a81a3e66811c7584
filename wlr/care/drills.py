"""A drill: restore a database to a past transaction in a scratch place, and verify every row."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.clock import parse_tick
from wlc.farm.errors import InseparableError, InvalidError
from wlc.farm.group_sizes import group_sizes
from wlc.farm.health import note_proof, proof
from wlc.farm.human_form import ForPeople, Progress
from wlc.farm.reachable_past import read_window
from wlr.care.verification import Verified, verify
from wlr.replay import log_reader
from wlr.replay.request import replicate

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.reachable_past import Window
    from wlr.replay.run import Replicated


@dataclass(frozen=True, slots=True)
class Drill(ForPeople):
    """The result of a drill.

    Attributes:
        tick: The restored transaction; `clock`: its commit time.
        snapshot: Tick of the snapshot at the start; None for the beginning of the log.
        transactions: Number of transactions replayed after it.
        restore_s: Seconds that the restore took; `verify_s`: seconds that the verification took.
        is_sound: Every table has its digest in the log, and the log has lost none.
        differing: The other tables.
        can_go_back_to: Oldest time from which every state can be restored; `can_go_back_to_tick`: its tick.
        covered: Share of the ticks since then whose log the restore replayed, from 0 to 1.
    """

    database: str
    tick: int
    clock: datetime | None
    snapshot: int | None
    transactions: int
    tables: int
    rows: int
    restore_s: float
    verify_s: float
    is_sound: bool
    differing: tuple[str, ...]
    can_go_back_to: datetime | None = None
    can_go_back_to_tick: int | None = None
    covered: float = 0.0


def drill(
    db: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    tick: int | str | None = None,
    seed: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Drill:
    """Restore to a random past transaction in a scratch place, verify every row, and clean up.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        farm: URL of the farm, for a bare name.
        tick: Restore to this transaction instead of a random one that can be restored.
        seed: Makes the random choice repeatable.
        folder: Folder for the scratch database; the system's temporary directory if omitted.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: There is no such database, or nothing was published yet.
        InseparableError: No replica stops at `tick`.
        CorruptError: A file of the farm is damaged.

    Examples:
        >>> wlr.drill("sales").is_sound
        True
    """
    database = wlc.resolve(db, farm, storage_options=storage_options)
    window, first, last = _reachable(database)
    chosen = window.reached_from(choose_tick(window.older, first, last, seed)) if tick is None else parse_tick(tick)
    # If a random tick fits only together with later ones, drill the first tick that fits.
    later = () if tick is not None else group_sizes(last - chosen)
    ticks = [chosen, *(window.reached_from(chosen + more) for more in later)]
    with tempfile.TemporaryDirectory(prefix="wlr-drill-", dir=folder) as work:
        into = Path(work) / "drill.duckdb"
        restore = partial(
            replicate, database.url, into=into, storage_options=storage_options, register=False, progress=progress
        )
        began, result = _restored(restore, Path(work), ticks)
        restored = time.monotonic()
        found = verify(into, storage_options=storage_options, progress=progress)
        verified = time.monotonic()
    wrong = tuple(table.table for table in (*found.differing, *found.unverifiable))
    problem = f"restored to tick {result.tick}, {', '.join(wrong)} differ from the log" if wrong else ""
    note_proof(database, drilled=proof(result.tick, problem))
    return Drill(
        database.name,
        result.tick,
        result.clock,
        result.snapshot,
        result.transactions,
        len(found.tables),
        _rows(found),
        round(restored - began, 3),
        round(verified - restored, 3),
        not wrong,
        wrong,
        window.clock,
        window.tick,
        covered(window, result.snapshot, result.tick, last),
    )


def _restored(restore: Callable[..., Replicated], work: Path, ticks: Sequence[int]) -> tuple[float, Replicated]:
    """Restore to the first tick at which a replica can stop; also return the start time."""
    for tick in ticks[:-1]:
        began = time.monotonic()
        with suppress(InseparableError):
            return began, restore(tick=tick)
        # The next tick starts again, to report its own snapshot.
        shutil.rmtree(work)
        work.mkdir()
    return time.monotonic(), restore(tick=ticks[-1])


def _reachable(database: FarmDatabase) -> tuple[Window, int, int]:
    """Return the window of restorable states, the first tick that is worth a drill, and the last one.

    Raises:
        InvalidError: Nothing was published yet.
    """
    window = read_window(database)
    if window.tick is None:
        if database.batch_numbers():
            message = f"no state of {database.url} can be restored: log files are missing after its newest snapshot"
            raise InvalidError(message, hint=f"wlc farm verify {shlex.quote(database.url)}", path=database.url)
        raise InvalidError(f"nothing was published to {database.url} yet", hint="wlc flush SOURCE", path=database.url)
    last = log_reader.last_tick(database, database.batch_numbers())
    # Restoring the empty database at tick 0 would prove nothing.
    first = window.tick if window.tick or 0 in database.snapshot_ticks() else 1
    return window, min(first, last), last


def choose_tick(older: Sequence[int], first: int, last: int, seed: int | None = None) -> int:
    """Choose a restorable transaction at random: from the first to the last, or a single snapshot."""
    chosen = Random(seed).randint(first - len(older), last)  # noqa: S311 - Predicting it is harmless.
    return chosen if chosen >= first else older[chosen - first]


def covered(window: Window, snapshot: int | None, tick: int, last: int) -> float:
    """Return the share of the window's ticks that a restore replayed, from 0 to 1; 1 for a single state."""
    assert window.tick is not None
    if tick < window.tick:
        return 0.0
    if last == window.tick:
        return 1.0
    return round((tick - max(snapshot or 0, window.tick)) / (last - window.tick), 4)


def _rows(found: Verified) -> int:
    return sum(table.rows or 0 for table in found.tables)
