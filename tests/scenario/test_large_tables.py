"""Operations on tables of more rows than one of DuckDB's row groups: engines change their way at such sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.sites import Sites

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# A row group has 122,880, and DuckDB flushes as many from a transaction's own storage before it ends.
ROWS = 200_000
FILL = f"INSERT INTO {{}} SELECT i, 'v' || i % 1000 FROM range({ROWS}) AS r(i)"
CHANGE = "UPDATE {} SET v = v || 'x' WHERE k % 10 < 9"
# A layout is copied and filled in one transaction, as programs that load data do.
CREATE = (
    "CREATE TABLE keyed (k INTEGER PRIMARY KEY, v VARCHAR)",
    "CREATE TABLE bag AS FROM keyed LIMIT 0",
)
TABLES = ("keyed", "bag")
SUMS = "SELECT count(*), sum(hash(k, v)) FROM {}"


def write(source: Path, *statements: str) -> int:
    """Commit statements, one for each table, in one transaction; returns its tick."""
    with wlc.connect(source) as connection:
        connection.begin()
        for statement in statements:
            for table in TABLES if "{}" in statement else ("",):
                connection.execute(statement.format(table))
        connection.commit()
    wlc.flush(source)
    return wlc.status(source).tick


def plainly(file: Path, statement: str) -> None:
    with duckdb.connect(file) as connection:
        for table in TABLES:
            connection.execute(statement.format(table))


def sums(file: Path) -> list[object]:
    with duckdb.connect(file, read_only=True) as connection:
        return [connection.execute(SUMS.format(table)).fetchall() for table in TABLES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master whose tables are filled, its farm, and a replica; each test ends with both alike."""
    folder = tmp_path_factory.mktemp("large")
    source = folder / "sales.duckdb"
    duckdb.connect(source).close()
    wlc.master(source, farm=str(folder / "farm"))
    write(source, *CREATE, FILL)
    wlr.replicate(source, into=folder / "copy.duckdb", register=False)
    return folder


def test_undo(folder: Path) -> None:
    source = folder / "sales.duckdb"
    before = sums(source)
    tick = write(source, CHANGE)
    assert sums(source) != before
    wlr.undo(source, tick)
    assert sums(source) == before
    wlr.replicate(into=folder / "copy.duckdb")
    assert sums(folder / "copy.duckdb") == before


def test_repair_of_a_replica(folder: Path) -> None:
    copy = folder / "copy.duckdb"
    wlr.unlock(copy)
    plainly(copy, CHANGE)
    wlr.lock(copy)
    assert [(done.added, done.removed) for done in wlr.repair(copy, TABLES)] == [(ROWS * 9 // 10,) * 2] * 2
    assert sums(copy) == sums(folder / "sales.duckdb")


def test_repair_of_a_master(folder: Path) -> None:
    source, copy = folder / "sales.duckdb", folder / "copy.duckdb"
    plainly(source, CHANGE)
    wlc.repair(source, published=copy)
    wlr.replicate(into=copy)
    assert sums(copy) == sums(source)


def test_accept_and_retry(folder: Path) -> None:
    source, copy = folder / "sales.duckdb", folder / "copy.duckdb"
    write(source, CHANGE)
    wlr.unlock(copy)
    plainly(copy, "UPDATE {} SET v = 'other' || v")
    with pytest.raises(wlr.ReplayError):
        wlr.replicate(into=copy)
    wlr.accept(copy)
    wlr.replicate(into=copy)
    wlr.unlock(copy)
    plainly(copy, "UPDATE {} SET v = v[6:]")
    assert [done.rows for done in wlr.retry(copy)] == [2 * 2 * ROWS * 9 // 10]
    assert sums(copy) == sums(source)


@pytest.mark.parametrize("kind", ["duckdb", "lake"])
def test_filters(folder: Path, kind: str) -> None:
    source, into = folder / "sales.duckdb", folder / ("some.duckdb" if kind == "duckdb" else "lake")
    chosen = wlr.row_filters([f"{table}: v LIKE '%x'" for table in TABLES], None, [])
    wlr.replicate(source, into=into, filters=chosen, engine="local", register=False)
    # Most rows leave or enter.
    write(source, "UPDATE {} SET v = CASE WHEN v LIKE '%x' THEN v[:-2] ELSE v || 'x' END")
    wlr.replicate(into=into)
    with duckdb.connect(source, read_only=True) as connection:
        for table in TABLES:
            wanted = connection.execute(f"{SUMS.format(table)} WHERE v LIKE '%x'").fetchall()
            found = wlr.read(into, table).aggregate("count(*), sum(hash(k, v))").fetchall()
            assert found == wanted


def test_take(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found("; ".join(CREATE))
    sites.join("rome")
    # Only the primary writes a table without a key.
    for site, tables in (("oslo", TABLES), ("rome", TABLES[:1])):
        for statement in (FILL, CHANGE) if site == "oslo" else (CHANGE,):
            sites.write(site, *(statement.format(table) for table in tables))
        sites.exchange()
        assert sums(sites.file("oslo")) == sums(sites.file("rome"))
