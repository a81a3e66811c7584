"""How the work grows with the number of tables, of batches and of replicas: CPU seconds, and requests to a bucket."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

import wlc
import wlr
from tests.bench import tables
from tests.bench.bucket import bucket_at, s3_client
from tests.bench.measure import Line, Setting
from tests.bench.plot import Panel, draw
from tests.requests import counted_requests
from wlc.farm.clock import utc_now
from wlc.farm.database import open_database
from wlc.farm.model import Position
from wlc.farm.registry import Replica, register, replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TABLES = (10, 30, 100, 300, 1000)
BATCHES = (10, 100, 1000, 10_000)
# The server of the bucket is a simulation in Python, which needs longer for an object than all the rest together.
BATCHES_IN_A_BUCKET = BATCHES[:-1]
REPLICAS = (10, 30, 100, 300, 1000)

# For each curve: the size and what was needed.
Curves = dict[str, list[tuple[float, float]]]


def run(setting: Setting) -> Iterator[Line]:
    """Yield CPU seconds and requests for every size, and draw them if that is asked for."""
    by_tables, by_batches, requests, by_replicas = Curves(), Curves(), Curves(), Curves()
    for number in _sizes(setting, TABLES):
        yield from _noted(by_tables, "tables", "s", number, _with_tables(setting.folder, number))
    with bucket_at("growth") as farm:
        source = _master(setting.folder, "log")
        for number in _sizes(setting, BATCHES):
            _lengthen(source, number)
            yield from _noted(by_batches, "batches", "s", number, _with_batches(source, "directory", source.parent))
            if number <= max(_sizes(setting, BATCHES_IN_A_BUCKET)):
                _upload(source.parent / "farm", farm)
                asked: dict[str, float] = {}
                found = _with_batches(source, "bucket", source.parent, farm, asked)
                yield from _noted(by_batches, "batches", "s", number, found)
                yield from _noted(requests, "batches", "requests", number, asked)
    source = _master(setting.folder, "many")
    for number in _sizes(setting, REPLICAS):
        yield from _noted(by_replicas, "replicas", "s", number, _with_replicas(source, number))
    if setting.plots:
        picture = draw(_panels(by_tables, by_batches, requests, by_replicas))
        (setting.plots / "growth.svg").write_text(picture, encoding="utf-8")


def _sizes(setting: Setting, full: tuple[int, ...]) -> list[int]:
    return sorted({setting.rows(number) for number in full})


def _noted(curves: Curves, of: str, unit: str, number: int, found: dict[str, float]) -> Iterator[Line]:
    for what, figure in found.items():
        curves.setdefault(what, []).append((number, figure))
        yield Line(f"{what}, {number:,} {of}", "", "", figure, unit)


def _cpu_s(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


# Tables --------------------------------------------------------------------------------------------------------------


def _with_tables(folder: Path, number: int) -> dict[str, float]:
    """Measure a master with so many tables of one row."""
    folder = tables.fresh(folder / "tables")
    source, copy, lake = folder / "m.duckdb", folder / "copy.duckdb", folder / "lake"
    names = [f"t{n}" for n in range(number)]
    create = (
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, s VARCHAR); INSERT INTO {name} VALUES (1, 'a')" for name in names
    )
    tables.make_plain(source, *create)
    wlc.master(source, farm=str(folder / "farm"))
    found = {"new DuckDB replica": _cpu_s(lambda: wlr.replicate(source, into=copy))}
    found["new lake"] = _cpu_s(lambda: wlr.replicate(source, into=lake))
    with wlc.connect(source) as connection:
        inserts = "; ".join(f"INSERT INTO {name} VALUES (2, 'b')" for name in names)
        found["capture of a row in each"] = _cpu_s(lambda: connection.execute(f"BEGIN; {inserts}; COMMIT"))
        found["flush of a row in each"] = _cpu_s(lambda: wlc.flush(source))
    found["a row in each, DuckDB replica"] = _cpu_s(lambda: wlr.replicate(into=copy))
    found["a row in each, lake"] = _cpu_s(lambda: wlr.replicate(into=lake))
    return found


# Batches -------------------------------------------------------------------------------------------------------------


def _master(folder: Path, name: str) -> Path:
    source = tables.fresh(folder / name) / "m.duckdb"
    wlc.master(source, farm=str(source.parent / "farm"), beat_s=0, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    return source


def _lengthen(source: Path, number: int) -> None:
    """Publish single rows until the log has so many batches."""
    with wlc.connect(source) as connection:
        for value in range(wlc.status(source).batches, number):
            connection.execute(f"INSERT INTO t VALUES ({value})")


def _with_batches(
    source: Path, place: str, folder: Path, farm: str | None = None, asked: dict[str, float] | None = None
) -> dict[str, float]:
    """Measure a log as it is; `asked` takes the requests that were made."""
    copy, found = folder / f"{place}.duckdb", {}

    def measure(what: str, call: Callable[[], object]) -> None:
        with counted_requests() as made:
            found[f"{what}, {place}"] = _cpu_s(call)
        if asked is not None:
            asked[what] = made.total()

    copy.unlink(missing_ok=True)
    master = "m" if farm else source
    measure("new replica", lambda: wlr.replicate(master, farm=farm, into=copy, register=False))
    nothing = []
    for _ in range(5):
        measure("replication without news", lambda: wlr.replicate(into=copy, register=False))
        nothing.append(found[f"replication without news, {place}"])
    found[f"replication without news, {place}"] = median(nothing)
    return found


# Replicas ------------------------------------------------------------------------------------------------------------


def _with_replicas(source: Path, number: int) -> dict[str, float]:
    """Measure a farm in which so many replicas are registered."""
    database = open_database(str(source.parent / "farm" / "m"))
    config = database.config()
    position = Position(config.history, config.tick, config.batches - 1, database.read_batch(config.batches - 1)[1])
    for place in range(len(replicas(database)), number):
        known = Replica(f"r{place}", f"/r{place}", position, config.write, utc_now(), "host", "ann")
        register(database, replace(known, interval_s=3600.0))
    copy, turns = source.parent / "copy.duckdb", count()
    wlr.replicate(source, into=copy)

    def insert() -> None:
        with wlc.connect(source) as connection:
            connection.execute(f"INSERT INTO t VALUES ({number * 1000 + next(turns)})")

    works: dict[str, Callable[[], object]] = {
        "commit and publish a row": insert,
        "a registered replica takes a row": lambda: wlr.replicate(into=copy),
        "wlc prune": lambda: wlc.prune(source),
        "wlc status": lambda: wlc.status(source),
    }
    seconds: dict[str, list[float]] = {what: [] for what in works}
    for _ in range(3):
        for what, call in works.items():
            seconds[what].append(_cpu_s(call))
    return {what: median(found) for what, found in seconds.items()}


# A bucket ------------------------------------------------------------------------------------------------------------


def _upload(farm: Path, url: str) -> None:
    """Copy what a farm has and the bucket lacks, and what changes."""
    client, bucket = s3_client(), url.removeprefix("s3://")
    there = {
        item["Key"]
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for item in page.get("Contents", ())
    }
    for file in farm.rglob("*"):
        key = str(file.relative_to(farm))
        if file.is_file() and not file.name.startswith(".") and (key not in there or file.name == "wlc.config"):
            client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())


# Pictures ------------------------------------------------------------------------------------------------------------


def _panels(by_tables: Curves, by_batches: Curves, requests: Curves, by_replicas: Curves) -> list[Panel]:
    def chosen(curves: Curves, *words: str) -> Curves:
        return {name: curve for name, curve in curves.items() if any(word in name for word in words)}

    seconds = [
        ("tables: new replicas", "tables", chosen(by_tables, "new")),
        ("tables: a row in each", "tables", chosen(by_tables, "a row in each")),
        ("log: new replica", "batches", chosen(by_batches, "new replica")),
        ("log: replication without news", "batches", chosen(by_batches, "without news")),
    ]
    panels = [Panel(title, below, "s", dict(curves), is_log=True) for title, below, curves in seconds]
    asked = Panel("log: requests to a bucket", "batches", "", dict(requests), is_log=True)
    return [*panels, asked, Panel("replicas", "registered replicas", "s", dict(by_replicas), is_log=True)]
