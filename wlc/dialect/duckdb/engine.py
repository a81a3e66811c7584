"""What dbfarm knows of DuckDB itself: the version, and what DuckDB's catalogs say about its own functions and settings.

Versions of DuckDB differ in them. So every question to these catalogs is asked here, and other files take the answers.
A test compares the catalogs of the engine that runs with those that were last understood, and names each difference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SUPPORTED = "DuckDB 2.0.1 and later, before 2.1"
REQUIREMENT = "duckdb>=2.0.1,<2.1"
_UNREADABLE = ("2.0.0",)
# Methods of a connection that no documentation names, docs/decisions/0012-private-methods-of-duckdb.md.
PRIVATE_METHODS = ("_submit", "_register_collection", "_prepare_script", "_create_view", "_bind", "_table_kind")
# Kinds that `duckdb_functions` tells apart, by the place of a call.
IN_FROM = ("table", "table_macro", "pragma")
IN_EXPRESSIONS = ("scalar", "aggregate", "window", "macro")
# Types whose values a calculation takes to the setting TimeZone, as the catalogs and bound expressions write them.
ZONED = ("WITH TIME ZONE", "TIMESTAMPTZ_NS")
# Functions that are written without parentheses, where no column has the name.
WITHOUT_PARENTHESES = {
    "current_catalog": "current_catalog",
    "current_date": "current_date",
    "current_role": "current_role",
    "current_schema": "current_schema",
    "current_time": "get_current_time",
    "current_timestamp": "get_current_timestamp",
    "current_user": "current_user",
    "localtime": "current_localtime",
    "localtimestamp": "current_localtimestamp",
    "session_user": "session_user",
    "user": "user",
}
# They order values by default_order and default_null_order.
ORDERED_BY_SETTINGS = frozenset(
    "array_grade_up array_reverse_sort array_sort grade_up list_grade_up list_reverse_sort list_sort".split()
)
# DuckDB calls these consistent. With one argument, `age` counts from today; others tell of the program or the session.
_VARYING = frozenset(
    [("age", 1), ("version", 0), *((name, 0) for name in ("current_role", "current_user", "session_user", "user"))]
)
_CONSISTENT = "CONSISTENT"
_VOLATILE = "VOLATILE"
_FUNCTIONS = """
    SELECT lower(function_name), function_type, coalesce(stability, ''), parameter_types, coalesce(varargs, ''),
        coalesce(return_type, ''), coalesce(macro_definition, '')
    FROM duckdb_functions() WHERE internal
"""


@dataclass(frozen=True)
class Overload:
    """One of the functions of a name.

    Attributes:
        kind: One of `IN_FROM` and `IN_EXPRESSIONS`.
        stability: DuckDB's word for how long the same arguments give the same answer; "" for a macro.
        parameters: Types of the parameters.
        varargs: Type of any more arguments; "" if there can be none.
        returned: Type of the answer, as far as it is the same for all arguments.
        definition: The expression that a macro stands for; "" for others.
    """

    kind: str
    stability: str
    parameters: tuple[str, ...]
    varargs: str
    returned: str
    definition: str

    @property
    def is_consistent(self) -> bool:
        """Whether DuckDB says that the same arguments always give the same answer."""
        return self.stability == _CONSISTENT

    @property
    def depends_on_zone(self) -> bool:
        """Whether the setting TimeZone decides about the answer, and nothing else besides the arguments."""
        return not self.is_consistent and bool(self.parameters) and is_zoned((*self.parameters, self.returned))

    @cached_property
    def calls(self) -> frozenset[WrittenCall]:
        """The calls in the definition of a macro."""
        if not self.definition:
            return frozenset()
        with duckdb.connect() as connection:
            return calls_in(connection, self.definition)


@dataclass(frozen=True, slots=True, order=True)
class WrittenCall:
    """A call in an expression as it is written, whose arguments have no types yet.

    Attributes:
        name: In lower case.
        count: Number of arguments.
        text: What to call it in a message.
    """

    name: str
    count: int
    text: str


def defect() -> str | None:
    """Return what this version does wrong that others cannot make up for; None for a supported one."""
    # Rows that several threads add to a table stay unread, if an INSERT of no rows came before in the transaction.
    return "reads no rows of some tables" if duckdb.__version__ in _UNREADABLE else None


def is_zoned(types: Sequence[str]) -> bool:
    """Whether a type, or a member of one, is a time with time zone."""
    return any(zoned in text for text in types for zoned in ZONED)


@cache
def functions() -> Mapping[str, tuple[Overload, ...]]:
    """Return all functions of DuckDB's own, by lower-case name; an extension that is loaded later has others."""
    found: dict[str, list[Overload]] = {}
    with duckdb.connect() as connection:
        for name, kind, stability, parameters, *texts in connection.execute(_FUNCTIONS).fetchall():
            overload = Overload(kind, stability, tuple(each or "" for each in parameters), *texts)
            found.setdefault(name, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}


