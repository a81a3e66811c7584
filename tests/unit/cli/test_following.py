"""`--follow`: when a round begins, what is said of it, and what does not end the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cli.wlc
import cli.wlr
import wlc
import wlr
from cli.command import run_app
from cli.following import in_rounds
from cli.output import Value
from tests.handmade import HandmadeFarm, Rows
from wlc.farm.clock import utc_now
from wlc.farm.errors import CorruptError, UnavailableError
from wlc.farm.keeping import Tag, add_tag
from wlc.farm.rounds import News
from wlc.farm.store import MissingError
from wlc.tiers.upstreams import Push, add_push

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.output import Report

GONE, BUSY = MissingError("no farm"), UnavailableError("in use")


def rounds_of(*answers: int | Exception) -> Iterator[Report]:
    """Follow rounds that do so much, or fail; a round in which nothing was done has no news."""
    left = iter(answers)

    def do_round() -> int:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return in_rounds(do_round, lambda done: Value("tick", done), follow=True, has_news=bool, beat_s=lambda _: 30.0)


@pytest.mark.parametrize("first", [0, 7])
def test_every_round_waits_for_the_farm_and_ends_with_what_does_not_pass(first: int, monkeypatch, capsys) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    reports = rounds_of(GONE, BUSY, first, 1, 0, GONE, GONE, GONE, BUSY, 0, 2, GONE, CorruptError("damaged"))
    # The first round that succeeds is reported, news or not.
    assert [next(reports) for _ in range(3)] == [Value("tick", tick) for tick in (first, 1, 2)]
    with pytest.raises(CorruptError):
        next(reports)
    assert waits == [1, 2, 30, 30, 30, 1, 2, 4, 8, 30, 30, 1]
    assert capsys.readouterr().err == "error: no farm\nerror: in use\n" * 2 + "error: no farm\n"


def test_what_a_round_did_before_it_failed_is_reported(monkeypatch, capsys) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    part, last = UnavailableError("oslo is away"), CorruptError("damaged")
    part.done, last.done = (1, 2), (3,)
    answers = iter([part, part, last])

    def do_round() -> list[int]:
        raise next(answers)

    reports = in_rounds(
        do_round, lambda done: Value("ticks", done), follow=True, has_news=lambda _: False, beat_s=lambda _: 30.0
    )
    assert next(reports) == Value("ticks", [1, 2])
    assert next(reports) == Value("ticks", [3])
    with pytest.raises(CorruptError):
        next(reports)
    assert capsys.readouterr().err == "error: oslo is away\n"


COMMANDS = {
    "replicate": "wlr replicate sales --farm farm --into copy.duckdb",
    "tag": "wlr replicate sales --farm farm --into copy.duckdb --until v1",
    "relay": "wlr replicate sales --farm farm --into copy.duckdb --upstream auto",
    "feed": "wlr feed sales --farm farm --table t --to t.jsonl",
    "changes": "wlr rows changes sales --farm farm --table t --out t.jsonl",
    "ship": "wlc tier ship sales --farm farm --to relay",
    "pushes": "wlc tier ship sales --farm farm --pushes farm/sales",
    "derive": "wlc farm derive sales --farm farm --as part --tables t",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_farm_that_is_not_mounted_yet_ends_no_command(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (i INTEGER PRIMARY KEY)", Rows("t", added=("1",))])
    add_tag(farm.db, Tag("v1", 1, utc_now(), "ann"))
    add_push(farm.db, Push("edge", str(tmp_path / "relay" / "sales")))
    away = (tmp_path / "farm").rename(tmp_path / "away")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            away.rename(tmp_path / "farm")

    def interrupt(_: News, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(News, "sleep", lambda _, seconds: sleep(seconds))
    monkeypatch.setattr(News, "wait", interrupt)
    program, *words = COMMANDS[name].split()
    assert run_app({"wlc": cli.wlc.app, "wlr": cli.wlr.app}[program], program, [*words, "--follow", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1
    assert waits == [1, 2]
    assert shown.err.count("there is no database 'sales' in the farm") == 1


def test_a_replica_has_the_beat_of_its_master_until_its_owner_sets_another(tmp_path: Path) -> None:
    source, copy = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    wlc.master(source, create=True, beat_s=7)
    wlr.replicate(source, into=copy)
    assert wlr.beat(copy) == wlr.status(copy).beat_s == 7
    wlc.beat(source, 8)
    wlr.replicate(into=copy)
    assert wlr.beat(copy) == 8
    wlr.beat(copy, 3)
    wlr.replicate(into=copy)
    assert wlr.beat(copy) == 3
