"""Readers of Parquet files and Delta tables that the docs name, with one way to ask all of them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datafusion
import deltalake
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet

from tests.environments import environment
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Versions of DuckDB that people read files with. DuckDB 2.0 reads no Delta tables yet.
DUCKDBS = {
    "1.4": ("duckdb==1.4.5", "pytz"),
    "1.5": ("duckdb==1.5.5", "pytz", "duckdb-extension-delta==1.5.5"),
}
_CHILD = """
import json, sys
from importlib.metadata import files
import duckdb

with duckdb.connect() as connection:
    connection.execute("SET TimeZone = 'UTC'")
    for number, query in enumerate(json.loads(sys.argv[2])):
        if "delta_scan" in query and not number:
            (found,) = (f.locate() for f in files("duckdb-extension-delta") if f.name == "delta.duckdb_extension")
            connection.execute(f"LOAD '{found}'")
        connection.execute(f"COPY ({query}) TO '{sys.argv[1]}/{number}' (FORMAT parquet)")
"""


@dataclass(frozen=True)
class Condition:
    """A comparison of a column, in the words of every reader.

    Attributes:
        operator: "=", ">" or "IS NULL".
        text: The value in SQL, if Python's own text is not SQL.
    """

    column: str
    operator: str
    value: Any = None
    text: str = ""

    @property
    def sql(self) -> str:
        return f"{self.column} {self.operator} {self.text or ('' if self.value is None else self.value)}"

    @property
    def arrow(self) -> Any:
        return self._of(pc.field(self.column))

    @property
    def polars(self) -> Any:
        return self._of(polars.col(self.column))

    def _of(self, column: Any) -> Any:
        if self.operator == "IS NULL":
            return column.is_null()
        return column == self.value if self.operator == "=" else column > self.value


if TYPE_CHECKING:
    # A query is a condition, or None for all rows; its answer has all columns.
    Queries = Sequence[Condition | None]
    Reader = Callable[[str, Queries], list[pa.Table]]


def selects(relation: str, queries: Queries) -> list[str]:
    return [f"SELECT * FROM {relation}" + (f" WHERE {query.sql}" if query else "") for query in queries]


def pyarrow_dataset(file: str, queries: Queries) -> list[pa.Table]:
    found = pa.dataset.dataset(file)
    return [found.to_table(filter=query.arrow if query else None) for query in queries]


def pandas_frame(file: str, queries: Queries) -> list[pa.Table]:
    filters = [query.arrow if query else None for query in queries]
    return [
        pa.Table.from_pandas(pandas.read_parquet(file, filters=each, dtype_backend="pyarrow"), preserve_index=False)
        for each in filters
    ]


def polars_file(file: str, queries: Queries) -> list[pa.Table]:
    return _of_polars(polars.scan_parquet(file), queries)


def polars_delta(folder: str, queries: Queries) -> list[pa.Table]:
    return _of_polars(polars.scan_delta(folder), queries)


def _of_polars(frame: polars.LazyFrame, queries: Queries) -> list[pa.Table]:
    return [(frame.filter(query.polars) if query else frame).collect().to_arrow() for query in queries]


def datafusion_sql(file: str, queries: Queries) -> list[pa.Table]:
    pushing = datafusion.SessionConfig({"datafusion.execution.parquet.pushdown_filters": "true"})
    context = datafusion.SessionContext(pushing)
    context.register_parquet("t", file, file_extension=Path(file).suffix)
    return [context.sql(select).to_arrow_table() for select in selects("t", queries)]


def delta_rs_arrow(folder: str, queries: Queries) -> list[pa.Table]:
    found = deltalake.DeltaTable(folder)
    return [found.to_pyarrow_table(filters=query.arrow if query else None) for query in queries]


def delta_rs_sql(folder: str, queries: Queries) -> list[pa.Table]:
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder))
    return [pa.table(found.execute(select).read_all()) for select in selects("t", queries)]


def spark(file: str, queries: Queries) -> list[pa.Table]:
    """Read with the session that the caller has started."""
    from pyspark.sql import SparkSession

    frame = SparkSession.active().read.parquet(file)
    return [(frame.where(query.sql) if query else frame).toArrow() for query in queries]


def duckdb_file(version: str) -> Reader:
    return lambda file, queries: other_duckdb(version, selects(f"read_parquet({literal(file)})", queries))


def delta_scan(folder: str, queries: Queries) -> list[pa.Table]:
    return other_duckdb("1.5", selects(f"delta_scan({literal(folder)})", queries))


def other_duckdb(version: str, selected: Sequence[str]) -> list[pa.Table]:
    """Ask another version of DuckDB, in a process of its own."""
    python = environment(f"duckdb-{version}", *DUCKDBS[version])
    with tempfile.TemporaryDirectory() as out:
        command = [str(python), "-c", _CHILD, out, json.dumps(selected)]
        done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return [pa.parquet.read_table(f"{out}/{number}", use_threads=False) for number in range(len(selected))]


OF_FILES: dict[str, Reader] = {
    "pyarrow": pyarrow_dataset,
    "pandas": pandas_frame,
    "Polars": polars_file,
    "DataFusion": datafusion_sql,
    "DuckDB 1.4": duckdb_file("1.4"),
    "DuckDB 1.5": duckdb_file("1.5"),
}
OF_DELTA_TABLES: dict[str, Reader] = {
    "delta-rs": delta_rs_arrow,
    "delta-rs, SQL": delta_rs_sql,
    "Polars, Delta": polars_delta,
    "DuckDB 1.5, Delta": delta_scan,
}
