"""Relays beside plain copies of the same files, and a farm with 64 registered readers: a round of one, and `wlc tier show`."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import s3fs

import wlc
import wlr
from tests.bench import tables
from tests.bench.bucket import bucket_at
from tests.bench.measure import Line, Setting, duration, timed
from tests.requests import counted_requests
from wlc.farm.clock import utc_now
from wlc.farm.database import open_database
from wlc.farm.model import Position
from wlc.farm.registry import RELAY, Replica, register
from wlc.tiers.upstreams import ORIGIN, Upstream, change_upstream, take_claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wlc.farm.database import FarmDatabase

BESIDE = "a plain copy"
ROWS = 4_000_000
BATCHES = 10
READERS, RELAYS = 64, 8
# Of the throughput of the medium.
GOAL = 0.8


def run(setting: Setting) -> Iterator[Line]:
    """Yield copies of a farm to a directory and to a bucket, and what 64 readers cost in both."""
    folder = tables.fresh(setting.folder / "tiers")
    source = _farm(folder, setting.rows(ROWS))
    with bucket_at("tiers") as url:
        yield from _relays(folder, source, url, setting.rounds)
        for what, farm in (("directory", str(folder / "crowded")), ("bucket", f"{url}/crowded")):
            yield from _crowd(what, farm, folder / f"{what}.duckdb", setting.rounds)


def _farm(folder: Path, rows: int) -> Path:
    """Make a farm of some batches and a snapshot; its bytes are hard to compress."""
    source = folder / "t.duckdb"
    wlc.master(source, farm=str(folder / "farm"), beat_s=tables.NO_BEAT_S, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i BIGINT, v VARCHAR)")
        for number in range(BATCHES):
            first = number * rows // BATCHES
            after = (number + 1) * rows // BATCHES
            connection.execute(
                f"INSERT INTO t SELECT i, md5(i::VARCHAR) || md5(i || 'x') FROM range({first}, {after}) r(i)"
            )
            wlc.flush(source)
    wlc.snapshot(source)
    return folder / "farm" / "t"


# Relays --------------------------------------------------------------------------------------------------------------


def _relays(folder: Path, source: Path, url: str, rounds: int) -> Iterator[Line]:
    size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    numbers = iter(range(10**6))
    system = s3fs.S3FileSystem(skip_instance_cache=True)

    def cp(*, is_durable: bool) -> float:
        target = folder / f"cp{next(numbers)}"
        seconds = timed(lambda: _copied(source, target, is_durable=is_durable))
        tables.fresh(target)
        return seconds

    def ship() -> float:
        target = folder / f"relay{next(numbers)}"
        seconds = timed(lambda: wlc.ship(str(source), to=str(target), register=False))
        tables.fresh(target)
        return seconds

    def put() -> float:
        return timed(lambda: system.put(str(source), f"{url}/put{next(numbers)}", recursive=True))

    def ship_up() -> float:
        target = f"{url}/relay{next(numbers)}"
        return timed(lambda: wlc.ship(str(source), to=target, register=False))

    about = f"relay of {size / 1e6:,.0f} MB"
    yield _share(f"{about} in a directory, cp -r and sync", rounds, size, lambda: cp(is_durable=True), ship, GOAL)
    yield _share(f"{about} in a directory, cp -r alone", rounds, size, lambda: cp(is_durable=False), ship, None)
    yield _share(f"{about} in a bucket, put of s3fs", rounds, size, put, ship_up, GOAL)


def _copied(source: Path, target: Path, *, is_durable: bool) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    if is_durable:
        # A relay is on disk when its run ends.
        subprocess.run(["sync", "-f", str(target)], check=True)


def _share(
    what: str, rounds: int, size: int, plain: Callable[[], float], ours: Callable[[], float], goal: float | None
) -> Line:
    """Return a line whose figure is our share of the plain copy's throughput."""
    pairs = [(plain(), ours()) for _ in range(rounds)]
    first, second = (median(seconds) for seconds in zip(*pairs, strict=True))
    plainly, own = (f"{duration(seconds)} ({size / seconds / 1e6:,.0f} MB/s)" for seconds in (first, second))
    return Line(what, plainly, own, first / second, goal=goal, is_most=False)


# Many readers --------------------------------------------------------------------------------------------------------


def _crowd(what: str, farm: str, into: Path, rounds: int) -> Iterator[Line]:
    source = into.with_name(f"master-of-{into.name}")
    wlc.master(source, farm=farm, beat_s=tables.NO_BEAT_S, name="t", create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i BIGINT)")
    wlc.flush(source)
    database = open_database("t", farm)

    def read(**options: object) -> None:
        wlr.replicate(f"{farm}/t", into=into, **options)  # type: ignore[arg-type]

    read(upstream="auto")
    yield _costs(f"round without news, alone in a {what}", rounds, read)
    _register_all(database)
    yield _costs(f"round without news, beside {READERS} in a {what}", rounds, read)
    # Another class is a reason to choose again.
    classes = iter(["prod", "beta"] * (rounds + 1))
    yield _costs(f"round that chooses among them, in a {what}", rounds, lambda: read(class_name=next(classes)))
    yield _costs(f"wlc tier show, {READERS} readers in a {what}", rounds, lambda: wlc.tier_tree(f"{farm}/t"))


def _register_all(database: FarmDatabase) -> None:
    """Register relays that serve and replicas that claim their slots."""
    now, config = utc_now(), database.config()
    last = config.batches - 1
    position = Position(config.history, config.tick, last, database.read_batch(last)[1])
    for number in range(READERS):
        name, above = f"r{number}", "" if number < RELAYS else f"r{number % RELAYS}"
        kind = RELAY if number < RELAYS else "replica"
        known = Replica(name, f"/{name}", position, config.write, now, "host", "ann", kind=kind, upstream=above)
        register(database, replace(known, interval_s=3600.0))
        take_claim(database, above or ORIGIN, number // RELAYS, name, None)
        if kind == RELAY:
            change_upstream(database, name, lambda _, name=name: Upstream(name, f"/{name}", "host", "ann"))


def _costs(what: str, rounds: int, act: Callable[[], object]) -> Line:
    with counted_requests() as made:
        act()
    seconds = median(timed(act) for _ in range(rounds))
    if made:
        return Line(what, "", duration(seconds), made.total(), "requests")
    return Line(what, "", duration(seconds), seconds, "s")
