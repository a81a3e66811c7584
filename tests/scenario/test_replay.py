"""Replicas rolled forward from farms that are written by hand."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows, rows_of, time_of
from tests.lake import any_file
from wlc.dialect.duckdb.snapshot import take
from wlc.farm.errors import CorruptError, ReplayError, UnavailableError
from wlc.farm.model import Clear, Name, Position, SequencePosition
from wlc.farm.registry import replicas
from wlr.engine.duckdb import replica
from wlr.replay.plan.log_steps import LIMITS

T = Name("main", "t")
KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "copy.duckdb"


def rows(*ids: int, v: str = "a") -> tuple[str, ...]:
    return tuple(f"{id_}, '{v}'" for id_ in ids)


def take_snapshot(farm: HandmadeFarm, into: Path) -> None:
    """Publish a snapshot of what a replica at the end of the log holds."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{into}' AS {farm.catalog} (READ_ONLY)")
        connection.execute(f"USE {farm.catalog}; BEGIN TRANSACTION READ ONLY")
        position = Position(farm.history, farm.tick, farm.batch, farm.chain)
        take(connection, farm.catalog, farm.db, position, time_of(farm.tick), {farm.history: farm.tick})


# Prefixes


def publish_everything(farm: HandmadeFarm) -> list[list[tuple[object, ...]]]:
    """Publish transactions of many kinds; returns the rows of t after each tick from 0 on."""
    farm.publish([KEYED], [Rows("t", rows(1, 2, 3))], [Rows("t", rows(2, v="b"), rows(2))], None)
    farm.publish(
        [Rows("t", removed=rows(1)), "CREATE TABLE bag (x DOUBLE, s VARCHAR)", Rows("bag", ("0.0, 'x'",) * 3)],
        [Rows("t", rows(1, v="again"), ())],
        [Rows("t", rows(9), rows(3)), Rows("bag", ("-0.0::DOUBLE, NULL",), ("0.0, 'x'",) * 2)],
        [Clear(T, 3), Rows("t", rows(5))],
        [Rows("t", rows(6))],
    )
    states: list[list[tuple[object, ...]]] = [[], [], [(1, "a"), (2, "a"), (3, "a")]]
    states += [[(1, "a"), (2, "b"), (3, "a")]] * 2
    states += [[(2, "b"), (3, "a")], [(1, "again"), (2, "b"), (3, "a")], [(1, "again"), (2, "b"), (9, "a")]]
    return [*states, [(5, "a")], [(5, "a"), (6, "a")]]


def content(into: Path, tick: int) -> list[tuple[object, ...]]:
    return rows_of(any_file(into), "FROM t ORDER BY id") if tick else []


@pytest.mark.deep
@pytest.mark.parametrize("suffix", [".duckdb", ""])
def test_every_tick_is_a_stop_from_which_one_can_go_on(farm: HandmadeFarm, tmp_path: Path, suffix: str) -> None:
    states = publish_everything(farm)
    stepwise = tmp_path / f"stepwise{suffix}"
    for tick in range(10):
        direct = tmp_path / f"direct{tick}{suffix}"
        for into in (direct, stepwise):
            result = wlr.replicate(farm.url, into=into, tick=tick, engine="local")
            assert (result.tick, wlr.tick(into)) == (tick, tick)
            assert content(into, tick) == states[tick]
        wlr.replicate(into=direct, engine="local")
        assert content(direct, 9) == states[9]
    in_bag = rows_of(any_file(stepwise), "SELECT x::VARCHAR, s FROM bag ORDER BY ALL")
    assert in_bag == [("-0.0", None), ("0.0", "x")]


