"""A snapshot reads what its tables hold by the fast hash where that is known, and by the digest where it is not."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from tests.sampling import sampled
from tests.sound import assert_sound
from tests.unit.dialect.test_digest_sql import VALUES
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path


SNAPSHOT = importlib.import_module("wlc.dialect.duckdb.snapshot")


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables whose rows were read by the digest, in order."""
    found: list[str] = []
    sum_rows = SNAPSHOT.sum_rows

    def noted(connection: object, layout: object, source: str, *others: object) -> object:
        found.append(source.rpartition(".")[2].strip('"'))
        return sum_rows(connection, layout, source, *others)

    monkeypatch.setattr(SNAPSHOT, "sum_rows", noted)
    return found


def master(folder: Path, *statements: str) -> Path:
    path = folder / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    wlc.master(path, farm=str(folder / "farm"))
    return path


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)
    wlc.flush(source)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled([kind for kind in VALUES if not kind.startswith("UNION")], 8))
def test_rows_of_every_type_are_known_once_they_were_captured(kind: str, tmp_path: Path, digested: list[str]) -> None:
    source = master(tmp_path, f"CREATE TABLE t (id INTEGER, v {kind})", "INSERT INTO t VALUES (-1, NULL)")
    assert digested == ["t"]
    listed = f"SELECT unnest([{VALUES[kind]}]::{kind}[])"
    write(
        source,
        f"INSERT INTO t SELECT row_number() OVER (), * FROM ({listed})",
        "INSERT INTO t SELECT id + 1000, v FROM t",
        "UPDATE t SET v = (SELECT max(v) FROM t AS other WHERE other.id = 1001) WHERE id = -1",
        "DELETE FROM t WHERE id = 1",
    )
    wlc.snapshot(source)
    assert digested == ["t"]
    assert_sound(tmp_path / "farm" / "sales")


@pytest.mark.slow
def test_table_is_read_once_after_its_schema_was_changed(tmp_path: Path, digested: list[str]) -> None:
    source = master(tmp_path, "CREATE TABLE t AS SELECT range AS id FROM range(100)", "CREATE TABLE u AS FROM t")
    assert sorted(digested) == ["t", "u"]
    expected = {
        "ALTER TABLE t ADD COLUMN v VARCHAR DEFAULT 'x'": ["t"],
        "ALTER TABLE t RENAME TO renamed": ["renamed"],
        "CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (1), (1)": ["t"],
        "INSERT INTO t VALUES (2); UPDATE renamed SET v = 'y' WHERE id = 7": [],
        "DELETE FROM u": ["u"],
        "INSERT INTO u VALUES (5)": [],
        "BEGIN; ALTER TABLE t RENAME TO w; ALTER TABLE u RENAME TO t; ALTER TABLE w RENAME TO u; COMMIT": ["t", "u"],
        "CREATE INDEX place ON renamed (v)": [],
        "BEGIN; DELETE FROM t; INSERT INTO t VALUES (9); ROLLBACK": [],
        "DROP TABLE t": [],
    }
    for statement, tables in expected.items():
        digested.clear()
        write(source, statement)
        wlc.snapshot(source)
        assert sorted(digested) == tables, statement
        digested.clear()
        write(source, "INSERT INTO u VALUES (6); DELETE FROM u WHERE id = 6")
        wlc.snapshot(source)
        assert digested == [], f"after {statement}"
    assert_sound(tmp_path / "farm" / "sales")


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement", ["UPDATE t SET id = 1 WHERE id = 2", "DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (1)"]
)
def test_rows_that_were_not_captured_are_refused(tmp_path: Path, statement: str) -> None:
    source = master(tmp_path, "CREATE TABLE t AS SELECT range AS id FROM range(100)")
    write(source, "INSERT INTO t VALUES (200)")
    with duckdb.connect(str(source)) as connection:
        connection.execute(statement)
    with pytest.raises(UnsupportedError, match=r"written to without wlc\.connect\(\): main\.t has other rows"):
        wlc.snapshot(source)


def test_hash_of_another_duckdb_only_costs_time(
    tmp_path: Path, digested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = master(tmp_path, "CREATE TABLE t AS SELECT range AS id FROM range(100)")
    sum_quickly = SNAPSHOT.sum_quickly
    monkeypatch.setattr(SNAPSHOT, "sum_quickly", lambda *given: (sum_quickly(*given)[0], 7))
    digested.clear()
    wlc.snapshot(source)
    assert digested == ["t"]
    digested.clear()
    write(source, "CREATE TABLE other (id INTEGER)")
    wlc.snapshot(source)
    assert digested == ["other"]
