"""What every replica engine must do. A new engine is one more entry of `KINDS`; see `tests.conformance.targets`.

Farms are written by hand. What a replica must hold is what the simplest model makes of the same log.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests import handmade
from tests.conformance.targets import DuckDBKind, ParquetKind, PostgresKind
from tests.data_files import OTHER_IMAGES, write_parquet
from tests.fault.processes import wants_all
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.oracle import replayed
from tests.postgres.held import held_by_duckdb
from tests.sampling import sampled
from wlc.dialect.duckdb.snapshot import take
from wlc.farm.database import describe_file
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError, ReplayError, UnavailableError
from wlc.farm.model import (
    AlteredObject,
    Clear,
    CreatedObject,
    DbObject,
    Ddl,
    Manifest,
    Origin,
    Position,
    SnapshotTable,
)
from wlc.farm.registry import replicas
from wlr.engine.contract import Guarded
from wlr.replay.plan.failure import MEMORY_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.conformance.targets import Kind

from tests.conformance.targets import KEYED, T, in_t, modelled, publish_everything, replicate, rows

# Build and step ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_tick_is_a_stop_from_which_one_can_go_on(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """Times are stops, too; a new replica of every tick takes long, so that some are compared in every run."""
    publish_everything(farm)
    # Transaction 4 was rolled back, and has a tick all the same.
    times: dict[int, object] = {4: time_of(3), 7: time_of(7).isoformat()}
    for tick in range(farm.tick + 1):
        is_direct = tick in (0, 4, 7, farm.tick) or wants_all()
        places = (kind.new(), into) if is_direct else (into,)
        expected = modelled(farm, tick)
        for place in places:
            stop: dict[str, Any] = {"until": times[tick]} if tick in times else {"tick": tick}
            done = wlr.replicate(farm.url, into=place, engine="local", **stop)
            assert (done.tick, wlr.tick(place)) == (tick, tick)
            assert wlr.clock(place) == (time_of(3 if tick == 4 else tick) if tick else None)
            assert kind.held(place) == expected, f"at tick {tick}"
        if tick in (0, 4, 7):
            assert wlr.replicate(into=places[0], engine="local").tick == farm.tick
            assert kind.held(places[0]) == modelled(farm, farm.tick)
    again = wlr.replicate(into=into, engine="local")
    assert (again.tick, again.transactions, again.rows) == (farm.tick, 0, 0)
    assert kind.held(into) == modelled(farm, farm.tick)


@pytest.mark.slow
def test_built_from_a_snapshot(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    publish_everything(farm)
    with replayed(farm.url, 8) as (connection, catalog):
        connection.execute(f"USE {catalog}; BEGIN TRANSACTION READ ONLY")
        farm_at = Position(farm.history, 8, 2, farm.chain)
        take(connection, catalog, farm.db, farm_at, time_of(8), {farm.history: 8})
    made = replicate(farm, into)
    assert (made.snapshot, made.tick) == (8, farm.tick)
    assert kind.held(into) == modelled(farm, farm.tick)


def test_keys_move_and_unique_values_change_hands(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR UNIQUE)"], [Rows("t", ("1, 'x'", "2, 'y'"))])
    farm.publish([Rows("t", ("1, 'y'", "2, 'x'"), ("1, 'x'", "2, 'y'"))])
    replicate(farm, into, 3)
    assert kind.held(into)["main.t"] == in_t((1, "y"), (2, "x"))
    farm.publish([Rows("t", ("2, 'y'", "3, 'x'"), ("1, 'y'", "2, 'x'"))])
    replicate(farm, into)
    assert kind.held(into)["main.t"] == in_t((2, "y"), (3, "x"))


TYPES = {
    "BOOLEAN": "true",
    "SMALLINT": "-32768",
    "INTEGER": "2147483647",
    "BIGINT": "-9223372036854775808",
    "DOUBLE": "'nan'",
    "REAL": "'-inf'",
    "DECIMAL(18, 4)": "-12345678901234.5678",
    "VARCHAR": "'ä\n''\"ß'",
    "BLOB": r"'\x00\xFFa'",
    "DATE": "'1969-12-31'",
    "TIME": "'23:59:59.999999'",
    "TIMESTAMP": "'2026-01-01 00:00:00.000001'",
    "TIMESTAMPTZ": "'2026-07-01 12:00:00+02'",
    "UUID": "'00112233-4455-6677-8899-aabbccddeeff'",
    "INTEGER[]": "[1, NULL, 3]",
}


@pytest.mark.slow
def test_types(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """A value, NULL, and the change from one to the other; every type of DuckDB and PostgreSQL has tests of its own."""
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(TYPES))
    values = ", ".join(f"({value})::{declared}" for declared, value in TYPES.items())
    nulls = ", ".join("NULL" for _ in TYPES)
    farm.publish([f"CREATE TABLE t (id INTEGER PRIMARY KEY, {columns})"], [Rows("t", (f"1, {values}", f"2, {nulls}"))])
    farm.publish([Rows("t", (f"1, {nulls}", f"2, {values}"), (f"1, {values}", f"2, {nulls}"))])
    for tick in (2, 3):
        replicate(farm, into, tick)
        assert kind.held(into) == modelled(farm, tick)


@pytest.mark.slow
def test_data_files_are_what_the_log_says(
    kind: Kind, farm: HandmadeFarm, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.publish([KEYED, Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    before, chain, tick = kind.held(into), farm.chain, farm.tick
    for query, problem in map(OTHER_IMAGES.get, ("type", "weight", "count")):
        with monkeypatch.context() as patched:
            patched.setattr(handmade, "_write", lambda file, *_, query=query: write_parquet(query, file))
            farm.publish([Rows("t", rows(2, v="b"))])
        with pytest.raises(CorruptError, match=problem) as caught:
            wlr.replicate(into=into)
        assert "sales_000000000002.d/0.parquet" in caught.value.message
        assert (wlr.tick(into), kind.held(into)) == (tick, before)
        farm.take_back(chain, tick)
    farm.publish([Rows("t", rows(2, v="b"))])
    wlr.replicate(into=into)
    assert wlr.tick(into) == 2


@pytest.mark.slow
def test_a_small_file_that_becomes_large_stays_within_the_memory_allowed(
    kind: Kind, farm: HandmadeFarm, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 texts of a megabyte that a file of some kilobytes repeats."""
    farm.publish([KEYED, Rows("t", rows(1))])
    wlr.replicate(farm.url, into=into)
    before = kind.held(into)
    large = "SELECT 2::BIGINT _tick, 1::TINYINT _weight, i::INTEGER id, repeat('x', 1000000) v FROM range(2, 202) t(i)"
    with monkeypatch.context() as patched:
        patched.setattr(handmade, "_write", lambda file, *_: write_parquet(large, file))
        patched.setattr(handmade, "_count", lambda images: 200 if images else 0)
        farm.publish([Rows("t", rows(2))])
    monkeypatch.setenv(MEMORY_VARIABLE, "100MB")
    try:
        wlr.replicate(into=into, engine="local")
    except UnavailableError as error:
        assert "needs too much memory" in error.message
        assert MEMORY_VARIABLE in str(error.hint)
        assert kind.held(into) == before
    else:
        # The rows passed in pieces.
        assert isinstance(kind, PostgresKind)
        assert wlr.tick(into) == 2


