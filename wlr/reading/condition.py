"""The condition of a read: one expression over one row, whose answer depends on nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.dialect.sql import quote
from wlc.farm.did_you_mean import alike
from wlc.farm.errors import InvalidError
from wlr.engine.calculator import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb

    from wlc.farm.model import Layout, Name

# Parts of an expression that depend on more than the row, and what to call them.
_REFUSED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
}
_WITHOUT_PARENTHESES = {"current_timestamp", "current_time", "localtime", "localtimestamp", "current_user", "user"}
# What a macro of DuckDB's calls that gives another answer at another time.
_CHANGING = r"(current_|now\(|random|nextval|getvariable|session_user)"
_AN_AGGREGATE = "which is an aggregate"
_AT_ANOTHER_TIME = "which gives another answer at another time"
_OTHER_STATEMENT = "Only SELECT statements"
# DuckDB's functions, which are the same in all connections and take long to list.
_refused_functions: dict[str, str] = {}
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
    """Check a condition as a user writes it, in DuckDB's SQL over columns as declared.

    Raises:
        InvalidError: It is not one expression, depends on more than the row, or does not fit the columns.
    """
    # A comment at its end must not hide what follows.
    sql = f"(\n{where}\n)"
    if not where.strip():
        raise InvalidError("where is empty", hint=_example(layout))
    tree = _parsed(connection, where, sql)
    for problem in _problems(tree, _unstable(connection), layout):
        raise InvalidError(
            f"where = {where!r} holds {problem}: it has to be one expression over the columns of a row",
            hint=_example(layout),
        )
    _refuse_unfit(connection, where, sql, table, layout)
    named = {name.lower() for name in _names(tree)}
    return Condition(sql, tuple(column.name for column in layout.stored if column.name.lower() in named))


def chosen_columns(columns: Iterable[str] | None, table: Name, layout: Layout) -> list[str]:
    """Return the names of wanted columns as the table spells them; all that are stored if none is given.

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
    # What closes the parenthesis and goes on is more than an expression.
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


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _problems(tree: dict[str, Any], unstable: dict[str, str], layout: Layout) -> Iterator[str]:
    own = {column.name.lower() for column in layout.stored}
    for node in _nodes(tree):
        kind = str(node.get("class"))
        if kind in _REFUSED:
            yield _REFUSED[kind]
        elif kind == "FUNCTION" and (name := str(node["function_name"]).lower()) in unstable:
            yield f"{name}(), {unstable[name]}"
        elif kind == "COLUMN_REF" and len(node["column_names"]) == 1:
            # current_date and the like are written without parentheses.
            name = node["column_names"][0].lower()
            if name not in own and (name in unstable or name in _WITHOUT_PARENTHESES):
                yield f"{name}, {_AT_ANOTHER_TIME}"


def _unstable(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return functions that a condition must not call, by lower-case names, and why."""
    if not _refused_functions:
        query = (
            "SELECT lower(function_name), function_type FROM duckdb_functions() WHERE function_type = 'aggregate'"
            " OR stability <> 'CONSISTENT' OR (function_type = 'macro' AND regexp_matches(macro_definition, ?))"
        )
        for name, kind in connection.execute(query, [_CHANGING]).fetchall():
            _refused_functions[name] = _AN_AGGREGATE if kind == "aggregate" else _AT_ANOTHER_TIME
    return _refused_functions


def _names(tree: dict[str, Any]) -> Iterator[str]:
    for node in _nodes(tree):
        if node.get("class") == "COLUMN_REF":
            yield from node["column_names"]


def _refuse_unfit(connection: duckdb.DuckDBPyConnection, where: str, sql: str, table: Name, layout: Layout) -> None:
    columns = ", ".join(f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in layout.stored)
    with refused(f"where = {where!r} does not fit table {table}", lambda said: _hint(said, layout)):
        query = f"DESCRIBE SELECT {sql} FROM (SELECT {columns}) AS {quote(table.name)}"
        found = connection.execute(query).fetchall()[0][1]
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