@pytest.mark.parametrize("limit", ["rows", "transactions", "files"])
def test_small_steps_give_the_same(farm: HandmadeFarm, into: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    states = publish_everything(farm)
    monkeypatch.setattr(replica, "LIMITS", replace(LIMITS, **{limit: 1}))
    wlr.replicate(farm.url, into=into)
    assert content(into, 9) == states[9]


def test_many_small_batches_are_one_step(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    for id_ in range(20):
        farm.publish([Rows("t", rows(id_), rows(id_ - 1) if id_ else ())])
    result = wlr.replicate(farm.url, into=into, tick=11)
    assert (result.batches, content(into, 11)) == (11, [(9, "a")])
    assert wlr.replicate(into=into).batches == 10
    assert content(into, 21) == [(19, "a")]


# Snapshots


def test_starts_from_the_newest_suitable_snapshot(farm: HandmadeFarm, tmp_path: Path) -> None:
    farm.publish([KEYED, "CREATE TABLE bag (x DOUBLE)"], [Rows("t", rows(1, 2)), Rows("bag", ("1.5", "1.5"))])
    wlr.replicate(farm.url, into=tmp_path / "first.duckdb")
    take_snapshot(farm, tmp_path / "first.duckdb")
    farm.publish([Rows("t", rows(3), rows(1)), Rows("bag", (), ("1.5",))])
    for tick, made_from, expected in ((1, None, []), (2, 2, [(1, "a"), (2, "a")]), (3, 2, [(2, "a"), (3, "a")])):
        into = tmp_path / f"at{tick}.duckdb"
        assert wlr.replicate(farm.url, into=into, tick=tick).snapshot == made_from
        assert content(into, tick) == expected
    assert rows_of(into, "FROM bag") == [(1.5,)]


def test_snapshot_of_rows_that_refer_to_their_own_table(farm: HandmadeFarm, tmp_path: Path) -> None:
    """DuckDB takes a row only if the row it refers to was there before the statement."""
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, boss INTEGER REFERENCES t (id))"])
    people = ("4, 3", "3, 2", "2, 1", "1, NULL")
    farm.publish(*([Rows("t", (person,))] for person in reversed(people)))
    farm.publish([Rows("t", ("5, 4", "6, 5"))])
    wlr.replicate(farm.url, into=tmp_path / "first.duckdb")
    take_snapshot(farm, tmp_path / "first.duckdb")
    assert wlr.replicate(farm.url, into=tmp_path / "copy.duckdb").snapshot == farm.tick
    expected = [(1, None), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    for into in ("first.duckdb", "copy.duckdb"):
        assert rows_of(tmp_path / into, "FROM t ORDER BY id") == expected


# Constraints


FAMILY = (
    "CREATE TABLE parent (id INTEGER PRIMARY KEY, v VARCHAR)",
    "CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id))",
)


def test_referenced_rows_change_in_place(farm: HandmadeFarm, into: Path) -> None:
    farm.publish(*([ddl] for ddl in FAMILY))
    farm.publish([Rows("parent", rows(1, 2))], [Rows("child", ("10, 1", "20, 2"))])
    farm.publish([Rows("parent", rows(1, v="b"), rows(1))], [Rows("child", ("10, 2",), ("10, 1",))])
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "FROM parent ORDER BY id") == [(1, "b"), (2, "a")]
    assert rows_of(into, "FROM child ORDER BY id") == [(10, 2), (20, 2)]


def test_referenced_rows_change_in_place_beside_others_that_change_a_unique_value(
    farm: HandmadeFarm, into: Path
) -> None:
    """To set an indexed column, also to what it was, is to delete the row."""
    farm.publish(
        ["CREATE TABLE parent (id INTEGER PRIMARY KEY, email VARCHAR UNIQUE, v VARCHAR)"],
        ["CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id))"],
        ["CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (id), v VARCHAR)"],
    )
    farm.publish(
        [Rows("parent", ("1, 'a', 'one'", "2, 'b', 'two'", "3, NULL, 'three'"))],
        [Rows("child", ("10, 1",))],
        [Rows("tree", ("1, NULL, 'one'",))],
        [Rows("tree", ("2, 1, 'two'",))],
        [Rows("tree", ("3, 2, 'three'",))],
    )
    wlr.replicate(farm.url, into=into)
    farm.publish(
        [
            Rows(
                "parent",
                ("1, 'a', 'x'", "2, NULL, 'y'", "3, 'b', 'three'"),
                ("1, 'a', 'one'", "2, 'b', 'two'", "3, NULL, 'three'"),
            ),
            Rows("tree", ("1, NULL, 'x'", "3, 1, 'three'"), ("1, NULL, 'one'", "3, 2, 'three'")),
        ]
    )
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "FROM parent ORDER BY id") == [(1, "a", "x"), (2, None, "y"), (3, "b", "three")]
    assert rows_of(into, "FROM tree ORDER BY id") == [(1, None, "x"), (2, 1, "two"), (3, 1, "three")]