def test_snapshot_files_are_what_the_manifest_says(kind: Kind, farm: HandmadeFarm, into: str, tmp_path: Path) -> None:
    farm.publish([KEYED, Rows("t", rows(1))])
    for query, problem in (
        ("SELECT 1::BIGINT id, 'a' v", "id is BIGINT"),
        ("SELECT 1 id, 'a' v, 2 w", "w INTEGER"),
        ("SELECT NULL::INTEGER id, 'a' v", "no value in column id"),
    ):
        file = tmp_path / "0.parquet"
        write_parquet(query, file)
        table = SnapshotTable(T, farm.layouts[T], (describe_file(file, "0.parquet", 1),))
        position = Position(farm.history, farm.tick, farm.batch, farm.chain)
        made = (CreatedObject(DbObject("TABLE", T)),)
        schema = (Ddl("CREATE TABLE", T, KEYED, layout=farm.layouts[T], does=made),)
        manifest = Manifest("sales", position, time_of(1), farm.catalog, schema, (), (table,), (), {farm.history: 1})
        farm.db.publish_snapshot(manifest, {"0.parquet": file})
        with pytest.raises(CorruptError, match=problem):
            wlr.replicate(farm.url, into=into)
        assert kind.held(into) == {}
        farm.db.delete_snapshot(farm.tick)


