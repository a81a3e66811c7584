"""Proof on demand: a farm, a master and replicas of each kind are compared with what the log says, and put right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app as wlc_app
from cli.wlr import app as wlr_app
from tests.sound import assert_same, assert_sound
from wlc.farm import paths
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, InvalidError, ReplayError, UnsupportedError
from wlc.farm.log import encode_batch
from wlc.farm.model import Digest, Name
from wlr.engine.adapters import target_at

if TYPE_CHECKING:
    from pathlib import Path

KEYED, BAG = Name("main", "keyed"), Name("main", "bag")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A master with a keyed table and a bag, a snapshot, and a batch after it."""
    monkeypatch.setenv("DBFARM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE keyed AS SELECT i AS id, 'v' || i AS v FROM range(1000) AS r(i)")
        connection.execute("ALTER TABLE keyed ADD PRIMARY KEY (id); CREATE TABLE bag (a DOUBLE, b VARCHAR[])")
        connection.execute("INSERT INTO bag SELECT i % 3, ['x', NULL] FROM range(30) AS r(i)")
    wlc.master(path, farm=str(tmp_path / "farm"))
    write(
        path,
        "UPDATE keyed SET v = 'new' WHERE id < 10",
        "DELETE FROM bag WHERE a = 1",
        "INSERT INTO bag VALUES (-0.0, [])",
    )
    return path


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)
    wlc.flush(source)


def database(source: Path) -> FarmDatabase:
    return open_database("sales", str(source.parent / "farm"))


def replicas(source: Path) -> list[Path]:
    made = [source.parent / "copy.duckdb", source.parent / "lake"]
    for place in made:
        wlr.replicate(source, into=place)
    return made


def spoil(place: Path, *statements: str) -> None:
    """Change a replica behind its back."""
    if place.suffix:
        wlr.unlock(place)
        with duckdb.connect(str(place)) as connection:
            for statement in statements:
                connection.execute(statement)
        wlr.lock(place)
        return
    # A lake's files are told apart by their checksums, so a step that nobody published does it.
    state = target_at(place).read_state()
    with target_at(place).open() as target, duckdb.connect() as connection:
        _spoil_lake(place, target, connection, state, statements)


def _spoil_lake(place: Path, target: Any, connection: Any, state: Any, statements: tuple[str, ...]) -> None:
    from tests.lake import to_duckdb
    from wlc.farm.database import describe_file
    from wlc.farm.model import TableFile
    from wlr.care.repairing import repair_step
    from wlr.care.verification import TableFix

    file = to_duckdb(place, place.with_name("lake.duckdb"))
    connection.execute(f"ATTACH '{file}' AS lake; USE lake")
    fixes = []
    for number, name in enumerate((KEYED, BAG)):
        layout = next(t.layout for t in target.current.tables if t.table == name)
        columns = ", ".join(column.name for column in layout.stored)
        connection.execute(f"CREATE TEMP TABLE before AS SELECT {columns} FROM {name.sql}")
        for statement in statements:
            if f" {name.name} " in f"{statement} ":
                connection.execute(statement)
        images = (
            f"SELECT {state.position.tick}::BIGINT AS _tick, w::TINYINT AS _weight, * EXCLUDE (w) FROM ("
            f"SELECT -1 AS w, * FROM (FROM before EXCEPT ALL SELECT {columns} FROM {name.sql}) UNION ALL"
            f" SELECT 1, * FROM (SELECT {columns} FROM {name.sql} EXCEPT ALL FROM before))"
        )
        local = place.with_name(f"{number}.parquet")
        connection.execute(f"COPY ({images}) TO '{local}' (FORMAT parquet); DROP TABLE before")
        added, removed = connection.execute(
            f"SELECT count(*) FILTER (_weight > 0), count(*) FILTER (_weight < 0) FROM '{local}'"
        ).fetchall()[0]
        described = describe_file(local, f"spoil.d/{number}.parquet", added + removed)
        fixes.append(TableFix(name, TableFile(described, name, layout), local, added, removed, state.digests[name]))
    step = repair_step(state, fixes)
    local_of = {fix.path: fix.local for fix in fixes}
    target.apply(step, lambda wanted: local_of[wanted.file.path])


