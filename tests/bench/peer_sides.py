"""What DuckLake and delta-rs do in the benchmark `peers`: one process for each, in an environment of their own.

It has DuckDB 1.5.5 with DuckLake's extension, deltalake and pyarrow, and nothing of this project. A line of JSON on the
standard input is what to do, a line on the standard output how long it took and what came of it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = ("id", "a", "b", "c", "d")
ROW = "{}, 1, 'value', 0.5, TIMESTAMP '2026-01-01'"


def connect() -> Any:
    """A connection of DuckDB that loads extensions from files."""
    return duckdb.connect(config={"allow_unsigned_extensions": "true", "memory_limit": "8GB"})


class DuckLake:
    """A table of DuckLake, whose catalog is a file of DuckDB."""

    def __init__(self, folder: str, files: list[str]) -> None:
        (package,) = importlib.import_module("duckdb_extension_ducklake").__path__
        (extension,) = Path(package).rglob("*.duckdb_extension")
        self._connection = connect()
        self._connection.execute(f"LOAD '{extension}'")
        self._connection.execute(f"ATTACH 'ducklake:{folder}/catalog.ducklake' AS lake (DATA_PATH '{folder}/data/')")
        self._connection.execute(f"CREATE TABLE lake.t AS SELECT * FROM read_parquet({files}) ORDER BY id")

    def version(self) -> int:
        """The newest version."""
        return int(self._connection.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()[0][0])

    def merge(self, net: str) -> None:
        """Apply the last image of each key. MERGE cannot: it has one action for rows that are there."""
        self._connection.execute("BEGIN")
        self._connection.execute(f"DELETE FROM lake.t USING read_parquet('{net}') AS net WHERE t.id = net.id")
        added = f"SELECT {', '.join(COLUMNS)} FROM read_parquet('{net}') WHERE _weight > 0"
        self._connection.execute(f"INSERT INTO lake.t {added}")
        self._connection.execute("COMMIT")

    def feed(self, after: int, last: int) -> int:
        """Read all images between two versions as Arrow; returns how many."""
        # table_changes, which returns both, waits for ever if there are many and threads to read them.
        kinds = ("insertions", "deletions")
        queries = [f"SELECT * FROM lake.table_{kind}('t', {after + 1}, {last})" for kind in kinds]
        return sum(self._connection.execute(query).to_arrow_table().num_rows for query in queries)

    def insert(self, number: int) -> None:
        """Commit one row."""
        self._connection.execute(f"INSERT INTO lake.t VALUES ({ROW.format(number)})")

    def read(self, version: int, query: str) -> list[Any]:
        """Read the table as of a version."""
        return list(self._connection.execute(f"SELECT {query} FROM lake.t AT (VERSION => {version})").fetchall()[0])


class Delta:
    """A Delta table, which delta-rs writes and whose files DuckDB reads."""

    def __init__(self, folder: str, files: list[str]) -> None:
        from deltalake import DeltaTable, convert_to_deltalake

        for number, file in enumerate(files):
            os.link(file, Path(folder) / f"{number}.parquet")
        convert_to_deltalake(folder, configuration={"delta.enableChangeDataFeed": "true"})
        self._folder, self._open = folder, DeltaTable

    def version(self) -> int:
        """The newest version."""
        return int(self._open(self._folder).version())

    def merge(self, net: str) -> None:
        """MERGE the last image of each key."""
        import pyarrow.parquet
        from deltalake import WriterProperties

        values = {name: f"s.{name}" for name in COLUMNS}
        properties = WriterProperties(compression="ZSTD", max_row_group_size=122_880)
        merger = self._open(self._folder).merge(
            pyarrow.parquet.read_table(net),
            "t.id = s.id",
            source_alias="s",
            target_alias="t",
            writer_properties=properties,
        )
        merger = merger.when_matched_delete("s._weight < 0").when_matched_update(values)
        merger.when_not_matched_insert(values, "s._weight > 0").execute()

    def feed(self, after: int, last: int) -> int:
        """Read all images between two versions as Arrow; returns how many."""
        return sum(batch.num_rows for batch in self._open(self._folder).load_cdf(after + 1, last))

    def insert(self, number: int) -> None:
        """Commit one row."""
        import pyarrow
        from deltalake import write_deltalake

        schema = pyarrow.schema(self._open(self._folder).schema())
        row = {"id": number, "a": 1, "b": "value", "c": 0.5, "d": datetime(2026, 1, 1, tzinfo=UTC)}
        types = {field.name: field.type for field in schema}
        if getattr(types["d"], "tz", None) is None:
            row["d"] = datetime(2026, 1, 1)
        write_deltalake(self._folder, pyarrow.Table.from_pylist([row], schema=schema), mode="append")

    def read(self, version: int, query: str) -> list[Any]:
        """Read the table as of a version."""
        files = [uri.removeprefix("file://") for uri in self._open(self._folder, version=version).file_uris()]
        with connect() as connection:
            return list(connection.execute(f"SELECT {query} FROM read_parquet({files})").fetchall()[0])


def main(peer: str, folder: str) -> None:
    """Do what the lines of the standard input say."""
    table: Any = None
    kinds: dict[str, Callable[..., Any]] = {"ducklake": DuckLake, "delta-rs": Delta}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        gc.collect()
        os.sync()
        started = time.perf_counter()
        if name == "make":
            table, answer = kinds[peer](folder, *arguments), None
        else:
            answer = getattr(table, name)(*arguments)
        print(json.dumps([time.perf_counter() - started, answer]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
