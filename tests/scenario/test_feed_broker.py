"""Feeds and a real broker that are killed, a topic that is lost, or that has dropped what was old.

Each record is there once and in order, or an error says what is missing.

The broker, Tansu 0.6, never removes what is old, and a request to delete records ends its connection. So the tests
remove records from its bucket.

Docs: docs/feeds.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import wlc
import wlr
from tests.kafka_broker import Broker, create_topic, delete_topic
from tests.mock_kafka import messages
from tests.scenario.test_feed_kafka import SOURCES, as_records, expected, once, published
from wlc.farm.errors import CorruptError, UnavailableError
from wlr.reading.feeds import kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.farm.database import FarmDatabase

FARM = "memory://kafkabroker"
pytestmark = pytest.mark.slow
_numbers = count()


def new_topic(broker: Broker) -> str:
    create_topic(broker.servers, name := f"real{os.getpid()}-{next(_numbers)}")
    return name


@pytest.fixture(scope="module")
def in_memory() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def on_s3(s3_url: str, s3_environment: str) -> Iterator[Broker]:
    bucket = s3_url.removeprefix("s3://").split("/")[0]
    with Broker(f"s3://{bucket}/", {"AWS_ENDPOINT": s3_environment, "AWS_ALLOW_HTTP": "true"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> FarmDatabase:
    return published(tmp_path_factory.mktemp("memory") / "shop.duckdb", FARM)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> FarmDatabase:
    """A database in a farm that other processes read."""
    folder = tmp_path_factory.mktemp("disk")
    return published(folder / "shop.duckdb", str(folder / "farm"), rows=20)


def kill_feeds(database: FarmDatabase, broker: Broker, how: list[str], *places: str) -> list[str]:
    """Kill feeds at places, each to a topic of its own, and return the topics."""
    topics = [new_topic(broker) for _ in places]
    named = [f"{topic}={place}" for topic, place in zip(topics, places, strict=True)]
    farm = database.url.rpartition("/")[0]
    subprocess.run(
        [sys.executable, "-m", "tests.killed_feeds", farm, broker.servers, ",".join(how), *named], check=True
    )
    return topics


def feed_on(database: FarmDatabase, broker: Broker, topic: str, **options: Any) -> list[dict[str, Any]]:
    """Let a feed go on, and return what is in its topic."""
    farm = database.url.rpartition("/")[0]
    wlr.feed("shop", farm=farm, to=f"kafka://{broker.servers}/{topic}", **options)
    return messages(broker.servers, topic)


@pytest.mark.parametrize(("how", "places"), [("plain", ["9"]), ("transactional", ["9", "commit", "keep"])])
def test_a_feed_that_is_killed_loses_nothing(
    in_memory: Broker, on_disk: FarmDatabase, how: str, places: list[str]
) -> None:
    topics = dict(zip(places, kill_feeds(on_disk, in_memory, [how, "one by one"], *places), strict=True))
    for place, topic in topics.items():
        found = feed_on(on_disk, in_memory, topic, transactional=how == "transactional")
        assert as_records(once(found)) == expected(on_disk), f"killed at {place}"
        if place == "keep":
            ends = [message for message in found if "end" in message["headers"]]
            assert len(ends) == 1, "what was committed is not written again"


def _transaction(broker: Broker, topic: str, value: bytes) -> Producer:
    """Send a record in a transaction that is not committed."""
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": "plain", "log_level": 2})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, key=b"1", value=value, partition=0)
    producer.flush(20)
    return producer


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_promise_of_kafka_that_this_broker_does_not_keep(in_memory: Broker, is_killed: bool) -> None:
    """Tansu 0.6 hides an open transaction, and shows what was aborted to readers of what is committed.

    The client alone asks here. With a broker that keeps the promise, `--transactional` writes each record once.
    """
    topic = new_topic(in_memory)
    producer = _transaction(in_memory, topic, b'"aborted"')
    assert messages(in_memory.servers, topic) == []
    if is_killed:
        # The next producer of that name ends what the one before it has left.
        producer = _transaction(in_memory, topic, b'"committed"')
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    found = [message["value"] for message in messages(in_memory.servers, topic)]
    assert found == ["aborted", *["committed"] * is_killed], "it keeps it now: say so in docs/feeds.md"


def objects(broker: Broker, topic: str) -> Iterator[list[str]]:
    """Give the objects that hold records, of each partition, in order."""
    import s3fs

    bucket = broker.storage.removeprefix("s3://")
    found = s3fs.S3FileSystem(skip_instance_cache=True).find(f"{bucket}clusters/tansu_cluster/topics/{topic}/")
    records = sorted(path for path in found if path.endswith(".batch"))
    for _, paths in groupby(records, lambda path: path.rpartition("/")[0]):
        yield list(paths)


def remove(paths: list[str]) -> None:
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).rm(paths)


def test_a_feed_goes_on_in_a_topic_that_has_dropped_what_was_old(on_s3: Broker, on_disk: FarmDatabase) -> None:
    topic = new_topic(on_s3)
    for value in (7, 8):
        wanted = feed_on(on_disk, on_s3, topic, tables=["main.bag"])
        change(on_disk, f"INSERT INTO bag VALUES ({value})")
    remove([path for paths in objects(on_s3, topic) for path in paths[:-1]])
    kept = messages(on_s3.servers, topic)
    assert len(kept) < len(wanted)
    found = feed_on(on_disk, on_s3, topic)
    assert all(message in found for message in kept)
    (added,) = (message["value"]["after"] for message in found if message not in kept)
    assert added == {"v": 8}


def change(database: FarmDatabase, statement: str = "UPDATE t SET v = v || '!'") -> None:
    """Publish another change, of every row if it is not said which."""
    with wlc.connect(SOURCES[database.url]) as connection:
        connection.execute(statement)
    wlc.flush(SOURCES[database.url])


def fail_at(monkeypatch: pytest.MonkeyPatch, at: int, fail: Callable[[], object]) -> None:
    """Let the broker fail before a record is sent, once all before it have arrived."""
    produce, sent = kafka.OpenTopic._produce, 0

    def send(self: kafka.OpenTopic, *arguments: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == at:
            self._producer.flush(10)
            fail()
        produce(self, *arguments)

    monkeypatch.setattr(kafka.OpenTopic, "_produce", send)
    monkeypatch.setattr(kafka, "_SILENCE_S", 3.0)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_feed_and_a_broker_that_are_killed_and_come_back(
    on_s3: Broker, on_disk: FarmDatabase, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """A feed dies among its records, then the broker does, then the broker dies once more under the next feed."""
    (topic,) = kill_feeds(on_disk, on_s3, ["transactional"] * transactional, "9")
    on_s3.restart()
    with monkeypatch.context() as patch:
        fail_at(patch, 20, on_s3.restart)
        with suppress(UnavailableError):
            feed_on(on_disk, on_s3, topic, transactional=transactional, max_bytes=20_000)
    on_s3.restart()
    assert as_records(once(feed_on(on_disk, on_s3, topic, transactional=transactional))) == expected(on_disk)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("how", ["restarted", "made anew"])
def test_a_topic_that_is_lost_is_named_and_can_be_written_anew(
    in_memory: Broker, database: FarmDatabase, transactional: bool, how: str
) -> None:
    topic = new_topic(in_memory)
    feed_on(database, in_memory, topic, transactional=transactional, tables=["main.t"])
    change(database)
    if how == "restarted":
        in_memory.restart()
    else:
        delete_topic(in_memory.servers, topic)
    create_topic(in_memory.servers, topic)
    for _ in range(2):
        with pytest.raises(CorruptError, match=rf"partition \d of .*{topic} continues at offset 0, and feed") as caught:
            feed_on(database, in_memory, topic, transactional=transactional)
    assert f"wlc farm forget {database.url} feed-{topic}" in str(caught.value.hint)
    assert messages(in_memory.servers, topic) == []
    wlc.forget("shop", f"feed-{topic}", farm=FARM)
    feed_on(database, in_memory, topic, transactional=transactional)
    assert as_records(once(messages(in_memory.servers, topic))) == expected(database)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    ("how", "is_known"), [("restarted", False), ("restarted", True), ("deleted", True), ("made anew", True)]
)
def test_a_topic_that_is_lost_within_a_round(
    in_memory: Broker,
    database: FarmDatabase,
    monkeypatch: pytest.MonkeyPatch,
    transactional: bool,
    how: str,
    is_known: bool,
) -> None:
    """Nothing is missing that a position says was written."""
    topic = new_topic(in_memory)
    if is_known:
        feed_on(database, in_memory, topic, transactional=transactional)
        change(database)

    def lose() -> None:
        if how == "restarted":
            in_memory.restart()
            return
        delete_topic(in_memory.servers, topic)
        if how == "made anew":
            create_topic(in_memory.servers, topic)

    with monkeypatch.context() as patch:
        fail_at(patch, 3, lose)
        with pytest.raises((UnavailableError, CorruptError)):
            feed_on(database, in_memory, topic, transactional=transactional)
    if how == "deleted":
        create_topic(in_memory.servers, topic)
    if is_known:
        with pytest.raises(CorruptError, match="continues at offset"):
            feed_on(database, in_memory, topic, transactional=transactional)
        return
    feed_on(database, in_memory, topic, transactional=transactional)
    assert as_records(once(messages(in_memory.servers, topic))) == expected(database)
