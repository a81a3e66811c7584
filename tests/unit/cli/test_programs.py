"""Which commands there are, and that the first screens show those that most need."""

from __future__ import annotations

import re

import pytest

from cli.command import run_app
from cli.programs import HEADINGS, WLC, WLR, Program, namesakes
from tests.commands import APPS, commands

PROGRAMS = pytest.mark.parametrize("program", [WLC, WLR], ids=lambda program: program.name)
ANYWHERE = {"as_json", "verbose", "quiet", "log_format", "help"}
FIRST_MOST = 12


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_app(APPS[words[0]], words[0], [*words[1:], "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    return text


def listed(text: str, title: str) -> list[str]:
    """First words of the lines below a title, wrapped lines left out."""
    found = re.search(rf"^{re.escape(title)}:\n((?:  .*\n?)+)", text, re.MULTILINE)
    assert found, f"there is no {title!r}"
    return re.findall(r"^  (\S+) ", found[1], re.MULTILINE)


@PROGRAMS
def test_every_command_has_one_place(program: Program) -> None:
    assert len(set(program.paths)) == len(program.paths)
    assert {f"{program.name} {path}" for path in program.paths} == {
        name for name in commands() if name.startswith(f"{program.name} ")
    }


@PROGRAMS
def test_the_first_screen_has_five_lines_to_start_the_daily_commands_and_a_line_per_group(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, program.name)
    lines = text.splitlines()
    at = lines.index("To start:")
    assert [line[2:].partition("  ")[0] for line in lines[at + 1 : at + 6]] == list(program.start)
    assert lines[at + 6] == ""
    for task, names in program.tasks.items():
        assert listed(text, task) == list(names)
    assert listed(text, f"Groups, each with --help ({program.name} GROUP COMMAND)") == list(program.groups)
    # Each on one line: between the first title and the options, nothing is wrapped.
    assert not re.search(r"^   ", text.partition("To start:")[2].partition("Options:")[0], re.MULTILINE)


@pytest.mark.parametrize("place", [f"{each.name} {word}" for each in (WLC, WLR) for word in each.groups])
def test_a_group_lists_its_commands_on_a_line_each(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, word = place.split()
    group = {"wlc": WLC, "wlr": WLR}[name].groups[word]
    text = shown(capsys, name, word)
    assert listed(text, "Commands") == list(group.commands)
    assert not re.search(r"^   ", text.partition("Commands:")[2].partition("Options:")[0], re.MULTILINE)
    assert group.summary in text


def test_options_that_few_need_have_headings(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in commands().items():
        headed = [param for names in HEADINGS.get(name, {}).values() for param in names]
        options = {str(param.name) for param in command.params if param.param_type_name == "option"}
        assert len(set(headed)) == len(headed)
        assert set(headed) <= options, name
        assert len(options - set(headed) - ANYWHERE) <= FIRST_MOST, name
    assert set(HEADINGS) <= set(commands())
    text = shown(capsys, "wlr", "replicate")
    assert len(listed(text, "Options")) == 10
    assert listed(text, "DuckDB files") == ["--adopt", "--swap", "--storage-version"]
    assert listed(text, "Of all commands") == ["--json", "--verbose", "--quiet", "--log-format", "-h,"]


def test_a_command_without_its_group_or_of_the_other_program_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for program in (WLC, WLR):
        for path in (*program.paths, *program.groups):
            assert f"{program.name} {path}" in namesakes("wlc", path.split()[-1])
    for typed, hint in {
        "wlc ship sales --to relay": "wlc tier ship --help",
        "wlr prune lake": "wlr lake prune --help or wlc prune --help",
        "wlc replicate sales": "wlr replicate --help",
        "wlc replica": "wlr replica --help",
        "wlc tier flush": "wlc flush --help",
        "wlc nothing": "wlc --help",
        "wlc tier nothing": "wlc tier --help",
    }.items():
        program_name, *words = typed.split()
        assert run_app(APPS[program_name], program_name, words) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"hint: {hint}"
