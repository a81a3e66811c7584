"""Documentation says what the programs do: all of it, and nothing that is not there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import cast

import pytest
import typer

import cli.wlc
import cli.wlr
from tests.selection import SLOW_FILE
from wlc.farm import errors
from wlc.farm.config import format_beat
from wlc.tiers.tier_settings import DEFAULTS, NAMES

ROOT = Path(__file__).parent.parent
APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}
ON_EVERY_COMMAND = {"--json", "--verbose", "--help"}
# Of all commands that write a log; described once, too.
ON_EVERY_COMMAND |= {"--quiet", "--log-format"}
CLI_TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@functools.cache
def commands() -> dict[str, typer.core.TyperCommand]:
    return {
        f"{program} {name}": command
        for program, app in APPS.items()
        for name, command in cast("typer.core.TyperGroup", typer.main.get_command(app)).commands.items()
    }


def section(command: str) -> str:
    """Everything under the heading that names the command, up to the next heading."""
    found = re.search(rf"^### [^\n]*\b{command}\b[^\n]*\n(.*?)(?=^##|\Z)", CLI_TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section on {command}"
    return found.group(0)


def options_of(command: typer.core.TyperCommand) -> set[str]:
    found = (option for param in command.params for option in (*param.opts, *param.secondary_opts))
    return {option for option in found if option.startswith("--")}


def test_every_command_and_option_is_documented() -> None:
    undocumented = [
        f"{name} {option}"
        for name, command in commands().items()
        for option in options_of(command) - ON_EVERY_COMMAND
        if f"`{option}" not in section(name)
    ]
    assert undocumented == []


def test_every_documented_option_exists() -> None:
    unknown = [
        f"{name} {option}"
        for name, command in commands().items()
        for option in re.findall(r"(?:^\| |, )`(--[a-z-]+)", section(name), re.MULTILINE)
        if option not in options_of(command)
    ]
    assert unknown == []


def test_every_command_shows_an_example_of_itself() -> None:
    without = [
        name for name, command in commands().items() if not (command.epilog or "").startswith(f"Example: {name}")
    ]
    assert without == []


def test_every_documented_command_exists() -> None:
    documented = {
        command
        for heading in re.findall(r"^### (.*)$", CLI_TEXT, re.MULTILINE)
        for command in heading_commands(heading)
    }
    assert documented == set(commands())


def heading_commands(heading: str) -> list[str]:
    return re.findall(r"\bwl[cr] [a-z]+", heading)


def test_options_for_everything_are_documented_once() -> None:
    assert all(re.search(f"`{option}[ `]", CLI_TEXT) for option in ON_EVERY_COMMAND)


def test_exit_codes_are_those_of_the_errors() -> None:
    documented = {
        name: int(code)
        for code, names in re.findall(r"^\| (\d+) \| (.*?) \|", CLI_TEXT, re.MULTILINE)
        for name in re.findall(r"`(\w+Error)`", names)
    }
    classes = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FarmError) and value is not errors.FarmError
    }
    assert documented == classes


def markdown_files() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def found_in_pages(pattern: str) -> list[tuple[Path, str]]:
    """Each match of the pattern in each page, with the page."""
    return [
        (page, match)
        for page in markdown_files()
        for match in re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def test_links_lead_somewhere() -> None:
    links = found_in_pages(r"\]\((?!https?://|mailto:|#)([^)#]+)")
    assert len(links) > 100
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_commands_in_prose_exist() -> None:
    used = found_in_pages(r"(?:^|`|\$ )(wl[cr] [a-z]+)")
    assert len(used) > 100
    known = set(commands())
    assert [f"{page.name}: {command}" for page, command in used if command not in known] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "zensical.toml").read_text(encoding="utf-8").partition("nav = [")[2].partition("\n]\n")[0]
    listed = re.findall(r'"([\w/-]+\.md)"', nav)
    assert sorted(listed) == sorted(
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    )


def test_words_mean_the_same_in_readme_and_on_the_site() -> None:
    readme, site = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md"))
    table = readme.partition("## Concepts")[2].partition("## ")[0]
    words = re.findall(r"^\| .* \|$", table, re.MULTILINE)
    assert len(words) > 10
    assert words == re.findall(r"^\| .* \|$", site.partition("## Words")[2], re.MULTILINE)


def test_messages_in_troubleshooting_are_those_of_the_programs() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    source = "\n".join(
        file.read_text(encoding="utf-8") for top in ("wlc", "wlr", "cli") for file in (ROOT / top).rglob("*.py")
    )
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(messages) > 20
    parts = [part.strip() for message in messages for part in message.split("…") if part.strip()]
    assert [part for part in parts if part not in source] == []


def test_troubleshooting_has_a_section_for_every_exit_code_of_an_error() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sections = {int(code) for code in re.findall(r"^## (\d+):", text, re.MULTILINE)}
    assert sections == {value.exit_code for value in vars(errors).values() if is_error(value)} | {70}


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.FarmError) and value is not errors.FarmError


def test_every_promise_has_a_quick_test() -> None:
    pages = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("reliability", "testing")}
    promises = re.findall(r"^\| \*\*(.+?)[.:,]?\*\*", pages["reliability"], re.MULTILINE)
    tests = dict(re.findall(r"^\| (\w.+) \| `(tests/\S+::\w+)` \|$", pages["testing"], re.MULTILINE))
    assert list(tests) == promises
    assert [test for test in tests.values() if not is_quick(*test.split("::"))] == []


def is_quick(path: str, name: str) -> bool:
    text = (ROOT / path).read_text(encoding="utf-8")
    (test,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return "pytest.mark.slow" not in map(ast.unparse, test.decorator_list) and not SLOW_FILE.search(text)


def test_paths_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:wlc|wlr|cli|tests|docs|examples)/[^` ]*|[\w.-]+\.(?:toml|txt|md))`", text))
    assert len(paths) > 30
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_contributing_answers_where_to_change_things() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Where would I change")[2].partition("##")[0]
    answers = re.findall(r"^\| (?!what|---)(.*?) \| (.*) \|$", table, re.MULTILINE)
    assert len(answers) >= 10
    assert [question for question, answer in answers if "/" not in answer] == []


# Of Comdb2's physical replication: tunables; lines of configuration; procedures; tables.
COMDB2 = """
blocking_physrep physrep_check_minlog_freq_sec physrep_debug physrep_exit_on_invalid_logstream physrep_fanout
physrep_hung_replicant_check_freq_sec physrep_hung_replicant_threshold physrep_i_am_metadb physrep_keepalive_freq_sec
physrep_max_candidates physrep_metadb_host physrep_metadb_name physrep_reconnect_penalty physrep_register_interval
physrep_shuffle_host_list physrep_source_dbname physrep_source_host revsql_allow_command_execution revsql_cdb2_debug
revsql_connect_freq_sec revsql_debug revsql_host_refresh_freq_sec revsql_force_rte connect_remote_rte
replicate_from replicate_wait physrep_metadb physrep_fanout_override physrep_ignore nonames
elect_highest_committed_gen autoanalyze qdump qkafka
sys.cmd.start_replication sys.cmd.stop_replication sys.physrep.register_replicant update_registry keepalive reset_nodes
topology get_reverse_hosts should_wait_for_con
comdb2_physreps comdb2_physrep_connections comdb2_physrep_sources
"""


@pytest.mark.slow
def test_every_name_of_comdb2_has_a_counterpart_or_a_reason() -> None:
    text = (ROOT / "docs" / "tiers.md").read_text(encoding="utf-8").partition("## For users of Comdb2")[2]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, re.MULTILINE)
    assert [name for name, _ in rows] == COMDB2.split()
    settings = "|".join(NAMES)
    for name, ours in rows:
        has_reason = ours.startswith("not applicable because ")
        named = set(re.findall(r"settings? ((?:`\w+`(?:, )?)+)", ours))
        assert has_reason or "`" in ours or ours.startswith(("always", "the default", "every")), name
        assert all(re.fullmatch(rf"(`({settings})`(, )?)+", listed) for listed in named), name
        used = set(re.findall(r"`(wl[cr] [a-z]+)", ours))
        assert used <= set(commands()), name


def test_every_setting_of_tiers_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "tiers.md").read_text(encoding="utf-8").partition("## Settings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \| ", text, re.MULTILINE)
    shown = [(name, format_beat(value) if isinstance(value, int | float) else value) for name, value in _defaults()]
    assert rows == shown


def _defaults() -> list[tuple[str, object]]:
    return [(name, getattr(DEFAULTS, name)) for name in NAMES]
