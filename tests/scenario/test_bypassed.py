"""A master that was written without capture: from each state, the hints of each command lead to a sound master."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pytest

import cli.wlc
import cli.wlr
import wlc
import wlr
from cli.command import run_app
from tests.scratch import attached

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*without wlc.connect:UserWarning")]

_APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}
_COMMAND = re.compile(r"wl[cr] .*?(?= at | makes | rebuilds | skips |;|$)")


@dataclass(frozen=True)
class Farm:
    """A master and a replica of it."""

    folder: Path

    @property
    def master(self) -> Path:
        return self.folder / "m.duckdb"

    @property
    def replica(self) -> Path:
        return self.folder / "r.duckdb"

    @property
    def url(self) -> str:
        return f"{self.folder}/farm/m"

    def captured(self, *statements: str) -> None:
        with wlc.connect(self.master) as connection:
            for statement in statements:
                connection.execute(statement)

    def plain(self, *statements: str) -> None:
        with duckdb.connect(self.master) as connection:
            for statement in statements:
                connection.execute(statement)

    def unnoticed(self, plain: str, *captured: str) -> None:
        """Write without capture beside a session that captures, and let this change the same rows."""
        with wlc.connect(self.master) as connection, duckdb.connect(self.master) as other:
            other.execute(plain)
            for statement in captured:
                connection.execute(statement)

    def stuck(self) -> None:
        self.unnoticed("UPDATE t SET v = 'plain' WHERE k = 1", "UPDATE t SET v = 'captured' WHERE k < 3")
        wlc.flush(self.master)
        run_app(cli.wlr.app, "wlr", ["replicate", "--into", str(self.replica)])

    def rows(self, file: Path) -> dict[str, list[tuple[object, ...]]]:
        with attached(file) as connection:
            return {name: connection.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in ("t", "bag", "other")}


_STATES: dict[str, Callable[[Farm], object]] = {
    "sound": lambda farm: farm.captured("UPDATE t SET v = 'captured' WHERE k = 1"),
    "row changed": lambda farm: farm.plain("UPDATE t SET v = 'plain' WHERE k = 1"),
    "rows added and removed": lambda farm: farm.plain("DELETE FROM bag WHERE v = 1", "INSERT INTO t VALUES (9, 'x')"),
    "table altered": lambda farm: farm.plain("ALTER TABLE t ADD COLUMN w INTEGER", "CREATE TABLE new (v INTEGER)"),
    "row changed twice, unpublished": lambda farm: farm.unnoticed(
        "UPDATE t SET v = 'plain' WHERE k = 1",
        "UPDATE t SET v = 'captured' WHERE k = 1",
        "INSERT INTO other VALUES (7)",
    ),
    "row added and removed, published": lambda farm: (
        farm.unnoticed("INSERT INTO bag VALUES (7), (8)", "DELETE FROM bag WHERE v IN (1, 7)"),
        wlc.flush(farm.master),
    ),
    "replica stuck": Farm.stuck,
}
_COMMANDS = (
    "wlc flush {master}",
    "wlc status {master}",
    "wlc farm verify {master} --source",
    "wlc doctor {replica}",
    "wlc snapshot {master}",
    "wlc sql {master} \"UPDATE t SET v = v || '.'\"",
    "wlc sql {master} 'UPDATE bag SET v = v + 1'",
    "wlc doctor {master}",
    "wlr replicate --into {replica}",
    "wlr verify {replica}",
)


def _made(folder: Path, state: str) -> Farm:
    farm = Farm(folder)
    folder.mkdir()
    with duckdb.connect(farm.master) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        connection.execute("CREATE TABLE bag (v INTEGER); INSERT INTO bag VALUES (1), (1), (2)")
        connection.execute("CREATE TABLE other (v INTEGER)")
    wlc.master(farm.master, farm=f"{folder}/farm", name="m")
    wlr.replicate(farm.url, into=farm.replica)
    _STATES[state](farm)
    return farm


@dataclass
class User:
    """Types commands, and what their hints say."""

    farm: Farm
    capsys: pytest.CaptureFixture[str]

    def type(self, command: str) -> str | None:
        """Type a command; return its hint if it fails."""
        program, *arguments = shlex.split(
            command.format(master=self.farm.master, replica=self.farm.replica, url=self.farm.url)
        )
        code = run_app(_APPS[program], program, arguments)
        told = self.capsys.readouterr().err
        if not code:
            return None
        assert "\nhint: " in told, (command, told)
        return told.rpartition("\nhint: ")[2].strip()

    def alternatives(self, hint: str) -> list[list[str]]:
        """Return the ways that a hint names, each a list of commands."""
        hint = hint.replace("SOURCE", str(self.farm.master))
        return [_COMMAND.findall(way) for way in re.split(r"; (?:or )?(?=wlr accept)", hint)]

    def follow(self, command: str, above: tuple[str, ...] = ()) -> None:
        """Type a command, and what hints say, until the command succeeds; no hint may come twice."""
        assert command not in above, f"a circle: {above}"
        seen: set[str] = set()
        while (hint := self.type(command)) is not None:
            assert hint not in seen, f"{command} leads in a circle: {hint}"
            seen.add(hint)
            for each in self.alternatives(hint)[0]:
                self.follow(each, (*above, command))


@pytest.mark.parametrize("state", _STATES)
def test_each_hint_leads_to_a_sound_master(tmp_path: Path, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    user = User(_made(tmp_path / "first", state), capsys)
    ways: dict[tuple[str, ...], str] = {}
    for command in _COMMANDS:
        if (hint := user.type(command)) is not None:
            for way in user.alternatives(hint):
                assert way, hint
                ways.setdefault(tuple(_general(user.farm, each) for each in way), command)
    for number, (commands, said_by) in enumerate((ways or {(): _COMMANDS[0]}).items()):
        farm = user.farm = _made(tmp_path / str(number), state)
        user.type(said_by)
        for each in commands:
            user.follow(each)
        for command in _COMMANDS[-6:]:
            user.follow(command)
        wlc.flush(farm.master)
        user.follow("wlr replicate --into {replica}")
        wlr.replicate(farm.url, into=farm.folder / "new.duckdb", register=False)
        assert farm.rows(farm.replica) == farm.rows(farm.master) == farm.rows(farm.folder / "new.duckdb"), commands
        assert all(check.outcome == "same" for check in wlc.verify_source(farm.master))
        assert wlr.verify_farm(farm.url, full=True).problems == ()


def _general(farm: Farm, command: str) -> str:
    """Return a command of a hint, with the names of a farm's files left open."""
    for name, place in (("{master}", farm.master), ("{replica}", farm.replica), ("{url}", farm.url)):
        command = command.replace(str(place), name)
    return command
