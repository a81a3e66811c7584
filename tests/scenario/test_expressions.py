"""Operators and functions of dates over all kinds of types, as generated columns, checks and defaults of a replicated table.

Replicas compute generated columns and checks themselves, and get the rows that defaults have made.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from wlc.capture.duckdb.acceptance import read_rules, refuse_unstable
from wlc.dialect.sql import quote
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.slow

VALUES = {
    "BOOLEAN": "true",
    "INTEGER": "7",
    "HUGEINT": "-1",
    "DOUBLE": "-3.5",
    "DECIMAL(10,2)": "2.25",
    "VARCHAR": "12",
    "BIT": "101",
    "DATE": "2020-02-29",
    "TIME": "23:59:59.5",
    "TIMESTAMP": "2020-01-31 23:30:00.000001",
    "TIMESTAMP_NS": "2020-01-31 23:30:00.123456789",
    "INTERVAL": "1 month -1 day",
    "INTEGER[]": "[1, NULL]",
    "TIMESTAMP WITH TIME ZONE": "2020-12-31 20:00:00+00",
    "TIMESTAMPTZ_NS": "2020-12-31 20:00:00.123456789+00",
    "TIME WITH TIME ZONE": "20:00:00+05",
}
OPERATORS = "+ - * / // % || & = <".split()
FUNCTIONS = (
    "year({0})",
    "date_trunc('day', {0})",
    "date_part('hour', {0})",
    "bit_count({0})",
    "fmod({0}, 2)",
    "{0}::DATE",
)
ZONED = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS", "TIME WITH TIME ZONE")


@functools.cache
def expressions() -> list[tuple[str, frozenset[str]]]:
    """Every expression that DuckDB takes for the values, over columns that have the names of their types."""
    pairs = itertools.product(VALUES, repeat=2)
    tried = [(f"{quote(a)} {o} {quote(b)}", frozenset({a, b})) for (a, b), o in itertools.product(pairs, OPERATORS)]
    tried += [(function.format(quote(a)), frozenset({a})) for a, function in itertools.product(VALUES, FUNCTIONS)]
    found = []
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({columns(VALUES)}); INSERT INTO t VALUES ({values()})")
        for expression, types in tried:
            try:
                connection.execute(f"SELECT ({expression}) IS NULL FROM t").fetchall()
            except duckdb.Error:
                continue
            found.append((expression, types))
    return found


def columns(types: Iterable[str]) -> str:
    return ", ".join(f"{quote(type_)} {type_}" for type_ in types)


def values() -> str:
    return ", ".join(f"CAST('{value}' AS {type_})" for type_, value in VALUES.items())


def constant(expression: str) -> str:
    """The expression over values in the places of columns."""
    for type_, value in VALUES.items():
        expression = expression.replace(quote(type_), f"CAST('{value}' AS {type_})")
    return expression


def rows(path: Path, zone: str) -> list[str]:
    with duckdb.connect(str(path), read_only=True) as connection:
        connection.execute(f"SET TimeZone = '{zone}'")
        return [text for (text,) in connection.execute("SELECT CAST(t AS VARCHAR) FROM t").fetchall()]


@pytest.fixture
def master(tmp_path: Path) -> Path:
    wlc.master(tmp_path / "s.duckdb", create=True, beat_s=3600)
    return tmp_path / "s.duckdb"


def replica(master: Path) -> Path:
    wlc.flush(master)
    wlr.replicate(master, into=master.with_name("r.duckdb"))
    wlr.verify(master.with_name("r.duckdb"))
    return master.with_name("r.duckdb")


def test_generated_columns(master: Path) -> None:
    made = [f"g{number} AS ({expression})" for number, (expression, _) in enumerate(expressions())]
    assert len(made) > 200
    with wlc.connect(master) as connection:
        connection.execute(f"CREATE TABLE t ({columns(VALUES)}, {', '.join(made)})")
        connection.execute(f"INSERT INTO t VALUES ({values()})")
    copy = replica(master)
    # They are computed where they are read, in the reader's time zone.
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        assert rows(copy, zone) == rows(master, zone)
    assert rows(copy, "Asia/Tokyo") != rows(copy, "America/New_York")


def test_checks(master: Path) -> None:
    plain = [expression for expression, types in expressions() if not types & {*ZONED}]
    assert len(plain) > 150
    checks = ", ".join(f"CHECK ({expression} IS NOT NULL)" for expression in plain)
    with wlc.connect(master) as connection:
        connection.execute(f"CREATE TABLE t ({columns(VALUES)}, {checks})")
        connection.execute(f"INSERT INTO t VALUES ({values()})")
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        connection.execute(f"INSERT INTO t VALUES ({values()})")
    assert len(rows(replica(master), "UTC")) == 2


def test_checks_that_a_time_zone_decides_about_are_refused(master: Path) -> None:
    """All by what every CREATE TABLE asks, and some by the statement itself."""
    refused = [
        f"CREATE TABLE u ({columns(types)}, CHECK (({expression}) IS NULL))"
        for expression, types in expressions()
        # Two moments of one type are compared as they are; DuckDB compares two times of day by a function.
        if types & {*ZONED}
        and (len(types) > 1 or types == {ZONED[-1]} or (" = " not in expression and " < " not in expression))
    ]
    assert len(refused) > 50
    with duckdb.connect() as plain:
        for statement in refused:
            plain.execute(statement.replace("CREATE TABLE", "CREATE OR REPLACE TABLE"))
            with pytest.raises(UnsupportedError, match="TimeZone"):
                refuse_unstable(plain, "memory", read_rules(plain, "memory"))
    with wlc.connect(master) as connection:
        for statement in refused[::10]:
            with pytest.raises(UnsupportedError, match="TimeZone"):
                connection.execute(statement)


def test_defaults(master: Path) -> None:
    constants = [constant(expression) for expression, _ in expressions()]
    with duckdb.connect() as connection:
        types = [connection.execute(f"SELECT typeof({each})").fetchall()[0][0] for each in constants]
    listed = list(zip(constants, types, strict=True))
    made = [f"d{number} {type_} DEFAULT ({constant})" for number, (constant, type_) in enumerate(listed)]
    with wlc.connect(master) as connection:
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        connection.execute(f"CREATE TABLE t (k INTEGER, {', '.join(made[::2])})")
        connection.execute("INSERT INTO t (k) VALUES (1)")
        connection.execute("SET TimeZone = 'America/New_York'")
        connection.execute("INSERT INTO t (k) VALUES (2)")
        for column in made[1::40]:
            connection.execute(f"ALTER TABLE t ADD COLUMN {column}")
    copy = replica(master)
    assert rows(copy, "UTC") == rows(master, "UTC")
    assert len(rows(copy, "UTC")) == 2
