"""`wlr lake attach`: views of a lake have the declared types and the rows of one tick, and leave other things alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlr
from cli.command import run_app
from cli.wlr import app
from tests.handmade import HandmadeFarm, Rows
from tests.scratch import attached
from tests.unit.dialect.test_types import VALUES
from wlc.dialect.sql import literal
from wlc.farm.errors import ExpiredError, InvalidError

if TYPE_CHECKING:
    from pathlib import Path


def test_views_are_those_of_a_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm, lake, into = HandmadeFarm(tmp_path / "farm"), tmp_path / "lake", tmp_path / "views.duckdb"
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(VALUES))
    values = ", ".join(f"{literal(texts[0])}::{declared}" for declared, texts in VALUES.items())
    farm.publish(
        ['CREATE SCHEMA "My s"', f"CREATE TABLE wide ({columns})", 'CREATE TABLE "My s"."No rows" (e UUID, d DATE)'],
        ["CREATE TABLE old (i INTEGER)", Rows("wide", (values,))],
    )
    wlr.replicate(farm.url, into=lake, engine="local", register=False)
    assert run_app(app, "wlr", ["lake", "attach", str(lake), str(into), "--json"]) == 0
    assert '"tick": 2' in capsys.readouterr().out

    def shown(table: str) -> tuple[list[str], list[str], list[str]]:
        with attached(into) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.sql(f"FROM {table}")
            return found.columns, list(map(str, found.types)), list(map(repr, found.fetchall()))

    for table in ("wide", '"My s"."No rows"'):
        relation = wlr.read(lake, table)
        assert shown(table) == (relation.columns, list(map(str, relation.types)), list(map(repr, relation.fetchall())))
    # The lake moves on, and the views stay until they are made again.
    before = shown("wide")
    farm.publish([Rows("wide", (values, values))], ["DROP TABLE old"])
    wlr.replicate(farm.url, into=lake, engine="local", register=False)
    assert shown("wide") == before
    assert wlr.attach(lake, into) == wlr.Attached(4, ("My s.No rows", "main.wide"))
    assert len(shown("wide")[2]) == 3
    with pytest.raises(duckdb.CatalogException):
        shown("old")
    assert wlr.attach(lake, into, tick=2).tick == 2
    assert shown("wide") == before
    wlr.prune(lake, keep="1")
    with pytest.raises(duckdb.IOException):
        shown("wide")
    with pytest.raises(ExpiredError):
        wlr.attach(lake, into, tick=2)
    assert wlr.attach(lake, into).tick == 4


@pytest.mark.slow
def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    farm, lake, copy = HandmadeFarm(tmp_path / "farm"), tmp_path / "lake", tmp_path / "copy.duckdb"
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", ("1",))], ["CREATE TABLE u (i INTEGER)"])
    wlr.replicate(farm.url, into=lake, engine="local", register=False)
    wlr.replicate(farm.url, into=copy, register=False)
    own = tmp_path / "own.duckdb"
    with duckdb.connect(str(own)) as connection:
        connection.execute("CREATE TABLE U AS SELECT 7 AS mine")
    with pytest.raises(InvalidError, match="has a table or view main.u of its own"):
        wlr.attach(lake, own)
    with duckdb.connect(str(own)) as connection:
        assert connection.execute("FROM U").fetchall() == [(7,)]
        assert connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall() == [(0,)]
    with pytest.raises(InvalidError, match="is a replica, and its tables"):
        wlr.attach(lake, copy)
    with pytest.raises(InvalidError, match="wlr lake attach is for Parquet replicas"):
        wlr.attach(copy, own)
