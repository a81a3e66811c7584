"""A cluster of Kafka inside this process, librdkafka's mock, and a program that reads a topic from outside.

Run as `python -m tests.mock_kafka SERVERS TOPIC` it prints every message of a topic as a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSWER_S = 10.0


@contextmanager
def mock_cluster() -> Iterator[str]:
    """Run a cluster with three brokers and give their addresses; a new topic has four partitions."""
    producer = Producer({"test.mock.num.brokers": 3, "log_level": 2})
    brokers = producer.list_topics(timeout=_ANSWER_S).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    producer.flush(0)


def messages(servers: str, topic: str) -> list[dict[str, Any]]:
    """Return what another process reads in a topic: partition, key, value and headers of every message, in order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mock_kafka", servers, topic], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _print_all(servers: str, topic: str) -> None:
    options = {
        "bootstrap.servers": servers,
        "group.id": "reader",
        "enable.partition.eof": True,
        "log_level": 2,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer({**options, "enable.auto.commit": False})
    reading = set(consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in reading])
    while reading:
        message = consumer.poll(6 * _ANSWER_S)
        assert message is not None, f"partitions {reading} do not answer"
        partition = message.partition()
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            reading.discard(partition)
            continue
        key, value = message.key(), message.value()
        said = {
            "partition": partition,
            "key": None if key is None else json.loads(key),
            "value": None if value is None else json.loads(value),
            "headers": {name: held.decode() for name, held in dict(message.headers() or ()).items()},
        }
        print(json.dumps(said))
    consumer.close()


if __name__ == "__main__":
    _print_all(sys.argv[1], sys.argv[2])
