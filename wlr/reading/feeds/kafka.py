"""A topic of Kafka as the output of a feed: the only module that uses the client.

An idempotent producer without gaps writes records of a key into one partition, so they keep their order. So a partition
holds all of its records up to its last one, and the topic holds all records up to the lowest of these last ones. A feed
continues from there, or from its position in the farm if that is later; a consumer drops duplicates by the headers
`history`, `tick` and `n`. A partition that ends before the last acknowledged record has lost records: its topic was
recreated, or the broker came back without them.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from wlc.farm.addresses import without_password
from wlc.farm.errors import CorruptError, FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.paths import feed_id
from wlr.reading.feeds.contract import OpenOutput, Output
from wlr.reading.feeds.feed_state import in_farm
from wlr.reading.feeds.rendering import NOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.versioned import VersionedObject
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.formats import Format
    from wlr.reading.feeds.rendering import FeedPiece


# Errors are raised; the client's own log is off by default.
_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())
SCHEME = "kafka://"
_URL = re.compile(r"kafka://(?P<brokers>[^/@]+)/(?P<topic>[A-Za-z0-9._-]{1,249})")
_ANSWER_S = 10.0
# A broker without acknowledgements for this long is unreachable.
_SILENCE_S = 60.0
_POLLED_EVERY = 1000
_TURN_S = 0.1
_KILOBYTES_MOST = 2**31 - 1
# Records searched at the end of a partition before searching all of it; markers of transactions count, too.
_BACK_FIRST, _BACK_MOST = 1, 4096
_Headers = list[tuple[str, str | bytes | None]]
_Sent = tuple[bytes | None, bytes | None, _Headers, int]
FEED, HISTORY, TICK, NUMBER, END = "feed", "history", "tick", "n", "end"


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record of a feed in a partition: its history, tick and number, and whether it ends a transaction."""

    history: str
    tick: int
    n: int
    is_end: bool


class KafkaOutput(Output):
    """A topic.

    Args:
        url: `kafka://host:port,host:port/topic`.
        options: Properties of librdkafka, which override ours.
        is_transactional: Whether records written together become visible together.
    """

    formats: ClassVar[tuple[str, ...]] = ("json", "debezium")

    def __init__(self, url: str, options: Mapping[str, object], *, is_transactional: bool = False) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            hint = "kafka://host:9092/topic; user and password are --output-option sasl.username=… and sasl.password=…"
            raise InvalidError(f"{without_password(url)} names no topic of Kafka", hint=hint)
        self.shown = without_password(url)
        self.label = self.topic = found["topic"]
        self.options = {"bootstrap.servers": found["brokers"], **options}
        self.is_transactional = is_transactional

    def memory(self, database: FarmDatabase, name: str) -> VersionedObject[FeedState]:
        return in_farm(database, name)

    def check_new(self) -> None:
        """Check the topic first, so that no state is stored for an unusable one."""
        with _translated(self.shown):
            _asked(Producer(dict(self.options), logger=_LOG), self)

    def check_place(self, state: FeedState) -> None:
        if not state.to.startswith(SCHEME) or state.to.rpartition("/")[2] != self.topic:
            message = f"feed {state.name} writes to {state.to}"
            raise InvalidError(message, hint="Give this one another name: --name NAME")

    def open(self, state: FeedState, form: Format, bytes_max: int) -> OpenTopic:
        return OpenTopic(self, state, form, bytes_max)