@pytest.mark.parametrize(
    ("column", "index", "before", "after"),
    [
        ("x VARCHAR[]", "", "['b']", "['c']"),
        ("x STRUCT(a INTEGER[])", "", "{'a': [1]}", "{'a': [2]}"),
        ("x VARCHAR", "CREATE INDEX i ON parent (lower(x))", "'b'", "'c'"),
        ("x VARCHAR", "CREATE UNIQUE INDEX i ON parent (X)", "'b'", "'c'"),
        ('"it\'s, a ""x"" \\ y" VARCHAR', 'CREATE UNIQUE INDEX i ON parent ("it\'s, a ""x"" \\ y")', "'b'", "'c'"),
    ],
    ids=["list", "list in a struct", "expression", "other case", "odd name"],
)
def test_a_column_that_is_not_changed_in_place_is_set_only_where_it_differs(
    farm: HandmadeFarm, into: Path, column: str, index: str, before: str, after: str
) -> None:
    farm.publish(
        [f"CREATE TABLE parent (id INTEGER PRIMARY KEY, {column}, v VARCHAR)"],
        ["CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id))"],
        *([[index]] if index else []),
    )
    farm.publish([Rows("parent", ("1, NULL, 'one'", f"2, {before}, 'two'"))], [Rows("child", ("10, 1",))])
    wlr.replicate(farm.url, into=into)
    new, old = ("1, NULL, 'x'", f"2, {after}, 'two'"), ("1, NULL, 'one'", f"2, {before}, 'two'")
    farm.publish([Rows("parent", new, old)])
    wlr.replicate(farm.url, into=into)
    assert [(row[0], row[2]) for row in rows_of(into, "FROM parent ORDER BY id")] == [(1, "x"), (2, "two")]


def test_parents_come_before_and_go_after_their_children(farm: HandmadeFarm, into: Path) -> None:
    """DuckDB sees a child that was deleted in the same transaction, so one fold cannot remove both."""
    farm.publish(*([ddl] for ddl in FAMILY))
    farm.publish([Rows("parent", rows(1, 2, 3)), Rows("child", ("10, 1", "20, 2", "30, 3"))])
    farm.publish(
        [Rows("child", (), ("10, 1",))],
        [Rows("parent", (), rows(1))],
        [Rows("child", (), ("20, 2",))],
        [Rows("parent", rows(4), rows(2))],
    )
    assert wlr.replicate(farm.url, into=into).transactions == 7
    assert rows_of(into, "FROM parent ORDER BY id") == [(3, "a"), (4, "a")]
    assert rows_of(into, "FROM child") == [(30, 3)]


def test_unique_values_change_hands(farm: HandmadeFarm, into: Path) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR UNIQUE)"], [Rows("t", ("1, 'x'", "2, 'y'"))])
    farm.publish([Rows("t", ("1, 'y'", "2, 'x'"), ("1, 'x'", "2, 'y'"))])
    farm.publish([Rows("t", ("2, 'z'",), ("2, 'x'",))], [Rows("t", ("1, 'x'",), ("1, 'y'",))])
    wlr.replicate(farm.url, into=into)
    assert content(into, 4) == [(1, "x"), (2, "z")]


