"""What DuckDB's own functions depend on: the overload that is called decides, wherever the call stands."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from tests import engine_catalogs
from tests.sampling import sampled
from wlc.capture.duckdb import acceptance
from wlc.capture.duckdb.acceptance import RowRule
from wlc.dialect.duckdb import catalog, engine, expressions
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.model import Name
from wlr.reading.condition import checked_condition

if TYPE_CHECKING:
    from collections.abc import Iterator

# A column of each type that an overload may ask for.
COLUMNS = {
    "ANY": "INTEGER",
    "T": "INTEGER",
    "K": "INTEGER",
    "V": "INTEGER",
    "T[]": "INTEGER[]",
    "K[]": "INTEGER[]",
    "V[]": "INTEGER[]",
    "ANY[]": "INTEGER[]",
    "T[][]": "INTEGER[][]",
    "MAP(K, V)": "MAP(INTEGER, INTEGER)",
    "DECIMAL": "DECIMAL(10, 2)",
    "STRUCT": "STRUCT(a INTEGER)",
    "DOUBLE[ANY]": "DOUBLE[3]",
    "FLOAT[ANY]": "FLOAT[3]",
}
ZONED = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS", "TIME WITH TIME ZONE")
# Types of operands, of each kind that operators tell apart.
OPERANDS = (
    "BOOLEAN INTEGER HUGEINT DOUBLE DECIMAL(10,2) VARCHAR BIT DATE TIME TIMESTAMP TIMESTAMP_NS INTERVAL INTEGER[]"
).split()
OPERATORS = "+ - * / // % || & = <".split()
ARITHMETIC = frozenset(OPERATORS) - {"=", "<"}
# A call that varies, in each place where a bound expression may hide it.
VARYING = (
    "random() > 0.5",
    "now() > z",
    "a > length(getvariable('x'))",
    "d > today()",
    "s = current_setting('TimeZone')",
    "s = current_schema()",
    "s = version()",
    "age(x) > INTERVAL 1 DAY",
    "a > nextval('q')",
    "a > lucky()",
    "a > 1 + this_year()",
)
PLACES = (
    "{0}",
    "NOT ({0})",
    "({0}) IS NULL",
    "a > 0 AND ({0})",
    "CASE WHEN a > 0 THEN {0} ELSE true END",
    "CASE WHEN {0} THEN true ELSE false END",
    "CASE WHEN a > 0 THEN true ELSE {0} END",
    "coalesce({0}, true)",
    "if(a > 0, {0}, true)",
    "TRY({0})",
    "(1 > 0) IN (true, {0})",
    "a BETWEEN 1 AND CAST({0} AS INTEGER)",
    "struct_pack(f := {0}).f",
    "[true, {0}][1]",
    "abs(1 + CAST({0} AS INTEGER)) > 0",
    "concat('a', CAST({0} AS VARCHAR)) = s",
)
MACROS = "CREATE SEQUENCE q; CREATE MACRO lucky() AS random(); CREATE MACRO this_year() AS abs(year(now()))"
ROW = "a INTEGER, s VARCHAR, d DATE, x TIMESTAMP, z TIMESTAMPTZ"


class Judge:
    """A table with a column of each type, and the judgement of CHECK constraints over it."""

    def __init__(self, columns: dict[str, str], before: str = "") -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        listed = ", ".join(f"{quote(name)} {type_}" for name, type_ in columns.items())
        self.connection.execute(f"{before}; CREATE TABLE t ({listed})")
        self.macros = acceptance.macros_of(self.connection, "memory")

    def binds(self, expression: str) -> bool:
        try:
            self.connection.execute(f"DESCRIBE SELECT {expression} FROM t")
        except duckdb.Error:
            return False
        return True

    def cause(self, expression: str) -> str:
        """Why the expression is refused as a CHECK; "" if it is not."""
        rule = RowRule(Name("main", "t"), "CHECK", expression)
        return next(acceptance.causes(self.connection, "memory", rule, self.macros), "")

    def refuse(self, *expressions: str) -> None:
        rules = [RowRule(Name("main", "t"), "CHECK", expression) for expression in expressions]
        acceptance.refuse_unstable(self.connection, "memory", rules)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    parameters = {each for listed in engine.functions().values() for one in listed for each in one.parameters}
    types = sorted({COLUMNS.get(each, each) for each in parameters} | {*OPERANDS, *ZONED})
    with duckdb.connect() as connection:
        known = [each for each in types if each and _is_type(connection, each)]
    judge = Judge({each: each for each in known})
    yield judge
    judge.connection.close()


def _is_type(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    try:
        connection.execute(f"CREATE OR REPLACE TABLE tried (c {name})")
    except duckdb.Error:
        return False
    return True


def test_the_catalogs_of_this_duckdb_are_those_that_were_understood() -> None:
    found, understood = set(engine_catalogs.present()), set(engine_catalogs.understood())
    gone, new = sorted(understood - found), sorted(found - understood)
    assert not gone + new, "judge each difference, then run python -m tests.engine_catalogs\n" + "\n".join(
        [f"gone: {line}" for line in gone] + [f"new:  {line}" for line in new]
    )


def _calls(name: str, overload: engine.Overload) -> str:
    columns = ", ".join(quote(COLUMNS.get(each, each)) for each in overload.parameters)
    word = re.fullmatch(r"\w+", name)
    if word or len(overload.parameters) not in (1, 2):
        return f"{quote(name)}({columns})"
    first, *rest = columns.split(", ")
    return f"({name} {first})" if not rest else f"({columns.partition(', ')[0]} {name} {columns.partition(', ')[2]})"


@pytest.mark.slow
def test_every_overload_is_judged_by_itself(judge: Judge) -> None:
    """Refused are those that DuckDB marks, that time zones decide about, or that are listed; all others are not."""
    wrong, taken, judged = [], [], 0
    listed = [(name, each) for name, overloads in engine.functions().items() for each in overloads]
    for name, overload in sampled(listed, len(listed) // 3):
        expression = f"{_calls(name, overload)} IS NULL"
        if overload.kind != "scalar" or name in ("error", "nextval", "currval") or not judge.binds(expression):
            continue
        judged += 1
        varies = not overload.is_consistent or expressions.varies(name, len(overload.parameters))
        is_zoned = engine.is_zoned((*overload.parameters, overload.returned))
        cause = judge.cause(expression)
        if bool(cause) != (varies or is_zoned or name in engine.ORDERED_BY_SETTINGS):
            wrong.append((expression, overload, cause))
        if not cause:
            taken.append(expression)
    assert not wrong
    judge.refuse(*taken)
    assert judged > 300


@pytest.mark.slow
def test_operators_of_every_two_types(judge: Judge) -> None:
    """A comparison of two values of one type looks at them; an operator that computes with a zoned one needs a zone."""
    wrong, taken, judged = [], [], 0
    pairs = list(itertools.product((*OPERANDS, *ZONED), repeat=2))
    for left, right in sampled(pairs, len(pairs) // 3):
        for operator in OPERATORS:
            expression = f"({quote(left)} {operator} {quote(right)}) IS NULL"
            if not judge.binds(expression):
                continue
            judged += 1
            zoned = {left, right} & {*ZONED}
            # DuckDB compares two of the last type by a function of both.
            is_refused = bool(zoned) and (operator in ARITHMETIC or left != right or left == ZONED[-1])
            cause = judge.cause(expression)
            if bool(cause) != is_refused:
                wrong.append((expression, cause))
            if not cause:
                taken.append(expression)
    assert not wrong
    judge.refuse(*taken)
    assert judged > 100


@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_varies_is_found_wherever_it_stands(place: str) -> None:
    judge = Judge(dict(column.split() for column in ROW.split(", ")), MACROS)
    for call in VARYING:
        # DuckDB takes some calls out of a bound expression, but no session gives all of them the same value.
        assert judge.cause(place.format(call)).endswith("does not depend on the row alone"), call
    assert judge.cause(place.format("a + 1 > 0")) == ""
    # DuckDB does not try what may have another result the second time.
    assert place.startswith("TRY") or judge.cause(place.format("error('a') IS NULL")) == ""
    judge.connection.close()


@pytest.mark.parametrize(
    "expression",
    [
        "a > year(TIMESTAMPTZ '2020-01-01 02:00:00+00') + 1",
        "a > 1 + hour(TIMESTAMPTZ '2020-06-01 02:00:00+00')",
        "a > 1 + minute(TIMESTAMPTZ '2020-06-01 02:00:00+00')",
        "concat(TIMESTAMPTZ '2020-06-01 02:00:00+00', 'a') = s",
        "abs(year(make_timestamptz(2020, 1, 1, 0, 0, 0.0))) > a + epoch(make_timestamptz(2020, 1, 1, 0, 0, 0.0))",
        "a > in_zone('2020-01-01 02:00:00')",
    ],
)
def test_a_value_that_the_time_zone_decides_about_is_found_where_no_column_is(expression: str) -> None:
    macro = "CREATE MACRO in_zone(t) AS abs(epoch(CAST(t AS TIMESTAMPTZ)))"
    judge = Judge(dict(column.split() for column in ROW.split(", ")), macro)
    judge.connection.execute("SET TimeZone = 'Asia/Tokyo'")
    with pytest.raises(UnsupportedError, match="depends on the setting TimeZone"):
        judge.refuse(expression)
    assert judge.connection.execute("SELECT current_setting('TimeZone')").fetchall() == [("Asia/Tokyo",)]
    judge.connection.close()


def test_columns_and_parameters_may_have_such_names() -> None:
    names = sorted(engine.WITHOUT_PARENTHESES)
    judge = Judge(dict.fromkeys(names, "VARCHAR"), "CREATE MACRO m(user, current_date) AS user || current_date")
    columns = ", ".join(map(quote, names))
    judge.refuse(f"concat({columns}) <> 'a'", "m(\"user\", current_time) <> 'a'", "CURRENT_DATE <> 'a'")
    judge.connection.close()
    judge = Judge({"a": "DATE"}, "CREATE MACRO m(user) AS user > date_trunc('month', current_date)")
    assert judge.cause("m(a)") == "current_date does not depend on the row alone"
    judge.connection.close()


def test_names_that_need_no_parentheses_are_those_that_duckdb_takes() -> None:
    names = {name for name, listed in engine.functions().items() if any(not each.parameters for each in listed)}
    found = set()
    with duckdb.connect() as connection:
        for name in names | {"current_time", "current_timestamp", "localtime", "localtimestamp"}:
            if not re.fullmatch(r"\w+", name):
                continue
            try:
                connection.execute(f"SELECT {name}")
            except duckdb.Error:
                continue
            found.add(name)
    assert found == set(engine.WITHOUT_PARENTHESES)


@pytest.mark.parametrize("version", ["v0.10.2", "v1.5.0", "latest"])
def test_a_setting_for_files_changes_no_judgement(version: str) -> None:
    """DuckDB writes parsed expressions for the oldest version that is to read them."""
    judge = Judge(dict(column.split() for column in ROW.split(", ")), MACROS)
    judge.connection.execute(f"SET storage_compatibility_version = '{version}'")
    assert judge.cause("a + length(s) > 1 AND year(d) = 2020") == ""
    assert "getvariable" in judge.cause("a > 1 + length(getvariable('x'))")
    assert "now" in judge.cause("a > 1 + this_year()")
    assert "age" in judge.cause("age(x) > INTERVAL 1 DAY")
    judge.connection.close()


def test_a_function_that_is_not_duckdb_s_own_is_refused() -> None:
    judge = Judge({"a": "INTEGER"})
    judge.connection.create_function("mine", lambda a: a, ["INTEGER"], "INTEGER")
    assert judge.cause("mine(a) > 1") == "mine() is no function of DuckDB's own"
    judge.connection.close()


# Conditions of wlr.read -----------------------------------------------------------------------------------------------


def _read(connection: duckdb.DuckDBPyConnection, where: str) -> str:
    layout = catalog.tables(connection, "memory")[Name("main", "t")]
    try:
        checked_condition(connection, where, Name("main", "t"), layout)
    except InvalidError as error:
        return error.message
    return ""


@pytest.mark.slow
def test_conditions_of_readers_may_compute_with_all_types(judge: Judge) -> None:
    """Readers have one time zone, so that only functions of the time, of chance and of the session are refused."""
    wrong, judged = [], 0
    for left, right in itertools.product(
        ("INTEGER", "DATE", "TIMESTAMP_NS", "INTERVAL", "INTEGER[]", *ZONED), repeat=2
    ):
        for operator in OPERATORS:
            expression = f"({quote(left)} {operator} {quote(right)}) IS NULL"
            if judge.binds(expression):
                judged += 1
                wrong += [(expression, said) for said in [_read(judge.connection, expression)] if said]
    for name, overloads in engine.functions().items():
        for overload in (each for each in overloads if each.kind == "scalar" and engine.is_zoned(each.parameters)):
            expression = f"{_calls(name, overload)} IS NULL"
            if judge.binds(expression) and not expressions.varies(name, len(overload.parameters)):
                judged += 1
                wrong += [(expression, said) for said in [_read(judge.connection, expression)] if said]
    assert not wrong
    assert judged > 200


@pytest.mark.parametrize("place", [place for place in PLACES if "TRY" not in place])
def test_conditions_of_readers_must_not_vary(place: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({ROW}); CREATE SEQUENCE q")
        for call in (
            *(each for each in VARYING if "lucky" not in each and "this_year" not in each),
            "z > ago(INTERVAL 1 DAY)",
        ):
            assert "which depends on more than the row" in _read(connection, place.format(call)), call
        for name in engine.WITHOUT_PARENTHESES:
            assert f"holds {name}, which" in _read(connection, place.format(f"s = CAST({name} AS VARCHAR)"))
        assert _read(connection, place.format("a + 1 > 0 AND year(z) > 2020")) == ""


# One home -------------------------------------------------------------------------------------------------------------


def test_only_one_file_asks_for_duckdb_s_own_functions_and_settings() -> None:
    root = Path(__file__).parents[3]
    listing = re.compile(
        r"FROM duckdb_(functions|types|settings)\((?!.{0,120}(NOT internal|USER\}|WHERE database_name = ))|\bstability\b",
        re.DOTALL,
    )
    files = sorted(file for package in ("wlc", "wlr", "cli") for file in (root / package).rglob("*.py"))
    found = {file.relative_to(root).as_posix() for file in files if listing.search(file.read_text(encoding="utf-8"))}
    assert found == {"wlc/dialect/duckdb/engine.py"}
