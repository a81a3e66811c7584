"""Feeds to Kafka that are killed with signal 9: `python -m tests.killed_feeds FARM SERVERS HOW PLACE…`.

`HOW` may hold `transactional`, and `one by one` if each record leaves alone, so that partitions end at different ones.

A place is a topic, and where its feed is killed: `TOPIC=7` when seven records were acknowledged, `TOPIC=sent` when all
were, in a transaction all but the last one, `TOPIC=commit` before the transaction is committed, `TOPIC=keep` before the
position is kept.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import wlr
from wlr.reading.feeds import kafka

_ONE_BY_ONE = {"batch.num.messages": 1, "max.in.flight.requests.per.connection": 1, "linger.ms": 0}
_METHODS = {"sent": ("_wait_for_all", 1), "commit": ("_wait_for_all", 2), "keep": ("flush", 1)}


def _kill_at(where: str) -> None:
    """Let this process be killed after so many calls of a method of the topic."""
    name, calls = ("_delivered", int(where)) if where.isdecimal() else _METHODS[where]
    method, called = getattr(kafka.OpenTopic, name), 0

    def last(self: kafka.OpenTopic, *arguments: Any) -> Any:
        nonlocal called
        answer = method(self, *arguments)
        called += 1
        if called == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(kafka.OpenTopic, name, last)


def main(farm: str, servers: str, how: str, *places: str) -> None:
    """Feed each topic in a process that is killed."""
    for topic, where in (place.split("=") for place in places):
        if (child := os.fork()) == 0:
            _kill_at(where)
            options = _ONE_BY_ONE if "one by one" in how else {}
            to, is_transactional = f"kafka://{servers}/{topic}", "transactional" in how
            wlr.feed("shop", farm=farm, to=to, transactional=is_transactional, output_options=options)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"the feed to {topic} was not killed at {where}"


if __name__ == "__main__":
    main(*sys.argv[1:])
