"""Every file that dbfarm writes is read by every reader that the docs name, whole and with conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.readable import TABLES, check, statements
from tests.readers import OF_DELTA_TABLES, OF_FILES
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.farm.store import open_store
from wlr.engine.parquet.open_tables import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# All readers can read and skip values in them.
ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master, its farm, and a lake with Delta tables."""
    folder = tmp_path_factory.mktemp("readers")
    source = folder / "sales.duckdb"
    duckdb.connect(str(source)).close()
    wlc.master(source, farm=str(folder / "farm"))
    with wlc.connect(source) as connection:
        for statement in statements():
            connection.execute(statement)
    wlc.flush(source)
    with pytest.warns(UserWarning, match="is left out"):
        wlr.replicate(source, into=folder / "lake", engine="local", open_tables="delta")
    return folder


def file_of(folder: Path, table: str) -> str:
    (file,) = wlr.files(folder / "lake", f"main.{table}")
    return file


@pytest.mark.parametrize("reader", OF_FILES)
def test_files(folder: Path, reader: str) -> None:
    for table in TABLES:
        file = file_of(folder, table)
        check(reader, OF_FILES[reader], file, file, table)


@pytest.mark.parametrize("reader", OF_DELTA_TABLES)
def test_delta_tables(folder: Path, reader: str) -> None:
    left_out = wlr.status(folder / "lake").left_out
    for table in TABLES:
        if f"Delta table main.{table}" not in left_out:
            file = file_of(folder, table)
            check(reader, OF_DELTA_TABLES[reader], file.rpartition("/")[0], file, table)


def test_all_files_that_are_kept(folder: Path) -> None:
    """Data files, snapshots, lakes, also of chosen rows, derived databases, exported changes, checkpoints of Delta logs."""
    source, farm = folder / "sales.duckdb", str(folder / "farm")
    wlc.snapshot(source)
    chosen = wlr.row_filters(["t: id < 2000"], None, [])
    with pytest.warns(UserWarning, match="is left out"):
        wlr.replicate("sales", farm=farm, into=folder / "some", engine="local", filters=chosen, open_tables="delta")
    wlr.derive("sales", "part", farm=farm, filters=chosen)
    wlr.snapshot_from_log("sales", farm=farm)
    write_checkpoint(open_store(str(folder / "log")), "1.checkpoint.parquet", b'{"add":{"path":"a","size":3}}')
    files = [str(file) for file in folder.rglob("*.parquet")]
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT file_name, encodings FROM parquet_metadata({files})").fetchall()
        assert {name for name, _ in found} == set(files)
        assert [(name, text) for name, text in found if not set(text.split(", ")) <= ENCODINGS] == []
        assert connection.execute(f"SELECT count(*) FROM {rows_of(files[0])}").fetchall()
