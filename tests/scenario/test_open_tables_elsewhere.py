"""Readers of Delta tables that are no part of the suite, in an environment of their own, read every version of a life."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import version_of
from tests.open_lake import delta_table
from wlc.dialect.sql import literal
from wlc.farm.model import Name
from wlr.engine.parquet.delta import folder_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.deep

# DuckDB 2.0 has no extension for Delta yet.
NEEDS = ("duckdb==1.5.5", "duckdb-extension-delta==1.5.5", "pytz", "polars", "deltalake")
READERS = """
import sys
from importlib.metadata import files
import duckdb, polars

folder, out, *versions = sys.argv[1:]
(extension,) = (file.locate() for file in files("duckdb-extension-delta") if file.name == "delta.duckdb_extension")
connection = duckdb.connect()
connection.execute(f"LOAD '{extension}'")
for version in map(int, versions):
    found = f"SELECT * FROM delta_scan('{folder}', version = {version})"
    connection.execute(f"COPY ({found}) TO '{out}/duckdb-{version}.parquet' (FORMAT parquet)")
    polars.scan_delta(folder, version=version).collect().write_parquet(f"{out}/polars-{version}.parquet")
newest = f"SELECT * FROM delta_scan('{folder}')"
connection.execute(f"COPY ({newest}) TO '{out}/duckdb-newest.parquet' (FORMAT parquet)")
polars.scan_delta(folder).collect().write_parquet(f"{out}/polars-newest.parquet")
"""
T = Name("main", "t")
VALUES = (
    "'2026-01-01 12:00', '2026-01-01 12:00Z', 1.25, [1, NULL], {'a': 7, 'b': ['x']},"
    " 170141183460469231731687303715884105727, '1 day', 4294967295"
)
TYPES = (
    "moment TIMESTAMP, zoned TIMESTAMPTZ, price DECIMAL(9,2), list INTEGER[], record STRUCT(a UTINYINT, b VARCHAR[]),"
    " huge HUGEINT, span INTERVAL, count UINTEGER"
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("readers")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = f"{folder}/bin/python"
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", *NEEDS], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot install {' '.join(NEEDS)}")
    return python


def rows(connection: duckdb.DuckDBPyConnection, files: list[str]) -> Counter[tuple[Any, ...]]:
    listed = ", ".join(map(literal, files))
    return Counter(connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM read_parquet([{listed}])").fetchall())


def check_versions(python: str, lake: Path, table: Name, out: Path) -> int:
    """Every version is what the manifest of its tick says; returns how many there are."""
    ticks = {entry["version"]: entry["dbfarm_tick"] for entry in delta_table(lake, table).history()}
    out.mkdir()
    folder = f"{lake}/{folder_of(table)}".rstrip("/")
    subprocess.run([python, "-c", READERS, folder, str(out), *map(str, ticks)], check=True, timeout=300)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for version, tick in [*ticks.items(), ("newest", max(ticks.values()))]:
            named = next((found for found in version_of(lake, tick).tables if found.table == table), None)
            files = [f"{lake}/{part.file.path}" for part in named.parts] if named else []
            wanted = rows(connection, files) if files else Counter()
            for reader in ("duckdb", "polars"):
                assert rows(connection, [f"{out}/{reader}-{version}.parquet"]) == wanted, (reader, version, tick)
    return len(ticks)


def test_every_version_of_a_life(python: str, tmp_path: Path) -> None:
    farm, lake = HandmadeFarm(tmp_path / "farm"), tmp_path / "lake"
    farm.publish([f"CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR, {TYPES})"])
    wlr.replicate(farm.url, into=lake, engine="local", open_tables="delta")
    for transaction in (
        [Rows("t", tuple(f"{number}, 'v', {VALUES}" for number in range(3)))],
        [Rows("t", (f"0, NULL, {VALUES}",), (f"0, 'v', {VALUES}", f"1, 'v', {VALUES}"))],
        ["ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7"],
        ["ALTER TABLE t RENAME COLUMN v TO w"],
        ["ALTER TABLE t ADD COLUMN v DATE"],
        ["ALTER TABLE t DROP COLUMN n", Rows("t", (f"5, 'five', {VALUES}, '2026-01-01'",))],
        ["ALTER TABLE t RENAME TO u", "CREATE TABLE t (v BIGINT)", Rows("t", ("1", "1"))],
    ):
        farm.publish(transaction)
        wlr.replicate(into=lake, engine="local")
    assert check_versions(python, lake, T, tmp_path / "t") == 8
    assert check_versions(python, lake, Name("main", "u"), tmp_path / "u") == 1
    wlr.prune(lake, keep="0")
    farm.publish([Rows("t", ("2",), ("1",))])
    wlr.replicate(into=lake, engine="local")
    subprocess.run(
        [python, "-c", READERS, f"{lake}/{folder_of(T)}".rstrip("/"), str(tmp_path)], check=True, timeout=300
    )
    with duckdb.connect() as connection:
        for reader in ("duckdb", "polars"):
            assert rows(connection, [f"{tmp_path}/{reader}-newest.parquet"]) == {("1",): 1, ("2",): 1}
