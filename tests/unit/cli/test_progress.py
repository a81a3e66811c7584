"""What is seen of work that takes long, and of work that does not."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from cli import progress


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
    assert capsys.readouterr().err == "counting …\ncounting: 1 of 2\nsorting: 2 of 2\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_places_are_shown_without_passwords(impatient, monkeypatch, stream) -> None:
    monkeypatch.setattr(sys, "stderr", shown := stream())
    with progress.working("feeding {}", "kafka://ann:s3cret@host/topic"):
        assert impatient.wait(120)
    assert "kafka://ann@host/topic" in shown.getvalue()
    assert "cret" not in shown.getvalue()


def test_lines_come_now_and_then_only(capsys) -> None:
    clock = iter([0.0, 5.0, 5.1, 14.9, 15.0, 15.0])
    lines = progress._Lines("counting", now=lambda: next(clock))
    lines.start()
    lines.advance(1, 3)
    lines.advance(2, 3)
    lines.advance(3, 3)
    assert capsys.readouterr().err == "counting …\ncounting: 3 of 3\n"


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
