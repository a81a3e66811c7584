"""Taking from another site, beside replaying and capturing the same changes; the window; users who meet a take."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb

import wlc
import wlr
from tests.bench import tables
from tests.bench.lakes import peak_gb
from tests.bench.measure import Line, Setting, duration, in_a_process, timed
from tests.sites import Sites
from wlc.farm.database import open_database
from wlc.multi_master.duckdb import conflict_window, lines, take_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection

BESIDE = "replay + capture"
ROWS = 1_000_000
# What the primary has changed and the other site has not seen.
WIDE = 10_000_000
TRANSACTIONS = 100
# Without conflicts, beside a plain replay and a capture of the same changes.
GOAL = 1.5
# How long a user's transaction stays open, and how many users there are.
LONG_S, USERS = 0.5, 2
GIVES_UP_S = 120.0


def run(setting: Setting) -> Iterator[Line]:
    """Yield takes by the primary with more and more conflicts, its window, and a take among users."""
    folder, rows = tables.fresh(setting.folder / "sites"), setting.rows(ROWS)
    scene = Scene.made(folder / "none", rows)
    plain, took, bare = _in_turns(scene, setting.rounds)
    what = f"take {rows:,} updated rows"
    yield Line(f"{what}, no conflict", duration(plain, rows), duration(took, rows), took / plain, goal=GOAL)
    yield Line("… without journalling them", "", duration(bare, rows), took / bare)
    yield Line("publish what was taken", "", duration(seconds := scene.publish(), rows), rows / seconds, "rows/s")
    for share in (0.01, 0.5):
        other = Scene.made(folder / "some", rows, changed=(0, int(rows * share)))
        seconds = median(other.take() for _ in range(setting.rounds))
        yield Line(f"{what}, {share:.0%} in conflict", duration(plain, rows), duration(seconds, rows), seconds / plain)
        assert len(wlc.exceptions(other.oslo)) == int(rows * share), "other rows were rejected"
    yield from _mesh(folder, rows, setting.rounds)
    yield from _wide(folder, rows, setting.rows(WIDE), plain)
    yield from _reads(folder, rows, setting.singles)
    for where, first in (("rows of the take", 0), ("other rows", rows)):
        scene.restore()
        yield _among_users(scene, where, first, took)


# Two sites -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """Oslo, the primary, is about to take what Rome has published; `restore` leads back to that.

    Attributes:
        before: Tick of Rome's log before the changes that are taken.
    """

    folder: Path
    rows: int
    before: int

    @staticmethod
    def made(
        folder: Path, rows: int, changed: tuple[int, int] | None = None, inserted: int = 0, *, rule: str = "epoch"
    ) -> Scene:
        """Make the sites; both have twice the rows, and Rome changes one half.

        Args:
            folder: For everything.
            rows: How many rows Rome changes.
            changed: Rows that Oslo changes meanwhile: some of the other half if omitted.
            inserted: Rows that Oslo inserts meanwhile.
            rule: Of the table; `newest` is one of a mesh.
        """
        sites = Sites(tables.fresh(folder))
        sites.found("; ".join((tables.KEYED, tables.insert_sql(0, 2 * rows))), mesh=rule == "newest")
        sites.join("rome")
        wlc.set_rule(sites.file("oslo"), "t", rule)
        sites.exchange()
        before = sites.log("rome").config().tick
        tables.execute(sites.file("rome"), *_updates(rows))
        first, after = changed or (rows, rows + rows // 100)
        with wlc.connect(sites.file("oslo")) as connection:
            connection.execute(f"UPDATE t SET b = 'oslo' WHERE id >= {first} AND id < {after}")
            for start in range(0, inserted, ROWS):
                connection.execute(tables.insert_sql(2 * rows + start, 2 * rows + min(start + ROWS, inserted)))
                wlc.flush(sites.file("oslo"))
        shutil.copyfile(sites.file("oslo"), folder / "kept.duckdb")
        shutil.copytree(sites.farm, folder / "kept farm")
        return Scene(folder, rows, before)

    @property
    def oslo(self) -> Path:
        return self.folder / "oslo.duckdb"

    @property
    def farm(self) -> Path:
        return self.folder / "farm"

    def restore(self) -> None:
        """Bring Oslo and the farm back, in the same file: a copy of a master would publish nothing."""
        shutil.copyfile(self.folder / "kept.duckdb", self.oslo)
        shutil.rmtree(self.farm)
        shutil.copytree(self.folder / "kept farm", self.farm)

    def take(self) -> float:
        """Take without publishing what was taken; returns the seconds."""
        self.restore()
        with patch("wlc.multi_master.take_round.publish"):
            return timed(lambda: wlc.take(self.oslo))

    def publish(self) -> float:
        """Publish what was taken; returns the seconds."""
        self.take()
        return timed(lambda: wlc.flush(self.oslo))


def _updates(rows: int) -> list[str]:
    pieces = min(TRANSACTIONS, rows)
    borders = [rows * number // pieces for number in range(pieces + 1)]
    return [f"UPDATE t SET a = a + 1 WHERE id >= {first} AND id < {after}" for first, after in pairwise(borders)]


def _in_turns(scene: Scene, rounds: int) -> tuple[float, float, float]:
    """Seconds of a replay of Rome's changes and of capturing the same; of taking them; of taking without a journal."""
    log, folder = str(scene.farm / "sales" / "sites" / "rome"), scene.folder
    replica, copy = folder / "replica.duckdb", folder / "copy.duckdb"
    wlr.replicate(log, into=replica, tick=scene.before, register=False)
    plain, master = folder / "plain.duckdb", tables.fresh(folder / "captured") / "t.duckdb"
    for path in (plain, master):
        tables.make_plain(path, tables.KEYED, tables.insert_sql(0, 2 * scene.rows))
    tables.make_master(master)
    found = []
    for _ in range(rounds):
        shutil.copy(replica, copy)
        replay = timed(lambda: wlr.replicate(into=copy, register=False))
        capture = -_executed(duckdb.connect(str(plain)), scene.rows) + _executed(wlc.connect(master), scene.rows)
        took = scene.take()
        with patch.object(lines, "journal_images"):
            found.append((replay + max(capture, 0.0), took, scene.take()))
    first, second, third = (median(seconds) for seconds in zip(*found, strict=True))
    return first, second, third


