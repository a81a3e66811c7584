"""A replica of chosen rows, columns and values holds what plain Python lets pass of the master's, at every moment."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wlc
import wlr
from cli.command import run_app
from cli.wlr import app
from tests.conformance.targets import DuckDBKind, Kind, ParquetKind, PostgresKind
from tests.handmade import HandmadeFarm, Rows
from tests.new_master import new_master
from tests.sampling import machine_settings
from tests.scenario.test_reading import CONDITIONS, Bag, Model
from tests.scenario.test_types_end_to_end import WIDE, change, fill
from tests.selection import engine_params
from tests.unit.dialect.test_types import VALUES
from wlc.dialect.sql import literal
from wlc.farm.model import Clear, Name
from wlr.engine.replica_state import ReplicaState, decode, encode
from wlr.replay.plan.row_filters import RowFilters, TableFilter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

KEY = b"a key of more than sixteen bytes"
T = Name("main", "t")
MASKS: list[tuple[str, Callable[[str | None], str | None]]] = [
    ("hash", lambda v: None if v is None else hmac.new(KEY, v.encode(), hashlib.sha256).hexdigest()),
    ("null", lambda v: None),
    ("constant:it's", lambda v: "it's"),
    ("truncate:0", lambda v: None if v is None else ""),
]
KINDS: dict[str, Callable[[pytest.FixtureRequest], Kind]] = {
    "duckdb": lambda request: DuckDBKind(request.getfixturevalue("tmp_path")),
    "parquet": lambda request: ParquetKind(request.getfixturevalue("tmp_path")),
    "postgres": lambda request: PostgresKind(request.getfixturevalue("cluster")),
}


@pytest.fixture(params=engine_params(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param](request)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "mask.key"
    path.write_bytes(KEY)
    return path


@st.composite
def filters(draw: st.DrawFn) -> tuple[RowFilters, Callable[[Bag], Bag]]:
    """A filter of the table t (k, v, f), and what it is in Python."""
    condition = draw(st.one_of(st.none(), st.sampled_from(CONDITIONS)))
    columns = draw(st.one_of(st.none(), st.sets(st.sampled_from("kvf"), min_size=1)))
    mask = draw(st.sampled_from(MASKS)) if columns is None or "v" in columns else None
    mask = draw(st.sampled_from([mask, None]))
    wanted = [n for n, name in enumerate("kvf") if columns is None or name in columns]

    def passing(rows: Bag) -> Bag:
        found: Bag = Counter()
        for (k, v, f), copies in rows.items():
            if condition is None or condition[1](k, v, f):
                row = (k, mask[1](v) if mask else v, f)
                found[tuple(row[n] for n in wanted)] += copies
        return found

    chosen = wlr.row_filters(
        [f"t: {condition[0]}"] if condition else None,
        [f"T: {', '.join(columns)}"] if columns else None,
        [f"main.t: V = {mask[0]}"] if mask else None,
    )
    return chosen or RowFilters((TableFilter(T, "true"),)), passing


def held(into: str) -> Bag:
    return Counter(wlr.read(into, "t").fetchall())


def outcomes(into: str) -> dict[str, str]:
    return {check.table: check.outcome for check in wlr.verify(into).tables}


@pytest.mark.slow
def test_rows_move_in_and_out_as_in_plain_python(
    kind: Kind, key: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @machine_settings(4)
    @given(filters(), st.booleans(), st.randoms(use_true_random=False))
    def check(chosen: tuple[RowFilters, Callable[[Bag], Bag]], has_key: bool, draw: random.Random) -> None:
        farm = HandmadeFarm(tmp_path_factory.mktemp("farm"))
        model, into = Model(0, has_key=has_key), kind.new()
        model.random = draw
        farm.publish([f"CREATE TABLE t (k INTEGER {'PRIMARY KEY' if has_key else ''}, v VARCHAR, f DOUBLE)"])
        for batch in range(3):
            made: list[list[object]] = []
            for _ in range(3):
                made.append([model.transaction()[0]])
                if draw.random() < 0.15:
                    made.append([Clear(T, model.rows.total())])
                    model.rows = Counter()
            farm.publish(*made)
            if batch == 0 and draw.random() < 0.5:
                wlr.snapshot_from_log(farm.url, engine="local")
            # Remembered: they need not be given again.
            said = replace(chosen[0], key_file=str(key)) if batch != 1 else None
            wlr.replicate(farm.url, into=into, filters=said, register=False)
            assert held(into) == chosen[1](model.rows)
        assert outcomes(into) == {"main.t": "same"}

    check()


@pytest.mark.slow
def test_schema_changes_keep_what_the_filters_say(kind: Kind, key: Path, tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), kind.new()
    farm.publish(
        [
            "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR, s INTEGER UNIQUE DEFAULT 7, CHECK (s > 0))",
            "CREATE TABLE u (id INTEGER PRIMARY KEY, t INTEGER REFERENCES t (k), email VARCHAR NOT NULL)",
            "CREATE UNIQUE INDEX i ON u (email)",
            "CREATE VIEW shown AS SELECT s FROM t",
            Rows("t", added=("1, 'EU', 1", "2, 'US', 2")),
        ],
        [Rows("u", added=("1, 1, 'a@x'", "2, 2, 'b@x'"))],
    )
    wlr.snapshot_from_log(farm.url, engine="local")
    farm.publish([Rows("t", added=("3, 'EU', 3",), removed=("2, 'US', 2",))])
    chosen = wlr.row_filters(
        ["t: v = 'EU'", "late: s % 2 = 1"], ["u: id, email"], ["u: email = truncate:1", "t: v = null"]
    )
    farm.publish(
        ["CREATE TABLE early (k INTEGER, s INTEGER)", Rows("early", added=("1, 1", "2, 2", "2, 2"))],
        ["ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 5", Rows("t", added=("4, 'EU', 4, 4",))],
        ["ALTER TABLE u ADD COLUMN secret VARCHAR DEFAULT 'x'", Rows("u", added=("3, NULL, 'c@x', 'y'",))],
    )
    farm.publish(["ALTER TABLE early RENAME TO late", Rows("late", added=("3, 3",), removed=("2, 2",))])
    wlr.replicate(farm.url, into=into, filters=chosen, register=False)

    def rows(table: str) -> list[tuple[Any, ...]]:
        return sorted(wlr.read(into, table).fetchall())

    assert rows("t") == [(1, None, 1, 5), (3, None, 3, 5), (4, None, 4, 4)]
    assert rows("u") == [(1, "a"), (2, "b"), (3, "c")]
    assert rows("late") == [(1, 1), (3, 3)]
    assert set(outcomes(into).values()) == {"same"}
    farm.publish(["DROP TABLE late", "CREATE TABLE late (s HUGEINT)", Rows("late", added=("4", "5"))])
    farm.publish(["DROP INDEX i"], ["ALTER TABLE u DROP COLUMN secret"], ["ALTER TABLE u RENAME COLUMN email TO mail"])
    with pytest.raises(wlr.ReplayError, match="transaction 11: table main.u has no column email"):
        wlr.replicate(into=into)
    assert (wlr.tick(into), rows("late"), rows("u")[0]) == (10, [(5,)], (1, "a"))
    assert set(outcomes(into).values()) == {"same"}


@pytest.mark.slow
def test_other_filters_make_only_their_tables_anew(kind: Kind, key: Path, tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), kind.new()
    farm.publish(
        [
            "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)",
            "CREATE TABLE u (k INTEGER, v VARCHAR)",
            "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
            "CREATE TABLE child (p INTEGER REFERENCES parent (id))",
            Rows("t", added=tuple(f"{n}, 'v{n}'" for n in range(6))),
            Rows("u", added=("1, 'x'", "1, 'x'", "2, NULL")),
        ]
    )
    chosen = wlr.row_filters(["t: k < 2"], ["u: k"])
    wlr.replicate(farm.url, into=into, filters=chosen, register=False)
    if not isinstance(kind, ParquetKind):
        # What is no table that gets another filter is not read.
        wlr.unlock(into)
        kind.write(into, "DELETE FROM u WHERE k = 2")
        wlr.lock(into)
    other = wlr.row_filters(["t: k > 2", "child: p > 0"], None, ["t: v = hash"], key)
    assert other
    with pytest.raises(wlr.InvalidError, match="the replica holds") as refused:
        wlr.replicate(into=into, filters=other)
    assert "--change-filters" in str(refused.value.hint)
    if not isinstance(kind, ParquetKind):
        with pytest.raises(
            wlr.InvalidError,
            match="table (main.)?(child has a foreign key to main.parent|child depends on table parent)",
        ):
            wlr.replicate(into=into, filters=wlr.row_filters(["parent: id > 1"], changes=True))
    farm.publish([Rows("t", removed=("1, 'v1'", "3, 'v3'"), added=("7, NULL",)), Rows("u", added=("3, 'y'",))])
    assert wlr.replicate(into=into, filters=replace(other, changes=True)).tick == 2
    assert held(into) == {(n, MASKS[0][1](f"v{n}")): 1 for n in (4, 5)} | {(7, None): 1}
    assert Counter(wlr.read(into, "u").fetchall()) == {(1,): 2, (3,): 1} | (
        {(2,): 1} if isinstance(kind, ParquetKind) else {}
    )
    filters = wlr.status(into).filters
    assert filters == ("main.u: columns k", "main.t: where k > 2; mask v = hash", "main.child: where p > 0")
    wlr.repair(into, ["u"])
    assert {o for name, o in outcomes(into).items() if name != "main.parent"} == {"same"}
    # Nothing differs any more.
    assert wlr.replicate(into=into, filters=replace(other, changes=True)).transactions == 0
    with pytest.raises(wlr.InvalidError, match=r"there is no table main\.x"):
        wlr.replicate(into=into, filters=wlr.row_filters(["x: true"], changes=True))
    farm.publish([Rows("t", removed=("7, NULL",), added=("8, 'v8'",))])
    wlr.replicate(into=into)
    assert held(into)[8, MASKS[0][1]("v8")] == 1
    assert {o for name, o in outcomes(into).items() if name != "main.parent"} == {"same"}


@pytest.mark.slow
def test_verify_locates_and_repair_mends_what_was_changed(kind: Kind, key: Path, tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), kind.new()
    farm.publish(
        [
            "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)",
            Rows("t", added=tuple(f"{n}, 'v{n}'" for n in range(100))),
        ]
    )
    wlr.replicate(
        farm.url,
        into=into,
        filters=wlr.row_filters(["t: k % 2 = 0"], None, ["t: v = hash"], key),
        register=False,
    )
    before = held(into)
    assert before == Counter((n, MASKS[0][1](f"v{n}")) for n in range(0, 100, 2))
    if isinstance(kind, ParquetKind):
        # Nobody writes to its files. What is repaired is what a killed writer, or a defect, would have left.
        assert wlr.repair(into, ["t"]) == [wlr.RepairedTable("main.t", 0, 0)]
        return
    wlr.unlock(into)
    kind.write(into, "DELETE FROM t WHERE k = 4")
    kind.write(into, "INSERT INTO t VALUES (5, 'v5')")
    wlr.lock(into)
    (found,) = wlr.verify(into, locate=True).tables
    assert (found.outcome, found.missing, found.surplus) == ("differs", 1, 1)
    assert wlr.repair(into, ["t"]) == [wlr.RepairedTable("main.t", 1, 1)]
    assert held(into) == before
    farm.publish([Rows("t", added=("4, 'new'",), removed=("4, 'v4'",))])
    wlr.replicate(into=into)
    assert outcomes(into) == {"main.t": "same"}


@pytest.mark.slow
def test_values_of_every_type_pass_as_they_are(tmp_path: Path) -> None:
    columns = [f"c{number}" for number in range(len(VALUES))]
    farm = HandmadeFarm(tmp_path)
    first, last = (", ".join(f"{literal(texts[at])}::{kind}" for kind, texts in VALUES.items()) for at in (0, -1))
    nothing = ", ".join("NULL" for _ in VALUES)
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(columns, VALUES, strict=True))
    farm.publish([f"CREATE TABLE t ({declared})", Rows("t", added=(first, first, last, nothing))])
    farm.publish([Rows("t", removed=(first, nothing))])
    # Every value is read as its type, and those of any type pass.
    condition = " OR ".join(f"{name} IS NULL OR {name} IS NOT DISTINCT FROM {name}" for name in columns)
    for into in (tmp_path / "copy.duckdb", tmp_path / "lake"):
        wlr.replicate(farm.url, into=into, filters=wlr.row_filters([f"t: {condition}"]), register=False)
        assert outcomes(str(into)) == {"main.t": "same"}
        texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in columns)
        ours, theirs = (Counter(wlr.read(place, "t").project(texts).fetchall()) for place in (into, farm.url))
        assert ours == theirs


@pytest.mark.deep
def test_every_type_passes_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "typed.duckdb"
    with new_master(path) as connection:
        fill(connection)
        wlc.snapshot(path)
        change(connection)
    url = str(tmp_path / "farm" / "typed")
    known = {number: wlr.read(url, f"t{number}").columns for number in range(len(WIDE))}
    # Every value is read as its type, and those of any type pass.
    conditions = [
        f"t{n}: " + " OR ".join(f'"{c}" IS NULL OR "{c}" IS NOT DISTINCT FROM "{c}"' for c in columns)
        for n, columns in known.items()
    ]
    for into in (tmp_path / "copy.duckdb", tmp_path / "lake"):
        wlr.replicate(url, into=into, filters=wlr.row_filters(conditions), register=False)
        assert set(outcomes(str(into)).values()) == {"same"}
        for number, columns in known.items():
            texts = ", ".join(f'CAST("{column}" AS VARCHAR)' for column in columns)
            ours, theirs = (wlr.read(place, f"t{number}").project(texts) for place in (into, url))
            assert Counter(ours.fetchall()) == Counter(theirs.fetchall()), number


REFUSED = [
    (["parent: id > 1"], [], [], "table main.child has a foreign key to main.parent, which is replicated in part"),
    (["parents: id > 1"], [], [], "there is no table main.parents to choose"),
    (["child: idd > 1"], [], [], 'column "idd" not found'),
    (["child: random() > 0.5"], [], [], "depends on more than the row"),
    (["child: (SELECT true)"], [], [], "a subquery"),
    (["child: id"], [], [], "is of type INTEGER, and not true or false"),
    ([], ["child: id, nome"], [], "table main.child has no column nome"),
    ([], ["child: id"], ["child: name = null"], "column name of main.child is masked, and not among the columns"),
    ([], [], ["child: id = hash"], "hash is for VARCHAR"),
    ([], [], ["child: id = truncate:2"], "truncate is for VARCHAR"),
    ([], [], ["child: id = constant:x"], "'x' is no INTEGER"),
]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_what_does_not_fit_is_refused_before_anything_is_made(tmp_path: Path, key: Path, has_snapshot: bool) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), tmp_path / "copy.duckdb"
    farm.publish(
        ["CREATE TABLE parent (id INTEGER PRIMARY KEY)"],
        ["CREATE TABLE child (id INTEGER REFERENCES parent (id), name VARCHAR)"],
    )
    if has_snapshot:
        wlr.snapshot_from_log(farm.url, engine="local")
    for where, columns, masks, message in REFUSED:
        chosen = wlr.row_filters(where, columns, masks, key)
        with pytest.raises(wlr.InvalidError, match=re.escape(message)) as refused:
            wlr.replicate(farm.url, into=into, filters=chosen)
        assert refused.value.hint
        assert not into.exists()


@pytest.mark.slow
def test_a_later_reference_stops_the_replay_and_the_hints_help(tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), tmp_path / "copy.duckdb"
    farm.publish(["CREATE TABLE parent (id INTEGER PRIMARY KEY)", Rows("parent", added=("1", "2"))])
    chosen = wlr.row_filters(["parent: id > 1"])
    wlr.replicate(farm.url, into=into, filters=chosen)
    farm.publish(["CREATE TABLE child (p INTEGER REFERENCES parent (id))", Rows("child", added=("1",))])
    with pytest.raises(wlr.ReplayError, match=r"main\.child has a foreign key to main\.parent") as refused:
        wlr.replicate(into=into)
    assert "--where 'main.child: true'" in str(refused.value.hint)
    other = tmp_path / "other.duckdb"
    wlr.replicate(farm.url, into=other, filters=wlr.row_filters(["parent: id > 1", "main.child: true"]))
    assert wlr.read(other, "child").fetchall() == [(1,)]
    farm.publish(["DROP TABLE child"], ["ALTER TABLE parent RENAME TO p"])
    with pytest.raises(wlr.ReplayError, match=r"parent becomes main\.p, which has no filter"):
        wlr.replicate(into=other)


@pytest.mark.slow
def test_filters_and_key_stay_as_they_were(tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), str(tmp_path / "copy.duckdb")
    farm.publish(["CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR, email VARCHAR)"])
    farm.publish([Rows("users", added=("1, 'Ann', 'a@x'", "2, 'Bob', 'b@x'"))])
    options = ["--where", "users: id > 1", "--columns", "users: id, email", "--mask", "users: email = hash"]
    start = ["replicate", farm.url, "--into", into]
    assert run_app(app, "wlr", [*start, *options]) == 2
    assert "a hash needs a key" in capsys.readouterr().err
    assert run_app(app, "wlr", [*start, *options, "--mask-key", str(key)]) == 0
    assert run_app(app, "wlr", [*start, *options, "--mask-key", str(key)]) == 0
    assert wlr.read(into, "users").fetchall() == [(2, MASKS[0][1]("b@x"))]
    assert wlr.status(into).filters == ("main.users: where id > 1; columns id, email; mask email = hash",)
    assert run_app(app, "wlr", [*start, "--where", "users: id > 2"]) == 2
    assert run_app(app, "wlr", [*start, "--mask", "users: email = truncate:x"]) == 2
    # No key, and no word of a hashed value, is in the file.
    content = (tmp_path / "copy.duckdb").read_bytes()
    assert not any(word in content for word in (KEY, b"b@x", b"Ann"))
    farm.publish([Rows("users", added=("3, 'Cy', 'c@x'",))])
    key.write_bytes(b"another key of enough bytes")
    with pytest.raises(wlr.InvalidError, match="holds another key"):
        wlr.replicate(into=into)
    assert run_app(app, "wlr", ["replicate", "--into", into, "--mask-key", str(key)]) == 2
    assert "holds another key" in capsys.readouterr().err
    moved = key.rename(tmp_path / "moved.key")
    moved.write_bytes(KEY)
    with pytest.raises(wlr.UnavailableError, match="cannot be read"):
        wlr.replicate(into=into)
    assert run_app(app, "wlr", ["replicate", "--into", into, "--mask-key", str(moved)]) == 0
    assert wlr.replicate(into=into).tick == 3
    # The log undoes whole tables only.
    assert wlr.replicate(into=into, tick=2).rebuilt_because
    assert wlr.read(into, "users").fetchall() == [(2, MASKS[0][1]("b@x"))]


def test_a_version_that_knows_no_filters_refuses_the_replica() -> None:
    filters = wlr.row_filters(["users: id > 1"])
    assert filters
    content = encode(ReplicaState("id", "sales", "sales", filters=filters))
    assert decode(content, "copy.duckdb", is_unlocked=False).filters == filters
    # It reads the keys that it knows.
    del content["filters"]
    with pytest.raises(wlr.CorruptError, match="format 2 is unknown, this version reads 1"):
        decode(content, "copy.duckdb", is_unlocked=False)


def test_an_accepted_transaction_leaves_no_hidden_values(tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), tmp_path / "copy.duckdb"
    farm.publish(["CREATE TABLE users (id INTEGER PRIMARY KEY, email VARCHAR)"])
    wlr.replicate(farm.url, into=into, filters=wlr.row_filters(masks=["users: email = null"]))
    farm.publish([Rows("users", added=("1, 'hidden@x'",), removed=("7, 'other@x'",))])
    with pytest.raises(wlr.ReplayError):
        wlr.replicate(into=into)
    wlr.accept(into)
    assert b"hidden@x" not in into.read_bytes()
    wlr.replicate(into=into)
    assert outcomes(str(into)) == {"main.users": "accepted"}
    with pytest.raises(wlr.ReplayError, match="does not keep"):
        wlr.retry(into)


@pytest.mark.slow
def test_a_condition_that_fails_for_a_row_tells_no_value(tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), tmp_path / "copy.duckdb"
    farm.publish(["CREATE TABLE t (k INTEGER, v VARCHAR)", Rows("t", added=("1, '7'",))])
    chosen = wlr.row_filters(["t: CAST(v AS INTEGER) > 5"])
    wlr.replicate(farm.url, into=into, filters=chosen)
    wlr.derive(farm.url, "derived", filters=chosen)
    farm.publish([Rows("t", added=("2, 'hidden'",))])
    for run in (lambda: wlr.replicate(into=into), lambda: wlr.derive(farm.url, "derived")):
        with pytest.raises(wlr.FarmError, match=r"fails for a row of main\.t \(Conversion Error\)") as failed:
            run()
        assert "hidden" not in f"{failed.value} {failed.value.hint}"
        assert "TRY(CAST(v AS INTEGER) > 5)" in str(failed.value.hint)
    assert "hidden" not in str(wlr.status(into).failure)
    assert b"hidden" not in into.read_bytes()
    wlr.replicate(into=into, filters=wlr.row_filters(["t: TRY(CAST(v AS INTEGER) > 5)"], changes=True))
    assert wlr.read(into, "t").fetchall() == [(1, "7")]
