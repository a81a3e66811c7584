"""Every type that DuckDB has goes to Parquet and comes back exactly: same value, same text, same type."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.sampling import sampled
from tests.scratch import empty_database, give_back
from wlc.dialect.duckdb import catalog
from wlc.dialect.sql import quote
from wlc.dialect.types import TABLE, DigestText, load_sql, parse, storage_type, store_sql
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Column, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

# Type → values beyond those of DuckDB's test_all_types(), which has the extremes of most types.
VALUES = {
    "HUGEINT": ["-170141183460469231731687303715884105728", "170141183460469231731687303715884105727"],
    "UHUGEINT": ["340282366920938463463374607431768211455", "0"],
    "BIGNUM": ["9" * 3000, "-" + "8" * 500, "-0"],
    "DECIMAL(1,0)": ["-9"],
    "DECIMAL(4,1)": ["-999.9"],
    "DECIMAL(9,9)": ["0.999999999"],
    "DECIMAL(18,3)": ["-999999999999999.999"],
    "DECIMAL(38,0)": ["9" * 38],
    "DECIMAL(38,38)": ["-0." + "9" * 38],
    "FLOAT": ["nan", "inf", "-inf", "-0.0", "3.4028235e38", "1e-45", "0.1"],
    "DOUBLE": ["nan", "inf", "-inf", "-0.0", "1.7976931348623157e308", "5e-324", "0.1"],
    "VARCHAR": ["", 'it\'s "q"', "😀é", "x" * 100_000],
    "BLOB": ["", r"\x00\xFF\x27"],
    "BIT": ["0", "1", "00000000", "10" * 500],
    "UUID": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "DATE": ["infinity", "-infinity", "5881580-07-10", "5877642-06-25 (BC)"],
    "TIMESTAMP": ["infinity", "-infinity", "294247-01-10 04:00:54.775806", "290309-12-22 (BC) 00:00:00"],
    "TIMESTAMP_S": ["infinity", "-infinity", "294247-01-10 04:00:54", "1969-12-31 23:59:59"],
    "TIMESTAMP_MS": ["infinity", "-infinity", "294247-01-10 04:00:54.775", "1969-12-31 23:59:59.999"],
    "TIMESTAMP_NS": ["infinity", "-infinity", "2262-04-11 23:47:16.854775806", "1677-09-22 00:00:00.000000001"],
    "TIMESTAMP WITH TIME ZONE": ["infinity", "-infinity", "294247-01-10 04:00:54.775806+00", "2024-10-27 02:30:00+02"],
    "TIMESTAMPTZ_NS": ["infinity", "2262-04-11 23:47:16.854775806+00", "2024-01-01 00:00:00.123456789+00"],
    "TIME": ["00:00:00", "23:59:59.999999", "24:00:00"],
    "TIME_NS": ["00:00:00", "23:59:59.999999999", "24:00:00"],
    "TIME WITH TIME ZONE": ["00:00:00+15:59:59", "23:59:59.999999-15:59:59", "24:00:00+00", "12:00:00+05:30"],
    "INTERVAL": [
        *(
            "1 year 2 months 3 days 04:05:06.789001",
            "-1 month",
            "30 days",
            "1 month",
            "-2147483648 days",
            "13 months -1 day",
        ),
        *("9223372036854775807 microseconds", "-9223372036854775807 microseconds", "1 month -1 microsecond"),
    ],
    "ENUM('a', 'b,c', 'it''s', '(')": ["a", "b,c", "it's", "("],
    "JSON": ['{"a" : [1, 2.50]}', "null"],
    "GEOMETRY": ["POINT EMPTY", "POINT ZM (1 2 3 4)", "GEOMETRYCOLLECTION (POINT (1 2), LINESTRING (0 0, 1 1))"],
    "GEOMETRY('OGC:CRS84')": ["POINT (1 2)"],
}
# Type → SQL expressions, for values without a text form that brings them back.
EXPRESSIONS = {
    "VARCHAR": ["'a' || chr(0) || 'b'"],
    '"NULL"': ["NULL"],
    "INTERVAL": ["to_microseconds(-9223372036854775807) - to_microseconds(1)", "to_months(-2147483647) - to_months(1)"],
    "STRUCT": ["struct_pack()"],
    "STRUCT[]": ["[struct_pack(), NULL]", "[]"],
    "ENUM('a', '''')[]": ["['a', '''', NULL]"],
    "JSON[]": ["""['{"a" : 1}'::JSON, 'null'::JSON, NULL]"""],
    "INTEGER[3][3]": ["[[1, 2, 3], NULL, [NULL, 2, 3]]"],
    "TIMESTAMP_S[][2]": ["[['2020-01-01', 'infinity'], NULL]"],
    "GEOMETRY('OGC:CRS84')[]": ["['POINT EMPTY'::GEOMETRY('OGC:CRS84'), NULL]"],
    "MAP(ENUM('a', 'b'), BIT[])": ["MAP {'a': ['101'::BIT, NULL]}", "MAP {}"],
    'STRUCT("a" INTEGER, "A b""c\'" HUGEINT)': ["{'a': 1, 'A b\"c''': 5}", "{'a': NULL, 'A b\"c''': NULL}"],
    "TUPLE(UNION(a INTEGER, b VARCHAR), HUGEINT)": [
        "(union_value(a := 1)::UNION(a INTEGER, b VARCHAR), 5)",
        "(NULL, NULL)",
    ],
    "UNION(a INTEGER, b VARCHAR)[2]": ["[union_value(a := 1)::UNION(a INTEGER, b VARCHAR), NULL]"],
    "UNION(a HUGEINT, TAG INTERVAL, _tag BIT)": [
        "union_value(a := 170141183460469231731687303715884105727)",
        "union_value(TAG := '-1 month 3 us'::INTERVAL)",
        "union_value(TAG := NULL::INTERVAL)",
        "union_value(_tag := '1'::BIT)",
    ],
    "MAP(UNION(a HUGEINT, b VARCHAR), INTEGER)": [
        "MAP {union_value(b := 'q')::UNION(a HUGEINT, b VARCHAR): NULL}",
        "MAP {}",
    ],
    "MAP(VARCHAR, UNION(a HUGEINT, b INTERVAL))": [
        "MAP {'x': union_value(a := 1::HUGEINT)::UNION(a HUGEINT, b INTERVAL), 'y': NULL}",
    ],
    "UNION(u UNION(x BIT, y INTEGER), v VARIANT, e STRUCT)": [
        "union_value(u := union_value(x := '101'::BIT)::UNION(x BIT, y INTEGER))",
        "union_value(u := NULL::UNION(x BIT, y INTEGER))",
        "union_value(v := 'x'::VARIANT)",
        "union_value(e := struct_pack())",
    ],
    'STRUCT(a VARIANT[], b UNION(x INTEGER, y STRUCT("p q" TIME WITH TIME ZONE[])))[]': [
        """[{'a': [1::VARIANT, 'x'::VARIANT, NULL, {'a': [1, 2]}::VARIANT],
            'b': union_value(y := {'p q': ['10:00:00+05'::TIMETZ, NULL]})}, {'a': NULL, 'b': NULL}, NULL]""",
        "[]",
    ],
    # Values stay, and their widths do not.
    "VARIANT": [
        "1::VARIANT",
        "7::UTINYINT::VARIANT",
        "{'a': 7::UBIGINT}::VARIANT",
        "'null'::JSON::VARIANT",
        "{'a': [1, 2], 'b': DATE '2020-01-01'}::VARIANT",
    ],
}
NESTINGS = ["{0}[]", "{0}[2]", "STRUCT(x {0}, y INTEGER)", "MAP(INTEGER, {0})", "UNION(x {0}, y INTEGER)"]
WRAPS = ["[{0}, NULL]", "[{0}, NULL]", "{{'x': {0}, 'y': 1}}", "MAP {{1: {0}, 2: NULL}}", "union_value(x := {0})"]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    opened, name = empty_database()
    # A zone with daylight saving would show values that pass through local time.
    opened.execute("SET TimeZone = 'Europe/Amsterdam'")
    yield opened
    give_back(opened, name)


def columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[Column, ...]:
    ((database,),) = connection.execute("SELECT current_database()").fetchall()
    return catalog.tables(connection, database)[Name("main", table)].columns


def differences(connection: duckdb.DuckDBPyConnection, folder: Path) -> list[tuple[object, ...]]:
    """Take column `v` of table `t` through files of both versions and return what came back otherwise."""
    versions = ("V1", "V2")
    return [
        row
        for v in versions
        for row in changed(connection, folder, f"FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION {v}")
    ]


def changed(connection: duckdb.DuckDBPyConnection, folder: Path, parquet: str) -> list[tuple[object, ...]]:
    (column,) = columns_of(connection, "t")
    file = folder / "t.parquet"
    connection.execute(f"COPY (SELECT rowid AS r, {store_sql(column)} AS v FROM t) TO '{file}' ({parquet})")
    stored = connection.execute(f"SELECT typeof(v), typeof(NULL::{storage_type(column.type)}) FROM '{file}'").fetchone()
    assert stored is not None
    assert stored[0] == stored[1], "storage_type() is what lies in the file"
    return connection.execute(
        f"""
        SELECT t.v::VARCHAR, n.v::VARCHAR, typeof(n.v)
        FROM t FULL JOIN (SELECT r, {load_sql(column)} AS v FROM '{file}') n ON t.rowid = n.r
        WHERE t.v IS DISTINCT FROM n.v OR t.v::VARCHAR IS DISTINCT FROM n.v::VARCHAR OR typeof(t.v) <> typeof(n.v)
        """
    ).fetchall()


def fill(connection: duckdb.DuckDBPyConnection, declared: str, expressions: list[str]) -> None:
    connection.execute(f"CREATE OR REPLACE TABLE t (v {declared})")
    for expression in [*expressions, "NULL"]:
        connection.execute(f"INSERT INTO t SELECT ({expression})::{declared}")


@pytest.mark.parametrize("declared", VALUES)
def test_values_of_a_type_survive(connection: duckdb.DuckDBPyConnection, tmp_path: Path, declared: str) -> None:
    fill(connection, declared, ["'" + value.replace("'", "''") + "'" for value in VALUES[declared]])
    assert differences(connection, tmp_path) == []


@pytest.mark.parametrize("declared", EXPRESSIONS)
def test_nested_and_odd_values_survive(connection: duckdb.DuckDBPyConnection, tmp_path: Path, declared: str) -> None:
    fill(connection, declared, EXPRESSIONS[declared])
    assert differences(connection, tmp_path) == []


def test_a_column_may_be_called_as_a_parameter_of_a_lambda(connection: duckdb.DuckDBPyConnection) -> None:
    column = Column("m", "MAP(UNION(a HUGEINT, b VARCHAR), UNION(a HUGEINT, b VARCHAR)[])")
    union = "union_value(b := 'q')::UNION(a HUGEINT, b VARCHAR)"
    connection.execute(f"CREATE TABLE other AS SELECT 1 AS _0, 2 AS _1, MAP {{{union}: [{union}]}} AS m")
    stored = f"(SELECT _0, _1, {store_sql(column)} AS m FROM other)"
    query = f"SELECT other.m = {load_sql(column, 's.m')} FROM {stored} AS s, other"
    assert connection.execute(query).fetchall() == [(True,)]


@pytest.mark.slow
@pytest.mark.parametrize("nesting", sampled(range(len(NESTINGS)), 3))
def test_every_type_survives_inside_another(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, nesting: int
) -> None:
    for declared, values in VALUES.items():
        inner = [f"('{value.replace(chr(39), chr(39) * 2)}')::{declared}" for value in values]
        fill(connection, NESTINGS[nesting].format(declared), [WRAPS[nesting].format(value) for value in inner])
        assert differences(connection, tmp_path) == [], declared


@pytest.mark.slow
def test_all_types_that_duckdb_lists_survive(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    connection.execute("CREATE TABLE every AS SELECT * FROM test_all_types()")
    columns = columns_of(connection, "every")
    for column in columns:
        connection.execute(f"CREATE OR REPLACE TABLE t AS SELECT {quote(column.name)} AS v FROM every")
        assert differences(connection, tmp_path) == [], column
    covered = {column.type.partition("(")[0] for column in columns} | {key.partition("(")[0] for key in VALUES}
    listed = "SELECT DISTINCT logical_type FROM duckdb_types() WHERE internal AND logical_type NOT IN ('LIST', 'ARRAY')"
    known = {name for (name,) in connection.execute(listed).fetchall()}
    # TYPE is the type of a type; tables cannot have it. NULL and VARIANT are among the expressions above.
    assert known - covered == {"NULL", "VARIANT", "TYPE"}


def test_every_name_of_a_type_is_known_as_duckdb_shows_it(connection: duckdb.DuckDBPyConnection) -> None:
    names = connection.execute("SELECT DISTINCT type_name FROM duckdb_types() WHERE internal ORDER BY 1").fetchall()
    unknown = set()
    for (name,) in names:
        # Nested ones have members, which are tried above.
        with suppress(duckdb.Error):
            connection.execute(f"CREATE OR REPLACE TABLE t (v {name})")
            (column,) = columns_of(connection, "t")
            try:
                parse(column.type)
            except UnsupportedError:
                unknown.add(name)
    assert unknown == {"PARQUET_VARIANT"}


def test_every_row_of_the_table_is_documented_and_tested(connection: duckdb.DuckDBPyConnection) -> None:
    documented = (Path(__file__).parents[3] / "docs" / "types.md").read_text(encoding="utf-8")
    shown = {
        "LIST": "`T[]`",
        "ARRAY": "`T[n]`",
        "STRUCT": "`STRUCT(…)`",
        "EMPTY STRUCT": "`STRUCT` without fields",
        "MAP": "`MAP(K, V)`",
        "TUPLE": "tuple",
        "UNION": "`UNION(a …, b …)`",
        '"NULL"': "NULL",
    }
    described = connection.execute("DESCRIBE SELECT * FROM test_all_types()").fetchall()
    kinds: set[str] = set()
    for declared in [*VALUES, *EXPRESSIONS, *(row[1] for row in described)]:
        parse(declared).holds(lambda row: kinds.add(row.name) is not None)
    for row in TABLE:
        assert shown.get(row.name, f"`{row.name}`") in documented, row.name
        assert row.name in kinds
        # A type is stored as itself, as another type or as its members say, and the readers of files know its text.
        stored = parse(storage_type(row.stored_as or row.name)) if not row.is_nested else None
        assert stored is None or (stored.row.spark is None) != (stored.row.spark_as is None) or stored.row.is_nested
        assert row.is_nested == (row.digest is DigestText.MEMBERS)
        assert row.postgres is not None or row.is_nested or row.is_rebuilt


@pytest.mark.slow
def test_an_empty_and_a_null_only_column_keep_their_storage_type(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    for declared in [*VALUES, *EXPRESSIONS]:
        fill(connection, declared, [])
        assert differences(connection, tmp_path) == [], declared


@pytest.mark.parametrize(
    "value",
    [
        "{'o': {'z': 1, 'x': 2}}",
        """'{"o": {"z": 1, "x": 2}, "a": null}'::JSON""",
        "{'z': 1, 'x': {'b': 1, 'a': [{'q': 1, 'c': 2}]}}",
        "[{'z': 1, 'b': 2}, {'o': {'b': 3, 'a': 4}}]",
    ],
)
@pytest.mark.parametrize("wrap", ["VARIANT", "VARIANT[]"])
def test_variant_is_stored_in_one_form(connection: duckdb.DuckDBPyConnection, wrap: str, value: str) -> None:
    """A replica stores the value that it read back; master and replica compare the bytes."""
    column = Column("v", wrap)
    made = f"({value})::VARIANT" if wrap == "VARIANT" else f"[({value})::VARIANT]"
    fill(connection, wrap, [made])
    connection.execute(f"CREATE TABLE stored AS SELECT {store_sql(column)} AS v FROM t")
    connection.execute(f"CREATE TABLE again AS SELECT {load_sql(column)} AS v FROM stored")
    stored = connection.execute("FROM stored").fetchall()
    assert connection.execute(f"SELECT {store_sql(column)} FROM again").fetchall() == stored


@pytest.mark.parametrize("value", ["INTERVAL 1 MONTH", "'101'::BIT", "(2::HUGEINT << 100)", "TIME_NS '00:00:01'"])
def test_variant_refuses_what_parquet_cannot_hold(connection: duckdb.DuckDBPyConnection, value: str) -> None:
    fill(connection, "VARIANT", [f"({value})::VARIANT"])
    with pytest.raises(duckdb.InvalidInputException):
        connection.execute(f"SELECT {store_sql(Column('v', 'VARIANT'))} FROM t").fetchall()


@pytest.mark.parametrize(
    "declared",
    [
        *"BOOLEAN BIGINT UBIGINT DECIMAL(18,3) DOUBLE VARCHAR BLOB UUID DATE TIMESTAMP JSON TIMESTAMPTZ_NS TIME_NS".split(),
        *("TIMESTAMP WITH TIME ZONE", 'STRUCT("a b" INTEGER[], c MAP(VARCHAR, DATE))'),
    ],
)
def test_ordinary_types_cost_nothing(declared: str) -> None:
    column = Column('a "b"', declared)
    assert store_sql(column) == load_sql(column) == '"a ""b"""'


def test_expressions_take_another_value_than_the_column() -> None:
    column = Column("v", "HUGEINT")
    assert store_sql(column, "old.v") == "CAST(old.v AS VARCHAR)"
    assert load_sql(column, "n.v") == "CAST(n.v AS HUGEINT)"


@pytest.mark.parametrize(
    "declared",
    [
        *"mood INET TYPE DECIMAL(1 DECIMAL(x) UNION STRUCT(a) INTEGER[x] INTEGER) INTEGER[3 ENUM() INTEGER(5) 'x' '".split(),
        *("", "VARCHAR) FROM secrets --", "ENUM('a', b)", "MAP(INTEGER, INTEGER, INTEGER)"),
        *("MAP(INTEGER)", "TUPLE", "INTEGER[-1]", "STRUCT('a' INTEGER)"),
    ],
)
def test_an_unknown_type_is_refused_by_column(declared: str) -> None:
    with pytest.raises(UnsupportedError, match='"wei""rd"'):
        store_sql(Column('wei"rd', declared))
    with pytest.raises(UnsupportedError, match='"wei""rd"'):
        load_sql(Column('wei"rd', declared))
    with pytest.raises(UnsupportedError):
        storage_type(declared)