def test_only_tables_that_fit_a_pattern(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """Statements about others do not matter, also of the same name in another schema."""
    farm.publish([KEYED], ["CREATE TABLE u (a INTEGER)", "CREATE SCHEMA s", "CREATE TABLE s.t (a INTEGER)"])
    farm.publish([Rows("t", rows(1)), Rows("u", ("1",))])
    wlr.replicate(farm.url, into=into, tables=["main.t"], engine="local")
    assert kind.held(into) == {"main.t": in_t((1, "a"))}
    farm.publish(["ALTER TABLE u ADD COLUMN b INTEGER", "ALTER TABLE s.t ADD COLUMN b INTEGER", "DROP TABLE s.t"])
    farm.publish([Rows("u", ("2, 2",)), Rows("t", rows(2))])
    assert wlr.replicate(into=into, engine="local").tick == 5
    assert kind.held(into) == {"main.t": in_t((1, "a"), (2, "a"))}
    assert wlr.status(into).tables == ("main.t",)
    with pytest.raises(InvalidError, match=r"the replica holds tables main\.t"):
        wlr.replicate(into=into, tables=["main.u"], engine="local")


@pytest.mark.slow
def test_tables_renamed_into_a_filter_come_in_with_their_rows(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """A tool builds a table under another name and swaps the two."""
    farm.publish(["CREATE TABLE daily (id INTEGER PRIMARY KEY, v VARCHAR)"], [Rows("daily", rows(1))])
    wlr.replicate(farm.url, into=into, tables=["main.daily"], engine="local")
    farm.publish(
        [
            "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v VARCHAR, w DOUBLE DEFAULT 2)",
            "COMMENT ON TABLE fresh IS 'x'",
        ],
        [Rows("fresh", ("5, 'a', 1", "6, 'b', NULL"))],
    )
    swap = ["ALTER TABLE daily RENAME TO old", "ALTER TABLE FRESH RENAME TO daily"]
    farm.publish(
        [Rows("fresh", ("7, 'c', 1",)), *swap, Rows("daily", ("8, 'd', 1",)), "DROP TABLE old"],
        [Rows("daily", ("9, 'e', 1",), ("6, 'b', NULL",))],
    )
    assert wlr.replicate(into=into, engine="local").tick == farm.tick
    held = in_t((5, "a", 1.0), (7, "c", 1.0), (8, "d", 1.0), (9, "e", 1.0))
    assert kind.held(into) == {"main.daily": held}
    farm.publish(["ALTER TABLE daily RENAME TO parked"], [Rows("parked", ("10, 'f', 1",))])
    assert wlr.replicate(into=into, engine="local").tick == farm.tick
    assert kind.held(into) == {}


@pytest.mark.slow
def test_a_column_before_the_key_is_dropped(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """DuckDB refuses it; masters of other engines do it."""

    def dropped(column: str) -> Ddl:
        layout = farm.layouts[T]
        left = tuple(found for found in layout.columns if found.name != column)
        did = AlteredObject(DbObject("TABLE", T), columns=((column, None),))
        statement = f'ALTER TABLE t DROP COLUMN "{column}"'
        return Ddl("ALTER TABLE", T, statement, layout=replace(layout, columns=left), does=(did,))

    farm.publish(
        ['CREATE TABLE t (a INTEGER, id INTEGER PRIMARY KEY, "x, y" DECIMAL(9, 2) DEFAULT 1, v VARCHAR)'],
        ["COMMENT ON COLUMN t.v IS 'text'"],
        [Rows("t", ("7, 1, 2.5, 'a'", "8, 2, NULL, 'b'"))],
    )
    replicate(farm, into)
    farm.publish([Rows("t", ("9, 3, 1, 'c'",)), dropped("a"), Rows("t", ("4, 1.5, 'd'",), ("1, 2.5, 'a'",))])
    farm.publish([dropped("x, y"), Rows("t", ("5, 'e'",), ("2, 'b'",))])
    replicate(farm, into)
    assert kind.held(into)["main.t"] == in_t((3, "c"), (4, "d"), (5, "e"))
    farm.publish([Rows("t", ("3, 'f'",))])
    with pytest.raises(ReplayError, match=r"table main\.t"):
        replicate(farm, into)


# Failure and accept --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_failure_is_found_kept_and_accepted(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """Transaction 5 removes a row that is not there; everything before it stays, only it is skipped."""
    farm.publish([KEYED], [Rows("t", rows(1))], [Rows("t", rows(2))], [Rows("t", rows(3), rows(1))])
    farm.publish([Rows("t", rows(4), rows(77))], [Rows("t", rows(5))], [Rows("t", rows(6), rows(2))])
    for _ in range(2):
        with pytest.raises(ReplayError, match=r"transaction 5, table main\.t") as caught:
            replicate(farm, into)
        assert "wlr accept" in str(caught.value.hint)
        assert ("id = 77" in str(caught.value)) == kind.names_keys
        assert kind.held(into)["main.t"] == in_t((2, "a"), (3, "a"))
    status = wlr.status(into)
    assert (status.tick, status.lag_transactions, status.lag_s) == (4, 3, 3.0)
    assert status.failure is not None
    assert (status.failure.tick, status.failure.table) == (5, "main.t")
    assert status.failure.key == ("id = 77" if kind.names_keys else None)
    assert wlr.accept(into).tick == 5
    assert wlr.replicate(into=into, engine="local").transactions == 2
    assert kind.held(into)["main.t"] == in_t((3, "a"), (5, "a"), (6, "a"))
    status = wlr.status(into)
    assert (status.failure, status.accepted, status.lag_transactions) == (None, (5,), 0)
    with pytest.raises(InvalidError, match="no transaction has failed"):
        wlr.accept(into)


@pytest.mark.slow
def test_rows_of_an_accepted_transaction_are_applied_once_they_fit(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))], [Rows("t", rows(3), rows(77))])
    with pytest.raises(ReplayError, match="transaction 3"):
        replicate(farm, into)
    wlr.accept(into)
    if Guarded not in kind.facets:
        return
    # The transaction is still ahead: retrying is to take the acceptance back.
    assert wlr.retry(into, 3) == [wlr.Retried(3, 0)]
    with pytest.raises(ReplayError, match="transaction 3"):
        replicate(farm, into)
    wlr.accept(into)
    farm.publish([Rows("t", rows(4))])
    replicate(farm, into)
    with pytest.raises(ReplayError, match=r"transaction 3 cannot be applied .* are not in the replica"):
        wlr.retry(into)
    assert wlr.status(into).accepted == (3,)
    farm.publish([Rows("t", rows(77))])
    replicate(farm, into)
    assert wlr.retry(into) == [wlr.Retried(3, 2)]
    assert kind.held(into)["main.t"] == in_t((1, "a"), (3, "a"), (4, "a"))
    assert wlr.status(into).accepted == ()
    with pytest.raises(InvalidError, match="has not accepted transaction 3"):
        wlr.retry(into, 3)
    # What is more than rows is listed, and not applied.
    farm.publish([Rows("t", (), rows(78)), "ALTER TABLE t ADD COLUMN w INTEGER"])
    with pytest.raises(ReplayError, match="transaction 6"):
        replicate(farm, into)
    wlr.accept(into)
    replicate(farm, into)
    with pytest.raises(ReplayError, match="transaction 6 .* does more than change rows of main.t: ALTER TABLE"):
        wlr.retry(into)