def outcomes(place: Path) -> dict[str, str]:
    return {table.table: table.outcome for table in wlr.verify(place).tables}


@pytest.mark.slow
def test_sound_replicas_and_farm_are_found_to_be_sound(source: Path) -> None:
    assert_same(*replicas(source))
    assert_sound(source)
    assert {check.outcome for check in wlc.verify_source(source)} == {"same"}


@pytest.mark.slow
def test_digests_follow_the_log_and_every_kind_of_schema_change(source: Path) -> None:
    made = replicas(source)
    write(
        source,
        "ALTER TABLE keyed ADD COLUMN more INTEGER",
        "UPDATE keyed SET more = id WHERE id > 990",
        "ALTER TABLE keyed ADD COLUMN given INTEGER DEFAULT 7",
        "ALTER TABLE keyed DROP COLUMN v",
        "ALTER TABLE keyed RENAME COLUMN more TO less",
        "ALTER TABLE bag RENAME TO bags",
        "INSERT INTO bags VALUES (5, ['y'])",
        "CREATE TABLE bag (z INTEGER)",
        "INSERT INTO bag VALUES (1)",
        "TRUNCATE keyed",
        "INSERT INTO keyed (id, less) VALUES (1, 2)",
        "CREATE OR REPLACE TABLE bag AS SELECT 'text' AS t",
        "ALTER TABLE bags ALTER a TYPE VARCHAR",
        "/* why */ ALTER TABLE bags ADD COLUMN c DATE",
        "DROP TABLE bag",
    )
    for place in made:
        wlr.replicate(into=place)
    assert_same(*made)
    assert_sound(source)
    assert outcomes(made[0]) == {"main.bags": "same", "main.keyed": "same"}
    assert wlc.snapshot(source).digests == target_at(made[0]).read_state().digests


@pytest.mark.slow
def test_a_schema_change_alone_in_its_batch_leaves_nothing_unknown(source: Path) -> None:
    made = replicas(source)
    for statement in (
        "ALTER TABLE keyed ADD COLUMN more INTEGER",
        "COMMENT ON TABLE keyed IS 'why'",
        "ALTER TABLE keyed RENAME TO renamed",
        "ALTER TABLE renamed DROP COLUMN more",
        "CREATE INDEX place ON renamed (v)",
    ):
        write(source, statement)
        for place in made:
            wlr.replicate(into=place)
        assert_same(*made)
        assert {check.outcome for check in wlc.verify_source(source)} == {"same"}


@pytest.mark.slow
def test_snapshot_made_from_the_log_says_what_it_holds(source: Path) -> None:
    manifest = wlr.snapshot_from_log(source)
    assert manifest.digests == wlc.snapshot(source).digests
    assert set(manifest.digests) == {KEYED, BAG}


@pytest.mark.slow
def test_a_replica_of_a_tick_in_the_middle_of_a_batch_is_verified_too(source: Path) -> None:
    for place in (source.parent / "middle.duckdb", source.parent / "middle"):
        for tick in (1, 2, 3):
            wlr.replicate(source, into=place, tick=tick)
            assert_same(place)


CHANGES = ("UPDATE keyed SET v = 'bad' WHERE id BETWEEN 10 AND 19", "DELETE FROM keyed WHERE id = 500",
           "INSERT INTO bag VALUES (0.0, [])", "DELETE FROM bag WHERE a = 2")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["copy.duckdb", "lake"])