@pytest.mark.slow
def test_indexed_table_is_right_with_many_rows_and_threads(farm: HandmadeFarm, into: Path) -> None:
    """DuckDB has lost rows of indexed tables in large statements; this one deletes and inserts the same keys."""
    many = 300_000
    farm.publish([KEYED], ["CREATE INDEX by_v ON t (v)"])
    farm.publish([Rows("t", (f"FROM (SELECT i, 'v' || i % 7 FROM range({many}) AS r(i))",))])
    old, new = (f"FROM (SELECT i, '{v}' || i % 7 FROM range({many}) AS r(i) WHERE i % 2 = 0)" for v in "vw")
    farm.publish([Rows("t", (new,), (old,))])
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "SELECT count(*), count(DISTINCT id), count(*) FILTER (v LIKE 'w%') FROM t") == [
        (many, many, many // 2)
    ]
    assert rows_of(into, "SELECT count(*) FROM t WHERE v = 'w1'") == rows_of(
        into, "SELECT count(*) FROM t WHERE v || '' = 'w1'"
    )


# Tables and types of all sorts


def test_names_of_all_sorts(tmp_path: Path, into: Path) -> None:
    farm = HandmadeFarm(tmp_path / "farm", catalog='my "master"')
    farm.publish(
        ['CREATE SCHEMA "a.b"'],
        [
            'CREATE TABLE "a.b"."sel""ect" ("or""der" INTEGER PRIMARY KEY, "_tick" VARCHAR, "ü ñ" DOUBLE,'
            " n INTEGER, t INTEGER)"
        ],
    )
    farm.publish([Rows('a.b.sel"ect', ("1, 'x', 1.0, 5, 6", "2, 'y', NULL, 7, 8"))])
    farm.publish([Rows('a.b.sel"ect', ("1, 'z', 1.0, 5, 6",), ("1, 'x', 1.0, 5, 6",))])
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, 'FROM "a.b"."sel""ect" ORDER BY ALL') == [(1, "z", 1.0, 5, 6), (2, "y", None, 7, 8)]


@pytest.mark.parametrize("catalog", ["memory", "wlr", "wlc", "wlr_scratch"])
def test_master_may_be_called_like_something_of_duckdb(tmp_path: Path, into: Path, catalog: str) -> None:
    farm = HandmadeFarm(tmp_path / "farm", catalog=catalog)
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    assert content(into, 2) == [(1, "a")]


def test_bag_with_a_column_called_rowid(farm: HandmadeFarm, into: Path) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER, rowid INTEGER)"], [Rows("t", ("1, 2",) * 4)])
    farm.publish([Rows("t", (), ("1, 2",))])
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "FROM t") == [(1, 2)] * 3


def test_generated_columns_sequences_enums_and_views(farm: HandmadeFarm, into: Path) -> None:
    farm.publish(
        ["CREATE SEQUENCE s"],
        ["CREATE TYPE mood AS ENUM ('sad', 'glad')"],
        ["CREATE TABLE t (id INTEGER DEFAULT nextval('s'), g INTEGER GENERATED ALWAYS AS (id * 2), m mood)"],
        ["CREATE VIEW happy AS SELECT id, g FROM t WHERE m = 'glad'"],
        [Rows("t", ("1, 'sad'", "2, 'glad'")), SequencePosition(Name("main", "s"), 2)],
        [Rows("t", (), ("1, 'sad'",))],
    )
    wlr.replicate(farm.url, into=into)
    assert rows_of(into, "FROM happy") == [(2, 4)]
    assert rows_of(into, "SELECT last_value FROM duckdb_sequences() WHERE sequence_name = 's'") == [(2,)]


# Failures


