"""Metrics of the service for Prometheus, as text: the one place that knows its client library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError
from wlc.farm.version import __version__
from wlc.tiers.standing import STATES
from wlr.service.job_states import FAILURE_CLASSES

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, StateSetMetricFamily
    from prometheus_client.exposition import choose_encoder, generate_latest
except ImportError as error:  # pragma: no cover - tests have it
    raise InvalidError("metrics need a package that is not installed", hint="pip install 'dbfarm[metrics]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from prometheus_client.core import Metric

    from wlr.service.job_states import Board, WorkStanding

_LABELS = ("item", "work")
# Jobs whose counters exist from the start, at 0.
_FLOWING = ("follow", "publish", "take")
# Gauges and their sources; a gauge without a value is left out.
_GAUGES: tuple[tuple[str, str, Callable[[WorkStanding], float | None]], ...] = (
    ("lag_seconds", "Seconds between the last transaction held here and the farm's.", lambda s: s.observed.lag_s),
    ("lag_transactions", "Ticks between the two.", lambda s: s.observed.lag_transactions),
    ("tick", "Last transaction held or published.", lambda s: _first(s.tick, s.observed.tick)),
    (
        "last_success_timestamp_seconds",
        "When the job last succeeded; of a verify or drill, when it last ran.",
        lambda s: _timestamp(s.last_success),
    ),
    ("failing", "1 if the last round failed.", lambda s: float(s.failing_since is not None)),
    (
        "unpublished_transactions",
        "Pending transactions: committed, but not published.",
        lambda s: s.observed.unpublished,
    ),
    ("retained_bytes", "Log that a PostgreSQL server keeps for the slot.", lambda s: s.observed.retained_bytes),
    ("free_bytes", "Free space where the replica or farm is.", lambda s: s.observed.free_bytes),
    (
        "last_commit_timestamp_seconds",
        "When the last published transaction of a database was committed.",
        lambda s: _timestamp(s.observed.entry.clock if s.observed.entry else None),
    ),
    (
        "publisher_seen_timestamp_seconds",
        "When the publisher of a database last reported.",
        lambda s: _timestamp(s.observed.entry.seen if s.observed.entry else None),
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[WorkStanding], float]], ...] = (
    ("transactions", "Transactions applied or published.", lambda s: s.transactions),
    ("rows", "Row images or records applied, published or written.", lambda s: s.rows),
    ("bytes", "Bytes of the files applied, copied, written or verified.", lambda s: s.bytes),
    ("rejected_rows", "Rows that a site rejected, or that others rejected of it.", lambda s: s.rejected),
)
# Only these count rejected rows.
_JUDGING = ("take",)


def _timestamp(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


class _Standings:
    """Renders the board on each request."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        standings = self._board.all()
        yield InfoMetricFamily("dbfarm", "Version of the service.", {"version": __version__})
        yield from _gauges(standings)
        yield from _counters(standings)
        failures = CounterMetricFamily("dbfarm_failures", "Rounds that failed.", labels=(*_LABELS, "class"))
        for standing in standings:
            for name in FAILURE_CLASSES:
                if count := standing.failures.get(name):
                    failures.add_metric((standing.item, standing.work, name), count)
        yield failures
        states = StateSetMetricFamily("dbfarm_state", "State of a database, as in wlc list.", labels=("item",))
        for standing in standings:
            if (entry := standing.observed.entry) is not None:
                states.add_metric((standing.item,), {state: state == entry.state for state in STATES})
        yield states


def _gauges(standings: Sequence[WorkStanding]) -> Iterator[Metric]:
    for name, text, value_of in _GAUGES:
        gauge = GaugeMetricFamily(f"dbfarm_{name}", text, labels=_LABELS)
        for standing in standings:
            if (value := value_of(standing)) is not None:
                gauge.add_metric((standing.item, standing.work), value)
        yield gauge


def _counters(standings: Sequence[WorkStanding]) -> Iterator[Metric]:
    for name, text, count_of in _COUNTERS:
        counter = CounterMetricFamily(f"dbfarm_{name}", text, labels=_LABELS)
        for standing in standings:
            if standing.work in (_JUDGING if name == "rejected_rows" else _FLOWING) or count_of(standing):
                counter.add_metric((standing.item, standing.work), count_of(standing))
        yield counter


class Exposition:
    """The metrics of a board, in Prometheus' formats."""

    def __init__(self, board: Board) -> None:
        self._standings = _Standings(board)

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its type: OpenMetrics if the client accepts it."""
        encode, kind = choose_encoder(accept)
        return encode(self._standings), kind

    def write(self, file: Path) -> None:
        """Write the text for a textfile collector, atomically.

        Raises:
            OSError: It cannot be written.
        """
        half = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            half.write_bytes(generate_latest(self._standings))
            half.replace(file)
        finally:
            half.unlink(missing_ok=True)