def test_rows_that_differ_are_found_named_and_put_right(source: Path, kind: str) -> None:
    replicas(source)
    place = source.parent / kind
    spoil(place, *CHANGES)
    found = {table.table: table for table in wlr.verify(place, locate=True).tables}
    assert {table.outcome for table in found.values()} == {"differs"}
    keyed, bag = found["main.keyed"], found["main.bag"]
    assert (keyed.rows, keyed.expected, keyed.missing, keyed.surplus) == (999, 1000, 11, 10)
    assert [(r.low, r.high, r.missing, r.surplus) for r in keyed.ranges] == [("10", "19", 10, 10), ("500", "500", 1, 0)]
    assert (bag.missing, bag.surplus) == (10, 1)
    # 0.0 was added where the master has -0.0.
    assert ("0.0, []", 0, 1) in [(r.low, r.missing, r.surplus) for r in bag.ranges]
    repaired = wlr.repair(place, ["keyed", "main.bag"])
    assert [(done.table, done.added, done.removed) for done in repaired] == [
        ("main.keyed", 11, 10),
        ("main.bag", 10, 1),
    ]
    assert_same(place)
    write(source, "DELETE FROM bag", "UPDATE keyed SET v = 'later' WHERE id IN (15, 500)")
    wlr.replicate(into=place)
    assert_same(place)


@pytest.mark.slow
def test_tables_that_refer_to_others_are_put_right(tmp_path: Path) -> None:
    source, copy = tmp_path / "family.duckdb", tmp_path / "copy.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY); INSERT INTO parent FROM range(5)")
        connection.execute("CREATE TABLE child (id INTEGER PRIMARY KEY, up INTEGER REFERENCES parent (id))")
        connection.execute("INSERT INTO child SELECT i, i FROM range(5) AS r(i)")
    wlc.master(source, farm=str(tmp_path / "farm"))
    wlr.replicate(source, into=copy)
    spoil(copy, "DELETE FROM child WHERE id = 3")
    spoil(copy, "DELETE FROM parent WHERE id = 3")
    with pytest.raises(ReplayError, match="cannot be repaired"):
        wlr.repair(copy, ["child"])
    assert [(done.table, done.added) for done in wlr.repair(copy, ["child", "parent"])] == [
        ("main.child", 1),
        ("main.parent", 1),
    ]
    assert_same(copy)


@pytest.mark.slow
def test_repairing_what_is_right_changes_nothing(source: Path) -> None:
    for place in replicas(source):
        before = target_at(place).read_state()
        assert [(done.added, done.removed) for done in wlr.repair(place, ["keyed"])] == [(0, 0)]
        assert target_at(place).read_state().position == before.position
        assert_same(place)


@pytest.mark.slow
def test_a_lake_that_was_repaired_can_be_read_at_its_old_tick(source: Path) -> None:
    lake = replicas(source)[1]
    tick = wlr.tick(lake)
    spoil(lake, *CHANGES)
    wlr.repair(lake, ["keyed", "bag"])
    write(source, "DELETE FROM keyed")
    wlr.replicate(into=lake)
    with duckdb.connect() as connection:
        files = wlr.files(lake, "keyed", tick=tick)
        assert connection.execute(
            "SELECT count(*), count(*) FILTER (v = 'bad') FROM read_parquet(?)", [files]
        ).fetchall() == [(1000, 0)]


@pytest.mark.slow
def test_an_accepted_transaction_leaves_its_table_out_until_it_is_repaired(source: Path) -> None:
    copy = replicas(source)[0]
    spoil(copy, "DELETE FROM keyed WHERE id = 7")
    write(source, "UPDATE keyed SET v = 'seven' WHERE id = 7", "INSERT INTO bag VALUES (9, NULL)")
    with pytest.raises(ReplayError):
        wlr.replicate(into=copy)
    wlr.accept(copy)
    wlr.replicate(into=copy)
    assert outcomes(copy) == {"main.bag": "same", "main.keyed": "accepted"}
    wlr.repair(copy, ["keyed"])
    assert_same(copy)
    write(source, "UPDATE keyed SET v = 'again' WHERE id = 7")
    wlr.replicate(into=copy)
    assert_same(copy)


