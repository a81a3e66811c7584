"""What is seen of work that takes long, and of work that does not."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from cli import progress
from wlc.farm.human_form import Doing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def impatient(monkeypatch):
    """Make every wait end at once, and say when the display has come up."""
    up = threading.Event()
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    for display in (progress._Bar, progress._Lines):
        start = display.start
        monkeypatch.setattr(display, "start", lambda self, start=start: (start(self), up.set()))
    return up


def test_short_work_shows_nothing(capsys) -> None:
    with progress.working("counting") as advance:
        advance(1, 2)
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_lines_where_there_is_no_terminal(impatient, capsys) -> None:
    with progress.working("counting") as advance:
        assert impatient.wait(120)
        advance(1, 2)
        advance(2, 2, "sorting")
    assert capsys.readouterr().err == "counting …\ncounting: 50 %\ncounting: sorting: 100 %\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("kafka://ann:s3cret@host/topic", "feeding topic"),
        ("/srv/copies/sales.duckdb", "feeding sales.duckdb"),
        ("s3://bucket/lakes/", "feeding lakes"),
        ("postgresql://ann:s3cret@host/shop", "feeding shop"),
    ],
)
def test_of_a_place_the_name_is_shown(impatient, monkeypatch, stream, place, expected) -> None:
    monkeypatch.setattr(sys, "stderr", shown := stream())
    with progress.working("feeding {}", place):
        assert impatient.wait(120)
    assert f"{expected} " in shown.getvalue()
    assert "cret" not in shown.getvalue()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_now_and_then_only(capsys) -> None:
    clock = Clock()
    lines = progress._Lines("counting", now=clock)
    lines.start()
    for clock.now, done in ((5.0, 1), (9.9, 2), (15.0, 3), (16.0, 4)):
        lines.advance(done, 4)
    assert capsys.readouterr().err == "counting …\ncounting: 75 %, 5s left\n"


def test_a_course_says_how_fast_and_how_long() -> None:
    clock = Clock()
    course = progress._Course(clock)
    assert str(course) == ""
    course.note(0, 200, Doing("loading main.t", rows=0))
    assert str(course) == "0 %"
    clock.now = 10.0
    course.note(50, 200, Doing("loading main.t", rows=5_000_000, bytes=80_000_000))
    assert str(course) == "25 %, 500,000 rows/s, 8.0 MB/s, 30s left"
    # Another part of the work begins.
    course.note(0, 10, "at tick 7")
    assert str(course) == "0 %"
    clock.now = 20.0
    course.note(10, 10, "at tick 17")
    assert str(course) == "100 %"


def test_quiet_shows_nothing(impatient, capsys) -> None:
    with progress.without_progress(wanted=True), progress.working("counting") as advance:
        advance(1, 2)
    assert capsys.readouterr().err == ""
    with progress.without_progress(wanted=False), progress.working("counting") as advance:
        assert impatient.wait(120)
    assert capsys.readouterr().err == "counting …\n"


def test_long_work_shows_a_bar_on_a_terminal(impatient, monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.working("counting") as advance:
        advance(1, 2)
        assert impatient.wait(120)
        advance(2, 2)
    assert "counting" in terminal.getvalue()


def test_bar_does_not_come_up_once_the_work_is_over() -> None:
    bar = progress._Bar("counting")
    bar.stop()
    bar.start()
    assert bar._progress is None
