"""The calls in an expression, read from DuckDB's JSON of the parsed or the bound expression.

A parsed expression has names and no types: `+` may add numbers, dates or lists. A bound one has types, but not all
calls: if no column affects an argument, DuckDB replaces the call with its value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb


@dataclass(frozen=True, slots=True, order=True)
class WrittenCall:
    """A call in a parsed expression, whose arguments have no types yet.

    Attributes:
        name: In lower case.
        count: Number of arguments.
        text: Its name in messages.
    """

    name: str
    count: int
    text: str


def varies(name: str, count: int) -> bool:
    """Say whether a call may give another result at another time or in another session with the same arguments.

    The session's time zone is ignored here: whether it matters depends on the types of the arguments.

    Args:
        name: In lower case. A name that is not DuckDB's own does not vary.
        count: Number of arguments.
    """
    if (name, count) in engine.VARYING:
        return True
    if overloads := engine.computing(name):
        fitting = [each for each in overloads if len(each.parameters) == count or each.varargs] or overloads
        return not any(each.is_consistent or each.depends_on_zone for each in fitting)
    macros = (each for each in engine.functions().get(name, ()) if each.kind == "macro")
    return any(
        varies(call.name, call.count) for each in macros for call in _macro_calls(each.definition) if call.name != name
    )


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a bound expression.

    Attributes:
        name: In lower case.
        count: Number of arguments.
        meant: The overloads that it may call; empty if it is not DuckDB's own.
    """

    name: str
    count: int
    meant: tuple[engine.Overload, ...]

    @property
    def is_consistent_in_zone(self) -> bool:
        """Whether the result depends only on the arguments and the setting TimeZone."""
        settled = all(each.is_consistent or each.depends_on_zone for each in self.meant)
        return bool(self.meant) and settled and not varies(self.name, self.count)

    @property
    def depends_on_zone(self) -> bool:
        """Whether the result may also depend on the setting TimeZone."""
        return any(each.depends_on_zone for each in self.meant)


def bound_calls(tree: Any) -> Iterator[Call]:
    """Yield the calls in a bound expression, the result of `json_serialize_plan` or a part of it.

    DuckDB replaces arguments that are the same for all rows with their values: `now() - x` shows no call of `now`.
    """
    for node in nodes(tree):
        if "qname" not in node or "arguments" not in node:
            continue
        path, types = node["qname"]["path"], [type_text(each) for each in node["arguments"]]
        found = _meant(str(path[-1]).lower(), types)
        # Comparisons and casts are no functions of the catalog, and have no schema.
        if found or len(path) > 1:
            yield Call(str(path[-1]).lower(), len(types), found)


def type_text(type_: Any) -> str:
    """Return the name of a type in a bound expression; of a nested type with a zoned member, with all members."""
    text = json.dumps(type_)
    name = str(type_["id"]) if isinstance(type_, dict) else text
    return text if engine.is_zoned([text]) and not engine.is_zoned([name]) else name


def _meant(name: str, types: Sequence[str]) -> tuple[engine.Overload, ...]:
    overloads = engine.computing(name)
    exact = tuple(each for each in overloads if each.parameters == tuple(types))
    if exact or engine.is_zoned(types):
        return exact or overloads
    # DuckDB lists no parameters for functions with their own binding, such as + of lists.
    return tuple(each for each in overloads if not engine.is_zoned(each.parameters)) or overloads


def calls_in(
    connection: duckdb.DuckDBPyConnection, expression: str, columns: frozenset[str] = frozenset()
) -> frozenset[WrittenCall]:
    """Return the calls in an expression, given the lower-case names of columns and macro parameters."""
    text = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({expression}\n)"]).fetchall()[0][0]
    return frozenset(written_calls(json.loads(text).get("statements", ()), columns))


def written_calls(tree: Any, columns: frozenset[str] = frozenset()) -> Iterator[WrittenCall]:
    """Yield the calls in a parsed expression.

    Args:
        tree: The result of `json_serialize_sql`, or a part of it.
        columns: Lower-case names that are columns.
    """
    for node in nodes(tree):
        kind = node.get("class")
        if kind == "FUNCTION":
            name = str(node["function_name"]).lower()
            # An older `storage_compatibility_version` has another word for arguments.
            arguments = node["arguments"] if "arguments" in node else node["children"]
            yield WrittenCall(name, len(arguments), f"{name}()")
        elif kind == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = str(node["column_names"][0]).lower()
            if name in engine.WITHOUT_PARENTHESES and name not in columns:
                yield WrittenCall(engine.WITHOUT_PARENTHESES[name], 0, name)


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a parsed or bound expression, parents first."""
    pending = [tree]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            yield found
            pending.extend(reversed(found.values()))
        elif isinstance(found, list):
            pending.extend(reversed(found))


@cache
def _macro_calls(definition: str) -> frozenset[WrittenCall]:
    with engine.connect() as connection:
        return calls_in(connection, definition)