@pytest.mark.slow
def test_a_truncated_table_is_known_again_after_an_accepted_transaction(source: Path) -> None:
    copy = replicas(source)[0]
    spoil(copy, "DELETE FROM keyed WHERE id = 7")
    write(source, "UPDATE keyed SET v = 'seven' WHERE id = 7")
    with pytest.raises(ReplayError):
        wlr.replicate(into=copy)
    wlr.accept(copy)
    wlr.replicate(into=copy)
    wlr.unlock(copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute("INSERT INTO keyed VALUES (7, 'v7')")
    write(source, "TRUNCATE keyed", "INSERT INTO keyed VALUES (1, 'one')")
    wlr.replicate(into=copy)
    assert_same(copy)


@pytest.mark.slow
def test_a_replica_stops_where_its_rows_would_not_be_the_masters(source: Path) -> None:
    made = replicas(source)
    write(source, "INSERT INTO bag VALUES (1, ['one'])")
    log = database(source)
    number = log.batch_numbers()[-1]
    batch, _ = log.read_batch(number)
    wrong = replace(batch, digests={BAG: replace(batch.digests[BAG], sum=batch.digests[BAG].sum ^ 1)})
    files = {file.file.path: log.fetch(file).read_bytes() for file in batch.files}
    log.delete_batch(number)
    for path, data in files.items():
        log.logs.create(path, data)
    from wlc.farm.log import encode_batch
    from wlc.farm.paths import log_path

    log.logs.create(log_path("sales", number), encode_batch(wrong))
    for place in made:
        before = wlr.tick(place)
        with pytest.raises(CorruptError, match=r"main\.bag would differ from the master after transaction 4"):
            wlr.replicate(into=place)
        assert wlr.tick(place) == before
        assert_same(place)
    assert [problem.path for problem in wlr.verify_farm(source).problems] == [f"{log.logs.url}: batch {number}"]


@pytest.mark.slow
def test_a_farm_without_digests_can_be_replicated_and_says_that_nothing_is_known(source: Path) -> None:
    log = database(source)
    for number in log.batch_numbers():
        batch, _ = log.read_batch(number)
        assert set(batch.digests) == {KEYED, BAG}
    place = source.parent / "copy.duckdb"
    wlr.replicate(source, into=place)
    with target_at(place).open() as target:
        target.remember(replace(target.state, digests={}))
    assert outcomes(place) == {"main.bag": "unknown", "main.keyed": "unknown"}
    write(source, "DELETE FROM bag WHERE a = 2")
    wlr.replicate(into=place)
    # The first batch that says what a table holds is where following begins.
    assert outcomes(place) == {"main.bag": "same", "main.keyed": "unknown"}


@pytest.mark.slow
def test_a_table_that_is_gone_at_the_end_of_a_batch_needs_no_digest(source: Path) -> None:
    write(source, "CREATE SCHEMA s", "CREATE TABLE s.t (a INTEGER)", "INSERT INTO s.t VALUES (1)")
    write(source, "INSERT INTO bag VALUES (3, NULL)", "ALTER TABLE BAG RENAME TO kept")
    write(source, "DELETE FROM keyed", "DROP TABLE keyed")
    write(source, "INSERT INTO s.t VALUES (2)", "DROP SCHEMA S CASCADE")
    assert wlr.verify_farm(source).problems == ()


@pytest.mark.slow
def test_a_log_that_lost_its_digests_cannot_be_verified(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = replicas(source)
    write(source, "INSERT INTO bag VALUES (3, NULL)")
    log = database(source)
    number = log.batch_numbers()[-1]
    batch, _ = log.read_batch(number)
    path = paths.log_path(log.name, number)
    log.logs.delete(path)
    log.logs.create(path, encode_batch(replace(batch, digests={})))
    for place in made:
        wlr.replicate(into=place)
        assert outcomes(place) == {"main.bag": "unverifiable", "main.keyed": "same"}
        assert run_app(wlr_app, "wlr", ["verify", str(place)]) == 6
        assert f"main.bag of {place} cannot be verified" in capsys.readouterr().err
    assert not wlr.drill(source, tick=batch.last).is_sound
    ((problem),) = wlr.verify_farm(source).problems
    assert "cannot be verified: it names no digest of main.bag" in problem.problem
    assert run_app(wlc_app, "wlc", ["farm", "verify", str(source)]) == 6
    assert "names no digest of main.bag" in capsys.readouterr().out


# The farm --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_verified_is_not_read_again(source: Path) -> None:
    wlc.snapshot(source)
    first = wlr.verify_farm(source)
    assert (first.batches, first.verified_before, first.snapshots, first.problems) == (1, 0, 2, ())
    assert wlr.verify_farm(source).files == 0
    write(source, "INSERT INTO bag VALUES (3, NULL)")
    second = wlr.verify_farm(source)
    assert (second.batches, second.verified_before, second.snapshots, second.files, second.rows) == (1, 1, 0, 1, 1)
    assert wlr.verify_farm(source, full=True).files == first.files + second.files


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "another file's rows"])
def test_every_damaged_file_is_named(source: Path, damage: str) -> None:
    files = sorted((source.parent / "farm").rglob("*.parquet"))
    assert len(files) == 4
    for file, other in zip(files, [*files[1:], files[0]], strict=True):
        kept = file.read_bytes()
        file.unlink()
        if damage == "flip":
            file.write_bytes(kept[:40] + bytes([kept[40] ^ 1]) + kept[41:])
        elif damage == "truncate":
            file.write_bytes(kept[:-10])
        elif damage != "delete":
            file.write_bytes(other.read_bytes())
        problems = wlr.verify_farm(source, full=True).problems
        assert len(problems) == 1, problems
        assert problems[0].path.endswith(str(file.relative_to(source.parent / "farm" / "sales"))), problems
        file.unlink(missing_ok=True)
        file.write_bytes(kept)
    assert_sound(source)