CONFLICTS = {
    "other value": (Rows("t", (), ("1, 'b'",)), "id = 1"),
    "other value of a row that stays": (Rows("t", ("1, 'c'",), ("1, 'b'",)), "id = 1"),
    "null for empty": (Rows("t", (), ("1, NULL",)), "id = 1"),
    "no such key": (Rows("t", rows(9), rows(77)), "id = 77"),
    "key is there": (Rows("t", rows(1)), None),
    "cleared of more": (Clear(T, 99), None),
    "cleared of less": (Clear(T, 0), None),
}


@pytest.mark.slow
def test_what_does_not_fit_is_a_conflict(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED, "CREATE TABLE bag (id INTEGER, v VARCHAR)"], [Rows("t", rows(1)), Rows("bag", rows(1, 1))])
    held = [1]
    for name, (change, key) in CONFLICTS.items():
        held.append(100 + farm.tick)
        farm.publish([change], [Rows("t", rows(held[-1]))])
        with pytest.raises(ReplayError, match=rf"transaction {farm.tick - 1}, table main\.t"):
            replicate(farm, into)
        failure = wlr.status(into).failure
        assert failure is not None
        assert (failure.tick, failure.table) == (farm.tick - 1, "main.t")
        assert failure.key == (key if kind.names_keys else None), name
        assert kind.held(into)["main.t"] == in_t(*((id_, "a") for id_ in held[:-1])), name
        assert wlr.accept(into).tick == farm.tick - 1
        assert wlr.replicate(into=into, engine="local").tick == farm.tick
        assert kind.held(into)["main.t"] == in_t(*((id_, "a") for id_ in held)), name
    # Equal rows of a table without a key are counted.
    farm.publish([Rows("bag", (), rows(1, 1, 1))])
    with pytest.raises(ReplayError, match=kind.bag_conflict):
        replicate(farm, into)
    assert kind.held(into)["main.bag"] == in_t((1, "a"), (1, "a"))


