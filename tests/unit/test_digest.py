"""Digests: the text of a row is what docs/format.md says, and following a log is the same as counting again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import witness
from wlc.dialect.duckdb import digest_sql
from wlc.dialect.sql import quote
from wlc.dialect.types import store_sql
from wlc.farm import digest
from wlc.farm.model import (
    Change,
    Clear,
    Column,
    Ddl,
    Digest,
    Layout,
    Name,
    Record,
    RowsRead,
    RowsRefreshed,
    Transaction,
    file_column,
)

if TYPE_CHECKING:
    from pathlib import Path

T, U = Name("main", "t"), Name("main", "u")

VALUES = {
    "BOOLEAN": "true, false",
    "TINYINT": "-128, 127",
    "BIGINT": "-9223372036854775808, 0, 9223372036854775807",
    "UBIGINT": "18446744073709551615",
    "HUGEINT": "-170141183460469231731687303715884105728, 5",
    "DECIMAL(5,2)": "1.5, -0.01, 0",
    "DECIMAL(38,10)": "12345678901234567890.0123456789",
    "FLOAT": "'1.5', '-0.0', '0.0', 'nan', 'infinity'",
    "DOUBLE": "'1e300', '-0.0', '0.0', 'nan', '-infinity', '0.1'",
    "VARCHAR": "'', 'a', ',2=', 'ä€😀', '1:x', chr(10) || chr(9)",
    "BLOB": r"'', '\x00\xFF', 'ab'",
    "UUID": "'00000000-0000-0000-0000-000000000001', 'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "JSON": """'{"a": [1, 2]}', 'null'""",
    "DATE": "'1970-01-01', '2026-11-20', '0044-03-15 (BC)', '5881580-07-10', 'infinity', '-infinity'",
    "TIME": "'00:00:00', '23:59:59.5', '12:00:00.000001', '24:00:00'",
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
        texts = connection.execute(f"SELECT count(DISTINCT {digest_sql.hash_sql(layout, store_sql)}) FROM t").fetchall()
    rows, total = witness.digest(file)
    assert from_table == from_file == Digest(rows, total)
    # The values of every type are told apart, and so are the columns that they stand in.
    assert texts == [(rows,)]


def _values(kind: str) -> str:
    if kind.startswith("UNION"):
        return f"SELECT unnest([{', '.join(f'({value})::{kind}' for value in VALUES[kind].split(', '))}]) AS v"
    return f"SELECT unnest([{VALUES[kind]}]::{kind}[]) AS v"


def test_text_of_a_row_is_what_the_format_says() -> None:
    layout = Layout((Column("a", "INTEGER"), Column("b", "VARCHAR"), Column("c", "DOUBLE"), Column("d", "INTEGER[]")))
    written = ",1=42,2=5:hello,3=3FF8000000000000,4=2[,=7,]"
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT 42::INTEGER AS a, 'hello' AS b, 1.5::DOUBLE AS c, [7, NULL]::INTEGER[] AS d"
        )
        assert digest_sql.sum_rows(connection, layout, "t").sum == witness.number(written)
        assert connection.execute(f"SELECT {digest_sql.hash_sql(layout)} FROM t").fetchall() == [
            (witness.number(written),)
        ]


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


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([-3, -1, 1, 2])), max_size=30))
def test_sum_of_images_is_linear_in_their_weights(images: list[tuple[int, int]]) -> None:
    layout = Layout((Column("a", "INTEGER"),))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE i (a INTEGER, _weight BIGINT)")
        if images:
            connection.executemany("INSERT INTO i VALUES (?, ?)", images)
        found = digest_sql.sum_images(connection, layout, "i")
    assert found == sum(weight * witness.number(f",1={value}") for value, weight in images) % 2**64


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
    ledger.follow([_transaction(1, Change(U, "f", 1, 0)), _transaction(2, Ddl("ALTER TABLE", T, "ALTER TABLE t …"))])
    assert ledger.changed() == {}


def test_rows_that_were_read_or_refreshed_change_no_digest() -> None:
    ledger = _ledger(t=10)
    told = (RowsRead(T, "reads", 5, exclusive=False), RowsRefreshed(T, "refreshed", 5, absent=True))
    transaction = _transaction(2, *told)
    ledger.follow([transaction])
    assert ledger.changed() == {}
    assert digest.touched([transaction]) == set()


def test_images_of_weight_0_change_no_sum() -> None:
    rows = "(VALUES (1, 1), (2, 0), (3, -1), (4, 0)) AS t(a, _weight)"
    without = "(VALUES (1, 1), (3, -1)) AS t(a, _weight)"
    layout = Layout((Column("a", "INTEGER"),))
    with duckdb.connect() as connection:
        assert digest_sql.sum_images(connection, layout, rows) == digest_sql.sum_images(connection, layout, without)


def test_ledger_follows_schema_changes() -> None:
    ledger = _ledger(t=7)
    ledger.follow(
        [
            _transaction(
                1,
                Ddl("CREATE TABLE", U, "CREATE TABLE u …", layout=Layout((Column("a", "INTEGER"),))),
                Change(U, "f", 2, 0),
            )
        ]
    )
    ledger.follow([_transaction(2, Ddl("ALTER TABLE", T, "ALTER TABLE t …", digest=Digest(7, 99)))])
    ledger.follow([_transaction(3, Change(T, "ff", 1, 0))])
    assert ledger.changed() == {T: Digest(8, 105), U: Digest(2, 1)}
    ledger.follow([_transaction(4, Ddl("DROP TABLE", U, "DROP TABLE u"))])
    assert ledger.changed() == {T: Digest(8, 105)}
