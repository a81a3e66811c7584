"""Where a stream begins and what its micro-batches hold, as Spark asks for them, without a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.handmade import HandmadeFarm, Rows, time_of
from wlc.farm.clock import format_time
from wlc.farm.errors import InvalidError
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from pathlib import Path

    from wlr.spark.read.source import FarmStreamReader


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    made = HandmadeFarm(tmp_path)
    made.publish(["CREATE TABLE t (i INTEGER)"], *[[Rows("t", added=(str(tick),))] for tick in (2, 3, 4)])
    return made


class Query:
    """A query that keeps its offset, as a checkpoint does; each `start` is one with options of its own."""

    def __init__(self, farm: HandmadeFarm) -> None:
        self.farm = farm
        self.offset: dict[str, Any] = {}
        self.reader: FarmStreamReader | None = None

    def start(self, **options: str) -> list[tuple[Any, ...]]:
        source = FarmDataSource({"database": self.farm.url, "table": "t", "changes": "true", **options})
        self.reader = source.streamReader(source.schema())
        self.offset = self.offset or self.reader.initialOffset()
        return self.go_on()

    def go_on(self) -> list[tuple[Any, ...]]:
        """Give the rows of one micro-batch, with what the log calls `i` first."""
        assert self.reader is not None
        start = self.offset
        self.offset = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        tasks = self.reader.partitions(start, self.offset)
        return sorted(
            tuple(row.values())[:-2] for task in tasks for b in self.reader.read(task) for row in b.to_pylist()
        )


def test_a_time_counts_when_a_stream_begins_and_never_again(farm: HandmadeFarm) -> None:
    query = Query(farm)
    assert query.start(from_time=format_time(time_of(3))) == [(3, 3, 1, "insert"), (4, 4, 1, "insert")]
    farm.publish([Rows("t", added=("5",))], [Rows("t", added=("6",))])
    # "2 hours ago" is another time by now.
    assert query.start(from_time=format_time(time_of(6))) == [(5, 5, 1, "insert"), (6, 6, 1, "insert")]
    assert query.start(from_tick="2") == []


def test_a_stream_waits_for_the_tick_at_which_it_begins(farm: HandmadeFarm) -> None:
    query = Query(farm)
    assert query.start(from_tick="7") == []
    farm.publish([Rows("t", added=("5",))])
    assert query.go_on() == []
    farm.publish([Rows("t", added=("6",))], [Rows("t", added=("7",))])
    assert query.go_on() == [(7, 7, 1, "insert")]
    farm.publish([Rows("t", added=("8",))])
    assert query.go_on() == [(8, 8, 1, "insert")]


def test_a_column_that_is_added_does_not_stop_a_stream(farm: HandmadeFarm) -> None:
    query = Query(farm)
    assert len(query.start()) == 3
    farm.publish(["ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 7"], [Rows("t", removed=("2, 7",), added=("2, 8",))])
    assert query.go_on() == [(2, 6, -1, "delete"), (2, 6, 1, "insert")]
    farm.publish(["ALTER TABLE t ADD COLUMN x INTEGER"], [Rows("t", added=("9, 9, 9",))])
    # Started again on its checkpoint, it has the new columns.
    assert query.start() == [(9, 9, 9, 8, 1, "insert")]


def test_a_stream_has_no_end(farm: HandmadeFarm) -> None:
    for option, value in (("to_tick", "3"), ("to_time", "now")):
        with pytest.raises(InvalidError, match=f"a stream has no option '{option}'"):
            Query(farm).start(**{option: value})
