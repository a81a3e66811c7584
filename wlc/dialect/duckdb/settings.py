"""Settings of DuckDB by their effect on a schema statement. A test compares the lists with those of DuckDB."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import engine
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import duckdb

    from wlc.farm.model import Settings

# Settings that control how a statement is parsed, bound or computed: with another value it creates another object, or
# fails. The log states them with each statement, unless they have the value given here.
MEANING = {
    "Calendar": "gregorian",
    "TimeZone": "UTC",
    "default_collation": "",
    "default_null_order": "NULLS_LAST",
    "default_order": "ASCENDING",
    "dialect_compatibility_mode": "NONE",
    "disable_timestamptz_casts": "false",
    "error_on_division_by_zero": "true",
    "ieee_floating_point_ops": "true",
    "ignore_unknown_crs": "false",
    "integer_division": "false",
    "json_geometry_format": "wkt",
    "legacy_disable_null_type": "false",
    "order_by_non_integer_literal": "false",
    "preserve_identifier_case": "preserve_case",
    "regex_match_operator_semantics": "partial",
    "scalar_subquery_error_on_multiple_rows": "true",
    "table_function_identifier_conversion": "DEFAULT",
}
# Settings that change which rows a CHECK constraint or an index key accepts after its creation. The others matter at
# parsing, or for computations that are refused in such places.
_OF_ROWS = ("default_collation", "error_on_division_by_zero", "ieee_floating_point_ops")
_NAMES_OF_ROWS = re.compile("|".join(_OF_ROWS), re.IGNORECASE)
# Settings that let DuckDB accept text that replicas refuse: by another parser, which replicas do not have, or by
# deprecated rules. Statements accepted because of such a setting would fail again whenever a view is bound.
REFUSED = {
    "active_grammar_extensions": "[]",
    "allow_parser_override_extension": "DEFAULT",
    "current_dialect": None,
    "lambda_syntax": "DEFAULT",
    "old_implicit_casting": "false",
}
# Alternative forms in which DuckDB shows a value of `MEANING`. The default time zone is the machine's.
_SAME = {"ASC": "ASCENDING", "Etc/UTC": "UTC"}
# A value of `MEANING` as DuckDB shows it.
_VALUE = re.compile(r"[\w+/.\- ]{0,64}", re.ASCII)


def of_session(connection: duckdb.DuckDBPyConnection) -> Settings:
    """Return the settings that change what the session's statements mean.

    Raises:
        UnsupportedError: The session accepts text that replicas refuse.
    """
    found = _values(connection, (*MEANING, *REFUSED))
    for name, value in REFUSED.items():
        if found[name] != value:
            raise UnsupportedError(
                f"schema statements cannot be captured while setting {name} is {found[name]}: replicas do not have it",
                hint=f"RESET {name}",
            )
    return tuple((name, _SAME.get(found[name], found[name])) for name in sorted(MEANING) if _differs(name, found[name]))


def is_allowed(settings: Settings) -> bool:
    """Whether a statement from the farm may have these settings."""
    return all(name in MEANING and _VALUE.fullmatch(value) for name, value in settings)


@contextmanager
def applied(connection: duckdb.DuckDBPyConnection, settings: Settings) -> Iterator[None]:
    """Apply the settings of a statement's original session; the caller has exclusive access to the database."""
    if not settings:
        yield
        return
    # A failed transaction cannot run SET. Another connection changes settings without a session value.
    with connection.cursor() as other:
        before = _values(other, [name for name, _ in settings])
        try:
            _set(other, settings)
            yield
        finally:
            _set(other, before.items())


def is_locked(connection: duckdb.DuckDBPyConnection) -> bool:
    """Say whether no setting can be changed any more."""
    return _values(connection, ["lock_configuration"])["lock_configuration"] == "true"


def names_row_setting(text: str) -> bool:
    """Say whether a statement may change a setting of `row_settings_changed`."""
    return _NAMES_OF_ROWS.search(text) is not None


def row_settings_changed(connection: duckdb.DuckDBPyConnection) -> Settings:
    """Return a session's settings that affect which rows are accepted and differ from DuckDB's default."""
    return tuple((name, value) for name, value in _values(connection, _OF_ROWS).items() if value != MEANING[name])


def without_row_settings(connection: duckdb.DuckDBPyConnection) -> AbstractContextManager[None]:
    """Reset a session's settings that affect which rows are accepted to DuckDB's defaults."""
    return held(connection, {name: MEANING[name] for name, _ in row_settings_changed(connection)})


@contextmanager
def held(connection: duckdb.DuckDBPyConnection, values: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings temporarily; inherited settings are inherited again afterwards."""
    before = _values(connection, list(values)) if values else {}
    own = engine.of_session(connection, list(values)) if values else frozenset()
    try:
        for name, value in values.items():
            connection.execute(f"SET SESSION {quote(name)} = {literal(value)}")
        yield
    finally:
        for name, value in before.items():
            connection.execute(
                f"SET SESSION {quote(name)} = {literal(value)}" if name in own else f"RESET SESSION {quote(name)}"
            )


def search_path_sql(catalog: str, schemas: Sequence[str]) -> str:
    """Return the statement that sets the search path to these schemas of a database."""
    paths = [f"{quote(catalog)}.{quote(schema)}" for schema in schemas]
    # SET search_path cannot read doubled quotes, so DuckDB supports no longer path with such a name either.
    return f"USE {paths[0]}" if len(paths) == 1 else f"SET search_path = {literal(','.join(paths))}"


def _differs(name: str, value: str) -> bool:
    return _SAME.get(value, value) != MEANING[name]


def _values(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> dict[str, str]:
    # duckdb_settings() takes several times as long, because it shows all of them.
    listed = ", ".join(f"CAST(current_setting({literal(name)}) AS VARCHAR)" for name in names)
    return dict(zip(names, connection.execute(f"SELECT {listed}").fetchall()[0], strict=True))


def _set(connection: duckdb.DuckDBPyConnection, settings: Iterable[tuple[str, str]]) -> None:
    for name, value in settings:
        connection.execute(f"SET GLOBAL {quote(name)} = {literal(value)}")
