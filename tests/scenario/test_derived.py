"""A derived database holds what plain Python lets pass of the first one, at every tick, and nothing else is in it."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.fault.breaker import DIES_AFTER, Breaker, Died, Fault, breakable_store
from tests.fault.processes import seed
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.sampling import machine_settings
from tests.scenario.test_reading import Bag, Model
from tests.scenario.test_row_filters import KEY, KINDS, MASKS, T, filters
from tests.unit.dialect.test_types import VALUES
from wlc.dialect.sql import literal
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FencedError, UnavailableError
from wlc.farm.model import Clear, Ddl, Name
from wlc.farm.paths import derived_path
from wlc.farm.registry import replicas

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from tests.conformance.targets import Kind
    from wlc.farm.model import Batch
    from wlr.replay.plan.row_filters import RowFilters


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param](request)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "mask.key"
    path.write_bytes(KEY)
    return path


def rows(place: object, table: str = "t", tick: int | None = None) -> Bag:
    return Counter(wlr.read(str(place), table, tick=tick).fetchall())


def beside(farm: HandmadeFarm, name: str) -> str:
    return f"{farm.url.rpartition('/')[0]}/{name}"


def bytes_of(folder: str) -> bytes:
    """Every byte of a database, and of the rows that its Parquet files hold as text."""
    found = [file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()]
    return b"\n".join(found)


@pytest.mark.slow
def test_the_derived_database_is_what_passes_at_every_tick(
    kind: Kind, key: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @machine_settings(2)
    @given(filters(), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
    def check(
        chosen: tuple[RowFilters, Callable[[Bag], Bag]], has_key: bool, is_late: bool, draw: random.Random
    ) -> None:
        farm, into = HandmadeFarm(tmp_path_factory.mktemp("farm")), kind.new()
        url, passing = beside(farm, "derived"), chosen[1]
        model, at = Model(0, has_key=has_key), {}
        model.random = draw
        farm.publish([f"CREATE TABLE t (k INTEGER {'PRIMARY KEY' if has_key else ''}, v VARCHAR, f DOUBLE)"])
        said: RowFilters | None = replace(chosen[0], key_file=str(key))
        for batch in range(3):
            made: list[list[object]] = []
            for _ in range(4):
                made.append([model.transaction()[0]])
                at[farm.tick + len(made)] = model.rows.copy()
                if draw.random() < 0.2:
                    # Rows that come and go with the clear in one transaction.
                    made.append([Clear(T, model.rows.total())])
                    model.rows = Counter()
                    at[farm.tick + len(made)] = Counter()
            farm.publish(*made)
            if batch == 0 and is_late:
                wlr.snapshot_from_log(farm.url, engine="local")
            if batch == 0:
                begin = farm.tick if is_late else 1
            derived = wlr.derive(farm.url, "derived", filters=said)
            assert (derived.tick, derived.clock) == (farm.tick, time_of(farm.tick))
            said = None
            wlr.replicate(url, into=into, register=False)
            assert rows(into) == passing(model.rows)
        ticks = range(max(begin, 2), farm.tick + 1)
        for tick in draw.sample(ticks, 4):
            assert rows(url, tick=tick) == passing(at[tick]), tick
        assert {check.outcome for check in wlr.verify(into).tables} == {"same"}
        assert not wlr.verify_farm(url).problems

    check()


@pytest.mark.slow
def test_rows_that_are_kept_back_are_in_no_byte(tmp_path: Path, key: Path) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(
        [
            "CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR, region VARCHAR DEFAULT 'secret default',"
            " pay INTEGER CHECK (pay <> 77778888), mail VARCHAR)",
            "CREATE TABLE plans (secret VARCHAR)",
            "CREATE VIEW secret_view AS SELECT * FROM users WHERE name = 'secret-view'",
            Rows("users", added=("1, 'Ann', 'EU', 10, 'ann@secret'", "2, 'secret-bob', 'US', 77777777, 'bob@secret'")),
            Rows("plans", added=("'secret plan'",)),
        ],
    )
    wlr.snapshot_from_log(farm.url, engine="local")
    chosen = wlr.row_filters(
        ["users: region <> 'secret-us' AND region = 'EU'"], ["users: id, name, mail"], ["users: mail = hash"], key
    )
    derived = wlr.derive(farm.url, "shown", filters=chosen)
    assert (derived.snapshot, derived.tick) == (1, 1)
    farm.publish(
        # One moves in, one moves out, a hidden column changes, and what nobody named is created, renamed and dropped.
        [Rows("users", added=("3, 'Cy', 'EU', 1, 'cy@secret'",), removed=())],
        [Rows("users", added=("3, 'secret-cy', 'US', 1, 'cy@secret'",), removed=("3, 'Cy', 'EU', 1, 'cy@secret'",))],
        [Rows("users", added=("1, 'Ann', 'EU', 99999, 'ann@secret'",), removed=("1, 'Ann', 'EU', 10, 'ann@secret'",))],
        ["CREATE TABLE secret_table (secret_column INTEGER)", Rows("secret_table", added=("12345678",))],
        ["ALTER TABLE secret_table RENAME TO secret_other"],
        ["ALTER TABLE users ADD COLUMN secret_more VARCHAR DEFAULT 'secret-more'"],
        ["ALTER TABLE users RENAME COLUMN pay TO secret_pay"],
        ["DROP TABLE secret_other"],
    )
    farm.publish([Clear(Name("main", "plans"), 1)], None)
    derived = wlr.derive(farm.url, "shown")
    url = beside(farm, "shown")
    wlr.snapshot_from_log(url, engine="local")
    wlr.replicate(url, into=tmp_path / "copy.duckdb", register=False)
    assert rows(url, "users") == {(1, "Ann", MASKS[0][1]("ann@secret")): 1}
    assert rows(url, "users", tick=2) == {
        (1, "Ann", MASKS[0][1]("ann@secret")): 1,
        (3, "Cy", MASKS[0][1]("cy@secret")): 1,
    }
    # A transaction of which nothing passes is not there, but for the last one of a round.
    database = open_database(url)
    ticks = [t.tick for number in database.batch_numbers() for t in database.read_batch(number)[0].transactions]
    assert ticks == [2, 3, farm.tick]
    assert derived.tick == farm.tick
    held = bytes_of(url) + b"".join(str(row).encode() for row in wlr.read(url, "users", tick=2).fetchall())
    for word in (b"secret", b"pay", b"plans", b"77777777", b"99999", b"12345678", b"ann\x00", b"US", farm.url.encode()):
        assert word not in held, word
    # Who wrote it does not leave either.
    assert b'"user":"ann"' not in held
    assert b'"user":"shown"' in held


@pytest.mark.slow
def test_schema_changes_pass_the_choice(kind: Kind, tmp_path: Path) -> None:
    farm, into = HandmadeFarm(tmp_path / "farm"), kind.new()
    url = beside(farm, "part")
    farm.publish(
        [
            "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR, s INTEGER UNIQUE DEFAULT 7, CHECK (s > 0))",
            "CREATE TABLE u (id INTEGER PRIMARY KEY, t INTEGER REFERENCES t (k))",
            Rows("t", added=("1, 'EU', 1", "2, 'US', 2")),
        ],
        [Rows("u", added=("1, 1", "2, 2"))],
    )

    def derived(**said: Any) -> None:
        wlr.derive(farm.url, "part", **said)
        wlr.replicate(url, into=into, register=False)
        assert {check.outcome for check in wlr.verify(into).tables} == {"same"}

    farm.publish(["CREATE TABLE early (k INTEGER, s INTEGER)", Rows("early", added=("1, 1", "2, 2", "2, 2"))])
    farm.publish(["ALTER TABLE early RENAME TO late", Rows("late", added=("3, 3",), removed=("2, 2",))])
    farm.publish(["CREATE SCHEMA own"], ["CREATE TABLE own.x (a INTEGER)", Rows("own.x", added=("1",))])
    derived(filters=wlr.row_filters(["t: v = 'EU'", "late: s % 2 = 1"]), tables=["u", "own.*"])
    assert (rows(into), rows(into, "late")) == ({(1, "EU", 1): 1}, {(1, 1): 1, (3, 3): 1})
    assert (rows(into, "u"), rows(into, "own.x")) == ({(1, 1): 1, (2, 2): 1}, {(1,): 1})
    farm.publish(
        ["ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 5", Rows("t", added=("4, 'EU', 4, 4",))],
        ["ALTER TABLE late RENAME TO gone"],
        ["ALTER TABLE own.x ALTER a TYPE VARCHAR", Clear(Name("own", "x"), 1), Rows("own.x", added=("'1'", "'b'"))],
    )
    derived()
    assert rows(into) == {(1, "EU", 1, 5): 1, (4, "EU", 4, 4): 1}
    assert rows(into, "own.x") == {("1",): 1, ("b",): 1}
    with pytest.raises(wlr.InvalidError):
        wlr.read(into, "late")
    farm.publish(
        [Ddl("DROP TABLE", Name("own", "x"), "DROP TABLE own.x")],
        ["CREATE OR REPLACE TABLE u (id BIGINT)", Rows("u", added=("7",))],
        [Rows("t", removed=("1, 'EU', 1, 5",), added=("1, 'US', 1, 5",))],
    )
    derived()
    assert (rows(into), rows(into, "u")) == ({(4, "EU", 4, 4): 1}, {(7,): 1})
    farm.publish(["ALTER TABLE t RENAME COLUMN v TO region"])
    with pytest.raises(wlr.ReplayError, match="transaction 13 cannot be derived: .* does not fit table main.t"):
        wlr.derive(farm.url, "part")
    assert wlc.status(url).tick == 12


def test_values_of_every_type_pass(tmp_path: Path) -> None:
    columns = [f"c{number}" for number in range(len(VALUES))]
    farm = HandmadeFarm(tmp_path)
    first, last = (", ".join(f"{literal(texts[at])}::{kind}" for kind, texts in VALUES.items()) for at in (0, -1))
    nothing = ", ".join("NULL" for _ in VALUES)
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(columns, VALUES, strict=True))
    farm.publish([f"CREATE TABLE t ({declared})", Rows("t", added=(first, first, last, nothing))])
    farm.publish([Rows("t", removed=(first, nothing))])
    condition = " OR ".join(f"{name} IS NULL OR {name} IS NOT DISTINCT FROM {name}" for name in columns)
    listed = f"t: {', '.join(columns)}"
    wlr.derive(farm.url, "whole", filters=wlr.row_filters([f"t: {condition}"], [listed]))
    url, into = beside(farm, "whole"), tmp_path / "copy.duckdb"
    wlr.replicate(url, into=into, register=False)
    assert {check.outcome for check in wlr.verify(into).tables} == {"same"}
    texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in columns)
    ours, theirs = (Counter(wlr.read(place, "t").project(texts).fetchall()) for place in (into, farm.url))
    assert ours == theirs


def small_farm(folder: Path) -> HandmadeFarm:
    farm = HandmadeFarm(folder)
    farm.publish(["CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)", Rows("t", added=("1, 'a'", "2, 'b'"))])
    farm.publish([Rows("t", added=("3, 'c'",))], [Rows("t", removed=("1, 'a'",))])
    return farm


EVEN = ["t: k % 2 = 0 OR k = 3"]


def test_two_at_once_publish_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    farm = small_farm(tmp_path)
    url, publish = beside(farm, "d"), FarmDatabase.publish
    is_first = True

    def slow(database: FarmDatabase, *args: Any) -> str:
        nonlocal is_first
        if database.url == url and is_first:
            is_first = False
            # What is published meanwhile has other bytes: rows of a file come in any order.
            farm.publish([Rows("t", added=("4, 'd'",))])
            wlr.derive(farm.url, "d")
        return publish(database, *args)

    monkeypatch.setattr(FarmDatabase, "publish", slow)
    done = wlr.derive(farm.url, "d", filters=wlr.row_filters(EVEN))
    assert done.tick == farm.tick == 4
    assert rows(url) == {(2, "b"): 1, (3, "c"): 1, (4, "d"): 1}
    assert not wlr.verify_farm(url).problems


@pytest.mark.parametrize(
    ("at", "is_lost"),
    [
        pytest.param(at, lost, marks=[] if at == sampled_at else [pytest.mark.deep])
        for lost, sampled_at in ((False, seed() % 6), (True, (seed() + 3) % 6))
        for at in range(6)
    ],
)
def test_who_dies_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, is_lost: bool) -> None:
    """Break one write of the derived folder after the other, before it or after it."""
    farm = small_farm(tmp_path)
    wlr.snapshot_from_log(farm.url, engine="local")
    farm.publish([Rows("t", added=("5, 'e'", "6, 'f'"))], [Rows("t", removed=("2, 'b'",))])
    url, left = beside(farm, "d"), at
    from wlc.farm.store.local import LocalStore

    def breaking(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def call(store: LocalStore, path: str, *args: Any) -> Any:
            nonlocal left
            if not (store.url.startswith(url) or path == derived_path("d", 1)):
                return real(store, path, *args)
            left -= 1
            if left == -1 and not is_lost:
                raise UnavailableError("killed")
            result = real(store, path, *args)
            if left == -1:
                raise UnavailableError("killed")
            return result

        return call

    for name in ("create", "replace", "upload"):
        if hasattr(LocalStore, name):
            monkeypatch.setattr(LocalStore, name, breaking(name))
    chosen = wlr.row_filters(EVEN)
    # An answer that is lost can be settled by looking.
    with suppress(UnavailableError) if is_lost else pytest.raises(UnavailableError, match="killed"):
        wlr.derive(farm.url, "d", filters=chosen)
    assert left < 0
    assert wlr.derive(farm.url, "d", filters=chosen).tick == farm.tick
    assert rows(url) == {(3, "c"): 1, (6, "f"): 1}
    assert not wlr.verify_farm(url).problems


def test_what_is_chosen_is_remembered_and_kept_from_readers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm = small_farm(tmp_path)
    start = ["derive", farm.url, "--as", "d"]
    assert run_app(app, "wlc", start) == 2
    assert "--where" in capsys.readouterr().err
    assert run_app(app, "wlc", [*start, "--where", "tt: k = 1"]) == 2
    assert "there is no table main.tt" in capsys.readouterr().err
    assert run_app(app, "wlc", [*start, "--tables", "x*"]) == 2
    assert "no table matches 'x*'" in capsys.readouterr().err
    assert run_app(app, "wlc", [*start, "--where", "t: random() > 0.5"]) == 2
    assert not Path(beside(farm, "d")).exists()
    assert run_app(app, "wlc", ["derive", farm.url, "--as", "sales", "--where", EVEN[0]]) == 2
    assert "derived from itself" in capsys.readouterr().err
    assert run_app(app, "wlc", [*start, "--where", EVEN[0], "--json"]) == 0
    assert run_app(app, "wlc", [*start, "--where", EVEN[0]]) == 0
    assert run_app(app, "wlc", [*start, "--where", "t: k > 1"]) == 2
    assert re.search(r"was derived with main.t: where k % 2 = 0.*--anew", capsys.readouterr().err, re.DOTALL)
    HandmadeFarm(tmp_path, name="other")
    assert run_app(app, "wlc", ["derive", farm.url, "--as", "other", "--where", EVEN[0]]) == 2
    assert "is not derived from this one" in capsys.readouterr().err
    assert b"k % 2" not in bytes_of(beside(farm, "d"))
    # Pruning of the first one keeps what is still to be derived.
    (reader,) = replicas(farm.db)
    assert (reader.target, reader.position and reader.position.tick) == (beside(farm, "d"), farm.tick)


@pytest.mark.slow
@pytest.mark.parametrize("later", [1, 2])
def test_a_run_that_was_halted_publishes_nothing_under_a_new_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    farm = small_farm(tmp_path)
    url = beside(farm, "d")
    wlr.derive(farm.url, "d", filters=wlr.row_filters(EVEN))
    farm.publish(*[[Rows("t", added=("4, 'd'",))], [Rows("t", added=("6, 'f'",))]][-later:])
    wlr.snapshot_from_log(farm.url, engine="local")
    publish, halted = FarmDatabase.publish, ["once"]

    def publish_late(database: FarmDatabase, batch: Batch, files: Mapping[str, Path]) -> str:
        while database.name == "d" and halted:
            halted.pop()
            wlr.derive(farm.url, "d", filters=wlr.row_filters(["t: k > 2"]), anew=True)
        return publish(database, batch, files)

    with monkeypatch.context() as patch:
        patch.setattr(FarmDatabase, "publish", publish_late)
        with pytest.raises(FencedError):
            wlr.derive(farm.url, "d")
    farm.publish([Rows("t", added=("5, 'e'",))])
    assert wlr.derive(farm.url, "d").batches == 1
    assert rows(url) == {(3, "c"): 1, **({(4, "d"): 1} if later > 1 else {}), (5, "e"): 1, (6, "f"): 1}
    assert not wlr.verify_farm(url).problems


@pytest.mark.slow
def test_a_new_history_that_is_broken_off_begins_with_the_same_command(tmp_path: Path) -> None:
    """Right behind the tick at which readers of the former one stand, who are told that it ended."""
    place = tmp_path / "place"
    place.mkdir()
    farm = small_farm(place)
    url, into, out = beside(farm, "d"), tmp_path / "copy.duckdb", tmp_path / "d.jsonl"
    wlr.derive(farm.url, "d", filters=wlr.row_filters(EVEN))
    wlr.replicate(url, into=into, register=False)
    wlr.feed(url, to=out)
    wlc.ship(url, to=str(tmp_path / "relay"))
    farm.publish([Rows("t", added=("4, 'd'",))])
    wlr.snapshot_from_log(farm.url, engine="local")
    other = wlr.row_filters(["t: k > 2"])
    shutil.copytree(place, tmp_path / "before")

    def dies(at: int) -> Breaker:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "before", place)
        breaker = Breaker(tmp_path, tmp_path / "image", Fault(DIES_AFTER, at))
        with breakable_store(breaker, breaks=True), patch.object(shutil, "copytree"), suppress(Died):
            wlr.derive(farm.url, "d", filters=other, anew=True)
        return breaker

    writes = [at for at, call in enumerate(dies(1000).calls) if call.startswith(("create", "replace"))]
    assert len(writes) > 6
    for at in writes:
        breaker = dies(at)
        with suppress(wlr.InvalidError):
            wlr.derive(farm.url, "d", filters=other, anew=True)
        assert rows(url) == {(3, "c"): 1, (4, "d"): 1}, breaker.broken
        assert not wlr.verify_farm(url, full=True).problems
    with pytest.raises(wlr.InvalidError, match="^the history ended at tick 3;"):
        wlr.replicate(into=into)
    with pytest.raises(wlr.ExpiredError, match="^the history ended at tick 3;"):
        wlr.feed(url, to=out)
    assert wlc.ship(url, to=str(tmp_path / "relay")).tick == 4
    assert not wlr.verify_farm(str(tmp_path / "relay" / "d")).problems


@pytest.mark.slow
def test_a_new_history_begins_with_the_newest_snapshot(tmp_path: Path) -> None:
    farm = small_farm(tmp_path)
    url, into = beside(farm, "d"), tmp_path / "copy.duckdb"
    wlr.derive(farm.url, "d", filters=wlr.row_filters(EVEN))
    wlr.replicate(url, into=into)
    other = wlr.row_filters(["t: k > 2"])
    with pytest.raises(wlr.InvalidError, match="has no later snapshot") as refused:
        wlr.derive(farm.url, "d", filters=other, anew=True)
    assert "wlc snapshot" in str(refused.value.hint)
    farm.publish([Rows("t", added=("4, 'd'",))])
    wlr.snapshot_from_log(farm.url, engine="local")
    farm.publish([Rows("t", added=("5, 'e'",))])
    done = wlr.derive(farm.url, "d", filters=other, anew=True)
    assert (done.snapshot, done.tick) == (4, 5)
    assert rows(url) == {(3, "c"): 1, (4, "d"): 1, (5, "e"): 1}
    with pytest.raises(wlr.InvalidError, match="^the history ended at tick 3;"):
        wlr.replicate(into=into)
    wlr.replicate(into=into, rebase=True)
    assert rows(into) == rows(url)
    assert not wlr.verify_farm(url).problems
    assert wlr.derive(farm.url, "d").batches == 0


@pytest.mark.slow
def test_a_first_database_that_began_a_new_history_is_derived_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, farm = tmp_path / "first.duckdb", str(tmp_path / "farm")
    wlc.master(source, farm=farm, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (k INTEGER)")
    wlc.flush(source)
    wlr.derive("first", "d", farm=farm, tables=["t"])
    wlc.stop(source)
    wlc.master(source, farm=farm)
    with pytest.raises(wlr.InvalidError, match="ended at tick 2") as refused:
        wlr.derive("first", "d", farm=farm)
    command, _, rest = str(refused.value.hint).partition(" begins ")
    assert rest == "its new history with the newest snapshot"
    assert run_app(app, "wlc", shlex.split(command)[1:]) == 0, capfd.readouterr().err
    assert wlr.derive("first", "d", farm=farm).batches == 0


def test_readers_of_the_derived_one_need_no_key_of_the_first(tmp_path: Path) -> None:
    source, secret, public = tmp_path / "db.duckdb", tmp_path / "first.key", tmp_path / "second.key"
    for file in (secret, public):
        assert run_app(app, "wlc", ["key", "encryption", str(file)]) == 0
    mine, theirs = ({"encryption_key_file": str(file)} for file in (secret, public))
    wlc.master(source, farm=str(tmp_path / "farm"), create=True, storage_options=mine)
    with wlc.connect(source, storage_options=mine) as connection:
        connection.execute("CREATE TABLE t (k INTEGER, v VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    first, chosen = str(tmp_path / "farm" / "db"), wlr.row_filters(["t: k = 2"])
    options: dict[str, Any] = {"filters": chosen, "storage_options": mine}
    with pytest.raises(wlr.InvalidError, match="would have the encryption key of"):
        wlr.derive(first, str(tmp_path / "out" / "d"), target_options=mine, **options)
    wlr.derive(first, str(tmp_path / "out" / "d"), target_options=theirs, **options)
    wlr.derive(first, str(tmp_path / "out" / "plain"), **options)
    assert wlr.read(str(tmp_path / "out" / "d"), "t", storage_options=theirs).fetchall() == [(2, "b")]
    assert wlr.read(str(tmp_path / "out" / "plain"), "t").fetchall() == [(2, "b")]
    for reader in ({}, mine):
        with pytest.raises(wlr.FarmError):
            wlr.read(str(tmp_path / "out" / "d"), "t", storage_options=reader)
    # And the key of the second opens nothing of the first.
    with pytest.raises(wlr.FarmError):
        wlr.read(first, "t", storage_options=theirs)
