"""How errors leave a program: one message, a hint, an exit code, and no traceback unless asked for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from fnmatch import fnmatchcase
from pathlib import Path

import duckdb
import pytest

import cli
from cli.command import command, explain, new_app, run_app
from cli.interruption import go_on_until_interrupted
from cli.output import Fields, Listing, Value
from cli.programs import Group, Program
from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError

HINT = "hint: nothing that was committed is lost; type the same command again\n"


@pytest.fixture
def app():
    app = new_app(Program("x", "A program.", groups={"more": Group("More of them.", ("answer",))}))

    @command(app, "more answer", example="")
    @command(app, "answer", example="")
    def answer(what: str = "42"):
        """Answer."""
        if what == "interrupt":
            raise KeyboardInterrupt
        if what in ("SIGINT", "SIGTERM"):
            os.kill(os.getpid(), signal.Signals[what])
        if what == "query":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except KeyboardInterrupt:
                raise RuntimeError("Query interrupted") from None
        if what == "follow":
            go_on_until_interrupted()
            os.kill(os.getpid(), signal.SIGTERM)
        if what == "warn":
            for _ in range(2):
                warnings.warn("table t was written without capture", stacklevel=1)
            warnings.warn("old function", DeprecationWarning, stacklevel=1)
        return Value("answer", what)

    @command(app, "fail", example="")
    def fail():
        """Fail."""
        yield Value("answer", 1)
        raise CorruptError("file f is damaged", hint="wlc status sales")

    return app


DAMAGED = "error: file f is damaged\nhint: wlc status sales\n"


@pytest.mark.parametrize(
    "arguments, code, out, err",
    [
        ("answer", 0, "42\n", ""),
        ("answer --json --what 7", 0, '{"answer": "7"}\n', ""),
        ("answer --help", 0, "*Example: x answer*", ""),
        ("more answer --what 7", 0, "7\n", ""),
        ("more answer --help", 0, "*Example: x more answer*", ""),
        ("more --help", 0, "*More of them.*answer*Answer.*", ""),
        ("more", 2, "", "*Usage: x more*"),
        ("more other", 2, "", "error: No such command 'other'.\nhint: x more --help\n"),
        ("answer --what interrupt", 130, "", f"error: interrupted\n{HINT}"),
        ("fail", 6, "1\n", DAMAGED),
        ("fail --verbose", 6, "1\n", f"Traceback*{DAMAGED}"),
        ("nothing", 2, "", "error: *\nhint: x --help\n"),
        ("answer --nothing", 2, "", "error: *\nhint: x answer --help\n"),
        ("answer too much", 2, "", "error: *\nhint: x answer --help\n"),
    ],
)
def test_what_a_command_prints_and_its_exit_code(app, capsys, arguments, code, out, err) -> None:
    assert run_app(app, "x", arguments.split()) == code
    printed = capsys.readouterr()
    assert fnmatchcase(printed.out, out)
    assert fnmatchcase(printed.err, err)


def test_only_the_command_that_is_called_is_built(app, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    @command(app, "two-words", example="")
    def two_words(broken: list[int] | str | None = None):
        """Be of a type that typer refuses when it builds the command."""

    assert run_app(app, "x", ["answer"]) == 0
    assert run_app(app, "x", ["more", "answer"]) == 0
    for arguments in (["two-words"], ["--help"], ["other"]):
        with pytest.raises(AssertionError, match="Union"):
            run_app(app, "x", arguments)
    monkeypatch.setattr(sys, "argv", ["x", "answer", "--what", "7"])
    assert run_app(app, "x") == 0
    assert capsys.readouterr().out == "42\n42\n7\n"


def test_warning_is_one_line_however_often_it_comes(app, capsys) -> None:
    assert run_app(app, "x", ["answer", "--what", "warn"]) == 0
    assert capsys.readouterr() == ("warn\n", "warning: table t was written without capture\n")


def test_interrupt_while_arguments_are_read(app, capsys, monkeypatch) -> None:
    """Versions of typer answer with the code alone, or with an empty line."""

    def stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("typer.core.TyperCommand.parse_args", stop)
    assert run_app(app, "x", ["answer"]) == 130
    assert capsys.readouterr().err == f"error: interrupted\n{HINT}"


@pytest.mark.parametrize(
    "what, code, said",
    [
        ("SIGINT", 130, f"error: interrupted\n{HINT}"),
        ("SIGTERM", 143, f"error: interrupted by SIGTERM\n{HINT}"),
        ("query", 143, f"error: interrupted by SIGTERM\n{HINT}"),
        ("follow", 0, ""),
    ],
)
def test_signals(app, capsys, what, code, said) -> None:
    """Also where they were ignored before, as SIGINT is in the background; afterwards they are again."""
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert run_app(app, "x", ["answer", "--what", what]) == code
        assert capsys.readouterr() == ("", said)
        assert run_app(app, "x", ["fail"]) == 6, "what one command received says nothing about the next one"
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


@pytest.mark.parametrize("program", ["wlc", "wlr"])
@pytest.mark.parametrize("number, code, said", [(2, 130, "interrupted"), (15, 143, "interrupted by SIGTERM")])
def test_a_signal_ends_a_program_that_loads(program, number, code, said) -> None:
    """Loading takes longer than many a user's patience."""
    script = (
        "import os, sys\nfrom cli import start\n"
        "class Finder:\n    def find_spec(name, *_):\n"
        f"        if name == 'cli.{program}': os.kill(os.getpid(), {number})\n"
        f"sys.meta_path.insert(0, Finder)\nstart.{program}()"
    )
    root = Path(cli.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"error: {said}\n")


