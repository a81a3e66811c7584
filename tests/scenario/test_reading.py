"""`wlr.read` gives what plain Python says that a table held, from a farm, a lake, and a replica."""

from __future__ import annotations

import gc
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.new_master import new_master
from tests.oracle import contents
from tests.scenario.test_types_end_to_end import WIDE, change, fill
from tests.scratch import attached
from tests.unit.dialect.test_types import VALUES
from wlc.dialect.sql import literal
from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

Bag = Counter[tuple[Any, ...]]
# Conditions in SQL and in Python, where what is unknown is not true.
CONDITIONS: list[tuple[str, Callable[[Any, Any, Any], bool]]] = [
    ("v IS NULL", lambda k, v, f: v is None),
    ("k % 2 = 1 AND v > 'a'", lambda k, v, f: k is not None and k % 2 == 1 and v is not None and v > "a"),
    ("t.f >= 1 OR k = 3", lambda k, v, f: (f is not None and f >= 1) or k == 3),
    ("coalesce(v, 'b') IN ('b', 'c')", lambda k, v, f: (v or "b") in ("b", "c")),
]


class Model:
    """A table in plain Python: rows (k, v, f), at every tick."""

    def __init__(self, seed: int, *, has_key: bool) -> None:
        self.random, self.has_key = random.Random(seed), has_key
        self.rows: Bag = Counter()
        self.at: dict[int, Bag] = {}

    def row(self) -> tuple[Any, ...]:
        key = self.random.randrange(12) if self.has_key else self.random.choice([None, 1, 2, 3])
        return key, self.random.choice([None, "a", "b", "c"]), self.random.choice([None, 0.5, 2.0])

    def transaction(self) -> tuple[Rows, int]:
        """Return images of some changes, some of which undo each other, and how many rows there were before."""
        added: list[tuple[Any, ...]] = []
        removed: list[tuple[Any, ...]] = []
        before = self.rows.total()
        for _ in range(self.random.randrange(1, 6)):
            present = list(self.rows.elements())
            if present and self.random.random() < 0.5:
                removed.append(gone := self.random.choice(present))
                self.rows -= Counter([gone])
                if self.random.random() < 0.7:
                    new = (gone[0], *self.row()[1:])
                    added.append(new)
                    self.rows[new] += 1
            elif (row := self.row()) and not (self.has_key and any(row[0] == k for k, _, _ in present)):
                added.append(row)
                self.rows[row] += 1
        return Rows("t", tuple(map(sql, added)), tuple(map(sql, removed))), before


def sql(row: tuple[Any, ...]) -> str:
    return ", ".join("NULL" if value is None else repr(value) for value in row)


@pytest.fixture(scope="module", params=[True, False], ids=["keyed", "bag"])
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model, Path]:
    """A farm without a snapshot, a replica and a lake of it that stand at several ticks, and the model."""
    folder = tmp_path_factory.mktemp("life")
    farm, model = HandmadeFarm(folder / "farm"), Model(7, has_key=request.param)
    farm.publish([f"CREATE TABLE t (k INTEGER {'PRIMARY KEY' if request.param else ''}, v VARCHAR, f DOUBLE)"])
    model.at[1] = Counter()
    for batch in range(8):
        transactions = []
        for _ in range(4):
            transactions.append([model.transaction()[0]])
            model.at[farm.tick + len(transactions)] = model.rows.copy()
        farm.publish(*transactions)
        if batch % 3 == 1:
            wlr.replicate(farm.url, into=folder / "lake", register=False)
    wlr.replicate(farm.url, into=folder / "copy.duckdb", tick=23, register=False)
    return farm, model, folder


def rows_of(relation: duckdb.DuckDBPyRelation) -> Bag:
    return Counter(relation.fetchall())


