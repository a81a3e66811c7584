"""`wlr feed --to kafka://…`: duplicates dropped by their headers, a topic is the projection of the log.

Docs: docs/feeds.md.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import wlc
import wlr
from tests.feed_oracle import flat, projection
from tests.kafka_broker import Broker, create_topic
from tests.mock_kafka import messages, mock_cluster
from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.model import Position
from wlc.farm.registry import replicas
from wlr.reading.feeds import kafka
from wlr.reading.feeds.feed_state import FeedState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    NewTopic = Callable[[], str]

    from wlc.farm.database import FarmDatabase

FARM = "memory://kafkafeeds"
SOURCES: dict[str, Path] = {}
_topics = (f"topic{os.getpid()}-{number}" for number in range(10**6))


@pytest.fixture(scope="module", params=["mock", pytest.param("broker", marks=pytest.mark.slow)])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """The client's mock, and a real broker; `DBFARM_KAFKA` names another one."""
    if request.param == "mock":
        with mock_cluster() as found:
            yield found
    elif named := os.environ.get("DBFARM_KAFKA"):
        yield named
    else:
        with Broker() as broker:
            yield broker.servers


@pytest.fixture
def new_topic(servers: str) -> NewTopic:
    """Makes a topic of four partitions, and returns its name."""

    def make() -> str:
        name = next(_topics)
        # The mock makes a topic when it is asked for.
        if "," not in servers:
            create_topic(servers, name)
        return name

    return make


def published(source: Path, farm: str, rows: int = 60) -> FarmDatabase:
    """Make a master with every kind of record in its log."""
    wlc.master(source, farm=farm, beat_s=3600, create=True)
    for statements in (
        ["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", "CREATE TABLE bag (v INTEGER)"],
        [f"INSERT INTO t SELECT i, 'new' FROM range({rows}) r(i)", "INSERT INTO bag VALUES (1), (1), (2)"],
        ["UPDATE t SET v = 'changed' WHERE id % 2 = 0", "DELETE FROM t WHERE id % 5 = 0"],
        [
            "ALTER TABLE t ADD COLUMN w INTEGER",
            f"UPDATE t SET w = id, id = id + 1000 WHERE id > {rows - 10}",
            "DELETE FROM bag",
        ],
    ):
        with wlc.connect(source) as connection:
            for statement in statements:
                connection.execute(statement)
    found = open_database("shop", farm)
    SOURCES[found.url] = source
    return found


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> FarmDatabase:
    return published(tmp_path_factory.mktemp("kafka") / "shop.duckdb", FARM)


def feed(servers: str, topic: str, **options: Any) -> wlr.Fed:
    return wlr.feed("shop", farm=FARM, to=f"kafka://{servers}/{topic}", **options)


def place(message: dict[str, Any]) -> tuple[int, int]:
    return int(message["headers"]["tick"]), int(message["headers"]["n"])


