"""Open tables: readers of Delta tables see what a Parquet replica holds, at every tick, over the same files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import duckdb
import pytest
from deltalake import write_deltalake

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import folder_of, surplus, version_of
from tests.open_lake import check_open, delta_rows, delta_table, lake_rows
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.model import Name
from wlr.engine.parquet import open_tables
from wlr.engine.parquet.folder import TakenOverError
from wlr.engine.parquet.open_tables import MARKER, OpenTables

if TYPE_CHECKING:
    from pathlib import Path

T = Name("main", "t")
KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    made = HandmadeFarm(tmp_path / "farm")
    made.publish([KEYED, Rows("t", ("1, 'a'", "2, 'b'"))])
    return made


@pytest.fixture
def lake(farm: HandmadeFarm, tmp_path: Path) -> Path:
    lake = tmp_path / "lake"
    wlr.replicate(farm.url, into=lake, engine="local", open_tables="delta")
    return lake


def inodes(lake: Path) -> set[int]:
    return {file.stat().st_ino for file in lake.rglob("*.parquet")}


@pytest.mark.slow
def test_every_tick_is_read_and_remembered(farm: HandmadeFarm, lake: Path) -> None:
    check_open(lake)
    for transaction in (
        [Rows("t", ("3, 'c'",), ("1, 'a'",))],
        ["ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7"],
        ["ALTER TABLE t RENAME COLUMN v TO n2"],
        ["ALTER TABLE t ALTER COLUMN n TYPE BIGINT", Rows("t", ("4, NULL, 5000000000",))],
        ["ALTER TABLE t DROP COLUMN n"],
        ["CREATE TABLE bag (moment TIMESTAMP)", Rows("bag", ("'2026-01-01 12:00'",) * 2)],
    ):
        farm.publish(transaction)
        wlr.replicate(into=lake, engine="local")
        check_open(lake)
        newest = delta_table(lake, T).history(1)[0]
        assert newest["dbfarm_history"] == farm.history
    opened = delta_table(lake, T)
    ticks = {entry["version"]: entry["dbfarm_tick"] for entry in opened.history()}
    assert ticks == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6}, "and nothing at tick 7, which left it as it was"
    for version, tick in ticks.items():
        assert delta_rows(delta_table(lake, T, version)) == lake_rows(lake, T, tick)
    assert surplus(lake) == [], "no file was copied"
    assert wlr.status(lake).open_tables == "delta"


@pytest.mark.slow
def test_renamed_dropped_and_made_again(farm: HandmadeFarm, lake: Path) -> None:
    before = inodes(lake)
    farm.publish(["ALTER TABLE t RENAME TO u"])
    wlr.replicate(into=lake, engine="local")
    check_open(lake)
    assert inodes(lake) == before, "the file has a second name"
    assert delta_rows(delta_table(lake, Name("main", "u"))) == {(1, "a"): 1, (2, "b"): 1}
    assert delta_rows(delta_table(lake, T, 0)) == {(1, "a"): 1, (2, "b"): 1}
    farm.publish(["CREATE TABLE t (other DATE)", Rows("t", ("'2026-01-01'",))], ["DROP TABLE u"])
    wlr.replicate(into=lake, engine="local")
    check_open(lake)


@pytest.mark.slow
def test_table_that_was_renamed_before_is_open_from_the_next_step_on(farm: HandmadeFarm, tmp_path: Path) -> None:
    farm.publish(["ALTER TABLE t RENAME TO u"])
    wlr.replicate(farm.url, into=(lake := tmp_path / "lake"), tick=1, engine="local")
    wlr.replicate(into=lake, engine="local")
    with pytest.warns(UserWarning, match=r"Delta table main.u is left out: files from before its rename"):
        wlr.replicate(into=lake, engine="local", open_tables="delta")
    check_open(lake)
    assert list(wlr.status(lake).left_out) == ["Delta table main.u"]
    farm.publish(["CREATE TABLE other (x INTEGER)"])
    wlr.replicate(into=lake, engine="local")
    check_open(lake)
    assert wlr.status(lake).left_out == {}


def test_types(tmp_path: Path) -> None:
    source, lake = tmp_path / "sales.duckdb", tmp_path / "lake"
    columns = {
        "UTINYINT '255'": 255,
        "UINTEGER '4294967295'": 4294967295,
        "UBIGINT '18446744073709551615'": Decimal("18446744073709551615"),
        "HUGEINT '170141183460469231731687303715884105727'": "170141183460469231731687303715884105727",
        "DECIMAL(9,2) '1.25'": Decimal("1.25"),
        "UUID '00112233-4455-6677-8899-aabbccddeeff'": bytes.fromhex("00112233445566778899aabbccddeeff"),
        "INTERVAL '1 day'": "1 day",
        "JSON '[1]'": "[1]",
        "BLOB 'ab'": b"ab",
        "BIT '101'": "101",
        "FLOAT '1.5'": 1.5,
        "INTEGER[] '[1, NULL]'": [1, None],
        "STRUCT(a UTINYINT, b VARCHAR[]) '{a: 7, b: [x]}'": {"a": 7, "b": ["x"]},
        "MAP(VARCHAR, INTEGER) '{k=1}'": {"k": 1},
    }
    names = {f"c{number}": text.rsplit(" '", 1) for number, text in enumerate(columns)}
    with duckdb.connect(str(source)) as connection:
        declared = ", ".join(f"{name} {column_type}" for name, (column_type, _) in names.items())
        connection.execute(f"CREATE TABLE t (local TIMESTAMP, zoned TIMESTAMPTZ, _tick DATE, {declared})")
        values = ", ".join(f"'{value}" for _, value in names.values())
        connection.execute(f"INSERT INTO t VALUES ('2026-01-01 12:00', '2026-01-01 12:00Z', '2026-01-01', {values})")
        connection.execute(
            'CREATE TABLE noon (x TIME); CREATE TABLE spaced ("a b" INTEGER); CREATE TABLE é (x INTEGER)'
        )
        connection.execute('CREATE TABLE nested (x STRUCT(a TIMESTAMP_NS[])); CREATE TABLE "a b" (x INTEGER)')
        connection.execute("CREATE TABLE variants (x VARIANT[])")
        connection.execute("CREATE TABLE alike (x STRUCT(value VARCHAR, metadata BLOB))")
        connection.execute("CREATE TABLE shredded (x STRUCT(metadata BLOB, value BLOB, typed_value INTEGER))")
        connection.execute(
            "CREATE TABLE fits (x STRUCT(metadata BLOB, value BLOB, z INTEGER), y STRUCT(metadata INTEGER))"
        )
        connection.execute('INSERT INTO "a b" VALUES (1)')
    wlc.master(source, farm=str(tmp_path / "farm"))
    with pytest.warns(UserWarning, match="is left out") as warned:
        wlr.replicate(source, into=lake, engine="local", open_tables="delta")
    left = wlr.status(lake).left_out
    assert {what: cause.partition(" such")[0] for what, cause in left.items()} == {
        **dict.fromkeys(
            ("Delta table main.variants", "Delta table main.alike", "Delta table main.shredded"),
            "column x: DuckDB's delta_scan takes a STRUCT of metadata and value, as of a VARIANT, for a VARIANT",
        ),
        "Delta table main.nested": "column x: Delta has no type for TIMESTAMP_NS",
        "Delta table main.noon": "column x: Delta has no type for TIME",
        "Delta table main.spaced": "column a b: Delta allows none of ' ,;{}()=' and no line ends or tabs in the name 'a b'",
        "Delta table main.é": "delta-rs opens no folder with a percent sign,",
    }
    assert len(warned) == len(left)
    assert not (lake / "data/main.noon/_delta_log").exists()
    assert delta_rows(delta_table(lake, Name("main", "a b"))) == {(1,): 1}
    opened = delta_table(lake, T).to_pyarrow_table()
    assert [str(opened.schema.field(name).type) for name in ("local", "zoned", "__tick")] == [
        "timestamp[us]",
        "timestamp[us, tz=UTC]",
        "date32[day]",
    ]
    row = opened.to_pylist(maps_as_pydicts="strict")[0]
    assert [row[name] for name in names] == list(columns.values())


@pytest.mark.slow
def test_going_back_and_making_anew_continue_the_log(farm: HandmadeFarm, lake: Path) -> None:
    farm.publish([Rows("t", ("3, 'c'",), ("1, 'a'",))])
    farm.publish(["ALTER TABLE t ADD COLUMN n INTEGER"])
    farm.publish([Rows("t", ("4, 'd', 4",))])
    for tick, anew in ((4, False), (3, False), (1, True), (4, False)):
        done = wlr.replicate(into=lake, tick=tick, engine="local")
        assert bool(done.rebuilt_because) == anew
        check_open(lake)
        assert delta_table(lake, T).history(1)[0]["dbfarm_tick"] == tick
    assert wlr.status(lake).open_tables == "delta"


@pytest.mark.slow
def test_pruning_keeps_what_the_newest_version_needs(farm: HandmadeFarm, lake: Path) -> None:
    for number in range(3, 6):
        farm.publish([Rows("t", (f"{number}, 'new'",))])
        wlr.replicate(into=lake, engine="local")
    wlr.prune(lake, keep="1")
    check_open(lake)
    assert delta_rows(delta_table(lake, T, 2)) == lake_rows(lake, T, 3)
    with pytest.raises(FileNotFoundError):
        delta_rows(delta_table(lake, T, 0))


# Others who write, and runs that end in between


def test_what_others_write_to_the_log_is_taken_back(farm: HandmadeFarm, lake: Path) -> None:
    write_deltalake(f"{lake}/data/main.t", delta_table(lake, T).to_pyarrow_table(), mode="append")
    assert delta_rows(delta_table(lake, T)) != lake_rows(lake, T)
    farm.publish([Rows("t", ("3, 'c'",))])
    wlr.replicate(into=lake, engine="local")
    check_open(lake)
    assert delta_table(lake, T).version() == 2


@pytest.mark.slow
def test_a_run_that_died_before_the_logs_is_finished_by_the_next(
    farm: HandmadeFarm, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.publish(["CREATE TABLE u (x INTEGER)", Rows("u", ("1",)), Rows("t", ("3, 'c'",))])
    create, written = type(folder_of(lake).store).create, []

    def dying(store: object, path: str, data: object) -> None:
        if "_delta_log/" in path:
            written.append(path)
            if len(written) == 2:
                raise KeyboardInterrupt
        create(store, path, data)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(type(folder_of(lake).store), "create", dying)
        with pytest.raises(KeyboardInterrupt):
            wlr.replicate(into=lake, engine="local")
    assert wlr.tick(lake) == 2
    assert not (lake / "data/main.u/_delta_log").exists()
    # Another program does no more than open it.
    wlr.pause(lake)
    check_open(lake)
    before = {file: file.stat().st_mtime_ns for file in lake.rglob("_delta_log/*")}
    wlr.resume(lake)
    assert {file: file.stat().st_mtime_ns for file in lake.rglob("_delta_log/*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("has_read", [True, False])
def test_a_run_that_was_halted_writes_nothing(farm: HandmadeFarm, lake: Path, *, has_read: bool) -> None:
    found, before = folder_of(lake).find(), version_of(lake)
    assert found is not None
    halted = OpenTables(folder_of(lake), found[0].run)
    if has_read:
        halted.level(before, found[0].manifest)
    farm.publish([Rows("t", ("3, 'c'",), ("1, 'a'",))])
    wlr.replicate(into=lake, engine="local")
    its_own = replace(before, tables=tuple(replace(table, parts=()) for table in before.tables))
    with pytest.raises(TakenOverError):
        halted.level(its_own, "manifests/000000000002-0.json")
    check_open(lake)
    assert delta_table(lake, T).version() == 1


@pytest.mark.slow
@pytest.mark.parametrize("by", ["dbfarm", "delta-rs"])
def test_checkpoints(farm: HandmadeFarm, lake: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(open_tables, "EVERY", 2 if by == "dbfarm" else 1000)
    farm.publish(["ALTER TABLE t ADD COLUMN moment TIMESTAMP"])
    wlr.replicate(into=lake, engine="local")
    farm.publish([Rows("t", ("3, 'c', '2026-01-01'",))])
    wlr.replicate(into=lake, engine="local")
    if by == "delta-rs":
        delta_table(lake, T).create_checkpoint()
    log = lake / "data/main.t/_delta_log"
    assert (log / f"{2:020d}.checkpoint.parquet").exists()
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    check_open(lake)
    (lake / MARKER).unlink()
    farm.publish([Rows("t", ("4, 'd', NULL",), ("1, 'a', NULL",))])
    wlr.replicate(into=lake, engine="local")
    check_open(lake)
    assert delta_table(lake, T).version() == 3


def test_a_log_that_lacks_entries_is_named_and_can_be_made_anew(farm: HandmadeFarm, lake: Path) -> None:
    farm.publish([Rows("t", ("3, 'c'",))])
    wlr.replicate(into=lake, engine="local")
    (lake / "data/main.t/_delta_log" / f"{0:020d}.json").unlink()
    (lake / MARKER).unlink()
    with pytest.raises(CorruptError, match="the entry before .* is missing") as caught:
        wlr.replicate(into=lake, engine="local")
    assert caught.value.hint is not None
    assert "_delta_log" in caught.value.hint
    shutil.rmtree(lake / "data/main.t/_delta_log")
    wlr.replicate(into=lake, engine="local")
    check_open(lake)


@pytest.mark.slow
def test_bucket(farm: HandmadeFarm, s3_url: str) -> None:
    lake = s3_url.replace("/farm", "/lake")
    wlr.replicate(farm.url, into=lake, engine="local", open_tables="delta")
    farm.publish([Rows("t", ("3, 'c'",), ("1, 'a'",))])
    wlr.replicate(into=lake, engine="local")
    opened = delta_table(lake, T, AWS_ALLOW_HTTP="true")
    assert delta_rows(opened) == {(2, "b"): 1, (3, "c"): 1}
    assert opened.version() == 1


# The option


def test_not_open_unless_asked(farm: HandmadeFarm, tmp_path: Path) -> None:
    lake = tmp_path / "closed"
    wlr.replicate(farm.url, into=lake, engine="local")
    assert list(lake.rglob("_delta_log")) == []
    assert not (lake / MARKER).exists()
    with pytest.raises(InvalidError, match="iceberg"):
        wlr.replicate(into=lake, open_tables="iceberg")
    with pytest.raises(InvalidError, match="--open is for Parquet replicas"):
        wlr.replicate(farm.url, into=tmp_path / "copy.duckdb", open_tables="delta")


def test_closed_and_opened_again(farm: HandmadeFarm, lake: Path) -> None:
    wlr.replicate(into=lake, engine="local", open_tables="none")
    farm.publish([Rows("t", ("3, 'c'",))])
    wlr.replicate(into=lake, engine="local")
    assert delta_table(lake, T).version() == 0
    wlr.replicate(into=lake, engine="local", open_tables="delta")
    check_open(lake)
    assert delta_table(lake, T).version() == 1
