"""SQL for a superset of the rows that a statement may touch, found by running a part of the statement alone.

VALUES lists of a statement, typed as the statement itself types them.

Analysis of an UPDATE or DELETE by key: whether it finds few rows, and their new values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb.analysis import MergeEffect, TouchEffect, UpsertEffect, aggregates_in_order_free
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable


_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")


def typed(query: str, kinds: Sequence[str]) -> str:
    """Give every value of a VALUES list the type of its column.

    An INSERT casts each value to its column's type. A list by itself has one type for each column, which all rows must
    fit: (0.1), ('nan') fails, and (0.1), ('0.15') is rounded.

    Args:
        query: VALUES list; any other query is returned unchanged.
        kinds: Types of the columns, in the order of the values.
    """
    parts = tokens(query)
    if parts[0].word != "VALUES":
        return query
    pieces, last, depth, column = [], 0, 0, 0
    for token in parts:
        closes, is_next = token.text in _CLOSING, token.text == "," and depth == 1
        depth -= closes
        if (closes and depth == 0) or is_next:
            if column >= len(kinds):
                return query
            pieces.append(f"CAST({query[last : token.start]} AS {kinds[column]})")
            last, column = token.start, column + 1
        if token.text in _OPENING:
            depth += 1
        if (token.text == "(" and depth == 1) or is_next:
            pieces.append(query[last : token.end])
            last, column = token.end, column if is_next else 0
    return "".join(pieces) + query[last:]


# Up to this number, saved rows are looked up by literal row ids, without a scan in DuckDB.
FEW = 64
_INTEGERS = frozenset("TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT".split())
# FROM and WHERE text with the names of the parameters in it, or nothing.
RowsSql = tuple[str, frozenset[str]] | tuple[()]


def touched_rows(effect: TouchEffect, table: CapturedTable) -> str:
    """FROM and WHERE of the rows that an UPDATE or DELETE may touch."""
    condition = f"({effect.condition}\n)" if effect.condition is not None else "true"
    if effect.source is None and not effect.with_clause:
        return f"{_aliased(effect, table)} WHERE {condition}"
    source = f", {effect.source}" if effect.source is not None else ""
    return (
        f"{table.sql} WHERE rowid IN ({effect.with_clause} SELECT {effect.alias or table.sql}.rowid"
        f" FROM {_aliased(effect, table)}{source} WHERE {condition})"
    )


def binds(connection: duckdb.DuckDBPyConnection, where: str) -> bool:
    """Whether a part of a statement can run alone; checked first, because a failure aborts the transaction."""
    try:
        connection._bind(f"SELECT 1 FROM {where}")
    except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
        return False
    return True


def matched_rows(
    connection: duckdb.DuckDBPyConnection, effect: UpsertEffect | MergeEffect, table: CapturedTable, parameters: Any
) -> RowsSql | None:
    """FROM and WHERE of the rows that the statement may replace; empty for none, None if unknown."""
    if isinstance(effect, MergeEffect):
        where = (
            f"{table.sql} WHERE rowid IN ({effect.with_clause} SELECT {effect.alias or table.sql}.rowid"
            f" FROM {_aliased(effect, table)}, {effect.source} WHERE ({effect.condition}\n))"
        )
        return (where, effect.parameters) if binds(connection, where) else None
    return _conflicting_rows(connection, effect, table, parameters)


def _conflicting_rows(
    connection: duckdb.DuckDBPyConnection, effect: UpsertEffect, table: CapturedTable, parameters: Any
) -> RowsSql | None:
    names = list(effect.columns) or [column.name for column in table.layout.stored]
    given = {name.lower(): number for number, name in enumerate(names)}
    if table.keys is None or effect.by_name:
        return None
    types = {column.name.lower(): column.type for column in table.layout.columns}
    if any(column.lower() not in given for key in table.keys for column in key) or not given.keys() <= types.keys():
        return None
    if not table.keys:
        return ()
    added = [
        [(quote(c), f"CAST(n.v{given[c.lower()]} AS {types[c.lower()]})", types[c.lower()]) for c in key]
        for key in table.keys
    ]
    listed = ", ".join(f"v{number}" for number in range(len(names)))
    source = f"({typed(effect.query, [types[name.lower()] for name in names])}\n) AS n({listed})"
    few = _few_keys(connection, effect, added, source, parameters)
    if few is not None:
        return f"{table.sql} WHERE ({few})", frozenset()
    tests = (" AND ".join(f"t.{column} = {value}" for column, value, _ in key) for key in added)
    where = (
        f"{table.sql} WHERE rowid IN ({effect.with_clause} SELECT t.rowid FROM {table.sql} AS t, {source}"
        f" WHERE ({') OR ('.join(tests)}))"
    )
    return where, effect.parameters


def _few_keys(
    connection: duckdb.DuckDBPyConnection,
    effect: UpsertEffect,
    added: list[list[tuple[str, str, str]]],
    source: str,
    parameters: Any,
) -> str | None:
    """A condition on literal keys, which needs no scan, if the statement adds few rows; else None."""
    values = ", ".join(f"CAST({value} AS VARCHAR)" for key in added for _, value, _ in key)
    rows = connection.execute(
        f"{effect.with_clause} SELECT {values} FROM {source} LIMIT {FEW + 1}",
        subset(parameters, effect.parameters),
    ).fetchall()
    if len(rows) > FEW:
        return None
    tests = []
    for row in rows:
        texts = iter(row)
        for key in added:
            parts = [(column, next(texts), kind) for column, _, kind in key]
            if all(text is not None for _, text, _ in parts):
                tests.append(" AND ".join(f"{c} = CAST({literal(text)} AS {kind})" for c, text, kind in parts))
    return " OR ".join(f"({test})" for test in tests) or "false"


def is_stable(tables: CapturedTables, effect: TouchEffect | UpsertEffect | MergeEffect) -> bool:
    """Whether a part of the statement, run alone, must find the same rows as the statement."""
    if not effect.is_stable or not effect.relations <= tables.real_relations():
        return False
    if any(map(tables.is_volatile, effect.functions)):
        return False
    return not effect.functions or aggregates_in_order_free(effect.functions, engine.names("aggregate"))


def subset(parameters: Any, names: frozenset[str]) -> dict[str, object]:
    """The parameters that part of a statement uses, by the names of their markers."""
    if not names or parameters is None:
        return {}
    if isinstance(parameters, dict):
        wanted = {name.lower() for name in names}
        return {name: value for name, value in parameters.items() if str(name).lower() in wanted}
    return {str(number): value for number, value in enumerate(parameters, start=1) if str(number) in names}


def pins_key(effect: TouchEffect, table: CapturedTable) -> bool:
    """Whether the condition looks like one on the primary key, so that few rows will be found."""
    condition = (effect.condition or "").lower()
    keys = table.keys or ()
    return effect.source is None and any(
        all(re.search(rf'(?<![\w$]){re.escape(column.lower())}"?\s*=', condition) for column in key) for key in keys
    )


def finds_one(effect: TouchEffect, table: CapturedTable, integers: Mapping[str, bool]) -> bool:
    """Whether the condition consists of tests for equality, one for each column of a key, so that it finds one row.

    Args:
        effect: An UPDATE or DELETE without other relations.
        table: Its table.
        integers: By the names of the parameters, whether they are integers of at most 64 bits.
    """
    # Values of other types may be equal to several keys: 1e16 to integers, a text to others in its collation.
    types = {column.name.lower(): column.type for column in table.layout.stored}
    tested, parts = set(), tokens(effect.condition or "")
    while len(parts) >= 3 and parts[1].text == "=":
        is_parameter = parts[2].text == "$" and len(parts) > 3
        if not (integers.get(parts[3].text.lower()) if is_parameter else parts[2].text.isdecimal()):
            return False
        tested.add(parts[0].name.lower())
        rest = parts[4 if is_parameter else 3 :]
        if rest and rest[0].word != "AND":
            return False
        parts = rest[1:]
    return not parts and any(
        all(column.lower() in tested and types[column.lower()] in _INTEGERS for column in key)
        for key in table.keys or ()
    )


def _aliased(effect: TouchEffect | MergeEffect, table: CapturedTable) -> str:
    """The target as the statement names it: without an alias, columns may be qualified by the table's full name."""
    return f"{table.sql} AS {effect.alias}" if effect.alias else table.sql
