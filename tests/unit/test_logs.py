"""Log lines of commands that go on: one for each change, with its time, as text or as JSON."""

from __future__ import annotations

import json
import re
import warnings

import pytest

from cli.command import command, new_app, run_app
from cli.output import Fields, Listing
from wlc.farm.errors import CorruptError

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def app():
    app = new_app("Try log lines.", {})

    @command(app, example="x copy --follow")
    def copy(follow: bool = False):
        """Copy."""
        yield Fields({"tick": 0, "rows": 3, "anew": "", "is_paused": False, "note": "two\nlines\x1b[2J"})
        warnings.warn("late", stacklevel=1)
        yield Listing(("site", "rows"), [("rome", 2)])
        raise CorruptError("file f is damaged", hint="wlc verify sales")

    return app


def test_changes_warnings_and_errors_are_one_line_each(app, capsys) -> None:
    assert run_app(app, "x", ["copy", "--follow"]) == 6
    out, err = capsys.readouterr()
    assert out == ""
    lines = [re.sub(f"^{TIME} ", "", line) for line in err.splitlines()]
    assert lines == [
        "info copy: tick 0, rows 3, note two lines\\x1b[2J",
        "warning late",
        'info copy: rows [{"site": "rome", "rows": 2}]',
        "error file f is damaged (hint: wlc verify sales)",
    ]


def test_json_lines(app, capsys) -> None:
    assert run_app(app, "x", ["copy", "--follow", "--log-format", "json", "--verbose"]) == 6
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "info", "error"]
    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    assert (lines[0]["tick"], lines[0]["rows"], lines[2]["rows"]) == (0, 3, [{"site": "rome", "rows": 2}])
    assert lines[3]["hint"] == "wlc verify sales"
    assert "in copy" in lines[3]["traceback"]


def test_quiet_leaves_out_what_is_well(app, capsys) -> None:
    assert run_app(app, "x", ["copy", "--follow", "--quiet"]) == 6
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[1] for line in err.splitlines()] == ["warning", "error"]


def test_json_answers_stay_answers_and_an_unknown_format_is_refused(app, capsys) -> None:
    assert run_app(app, "x", ["copy", "--follow", "--json"]) == 6
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rows"] == 3
    assert run_app(app, "x", ["copy", "--follow", "--log-format", "xml"]) == 2
    assert (
        capsys.readouterr().err
        == "error: there is no log format 'xml'\nhint: --log-format text, or --log-format json\n"
    )


def test_without_follow_nothing_is_a_log(app, capsys) -> None:
    assert run_app(app, "x", ["copy"]) == 6
    out, err = capsys.readouterr()
    assert out.startswith("tick ")
    assert err == "warning: late\nerror: file f is damaged\nhint: wlc verify sales\n"