class OpenTopic(OpenOutput):
    """A topic with a producer."""

    def __init__(self, output: KafkaOutput, state: FeedState, form: Format, bytes_max: int) -> None:
        self._output = output
        self._feed = state.name.encode()
        self._has_tombstones = form.name == "debezium"
        self._failure: KafkaError | None = None
        self._ends: dict[int, int] = {}
        self._lost: FarmError | None = None
        forget = shlex.join(["wlc", "farm", "forget", state.master, feed_id(state.name)])
        self._hint = (
            f"To write everything again: {forget}, then run it again; --from snapshot begins with the newest snapshot."
        )
        self._acknowledged = False
        self._waiting_since: float | None = None
        self._produced = 0
        # The last record of a transaction so far.
        self._held: _Sent | None = None
        with _translated(self._output.shown, self._feed.decode()):
            self._producer = Producer(self._producer_options(state.name, bytes_max), logger=_LOG)
            self._partitions, self._cluster = _asked(self._producer, output)
            if state.place not in ("", self._cluster):
                message = f"feed {state.name} writes to another cluster than that of {output.shown}"
                raise InvalidError(message, hint="Give this one another name: --name NAME")
            if output.is_transactional:
                self._producer.init_transactions(_ANSWER_S)

    def _producer_options(self, name: str, bytes_max: int) -> dict[str, object]:
        kilobytes = -(-bytes_max // 1024) if bytes_max else _KILOBYTES_MOST
        options: dict[str, object] = {
            "enable.idempotence": True,
            # Without this, records after a failed one could arrive.
            "enable.gapless.guarantee": True,
            "linger.ms": 20,
            "compression.type": "zstd",
            # Java's partitioner, so that other programs put a key into the same partition.
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": min(kilobytes, _KILOBYTES_MOST),
            "queue.buffering.max.messages": 10_000_000,
            "on_delivery": self._delivered,
        }
        if self._output.is_transactional:
            options["transactional.id"] = f"dbfarm-{name}"
        else:
            # An expired record would leave a gap. `_wait` gives up instead, with all records after it.
            options["message.timeout.ms"] = 0
        return {**options, **self._output.options}

    # Position

    def resume_at(self, state: FeedState) -> FeedState:
        state = replace(state, place=self._cluster)
        with _translated(self._output.shown, self._feed.decode()):
            last = self._last_records(state.ends)
        self._ends = dict(state.ends)
        mine = [found for found in last if found is not None]
        if not mine or any(found.history != state.history for found in mine):
            return state
        tick, n, is_end = max((found.tick, found.n, found.is_end) for found in mine)
        if is_end:
            # All other records of its transaction arrived before it was sent.
            place = tick, n
        elif len(mine) == len(last):
            place = min((found.tick, found.n) for found in mine)
        else:
            # A partition without a record does not show which records are missing.
            return state
        behind = state.position is None or place > (state.position.tick, 2**63)
        return replace(state, written=max(place, state.written or place)) if behind else state

    def _last_records(self, written: Mapping[int, int]) -> list[LastRecord | None]:
        """Return the last record of this feed at the end of each partition; None for a foreign record, or without one.

        Args:
            written: End offsets of the written partitions.

        Raises:
            CorruptError: A partition ends before its offset.
        """
        options = {
            **self._output.options,
            "group.id": "dbfarm",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed" if self._output.is_transactional else "read_uncommitted",
        }
        with closing(Consumer(options, logger=_LOG)) as consumer:
            ends = {partition: self._watermarks(consumer, partition) for partition in self._partitions}
            reached = {partition: high for partition, (_, high) in ends.items()}
            found: dict[int, Any] = {}
            back = _BACK_FIRST
            # After the last record, there may be markers of transactions and aborted records.
            while missing := [n for n, (low, high) in ends.items() if high > low and n not in found]:
                starts = {n: max(ends[n][0], ends[n][1] - back if back <= _BACK_MOST else 0) for n in missing}
                read = self._read_on(consumer, starts, reached)
                found |= {n: read.get(n) for n in missing if n in read or starts[n] == ends[n][0]}
                back *= 8
        self._refuse_lost(written, reached)
        return [self._as_last(found.get(partition)) for partition in self._partitions]

    def _missing(self, partition: int, found: int, end: int) -> CorruptError:
        shown, feed = self._output.shown, self._feed.decode()
        message = (
            f"partition {partition} of {shown} continues at offset {found}, and feed {feed} has written it up to offset"
            f" {end}: the topic was recreated, or has lost acknowledged records"
        )
        return CorruptError(message, hint=self._hint, path=shown)

    def _watermarks(self, consumer: Consumer, partition: int) -> tuple[int, int]:
        low, high = consumer.get_watermark_offsets(TopicPartition(self._output.topic, partition), timeout=_ANSWER_S)
        return int(low), int(high)

    def _refuse_lost(self, written: Mapping[int, int], reached: Mapping[int, int]) -> None:
        """Refuse partitions that end before the last acknowledged record.

        Args:
            written: End offsets of the written records.
            reached: End offsets of the read records.
        """
        short = {partition: end for partition, end in written.items() if reached.get(partition, 0) < end}
        if not short:
            return
        # An open transaction of another producer hides later records from a reader of committed ones.
        options = {**self._output.options, "group.id": "dbfarm", "isolation.level": "read_uncommitted"}
        with closing(Consumer(options, logger=_LOG)) as consumer:
            for partition, end in sorted(short.items()):
                found = max(self._watermarks(consumer, partition)[1], reached.get(partition, 0))
                if found < end:
                    raise self._missing(partition, found, end)

    def _read_on(self, consumer: Consumer, starts: Mapping[int, int], reached: dict[int, int]) -> dict[int, Any]:
        """Return the last message of partitions from an offset on; a partition without one is missing.

        Args:
            consumer: The consumer.
            starts: The offset of each partition.
            reached: Receives the end offset of each: not every broker's watermarks are right.
        """
        consumer.assign([TopicPartition(self._output.topic, n, start) for n, start in starts.items()])
        last: dict[int, Any] = {}
        reading = set(starts)
        while reading:
            message = consumer.poll(_ANSWER_S)
            if message is None:
                silent = ", ".join(f"partition {n} from offset {starts[n]}" for n in sorted(reading))
                raise UnavailableError(f"{self._output.shown} has sent nothing of {silent} on", hint="Try again.")
            error, partition = message.error(), int(message.partition() or 0)
            if error is None:
                last[partition] = message
            elif error.code() == KafkaError._PARTITION_EOF:
                reading.discard(partition)
                reached[partition] = max(reached.get(partition, 0), int(message.offset() or 0))
            else:
                raise KafkaException(error)
        return last

    def _as_last(self, message: Any) -> LastRecord | None:
        headers = dict(message.headers() or ()) if message is not None else {}
        if headers.get(FEED) != self._feed:
            return None
        tick, n = int(headers[TICK]), int(headers[NUMBER])
        value = message.value()
        if self._has_tombstones and value is not None and json.loads(value).get("op") == "d":
            # The tombstone of the last record is missing.
            n -= 1
        return LastRecord(headers[HISTORY].decode(), tick, n, END in headers)

    # Writing

    def write(self, piece: FeedPiece) -> None:
        with _translated(self._output.shown, self._feed.decode()):
            records = piece.records
            texts = (records[name].cast("binary").to_pylist() for name in ("line", "key"))
            others = (records[name].to_pylist() for name in ("tick", "n", "op", "lane"))
            known: _Headers = [(FEED, self._feed), (HISTORY, piece.history.encode())]
            for line, key, tick, n, operation, lane in zip(*texts, *others, strict=True):
                headers: _Headers = [*known, (TICK, b"%d" % tick), (NUMBER, b"%d" % n)]
                value = line[:-1]
                if operation == NOTE:
                    # A reader of one partition must also see it between the rows before and after it.
                    for partition in self._partitions:
                        self._send(None, value, headers, partition)
                elif key is None:
                    self._send(None, value, headers, self._partitions[lane % len(self._partitions)])
                else:
                    self._send(key, value, headers)
                    if self._has_tombstones and operation == "-":
                        self._send(key, None, headers)

    def _send(self, key: bytes | None, value: bytes | None, headers: _Headers, partition: int = -1) -> None:
        """Send a record; in a transaction, send the previous one, as `flush` marks the last one."""
        if not self._output.is_transactional:
            self._produce(key, value, headers, partition)
            return
        if self._held is None:
            self._producer.begin_transaction()
        else:
            self._produce(*self._held)
        self._held = key, value, headers, partition

    def _produce(self, key: bytes | None, value: bytes | None, headers: _Headers, partition: int = -1) -> None:
        while True:
            try:
                self._producer.produce(self._output.topic, value=value, key=key, partition=partition, headers=headers)
                break
            except BufferError:
                # The queue is full.
                self._wait(lambda: self._producer.poll(_TURN_S))
        self._produced += 1
        if self._produced % _POLLED_EVERY == 0:
            self._producer.poll(0)
            self._check()

    def flush(self, state: FeedState) -> FeedState:
        with _translated(self._output.shown, self._feed.decode()):
            self._wait_for_all()
            if self._held is not None:
                self._end_transaction(*self._held)
            self._waiting_since = None
        return replace(state, ends=dict(self._ends))

    def _end_transaction(self, key: bytes | None, value: bytes | None, headers: _Headers, partition: int) -> None:
        """Commit the sent records; the mark of the last one proves that all others exist.

        Not every broker hides the unfinished transaction of a killed run.
        """
        self._produce(key, value, [*headers, (END, b"1")], partition)
        self._wait_for_all()
        self._producer.commit_transaction(_ANSWER_S)
        self._held = None

    def _wait_for_all(self) -> None:
        while len(self._producer):
            self._wait(lambda: self._producer.flush(_TURN_S))
        self._check()

    def close(self) -> None:
        # Unflushed records were never promised, so they are dropped without waiting.
        self._producer.purge(in_queue=True, in_flight=False)
        self._producer.flush(_ANSWER_S)

    def _wait(self, turn: Callable[[], object]) -> None:
        """Wait for acknowledgements for one turn.

        Raises:
            UnavailableError: No acknowledgement has come for too long.
        """
        since, self._acknowledged = self._waiting_since, False
        turn()
        self._check()
        now = time.monotonic()
        self._waiting_since = now if self._acknowledged or since is None else since
        if now - self._waiting_since > _SILENCE_S:
            message = f"{self._output.shown} has acknowledged no record for {_SILENCE_S:.0f} s"
            raise UnavailableError(message, hint="Nothing was lost: run it again.", path=self._output.shown)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._acknowledged = True
        if error is not None:
            self._failure = self._failure or error
            return
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or offset < 0:
            return  # The broker already had the record.
        if offset < (end := self._ends.get(partition, 0)):
            self._lost = self._lost or self._missing(partition, offset, end)
        self._ends[partition] = max(offset + 1, end)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._failure is not None:
            raise KafkaException(self._failure)

    # Errors


def _asked(producer: Producer, output: KafkaOutput) -> tuple[list[int], str]:
    """Return the partitions of a topic and the id of its cluster.

    Raises:
        InvalidError: There is no such topic.
    """
    found = producer.list_topics(output.topic, timeout=_ANSWER_S)
    topic = found.topics[output.topic]
    if topic.error is not None or not topic.partitions:
        reason = f": {topic.error.str()}" if topic.error is not None else ""
        hint = f"kafka-topics.sh --create --topic {output.topic} --bootstrap-server HOST:PORT"
        raise InvalidError(f"there is no topic {output.topic} in {output.shown}{reason}", hint=hint)
    return sorted(topic.partitions), str(found.cluster_id or "")


# Errors --------------------------------------------------------------------------------------------------------------


@contextmanager
def _translated(shown: str, feed: str = "") -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _translation(error, shown, feed) from error


def _translation(error: KafkaException, shown: str, feed: str) -> InvalidError | UnavailableError | FencedError:
    cause = error.args[0]
    reason = cause.str() if isinstance(cause, KafkaError) else str(cause)
    code = cause.code() if isinstance(cause, KafkaError) else None
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        message = f"a record of feed {feed} is larger than {shown} takes: {reason}"
        hint = "Allow larger ones in the topic (max.message.bytes), and with --output-option message.max.bytes=N"
        return InvalidError(message, hint=hint, path=shown)
    if code in (KafkaError._INVALID_ARG, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
        return InvalidError(f"{shown}: {reason}", hint="Check --to and each --output-option.", path=shown)
    if code in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        return FencedError(f"another run has taken over feed {feed}", hint="Leave one of them running.", path=shown)
    hint = "Nothing was lost: run it again."
    return UnavailableError(f"writing to {shown} failed: {reason}", hint=hint, path=shown)
