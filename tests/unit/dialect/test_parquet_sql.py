"""Files are read as they are, whatever the folders on the way to them are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet
import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows
from wlc.capture.postgres.digests import of_files
from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.farm.model import Column, Layout, Name
from wlc.farm.store import open_store
from wlr.engine.parquet import open_tables
from wlr.engine.parquet.delta import DeltaLog

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, query: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "it's.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{str(file).replace(chr(39), chr(39) * 2)}' (FORMAT parquet)")
    return file


def test_a_folder_is_no_column(tmp_path: Path) -> None:
    query = "SELECT 1 AS k, 'a' AS v"
    plain, odd = written(tmp_path / "plain", query), written(tmp_path / "k=7" / "w=8", query)
    with duckdb.connect() as connection:
        for files in ([odd], [plain, odd]):
            relation = connection.sql(f"FROM {rows_of(*files)}")
            assert (relation.columns, relation.fetchall()) == (["k", "v"], [(1, "a")] * len(files))
        numbered = rows_of(str(odd), options="file_row_number = true")
        assert connection.sql(f"SELECT file_row_number, k FROM {numbered}").fetchall() == [(0, 1)]
    layout = Layout((Column("k", "INTEGER"), Column("v", "VARCHAR")))
    here, there = (of_files({Name("main", "t"): (layout, [file])}) for file in (plain, odd))
    assert here == there


@pytest.mark.slow
def test_what_works_in_such_folders_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "k=7" / "v=x"
    folder.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    farm = HandmadeFarm(folder)
    farm.publish(["CREATE TABLE t (k INTEGER, v VARCHAR)", Rows("t", added=("1, 'ab'", "1, 'ab'", "2, NULL"))])
    chosen = wlr.row_filters(["t: k < 3"], None, ["t: v = truncate:1"])
    wlr.derive(farm.url, "part", filters=chosen)
    farm.publish([Rows("t", added=("2, 'cd'",), removed=("1, 'ab'",))])
    wlr.derive(farm.url, "part")
    part = farm.url.replace("/sales", "/part")
    for place, into in ((farm.url, folder / "copy.duckdb"), (part, folder / "lake")):
        wlr.replicate(place, into=into, filters=chosen if place == farm.url else None, register=False)
        assert {table.outcome for table in wlr.verify(into).tables} == {"same"}
        assert sorted(wlr.read(into, "t").fetchall(), key=str) == [(1, "a"), (2, "c"), (2, None)]


def test_a_checkpoint_of_a_delta_log_in_such_a_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "add=7"))
    added = '{"add":{"path":"a.parquet","partitionValues":{},"size":3,"modificationTime":1,"dataChange":true}}'
    open_tables.write_checkpoint(store, "c.parquet", added.encode())
    log = open_tables.read_checkpoint(store, "c.parquet", DeltaLog(), 0)
    assert "a.parquet" in str(log)


@pytest.mark.parametrize("rows", [1, 9, 3000])
@pytest.mark.parametrize("declared", ["INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"])
def test_arrow_reads_neighbours_that_are_far_apart_in_kept_files(tmp_path: Path, declared: str, rows: int) -> None:
    bits = 8 * {"T": 1, "S": 2, "I": 4, "B": 8}[declared.removeprefix("U")[0]]
    low = 0 if declared.startswith("U") else -(2 ** (bits - 1))
    values = [low + (2**bits - 1) * (number % 2) for number in range(rows)]
    selected = f"SELECT v, {{'a': [v]}} AS nested FROM (SELECT unnest($1::{declared}[]) AS v)"
    duckdb.execute(f"COPY ({selected}) TO '{tmp_path}/f' ({KEPT})", [values])
    assert pyarrow.parquet.read_table(tmp_path / "f").to_pylist() == [
        {"v": value, "nested": {"a": [value]}} for value in values
    ]