@pytest.mark.slow
def test_an_accepted_schema_change_leaves_the_replica_readable(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    replicate(farm, into)
    farm.publish([Rows("t", (), rows(77)), "ALTER TABLE t RENAME COLUMN v TO w"], [Rows("t", rows(2), rows(1))])
    for tick in (3, 4):
        with pytest.raises(ReplayError, match=rf"transaction {tick}, table main\.t"):
            replicate(farm, into)
        assert wlr.accept(into).tick == tick
    assert replicate(farm, into).tick == 4
    assert [(table.table, table.outcome) for table in wlr.verify(into).tables] == [("main.t", "accepted")]
    assert kind.held(into)["main.t"] == in_t((1, "a"))


def test_failing_ddl_undoes_its_whole_transaction(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    replicate(farm, into)
    statement = "ALTER TABLE t ALTER v TYPE INTEGER"
    if kind.holds_own:
        # A table of the owner's is in the way.
        kind.write(into, "CREATE TABLE mine (a INTEGER)")
        statement = "CREATE TABLE mine (b INTEGER)"
    farm.publish([Rows("t", rows(2)), statement])
    with pytest.raises(ReplayError, match=r"transaction 3, table main\.(t|mine)"):
        replicate(farm, into)
    assert kind.held(into)["main.t"] == in_t((1, "a"))
    assert wlr.tick(into) == 2


def test_what_belongs_to_the_owner_is_named_and_not_skipped(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    if not kind.holds_own:
        pytest.skip("it holds nothing of its owner's")
    farm.publish([KEYED], [Rows("t", rows(1))])
    replicate(farm, into)
    kind.write(into, "CREATE TABLE mine (a INTEGER)")
    farm.publish([Rows("t", rows(2))], ["CREATE TABLE mine (b INTEGER)", Rows("mine", ("7",))], [Rows("t", rows(3))])
    with pytest.raises(
        ReplayError, match=r"transaction 4, table main\.mine: table .*mine belongs to the replica's owner"
    ):
        replicate(farm, into)
    assert wlr.tick(into) == 3
    with pytest.raises(InvalidError, match="transaction 4 is sound and cannot be skipped") as caught:
        wlr.accept(into)
    assert "Rename" in str(caught.value.hint)
    kind.write(into, "ALTER TABLE mine RENAME TO yours")
    replicate(farm, into)
    assert kind.held(into)["main.mine"] == in_t((7,))
    assert wlr.status(into).failure is None


def test_a_replicated_table_that_was_dropped_is_named_instead_of_an_innocent_transaction(
    kind: Kind, farm: HandmadeFarm, into: str
) -> None:
    if not kind.refusal:
        pytest.skip("nobody can drop a table of a Parquet replica")
    farm.publish([KEYED], ["CREATE TABLE b (x INTEGER)"], [Rows("t", rows(1)), Rows("b", ("1",))])
    replicate(farm, into)
    for statement in ("DROP TABLE b", "TRUNCATE b"):
        with pytest.raises(Exception, match="is replicated|belongs to a replica"):
            kind.write(into, statement)
    kind.write(into, "DROP TABLE b CASCADE")
    farm.publish([Rows("t", rows(2))], [Rows("b", ("2",))])
    with pytest.raises(ReplayError, match=r"replicated table .*b was dropped in the replica"):
        replicate(farm, into)
    with pytest.raises(InvalidError, match="cannot be skipped"):
        wlr.accept(into)
    assert wlr.tick(into) <= 4


# Guard ---------------------------------------------------------------------------------------------------------------


def test_replicated_tables_are_guarded_unless_unlocked(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1), rows(77))])
    with pytest.raises(ReplayError):
        replicate(farm, into)
    if not kind.refusal:
        return
    statements = ("INSERT INTO t VALUES (77, 'a')", "UPDATE t SET v = 'x'", "DELETE FROM t", "TRUNCATE t")
    for statement in statements:
        with pytest.raises(Exception, match=kind.refusal):
            kind.write(into, statement)
    wlr.unlock(into)
    assert wlr.status(into).is_unlocked
    kind.write(into, statements[0])
    wlr.lock(into)
    assert not wlr.status(into).is_unlocked
    for statement in statements[1:]:
        with pytest.raises(Exception, match=kind.refusal):
            kind.write(into, statement)
    assert wlr.replicate(into=into, engine="local").tick == 2
    assert kind.held(into)["main.t"] == in_t((1, "a"))
    assert wlr.status(into).failure is None


