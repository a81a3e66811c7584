"""The open tables of a Parquet replica, read by delta-rs and compared with what the manifest names."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
from deltalake import DeltaTable

from tests.lake import folder_of, version_of
from wlc.dialect.sql import literal
from wlr.engine.parquet.delta import folder_of as table_folder
from wlr.engine.parquet.open_tables import left_out

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.model import Name

Rows = Counter[tuple[Any, ...]]


def delta_table(lake: Path | str, table: Name, version: int | None = None, **options: str) -> DeltaTable:
    """A table as delta-rs opens it."""
    return DeltaTable(f"{lake}/{table_folder(table)}".rstrip("/"), version=version, storage_options=options or None)


def delta_rows(found: DeltaTable) -> Rows:
    """The rows that readers of Delta tables are given."""
    table = found.to_pyarrow_table()
    with duckdb.connect() as connection:
        connection.register("found", table)
        return Counter(connection.execute("SELECT * FROM found").fetchall())


def lake_rows(lake: Path, table: Name, tick: int | None = None) -> Rows:
    """The rows in the files that the manifest names."""
    named = next(found for found in version_of(lake, tick).tables if found.table == table)
    if not named.parts:
        return Counter()
    files = ", ".join(literal(f"{lake}/{part.file.path}") for part in named.parts)
    with duckdb.connect() as connection:
        return Counter(connection.execute(f"FROM read_parquet([{files}], hive_partitioning = false)").fetchall())


def check_open(lake: Path) -> None:
    """Every table is what the manifest says, over the same files; those that are gone are empty."""
    version, folder = version_of(lake), folder_of(lake)
    found = folder.find()
    assert found is not None
    assert found[0].state.left_out == left_out(version)
    logs = {
        entry.path.partition("_delta_log/")[0] for entry in folder.store.list("data/") if "_delta_log/" in entry.path
    }
    for table in version.tables:
        if f"Delta table {table.table}" in left_out(version):
            continue
        logs.remove(table_folder(table.table))
        opened = delta_table(lake, table.table)
        named = [part.file.path.rpartition("/")[2] for part in table.parts]
        assert sorted(uri.rpartition("/")[2] for uri in opened.file_uris()) == sorted(named)
        assert [column.name for column in opened.schema().fields] == [c.name for c in table.layout.stored]
        assert delta_rows(opened) == lake_rows(lake, table.table), table.table
    for left in logs:
        assert DeltaTable(f"{lake}/{left}".rstrip("/")).file_uris() == []


def check_readable(lake: Path) -> None:
    """Whatever a run left: readers of every Delta table find the files that its log names."""
    for log in lake.glob("data/*/_delta_log"):
        delta_rows(DeltaTable(str(log.parent)))