@cache
def names(*kinds: str) -> frozenset[str]:
    """Return the lower-case names of DuckDB's own functions of some kinds."""
    return frozenset(name for name, overloads in functions().items() if any(each.kind in kinds for each in overloads))


def is_volatile(name: str) -> bool:
    """Say whether a second call in a transaction may give another answer; true for a name that is not DuckDB's own."""
    overloads = _computing(name)
    return not overloads or any(each.stability == _VOLATILE for each in overloads)


def varies(name: str, count: int) -> bool:
    """Say whether a call may give another answer at another time or in another session, whatever its arguments are.

    The time zone of the session is not meant: only the types of the arguments say whether it matters.

    Args:
        name: In lower case. A name that is not DuckDB's own does not vary.
        count: Number of arguments.
    """
    if (name, count) in _VARYING:
        return True
    if overloads := _computing(name):
        fitting = [each for each in overloads if len(each.parameters) == count or each.varargs] or overloads
        return not any(each.is_consistent or each.depends_on_zone for each in fitting)
    macros = (each for each in functions().get(name, ()) if each.kind == "macro")
    return any(varies(call.name, call.count) for each in macros for call in each.calls if call.name != name)


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a bound expression.

    Attributes:
        name: In lower case.
        count: Number of arguments.
        meant: The functions of which it is one; empty if it is not DuckDB's own.
    """

    name: str
    count: int
    meant: tuple[Overload, ...]

    @property
    def is_consistent_in_zone(self) -> bool:
        """Whether nothing but the arguments and the setting TimeZone decides about the answer."""
        settled = all(each.is_consistent or each.depends_on_zone for each in self.meant)
        return bool(self.meant) and settled and not varies(self.name, self.count)

    @property
    def depends_on_zone(self) -> bool:
        """Whether the setting TimeZone may decide about the answer, too."""
        return any(each.depends_on_zone for each in self.meant)


def bound_calls(tree: Any) -> Iterator[Call]:
    """Yield the calls in a bound expression: what `json_serialize_plan` returns, or a part of it.

    DuckDB replaces arguments that are the same for all rows by their values: `now() - x` shows no call of `now`.
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
    """Return the name of a type of a bound expression; that of a nested one with all its members if one is zoned."""
    text = json.dumps(type_)
    name = str(type_["id"]) if isinstance(type_, dict) else text
    return text if is_zoned([text]) and not is_zoned([name]) else name


def _meant(name: str, types: Sequence[str]) -> tuple[Overload, ...]:
    overloads = _computing(name)
    exact = tuple(each for each in overloads if each.parameters == tuple(types))
    if exact or is_zoned(types):
        return exact or overloads
    # DuckDB lists no parameters for those that bind themselves, as + of lists.
    return tuple(each for each in overloads if not is_zoned(each.parameters)) or overloads


def calls_in(connection: duckdb.DuckDBPyConnection, expression: str) -> frozenset[WrittenCall]:
    """Return the calls in an expression."""
    text = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({expression}\n)"]).fetchall()[0][0]
    return frozenset(written_calls(json.loads(text).get("statements", ())))


def written_calls(tree: Any, columns: frozenset[str] = frozenset()) -> Iterator[WrittenCall]:
    """Yield the calls in a parsed expression.

    Args:
        tree: What `json_serialize_sql` returns, or a part of it.
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
            if name in WITHOUT_PARENTHESES and name not in columns:
                yield WrittenCall(WITHOUT_PARENTHESES[name], 0, name)


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


def _computing(name: str) -> tuple[Overload, ...]:
    return tuple(each for each in functions().get(name, ()) if each.kind in ("scalar", "aggregate", "window"))


def of_session(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> frozenset[str]:
    """Return the settings that have a value of the session's own, whatever DuckDB thinks of the setting."""
    # Without the option, DuckDB lists neither deprecated settings nor those for debugging.
    query = "SELECT name FROM duckdb_settings(include_all := true) WHERE list_contains(?, name) AND scope = 'LOCAL'"
    return frozenset(name for (name,) in connection.execute(query, [list(names)]).fetchall())
