"""Polars and DuckDB read every version of a Delta table's life."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import version_of
from tests.open_lake import delta_table
from tests.readers import other_duckdb
from wlc.dialect.sql import literal
from wlc.farm.model import Name
from wlr.engine.parquet.delta import folder_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

pytestmark = pytest.mark.slow

T = Name("main", "t")
VALUES = (
    "'2026-01-01 12:00', '2026-01-01 12:00Z', 1.25, [1, NULL], {'a': 7, 'b': ['x']},"
    " 170141183460469231731687303715884105727, '1 day', 4294967295"
)
TYPES = (
    "moment TIMESTAMP, zoned TIMESTAMPTZ, price DECIMAL(9,2), list INTEGER[], record STRUCT(a UTINYINT, b VARCHAR[]),"
    " huge HUGEINT, span INTERVAL, count UINTEGER"
)


def rows(found: pa.Table) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("found", found)
        return Counter(connection.execute("SELECT COLUMNS(*)::VARCHAR FROM found").fetchall())


def named_rows(lake: Path, table: Name, tick: int) -> Counter[tuple[Any, ...]]:
    named = next((found for found in version_of(lake, tick).tables if found.table == table), None)
    if named is None or not named.parts:
        return Counter()
    listed = ", ".join(literal(f"{lake}/{part.file.path}") for part in named.parts)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return Counter(connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM read_parquet([{listed}])").fetchall())


def read(folder: str, versions: list[int | None]) -> list[tuple[pa.Table, pa.Table]]:
    """A Delta table as DuckDB and Polars read it, at versions; None is the newest one."""
    numbered = [f", version = {version}" if version is not None else "" for version in versions]
    by_duckdb = other_duckdb("1.5", [f"SELECT * FROM delta_scan({literal(folder)}{text})" for text in numbered])
    by_polars = [polars.scan_delta(folder, version=version).collect().to_arrow() for version in versions]
    return list(zip(by_duckdb, by_polars, strict=True))


def check_versions(lake: Path, table: Name) -> int:
    """Every version is what the manifest of its tick says; returns how many there are."""
    ticks: dict[int | None, int] = {e["version"]: e["dbfarm_tick"] for e in delta_table(lake, table).history()}
    ticks[None] = max(ticks.values())
    answers = read(f"{lake}/{folder_of(table)}".rstrip("/"), list(ticks))
    for (version, tick), (by_duckdb, by_polars) in zip(ticks.items(), answers, strict=True):
        assert rows(by_duckdb) == rows(by_polars) == named_rows(lake, table, tick), (version, tick)
    return len(ticks) - 1


def test_every_version_of_a_life(tmp_path: Path) -> None:
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
    assert check_versions(lake, T) == 8
    assert check_versions(lake, Name("main", "u")) == 1
    wlr.prune(lake, keep="0")
    farm.publish([Rows("t", ("2",), ("1",))])
    wlr.replicate(into=lake, engine="local")
    for found in read(f"{lake}/{folder_of(T)}".rstrip("/"), [None])[0]:
        assert rows(found) == {("1",): 1, ("2",): 1}
