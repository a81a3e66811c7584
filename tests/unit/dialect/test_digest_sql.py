"""Digests: the text of a row is what docs/format.md says, and following a log is the same as counting again."""

from __future__ import annotations

import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import witness
from wlc.dialect.duckdb import digest_sql
from wlc.dialect.sql import quote
from wlc.dialect.types import store_sql
from wlc.farm import digest
from wlc.farm.model import (
    AlteredObject,
    Change,
    Clear,
    Column,
    CreatedObject,
    DbObject,
    Ddl,
    DdlEffect,
    Digest,
    DroppedObject,
    Layout,
    Name,
    Record,
    RenamedObject,
    RowsRead,
    RowsRefreshed,
    Transaction,
    file_column,
)

FORMAT = Path(__file__).parents[3] / "docs" / "format.md"
T, U, V = (Name("main", name) for name in "tuv")
TABLE = DbObject("TABLE", T)

VALUES = {
    "BOOLEAN": "true, false",
    "TINYINT": "-128, 127",
    "BIGINT": "-9223372036854775808, 0, 9223372036854775807",
    "UBIGINT": "18446744073709551615",
    "HUGEINT": "-170141183460469231731687303715884105728, 5",
    "DECIMAL(5,2)": "1.5, -0.01, 0, -999.99",
    "DECIMAL(18,18)": "-0.999999999999999999, 0.000000000000000001",
    "DECIMAL(18,6)": "-999999999999.999999, 7",
    "DECIMAL(11,6)": "-99999.999999, 7",
    "DECIMAL(17,0)": "-99999999999999999, 7",
    "DECIMAL(18,0)": "-999999999999999999, 7",
    "DECIMAL(38,10)": "12345678901234567890.0123456789",
    "FLOAT": "'1.5', '-0.0', '0.0', 'nan', 'infinity'",
    "DOUBLE": "'1e300', '-0.0', '0.0', 'nan', '-infinity', '0.1'",
    "VARCHAR": "'', 'a', ',2=', 'ä€😀', '1:x', chr(10) || chr(9)",
    "BLOB": r"'', '\x00\xFF', 'ab'",
    "UUID": "'00000000-0000-0000-0000-000000000001', 'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "JSON": """'{"a": [1, 2]}', 'null'""",
    "DATE": "'1970-01-01', '2026-11-20', '0044-03-15 (BC)', '5881580-07-10', 'infinity', '-infinity'",
    "TIME": "'00:00:00', '23:59:59.5', '12:00:00.000001', '24:00:00'",
    "TIME_NS": "'10:00:00.123456789', '24:00:00'",
    "TIMESTAMP": "'1970-01-01', '2026-11-20 10:00:00.000001', '0001-01-01 (BC)', 'infinity'",
    "TIMESTAMP_S": "'2026-11-20 10:00:00'",
    "TIMESTAMP_MS": "'2026-11-20 10:00:00.5'",
    "TIMESTAMP_NS": "'2026-11-20 10:00:00.123456789', '1677-09-22'",
    "TIMESTAMP WITH TIME ZONE": "'2026-11-20 10:00:00+02', '1970-01-01 00:00:00+00', '-infinity'",
    "TIME WITH TIME ZONE": "'10:00:00+02', '10:00:00-15:59:59'",
    "INTERVAL": "'1 month 2 days 3 microseconds', '-1 day'",
    "BIT": "'101', '0'",
    "ENUM('x', 'y, z')": "'x', 'y, z'",
    "INTEGER[]": "[], [1, NULL], [NULL, 1], [NULL]",
    "VARCHAR[]": "['a,=', ''], ['a', ',='], NULL",
    "DOUBLE[2]": "[1.5, NULL]",
    "INTEGER[][]": "[[1], []], [[], [1]], [[1, 2]], [NULL]",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': 1, 'b': NULL}, {'a': NULL, 'b': '1'}, {'a': NULL, 'b': NULL}",
    "MAP(VARCHAR, INTEGER)": "map {'k': 1, ',': NULL}, map {}",
    "STRUCT(a STRUCT(b DATE[], c BLOB))[]": r"[{'a': {'b': ['2026-11-20', NULL], 'c': '\x01'}}, {'a': NULL}, NULL]",
    "UNION(n INTEGER, s VARCHAR)": "1::INTEGER, 'one'::VARCHAR",
}


@pytest.mark.parametrize("kind", VALUES)
def test_another_program_gives_rows_of_every_type_the_same_numbers(kind: str, tmp_path: Path) -> None:
    layout = Layout((Column("id", "INTEGER", nullable=False), Column("v", kind), Column("w", kind)))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Kathmandu'")
        connection.execute(f"CREATE TABLE t (id INTEGER NOT NULL, v {kind}, w {kind})")
        connection.execute(f"INSERT INTO t SELECT row_number() OVER (), v, NULL FROM ({_values(kind)})")
        connection.execute("INSERT INTO t SELECT -id, NULL, v FROM t UNION ALL SELECT 0, NULL, NULL")
        stored = ", ".join(f"{store_sql(column)} AS {quote(file_column(column.name))}" for column in layout.stored)
        file = tmp_path / "0.parquet"
        connection.execute(f"COPY (SELECT {stored} FROM t) TO '{file}' (FORMAT parquet)")
        from_table = digest_sql.sum_rows(connection, layout, "t", store_sql)
        from_file = digest_sql.sum_rows(connection, layout, f"read_parquet('{file}')")
        numbers = digest_sql.numbered_sql(layout, "t", store_sql)
        found = connection.execute(f"SELECT count(DISTINCT h) FROM {numbers}").fetchall()
    rows, total = witness.digest(file)
    assert from_table == from_file == Digest(rows, total)
    # The values of every type are told apart, and so are the columns that they stand in.
    assert found == [(rows,)]


def _values(kind: str) -> str:
    if kind.startswith("UNION"):
        return f"SELECT unnest([{', '.join(f'({value})::{kind}' for value in VALUES[kind].split(', '))}]) AS v"
    return f"SELECT unnest([{VALUES[kind]}]::{kind}[]) AS v"


def test_number_of_a_row_is_the_one_that_the_format_documents() -> None:
    layout = Layout((Column("a", "INTEGER"), Column("b", "VARCHAR"), Column("c", "DOUBLE"), Column("d", "INTEGER[]")))
    number = witness.number([42, "hello", 0x3FF8000000000000, "2[,=7,]"])
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT 42::INTEGER AS a, 'hello' AS b, 1.5::DOUBLE AS c, [7, NULL]::INTEGER[] AS d"
        )
        assert digest_sql.sum_rows(connection, layout, "t").sum == number
    assert f"`{number:016x}`" in FORMAT.read_text(encoding="utf-8")


# What goes wrong without changing the sum of any column. A linear number of a row would not notice the first five.
ACCIDENTS = {
    "neighbours exchange a": "SELECT id, CASE id % 2 WHEN 0 THEN lead(a) OVER o ELSE lag(a) OVER o END, c, d, b",
    "neighbours exchange c": "SELECT id, a, CASE id % 2 WHEN 0 THEN lead(c) OVER o ELSE lag(c) OVER o END, d, b",
    "neighbours exchange b": "SELECT id, a, c, d, CASE id % 2 WHEN 0 THEN lead(b) OVER o ELSE lag(b) OVER o END",
    "two rows exchange a": "SELECT id, CASE id WHEN 7 THEN 8 * 7 WHEN 8 THEN 7 * 7 ELSE a END, c, d, b",
    "one more in one row, one less in the next": "SELECT id, a + CASE id WHEN 5 THEN 1 WHEN 6 THEN -1 ELSE 0 END, c, d, b",
    "one more in a column, one less in another": "SELECT id + 1, a - 1, c, d, b",
    "all one later": "SELECT id, a, c, d + to_microseconds(1), b",
    "columns exchanged": "SELECT a, id::INTEGER, c, d, b",
    "negative zero": "SELECT id, a, CASE id WHEN 0 THEN -c ELSE c END, d, b",
    "NULL for 0": "SELECT id, nullif(a, 0), c, d, b",
    "empty text for NULL": "SELECT id, a, c, d, coalesce(b, '')",
    "text in another column": "SELECT id, a, c, d, CASE id WHEN 3 THEN NULL WHEN 9 THEN 'value 3' ELSE b END",
}


def test_accidents_that_keep_all_sums_of_columns_change_the_digest() -> None:
    columns = (("id", "BIGINT"), ("a", "INTEGER"), ("c", "DOUBLE"), ("d", "TIMESTAMP"), ("b", "VARCHAR"))
    layout = Layout(tuple(Column(name, kind) for name, kind in columns))
    rows = "SELECT i, 7 * i::INTEGER, i::DOUBLE, make_timestamp(i), CASE i % 9 WHEN 0 THEN NULL ELSE 'value ' || i END"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, kind in columns)})")
        connection.execute(f"INSERT INTO t {rows} FROM range(100) r(i)")
        sums = {"as they were": digest_sql.sum_rows(connection, layout, "t").sum}
        for accident, query in ACCIDENTS.items():
            connection.execute(
                f"CREATE OR REPLACE TABLE x AS FROM t LIMIT 0; INSERT INTO x {query} FROM t WINDOW o AS (ORDER BY id)"
            )
            sums[accident] = digest_sql.sum_rows(connection, layout, "x").sum
    assert len(set(sums.values())) == 1 + len(ACCIDENTS)


@pytest.mark.parametrize("values", ["i", "1000000 * i", "i << 32", "i * i"])
def test_numbers_of_regular_rows_differ_without_a_rule(values: str) -> None:
    layout = Layout((Column("a", "BIGINT", nullable=False),))
    with duckdb.connect() as connection:
        numbered = digest_sql.numbered_sql(layout, f"(SELECT {values} AS a, i FROM range(4100) r(i))", i="i")
        found = [number for (number,) in connection.execute(f"SELECT h FROM {numbered} ORDER BY i").fetchall()]
    for _ in range(4):
        # Of a polynomial, differences of differences end in a constant.
        found = [(after - before) % 2**64 for before, after in pairwise(found)]
        assert len(set(found)) == len(found)
        for bit in range(64):
            ones = sum(number >> bit & 1 for number in found)
            assert abs(ones - len(found) / 2) < 5 * len(found) ** 0.5 / 2


LARGEST: dict[str, witness.Counted] = {
    "BIGINT": -(2**63),
    "UBIGINT": 2**64 - 1,
    "UUID": uuid.UUID(int=2**128 - 1),
    "VARCHAR": "x",
    "BLOB": b"y",
}


@pytest.mark.parametrize("kind", LARGEST)
def test_wide_rows_and_columns_of_any_name_have_numbers(kind: str) -> None:
    largest = LARGEST[kind]
    names = ["s", "t", "u", "h", "w", "q", *(f"c{index}" for index in range(500 if kind == "BIGINT" else 80))]
    layout = Layout(tuple(Column(name, kind, nullable=index % 2 > 0) for index, name in enumerate(names)))
    with duckdb.connect() as connection:
        values = ", ".join(f"CAST(? AS {kind}) AS {name}" for name in names)
        connection.execute(f"CREATE TABLE t AS SELECT {values}, 1 AS _weight", [largest] * len(names))
        assert digest_sql.sum_images(connection, layout, "t") == witness.number([largest] * len(names))


def test_columns_that_are_null_can_be_added() -> None:
    old = Layout((Column("a", "INTEGER"),))
    new = Layout((Column("b", "INTEGER"), Column("c", "VARCHAR")))
    assert digest_sql.keeps_rows(old, new)
    assert not digest_sql.keeps_rows(new, old)
    assert not digest_sql.keeps_rows(old, Layout((*old.columns, Column("c", "INTEGER", default="1"))))
    assert not digest_sql.keeps_rows(old, Layout((Column("a", "BIGINT"),)))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT i::INTEGER AS a FROM range(9) AS r(i)")
        before = digest_sql.sum_rows(connection, old, "t")
        connection.execute("ALTER TABLE t ADD COLUMN c VARCHAR; ALTER TABLE t RENAME COLUMN a TO b")
        assert digest_sql.sum_rows(connection, new, "t") == before


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([-3, -1, 0, 1, 2])), max_size=30))
def test_sum_of_images_is_linear_in_their_weights(images: list[tuple[int, int]]) -> None:
    layout = Layout((Column("a", "INTEGER"),))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE i (a INTEGER, _weight BIGINT)")
        if images:
            connection.executemany("INSERT INTO i VALUES (?, ?)", images)
        found = digest_sql.sum_images(connection, layout, "i")
    assert found == sum(weight * witness.number([value]) for value, weight in images) % 2**64


def _ledger(**known: int) -> digest.Ledger:
    # Every image of a file is worth its tick.
    return digest.Ledger(
        {Name("main", name): Digest(total, total) for name, total in known.items()},
        lambda path, first, last: sum(range(first, last + 1)) * len(path),
    )


def _transaction(tick: int, *records: Record) -> Transaction:
    return Transaction(tick, "ann", None, None, records)  # type: ignore[arg-type]


def test_ledger_adds_images_to_what_was_known() -> None:
    ledger = _ledger(t=10, u=1)
    ledger.follow([_transaction(1, Change(T, "f", 3, 1)), _transaction(2, Change(T, "f", 0, 1))])
    assert ledger.changed() == {T: Digest(11, 13)}
    assert ledger.all() == {T: Digest(11, 13), U: Digest(1, 1)}


def test_ledger_forgets_images_before_a_clear_and_knows_the_table_again() -> None:
    ledger = _ledger()
    ledger.follow(
        [_transaction(1, Change(T, "f", 3, 1)), _transaction(2, Clear(T, 9)), _transaction(3, Change(T, "f", 1, 0))]
    )
    assert ledger.changed() == {T: Digest(1, 3)}


def test_ledger_says_nothing_of_tables_it_does_not_know() -> None:
    ledger = _ledger(t=1)
    ledger.follow(
        [_transaction(1, Change(U, "f", 1, 0)), _transaction(2, _ddl(T, AlteredObject(TABLE, columns=((None, "c"),))))]
    )
    assert ledger.changed() == {}
    assert ledger.unknown() == {T, U}


def test_rows_that_were_read_or_refreshed_change_no_digest() -> None:
    ledger = _ledger(t=10)
    told = (RowsRead(T, "reads", 5, exclusive=False), RowsRefreshed(T, "refreshed", 5, absent=True))
    transaction = _transaction(2, *told)
    ledger.follow([transaction])
    assert ledger.changed() == {}
    assert digest.touched([transaction]) == set()


def _ddl(name: Name, *does: DdlEffect, **more: Any) -> Ddl:
    return Ddl("…", name, "…", does=does, **more)


def test_ledger_follows_schema_changes() -> None:
    ledger, other = _ledger(t=7), DbObject("TABLE", U)
    created = _ddl(U, CreatedObject(other), layout=Layout((Column("a", "INTEGER"),)))
    ledger.follow([_transaction(1, created, Change(U, "f", 2, 0))])
    added = _ddl(T, AlteredObject(TABLE, columns=((None, "c"),)), digest=Digest(7, 99))
    ledger.follow([_transaction(2, added, _ddl(T, AlteredObject(TABLE)))])
    ledger.follow([_transaction(3, Change(T, "ff", 1, 0))])
    assert ledger.changed() == {T: Digest(8, 105), U: Digest(2, 1)}
    renamed = _transaction(4, _ddl(V, RenamedObject(other, V)), Change(V, "g", 1, 0))
    ledger.follow([renamed])
    assert ledger.changed() == {T: Digest(8, 105), V: Digest(3, 5)}
    assert digest.touched([renamed]) == {U, V}
    gone = _transaction(
        5, _ddl(Name("s", "s"), DroppedObject(TABLE), DroppedObject(DbObject("SCHEMA", Name("s", "s"))))
    )
    ledger.follow([gone])
    assert ledger.all() == {V: Digest(3, 5)}
    assert digest.touched([gone]) == {T}
