"""What a replica refuses: targets out of reach, damaged or foreign farms, statements that are no schema changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows, rows_of, secret_folder
from wlc.farm import paths
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, GapError, InvalidError, ReplayError
from wlc.farm.model import CreatedObject, DbObject, Ddl, Name, Origin
from wlc.farm.registry import replicas

if TYPE_CHECKING:
    from collections.abc import Callable


KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "copy.duckdb"


def rows(*ids: int) -> tuple[str, ...]:
    return tuple(f"{id_}, 'a'" for id_ in ids)


def log_file(farm: HandmadeFarm, number: int) -> Path:
    return Path(farm.db.logs.url) / paths.log_path("sales", number)


def refused(kind: type[FarmError], into: Path, master: str | None = None, **options: Any) -> FarmError:
    """Replicate, expect an error of a kind, and check that nothing was touched."""
    before = {path: path.stat().st_mtime_ns for path in into.parent.iterdir()}
    with pytest.raises(kind) as caught:
        wlr.replicate(master, into=into, **options)
    assert {path: path.stat().st_mtime_ns for path in into.parent.iterdir()} == before
    return caught.value


# Targets


def test_targets_out_of_reach(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))], [Rows("t", rows(2))])
    assert "farm's last one is 3" in str(refused(InvalidError, into, farm.url, tick=4))
    wlr.replicate(farm.url, into=into, tick=2)
    assert "farm's last one is 3" in str(refused(InvalidError, into, tick=4))
    assert "future" in str(refused(InvalidError, into, until="2999-01-01"))
    assert "exclude each other" in str(refused(InvalidError, into, until="now", tick=3))
    refused(InvalidError, into, tick=-1)
    refused(InvalidError, into, until="some day")


def test_pruned_log(farm: HandmadeFarm, into: Path, tmp_path: Path) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into, tick=1)
    at_end = tmp_path / "end.duckdb"
    wlr.replicate(farm.url, into=at_end)
    farm.publish([Rows("t", rows(2))])
    farm.db.delete_batch(1)
    assert "after tick 1 was pruned: batch 1 is gone" in str(refused(ExpiredError, into))
    # The other one has all of the batch that is gone.
    assert wlr.replicate(into=at_end).tick == 3
    farm.publish([Rows("t", rows(3))])
    farm.db.delete_batch(2)
    assert refused(ExpiredError, tmp_path / "new.duckdb", farm.url).hint is not None


def test_missing_batch(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    farm.publish([Rows("t", rows(1))])
    farm.publish([Rows("t", rows(2))])
    log_file(farm, 2).unlink()
    with pytest.raises(GapError, match="batch 2 of sales is missing"):
        wlr.replicate(farm.url, into=into)
    assert wlr.tick(into) == 0 or rows_of(into, "FROM t") == []


# Another past


def restored(tmp_path: Path, *batches: list[object]) -> HandmadeFarm:
    """A farm of the same name that went another way."""
    other = HandmadeFarm(tmp_path / "other")
    for batch in batches:
        other.publish(batch)
    return other


def test_master_restored_from_a_backup(farm: HandmadeFarm, into: Path, tmp_path: Path) -> None:
    farm.publish([KEYED])
    farm.publish([Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    same_length = restored(tmp_path / "a", [KEYED], [Rows("t", rows(9))])
    assert "differs from the one that its reader has read" in str(refused(CorruptError, into, same_length.url))
    shorter = restored(tmp_path / "b", [KEYED])
    assert "farm ends at tick 1" in str(refused(CorruptError, into, shorter.url))
    longer = restored(tmp_path / "c", [KEYED], [Rows("t", rows(9))], [Rows("t", rows(10))])
    longer.db.delete_batch(1)
    longer.db.delete_batch(2)
    assert "hash chain is broken" in str(refused(CorruptError, into, longer.url))


def test_master_restored_from_a_backup_that_got_further_in_fewer_batches(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    chain, tick = farm.chain, farm.tick
    for number in range(4):
        farm.publish([Rows("t", rows(number))])
    wlr.replicate(farm.url, into=into)
    while farm.batch > 1:
        farm.take_back(chain, tick)
    farm.publish(*([Rows("t", rows(number))] for number in range(10, 20)))
    for stop in (None, 9, 5, 2):
        with pytest.raises(CorruptError, match="ends at batch 2, its reader is at tick 5.* in batch 5") as caught:
            wlr.replicate(into=into, tick=stop)
        assert str(caught.value.hint).endswith(f"wlr replicate --into {into} --rebase")
    assert wlr.replicate(into=into, rebase=True).rebuilt_because
    assert rows_of(into, "SELECT min(id), count(*) FROM t") == [(10, 10)]


def test_new_history(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    farm.history, farm.parent = "h2", Origin("h1", 2)
    farm.publish([Rows("t", rows(2))])
    assert wlr.replicate(into=into).tick == 3
    assert wlr.status(into).history == "h2"
    farm.history, farm.parent = "h3", Origin("h2", 2)
    farm.publish([Rows("t", rows(3))])
    assert "began" not in str(refused(InvalidError, into))
    assert "history h3" in str(refused(InvalidError, into))


# Damage


def test_damaged_data_file_is_named_and_nothing_of_it_applied(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    farm.publish([Rows("t", rows(1))], [Rows("t", rows(2))])
    file = next(log_file(farm, 2).with_name(log_file(farm, 2).name + ".d").iterdir())
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(CorruptError, match=file.name):
        wlr.replicate(farm.url, into=into)
    assert wlr.tick(into) == 1
    assert rows_of(into, "FROM t") == []
    assert wlr.status(into).failure is None


def test_damaged_log_file(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    wlr.replicate(farm.url, into=into)
    farm.publish([Rows("t", rows(1))])
    path = log_file(farm, 2)
    text = path.read_bytes()
    path.unlink()
    path.write_bytes(text[:-20])
    assert path.name in str(refused(CorruptError, into))


# Files that are no replicas


def empty(path: Path) -> None:
    path.touch()


def empty_database(path: Path) -> None:
    duckdb.connect(str(path)).close()


def database(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS a")


def text_file(path: Path) -> None:
    path.write_text("hello" * 5000)


def folder_of_others(path: Path) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("hello")


@pytest.mark.parametrize("make", [database, text_file, folder_of_others])
def test_what_is_no_replica_is_left_alone(farm: HandmadeFarm, into: Path, make: Callable[[Path], None]) -> None:
    farm.publish([KEYED])
    make(into)
    refused(InvalidError, into, farm.url)
    for ask in (wlr.status, wlr.tick, wlr.clock, wlr.beat, wlr.accept):
        with pytest.raises(InvalidError):
            ask(into)


@pytest.mark.parametrize("make", [empty, empty_database])
def test_empty_files_are_taken(farm: HandmadeFarm, into: Path, make: Callable[[Path], None]) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    make(into)
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "FROM t") == [(1, "a")]


def test_no_such_things(farm: HandmadeFarm, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WLC_FARM", raising=False)
    farm.publish([KEYED])
    assert "needs a master" in str(refused(InvalidError, into))
    assert "no database 'other'" in str(refused(InvalidError, into, "other", farm=str(farm.folder)))
    assert "no farm" in str(refused(InvalidError, into, "sales"))
    with pytest.raises(InvalidError, match="no folder"):
        wlr.replicate(farm.url, into=into.parent / "no" / "copy.duckdb")
    assert replicas(farm.db) == []
    with pytest.raises(InvalidError, match="no replica"):
        wlr.tick(into)
    wlr.replicate(farm.url, into=into)
    with pytest.raises(InvalidError, match="no transaction has failed"):
        wlr.accept(into)
    for beat_s in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidError, match="beat"):
            wlr.beat(into, beat_s)
    assert (wlr.beat(into, 7), wlr.beat(into)) == (7.0, 7.0)


# Guard


DIRECT = [
    "INSERT INTO t VALUES (2, 'b')",
    "UPDATE t SET v = 'b'",
    "DELETE FROM t WHERE id = 99",
    "TRUNCATE t",
    "INSERT OR REPLACE INTO t VALUES (1, 'b')",
    "INSERT INTO t VALUES (2, 'b') ON CONFLICT DO NOTHING",
    "MERGE INTO t USING (SELECT 1 AS id) AS s ON t.id = s.id WHEN MATCHED THEN DELETE",
]


@pytest.mark.slow
@pytest.mark.parametrize("statement", DIRECT)
def test_replicated_tables_are_guarded(farm: HandmadeFarm, into: Path, statement: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    with duckdb.connect(str(into)) as connection:
        with pytest.raises(duckdb.Error):
            connection.execute(statement)
        assert connection.execute("FROM t").fetchall() == [(1, "a")]
        connection.execute("CREATE TABLE mine AS FROM t")
        connection.execute("INSERT INTO mine VALUES (5, 'mine')")
    farm.publish([Rows("t", rows(2))])
    wlr.replicate(into=into)
    assert rows_of(into, "SELECT count(*) FROM mine") == [(2,)]


OBSTACLES = {
    "foreign key": (
        "CREATE TABLE mine (id INTEGER REFERENCES t (id)); INSERT INTO mine VALUES (1)",
        "table main.mine belongs to the replica's owner, and refers to rows that the transaction removes",
        "DROP TABLE mine",
    ),
    "trigger": (
        "CREATE TABLE seen (id INTEGER CHECK (id < 2));"
        " CREATE TRIGGER own AFTER INSERT ON t REFERENCING NEW TABLE AS n FOR EACH STATEMENT"
        " INSERT INTO seen SELECT id FROM n",
        "trigger own on replicated table main.t belongs to the replica's owner",
        "DROP TRIGGER own ON t",
    ),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_what_the_owner_ties_to_a_replicated_table_is_the_replicas_own(
    farm: HandmadeFarm, into: Path, kind: str
) -> None:
    made, named, undone = OBSTACLES[kind]
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    wlr.unlock(into)
    with duckdb.connect(str(into)) as connection:
        connection.execute(made)
    wlr.lock(into)
    farm.publish([Rows("t", rows(2), rows(1))])
    with pytest.raises(ReplayError, match=f"transaction 3.*{named}") as caught:
        wlr.replicate(into=into)
    assert "replicate again" in str(caught.value.hint)
    with pytest.raises(InvalidError, match=f"transaction 3 is sound and cannot be skipped: {named}"):
        wlr.accept(into)
    with duckdb.connect(str(into)) as connection:
        connection.execute(undone)
    wlr.replicate(into=into)
    assert rows_of(into, "FROM t") == [(2, "a")]


SCHEMA_CHANGES = [
    ("ALTER TABLE t RENAME TO t2", "t2"),
    ("ALTER TABLE t RENAME COLUMN v TO w", "t"),
    ("ALTER TABLE t DROP COLUMN v", "t"),
    ("ALTER TABLE t ALTER v TYPE BLOB", "t"),
    ("CREATE OR REPLACE TABLE t (id INTEGER, v VARCHAR)", "t"),
    ('ALTER TABLE "hand"."main"."t" ADD COLUMN z INTEGER DEFAULT 5', "t"),
]


@pytest.mark.parametrize("statement, table", SCHEMA_CHANGES)
def test_guards_do_not_hinder_schema_changes_and_survive_them(
    farm: HandmadeFarm, into: Path, statement: str, table: str
) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER, v VARCHAR)"], [Rows("t", rows(1))])
    ddl = farm.ddl(statement.replace("hand", farm.hand))
    farm.publish([replace(ddl, statement=statement.replace("hand", "sales"))])
    wlr.replicate(farm.url, into=into)
    assert wlr.tick(into) == 3
    with (
        duckdb.connect(str(into)) as connection,
        pytest.raises(duckdb.Error, match=f"main.{table} belongs to a replica"),
    ):
        connection.execute(f"INSERT INTO {table} (id) VALUES (7)")


# Statements that are no schema changes


FORBIDDEN = [
    "ATTACH '{folder}/x.db' AS x",
    "COPY (SELECT 1) TO '{folder}/x.csv'",
    "INSTALL httpfs",
    "SET memory_limit = '1MB'",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "DELETE FROM t",
    "INSERT INTO t VALUES (1, 'b')",
    "SELECT 1",
    "CREATE TABLE a (b INTEGER); DROP TABLE t",
    "CREATE SECRET s (TYPE s3)",
    "CREATE OR REPLACE TEMP TABLE x (a INTEGER)",
    "DROP SCHEMA wlr CASCADE",
    'DROP SCHEMA IF EXISTS "WLR" CASCADE',
    "DROP SCHEMA 'wlr' CASCADE",
    "DROP SCHEMA sales.wlr CASCADE",
    "DROP TABLE wlr.state",
    'ALTER TABLE sales."wlr" . state RENAME TO x',
    "CREATE TABLE x AS FROM read_csv('{folder}/secret.csv')",
    "CREATE VIEW x AS FROM '{folder}/secret.csv'",
    "DROP",
    "",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_statement_from_the_farm_cannot_leave_the_schema(
    farm: HandmadeFarm, into: Path, tmp_path: Path, statement: str
) -> None:
    outside = secret_folder(tmp_path)
    farm.publish([KEYED], [Rows("t", rows(1))])
    farm.publish([Ddl("CREATE TABLE", Name("main", "x"), statement.format(folder=outside))])
    with pytest.raises(ReplayError, match=r"transaction 3, table main\.x"):
        wlr.replicate(farm.url, into=into)
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]
    assert wlr.tick(into) == 2
    assert rows_of(into, "FROM t") == [(1, "a")]
    assert rows_of(into, "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main'") == [("t",)]


HARMLESS = [
    "CREATE TABLE wlr (wlr INTEGER)",
    "CREATE TABLE x (a VARCHAR DEFAULT 'DROP SCHEMA wlr', b VARCHAR DEFAULT $$wlr.$$) -- wlr.state",
    "CREATE VIEW temp AS SELECT 'wlr.state' AS secret",
    "COMMENT ON TABLE t IS 'wlc.x; and ''more'''",
    "CREATE MACRO m(a) AS a + 1",
    "CREATE INDEX i ON t (v)",
]


@pytest.mark.parametrize("statement", HARMLESS)
def test_schema_changes_of_all_sorts_pass(farm: HandmadeFarm, into: Path, statement: str) -> None:
    farm.publish([KEYED])
    farm.publish([statement])
    wlr.replicate(farm.url, into=into)
    assert wlr.tick(into) == 2


def test_triggers_of_the_master_do_not_fire_again(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED, "CREATE TABLE log (a INTEGER)"])
    trigger = "CREATE TRIGGER tr AFTER INSERT ON t FOR EACH STATEMENT INSERT INTO log VALUES (1)"
    does = (CreatedObject(DbObject("TRIGGER", Name("main", "tr")), of=Name("main", "t")),)
    farm.publish(
        [Ddl("CREATE TRIGGER", Name("main", "tr"), trigger, does=does)], [Rows("t", rows(1)), Rows("log", ("1",))]
    )
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "FROM log") == [(1,)]


# Some tables only


def test_patterns_are_remembered_and_everything_else_left_out(farm: HandmadeFarm, into: Path) -> None:
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
    wlr.replicate(farm.url, into=into, tables=["sales_*"], tick=6)
    assert wlr.replicate(into=into).tick == 10
    assert rows_of(into, "SELECT table_name FROM duckdb_tables() WHERE schema_name = 's' ORDER BY 1") == [
        ("sales_a",),
        ("sales_b",),
    ]
    assert rows_of(into, "FROM s.sales_a UNION ALL FROM s.sales_b") == [(2,), (7,)]
    assert wlr.status(into).tables == ("sales_*",)
    assert "tables sales_*" in str(refused(InvalidError, into, tables=["x"]))


def test_failure_of_a_wanted_table_is_one_with_patterns_too(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    farm.publish([Ddl("ALTER TABLE", Name("main", "t"), "ALTER TABLE t DROP COLUMN nothing")])
    with pytest.raises(ReplayError, match="transaction 2"):
        wlr.replicate(farm.url, into=into, tables=["t"])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["replica.duckdb", "lake"])
@pytest.mark.parametrize("published", [0, 1])
def test_a_replica_of_an_empty_database_is_told_of_changes_that_no_log_has(
    tmp_path: Path, target: str, published: int
) -> None:
    source, into = tmp_path / "sales.duckdb", tmp_path / target
    duckdb.connect(str(source)).close()
    wlc.master(source)
    assert wlr.replicate(source, into=into).tick == 0
    for _ in range(published):
        with wlc.connect(source) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    wlc.stop(source)
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE behind AS SELECT 2 AS a")
    wlc.master(source)
    for is_published in (False, True):
        if is_published:
            with wlc.connect(source) as connection:
                connection.execute("CREATE TABLE later AS SELECT 3 AS a")
        with pytest.raises(InvalidError, match=f"^the history ended at tick {published + 1};"):
            wlr.replicate(into=into)
        assert wlr.replicate(into=into, tick=published).tick == published
    shutil.rmtree(into) if into.is_dir() else into.unlink()
    assert wlr.replicate(source, into=into).tick == wlc.tick(source) > published