@pytest.mark.slow
def test_a_farm_is_the_model_at_ticks_times_columns_and_conditions(life: tuple[Any, Model, Path]) -> None:
    farm, model, _ = life
    draw = random.Random(3)
    for tick in [*draw.sample(sorted(model.at), 8), farm.tick]:
        held = model.at[tick]
        assert rows_of(wlr.read(farm.url, "t", tick=tick)) == held, tick
        assert rows_of(wlr.read(farm.url, "T", until=time_of(tick))) == held, tick
        condition, holds = draw.choice(CONDITIONS)
        wanted = draw.sample(range(3), draw.choice([1, 2]))
        found = wlr.read(farm.url, "main.t", tick=tick, columns=["kvf"[n] for n in wanted], where=condition)
        expected: Bag = Counter()
        for row, copies in held.items():
            if holds(*row):
                expected[tuple(row[n] for n in wanted)] += copies
        assert rows_of(found) == expected, (tick, condition, wanted)
        assert found.columns == ["kvf"[n] for n in wanted]
    # Only the number of rows is asked for, of a column that is in no condition.
    assert wlr.read(farm.url, "t").aggregate("count(*)").fetchall() == [(model.at[farm.tick].total(),)]


@pytest.mark.slow
def test_replicas_are_the_model_at_their_ticks(life: tuple[Any, Model, Path]) -> None:
    farm, model, folder = life
    condition, holds = CONDITIONS[2]
    for place, tick in ((folder / "copy.duckdb", 23), (folder / "lake", None), (folder / "lake", 9)):
        held = model.at[tick or wlr.tick(folder / "lake")]
        assert rows_of(wlr.read(place, "t", tick=tick)) == held
        found = rows_of(wlr.read(place, "t", tick=tick, columns=["f", "k"], where=condition))
        assert found == Counter((f, k) for (k, v, f) in held.elements() if holds(k, v, f))
    with pytest.raises(wlr.InvalidError, match="is at tick 23, not at .*, and keeps no other ticks") as refused:
        wlr.read(folder / "copy.duckdb", "t", tick=5)
    assert eval(str(refused.value.hint).partition(": ")[2]).columns == ["k", "v", "f"]
    # The replica is free again.
    wlr.replicate(into=folder / "copy.duckdb", tick=24, register=False)
    wlr.replicate(into=folder / "copy.duckdb", tick=24, register=False)
    assert rows_of(wlr.read(folder / "copy.duckdb", "t")) == model.at[24]


