"""Which CHECK constraints give the same answer in every session."""

from __future__ import annotations

from functools import cache

import duckdb
import pytest

from wlc.capture.duckdb.checks import refuse_unstable
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

COLUMNS = (
    "a TIMESTAMPTZ, b TIMESTAMPTZ, d DATE, s VARCHAR, v TIMESTAMPTZ[], x TIMESTAMP, n INTEGER, m ENUM ('a', 'b'),"
    " l INTEGER[], p DECIMAL(10, 2), st STRUCT(a INTEGER), tz TIMETZ"
)


@cache
def stability() -> dict[str, str]:
    query = (
        "SELECT lower(function_name), max(coalesce(stability, '')) FROM duckdb_functions() WHERE internal GROUP BY ALL"
    )
    with duckdb.connect() as connection:
        return dict(connection.execute(query).fetchall())


def judge(check: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE MACRO twice(x) AS x * 2; BEGIN; CREATE TABLE t ({COLUMNS}, CHECK ({check}))")
        refuse_unstable(connection, "memory", Name("main", "t"), stability())


@pytest.mark.parametrize(
    "check",
    [
        "a > b",
        "a IS NOT NULL AND v IS NULL OR tz IS NULL",
        "a BETWEEN b AND a",
        "a IN (b, a)",
        "a > '2020-01-01 00:00:00+02'",
        "a > TIMESTAMPTZ '2020-01-01 00:00:00.5 UTC'",
        "s IN ('a', 'b') AND s ~ '^[a-z]+$' AND length(s) > 1",
        "d BETWEEN '2020-01-01' AND DATE '2030-01-01' AND x > '2020-01-01'",
        "CASE WHEN n > 0 THEN s <> '' ELSE true END",
        "twice(n) % 3 = 0 AND n::DECIMAL(10, 2) = p AND st.a > 1 AND l[1] > 0 AND m = 'a'",
    ],
)
def test_the_same_everywhere(check: str) -> None:
    judge(check)


@pytest.mark.parametrize(
    "check, cause",
    [
        ("a::DATE > d", "TimeZone"),
        ("a > '2020-01-01'", "TimeZone"),
        ("a < x", "TimeZone"),
        ("s::TIMESTAMPTZ IS NOT NULL", "TimeZone"),
        ("extract('hour' FROM a) > 3", "TimeZone"),
        ("date_trunc('day', a) < b", "TimeZone"),
        ("tz > '10:00:00'", "TimeZone"),
        ("len(v) > 0", "TimeZone"),
        ("d > today()", "today"),
        ("random() > 0.5", "random"),
        ("s = current_setting('TimeZone')", "current_setting"),
        ("list_sort(l)[1] > 0", "default_null_order"),
    ],
)
def test_another_answer_elsewhere(check: str, cause: str) -> None:
    with pytest.raises(UnsupportedError, match=cause):
        judge(check)


def test_a_refused_check_has_another_answer_in_another_session() -> None:
    answers = set()
    for zone in ("UTC", "Asia/Tokyo"):
        with duckdb.connect() as connection:
            connection.execute(f"SET TimeZone = '{zone}'; CREATE TABLE t (a TIMESTAMPTZ, CHECK (a >= '2020-01-01'))")
            try:
                connection.execute("INSERT INTO t VALUES ('2019-12-31 20:00:00+00')")
                answers.add(True)
            except duckdb.ConstraintException:
                answers.add(False)
    assert answers == {True, False}
