"""What a person sees of what a command found."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from cli.output import Fields, Report, Sentence, counted, for_person, in_columns, show
from wlc.farm.clock import utc_now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Found:
    tick: int
    lag_s: float | None
    log_bytes: int
    clock: datetime
    is_paused: bool
    is_unlocked: bool
    failure: str | None
    tables: tuple[str, ...] = ()


def test_a_terminal_shows_what_is_wrong_first_and_units_and_a_pipe_every_field() -> None:
    clock = utc_now() - timedelta(hours=3, minutes=2, seconds=30)
    report = for_person(
        Found(12345, 93.04, 2_500_000, clock, True, False, "no space"),
        ("failure", "is_unlocked", "is_paused"),
        ("gone",),
    )
    terminal, pipe, machine = Terminal(), io.StringIO(), io.StringIO()
    show(report, as_json=False, stream=terminal)
    words = [
        re.findall(r"[^\s│┃\x1b]+(?: [^\s│┃]+)*", re.sub(r"\x1b\[\d*m", "", line))
        for line in terminal.getvalue().splitlines()[1:-1]
    ]
    assert words == [
        ["failure", "no space"],
        ["paused", "yes"],
        ["gone", "unknown"],
        ["tick", "12,345"],
        ["lag", "1m 33s"],
        ["log bytes", "2.5 MB"],
        ["clock", f"{clock.astimezone():%Y-%m-%d %H:%M:%S} (3h 2m ago)"],
    ]
    show(report, as_json=False, stream=pipe)
    assert [line.split()[0] for line in pipe.getvalue().splitlines()] == list(Found.__annotations__)
    assert "lag_s        93.04\n" in pipe.getvalue()
    show(report, as_json=True, stream=machine)
    assert json.loads(machine.getvalue())["log_bytes"] == 2_500_000


def seen(report: Report) -> list[str]:
    """The lines of a terminal, without its frames and colours."""
    terminal = Terminal()
    show(report, as_json=False, stream=terminal)
    plain = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())
    return [" ".join(line.replace("│", " ").split()) for line in plain.splitlines() if "─" not in line]


def test_facts_about_one_thing_have_units_whoever_reports_them() -> None:
    found = Fields({"tick": 7, "lag_s": 61.0, "is_dry_run": False, "snapshot": None, "problems": (), "bytes": 1200})
    assert seen(found) == ["tick 7", "lag 1m 1s", "problems -", "bytes 1.2 kB"]


def test_a_list_of_things_has_units_and_things_that_are_too_wide_get_lines_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        ("a1", "/somewhere/far/away/in/a/deep/folder/copy.duckdb", 61.0, utc_now() - timedelta(minutes=5), 0, None),
        ("b2", "/other.duckdb", None, utc_now() - timedelta(hours=2), 2_000_000, None),
    ]
    columns = ("id", "target", "lag_s", "seen", "held_bytes", "marks")
    listed = in_columns(columns, rows, elastic=("target",), whole=[{"id": "a1"}])
    monkeypatch.setenv("COLUMNS", "60")
    assert seen(listed) == [
        "id target lag seen held bytes",
        "a1 …in/a/deep/folder/copy.duckdb 1m 1s 5m ago 0 bytes",
        "b2 /other.duckdb 2h ago 2.0 MB",
    ]
    monkeypatch.setenv("COLUMNS", "34")
    assert seen(listed)[-4:] == ["id b2", "target /other.duckdb", "seen 2h ago", "held bytes 2.0 MB"]
    pipe, machine = io.StringIO(), io.StringIO()
    show(listed, as_json=False, stream=pipe)
    assert pipe.getvalue().split()[:6] == list(columns)
    show(listed, as_json=True, stream=machine)
    assert json.loads(machine.getvalue()) == [{"id": "a1"}]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_sentence_is_said_everywhere_and_json_has_its_values(stream: type[io.StringIO]) -> None:
    out, machine = stream(), stream()
    show(Sentence("Each commit is published at once.", {"beat_s": 0.0}), as_json=False, stream=out)
    assert out.getvalue() == "Each commit is published at once.\n"
    show(Sentence("…", {"beat_s": 0.0}), as_json=True, stream=machine)
    assert json.loads(machine.getvalue()) == {"beat_s": 0.0}


def test_numbers_have_their_noun() -> None:
    assert [counted(0, "row"), counted(1, "batch"), counted(2000, "batch")] == ["0 rows", "1 batch", "2,000 batches"]
