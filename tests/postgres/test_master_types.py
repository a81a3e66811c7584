"""Every type of PostgreSQL, by the snapshot and by the log, as a DuckDB replica holds it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest

import wlc
import wlr
from tests.lake import to_duckdb
from tests.postgres.cluster import execute
from tests.postgres.comparing import held_in_duckdb
from tests.scratch import attached
from wlc.dialect.sql import literal, quote
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, ReplayError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.database import FarmDatabase

OBJECTS = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s, "fine"');
    CREATE TYPE pair AS (x int, "y z" text);
    CREATE TYPE spread AS RANGE (subtype = float8);
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN flag AS boolean;
    CREATE DOMAIN price AS numeric(8,2);
    CREATE DOMAIN code AS char(4);
"""

# For each column: its type, the type that the replica has, and values as a user would type them.
TYPES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "bool": ("boolean", "BOOLEAN", ("true", "false")),
    "int2": ("smallint", "SMALLINT", ("-32768", "32767")),
    "int4": ("integer", "INTEGER", ("-2147483648", "2147483647")),
    "int8": ("bigint", "BIGINT", ("-9223372036854775808", "9223372036854775807")),
    "oid": ("oid", "UINTEGER", ("0", "4294967295")),
    "float4": ("real", "FLOAT", ("-3.4028235e38", "1e-45", "NaN", "Infinity", "-Infinity", "-0")),
    "float8": (
        "double precision",
        "DOUBLE",
        ("1.7976931348623157e308", "5e-324", "0.1", "NaN", "Infinity", "-Infinity", "-0"),
    ),
    "decimal": ("numeric(10,2)", "DECIMAL(10,2)", ("-99999999.99", "99999999.99", "0.00")),
    "decimal38": ("numeric(38,10)", "DECIMAL(38,10)", ("9999999999999999999999999999.9999999999", "-0.0000000001")),
    "numeric": ("numeric", "VARCHAR", ("NaN", "Infinity", "-Infinity", "1e-20", "1" + "0" * 200, "1.10", "1.1")),
    "numeric50": ("numeric(50,3)", "VARCHAR", ("NaN", "9" * 47 + ".999")),
    "hundreds": ("numeric(5,-2)", "VARCHAR", ("1234567", "-100")),
    "small": ("numeric(3,5)", "VARCHAR", ("0.00999",)),
    "money": ("money", "VARCHAR", ("-92233720368547758.08", "12.34")),
    "text": ("text", "VARCHAR", ("", "a\nb\t\\ \"q\" 'r' {,}", "NULL", "\U0001f600 äß", "x" * 5000)),
    "varchar": ("varchar(10)", "VARCHAR", ("", "  a  ", "0123456789")),
    "char": ("char(5)", "VARCHAR", ("ab", "abcde", "")),
    "one": ('"char"', "VARCHAR", ("a", "")),
    "name": ("name", "VARCHAR", ("n" * 63,)),
    "bytea": ("bytea", "BLOB", ("\\x", "\\x00ff5c27", "\\x" + "ab" * 3000)),
    "date": (
        "date",
        "DATE",
        ("infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "2000-02-29"),
    ),
    "time": ("time", "TIME", ("00:00:00", "24:00:00", "23:59:59.999999")),
    "time2": ("time(2)", "TIME", ("12:34:56.78",)),
    "timetz": (
        "timetz",
        "TIME WITH TIME ZONE",
        ("00:00:00+00", "23:59:59.999999-15:59", "12:00:00+05:30", "01:02:03+15:59"),
    ),
    "timestamp": (
        "timestamp",
        "TIMESTAMP",
        ("infinity", "-infinity", "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC", "9999-12-31 23:59:59.999999"),
    ),
    "timestamptz": (
        "timestamptz",
        "TIMESTAMP WITH TIME ZONE",
        ("infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "2024-06-01 12:00:00.000001+05:45"),
    ),
    "interval": (
        "interval",
        "INTERVAL",
        (
            "1 year -2 mons +3 days -04:05:06.789",
            "-178000000 years",
            "178000000 years",
            "-1 day +24:00:00",
            "0",
            "1 mon",
        ),
    ),
    "interval2": ("interval day to second(2)", "INTERVAL", ("5 days 01:02:03.45",)),
    "uuid": ("uuid", "UUID", ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff")),
    "json": ("json", "JSON", ('{"b": 1,  "a": [null, 1e400]}', "null", '"x"', "[]")),
    "jsonb": ("jsonb", "JSON", ('{"b": 1, "a": [null, 1.50]}', "null", '"it\'s"')),
    "inet": ("inet", "VARCHAR", ("192.168.1.5", "192.168.1.5/24", "::1", "2001:db8::/32")),
    "cidr": ("cidr", "VARCHAR", ("10.0.0.0/8", "::/0", "1.2.3.4/32")),
    "macaddr": ("macaddr", "VARCHAR", ("08:00:2b:01:02:03",)),
    "macaddr8": ("macaddr8", "VARCHAR", ("08:00:2b:01:02:03:04:05",)),
    "bit": ("bit(5)", "VARCHAR", ("10101",)),
    "varbit": ("bit varying", "VARCHAR", ("", "1", "1" * 100)),
    "xml": ("xml", "VARCHAR", ("<a b='c'>d</a>", "text")),
    "tsvector": ("tsvector", "VARCHAR", ("'a':1A 'fat':2,4", "")),
    "tsquery": ("tsquery", "VARCHAR", ("'fat' & !'rat'",)),
    "point": ("point", "VARCHAR", ("(1,-2.5)", "(NaN,Infinity)")),
    "box": ("box", "VARCHAR", ("(3,4),(1,2)",)),
    "boxes": ("box[]", "VARCHAR", ("{(3,4),(1,2);(1,1),(0,0)}",)),
    "path": ("path", "VARCHAR", ("((0,0),(1,1))", "[(0,0),(1,1)]")),
    "polygon": ("polygon", "VARCHAR", ("((0,0),(1,1),(1,0))",)),
    "circle": ("circle", "VARCHAR", ("<(0,0),1.5>",)),
    "line": ("line", "VARCHAR", ("{1,-1,0}",)),
    "lseg": ("lseg", "VARCHAR", ("[(0,0),(1,1)]",)),
    "pg_lsn": ("pg_lsn", "VARCHAR", ("16/B374D848",)),
    "enum": ("mood", "VARCHAR", ("sad", 'it\'s, "fine"')),
    "composite": ("pair", "VARCHAR", ('(1,"a ""b"", c")', "(,)", "(3,)")),
    "domain": ("positive", "INTEGER", ("1", "2147483647")),
    "flags": ("flag", "BOOLEAN", ("t", "f")),
    "price": ("price", "DECIMAL(8,2)", ("-999999.99",)),
    "code": ("code", "VARCHAR", ("ab", "abcd")),
    "int4range": ("int4range", "VARCHAR", ("[1,5)", "empty", "(,)")),
    "tstzrange": ("tstzrange", "VARCHAR", ("[2024-01-01 00:00+02,infinity)",)),
    "multirange": ("int8multirange", "VARCHAR", ("{[1,3),[5,9)}", "{}")),
    "spread": ("spread", "VARCHAR", ("[0.1,0.25)",)),
    "bools": ("boolean[]", "BOOLEAN[]", ("{t,f,NULL}", "{}")),
    "ints": ("integer[]", "INTEGER[]", ("{1,NULL,-3}", "{}", "{7}")),
    "floats": ("float8[]", "DOUBLE[]", ("{NaN,Infinity,-0,0.1}",)),
    "decimals": ("numeric(6,2)[]", "DECIMAL(6,2)[]", ("{1.5,-1234.56,NULL}",)),
    "texts": (
        "text[]",
        "VARCHAR[]",
        ('{"",NULL,"NULL","a,b","q\\"q","b\\\\s","{x}"," s "}', "{}", '{"two\nlines"}'),
    ),
    "chars": ("char(4)[]", "VARCHAR[]", ("{ab,abcd}",)),
    "dates": ("date[]", "DATE[]", ('{2024-01-01,infinity,"0044-03-15 BC"}',)),
    "timestamps": ("timestamptz[]", "TIMESTAMP WITH TIME ZONE[]", ('{"2024-01-01 00:00:00+02",NULL}',)),
    "uuids": ("uuid[]", "UUID[]", ("{ffffffff-ffff-ffff-ffff-ffffffffffff}",)),
    "moods": ("mood[]", "VARCHAR[]", ('{sad,"it\'s, \\"fine\\""}',)),
    "pairs": ("pair[]", "VARCHAR[]", ('{"(1,a)","(2,\\"b c\\")"}',)),
    "jsons": ("jsonb[]", "VARCHAR", ('{"{\\"a\\": 1}",NULL}',)),
    "intervals": ("interval[]", "VARCHAR", ('{"1 day","-00:00:01"}',)),
    "byteas": ("bytea[]", "VARCHAR", ('{"\\\\x00ff"}',)),
    "inets": ("inet[]", "VARCHAR[]", ("{10.0.0.1,10.0.0.0/8}",)),
    "ranges": ("int4range[]", "VARCHAR[]", ('{"[1,3)",empty}',)),
    "positives": ("positive[]", "VARCHAR[]", ("{1,2}",)),
}

# Values that the type of the column cannot hold, though it has the same name in DuckDB.
MISFITS = {
    "NaN": ("numeric(10,2)", "DECIMAL(10,2)", "NaN"),
    "late date": ("timestamp", "TIMESTAMP", "294276-12-31 23:59:59"),
    "late instant": ("timestamptz", "TIMESTAMP WITH TIME ZONE", "294276-12-31 23:59:59+00"),
    "array of arrays": ("int[]", "INTEGER[]", "{{1,2},{3,4}}"),
    "array with bounds": ("int[]", "INTEGER[]", "[2:3]={1,2}"),
    "half a character": ("json", "JSON", '"\\ud800"'),
    "NaN in an array": ("numeric(6,2)[]", "DECIMAL(6,2)[]", "{1.00,NaN}"),
    "array of empty array texts": ("text[]", "VARCHAR[]", "{{a},{b}}"),
}


def replicated(farm: str, into: Path) -> Path:
    wlr.replicate("types", farm=farm, into=into, register=False)
    return into


def rows_of(path: Path, table: str) -> list[tuple[str | None, ...]]:
    """Every row, as text, in order of its number."""
    with attached(path) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(
            f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM public.{quote(table)} ORDER BY id"
        ).fetchall()


def expected(url: str, table: str, column: str) -> list[tuple[int, str | None]]:
    """What the master's output functions write."""
    settings = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"
    with psycopg.connect(url, options=settings) as connection:
        query = (
            f"COPY (SELECT id, {quote(column)} FROM {quote(table)} ORDER BY id) TO STDOUT (FORMAT csv, NULL '<null>')"
        )
        with connection.cursor().copy(query) as copy:
            text = b"".join(bytes(block) for block in copy)
    import csv
    import io

    rows = csv.reader(io.StringIO(text.decode(), newline=""))
    return [(int(number), None if value == "<null>" else value) for number, value in rows]


def make(url: str) -> None:
    """A table of each type with its values, NULL, and values that others then change to."""
    execute(url, OBJECTS)
    for column, (declared, _, values) in TYPES.items():
        quoted = ", ".join(f"({number}, {literal(value)})" for number, value in enumerate(values))
        execute(
            url,
            f"CREATE TABLE {quote(f't_{column}')} (id int PRIMARY KEY, v {declared})",
            f"INSERT INTO {quote(f't_{column}')} VALUES {quoted}, (1000, NULL)",
        )


def change(url: str) -> None:
    """Insert, update and delete a row with every value: those of the snapshot are removed as the log writes them."""
    for column, (_, _, values) in TYPES.items():
        table = quote(f"t_{column}")
        quoted = ", ".join(f"({number + 100}, {literal(value)})" for number, value in enumerate(values))
        execute(
            url,
            f"INSERT INTO {table} VALUES {quoted}, (1001, NULL)",
            f"UPDATE {table} SET id = id + 200 WHERE id < 100",
            f"UPDATE {table} SET v = NULL WHERE id = 100",
            f"UPDATE {table} SET v = {literal(values[-1])} WHERE id IN (1000, 1001)",
            f"INSERT INTO {table} SELECT id + 500, v FROM {table} WHERE id BETWEEN 200 AND 299",
            f"DELETE FROM {table} WHERE id BETWEEN 200 AND 299",
        )


def check(url: str, path: Path) -> None:
    with attached(path) as connection:
        found = dict(
            connection.execute(
                "SELECT table_name, data_type FROM duckdb_columns() WHERE column_name = 'v' AND table_name LIKE 't\\_%' ESCAPE '\\'"
            ).fetchall()
        )
        assert found == {f"t_{column}": declared for column, (_, declared, _) in TYPES.items()}
        connection.execute("SET TimeZone = 'UTC'")
        for column, (_, declared, _) in TYPES.items():
            rows = (
                connection.execute(f"SELECT id, v FROM public.{quote(f't_{column}')} ORDER BY id").fetchall()
                if declared == "VARCHAR"
                else []
            )
            master = expected(url, f"t_{column}", "v")
            if declared == "VARCHAR":
                assert rows == master, column
            else:
                # PostgreSQL's text means the same to both: what is held is compared with what that text says.
                held = connection.execute(
                    f"SELECT id, CAST(v AS VARCHAR) FROM public.{quote(f't_{column}')} ORDER BY id"
                ).fetchall()
                assert [(number, _read(connection, declared, text)) for number, text in master] == held, column


def _read(connection: duckdb.DuckDBPyConnection, declared: str, text: str | None) -> str | None:
    """How DuckDB writes a value that PostgreSQL writes as `text`, by a way of its own."""
    if text is None:
        return None
    if declared == "BLOB":
        value: object = bytes.fromhex(text[2:])
        return str(connection.execute("SELECT CAST(CAST(? AS BLOB) AS VARCHAR)", [value]).fetchall()[0][0])
    if declared == "JSON":
        return text
    if declared.endswith("[]"):
        return _read_list(connection, declared, text)
    if declared in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE") and text.endswith(" BC"):
        day, *rest = text.removesuffix(" BC").split(" ", 1)
        text = " ".join([f"{day} (BC)", *rest])
    if declared == "INTERVAL":
        text = text.replace("+", "")
    return str(connection.execute(f"SELECT CAST(CAST(? AS {declared}) AS VARCHAR)", [text]).fetchall()[0][0])


def _read_list(connection: duckdb.DuckDBPyConnection, declared: str, text: str) -> str:
    element = declared.removesuffix("[]")
    items: list[str | None] = []
    at = 1
    while at < len(text) - 1:
        if text[at] == '"':
            item = ""
            at += 1
            while text[at] != '"':
                at += text[at] == "\\"
                item += text[at]
                at += 1
            items.append(item)
            at += 2
        else:
            end = text.find(",", at)
            end = len(text) - 1 if end < 0 else end
            word = text[at:end]
            items.append(None if word == "NULL" else word)
            at = end + 1
    moved = [f"{item[:-3]} (BC)" if item and item.endswith(" BC") else item for item in items]
    return str(
        connection.execute(f"SELECT CAST(CAST(CAST(? AS VARCHAR[]) AS {element}[]) AS VARCHAR)", [moved]).fetchall()[0][
            0
        ]
    )


@pytest.mark.slow
def test_every_type_arrives_by_snapshot_and_log(database_url: str, farm: str, tmp_path: Path):
    make(database_url)
    wlc.master(database_url, farm=farm, name="types")
    old = replicated(farm, tmp_path / "old.duckdb")
    check(database_url, old)
    change(database_url)
    wlc.flush(database_url)
    check(database_url, replicated(farm, old))
    check(database_url, replicated(farm, tmp_path / "new.duckdb"))
    wlc.snapshot(database_url)
    check(database_url, replicated(farm, tmp_path / "fresh.duckdb"))


def data_types(database: FarmDatabase, number: int) -> dict[str, str]:
    """Type that the column `v` has in the data files of a batch, by table."""
    batch, _ = database.read_batch(number)
    return {
        file.table.name: next(column.type for column in file.layout.columns if column.name == "v")
        for file in batch.files
    }


@pytest.mark.slow
def test_values_that_do_not_fit_stay_text_and_never_become_something_else(database_url: str, farm: str, tmp_path: Path):
    odd = {f"odd{number}": case for number, case in enumerate(MISFITS.values())}
    execute(database_url, *(f"CREATE TABLE {name} (id int PRIMARY KEY, v {case[0]})" for name, case in odd.items()))
    wlc.master(database_url, farm=farm, name="types")
    into = replicated(farm, tmp_path / "replica.duckdb")
    for name, (_, _, value) in odd.items():
        execute(
            database_url, f"INSERT INTO {name} VALUES (1, NULL)", f"INSERT INTO {name} VALUES (2, {literal(value)})"
        )
    wlc.flush(database_url)
    database = open_database("types", farm)
    assert data_types(database, 1) == dict.fromkeys(odd, "VARCHAR")
    batch, _ = database.read_batch(1)
    # The transaction with the value has a file of its own, the last one of its table.
    for name, found in {file.table.name: file for file in batch.files}.items():
        file = database.fetch(found.file)
        with duckdb.connect() as connection:
            rows = connection.execute(f"SELECT id, v FROM read_parquet({literal(str(file))}) ORDER BY id").fetchall()
        database.release(file)
        assert rows == [(2, expected(database_url, name, "v")[-1][1])]
    # The master does not know the digests any more, and says so: nothing was lost.
    assert batch.undigested == {Name("public", name) for name in odd}
    assert wlr.verify_farm("types", farm=farm).problems == ()
    # A replica whose column has the type holds what is before, and says which table stands in the way.
    for name in odd:
        with pytest.raises(FarmError, match=name):
            replicated(farm, into)
        assert rows_of(into, name) == [("1", None)]
        wlr.accept(into)
    wlc.snapshot(database_url)
    for name in odd:
        with pytest.raises(FarmError, match=name):
            wlr.replicate("types", farm=farm, into=tmp_path / "fresh.duckdb", tables=[f"public.{name}"], register=False)
    # Once the value is gone, all is as ever.
    for name in odd:
        execute(database_url, f"DELETE FROM {name} WHERE id = 2", f"INSERT INTO {name} VALUES (3, NULL)")
    wlc.flush(database_url)
    assert data_types(database, 2) == dict.fromkeys(odd, "VARCHAR")
    wlc.snapshot(database_url)
    later = replicated(farm, tmp_path / "later.duckdb")
    for name, (_, held, _) in odd.items():
        assert rows_of(later, name) == [("1", None), ("3", None)]
        query = f"SELECT data_type FROM duckdb_columns() WHERE table_name = '{name}' AND column_name = 'v'"
        with attached(later) as connection:
            assert connection.execute(query).fetchall() == [(held,)]


def test_defaults_of_new_columns_do_not_depend_on_the_settings_of_who_adds_them(
    database_url: str, farm: str, tmp_path: Path
):
    execute(database_url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    wlc.master(database_url, farm=farm, name="types")
    into = replicated(farm, tmp_path / "replica.duckdb")
    execute(
        database_url,
        "SET datestyle = 'German'",
        "SET timezone = 'Asia/Tokyo'",
        "SET extra_float_digits = -5",
        "SET intervalstyle = 'iso_8601'",
        "SET bytea_output = 'escape'",
        """ALTER TABLE t ADD COLUMN d date DEFAULT '01.02.2024', ADD f float8 DEFAULT 0.1234567890123456,
            ADD z timestamptz DEFAULT '2024-01-01 00:00+00', ADD i interval DEFAULT '1 day 2 hours',
            ADD b bytea DEFAULT 'abc\\\\def', ADD x box DEFAULT '(1,1),(0,0)', ADD a int[] DEFAULT '{1,NULL,2}',
            ADD s text[] DEFAULT '{"a,b",NULL}'""",
    )
    wlc.flush(database_url)
    assert rows_of(replicated(farm, into), "t") == [
        (
            "1",
            "2024-02-01",
            "0.1234567890123456",
            "2024-01-01 00:00:00+00",
            "1 day 02:00:00",
            "abc\\x5Cdef",
            "(1,1),(0,0)",
            "[1, NULL, 2]",
            "['a,b', NULL]",
        )
    ]


def test_a_default_that_does_not_fit_is_refused_by_the_replica(database_url: str, farm: str, tmp_path: Path):
    execute(database_url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    wlc.master(database_url, farm=farm, name="types")
    into = replicated(farm, tmp_path / "replica.duckdb")
    execute(database_url, "ALTER TABLE t ADD COLUMN n numeric(10,2) DEFAULT 'NaN'")
    wlc.flush(database_url)
    with pytest.raises(FarmError, match="public.t"):
        replicated(farm, into)
    assert rows_of(into, "t") == [("1",)]


def test_large_values_that_an_update_leaves_alone_are_kept(database_url: str, farm: str, tmp_path: Path):
    execute(
        database_url,
        "CREATE TABLE t (id int PRIMARY KEY, a text, n int, b bytea, twice int GENERATED ALWAYS AS (n * 2) STORED)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat(md5(i::text), 400), i, decode(repeat(md5(i::text), 400), 'hex')"
        " FROM generate_series(1, 5) i",
    )
    wlc.master(database_url, farm=farm, name="types")
    into = replicated(farm, tmp_path / "replica.duckdb")
    execute(
        database_url,
        "UPDATE t SET n = n + 1",
        "UPDATE t SET a = 'short' WHERE id = 1",
        "UPDATE t SET id = 6, b = NULL WHERE id = 2",
        "UPDATE t SET n = 0 WHERE id IN (1, 6)",
    )
    wlc.flush(database_url)
    with attached(replicated(farm, into)) as connection:
        held = connection.execute("SELECT id, a, n, b FROM public.t ORDER BY id").fetchall()
        columns = [row[0] for row in connection.execute("DESCRIBE public.t").fetchall()]
    assert columns == ["id", "a", "n", "b"]
    assert held == [
        (number, a, n, bytes(b) if b is not None else None)
        for number, a, n, b in execute(database_url, "SELECT id, a, n, b FROM t ORDER BY id")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["duckdb", "lake"])
def test_a_value_that_does_not_fit_stops_its_own_transaction_only(database_url: str, tmp_path: Path, engine: str):
    farm, into = str(tmp_path / "farm"), tmp_path / ("r.duckdb" if engine == "duckdb" else "lake")
    execute(database_url, "CREATE TABLE keyed (id int PRIMARY KEY, l smallint[])", "CREATE TABLE bag (l smallint[])")
    wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=into, register=False)
    execute(
        database_url,
        "INSERT INTO keyed VALUES (1, '{1,2}'), (2, NULL)",
        "INSERT INTO bag VALUES ('{1,2}'), ('{}')",
        "BEGIN; INSERT INTO keyed VALUES (3, '{{1,2},{3,4}}'); COMMIT",
        "INSERT INTO bag VALUES ('{5}'), ('{{6,7}}')",
        "UPDATE keyed SET l = '{3}' WHERE id = 1",
        "INSERT INTO bag VALUES ('{8}')",
    )
    wlc.flush(database_url)
    for table, tick, value in (("keyed", 3, "{{1,2},{3,4}}"), ("bag", 4, "{{6,7}}")):
        with pytest.raises(ReplayError) as caught:
            wlr.replicate(into=into)
        assert f"transaction {tick}, table public.{table}: " in str(caught.value)
        assert "column l has a value that does not fit SMALLINT[]" in str(caught.value)
        assert value in str(caught.value)
        wlr.accept(into)
    wlr.replicate(into=into)
    found = into if engine == "duckdb" else to_duckdb(into, tmp_path / "l.duckdb")
    held = held_in_duckdb(found)
    assert held["public.keyed"] == Counter({("1", "[3]"): 1, ("2", None): 1})
    assert held["public.bag"] == Counter({("[1, 2]",): 1, ("[]",): 1, ("[8]",): 1})