def test_missing_and_replaced_log_files_are_named(source: Path) -> None:
    for _ in range(3):
        write(source, "INSERT INTO bag VALUES (3, NULL)")
    assert wlr.verify_farm(source).problems == ()
    log = database(source)
    third = source.parent / "farm" / "sales" / "wlc_logs" / "sales_000000000003"
    kept = third.read_bytes()
    third.unlink()
    text = " ".join(problem.problem for problem in wlr.verify_farm(source, full=True).problems)
    assert "batch 3" in text
    third.write_bytes(kept)
    last = source.parent / "farm" / "sales" / "wlc_logs" / "sales_000000000004"
    batch, _ = log.read_batch(4)
    from wlc.farm.log import encode_batch

    last.unlink()
    last.write_bytes(
        encode_batch(replace(batch, transactions=tuple(replace(t, user="eve") for t in batch.transactions)))
    )
    # Well made as it is, it is not the one that was there.
    assert "differs from the verified batch" in wlr.verify_farm(source).problems[0].problem


@pytest.mark.slow
def test_a_new_history_is_followed_from_its_own_snapshot(source: Path) -> None:
    wlc.stop(source)
    with duckdb.connect(str(source)) as connection:
        connection.execute("UPDATE keyed SET v = 'between'")
    wlc.master(source)
    write(source, "UPDATE keyed SET v = 'after' WHERE id = 1")
    assert_sound(source)
    place = source.parent / "copy.duckdb"
    wlr.replicate(source, into=place)
    assert_same(place)


