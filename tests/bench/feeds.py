"""Rows per second of a feed into a file and into Kafka's mock cluster, beside loops of json.dumps and of a producer."""

from __future__ import annotations

import json
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from confluent_kafka import Producer

import wlc
import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, timed
from tests.mock_kafka import mock_cluster
from wlc.farm.database import open_database
from wlc.farm.model import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wlc.farm.database import FarmDatabase

BESIDE = "a loop in Python"
FULL_ROWS = 1_000_000
_topics = iter(range(10**6))


def run(setting: Setting) -> Iterator[Line]:
    """Yield rows that were inserted, and rows that were updated, into both outputs."""
    folder = tables.fresh(setting.folder / "feeds")
    source, farm, rows = folder / "shop.duckdb", str(folder / "farm"), setting.rows(FULL_ROWS)
    wlc.master(source, farm=farm, beat_s=3600, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, item VARCHAR, price DOUBLE, day DATE)")
        connection.execute(
            "INSERT INTO orders SELECT i, 'item number ' || i, i * 1.5, DATE '2026-01-01' + CAST(i % 365 AS INTEGER)"
            f" FROM range({rows}) r(i)"
        )
    database = open_database("shop", farm)
    numbers = iter(range(10**6))

    def feed(to: str, start: int) -> float:
        # A feed into an output that is there goes on from its position, so that each turn has one of its own.
        name = f"feed{next(numbers)}"
        return timed(lambda: wlr.feed("shop", farm=farm, to=to + name, start=start, name=name, tables=["main.orders"]))

    with mock_cluster() as servers:
        for what, tick, count in (("inserted", 2, rows), ("updated", 3, rows - rows // 2)):
            if what == "updated":
                with wlc.connect(source) as connection:
                    connection.execute("UPDATE orders SET price = price + 1 WHERE id % 2 = 0")
            records = _loop(database, tick)
            write = partial(_write, records, folder / "plain.jsonl")
            produce = partial(_produce, records, servers)
            into_file, into_topic = partial(feed, f"{folder}/", tick), partial(feed, f"kafka://{servers}/", tick)
            rounds, about = setting.rounds, f"{count:,} rows {what}"
            for output, plain, ours in (("file", write, into_file), ("topic", produce, into_topic)):
                pairs = [(timed(plain), ours()) for _ in range(rounds)]
                first, second = (median(seconds) for seconds in zip(*pairs, strict=True))
                speeds = [f"{count / seconds:,.0f} rows/s" for seconds in (first, second)]
                yield Line(f"{about}, into a {output}", speeds[0], speeds[1], second / first)


def _loop(database: FarmDatabase, tick: int) -> Callable[[], Iterator[Any]]:
    """Return what gives the records of a transaction one by one, as a program without dbfarm would make them."""
    batch = next(
        batch
        for batch in (database.read_batch(number)[0] for number in database.batch_numbers())
        if batch.first <= tick <= batch.last
    )
    (transaction,) = (t for t in batch.transactions if t.tick == tick)
    (change,) = (record for record in transaction.records if isinstance(record, Change))
    (file,) = (file for file in batch.files if file.file.path == change.path)

    def records() -> Iterator[Any]:
        before: dict[int, Any] = {}
        after: dict[int, Any] = {}
        for image in pq.read_table(database.fetch(file)).to_pylist():
            of_tick, weight = image.pop("_tick"), image.pop("_weight")
            if of_tick == tick:
                image["day"] = str(image["day"])
                (after if weight > 0 else before)[image["id"]] = image
        for n, (key, image) in enumerate(after.items(), start=1):
            old = before.get(key)
            operation = "update" if old else "insert"
            yield key, {"op": operation, "table": "main.orders", "tick": tick, "n": n, "before": old, "after": image}

    return records


def _write(records: Callable[[], Iterator[Any]], file: Path) -> None:
    with file.open("w", encoding="utf-8") as handle:
        for _, record in records():
            handle.write(json.dumps(record) + "\n")


def _produce(records: Callable[[], Iterator[Any]], servers: str) -> None:
    topic = f"plain{next(_topics)}"
    options = {"enable.idempotence": True, "linger.ms": 20, "compression.type": "zstd"}
    producer = Producer({"bootstrap.servers": servers, "log_level": 2, **options})
    for number, (key, record) in enumerate(records()):
        while True:
            try:
                producer.produce(topic, key=json.dumps({"id": key}), value=json.dumps(record))
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