def _executed(connection: duckdb.DuckDBPyConnection | Connection, rows: int) -> float:
    """Seconds of Rome's statements, without what closing publishes."""
    with connection:
        return timed(lambda: [connection.execute(statement) for statement in _updates(rows)])


def _mesh(folder: Path, rows: int, rounds: int) -> Iterator[Line]:
    """Take at a site of a mesh: what it has changed itself of these rows is newer."""
    scene = Scene.made(folder / "mesh", rows, rule="newest")
    plain, took, _ = _in_turns(scene, rounds)
    what = f"mesh, newest: take {rows:,} updated rows"
    yield Line(f"{what}, no conflict", duration(plain, rows), duration(took, rows), took / plain)
    older = int(rows * 0.01)
    other = Scene.made(folder / "older", rows, changed=(0, older), rule="newest")
    seconds = median(other.take() for _ in range(rounds))
    yield Line(f"{what}, 1% in conflict", duration(plain, rows), duration(seconds, rows), seconds / plain)
    assert len(wlc.exceptions(other.oslo)) == older, "other rows were rejected"


# The window ----------------------------------------------------------------------------------------------------------


def _wide(folder: Path, rows: int, wide: int, plain: float) -> Iterator[Line]:
    """Build a window of many rows alone, then take beside it, each in a process of its own."""
    scene = Scene.made(folder / "wide", rows, inserted=wide)
    seconds, peak = _child("window", scene)
    yield Line(f"window of {wide:,} rows, built", "", f"{duration(seconds)}, {peak:.2f} GB", wide / seconds, "rows/s")
    scene.restore()
    seconds, peak = _child("take", scene)
    what = f"take {rows:,} updated rows beside it, no conflict"
    yield Line(what, duration(plain, rows), f"{duration(seconds, rows)}, {peak:.2f} GB", seconds / plain)


def _child(action: str, scene: Scene) -> tuple[float, float]:
    """Seconds and peak in GB of one action."""
    seconds, peak = in_a_process("tests.bench.sites", action, scene.oslo, scene.farm / "sales")
    return seconds, peak


def _build_window(url: str) -> None:
    log = open_database(url)
    with duckdb.connect() as connection:
        conflict_window.create(connection)
        conflict_window.add_log(connection, log, after_tick=0, last_batch=log.batch_numbers()[-1], known={})
        assert connection.execute(f"SELECT count(*) > 0 FROM {conflict_window.WINDOW}").fetchall() == [(True,)]


