"""Documentation says what the programs do: all of it, and nothing that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from cli.programs import WLC, WLR
from tests.commands import commands, named
from tests.selection import SLOW_FILE
from wlc.farm import errors
from wlc.farm.config import format_beat
from wlc.tiers.tier_settings import DEFAULTS, NAMES

if TYPE_CHECKING:
    import typer

ROOT = Path(__file__).parent.parent
ON_EVERY_COMMAND = {"--json", "--verbose", "--help"}
# Of all commands that write a log; described once, too.
ON_EVERY_COMMAND |= {"--quiet", "--log-format"}
CLI_TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


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


def test_commands_are_documented_in_the_order_of_help() -> None:
    documented = [part for heading in re.findall(r"^### (.*)$", CLI_TEXT, re.MULTILINE) for part in heading.split(", ")]
    assert [named(part.split()) for part in documented] == [
        f"{program.name} {path}" for program in (WLC, WLR) for path in program.paths
    ]
    groups = {f"{program.name} {word}": group for program in (WLC, WLR) for word, group in program.groups.items()}
    headings = dict(re.findall(r"^## (wl[cr] \w+)\n\n(.*)$", CLI_TEXT, re.MULTILINE))
    assert headings == {name: group.summary for name, group in groups.items()}


def test_options_for_everything_are_documented_once() -> None:
    assert all(re.search(f"`{option}[ `]", CLI_TEXT) for option in ON_EVERY_COMMAND)


def test_every_command_has_its_function_or_the_page_and_the_error_name_another() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(wl[cr] [a-z ]+)` \| (.*) \|$", text, re.MULTILINE))
    packages = {"wlc": wlc, "wlr": wlr}
    without = {name for name in commands() if name.split()[-1] not in packages[name.split()[0]].__all__}
    assert without == set(listed)
    for command, others in listed.items():
        package, name = packages[command.split()[0]], command.split()[-1]
        with pytest.raises(AttributeError, match=f"no attribute '{name}': use ") as refused:
            getattr(package, name)
        functions = [(packages[home], function) for home, function in re.findall(r"`(wl[cr])\.(\w+)`", others)]
        assert all(callable(getattr(home, function)) for home, function in functions)
        first = functions[0][1] if functions else f"the command {command}"
        assert first in str(refused.value)


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


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, and of other places that it names."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = (re.sub(r"\]\([^)]*\)", "", heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    slugs = {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_links_lead_to_a_place_in_their_page() -> None:
    links = found_in_pages(r"\]\(((?!https?://)[^)#]*#[^)]+)\)")
    assert len(links) > 100
    known = {page: anchors(page) for page in markdown_files()}
    lost = []
    for page, link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target in known and anchor not in known[target]:
            lost.append(f"{page.name}: {link}")
    assert lost == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "zensical.toml").read_text(encoding="utf-8").partition("nav = [")[2].partition("\n]\n")[0]
    listed = re.findall(r'"([\w/-]+\.md)"', nav)
    assert sorted(listed) == sorted(
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    )


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


# Text that people read, and the folders and files that hold it.
TEXT_SUFFIXES = {".html", ".ipynb", ".json", ".md", ".py", ".sh", ".sql", ".toml", ".yml"}
PLAIN = "wlc wlr cli docs examples contrib README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md".split()
# Sentences without an actor: a second reading has to find the publisher, the reader or the other process.
NO_ACTOR = re.compile(
    r"\b(?:whoever|somebody|nobody|anybody|one's own|is told)\b|\bwhat\b[^.;:]*\bis that which\b", re.IGNORECASE
)


@pytest.mark.parametrize("top", PLAIN)
def test_sentences_name_the_actor(top: str) -> None:
    place = ROOT / top
    files = [file for file in ([place] if place.is_file() else place.rglob("*")) if file.suffix in TEXT_SUFFIXES]
    assert files
    lines = ((file, number, line) for file in files for number, line in enumerate(read_lines(file), 1))
    assert [f"{file.relative_to(ROOT)}:{n}: {line.strip()}" for file, n, line in lines if NO_ACTOR.search(line)] == []


def read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "sentence",
    [
        "Whoever publishes takes a snapshot.",
        "until somebody reads it",
        "which nobody needs",
        "anybody can try values",
        "a clock of one's own",
        "It stops where it is told.",
        "What counts is that which was committed.",
    ],
)
def test_sentences_without_an_actor_are_found(sentence: str) -> None:
    assert NO_ACTOR.search(sentence)


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
        listed = set(re.findall(r"settings? ((?:`\w+`(?:, )?)+)", ours))
        assert has_reason or "`" in ours or ours.startswith(("always", "the default", "every")), name
        assert all(re.fullmatch(rf"(`({settings})`(, )?)+", names) for names in listed), name
        assert None not in {named(used.split()) for used in re.findall(r"`(wl[cr] [a-z ]+)", ours)}, name


def test_every_setting_of_tiers_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "tiers.md").read_text(encoding="utf-8").partition("## Settings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \| ", text, re.MULTILINE)
    shown = [(name, format_beat(value) if isinstance(value, int | float) else value) for name, value in _defaults()]
    assert rows == shown


def _defaults() -> list[tuple[str, object]]:
    return [(name, getattr(DEFAULTS, name)) for name in NAMES]