def once(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop duplicates by the headers, and check that what is left keeps its order in every partition."""
    seen: set[tuple[Any, ...]] = set()
    kept: list[dict[str, Any]] = []
    order: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for message in found:
        if message["value"] is None:
            continue
        if place(message) not in seen or message["key"] is None:
            first = (message["partition"], *place(message)) not in seen
            if first:
                order[message["partition"]].append(place(message))
            if place(message) not in seen:
                kept.append(message)
        seen |= {place(message), (message["partition"], *place(message))}
    assert all(places == sorted(places) for places in order.values())
    return sorted(kept, key=place)


def expected(database: FarmDatabase) -> list[str]:
    return flat(projection(database))


def as_records(found: list[dict[str, Any]]) -> list[str]:
    by_tick: dict[int, list[Any]] = defaultdict(list)
    for value in (message["value"] for message in found):
        about = {"truncate": "rows", "schema": "statement"}.get(value["op"])
        images = (value[about], None) if about else (value["before"], value["after"])
        by_tick[value["tick"]].append((value["op"], value["table"], value["tick"], *images))
    return flat([by_tick[tick] for tick in sorted(by_tick)])


@pytest.mark.slow
def test_a_topic_has_every_change_under_its_key(servers: str, new_topic: NewTopic, database: FarmDatabase):
    done = feed(servers, topic := new_topic())
    found = messages(servers, topic)
    assert as_records(once(found)) == expected(database)
    partitions = {message["partition"] for message in found}
    assert len(partitions) == 4
    homes: dict[Any, set[int]] = defaultdict(set)
    for message in found:
        value, key = message["value"], message["key"]
        assert message["headers"]["history"] == value["history"]
        assert place(message) == (value["tick"], value["n"])
        if value["op"] in ("schema", "truncate"):
            homes[place(message)].add(message["partition"])
        elif value["table"] == "main.bag":
            assert key is None
            homes["bag"].add(message["partition"])
        else:
            assert key == {"id": (value["after"] or value["before"])["id"]}
            homes[key["id"]].add(message["partition"])
    assert len(homes.pop("bag")) == 1, "rows without a key stay in their order"
    notes = [home for name, home in homes.items() if isinstance(name, tuple)]
    assert notes
    assert all(home == partitions for home in notes), "whoever reads one partition sees every schema change"
    assert all(len(home) == 1 for name, home in homes.items() if isinstance(name, int))
    assert done.records == len(once(found))
    assert feed(servers, topic).records == 0
    assert len(messages(servers, topic)) == len(found)


def test_deleted_rows_have_tombstones_in_the_format_of_debezium(
    servers: str, new_topic: NewTopic, database: FarmDatabase
):
    feed(servers, topic := new_topic(), format="debezium", tables=["main.t"])
    by_key = defaultdict(list)
    for message in messages(servers, topic):
        if message["key"] is not None:
            by_key[message["key"]["id"]].append(message["value"] and message["value"]["op"])
    assert by_key[10] == ["c", "u", "d", None]
    assert by_key[1] == ["c"]
    assert by_key[51] == ["c", "d", None]
    assert by_key[1051] == ["c"]


class Died(BaseException):
    """The process was killed here."""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "debezium"])
def test_killed_anywhere_a_feed_loses_nothing(
    servers: str, new_topic: NewTopic, database: FarmDatabase, form: str, monkeypatch: pytest.MonkeyPatch
):
    """A record is on its way, or the position is behind what arrived: at every record of the feed, or a sample."""
    whole = new_topic()
    records = feed(servers, whole, format=form).records
    wanted = [(place(m), m["value"]) for m in once(messages(servers, whole))]
    produce, flush = kafka.OpenTopic._produce, kafka.OpenTopic.flush
    step = 3 if "DBFARM_DEEP" in os.environ else records // 3
    for at in range(len(form), records, step):
        topic, count = new_topic(), 0

        def dying(self: kafka.OpenTopic, *arguments: Any) -> None:
            nonlocal count
            count += 1
            if count > at:  # noqa: B023
                # What was sent arrives, or some of it: the others are purged with the producer.
                self._producer.flush(10 if at % 2 else 0)  # noqa: B023
                raise Died
            produce(self, *arguments)

        with monkeypatch.context() as patch, suppress(Died):
            patch.setattr(kafka.OpenTopic, "_produce", dying)
            feed(servers, topic, format=form, name=topic, max_bytes=3_000)
        with monkeypatch.context() as patch, suppress(Died):
            # The position is not remembered, although everything arrived.
            patch.setattr(kafka.OpenTopic, "flush", lambda self, state: (flush(self, state), dying(self))[0])
            feed(servers, topic, format=form, name=topic)
        feed(servers, topic, format=form, name=topic)
        found = messages(servers, topic)
        # Feeds of other names say so in `source`.
        said = [(place(m), m["value"]) for m in once(found)]
        for _, value in [*wanted, *said]:
            value.get("source", {}).pop("name", None)
        assert said == wanted, f"died at record {at}"
        if form == "debezium":
            deleted = {json.dumps(m["key"]) for m in found if m["value"] and m["value"].get("op") == "d" and m["key"]}
            tombs = {json.dumps(m["key"]) for m in found if m["value"] is None}
            assert deleted == tombs


class Sent:
    """A message as a consumer gets it."""

    def __init__(self, feed: bytes, value: bytes | None, *marks: tuple[str, bytes]) -> None:
        self._feed, self._value, self._marks = feed, value, marks

    def headers(self) -> list[tuple[str, bytes]]:
        return [("feed", self._feed), ("history", b"h"), ("tick", b"7"), ("n", b"3"), *self._marks]

    def value(self) -> bytes | None:
        return self._value


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (Sent(b"mine", b'{"op":"c"}'), (3, False)),
        (Sent(b"mine", b'{"op":"d"}'), (2, False)),
        (Sent(b"mine", None), (3, False)),
        (Sent(b"mine", None, ("end", b"1")), (3, True)),
        (Sent(b"other", b'{"op":"c"}'), None),
        (None, None),
    ],
    ids=["a row", "a deletion without its tombstone", "a tombstone", "the last one", "of another feed", "nothing"],
)
def test_what_the_last_message_of_a_partition_says(message: Sent | None, found: tuple[int, bool] | None):
    topic = object.__new__(kafka.OpenTopic)
    topic._feed, topic._has_tombstones = b"mine", True
    assert topic._as_last(message) == (None if found is None else kafka.LastRecord("h", 7, *found))


@pytest.mark.parametrize(
    ("last", "written"),
    [
        ([(7, 3, True), (7, 1, False), (6, 9, False), None], (7, 3)),
        ([(7, 3, True), (8, 4, False), (8, 2, False), (8, 1, False)], (7, 3)),
        ([(7, 9, False), (7, 1, False), (7, 2, False), (6, 5, True)], (6, 5)),
        ([(7, 9, False), (7, 1, False), (7, 2, False), None], None),
        ([None, None, None, None], None),
    ],
    ids=["a whole transaction", "with an unfinished one", "of two", "a silent partition", "nothing"],
)
def test_where_a_feed_goes_on_by_the_last_records(
    last: list[tuple[int, int, bool] | None], written: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
):
    """Only a transaction that is marked as whole counts up to its end; else nothing may be missing anywhere."""
    topic = object.__new__(kafka.OpenTopic)
    topic._feed, topic._cluster, topic._output = b"mine", "", kafka.KafkaOutput("kafka://h:1/t", {})
    found = [None if one is None else kafka.LastRecord("h", *one) for one in last]
    monkeypatch.setattr(kafka.OpenTopic, "_last_records", lambda *_: found)
    state = FeedState("mine", "farm/shop", "kafka://h:1/t", (), "json", Position("h", 5), history="h")
    assert topic.resume_at(state).written == written


def test_what_is_there_already_is_not_sent_again(
    servers: str, new_topic: NewTopic, database: FarmDatabase, monkeypatch: pytest.MonkeyPatch
):
    """The position is lost, and the topic says how far it is."""
    feed(servers, topic := new_topic())
    first = messages(servers, topic)
    database.store.delete(f"feeds/{topic}.json")
    done = feed(servers, topic)
    assert done.records < len(once(first)), "the lowest last record of the partitions is behind the beginning"
    assert as_records(once(messages(servers, topic))) == expected(database)


def test_refusals_of_topics(
    servers: str, new_topic: NewTopic, database: FarmDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for url in ("kafka://", "kafka://host", "kafka://host:9092/", "kafka://host:9092/a b", "kafka://u:secret@h:1/t"):
        with pytest.raises(InvalidError, match="names no topic") as caught:
            wlr.feed("shop", farm=FARM, to=url)
        assert "secret" not in caught.value.message
    with pytest.raises(InvalidError, match="does not accept csv"):
        feed(servers, "t", format="csv", tables=["main.t"])
    with pytest.raises(InvalidError, match="--rotate is for files"):
        feed(servers, "t", rotate=10)
    with pytest.raises(InvalidError, match="--transactional is for topics"):
        wlr.feed("shop", farm=FARM, to=str(tmp_path / "x"), transactional=True)
    feed(servers, topic := new_topic(), name=f"of-{topic}")
    with pytest.raises(InvalidError, match=f"feed of-{topic} writes to .*{topic}"):
        feed(servers, new_topic(), name=f"of-{topic}")
    with pytest.raises(InvalidError, match="no.such.property") as caught:
        feed(servers, new_topic(), output_options={"no.such.property": "1"})
    assert "--output-option" in str(caught.value.hint)
    monkeypatch.setattr(kafka, "_ANSWER_S", 1.0)
    with pytest.raises(UnavailableError, match="writing to kafka://127.0.0.1:1/x failed"):
        wlr.feed("shop", farm=FARM, to="kafka://127.0.0.1:1/x")


def test_a_feed_with_transactions_writes_all(servers: str, new_topic: NewTopic, database: FarmDatabase):
    feed(servers, topic := new_topic(), transactional=True, max_bytes=5_000)
    assert as_records(once(messages(servers, topic))) == expected(database)
    assert feed(servers, topic, transactional=True).records == 0


def test_a_topic_that_cannot_be_reached_leaves_nothing_behind(database: FarmDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kafka, "_ANSWER_S", 1.0)
    with pytest.raises(UnavailableError, match="writing to kafka://127.0.0.1:1/lost failed"):
        wlr.feed("shop", farm=FARM, to="kafka://127.0.0.1:1/lost")
    assert not {replica.id for replica in replicas(database)} & {"feed-lost"}
    assert not database.store.exists("feeds/lost.json")


def test_status_pause_and_forget_of_a_feed_to_kafka(servers: str, new_topic: NewTopic, database: FarmDatabase):
    feed(servers, topic := new_topic())
    place = f"{FARM}/shop/feeds/{topic}"
    status = wlr.feed_status(place)
    assert status is not None
    assert (status.name, status.lag_transactions) == (topic, 0)
    wlr.pause(place)
    assert feed(servers, topic).is_paused
    wlr.resume(place)
    assert not feed(servers, topic).is_paused
    with pytest.raises(InvalidError, match="does not identify the feed"):
        wlr.feed_status(f"kafka://{servers}/{topic}")
    wlc.forget("shop", f"feed-{topic}", farm=FARM)
    assert not database.store.exists(f"feeds/{topic}.json")
