"""Settings of a PostgreSQL session: whatever the server, the database and the role have, ours are the same.

A setting belongs here if it changes how a value or a statement is written or read, which rows a query finds, or how
long a session lives. `tests/postgres/test_session.py` walks all settings of the server and says why others do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

# How values and statements are written and read, also inside of functions that the user's session calls.
FORMS: Mapping[str, str] = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "array_nulls": "on",
    "xmlbinary": "base64",
    "xmloption": "content",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "default_text_search_config": "pg_catalog.simple",
}
_SESSION: Mapping[str, str] = {
    # The user is the one that the URL names, whatever role ALTER ROLE … SET role gives it.
    "role": "none",
    "client_encoding": "UTF8",
    # The server's own abbreviations, of which functions need none.
    "timezone_abbreviations": "Default",
    # A statement fails where row security would hide rows from it.
    "row_security": "off",
    "gin_fuzzy_search_limit": "0",
    # Statements are checked when they are run, and make what they say, in the usual place.
    "check_function_bodies": "on",
    "default_tablespace": "",
    "temp_tablespaces": "",
    "default_table_access_method": "heap",
    "default_toast_compression": "pglz",
    "restrict_nonsystem_relation_kind": "",
    "plpgsql.check_asserts": "on",
    "plpgsql.extra_errors": "none",
    "plpgsql.extra_warnings": "none",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A statement may take as long as it takes, and fail.
    "exit_on_error": "off",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
# Only superusers may change these, so they are left alone where they have the value already.
_SUPERUSER: Mapping[str, str] = {
    "session_replication_role": "origin",
    "zero_damaged_pages": "off",
    "ignore_checksum_failure": "off",
    "plpgsql.variable_conflict": "error",
}
PINNED: Mapping[str, str] = {**_SESSION, **FORMS, **_SUPERUSER}


def pinning_sql(more: Mapping[str, str]) -> str:
    """Return the query that gives a session the settings that everything here relies on, and more.

    Settings that the server does not have, or an extension that is not loaded, are passed over.
    """
    # Until `search_path` is set, functions and operators of others may be in the way of the server's own.
    rows = ", ".join(f"({literal(name)}, {literal(value)})" for name, value in {**PINNED, **more}.items())
    superuser = ", ".join(map(literal, _SUPERUSER))
    current = "pg_catalog.current_setting(name, true)"
    return (
        f"SELECT pg_catalog.set_config(name, value, false) FROM (VALUES {rows}) AS pinned (name, value)"
        f" WHERE CASE WHEN name OPERATOR(pg_catalog.=) ANY (ARRAY[{superuser}])"
        f" THEN {current} OPERATOR(pg_catalog.<>) value ELSE {current} IS NOT NULL END"
    )
