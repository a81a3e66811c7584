"""`wlr accept` keeps a transaction's rows exactly and in one transaction; `wlr replica retry` applies them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlr import app
from tests.handmade import HandmadeFarm, Rows
from tests.sampling import sampled
from tests.scenario.test_types_end_to_end import WIDE, change, differences, fill
from tests.scratch import attached
from wlr.engine.duckdb import wlr_schema as states

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.deep
def test_values_of_every_type_are_kept(tmp_path: Path) -> None:
    source, copy = tmp_path / "types.duckdb", tmp_path / "copy.duckdb"
    wlc.master(source, create=True)
    with wlc.connect(source) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        fill(connection)
        wlc.flush(source)
        wlr.replicate(source, into=copy, register=False)
        change(connection)
        wlc.flush(source)
    wlr.unlock(copy)
    chosen = sampled(range(len(WIDE)), 3)
    hidden = [f"UPDATE t{number} SET r = {{}} WHERE r = {{}}" for number in chosen]
    with duckdb.connect(str(copy)) as connection:
        for statement in hidden:
            connection.execute(statement.format(-1, 2))
    for _ in chosen:
        with pytest.raises(wlr.ReplayError):
            wlr.replicate(into=copy, register=False)
        wlr.accept(copy)
    wlr.replicate(into=copy, register=False)
    with duckdb.connect(str(copy)) as connection:
        for statement in hidden:
            connection.execute(statement.format(2, -1))
    assert len(wlr.retry(copy)) == len(chosen)
    assert differences(source, copy, WIDE) == {}


@pytest.fixture
def failed(tmp_path: Path) -> str:
    """A replica at whose transaction 2 replay has failed."""
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)"], [Rows("t", ("1, 'a'",), ("2, NULL",))])
    into = str(tmp_path / "copy.duckdb")
    with pytest.raises(wlr.ReplayError):
        wlr.replicate(farm.url, into=into, register=False)
    return into


def quarantine(into: str) -> list[tuple[Any, ...]]:
    with attached(into) as connection:
        tables = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'quarantine'")
        if tables.fetchall() == [(0,)]:
            return []
        return connection.execute("FROM wlr.quarantine ORDER BY tick, weight").fetchall()


def test_rows_and_acceptance_are_one_transaction(failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(states, "write", die)
    with pytest.raises(KeyboardInterrupt):
        wlr.accept(failed)
    monkeypatch.undo()
    status = wlr.status(failed)
    assert (status.accepted, status.failure is None, quarantine(failed)) == ((), False, [])
    wlr.accept(failed)
    rows = [(*row[:4], json.loads(row[4]), row[5]) for row in quarantine(failed)]
    assert rows == [
        (2, "main", "t", -1, {"i": 2, "v": None}, None),
        (2, "main", "t", 1, {"i": 1, "v": "a"}, None),
    ]
    wlr.replicate(into=failed, register=False)
    wlr.unlock(failed)
    with duckdb.connect(failed) as connection:
        connection.execute("INSERT INTO t VALUES (2, NULL)")
    monkeypatch.setattr(states, "write", die)
    with pytest.raises(KeyboardInterrupt):
        wlr.retry(failed)
    monkeypatch.undo()
    assert (wlr.status(failed).accepted, len(quarantine(failed))) == ((2,), 2)
    assert wlr.retry(failed) == [wlr.Retried(2, 2)]
    assert (wlr.status(failed).accepted, quarantine(failed)) == ((), [])


def test_the_command(failed: str, capsys: pytest.CaptureFixture[str]) -> None:
    wlr.accept(failed)
    assert run_app(app, "wlr", ["replicate", "--into", failed]) == 0
    assert run_app(app, "wlr", ["replica", "retry", failed]) == 5
    shown = capsys.readouterr().err
    assert "transaction 2 cannot be applied" in shown
    assert f"hint: wlr repair {failed} --table TABLE" in shown
    assert run_app(app, "wlr", ["replica", "retry", failed, "--tick", "9"]) == 2
