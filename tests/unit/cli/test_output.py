"""What a report looks like in a pipe and as JSON."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from rich.cells import cell_len

from cli.command import explain
from cli.output import (
    Fields,
    Lines,
    Listing,
    Numbers,
    Report,
    Sentence,
    Value,
    counted,
    for_person,
    in_columns,
    plain,
    record,
    show,
    text,
    unique_names,
)
from wlc.farm.clock import format_local, utc_now
from wlc.farm.errors import FarmError
from wlc.farm.model import Name, Position

NOON = datetime(2026, 11, 20, 12, 0, 0, 5, tzinfo=UTC)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(report, *, as_json=False, stream=None) -> str:
    out = stream or io.StringIO()
    show(report, as_json=as_json, stream=out)
    return out.getvalue()


POSITION = Position("h", 3, 1, "c")


@pytest.mark.parametrize(
    "report, in_text, in_json",
    [
        (Value("tick", 7), "7\n", {"tick": 7}),
        (Value("clock", None), "\n", {"clock": None}),
        (Fields({"tick": 7, "failure": None}), "tick     7\nfailure  -\n", {"tick": 7, "failure": None}),
        (Fields({"why": ("one", "two"), "none": ()}), "why   one\n      two\nnone  -\n", {"why": ["one", "two"], "none": []}),
        (Fields({"which": {"t": 1}}), "which  t: 1\n", {"which": {"t": 1}}),
        (Fields({"n": Numbers(())}), "n  none\n", {"n": []}),
        (Fields({"n": Numbers((1, 2, 3, 5, 7, 8))}), "n  1-3, 5, 7-8\n", {"n": [1, 2, 3, 5, 7, 8]}),
        (Fields({"n": Numbers((4, 6))}), "n  4, 6\n", {"n": [4, 6]}),
        (record(POSITION), None, {"history": "h", "tick": 3, "batch": 1, "chain": "c"}),
        (Listing(("id", "note"), [(1, "two\nlines"), (22, None)], null="NULL"), "id  note\n1   two lines\n22  NULL\n", None),
        (Listing(("a", "b"), []), "a  b\n", []),
        (Listing(("a", "a", "a_1"), [(1, 2, 3)]), None, [{"a": 1, "a_1": 2, "a_1_1": 3}]),
    ],
)  # fmt: skip
def test_reports_in_a_pipe_and_as_json(report, in_text, in_json) -> None:
    assert in_text is None or shown(report) == in_text
    assert in_json is None or json.loads(shown(report, as_json=True)) == in_json


def test_json_rows_are_one_array_even_from_an_iterator() -> None:
    assert json.loads(shown(Listing(("a",), iter([(1,), (None,)])), as_json=True)) == [{"a": 1}, {"a": None}]
    assert unique_names(["x", "x", "x"]) == ["x", "x_1", "x_2"]


@pytest.mark.parametrize(
    "value, expected",
    [
        (NOON, "2026-11-20T12:00:00.000005Z"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "2026-11-20T14:00:00.000005+02:00"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (Decimal("1.10"), "1.10"),
        (b"\x00\xff", "\\x00ff"),
        (2**70, 2**70),
        (True, True),
        ({1: [NOON]}, {"1": ["2026-11-20T12:00:00.000005Z"]}),
        (timedelta(seconds=90), 90.0),
        (Position("h", 1), {"history": "h", "tick": 1, "batch": 0, "chain": ""}),
    ],
)
def test_json_holds_every_value_without_loss(value, expected) -> None:
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value))) == expected


def test_text_of_values() -> None:
    assert text(True, null="") == "true"
    assert text([1, None, "é"], null="") == '[1, null, "é"]'
    assert text(Name("main", "t"), null="") == "main.t"


@pytest.mark.parametrize("report", [Fields({"tick": 7}), Listing(("tick",), [(7,)])])
def test_terminal_gets_a_drawn_table(report) -> None:
    drawn = shown(report, stream=Terminal())
    assert "tick" in drawn
    assert "7" in drawn
    assert "│" in drawn


def test_terminal_shows_square_brackets_as_they_are() -> None:
    assert "[red]" in shown(Listing(("[a]",), [("[red]",)]), stream=Terminal())


EVIL = "a\x1b]0;x\x07b\x9b2Jc\u202ede\x7f\x00"
SHOWN = r"a\x1b]0;x\x07b\x9b2Jc\u202ede\x7f\x00"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize(
    "report",
    [Value("v", EVIL), Lines([EVIL]), Fields({EVIL: EVIL}), Fields({"v": (EVIL, EVIL)}), Listing([EVIL], [[EVIL]])],
)
def test_control_characters_reach_no_terminal(report, stream, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    found = shown(report, stream=stream())
    assert r"\x1b]0;x\x07" in found
    assert SHOWN in found or stream is Terminal
    found = found.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert found.replace("\n", "").isprintable()
    found = shown(report, as_json=True)
    assert found.replace("\n", "").isprintable()
    assert EVIL in repr_free(json.loads(found))


def repr_free(value) -> str:
    """All texts in a value, one behind the other."""
    if isinstance(value, dict):
        return "".join(key + repr_free(inner) for key, inner in value.items())
    return value if isinstance(value, str) else "".join(map(repr_free, value))


def test_errors_and_warnings_are_printable(capsys) -> None:
    explain(FarmError(EVIL, hint=EVIL), verbose=True)
    found = capsys.readouterr().err
    assert f"error: {SHOWN}\nhint: {SHOWN}\n" in found
    assert found.replace("\n", "").isprintable()


def test_a_listing_fits_a_terminal_and_is_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(listing: Listing, width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        bold = re.compile(r"\x1b\[\d*m")
        return [bold.sub("", line).rstrip() for line in shown(listing, stream=Terminal()).splitlines()]

    def later(rows) -> Listing:
        return Listing(table.columns, [(tick + 1, *rest) for tick, *rest in rows], elastic=("statement",))

    rows = [(7, "\x1b[2J" + "x" * 60, None), (1041, "short\nlines", None)]
    table = Listing(("tick", "statement", "gone"), rows, on_terminal=later)
    assert seen(table, 40) == ["tick  statement", f"8     \\x1b[2J{'x' * 26}…", "1042  short lines"]
    assert shown(table).splitlines()[1].endswith("x" * 60)
    assert [row["tick"] for row in json.loads(shown(table, as_json=True))] == [7, 1041]
    wide = Listing(("a", "b"), [("字" * 9, "y" * 30)], elastic=("b",))
    assert max(map(cell_len, seen(wide, 12))) <= 12
    assert seen(Listing(("a", "b"), [], elastic=("b",)), 12) == ["a  b"]


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
        ["clock", f"{format_local(clock)} (3h 2m ago)"],
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
