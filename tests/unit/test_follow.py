"""`wlr replicate --follow`: when it looks, what it says, and what does not end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from cli.following import follow_on
from cli.output import Value
from wlc.farm.errors import CorruptError, UnavailableError
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    from pathlib import Path


def test_it_tells_news_waits_for_the_farm_and_ends_with_what_does_not_pass(monkeypatch, capsys) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    news, gone, busy = Value("tick", 1), MissingError("no farm"), UnavailableError("in use")
    answers = iter([None, news, None, gone, gone, gone, busy, None, news, gone, CorruptError("damaged")])

    def do_round() -> Value | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reports = follow_on(do_round, lambda: 30.0)
    assert [next(reports), next(reports)] == [news, news]
    with pytest.raises(CorruptError):
        next(reports)
    assert waits == [30, 30, 30, 30, 1, 2, 4, 8, 30, 30, 1]
    assert capsys.readouterr().err == "error: no farm\nerror: in use\nerror: no farm\n"


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
