"""The fold's SQL against the simplest model: a bag of rows that change one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.fold import RowImages, TargetTable
from wlc.dialect.sql import literal
from wlc.dialect.types import store_sql
from wlc.farm.model import Column, Layout, Name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = (Column("id", "INTEGER"), Column("v", "VARCHAR"), Column("x", "DOUBLE"), Column("l", "DOUBLE[]"))
KEYED = TargetTable(Name("main", "t"), "t", Layout(COLUMNS, ("id",)))
BAG = TargetTable(Name("main", "t"), "t", Layout(COLUMNS))
# Values that SQL takes for equal, or for unknown, and that are not the same.
VALUES = st.tuples(
    st.sampled_from(["1", "2", "3"]),
    st.sampled_from(["'a'", "'A'", "NULL"]),
    st.sampled_from(["0.0", "-0.0::DOUBLE", "'nan'", "'-inf'", "NULL"]),
    st.sampled_from(["[0.0]", "[-0.0::DOUBLE]", "[NULL]", "[]", "NULL"]),
)
Row = tuple[str, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fold")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def write(connection: duckdb.DuckDBPyConnection, folder: Path, images: list[tuple[int, int, Row]]) -> RowImages:
    """Write images (tick, weight, row) as a data file."""
    connection.execute(
        "CREATE OR REPLACE TABLE images (_tick BIGINT, _weight TINYINT, id INTEGER, v VARCHAR, x DOUBLE, l DOUBLE[])"
    )
    for tick, weight, row in images:
        connection.execute(f"INSERT INTO images SELECT {tick}, {weight}, {', '.join(row)}")
    target = folder / "data.parquet"
    connection.execute(f"COPY images TO {literal(str(target))} (FORMAT parquet)")
    ticks = [tick for tick, _, _ in images] or [0]
    return RowImages((str(target),), min(ticks), max(ticks))


def fill(connection: duckdb.DuckDBPyConnection, table: TargetTable, rows: list[Row]) -> None:
    key = " PRIMARY KEY" if table.key else ""
    connection.execute(f"CREATE OR REPLACE TABLE t (id INTEGER{key}, v VARCHAR COLLATE NOCASE, x DOUBLE, l DOUBLE[])")
    for row in rows:
        connection.execute(f"INSERT INTO t SELECT {', '.join(row)}")


def texts(connection: duckdb.DuckDBPyConnection) -> Counter[tuple[str, ...]]:
    """Rows as text, which shows the sign of zero."""
    return Counter(connection.execute("SELECT id::VARCHAR, v, x::VARCHAR, l::VARCHAR FROM t").fetchall())


def expected(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        id_, v, x, many = row
        found.update(
            connection.execute(
                f"SELECT {id_}::VARCHAR, {v}, ({x})::DOUBLE::VARCHAR, ({many})::DOUBLE[]::VARCHAR"
            ).fetchall()
        )
    return found


def apply(connection: duckdb.DuckDBPyConnection, table: TargetTable, source: RowImages) -> tuple[int, int]:
    """Fold and apply; returns how many rows should have gone and how many did."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE net AS {fold.net_sql(table, fold.raw_sql(table.layout, [source]))}"
    )
    wanted = connection.execute("SELECT coalesce(sum(-_weight), 0) FROM net WHERE _weight < 0").fetchall()[0][0]
    delete = fold.delete_keyed_sql if table.key else fold.delete_bag_sql
    gone = connection.execute(delete(table, "net")).fetchall()[0][0]
    connection.execute(fold.insert_new_sql(table, "net"))
    return int(wanted), int(gone)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(VALUES, max_size=5), st.lists(st.tuples(st.booleans(), VALUES), max_size=8))