def main(action: str, file: str, url: str) -> None:
    """Do one action and print its seconds and its peak in GB."""
    with patch("wlc.multi_master.take_round.publish"):
        seconds = timed(lambda: _build_window(url) if action == "window" else wlc.take(file))
    print(json.dumps([seconds, peak_gb()]), flush=True)


# Reads ---------------------------------------------------------------------------------------------------------------


def _reads(folder: Path, rows: int, singles: int) -> Iterator[Line]:
    """Read single rows with and without FOR UPDATE, change single rows, and read them at a master that is no site."""
    sites = Sites(tables.fresh(folder / "reads"))
    sites.found("; ".join((tables.KEYED, tables.insert_sql(0, rows))))
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "t", "epoch_trans", reads="exclusive")
    sites.exchange()
    master = tables.make_plain(tables.fresh(folder / "alone") / "t.duckdb", tables.KEYED, tables.insert_sql(0, rows))
    tables.make_master(master)
    with wlc.connect(sites.file("rome")) as site, wlc.connect(master) as alone:
        read, chance = "SELECT a FROM t WHERE id = ?", random.Random(0)
        sides = (site, f"{read} FOR UPDATE"), (site, read), (site, "UPDATE t SET a = a + 1 WHERE id = ?"), (alone, read)
        turns = [[_cpu_s(*side, chance.randrange(rows)) for side in sides] for _ in range(singles)]
    tracked, bare, update, plain = (median(seconds) for seconds in zip(*turns, strict=True))
    more = f"UPDATE {update * 1000:.2f} ms, SELECT {bare * 1000:.2f} ms"
    yield Line("SELECT of a row FOR UPDATE, CPU time beyond that of SELECT", "", more, (tracked - bare) * 1000, "ms")
    yield Line("SELECT of a row without it, CPU time beside a master that is no site", "", "", bare / plain)


def _cpu_s(connection: Connection, statement: str, key: int) -> float:
    """Seconds of CPU time of a statement that is a transaction of its own."""
    started = time.process_time()
    connection.execute(statement, [key]).fetchall()
    return time.process_time() - started


# Users ---------------------------------------------------------------------------------------------------------------


def _among_users(scene: Scene, where: str, first: int, alone: float) -> Line:
    """Take while users change single rows in transactions that stay open for a while."""
    attempts: list[int] = []
    take_lines, rounds = take_step._take_lines, 0

    def counted(*arguments: object, **named: object) -> int:
        attempts.append(1)
        return take_lines(*arguments, **named)  # type: ignore[arg-type]

    with (
        patch.object(take_step, "_take_lines", counted),
        wlc.connect(scene.oslo) as connection,
        _users(connection, first, scene.rows) as outcomes,
    ):
        time.sleep(LONG_S)
        started = time.perf_counter()
        while time.perf_counter() - started < GIVES_UP_S:
            rounds += 1
            with suppress(wlc.UnavailableError):
                connection.wlc.take()
                break
        seconds = time.perf_counter() - started
    told = f"{duration(seconds)}, {rounds} rounds, {len(attempts)} attempts; users: {outcomes.count(True)} of"
    what = f"take among users who change {where} in {LONG_S} s"
    return Line(what, "", f"{told} {len(outcomes)} committed", seconds / alone)


@contextmanager
def _users(connection: Connection, first: int, rows: int) -> Iterator[Sequence[bool]]:
    """Let users work; yields whether each of their transactions was committed."""
    outcomes: list[bool] = []
    is_over = threading.Event()

    def work(number: int) -> None:
        chance = random.Random(number)
        with connection.cursor() as user:
            while not is_over.is_set():
                try:
                    user.execute("BEGIN")
                    user.execute(f"UPDATE t SET c = c + 1 WHERE id = {first + chance.randrange(rows)}")
                    is_over.wait(LONG_S)
                    user.execute("COMMIT")
                    outcomes.append(True)
                except duckdb.TransactionException:
                    outcomes.append(False)
                    with suppress(duckdb.TransactionException):
                        user.execute("ROLLBACK")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(USERS)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # No interpreter shutdown: it would close what is open, and so publish.
    os._exit(0)