# The master ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_writes_behind_the_masters_back_are_found_though_the_counts_agree(source: Path) -> None:
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO keyed VALUES (5000, 'waits in the journal')")
    with duckdb.connect(str(source)) as connection:
        connection.execute("UPDATE bag SET a = 8 WHERE rowid = (SELECT min(rowid) FROM bag)")
    assert wlc.status(source).bypassed == {"main.bag": "has other rows"}
    checks = {check.table: check for check in wlc.verify_source(source)}
    assert checks["main.bag"].outcome == "differs"
    assert (checks["main.keyed"].outcome, checks["main.keyed"].rows) == ("same", 1001)
    with pytest.raises(UnsupportedError, match=r"without wlc\.connect\(\): main\.bag has other rows"):
        wlc.snapshot(source)
    published = source.parent / "published.duckdb"
    wlr.replicate(source, into=published)
    wlc.repair(source, published=published)
    assert {check.outcome for check in wlc.verify_source(source)} == {"same"}
    assert wlc.snapshot(source).digests[BAG] == Digest(
        checks["main.bag"].rows or 0, wlc.snapshot(source).digests[BAG].sum
    )


@pytest.mark.slow
def test_a_repair_is_not_made_against_an_older_state(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = replicas(source)[0]
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO bag VALUES (6, ['waits in the journal'])")
    with duckdb.connect(str(source)) as connection:
        connection.execute("DELETE FROM keyed WHERE id = 1")
    with pytest.raises(InvalidError, match="is at tick 3, and .* is published up to 4"):
        wlc.repair(source, published=old)
    with pytest.raises(InvalidError, match="is no replica"):
        wlc.repair(source, published=_empty(source))
    assert run_app(wlc_app, "wlc", ["farm", "repair", str(source)]) == 0
    assert "warning" not in capsys.readouterr().err
    assert {check.outcome for check in wlc.verify_source(source)} == {"same"}
    wlr.replicate(into=old)
    assert_same(old)


def _empty(source: Path) -> Path:
    path = source.with_name("empty.duckdb")
    duckdb.connect(str(path)).close()
    return path


# Drills and commands ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_drill_restores_any_tick_and_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ticks = {wlr.drill(source, seed=seed, folder=scratch).tick for seed in range(12)}
    assert ticks == {0, 1, 2, 3}
    assert list(scratch.iterdir()) == []
    done = wlr.drill(source, tick=2)
    assert (done.is_sound, done.tick, done.snapshot, done.transactions, done.rows) == (True, 2, 0, 2, 1020)


@pytest.mark.slow
def test_commands_tell_by_their_exit_code(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = replicas(source)[0]
    assert run_app(wlc_app, "wlc", ["farm", "verify", str(source), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert run_app(wlc_app, "wlc", ["farm", "verify", str(source), "--source"]) == 0
    assert run_app(wlr_app, "wlr", ["replica", "drill", str(source), "--seed", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["is_sound"] is True
    assert run_app(wlr_app, "wlr", ["verify", str(copy)]) == 0
    spoil(copy, "DELETE FROM keyed WHERE id = 3")
    capsys.readouterr()
    assert run_app(wlr_app, "wlr", ["verify", str(copy), "--locate", "--json"]) == 6
    told = capsys.readouterr()
    assert [row["where"] for row in json.loads(told.out) if row["outcome"] == "differs"] == ["3"]
    assert f"hint: wlr repair {copy} --table main.keyed" in told.err
    assert run_app(wlr_app, "wlr", ["repair", str(copy), "--table", "main.keyed"]) == 0
    assert run_app(wlr_app, "wlr", ["verify", str(copy), "--table", "keyed"]) == 0
    next(iter((source.parent / "farm").rglob("0.parquet"))).unlink()
    assert run_app(wlc_app, "wlc", ["farm", "verify", str(source), "--full"]) == 6
    assert "is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_unknown_tables_and_places_are_refused(source: Path) -> None:
    copy = replicas(source)[0]
    for call in (wlr.verify, wlr.repair):
        with pytest.raises(InvalidError, match="the replica has no table nothing"):
            call(copy, tables=["nothing"])
    with pytest.raises(InvalidError, match="there is no replica"):
        wlr.verify(source.parent / "none.duckdb")
    with pytest.raises(InvalidError):
        wlr.verify_farm("nothing", farm=str(source.parent / "farm"))