def test_types_arrive_as_declared(tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    columns = ", ".join(f"c{n} {declared}" for n, declared in enumerate(VALUES))
    first = ", ".join(f"{literal(texts[0])}::{declared}" for declared, texts in VALUES.items())
    last = ", ".join(f"{literal(texts[-1])}::{declared}" for declared, texts in VALUES.items())
    nothing = ", ".join("NULL" for _ in VALUES)
    rows = (first, first, last, nothing)
    farm.publish([f"CREATE TABLE t ({columns})", Rows("t", added=rows)], [Rows("t", removed=(first, nothing))])
    wlr.replicate(farm.url, into=tmp_path / "lake", register=False)
    with duckdb.connect() as connection:
        connection.execute(
            f"SET TimeZone = 'UTC'; CREATE TABLE t ({columns}); INSERT INTO t VALUES ({first}), ({last})"
        )
        texts = ", ".join(f"CAST(c{n} AS VARCHAR)" for n in range(len(VALUES)))
        held = Counter(connection.execute(f"SELECT {texts} FROM t").fetchall())
        for place in (farm.url, tmp_path / "lake"):
            relation = wlr.read(place, "t")
            assert relation.types == connection.table("t").types
            assert rows_of(relation.project(texts)) == held


@pytest.mark.deep
def test_every_type_arrives_as_declared_from_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "typed.duckdb"
    with new_master(path) as connection:
        fill(connection)
        wlc.flush(path)
        wlc.snapshot(path)
        change(connection)
        wlc.flush(path)
    url = str(tmp_path / "farm" / "typed")
    for name in ("copy.duckdb", "lake"):
        wlr.replicate(url, into=tmp_path / name, register=False)
    with attached(path) as connection:
        held = contents(connection, "typed")
        for number in range(len(WIDE)):
            declared = connection.table(f"t{number}").types
            for place in (url, tmp_path / "copy.duckdb", tmp_path / "lake"):
                relation = wlr.read(place, f"t{number}")
                assert relation.types == declared
                texts = ", ".join(f"CAST({column} AS VARCHAR)" for column in relation.columns)
                assert rows_of(relation.project(texts)) == held[f"main.t{number}"], (place, number)


def test_schema_changes_are_followed_and_empty_tables_have_types(tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(
        ["CREATE TABLE t (a INTEGER, b HUGEINT)", Rows("t", added=("1, 10",))],
        ["ALTER TABLE t ADD COLUMN c VARCHAR DEFAULT 'new'"],
        ["ALTER TABLE t RENAME COLUMN a TO d", Rows("t", added=("2, 20, NULL",), removed=("1, 10, 'new'",))],
        ["CREATE TABLE \"odd.name\" (\"_tick\" INTEGER, m ENUM('x', 'y'))"],
        ["ALTER TABLE t ALTER COLUMN d TYPE VARCHAR USING 'number ' || d"],
    )
    assert wlr.read(farm.url, "t", tick=1).fetchall() == [(1, 10)]
    assert wlr.read(farm.url, "t", tick=2, where="c = 'new'", columns=["c"]).fetchall() == [("new",)]
    assert wlr.read(farm.url, "t", tick=3).fetchall() == [(2, 20, None)]
    empty = wlr.read(farm.url, "odd.name", columns=["M", "_tick"], where="_tick > 1 AND m = 'x'")
    assert (empty.columns, list(map(str, empty.types)), empty.fetchall()) == (
        ["m", "_tick"],
        ["ENUM('x', 'y')", "INTEGER"],
        [],
    )
    with pytest.raises(wlr.UnsupportedError, match="transaction 5 altered table main.t"):
        wlr.read(farm.url, "t")


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        ({"table": "tt"}, "there is no table tt at tick 3", "Did you mean main.t?"),
        ({"tick": 9}, "tick 9 is not published: the farm's last one is 3", "Use tick=3"),
        ({"tick": -1}, "-1 is not a tick", "tick=0"),
        ({"tick": 1, "until": "now"}, "exclude each other", "Leave one"),
        ({"columns": ["pricee"]}, "table main.t has no column pricee", "did you mean price?"),
        ({"columns": []}, "names no column", "Columns are: id INTEGER"),
        ({"where": "pricee > 1"}, "does not fit table main.t", "did you mean price?"),
        ({"where": "price > random()"}, r"holds random\(\), which depends on more than the row", "for example"),
        ({"where": "id = 1 AND current_date > DATE '2020-01-01'"}, "holds current_date, which", "for example"),
        ({"where": "ago(INTERVAL 1 DAY) IS NULL"}, r"holds ago\(\), which", "for example"),
        ({"where": "getvariable('x') = id"}, r"holds getvariable\(\), which", "for example"),
        ({"where": "sum(id) > 1"}, r"holds sum\(\), which is an aggregate", "for example"),
        ({"where": "row_number() OVER () > 1"}, "holds a window function", "for example"),
        ({"where": "id IN (SELECT 1)"}, "holds a subquery", "for example"),
        ({"where": "id = ?"}, "holds a parameter", "for example"),
        ({"where": "true) FROM t WHERE (true"}, "is not one expression", "Write one expression"),
        ({"where": "1); DROP TABLE t; SELECT (1"}, "is not one expression", "Write one expression"),
        ({"where": "id, price"}, "is of type", "for example"),
        ({"where": "id >"}, "cannot be read: syntax error", "Write one expression"),
        ({"where": "price"}, "is of type DOUBLE, and not true or false", "for example"),
        ({"where": " "}, "where is empty", "for example"),
    ],
)
def test_mistakes_say_what_to_type(tmp_path: Path, arguments: dict[str, Any], said: str, hint: str) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (id INTEGER, price DOUBLE)"], [Rows("t", added=("1, 2",))], [])
    with pytest.raises(wlr.FarmError, match=said) as refused:
        wlr.read(farm.url, **{"table": "t", **arguments})
    assert hint in str(refused.value.hint)


@pytest.mark.slow
def test_a_place_that_is_nothing_and_a_moment_that_was_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WLC_FARM", raising=False)
    path = tmp_path / "shop.duckdb"
    with new_master(path) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS i")
        connection.execute("INSERT INTO t VALUES (2)")
        wlc.flush(path)
        wlc.snapshot(path)
        connection.execute("CREATE TABLE other (i INTEGER)")
    # The master itself names its farm.
    assert rows_of(wlr.read(path, "t")) == Counter([(1,), (2,)])
    assert rows_of(wlr.read("shop", "t", tick=1, farm=str(tmp_path / "farm"))) == Counter([(1,)])
    database = open_database(str(tmp_path / "farm" / "shop"))
    database.delete_snapshot(0)
    database.delete_batch(1)
    with pytest.raises(wlr.ExpiredError, match="tick 1 is before the oldest snapshot, tick 2") as refused:
        wlr.read(path, "t", tick=1)
    assert "tick=2" in str(refused.value.hint)
    with pytest.raises(wlr.InvalidError, match="no farm is given"):
        wlr.read("nothing", "t")
    with pytest.raises(wlr.InvalidError, match=r"nothing.duckdb"):
        wlr.read(tmp_path / "nothing.duckdb", "t")