def test_bag_equals_the_model(
    connection: duckdb.DuckDBPyConnection, folder: Path, start: list[Row], changes: list[tuple[bool, Row]]
) -> None:
    table, rows, images = replace(BAG, is_collated=True), list(start), []
    for tick, (removes, row) in enumerate(changes, start=1):
        if removes and rows:
            images.append((tick, -1, rows.pop(len(rows) // 2)))
        else:
            rows.append(row)
            images.append((tick, 1, row))
    fill(connection, table, start)
    wanted, gone = apply(connection, table, write(connection, folder, images))
    assert wanted == gone
    assert texts(connection) == expected(connection, rows)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("123"), VALUES), st.lists(VALUES, max_size=8))
def test_keyed_equals_the_model(
    connection: duckdb.DuckDBPyConnection, folder: Path, start: dict[str, Row], changes: list[Row]
) -> None:
    """A row that is there already goes where its values would stay the same, and takes others elsewhere."""
    table = replace(KEYED, is_collated=True)
    rows = {key: (key, *row[1:]) for key, row in start.items()}
    fill(connection, table, list(rows.values()))
    images = []
    for tick, row in enumerate(changes, start=1):
        old = rows.pop(row[0], None)
        if old is not None:
            images.append((tick, -1, old))
        if old != row:
            images.append((tick, 1, row))
            rows[row[0]] = row
    wanted, gone = apply(connection, table, write(connection, folder, images))
    assert wanted == gone
    assert texts(connection) == expected(connection, list(rows.values()))


@pytest.mark.parametrize("table", [KEYED, BAG], ids=["keyed", "bag"])
@pytest.mark.parametrize(
    "there", [("1", "'a'", "0.0", "[1.0]"), ("1", "'A'", "-0.0::DOUBLE", "[1.0]"), ("1", "'a'", "-0.0::DOUBLE", "NULL")]
)
def test_image_that_is_not_there_is_not_deleted_and_named(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: TargetTable, there: Row
) -> None:
    table = replace(table, is_collated=True)
    fill(connection, table, [there])
    source = write(connection, folder, [(1, -1, ("1", "'a'", "-0.0::DOUBLE", "[1.0]"))])
    assert apply(connection, table, source) == (1, 0)
    assert texts(connection) == expected(connection, [there])
    named = connection.execute(fold.missing_sql(table, "net")).fetchall()[0][0]
    assert named == ("id = 1" if table.key else "id = 1, v = a, x = -0.0, l = [1.0]")


def test_bag_keeps_the_other_copies_without_rowid(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    row = ("1", "'a'", "1.0", "[1.0]")
    fill(connection, BAG, [row, row, row])
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE net AS {fold.net_sql(BAG, fold.raw_sql(BAG.layout, [write(connection, folder, [(1, -1, row)])]))}"
    )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE copies AS {fold.copies_left_sql(BAG, 'net')}")
    connection.execute(fold.delete_equal_sql(BAG, "net"))
    connection.execute(fold.insert_sql(BAG, "copies", copies=True))
    assert texts(connection) == expected(connection, [row, row])


def test_range_of_ticks_is_inclusive(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    rows: list[tuple[int, int, tuple[str, ...]]] = [(tick, 1, (str(tick), "'a'", "1.0", "[]")) for tick in range(1, 6)]
    source = replace(write(connection, folder, rows), first=2, last=4)
    assert sorted(
        row[0] for row in connection.execute(fold.net_sql(BAG, fold.raw_sql(BAG.layout, [source]))).fetchall()
    ) == [2, 3, 4]


def test_only_changed_columns_of_rows_that_stay_are_set(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    table = replace(KEYED, is_referenced=True)
    old, new = ("1", "'a'", "0.0", "[1.0]"), ("1", "'a'", "2.0", "[1.0]")
    gone, comes = ("2", "'a'", "0.0", "[1.0]"), ("3", "'a'", "0.0", "[1.0]")
    fill(connection, table, [old, gone])
    source = write(connection, folder, [(1, -1, old), (1, 1, new), (2, -1, gone), (2, 1, comes)])
    assert apply(connection, table, source) == (2, 1)
    (update,) = fold.updates(connection, "memory", table, "net")
    assert 'SET "x" = ' in update
    assert connection.execute(update).fetchall() == [(1,)]
    assert texts(connection) == expected(connection, [new, comes])


def test_rows_that_stay_are_set_in_indexed_columns_only_where_these_differ(
    connection: duckdb.DuckDBPyConnection, folder: Path
) -> None:
    """There unique values may change hands, so that all of them are set by one statement."""
    table = replace(KEYED, is_referenced=True)
    old: list[Row] = [(k, f"'{v}'", "0.0", "[1.0]") for k, v in zip("1234", "abcd", strict=True)]
    new: list[Row] = [("1", "'b'", "0.0", "[1.0]"), ("2", "'a'", "2.0", "[1.0]"), ("3", "'c'", "3.0", "[1.0]")]
    fill(connection, table, old)
    connection.execute(
        'CREATE UNIQUE INDEX i ON t ("V"); CREATE TABLE r (id INTEGER REFERENCES t (id)); INSERT INTO r VALUES (3)'
    )
    source = write(connection, folder, [*((1, -1, row) for row in old[:3]), *((1, 1, row) for row in new)])
    assert apply(connection, table, source) == (3, 0)
    found = [connection.execute(update).fetchall() for update in fold.updates(connection, "memory", table, "net")]
    assert found == [[(1,)], [(2,)]]
    assert texts(connection) == expected(connection, [*new, old[3]])
    connection.execute("DROP TABLE r")


def test_rows_stay_only_if_an_update_would_show(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """DuckDB's UPDATE skips a value that is equal, so it cannot turn 0.0 into -0.0."""
    table = replace(KEYED, is_referenced=True)
    old, new = ("1", "'a'", "0.0", "[1.0]"), ("1", "'b'", "-0.0::DOUBLE", "[1.0]")
    fill(connection, table, [old])
    assert apply(connection, table, write(connection, folder, [(1, -1, old), (1, 1, new)])) == (1, 1)
    assert texts(connection) == expected(connection, [new])


ODD = [
    ("HUGEINT", "170141183460469231731687303715884105727"),
    ("INTERVAL", "INTERVAL '1 month'"),
    ("TIME WITH TIME ZONE", "'12:00:00+01'"),
    ("ENUM('a', 'b')", "'b'"),
    ("UNION(a INTEGER, b VARCHAR)", "union_value(b := '1')"),
    ("STRUCT(a INTERVAL, b FLOAT)", "{'a': INTERVAL '30 days', 'b': -0.0}"),
    ("MAP(INTEGER, DOUBLE)", "MAP {1: 0.0}"),
    ("BIT", "'0101'"),
    ("DOUBLE[2]", "[0.0, 1.0]"),
]


@pytest.mark.parametrize("type_text, value", ODD, ids=[name for name, _ in ODD])
def test_rows_of_odd_types_are_found_and_made(folder: Path, type_text: str, value: str) -> None:
    layout = Layout((Column("id", "INTEGER"), Column("odd", type_text)))
    table = TargetTable(Name("main", "t"), "t", layout)
    target = folder / "odd.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t (id INTEGER, odd {type_text})")
        connection.execute(f"INSERT INTO t SELECT 1, {value}")
        stored = ", ".join(f"{store_sql(column)} AS {column.name}" for column in layout.columns)
        connection.execute(
            f"COPY (SELECT 1 AS _tick, w::TINYINT AS _weight, id + (w = 1)::INTEGER AS id, * EXCLUDE (id, w)"
            f" FROM (SELECT {stored} FROM t), (VALUES (-1), (1)) AS v(w)) TO {literal(str(target))}"
        )
        before = connection.execute("SELECT odd, odd::VARCHAR FROM t").fetchall()
        assert apply(connection, table, RowImages((str(target),), 1, 1)) == (1, 1)
        assert connection.execute("SELECT odd, odd::VARCHAR FROM t").fetchall() == before
        assert connection.execute("SELECT id FROM t").fetchall() == [(2,)]
