"""Feeds to a real broker that is killed, comes back without its topics, or has dropped what was old.

Each record is there once and in order, or an error says what is missing.

Docs: docs/feeds.md.
"""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import wlc
from tests.kafka_broker import Broker, create_topic, delete_topic
from tests.mock_kafka import messages
from tests.scenario.test_feed_kafka import FARM, SOURCES, as_records, database, expected, feed, once
from wlc.farm.errors import CorruptError, UnavailableError
from wlr.feeds import kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.database import FarmDatabase

__all__ = ["database"]
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


def change(database: FarmDatabase) -> None:
    """Publish another change of every row."""
    with wlc.connect(SOURCES[database.url]) as connection:
        connection.execute("UPDATE t SET v = v || '!'")
    wlc.flush(SOURCES[database.url])


def fail_at(monkeypatch: pytest.MonkeyPatch, at: int, broker: Broker) -> None:
    """Kill the broker and start it again before a record is sent, once all before it have arrived."""
    produce, sent = kafka.OpenTopic._produce, 0

    def send(self: kafka.OpenTopic, *arguments: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == at:
            self._producer.flush(10)
            broker.restart()
        produce(self, *arguments)

    monkeypatch.setattr(kafka.OpenTopic, "_produce", send)
    monkeypatch.setattr(kafka, "_SILENCE_S", 3.0)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_broker_that_is_killed_and_comes_back_with_its_topics(
    on_s3: Broker, database: FarmDatabase, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    topic = new_topic(on_s3)
    with monkeypatch.context() as patch:
        fail_at(patch, 40, on_s3)
        try:
            feed(on_s3.servers, topic, transactional=transactional, max_bytes=3_000)
        except UnavailableError:
            on_s3.restart()
    feed(on_s3.servers, topic, transactional=transactional)
    on_s3.restart()
    found = messages(on_s3.servers, topic)
    assert as_records(once(found)) == expected(database)
    assert feed(on_s3.servers, topic, transactional=transactional).records == 0


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("how", ["restarted", "made anew"])
def test_a_topic_that_is_lost_is_named_and_can_be_written_anew(
    in_memory: Broker, database: FarmDatabase, transactional: bool, how: str
) -> None:
    topic = new_topic(in_memory)
    feed(in_memory.servers, topic, transactional=transactional, tables=["main.t"])
    change(database)
    if how == "restarted":
        in_memory.restart()
    else:
        delete_topic(in_memory.servers, topic)
    create_topic(in_memory.servers, topic)
    for _ in range(2):
        with pytest.raises(CorruptError, match=rf"partition \d of .*{topic} goes on at offset 0, and feed") as caught:
            feed(in_memory.servers, topic, transactional=transactional)
    assert f"wlc forget {database.url} feed-{topic}" in str(caught.value.hint)
    assert messages(in_memory.servers, topic) == []
    wlc.forget("shop", f"feed-{topic}", farm=FARM)
    feed(in_memory.servers, topic, transactional=transactional)
    assert as_records(once(messages(in_memory.servers, topic))) == expected(database)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_topic_that_is_lost_within_a_round(
    in_memory: Broker, database: FarmDatabase, monkeypatch: pytest.MonkeyPatch, transactional: bool, is_known: bool
) -> None:
    """Nothing is missing that a position says was written."""
    topic = new_topic(in_memory)
    if is_known:
        feed(in_memory.servers, topic, transactional=transactional)
        change(database)
    with monkeypatch.context() as patch:
        fail_at(patch, 3, in_memory)
        with pytest.raises((UnavailableError, CorruptError)):
            feed(in_memory.servers, topic, transactional=transactional)
    if is_known:
        with pytest.raises(CorruptError, match="goes on at offset"):
            feed(in_memory.servers, topic, transactional=transactional)
        return
    feed(in_memory.servers, topic, transactional=transactional)
    assert as_records(once(messages(in_memory.servers, topic))) == expected(database)