@pytest.mark.slow
def test_only_the_columns_and_row_groups_that_are_needed_are_read(tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    wide = "hash(i)::VARCHAR || hash(i + 1)::VARCHAR"
    farm.publish(
        [
            "CREATE TABLE t (id INTEGER PRIMARY KEY, a VARCHAR, b VARCHAR)",
            Rows("t", added=(f"FROM (SELECT i, {wide}, {wide} FROM range(250000) r(i))",)),
        ]
    )
    wlr.snapshot_from_log(farm.url)
    farm.publish(
        [Rows("t", added=("5, 'new', 'new'",), removed=(f"FROM (SELECT i, {wide}, {wide} FROM range(5, 6) r(i))",))]
    )
    whole = bytes_read(lambda: wlr.read(farm.url, "t", verify=False).aggregate("max(a), max(b)").fetchall())
    column = bytes_read(lambda: wlr.read(farm.url, "t", columns=["id"], verify=False).aggregate("sum(id)").fetchall())
    group = bytes_read(lambda: wlr.read(farm.url, "t", where="id < 10", verify=False).fetchall())
    # Three row groups, of which one holds the ids below 10; two of three columns are long.
    assert column < whole / 4
    assert group < whole / 2
    checked = bytes_read(lambda: wlr.read(farm.url, "t", columns=["id"]).aggregate("sum(id)").fetchall())
    assert checked > whole / 2


def bytes_read(call: Callable[[], object]) -> int:
    def count() -> int:
        text = Path("/proc/self/io").read_text(encoding="ascii")
        return int(text.partition("rchar: ")[2].partition("\n")[0])

    before = count()
    call()
    return count() - before


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    (file,) = tmp_path.rglob("*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(wlr.CorruptError, match=file.name):
        wlr.read(farm.url, "t")


@pytest.mark.slow
def test_copies_of_a_remote_farm_live_as_long_as_the_relation(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as plain:
        plain.execute("CREATE TABLE t AS SELECT range AS i FROM range(3)")
    wlc.master(path, farm=s3_url)
    gc.collect()
    before = set(tmp_path.rglob("*"))
    relation = wlr.read(f"{s3_url}/shop", "t")
    few = relation.filter("i > 0")
    del relation
    gc.collect()
    assert rows_of(few) == Counter([(1,), (2,)])
    assert set(tmp_path.rglob("*.parquet")) - before
    del few
    gc.collect()
    assert {file for file in tmp_path.rglob("*") if file.is_file()} - before == set()


@pytest.mark.slow
def test_names_are_written_as_in_sql(tmp_path: Path) -> None:
    master = tmp_path / "sales.duckdb"
    wlc.master(master, create=True)
    with wlc.connect(master) as connection:
        connection.execute('CREATE SCHEMA "Weird name"; CREATE TABLE "Weird name"."t t" ("i i" INTEGER)')
        connection.execute('INSERT INTO "Weird name"."t t" VALUES (1), (2)')
    lake, copy = tmp_path / "lake", tmp_path / "copy.duckdb"
    for into in (lake, copy):
        wlr.replicate(master, into=into, engine="local", register=False)
    for place in (master, lake, copy):
        for name in ('"Weird name"."t t"', "Weird name.t t", '"weird name".t t'):
            assert wlr.read(place, name, where='"i i" > 1').fetchall() == [(2,)], (place, name)
    assert sum(batch.num_rows for batch in wlr.changes(master, '"Weird name"."t t"')) == 2
    assert len(wlr.files(lake, '"Weird name"."t t"')) == 1
    with pytest.raises(InvalidError, match="there is no table"):
        wlr.read(master, '"Weird name.t t"')