@pytest.mark.parametrize(
    "error, code",
    [
        (FarmError("m"), 1),
        (InvalidError("m"), 2),
        (UnavailableError("m"), 75),
        (duckdb.ParserException("m"), 1),
        (PermissionError("m"), 1),
        (AssertionError("m"), 70),
    ],
)
def test_exit_codes(error, code, capsys) -> None:
    assert explain(error) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "m" in err
    assert "Traceback" not in err
    assert ("defect" in err) == (code == 70)


# Log lines ---------------------------------------------------------------------------------------------------------

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def copier():
    app = new_app(Program("x", "Try log lines."))

    @command(app, "copy", example="--follow")
    def copy(follow: bool = False):
        """Copy."""
        yield Fields({"tick": 0, "rows": 3, "anew": "", "is_paused": False, "note": "two\nlines\x1b[2J"})
        warnings.warn("late", stacklevel=1)
        yield Listing(("site", "rows"), [("rome", 2)])
        raise CorruptError("file f is damaged", hint="wlc farm verify sales")

    return app


def test_changes_warnings_and_errors_are_one_line_each(copier, capsys) -> None:
    assert run_app(copier, "x", ["copy", "--follow"]) == 6
    out, err = capsys.readouterr()
    assert out == ""
    lines = [re.sub(f"^{TIME} ", "", line) for line in err.splitlines()]
    assert lines == [
        "info copy: tick 0, rows 3, note two lines\\x1b[2J",
        "warning late",
        'info copy: rows [{"site": "rome", "rows": 2}]',
        "error file f is damaged (hint: wlc farm verify sales)",
    ]


def test_json_lines(copier, capsys) -> None:
    assert run_app(copier, "x", ["copy", "--follow", "--log-format", "json", "--verbose"]) == 6
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "info", "error"]
    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    assert (lines[0]["tick"], lines[0]["rows"], lines[2]["rows"]) == (0, 3, [{"site": "rome", "rows": 2}])
    assert lines[3]["hint"] == "wlc farm verify sales"
    assert "in copy" in lines[3]["traceback"]


def test_quiet_leaves_out_what_is_well(copier, capsys) -> None:
    assert run_app(copier, "x", ["copy", "--follow", "--quiet"]) == 6
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[1] for line in err.splitlines()] == ["warning", "error"]


def test_json_answers_stay_answers_and_an_unknown_format_is_refused(copier, capsys) -> None:
    assert run_app(copier, "x", ["copy", "--follow", "--json"]) == 6
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rows"] == 3
    assert run_app(copier, "x", ["copy", "--follow", "--log-format", "xml"]) == 2
    assert (
        capsys.readouterr().err
        == "error: there is no log format 'xml'\nhint: --log-format text, or --log-format json\n"
    )


def test_without_follow_nothing_is_a_log(copier, capsys) -> None:
    assert run_app(copier, "x", ["copy"]) == 6
    out, err = capsys.readouterr()
    assert out.startswith("tick ")
    assert err == "warning: late\nerror: file f is damaged\nhint: wlc farm verify sales\n"
