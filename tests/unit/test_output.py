"""What a report looks like in a pipe and as JSON."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from rich.cells import cell_len

from cli.command import explain
from cli.output import Fields, Lines, Listing, Numbers, Value, plain, record, show, text, unique_names
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


def test_value_is_bare_in_text_and_named_in_json() -> None:
    assert shown(Value("tick", 7)) == "7\n"
    assert json.loads(shown(Value("tick", 7), as_json=True)) == {"tick": 7}
    assert shown(Value("clock", None)) == "\n"


def test_fields_align_and_say_what_is_absent() -> None:
    assert shown(Fields({"tick": 7, "failure": None})) == "tick     7\nfailure  -\n"


def test_fields_with_several_lines_stay_in_their_column() -> None:
    assert shown(Fields({"why": ("one", "two"), "which": {"t": 1}, "none": ()})) == (
        "why    one\n       two\nwhich  t: 1\nnone   -\n"
    )


@pytest.mark.parametrize(
    "numbers, expected", [((), "none"), ((1,), "1"), ((1, 2, 3, 5, 7, 8), "1-3, 5, 7-8"), ((4, 6), "4, 6")]
)
def test_numbers_are_shown_as_runs_and_listed_in_json(numbers, expected) -> None:
    assert shown(Fields({"n": Numbers(numbers)})) == f"n  {expected}\n"
    assert json.loads(shown(Fields({"n": Numbers(numbers)}), as_json=True)) == {"n": list(numbers)}


def test_record_has_the_names_of_the_api() -> None:
    assert json.loads(shown(record(Position("h", 3, 1, "c")), as_json=True)) == {
        "history": "h",
        "tick": 3,
        "batch": 1,
        "chain": "c",
    }


def test_table_is_aligned_and_every_row_stays_on_one_line() -> None:
    table = Listing(("id", "note"), [(1, "two\nlines"), (22, None)], null="NULL")
    assert shown(table) == "id  note\n1   two lines\n22  NULL\n"


def test_table_without_rows_shows_its_columns_and_is_an_empty_array() -> None:
    assert shown(Listing(("a", "b"), [])) == "a  b\n"
    assert json.loads(shown(Listing(("a", "b"), []), as_json=True)) == []


def test_json_rows_are_one_array_even_from_an_iterator() -> None:
    assert json.loads(shown(Listing(("a",), iter([(1,), (None,)])), as_json=True)) == [{"a": 1}, {"a": None}]


def test_columns_of_one_name_all_reach_json() -> None:
    assert json.loads(shown(Listing(("a", "a", "a_1"), [(1, 2, 3)]), as_json=True)) == [{"a": 1, "a_1": 2, "a_1_1": 3}]
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
