"""Every type of DuckDB in a PostgreSQL replica: exact, as PostgreSQL writes it, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from tests.sampling import sampled
from tests.unit.dialect.test_types import EXPRESSIONS, VALUES
from wlc.dialect.sql import quote
from wlc.farm.errors import ReplayError
from wlr.engine.postgres.expressions import column_type

if TYPE_CHECKING:
    from pathlib import Path

UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
NASTY = "a,b\"c'd\\e\nf\r\ng\th {}"
C = ' COLLATE "C"'

# DuckDB's type, PostgreSQL's, and values: DuckDB's SQL and PostgreSQL's text.
TYPES: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("BOOLEAN", "boolean", [("true", "true"), ("false", "false")]),
    ("TINYINT", "smallint", [("-128", "-128"), ("127", "127")]),
    ("UTINYINT", "smallint", [("0", "0"), ("255", "255")]),
    ("SMALLINT", "smallint", [("-32768", "-32768")]),
    ("USMALLINT", "integer", [("65535", "65535")]),
    ("INTEGER", "integer", [("-2147483648", "-2147483648")]),
    ("UINTEGER", "bigint", [("4294967295", "4294967295")]),
    ("BIGINT", "bigint", [("-9223372036854775808", "-9223372036854775808")]),
    ("UBIGINT", "numeric(20,0)", [("18446744073709551615", "18446744073709551615")]),
    (
        "HUGEINT",
        "numeric(39,0)",
        [(f"'{text}'", text) for text in (f"{-(2**127)}", f"{2**127 - 1}")],
    ),
    ("UHUGEINT", "numeric(39,0)", [(f"'{2**128 - 1}'", f"{2**128 - 1}")]),
    ("BIGNUM", "numeric", [(f"'{-(10**200) - 7}'", f"{-(10**200) - 7}"), ("'0'", "0")]),
    (
        "FLOAT",
        "real",
        [("'-0.0'", "-0"), ("'nan'", "NaN"), ("'-inf'", "-Infinity"), ("3.4028235e38", "3.4028235e+38"), ("0.1", "0.1")],
    ),
    (
        "DOUBLE",
        "double precision",
        [
            ("'-0.0'", "-0"),
            ("0.0", "0"),
            ("'nan'", "NaN"),
            ("'inf'", "Infinity"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("5e-324", "5e-324"),
            ("0.1", "0.1"),
        ],
    ),
    (
        "DECIMAL(38,10)",
        "numeric(38,10)",
        [("1234567890123456789012345678.0123456789", "1234567890123456789012345678.0123456789"), ("1.5", "1.5000000000")],
    ),
    (
        "VARCHAR",
        "text" + C,
        [("''", ""), ("'NULL'", "NULL"), (r"'\N'", r"\N"), (r"'\.'", r"\."), ("' '", " "), ("'é😀'", "é😀")]
        + [("'" + NASTY.replace("'", "''") + "'", NASTY)],
    ),
    ("BLOB", "bytea", [("''", r"\x"), (r"'\x00\xFF'::BLOB", r"\x00ff"), ("'abc'", r"\x616263")]),
    ("UUID", "uuid", [(f"'{UUID}'", UUID)]),
    ("JSON", "json", [("""'{"a": [1, null, "\\u0000"]}'""", '{"a": [1, null, "\\u0000"]}'), ("'null'", "null")]),
    (
        "DATE",
        "date",
        [
            ("'0044-03-15 (BC)'", "0044-03-15 BC"),
            ("'infinity'", "infinity"),
            ("'-infinity'", "-infinity"),
            ("'12345-01-01'", "12345-01-01"),
        ],
    ),
    ("TIME", "time", [("'24:00:00'", "24:00:00"), ("'23:59:59.999999'", "23:59:59.999999")]),
    (
        "TIME WITH TIME ZONE",
        "time with time zone",
        [("'00:00:00+15:59:59'", "00:00:00+15:59:59"), ("'12:00:00.5-03'", "12:00:00.5-03")],
    ),
    (
        "TIMESTAMP",
        "timestamp",
        [
            ("'0044-03-15 (BC) 12:00:00.5'", "0044-03-15 12:00:00.5 BC"),
            ("'-infinity'", "-infinity"),
            ("'294246-12-31 23:59:59.999999'", "294246-12-31 23:59:59.999999"),
        ],
    ),
    ("TIMESTAMP_S", "timestamp", [("'2020-01-01 00:00:01'", "2020-01-01 00:00:01")]),
    ("TIMESTAMP_MS", "timestamp", [("'2020-01-01 00:00:01.123'", "2020-01-01 00:00:01.123")]),
    ("TIMESTAMP_NS", "text" + C, [("'2020-01-01 00:00:01.123456789'", "2020-01-01 00:00:01.123456789")]),
    ("TIME_NS", "text" + C, [("'10:00:00.123456789'", "10:00:00.123456789")]),
    (
        "TIMESTAMP WITH TIME ZONE",
        "timestamp with time zone",
        [
            ("'0044-03-15 (BC) 12:00:00+00'", "0044-03-15 12:00:00+00 BC"),
            ("'1500-06-01 10:00:00.000001+02'", "1500-06-01 08:00:00.000001+00"),
            ("'infinity'", "infinity"),
            ("'12000-01-01 00:00:00+00'", "12000-01-01 00:00:00+00"),
        ],
    ),
    ("TIMESTAMPTZ_NS", "text" + C, [("'2020-01-01 00:00:01.123456789+00'", "2020-01-01 00:00:01.123456789+00")]),
    (
        "INTERVAL",
        "interval",
        [
            ("INTERVAL '1 year -2 months 3 days -04:05:06.000007'", "10 mons 3 days -04:05:06.000007"),
            ("to_microseconds(9223372036854775807)", "2562047788:00:54.775807"),
            ("INTERVAL (-13) MONTHS", "-1 years -1 mons"),
            ("INTERVAL 0 DAYS", "00:00:00"),
        ],
    ),
    ("BIT", "bit varying", [("'0101010111'", "0101010111"), ("'0'", "0")]),
    ("ENUM('sad', '')", "text" + C, [("'sad'", "sad"), ("''", "")]),
    ("GEOMETRY", "bytea", [("'POINT(1 2)'::GEOMETRY", r"\x0101000000000000000000f03f0000000000000040")]),
    ("INTEGER[]", "integer[]", [("[]", "{}"), ("[1, NULL]", "{1,NULL}")]),
    (
        "VARCHAR[]",
        "text[]" + C,
        [("""['', 'NULL', NULL, 'a"b\\c,{}']""", '{"","NULL",NULL,"a\\"b\\\\c,{}"}')],
    ),
    ("DATE[]", "date[]", [("['0044-03-15 (BC)'::DATE, 'infinity']", '{"0044-03-15 BC",infinity}')]),
    ("DOUBLE[2]", "double precision[]", [("[1.5, NULL]", "{1.5,NULL}")]),
    ("BLOB[]", "bytea[]", [(r"['\x00'::BLOB, '']", r'{"\\x00","\\x"}')]),
    ("HUGEINT[]", "numeric(39,0)[]", [("[1::HUGEINT]", "{1}")]),
    ("DECIMAL(5,2)[]", "numeric(5,2)[]", [("[1.50]", "{1.50}")]),
    ("INTERVAL[]", "interval[]", [("[INTERVAL 1 DAY]", '{"1 day"}')]),
    ("JSON[]", "json[]", [("""['{"a":1}'::JSON, 'null']""", '{"{\\"a\\":1}","null"}')]),
    ("STRUCT(a INTEGER, b VARCHAR)", "json", [("{'a': 1, 'b': ''}", '{"a":1,"b":""}'), ("{'a': NULL, 'b': NULL}", '{"a":null,"b":null}')]),
    ("STRUCT(h HUGEINT, d DATE)", "json", [("{'h': -170141183460469231731687303715884105728, 'd': '0044-03-15 (BC)'}", '{"h":-170141183460469231731687303715884105728,"d":"0044-03-15 (BC)"}')]),
    ("MAP(VARCHAR, BIGINT)", "json", [("map {'': 1}", '{"":1}'), ("map {}", "{}")]),
    ("INTEGER[][]", "json", [("[[1], NULL, []]", "[[1],null,[]]")]),
    ("STRUCT(a INTEGER)[]", "json", [("[{'a': 1}, NULL]", '[{"a":1},null]')]),
    # JSON would not be exact: a double may be NaN, a decimal has a scale, JSON has a null of its own, keys are texts.
    ("STRUCT(a DOUBLE)", "text" + C, [("{'a': 'nan'}", "{'a': nan}")]),
    ("STRUCT(a DECIMAL(5,2))", "text" + C, [("{'a': 1.50}", "{'a': 1.50}")]),
    ("STRUCT(a JSON)", "text" + C, [("{'a': '1'::JSON}", "{'a': 1}")]),
    ("MAP(INTEGER, VARCHAR)", "text" + C, [("map {1: 'x'}", "{1=x}")]),
    ("UNION(a INTEGER, b VARCHAR)", "text" + C, [("union_value(b := 'x')", "x")]),
    ("VARIANT", "text" + C, [("5::VARIANT", "5")]),
]  # fmt: skip

VALUES_MOST = max(len(values) for _, _, values in TYPES)


def test_every_type_of_the_other_tests_is_here_or_nested() -> None:
    here = {column_type(declared).partition("(")[0] for declared, _, _ in TYPES}
    others = {column_type(declared).partition("(")[0] for declared in [*VALUES, *EXPRESSIONS]}
    assert others <= here, "new types"


def rows(first: int) -> list[str]:
    """Rows of values as SQL, after a row of NULLs: row n has the value n of every type, from `first` on."""
    made = ["0" + ", NULL" * len(TYPES)]
    for number in range(VALUES_MOST):
        values = [listed[(number + first) % len(listed)][0] for _, _, listed in TYPES]
        made.append(", ".join([str(number + 1), *(f"({v})::{t}" for v, (t, _, _) in zip(values, TYPES, strict=True))]))
    return made


def expected(first: int) -> list[tuple[object, ...]]:
    values = [
        (number + 1, *(listed[(number + first) % len(listed)][1] for _, _, listed in TYPES))
        for number in range(VALUES_MOST)
    ]
    return [(0, *[None] * len(TYPES)), *values]


def found(url: str, table: str) -> list[tuple[object, ...]]:
    columns = ", ".join(f"c{number}::text" for number in range(len(TYPES)))
    with psycopg.connect(url) as connection:
        connection.execute("SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; SET DateStyle = 'ISO'")
        return connection.execute(f"SELECT r, {columns} FROM {table} ORDER BY r, c0 NULLS FIRST").fetchall()


@pytest.mark.slow
def test_values_arrive_through_snapshot_and_log(tmp_path: Path, cluster) -> None:
    source = tmp_path / "typed.duckdb"
    columns = ", ".join(f"c{number} {declared}" for number, (declared, _, _) in enumerate(TYPES))
    with duckdb.connect(str(source)) as connection:
        for table, key in (("bag", ""), ("keyed", " PRIMARY KEY")):
            connection.execute(f"CREATE TABLE {table} (r INTEGER{key}, {columns})")
            for row in rows(0):
                connection.execute(f"INSERT INTO {table} SELECT {row}")
    wlc.master(source)
    follows, at_end = cluster.create_database(), cluster.create_database()
    wlr.replicate(source, into=follows)
    declared = "SELECT format_type(atttypid, atttypmod) || CASE WHEN attcollation::regcollation::text = '\"C\"' THEN"
    declared += " ' COLLATE \"C\"' ELSE '' END FROM pg_attribute WHERE attrelid = 'bag'::regclass AND attnum > 1 ORDER BY attnum"
    same = {"time": "time without time zone", "timestamp": "timestamp without time zone"}
    assert [name for (name,) in execute(follows, declared)] == [same.get(named, named) for _, named, _ in TYPES]
    for table in ("bag", "keyed"):
        assert found(follows, table) == expected(0), f"{table}, through a snapshot"
    with wlc.connect(source) as connection:
        for table in ("bag", "keyed"):
            connection.execute("BEGIN")
            for number, row in enumerate(rows(1)):
                connection.execute(f"DELETE FROM {table} WHERE r = {number}")
                connection.execute(f"INSERT INTO {table} SELECT {row}")
            connection.execute("COMMIT")
            connection.execute(f"INSERT INTO {table} SELECT * REPLACE (r + 100 AS r) FROM {table} WHERE r < 3")
            connection.execute(f"DELETE FROM {table} WHERE r > 99")
    wlc.flush(source)
    wlr.replicate(into=follows)
    for table in ("bag", "keyed"):
        assert found(follows, table) == expected(1), f"{table}, through the log"
    wlc.snapshot(source)
    wlr.replicate(source, into=at_end)
    for table in ("bag", "keyed"):
        assert found(at_end, table) == expected(1), f"{table}, through a later snapshot"


@pytest.mark.slow
def test_rows_of_all_types_can_be_verified_but_those_that_text_does_not_tell(tmp_path: Path, database_url: str) -> None:
    source, lost = tmp_path / "typed.duckdb", {"UNION(a INTEGER, b VARCHAR)", "VARIANT"}
    columns = ", ".join(f"c{number} {declared}" for number, (declared, _, _) in enumerate(TYPES))
    with duckdb.connect(str(source)) as connection:
        connection.execute(f"CREATE TABLE t (r INTEGER, {columns})")
        for row in rows(0):
            connection.execute(f"INSERT INTO t SELECT {row}")
        connection.execute("CREATE TABLE lost AS SELECT r, " + _columns(lost) + " FROM t")
        for number, (declared, _, _) in enumerate(TYPES):
            if declared in lost:
                connection.execute(f"ALTER TABLE t DROP COLUMN c{number}")
    wlc.master(source)
    wlr.replicate(source, into=database_url)
    found = {table.table: table.outcome for table in wlr.verify(database_url).tables}
    assert found == {"main.t": "same", "main.lost": "unreadable"}
    wlr.unlock(database_url)
    execute(database_url, "UPDATE t SET c0 = NULL WHERE r = 1")
    assert [table.table for table in wlr.verify(database_url).differing] == ["main.t"]
    assert [(done.added, done.removed) for done in wlr.repair(database_url, ["t"])] == [(1, 1)]
    assert_same_but(database_url, lost="main.lost")


def test_settings_of_the_database_do_not_change_what_is_read(tmp_path: Path, database_url: str) -> None:
    source = tmp_path / "shop.duckdb"
    duckdb.connect(str(source)).close()
    wlc.master(source)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (d DOUBLE, b BLOB, p GEOMETRY[], i INTERVAL, m TIMESTAMP)")
        point, moment = "['POINT (1 2)'::GEOMETRY]", "TIMESTAMP '2020-02-01 10:00:00'"
        connection.execute(f"INSERT INTO t SELECT 0.1::DOUBLE + 0.2, 'a'::BLOB, {point}, INTERVAL 25 HOUR, {moment}")
    wlc.flush(source)
    name = database_url.rpartition("/")[2].partition("?")[0]
    for setting in (
        "extra_float_digits = -3",
        "bytea_output = 'escape'",
        "intervalstyle = 'iso_8601'",
        "datestyle = 'SQL'",
    ):
        execute(database_url, f"ALTER DATABASE {name} SET {setting}")
    wlr.replicate(source, into=database_url)
    assert [table.outcome for table in wlr.verify(database_url).tables] == ["same"]


def _columns(declared: set[str]) -> str:
    return ", ".join(f"c{number}" for number, (found, _, _) in enumerate(TYPES) if found in declared)


def assert_same_but(url: str, lost: str) -> None:
    """All tables are as in the master but one that cannot be read."""
    assert {t.outcome for t in wlr.verify(url).tables if t.table != lost} == {"same"}


REFUSED = [
    ("VARCHAR", "'a' || chr(0)", "0x00"),
    ("DATE", "'5881580-07-10'", "out of range"),
    ("TIMESTAMP", "'290309-12-22 (BC) 00:00:00'", "out of range"),
    ("INTERVAL", "to_microseconds(-9223372036854775808)", "interval"),
    ("VARCHAR[]", "['a' || chr(0)]", "0x00"),
]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["INSERT INTO t SELECT 2, {}", "UPDATE k SET bad = {}"], ids=["added", "updated"])
@pytest.mark.parametrize("declared, value, cause", sampled(REFUSED, 3))
def test_what_postgres_cannot_hold_is_refused_by_column(
    tmp_path: Path, database_url: str, declared: str, value: str, cause: str, change: str
) -> None:
    source = tmp_path / "typed.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute(f"CREATE TABLE t (fine INTEGER, bad {declared})")
        connection.execute(f"CREATE TABLE k (fine INTEGER PRIMARY KEY, bad {declared})")
    wlc.master(source)
    wlr.replicate(source, into=database_url)
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1, NULL); INSERT INTO k VALUES (1, NULL)")
        connection.execute(change.format(value))
    wlc.flush(source)
    table = "t" if " t " in change else "k"
    with pytest.raises(ReplayError, match=rf"transaction 3, table main\.{table}: .*{cause}.*; column bad"):
        wlr.replicate(into=database_url)
    assert execute(database_url, "SELECT fine FROM t UNION ALL SELECT fine FROM k") == [(1,), (1,)]


def test_minus_zero_and_scale_are_part_of_a_value(tmp_path: Path, database_url: str) -> None:
    source = tmp_path / "typed.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE bag (x DOUBLE); INSERT INTO bag VALUES (0.0), ('-0.0'), ('-0.0')")
        connection.execute("CREATE TABLE k (x DOUBLE PRIMARY KEY, v INTEGER); INSERT INTO k VALUES (0.0, 1)")
    wlc.master(source)
    wlr.replicate(source, into=database_url)
    with wlc.connect(source) as connection:
        connection.execute("DELETE FROM bag WHERE signbit(x) AND rowid = 1")
        connection.execute("BEGIN; DELETE FROM k; INSERT INTO k VALUES ('-0.0', 2); COMMIT")
    wlc.flush(source)
    wlr.replicate(into=database_url)
    assert execute(database_url, "SELECT x::text FROM bag ORDER BY 1") == [("-0",), ("0",)]
    assert execute(database_url, "SELECT x::text, v FROM k") == [("-0", 2)]


@pytest.mark.slow
def test_names_that_could_collide_with_ours(tmp_path: Path, database_url: str) -> None:
    source, names = tmp_path / "typed.duckdb", ("_tick", "_weight", "ctid2", "n", 'o"0', "W")
    with duckdb.connect(str(source)) as connection:
        for number, column in enumerate(names):
            connection.execute(f"CREATE TABLE t{number} (o0 INTEGER PRIMARY KEY, {quote(column)} VARCHAR)")
            connection.execute(f"CREATE TABLE bag{number} (w INTEGER, {quote(column + '_')} VARCHAR)")
            connection.execute(f"INSERT INTO t{number} VALUES (1, 'a'), (2, 'b')")
            connection.execute(f"INSERT INTO bag{number} VALUES (1, 'a'), (1, 'a'), (2, NULL)")
    wlc.master(source)
    wlr.replicate(source, into=database_url)
    with wlc.connect(source) as connection:
        for number, column in enumerate(names):
            connection.execute(f"UPDATE t{number} SET {quote(column)} = 'c' WHERE o0 = 1")
            connection.execute(f"DELETE FROM t{number} WHERE o0 = 2; DELETE FROM bag{number} WHERE w = 2")
            connection.execute(f"DELETE FROM bag{number} WHERE rowid = 0")
    wlc.flush(source)
    wlr.replicate(into=database_url)
    for number in range(len(names)):
        assert execute(database_url, f"SELECT * FROM t{number}") == [(1, "c")]
        assert execute(database_url, f"SELECT * FROM bag{number}") == [(1, "a")]
