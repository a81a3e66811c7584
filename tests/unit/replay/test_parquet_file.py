"""Columns of a lake's files are required if the table's are NOT NULL, and optional otherwise, whatever the rows hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

import wlc
import wlr
from tests.scratch import attached
from wlc.farm.model import Column, Layout
from wlr.replay.fold.parquet_file import write_file

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout(
    (
        Column("id", "INTEGER"),
        Column("a", "VARCHAR", nullable=False),
        Column("b", "VARCHAR"),
        Column("s", "STRUCT(x INTEGER)", nullable=False),
        Column("l", "INTEGER[]"),
    ),
    ("id",),
)
REQUIRED, OPTIONAL = {"id", "a", "s"}, {"b", "l"}
ROW = "i::INTEGER AS id, 'a' AS a, 'b' AS b, {'x': i} AS s, [i] AS l FROM range(9) r(i)"
NULLS = "i::INTEGER AS id, 'a' AS a, NULL AS b, {'x': NULL} AS s, NULL::INTEGER[] AS l FROM range(9) r(i)"


def required(file: Path | str) -> set[str]:
    schema = pq.read_schema(file)
    return {name for name in schema.names if not schema.field(name).nullable}


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {ROW}",
        f"SELECT {NULLS}",
        f"SELECT {ROW} UNION ALL SELECT {NULLS}",
        # Statistics know nothing of a part that is empty, or of a filter above a window.
        f"SELECT {ROW} UNION ALL (SELECT {NULLS}) LIMIT 9",
        f"SELECT * EXCLUDE n FROM (SELECT *, row_number() OVER () AS n FROM (SELECT {ROW})) WHERE n < 10",
        f"FROM (SELECT {ROW}) AS t ANTI JOIN (SELECT 100 AS id) AS o USING (id)",
    ],
)
def test_the_layout_says_what_is_required(tmp_path: Path, query: str) -> None:
    with duckdb.connect() as connection:
        rows = connection.sql(query).fetchall()
        assert write_file(connection, LAYOUT, query, tmp_path / "0.parquet", len(rows)) == len(rows)
        assert connection.read_parquet(str(tmp_path / "0.parquet")).fetchall() == rows
    assert required(tmp_path / "0.parquet") == REQUIRED
    assert [file.name for file in tmp_path.iterdir()] == ["0.parquet"]


def test_rows_without_a_required_value_are_kept(tmp_path: Path) -> None:
    """A transaction that was accepted can leave them behind."""
    query = f"SELECT * REPLACE (nullif(id, 3) AS id) FROM (SELECT {ROW})"
    with duckdb.connect() as connection:
        assert write_file(connection, LAYOUT, query, tmp_path / "0.parquet", 9) == 9
    assert required(tmp_path / "0.parquet") == set()


@pytest.mark.slow
def test_columns_of_a_lake_are_as_nullable_as_the_tables(tmp_path: Path) -> None:
    path, lake = tmp_path / "sales.duckdb", tmp_path / "lake"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a VARCHAR NOT NULL, b VARCHAR)")
        connection.execute("CREATE TABLE bag (a VARCHAR NOT NULL, b VARCHAR)")
        connection.execute("INSERT INTO t SELECT i, 'a', 'b' FROM range(9) r(i); INSERT INTO bag SELECT a, b FROM t")
    wlc.master(path)
    wlr.replicate(path, into=lake)
    for statement in (
        "SELECT 1",
        "UPDATE t SET b = NULL; UPDATE bag SET b = 'c'",
        "DELETE FROM t WHERE id > 3; UPDATE t SET b = 'd'; DELETE FROM bag",
        "INSERT INTO bag VALUES ('a', 'b'); ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 1",
        "ALTER TABLE bag ALTER b SET NOT NULL; UPDATE bag SET b = 'e'",
    ):
        with wlc.connect(path) as connection:
            connection.execute(statement)
        wlr.replicate(into=lake)
        with attached(path) as connection:
            not_null = "SELECT column_name FROM duckdb_columns() WHERE NOT is_nullable AND table_name = ?"
            for table in ("t", "bag"):
                expected = {name for (name,) in connection.execute(not_null, [table]).fetchall()}
                assert [required(file) for file in wlr.files(lake, table)] in ([expected], [])
