"""Waiting for the next batch: a new log file ends the wait, whatever its longest time."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import wlc
from wlc.farm.rounds import News

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S = 3600.0


@pytest.fixture
def database(tmp_path: Path) -> str:
    wlc.master(tmp_path / "s.duckdb", create=True, farm=str(tmp_path / "farm"))
    return str(tmp_path / "farm" / "s")


def test_a_new_log_file_ends_the_wait(database: str, tmp_path: Path) -> None:
    logs = tmp_path / "farm" / "s" / "wlc_logs"
    with closing(News(lambda: database)) as news:
        news.wait(0.01)
        (logs / "before the wait").touch()
        news.wait(HOUR_S)
        threading.Timer(0.2, (logs / "in the wait").touch).start()
        news.wait(HOUR_S)


@pytest.mark.parametrize("url", ["", "s3://bucket/farm/s", "nowhere"])
def test_what_cannot_be_watched_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with closing(News(lambda: url)) as news:
        news.wait(7)
    assert waits == [7]


def test_another_place_is_watched_once_the_wait_is_over(database: str, tmp_path: Path) -> None:
    places = iter(["nowhere", database, database])
    with closing(News(lambda: next(places))) as news:
        news.wait(0.01)
        # A file may have appeared before the watch began.
        news.wait(HOUR_S)
        threading.Timer(0.2, (tmp_path / "farm" / "s" / "wlc_logs" / "new").touch).start()
        news.wait(HOUR_S)


def test_a_signal_ends_the_wait(database: str) -> None:
    # A job in the background begins with SIGINT ignored, which a handler ends.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with closing(News(lambda: database)) as news:
            news.wait(0.01)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                news.wait(HOUR_S)
    finally:
        signal.signal(signal.SIGINT, before)