# Status, verify, repair ----------------------------------------------------------------------------------------------


def test_status_says_where_it_stands_and_the_farm_who_reads(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED])
    wlr.replicate(farm.url, into=into, register=False, engine="local")
    assert replicas(farm.db) == []
    farm.publish([Rows("t", rows(1))])
    status = wlr.status(into)
    assert (status.master, status.tick, status.history) == (farm.url, 1, farm.history)
    assert (status.clock, status.lag_transactions, status.lag_s) == (time_of(1), 1, 1.0)
    assert (status.failure, status.accepted, status.is_unlocked) == (None, (), False)
    replicate(farm, into)
    (replica,) = replicas(farm.db)
    assert (replica.position, replica.target) == (Position("h1", 2, 2, farm.chain), into)
    assert replica.clock == time_of(2)
    assert wlr.beat(into, 12.5) == wlr.beat(into) == wlr.status(into).beat_s == 12.5


@pytest.mark.slow
def test_what_was_changed_behind_its_back_is_found_and_repaired(kind: Kind, into: str, tmp_path: Path) -> None:
    source = tmp_path / "shop.duckdb"
    duckdb.connect(str(source)).close()
    wlc.master(source, farm=str(tmp_path / "shops"))
    with wlc.connect(source) as connection:
        connection.execute(KEYED)
        connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    wlr.replicate("shop", farm=str(tmp_path / "shops"), into=into, engine="local")
    assert [(table.table, table.outcome) for table in wlr.verify(into).tables] == [("main.t", "same")]
    if kind.refusal:
        wlr.unlock(into)
        kind.write(into, "DELETE FROM t WHERE id = 2")
        wlr.lock(into)
        assert [(table.table, table.outcome) for table in wlr.verify(into).tables] == [("main.t", "differs")]
    (repaired,) = wlr.repair(into, ["main.t"])
    assert (repaired.added, repaired.removed) == (1 if kind.refusal else 0, 0)
    assert kind.held(into) == held_by_duckdb(source)
    assert {table.outcome for table in wlr.verify(into).tables} == {"same"}


def test_dry_run_tells_and_touches_nothing(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    publish_everything(farm)
    planned = wlr.replicate(farm.url, into=into, dry_run=True, tick=6, engine="local")
    assert kind.held(into) == {}
    assert replicas(farm.db) == []
    with pytest.raises(InvalidError):
        wlr.tick(into)
    done = replicate(farm, into, 6)
    assert planned.is_dry_run
    assert (planned.tick, planned.clock, planned.transactions, planned.rows) == (
        done.tick,
        done.clock,
        done.transactions,
        done.rows,
    )
    assert wlr.replicate(into=into, dry_run=True, engine="local").tick == farm.tick
    assert wlr.tick(into) == 6


# The log's past ------------------------------------------------------------------------------------------------------


def test_stops_out_of_reach_and_a_new_history(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))], [Rows("t", rows(2))])
    with pytest.raises(InvalidError, match="farm's last one is 3"):
        replicate(farm, into, 4)
    assert kind.held(into) == {}
    replicate(farm, into, 2)
    with pytest.raises(InvalidError, match="farm's last one is 3"):
        replicate(farm, into, 4)
    assert wlr.tick(into) == 2
    assert kind.held(into) == modelled(farm, 2)
    # A new history that grew from the end is followed.
    farm.history, farm.parent = "h2", Origin("h1", 3)
    farm.publish([Rows("t", rows(3))])
    assert replicate(farm, into).tick == 4
    assert wlr.status(into).history == "h2"
    assert kind.held(into)["main.t"] == in_t((1, "a"), (2, "a"), (3, "a"))