def test_failing_ddl_undoes_its_whole_transaction(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    with duckdb.connect(str(into)) as connection:
        connection.execute("CREATE TABLE mine (a INTEGER)")
    farm.publish([Rows("t", rows(2)), "CREATE TABLE mine (b INTEGER)"])
    with pytest.raises(ReplayError, match="transaction 3, table main.mine"):
        wlr.replicate(into=into)
    assert content(into, 2) == [(1, "a")]
    assert rows_of(into, "FROM mine") == []


def test_a_replica_whose_state_was_changed_is_not_to_be_tried_again(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    wlr.replicate(farm.url, into=into)
    with duckdb.connect(str(into)) as connection:
        connection.execute("ALTER TABLE wlr.state RENAME COLUMN value TO v")
    for call in (wlr.status, wlr.verify, wlr.accept, lambda place: wlr.replicate(into=place)):
        with pytest.raises(CorruptError, match="was changed since the replay"):
            call(into)


# Killed, locked, registered


KILLED = """
import os, signal, sys
import wlc
import wlr
from wlr.engine.duckdb import {module}
original, calls = {module}.{name}, [0]
def dying(*arguments, **options):
    calls[0] += 1
    if calls[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)
{module}.{name} = dying
wlr.replicate(sys.argv[1], into=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, name, call",
    [
        ("build", "_load_table", 2),
        ("build", "_finish", 1),
        ("build", "_put_in_place", 1),
        ("changes", "write", 2),
        ("guard", "put_on", 2),
        ("wlr_schema", "write", 3),
    ],
)
def test_killed_run_leaves_a_prefix_or_nothing(
    farm: HandmadeFarm, tmp_path: Path, into: Path, module: str, name: str, call: int
) -> None:
    farm.publish([KEYED, "CREATE TABLE bag (x DOUBLE)"], [Rows("t", rows(1, 2)), Rows("bag", ("1.5",))])
    wlr.replicate(farm.url, into=tmp_path / "first.duckdb")
    take_snapshot(farm, tmp_path / "first.duckdb")
    farm.publish([Rows("t", rows(3), rows(1))], ["CREATE TABLE u (a INTEGER)"], [Rows("t", rows(4)), Rows("u", ("1",))])
    script = KILLED.format(
        module=module,
        name=name,
        call=call,
    )
    run = subprocess.run([sys.executable, "-c", script, farm.url, str(into)], capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    if module == "build":
        assert not into.exists()
    else:
        expected = {2: [(1, "a"), (2, "a")], 3: [(2, "a"), (3, "a")], 4: [(2, "a"), (3, "a")]}
        assert content(into, 1) == expected[wlr.tick(into)]
    wlr.replicate(farm.url, into=into)
    assert content(into, 5) == [(2, "a"), (3, "a"), (4, "a")]
    assert rows_of(into, "FROM u") == [(1,)]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("length", [0, 1, 4096, 5000, 12288])
def test_what_a_run_killed_in_its_first_moments_left_is_replaced(
    farm: HandmadeFarm, into: Path, tmp_path: Path, length: int
) -> None:
    farm.publish([KEYED])
    whole = tmp_path / "whole.duckdb"
    with duckdb.connect(str(whole)) as connection:
        connection.execute("CREATE TABLE t (k INTEGER)")
    into.with_name(f".{into.name}.building").write_bytes(whole.read_bytes()[:length])
    assert wlr.replicate(farm.url, into=into).tick == 1
    assert not into.with_name(f".{into.name}.building").exists()


HOLDER = "import duckdb, sys, time\nheld = duckdb.connect(sys.argv[1])\nprint('open', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize("place", ["copy.duckdb", ".copy.duckdb.building"])
def test_second_run_is_turned_away_in_one_line(farm: HandmadeFarm, into: Path, place: str) -> None:
    farm.publish([KEYED])
    if place == into.name:
        wlr.replicate(farm.url, into=into)
        farm.publish([Rows("t", rows(1))])
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(into.with_name(place))], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            with pytest.raises(UnavailableError, match=rf"{place} is in use by process {holder.pid}") as caught:
                wlr.replicate(farm.url, into=into)
            assert caught.value.exit_code == 75
            assert "\n" not in str(caught.value)
        finally:
            holder.kill()


def test_replica_that_this_process_has_open(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED])
    wlr.replicate(farm.url, into=into)
    with duckdb.connect(str(into)):
        assert wlr.replicate(into=into).transactions == 0, "without news, the file is not opened"
    farm.publish([Rows("t", rows(1))])
    with duckdb.connect(str(into)), pytest.raises(UnavailableError, match="open in this process"):
        wlr.replicate(into=into)


def test_read_only_farm_is_enough_without_registering(farm: HandmadeFarm, into: Path) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    folder = Path(farm.url)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    wlr.replicate(farm.url, into=into, register=False)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_dry_run_tells_and_touches_nothing(farm: HandmadeFarm, into: Path) -> None:
    publish_everything(farm)
    planned = wlr.replicate(farm.url, into=into, dry_run=True, tick=6)
    assert list(into.parent.iterdir()) == [farm.folder]
    assert replicas(farm.db) == []
    assert (planned.tick, planned.transactions, planned.is_dry_run) == (6, 5, True)
    done = wlr.replicate(farm.url, into=into, tick=6)
    assert (done.tick, done.clock, done.transactions, done.rows) == (
        planned.tick,
        planned.clock,
        planned.transactions,
        planned.rows,
    )
    assert wlr.replicate(into=into, dry_run=True).tick == 9
    assert wlr.tick(into) == 6


@pytest.mark.slow
def test_farm_that_is_no_folder(tmp_path: Path, into: Path) -> None:
    """Files are downloaded then, and the engine, which may read few folders, still has to reach them."""
    farm = HandmadeFarm("memory://far")
    publish_everything(farm)
    wlr.replicate(farm.url, into=tmp_path / "first.duckdb")
    take_snapshot(farm, tmp_path / "first.duckdb")
    farm.publish([Rows("t", rows(7)), "CREATE TABLE u (a INTEGER)", Rows("u", ("1",))])
    assert wlr.replicate(farm.url, into=into).snapshot == 9
    assert rows_of(into, "FROM t ORDER BY id") == [(5, "a"), (6, "a"), (7, "a")]
    assert rows_of(into, "FROM u") == [(1,)]


def test_progress_reaches_its_total(farm: HandmadeFarm, into: Path) -> None:
    publish_everything(farm)
    told: list[tuple[int, int]] = []
    wlr.replicate(farm.url, into=into, progress=lambda done, total, what: told.append((done, total)))
    assert told[-1] == (9, 9)
    assert told == sorted(told)


def test_importing_wlr_is_quick() -> None:
    heavy = "duckdb pyarrow pyspark s3fs fsspec numpy".split()
    script = f"import sys, wlr, wlr.replay.request\nprint([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.slow
def test_rounds_of_one_program_read_the_catalog_once_and_notice_what_others_did(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "bank.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    wlc.master(source, farm=str(tmp_path / "farm"))

    def round_of(statement: str) -> None:
        with wlc.connect(source) as connection:
            connection.execute(statement)
        wlc.flush(source)
        wlr.replicate("bank", farm=str(tmp_path / "farm"), into=into)

    round_of("INSERT INTO t VALUES (1)")
    round_of("INSERT INTO t VALUES (2)")
    with monkeypatch.context() as patched:
        patched.setattr(replica, "read_tables", lambda *_: pytest.fail("the catalog was read again"))
        round_of("INSERT INTO t VALUES (3)")
    with duckdb.connect(str(into)) as owner:
        owner.execute("DROP TRIGGER wlr_guard_insert ON t; CREATE TABLE own (i INTEGER REFERENCES t (i))")
        owner.execute("INSERT INTO own VALUES (3)")
    round_of("UPDATE t SET i = 4 WHERE i = 2")
    with duckdb.connect(str(into)) as owner, pytest.raises(duckdb.Error, match="belongs to a replica"):
        owner.execute("INSERT INTO t VALUES (9)")
    with pytest.raises(ReplayError, match="transaction 5"):
        round_of("DELETE FROM t WHERE i = 3")
