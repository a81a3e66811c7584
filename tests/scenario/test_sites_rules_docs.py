"""Each command of docs/sites*.md that sets a rule works as it is written there, in a star or in a mesh."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("sites*.md"))
TEXT = "\n".join(page.read_text() for page in PAGES)
# With the name of a table, not of a column or rule in general; the chapters on roles name the farm otherwise.
COMMANDS = sorted({match.rstrip(" ") for match in re.findall(r"wlc rule sales [^`#\n]+", TEXT) if "TABLE" not in match})
STAR = ("epoch", "epoch_trans")
SCHEMA = """
    CREATE TABLE prices (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE orders (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE customers (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE accounts (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE limits (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE measurements (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE log (v VARCHAR);
    CREATE TABLE settings (name VARCHAR PRIMARY KEY, value VARCHAR);
    CREATE TABLE stock (product VARCHAR PRIMARY KEY, amount INTEGER NOT NULL);
    CREATE TABLE events (v VARCHAR);
    CREATE TABLE documents (k INTEGER PRIMARY KEY, version INTEGER);
    CREATE TABLE tickets (k INTEGER PRIMARY KEY, revision INTEGER);
"""


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Sites]:
    found = {}
    for is_mesh in (False, True):
        found[is_mesh] = Sites(tmp_path_factory.mktemp("mesh" if is_mesh else "star"))
        found[is_mesh].found(SCHEMA, mesh=is_mesh)
        found[is_mesh].join("rome")
    return found


def test_every_rule_has_an_example() -> None:
    rules = {shlex.split(command)[4] for command in COMMANDS}
    assert rules >= {"owner", "epoch", "epoch_trans", "newest", "add", "max", "old"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_sets_a_rule(
    founded: dict[bool, Sites], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *arguments = shlex.split(command)
    is_mesh = arguments[3] not in STAR
    if arguments[2] == "main.log":
        # Another primary's table, after a change of the primary.
        arguments[-1] = "oslo"
    assert run_app(app, "wlc", [*arguments, "--farm", founded[is_mesh].farm]) == 0, capsys.readouterr().err
    assert arguments[2] in capsys.readouterr().out
