"""Parquet replicas where they differ from DuckDB files: on object stores, with patterns, failures, statements refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows, secret_folder, time_of
from tests.lake import lake_contents, rebuilt, surplus, version_of
from tests.oracle import file_contents
from wlc.farm.errors import InvalidError, ReplayError
from wlc.farm.model import Ddl, Name, SequencePosition
from wlc.farm.registry import replicas

if TYPE_CHECKING:
    from pathlib import Path

KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def rows(*ids: int, v: str = "a") -> tuple[str, ...]:
    return tuple(f"{id_}, '{v}'" for id_ in ids)


def in_t(lake: Path | str) -> list[tuple[str | None, ...]]:
    return sorted(lake_contents(lake)["main.t"].elements())


# Object stores


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["memory", "s3"])
def test_object_stores(scheme: str, tmp_path: Path, s3_url: str) -> None:
    source = tmp_path / "sales.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'é')"
        )
        connection.execute('CREATE TABLE "é b" (x DOUBLE); CREATE SEQUENCE s START 5')
    wlc.master(source, farm=s3_url)
    lake = s3_url.replace("/farm", "/lake") if scheme == "s3" else f"memory://{tmp_path.name}/lake"
    assert wlr.replicate(source, into=lake, engine="local").snapshot == 0
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t SELECT i, 'v' || i FROM range(10, 500) r(i)")
        connection.execute("UPDATE t SET v = NULL WHERE id < 20; SELECT nextval('s')")
        connection.execute('INSERT INTO "é b" VALUES (1.5), (1.5), (-0.0); ALTER TABLE t ADD COLUMN w INTEGER')
    assert wlr.replicate(into=lake, tick=2, engine="local").tick == 2
    assert wlr.replicate(into=lake, engine="local").tick == wlc.tick(source)
    assert lake_contents(lake) == file_contents(source)
    assert surplus(lake) == []
    assert (wlr.tick(lake), wlr.status(lake).lag_transactions) == (wlc.tick(source), 0)
    assert [file.startswith(f"{lake}/data/main.") for file in wlr.files(lake, "é b")] == [True]
    assert wlr.prune(lake, keep="0").oldest == wlc.tick(source)
    assert lake_contents(lake) == file_contents(source)
    assert surplus(lake) == []


# Targets


def test_targets_out_of_reach(farm: HandmadeFarm, lake: Path) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))], [Rows("t", rows(2))])
    with pytest.raises(InvalidError, match="farm's last one is 3"):
        wlr.replicate(farm.url, into=lake, tick=4, engine="local")
    assert not lake.exists()
    wlr.replicate(farm.url, into=lake, tick=2, engine="local")
    before = (lake / "wlr.pointer").read_bytes()
    for options in ({"tick": 4}, {"tables": ["x"]}):
        with pytest.raises(InvalidError):
            wlr.replicate(into=lake, engine="local", **options)
    assert (lake / "manifests").is_dir()
    assert version_of(lake).position.tick == 2
    planned = wlr.replicate(into=lake, dry_run=True, engine="local")
    assert (planned.tick, planned.transactions) == (3, 1)
    assert len((lake / "wlr.pointer").read_bytes()) == len(before)
    assert wlr.replicate(into=lake, until=time_of(3), engine="local").clock == time_of(3)
    assert in_t(lake) == [("1", "a"), ("2", "a")]
    again = wlr.replicate(into=lake, engine="local")
    assert (again.tick, again.transactions) == (3, 0)
    (replica,) = replicas(farm.db)
    assert (replica.target, replica.clock) == (str(lake), time_of(3))


# Failures


# Statements and names


FORBIDDEN = [
    "ATTACH '{folder}/x.db' AS x",
    "COPY (SELECT 1) TO '{folder}/x.csv'",
    "INSERT INTO t VALUES (1, 'b')",
    "CREATE TABLE a (b INTEGER); DROP TABLE t",
    "CREATE TABLE x AS FROM read_csv('{folder}/secret.csv')",
    "ALTER TABLE t ADD COLUMN s VARCHAR DEFAULT (SELECT content FROM read_text('{folder}/secret.csv'))",
    "ALTER TABLE t ALTER v TYPE VARCHAR USING (SELECT content FROM read_text('{folder}/secret.csv'))",
    "ALTER TABLE t ALTER v TYPE INTEGER",
]


@pytest.mark.slow
@pytest.mark.parametrize("statement", FORBIDDEN)
def test_statement_from_the_farm_cannot_leave_the_schema(
    farm: HandmadeFarm, lake: Path, tmp_path: Path, statement: str
) -> None:
    outside = secret_folder(tmp_path)
    farm.publish([KEYED], [Rows("t", rows(1))])
    farm.publish([Ddl("ALTER TABLE", Name("main", "t"), statement.format(folder=outside))])
    with pytest.raises(ReplayError, match=r"transaction 3, table main\.t"):
        wlr.replicate(farm.url, into=lake, engine="local")
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]
    assert lake_contents(lake) == {"main.t": Counter([("1", "a")])}
    assert surplus(lake) == []


@pytest.mark.slow
def test_patterns_are_remembered_and_everything_else_left_out(farm: HandmadeFarm, lake: Path) -> None:
    farm.publish(["CREATE SCHEMA s"], ["CREATE TABLE s.sales_a (a INTEGER)"], ["CREATE TABLE s.other (a INTEGER)"])
    farm.publish(
        ["CREATE VIEW s.both AS SELECT * FROM s.sales_a, s.other"],
        ["CREATE INDEX i ON s.other (a)"],
        [Rows("s.sales_a", ("1", "2")), Rows("s.other", ("1",))],
        ["ALTER TABLE s.other ADD COLUMN b INTEGER"],
        ["DROP VIEW s.both"],
        ["DROP TABLE s.other"],
        ["CREATE TABLE s.sales_b (a INTEGER)", Rows("s.sales_b", ("7",)), Rows("s.sales_a", (), ("1",))],
    )
    wlr.replicate(farm.url, into=lake, tables=["sales_*"], tick=6, engine="local")
    assert wlr.replicate(into=lake, engine="local").tick == 10
    assert lake_contents(lake) == {"s.sales_a": Counter([("2",)]), "s.sales_b": Counter([("7",)])}
    assert wlr.status(lake).tables == ("sales_*",)
    assert surplus(lake) == []


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["memory", "wlr_scratch", 'my "master"'])
def test_names_of_all_sorts(tmp_path: Path, lake: Path, catalog: str) -> None:
    farm = HandmadeFarm(tmp_path / "farm", catalog=catalog)
    long = "ü" * 100
    columns = '"or""der" INTEGER PRIMARY KEY, "_tick" VARCHAR, "ü ñ" DOUBLE, part INTEGER, "range" INTEGER'
    farm.publish(['CREATE SCHEMA "a.b/.."', f'CREATE TABLE "a.b/.."."{long}*?" ({columns})'])
    table = f"a.b/...{long}*?"
    farm.publish([Rows(table, ("1, 'x', 1.0, 5, 6", "2, 'y', NULL, 7, 8"))])
    farm.publish([Rows(table, ("1, 'z', 1.0, 5, 6",), ("1, 'x', 1.0, 5, 6",))])
    farm.publish([f'ALTER TABLE "a.b/.."."{long}*?" RENAME "_tick" TO "_weight"'])
    wlr.replicate(farm.url, into=lake, engine="local")
    assert lake_contents(lake) == {table: Counter([("1", "z", "1.0", "5", "6"), ("2", "y", None, "7", "8")])}


@pytest.mark.slow
def test_several_changes_of_schema_and_rows_in_one_step(farm: HandmadeFarm, lake: Path) -> None:
    reads = ["CREATE MACRO m() AS TABLE SELECT * FROM t", "CREATE MACRO n() AS (SELECT count(*) FROM t)"]
    farm.publish([KEYED, "CREATE SEQUENCE s", Rows("t", rows(1, 2)), *reads])
    wlr.replicate(farm.url, into=lake, engine="local")
    farm.publish(
        [
            Rows("t", rows(3), rows(1)),
            "ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 5",
            Rows("t", ("4, 'd', 6",), ("2, 'a', 5",)),
            "DROP MACRO TABLE m",
            "ALTER TABLE t RENAME TO u",
            "CREATE TABLE t (a INTEGER)",
            Rows("t", ("1", "1")),
            "ALTER TABLE u DROP COLUMN v",
            SequencePosition(Name("main", "s"), 9),
        ]
    )
    wlr.replicate(into=lake, engine="local")
    assert lake_contents(lake) == {"main.t": Counter({("1",): 2}), "main.u": Counter([("3", "5"), ("4", "6")])}
    with rebuilt(lake) as (connection, _):
        assert connection.execute("SELECT nextval('s')").fetchall() == [(10,)]
    assert surplus(lake) == []
