"""The condition of a read: one expression over one row, whose result depends only on the row."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import engine, expressions
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import InvalidError
from wlc.farm.typed_names import alike
from wlr.engine.calculator import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb

    from wlc.farm.model import Layout, Name

# Parts of an expression that depend on more than the row, and their names in messages.
_REFUSED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
}
_AN_AGGREGATE = "which is an aggregate"
_MORE_THAN_THE_ROW = "which depends on more than the row"
_OTHER_STATEMENT = "Only SELECT statements"
_MISSING = re.compile(r'[Cc]olumn "(.*?)" not found')


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the rows of a table.

    Attributes:
        sql: The expression, in parentheses.
        columns: The table's columns that it may use.
    """

    sql: str
    columns: tuple[str, ...]


def checked_condition(connection: duckdb.DuckDBPyConnection, where: str, table: Name, layout: Layout) -> Condition:
    """Check a user's condition, in DuckDB's SQL over columns as declared.

    Raises:
        InvalidError: It is not one expression, depends on more than the row, or does not fit the columns.
    """
    # A comment at its end must not hide the rest of the statement.
    sql = f"(\n{where}\n)"
    if not where.strip():
        raise InvalidError("where is empty", hint=_example(layout))
    tree = _parsed(connection, where, sql)
    own = frozenset(column.name.lower() for column in layout.stored)
    for problem in _problems(tree, own):
        raise _refusal(where, problem, layout)
    _refuse_unfit(connection, where, sql, table, layout)
    for problem in _bound_problems(connection, sql, table, layout):
        raise _refusal(where, problem, layout)
    named = {name.lower() for name in _names(tree)}
    return Condition(sql, tuple(column.name for column in layout.stored if column.name.lower() in named))


def chosen_columns(columns: Iterable[str] | None, table: Name, layout: Layout) -> list[str]:
    """Return the names of wanted columns in the table's spelling; all stored ones without any.

    Raises:
        InvalidError: There is no such column.
    """
    known = {column.name.lower(): column.name for column in layout.stored}
    if columns is None:
        return list(known.values())
    wanted = [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
    if not wanted:
        raise InvalidError("columns names no column", hint=_listed(layout))
    for name in wanted:
        if name.lower() not in known:
            raise InvalidError(f"table {table} has no column {name}", hint=_meant(name, layout))
    return [known[name.lower()] for name in wanted]


def _parsed(connection: duckdb.DuckDBPyConnection, where: str, sql: str) -> dict[str, Any]:
    with refused(f"where = {where!r} cannot be read"):
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {sql}"]).fetchall()[0]
    parsed = json.loads(text)
    if parsed["error"] and not parsed["error_message"].startswith(_OTHER_STATEMENT):
        message = f"where = {where!r} cannot be read: {parsed['error_message']}"
        raise InvalidError(message, hint='Write one expression, for example where="id > 10".')
    nodes = [statement["node"] for statement in parsed.get("statements", ())]
    # A text that closes the parenthesis and continues is more than an expression.
    if (
        len(nodes) != 1
        or nodes[0]["type"] != "SELECT_NODE"
        or len(nodes[0]["select_list"]) != 1
        or nodes[0]["from_table"]["type"] != "EMPTY"
        or any(nodes[0][part] for part in ("modifiers", "where_clause", "group_expressions", "having", "qualify"))
    ):
        message = f"where = {where!r} is not one expression"
        raise InvalidError(message, hint='Write one expression, for example where="id > 10 AND id < 20".')
    tree: dict[str, Any] = nodes[0]["select_list"][0]
    return tree


def _refusal(where: str, problem: str, layout: Layout) -> InvalidError:
    return InvalidError(
        f"where = {where!r} holds {problem}: it must be one expression over the columns of a row",
        hint=_example(layout),
    )


def _problems(tree: dict[str, Any], own: frozenset[str]) -> Iterator[str]:
    for node in expressions.nodes(tree):
        if (kind := str(node.get("class"))) in _REFUSED:
            yield _REFUSED[kind]
    for call in expressions.written_calls(tree, own):
        if call.name in engine.names("aggregate"):
            yield f"{call.text}, {_AN_AGGREGATE}"
        elif expressions.varies(call.name, call.count):
            yield f"{call.text}, {_MORE_THAN_THE_ROW}"


def _bound_problems(connection: duckdb.DuckDBPyConnection, sql: str, table: Name, layout: Layout) -> Iterator[str]:
    """Find calls whose argument types make the result depend on the time; readers have one time zone."""
    query = f"SELECT json_serialize_plan({literal('SELECT ' + _over_columns(sql, table, layout))}, optimize := false)"
    found = json.loads(connection.execute(query).fetchall()[0][0])
    if found["error"]:
        yield "an expression that DuckDB cannot describe"
        return
    for call in expressions.bound_calls(found["plans"][0]["expressions"]):
        if not call.is_consistent_in_zone:
            yield f"{call.name}(), {_MORE_THAN_THE_ROW}"


def _names(tree: dict[str, Any]) -> Iterator[str]:
    for node in expressions.nodes(tree):
        if node.get("class") == "COLUMN_REF":
            yield from node["column_names"]


def _over_columns(sql: str, table: Name, layout: Layout) -> str:
    columns = ", ".join(f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in layout.stored)
    return f"{sql} FROM (SELECT {columns}) AS {quote(table.name)}"


def _refuse_unfit(connection: duckdb.DuckDBPyConnection, where: str, sql: str, table: Name, layout: Layout) -> None:
    with refused(f"where = {where!r} does not fit table {table}", lambda said: _hint(said, layout)):
        found = connection.execute(f"DESCRIBE SELECT {_over_columns(sql, table, layout)}").fetchall()[0][1]
    if found != "BOOLEAN":
        raise InvalidError(f"where = {where!r} is of type {found}, and not true or false", hint=_example(layout))


def _hint(said: str, layout: Layout) -> str:
    found = _MISSING.search(said)
    return _meant(found.group(1), layout) if found else _listed(layout)


def _meant(name: str, layout: Layout) -> str:
    near = alike(name.lower(), [column.name for column in layout.stored])
    return f"did you mean {near[0]}? {_listed(layout)}" if near else _listed(layout)


def _listed(layout: Layout) -> str:
    return f"Columns are: {', '.join(f'{column.name} {column.type}' for column in layout.stored)}."


def _example(layout: Layout) -> str:
    name = quote(layout.stored[0].name) if layout.stored else "id"
    return f"Write, for example, where={f'{name} IS NOT NULL'!r}; filter the relation itself for more: .filter(…)."
