"""Facts about DuckDB itself: the version, and the catalogs of its own functions and settings.

Versions of DuckDB differ in them. So only this file queries these catalogs, and other files take its results. A test
compares the running engine's catalogs with the recorded ones, and reports each difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import duckdb

# The only way in which dbfarm itself connects: a program may set `duckdb.connect = wlc.connect`.
from _duckdb import connect as connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST, BELOW = "2.0.1", "2.1"
SUPPORTED = f"DuckDB {LEAST} and later, before {BELOW}"
REQUIREMENT = f"duckdb>={LEAST},<{BELOW}"
_UNREADABLE = ("2.0.0",)
NEWEST_STORAGE_VERSION = "v2.0.0"
# Storage versions for readers with an older DuckDB, each with the column types that it lacks, by their names in
# `wlc/dialect/types`. A file with one of them has no triggers.
STORAGE_VERSIONS = {
    "v1.4.0": frozenset({"EMPTY STRUCT", "TIMESTAMPTZ_NS", "TUPLE", "VARIANT"}),
    "v1.5.0": frozenset({"EMPTY STRUCT", "TIMESTAMPTZ_NS", "TUPLE"}),
}
# DuckDB writes this type into files of these versions, anywhere in a schema; older readers then cannot open the file.
UNREADABLE_TYPE = "TIMESTAMPTZ_NS"
# Undocumented methods of a connection, docs/decisions/0012-private-methods-of-duckdb.md.
PRIVATE_METHODS = ("_submit", "_register_collection", "_prepare_script", "_create_view", "_bind", "_table_kind")
# Kinds that `duckdb_functions` distinguishes, by the place of a call.
IN_FROM = ("table", "table_macro", "pragma")
IN_EXPRESSIONS = ("scalar", "aggregate", "window", "macro")
# Types whose calculations depend on the setting TimeZone, as the catalogs and bound expressions write them.
ZONED = ("WITH TIME ZONE", "TIMESTAMPTZ_NS")
# Functions that are called without parentheses if no column has the name.
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
# Functions that order values by default_order and default_null_order.
ORDERED_BY_SETTINGS = frozenset(
    "array_grade_up array_reverse_sort array_sort grade_up list_grade_up list_reverse_sort list_sort".split()
)
# DuckDB calls these consistent. But `age` with one argument counts from today, and the others depend on the program or
# the session.
VARYING = frozenset(
    [("age", 1), ("version", 0), *((name, 0) for name in ("current_role", "current_user", "session_user", "user"))]
)
_CONSISTENT = "CONSISTENT"
_VOLATILE = "VOLATILE"
_FUNCTIONS = """
    SELECT lower(function_name), function_type, coalesce(stability, ''), parameter_types, coalesce(varargs, ''),
        coalesce(return_type, ''), coalesce(macro_definition, '')
    FROM duckdb_functions() WHERE internal
"""


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload of a function.

    Attributes:
        kind: One of `IN_FROM` and `IN_EXPRESSIONS`.
        stability: DuckDB's classification of when the same arguments give the same result; "" for a macro.
        parameters: Types of the parameters.
        varargs: Type of further arguments; "" if none are allowed.
        returned: Type of the result, if it is the same for all arguments.
        definition: The expression of a macro; "" for others.
    """

    kind: str
    stability: str
    parameters: tuple[str, ...]
    varargs: str
    returned: str
    definition: str

    @property
    def is_consistent(self) -> bool:
        """Whether the same arguments always give the same result, according to DuckDB."""
        return self.stability == _CONSISTENT

    @property
    def depends_on_zone(self) -> bool:
        """Whether the result depends on the setting TimeZone, and otherwise only on the arguments."""
        return not self.is_consistent and bool(self.parameters) and is_zoned((*self.parameters, self.returned))


def running() -> str:
    """Return the name and version of the engine, for messages."""
    return f"DuckDB {duckdb.__version__}"


def defect() -> str | None:
    """Return a defect of this version that dbfarm cannot work around; None for a supported version."""
    # Rows that several threads add to a table are not read if an INSERT of no rows preceded in the transaction.
    return "reads no rows of some tables" if duckdb.__version__ in _UNREADABLE else None


def storage_version(connection: duckdb.DuckDBPyConnection, catalog: str) -> str:
    """Return the oldest version of DuckDB that can read the file of a database, such as `v2.0.0`."""
    query = "SELECT tags['storage_version'] FROM duckdb_databases() WHERE database_name = ?"
    return str(connection.execute(query, [catalog]).fetchall()[0][0]).removesuffix("+")


def is_zoned(types: Sequence[str]) -> bool:
    """Whether a type, or a member of one, is a time with time zone."""
    return any(zoned in text for text in types for zoned in ZONED)


@cache
def functions() -> Mapping[str, tuple[Overload, ...]]:
    """Return DuckDB's own functions by lower-case name; an extension that is loaded later adds others."""
    found: dict[str, list[Overload]] = {}
    with connect() as connection:
        for name, kind, stability, parameters, *texts in connection.execute(_FUNCTIONS).fetchall():
            overload = Overload(kind, stability, tuple(each or "" for each in parameters), *texts)
            found.setdefault(name, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}


@cache
def names(*kinds: str) -> frozenset[str]:
    """Return the lower-case names of DuckDB's own functions of some kinds."""
    return frozenset(name for name, overloads in functions().items() if any(each.kind in kinds for each in overloads))


def is_volatile(name: str) -> bool:
    """Say whether a second call in a transaction may give another result; true for a name that is not DuckDB's own."""
    overloads = computing(name)
    return not overloads or any(each.stability == _VOLATILE for each in overloads)


def computing(name: str) -> tuple[Overload, ...]:
    """Return the functions of a lower-case name that compute a value; macros and table functions are left out."""
    return tuple(each for each in functions().get(name, ()) if each.kind in ("scalar", "aggregate", "window"))


def of_session(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> frozenset[str]:
    """Return the settings with a session value, also deprecated and debugging ones."""
    # Without the option, DuckDB lists neither deprecated settings nor those for debugging.
    query = "SELECT name FROM duckdb_settings(include_all := true) WHERE list_contains(?, name) AND scope = 'LOCAL'"
    return frozenset(name for (name,) in connection.execute(query, [list(names)]).fetchall())