def test_log_that_was_pruned_and_another_past(kind: Kind, farm: HandmadeFarm, into: str, tmp_path: Path) -> None:
    farm.publish([KEYED])
    replicate(farm, into)
    farm.publish([Rows("t", rows(1))])
    farm.publish([Rows("t", rows(2))])
    farm.db.delete_batch(1)
    farm.db.delete_batch(2)
    with pytest.raises(ExpiredError):
        replicate(farm, into)
    other = HandmadeFarm(tmp_path / "other")
    other.publish(["CREATE TABLE u (a INTEGER)"])
    with pytest.raises(CorruptError, match="differs from the one that its reader has read"):
        replicate(other, into)
    assert kind.held(into) == {"main.t": {}}


def test_a_replica_belongs_to_one_database(kind: Kind, farm: HandmadeFarm, into: str, tmp_path: Path) -> None:
    # A replica that holds nothing would fit the beginning of any log.
    replicate(farm, into)
    other = HandmadeFarm(tmp_path, name="other")
    for number in range(2):
        with pytest.raises(InvalidError, match=r"is a replica of database sales \(.*\), not of other \(") as refused:
            replicate(other, into)
        assert f"wlr replicate --into {into}" in str(refused.value.hint)
        other.publish([f"CREATE TABLE u{number} (a INTEGER)"])
    assert wlr.status(into).master == farm.url
    assert kind.held(into) == {}


# Killed, in use ------------------------------------------------------------------------------------------------------

KILLED = """
import importlib, os, signal, sys
import wlr
name, call = {name!r}, {call}
path, calls = {owner!r}.split("."), [0]
owner = importlib.import_module("wlr.engine." + ".".join(path[:2]))
for part in path[2:]:
    owner = getattr(owner, part)
original = getattr(owner, name)
def dying(*arguments, **options):
    calls[0] += 1
    if calls[0] == call:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)
setattr(owner, name, dying)
wlr.replicate(sys.argv[1], into=sys.argv[2], engine="local")
"""
DEATHS = [
    pytest.param(name, *death, id=f"{name}-{'-'.join(map(str, death))}")
    for name, engine in (("duckdb", DuckDBKind), ("parquet", ParquetKind), ("postgres", PostgresKind))
    for death in engine.deaths
]


@pytest.mark.slow
@pytest.mark.parametrize("kind, owner, name, call", sampled(DEATHS, 4), indirect=["kind"])
def test_killed_run_leaves_a_prefix_or_nothing(
    kind: Kind, farm: HandmadeFarm, into: str, owner: str, name: str, call: int
) -> None:
    farm.publish([KEYED, "CREATE TABLE bag (x BIGINT)"], [Rows("t", rows(1, 2)), Rows("bag", ("1", "1"))])
    with replayed(farm.url, 2) as (connection, catalog):
        connection.execute(f"USE {catalog}; BEGIN TRANSACTION READ ONLY")
        take(connection, catalog, farm.db, Position("h1", 2, 1, farm.chain), time_of(2), {farm.history: 2})
    farm.publish([Rows("t", rows(3), rows(1))], ["CREATE TABLE u (a INTEGER)"], [Rows("t", rows(4)), Rows("u", ("1",))])
    script = KILLED.format(owner=owner, name=name, call=call)
    run = subprocess.run([sys.executable, "-c", script, farm.url, into], capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    try:
        tick = wlr.tick(into)
    except InvalidError:
        assert kind.held(into) == {}
    else:
        assert "build" not in owner
        assert kind.held(into) == modelled(farm, tick)
    assert replicate(farm, into).tick == farm.tick
    assert kind.held(into) == modelled(farm, farm.tick)
    assert kind.left_over(into) == [], "the next run clears up"


HOLDER = """
import sys
from wlr.engine.adapters import target_at
with target_at(sys.argv[1]).open():
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_second_run_is_turned_away_in_one_line(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED])
    replicate(farm, into)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, into], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            # A round without news need not open the replica.
            farm.publish([Rows("t", rows(1))])
            with pytest.raises(UnavailableError, match=rf"in use by process .*\b{holder.pid}\b") as caught:
                replicate(farm, into)
            assert caught.value.exit_code == 75
            assert "\n" not in str(caught.value)
            if kind.is_readable_while_open:
                assert wlr.tick(into) == 1, "readers are not kept waiting"
        finally:
            holder.kill()
    assert replicate(farm, into).tick == 2
