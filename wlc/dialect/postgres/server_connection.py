"""Settings of a PostgreSQL session, independent of those of the server, the database and the role.

A setting belongs here if it changes how a value or a statement is written or read, which rows a query finds, or how
long a session lives. `tests/postgres/test_session.py` walks all settings of the server and gives the reason for each
omission.

Connections to a PostgreSQL server and translation of its errors, for masters and replicas alike.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from wlc.dialect.sql import literal
from wlc.farm.addresses import without_password, without_secrets
from wlc.farm.errors import FarmError, InvalidError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# Forms of values and statements, also inside functions that the user's session calls.
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
    # The role is the URL's user, even after ALTER ROLE … SET role.
    "role": "none",
    "client_encoding": "UTF8",
    # The server's default abbreviations; functions need none.
    "timezone_abbreviations": "Default",
    # A statement fails if row security would hide rows from it.
    "row_security": "off",
    "gin_fuzzy_search_limit": "0",
    # Statements are checked when they run, and create objects in the default place.
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
    # Statements have no timeout.
    "exit_on_error": "off",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
# Only superusers may change these, so they are set only if the value differs.
_SUPERUSER: Mapping[str, str] = {
    "session_replication_role": "origin",
    "zero_damaged_pages": "off",
    "ignore_checksum_failure": "off",
    "plpgsql.variable_conflict": "error",
}
PINNED: Mapping[str, str] = {**_SESSION, **FORMS, **_SUPERUSER}


def pinning_sql(more: Mapping[str, str]) -> str:
    """Return the query that sets a session's required settings and further ones.

    Settings that the server does not have, or of an extension that is not loaded, are skipped.
    """
    # Until `search_path` is set, functions and operators of other users may hide the server's own.
    rows = ", ".join(f"({literal(name)}, {literal(value)})" for name, value in {**PINNED, **more}.items())
    superuser = ", ".join(map(literal, _SUPERUSER))
    current = "pg_catalog.current_setting(name, true)"
    return (
        f"SELECT pg_catalog.set_config(name, value, false) FROM (VALUES {rows}) AS pinned (name, value)"
        f" WHERE CASE WHEN name OPERATOR(pg_catalog.=) ANY (ARRAY[{superuser}])"
        f" THEN {current} OPERATOR(pg_catalog.<>) value ELSE {current} IS NOT NULL END"
    )


Connection = psycopg.Connection[Any]

_CONNECT_S = "10"
# Keepalives for a connection that is idle between two beats: routers drop it after some minutes, and a server may be
# down.
_KEEPALIVE: Mapping[str, str] = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
_REFUSED = re.compile(
    r"does not exist|authentication failed|no password supplied|pg_hba\.conf|not permitted to log in"
    r"|permission denied|does not support SSL|SSL error: certificate"
)
_NO_DATABASE = re.compile(r'database "([^"]*)" does not exist')
# A URL up to the database's name.
_SERVER = re.compile(r"^(\w+://[^/?]*/)[^?]*")
_OURS = re.compile(r"(?<=[?&])schema=[^&]*&?")
_MALFORMED = re.compile(r"connection option|invalid (?:connection|URI|port|\w+ value)")
# Classes of error codes: connection, resources, operator intervention, system, internal, locks, serialization.
_OUTAGES = frozenset({"08", "40", "53", "55", "57", "58", "XX"})
_FORBIDDEN = "42501"


def connect(
    url: str, *, name: str, settings: Mapping[str, str], shown: str | None = None, replication: bool = False
) -> Connection:
    """Connect. Every statement is a separate transaction unless one is begun.

    Args:
        url: A connection string or URL of libpq; its variables and password file supply missing parts.
        name: Name of the program, for the server's DBA.
        settings: Settings of the session, beside `session.PINNED`.
        shown: The URL in messages; `url` without its password if omitted.
        replication: Use the replication protocol, which supports only simple statements.

    Raises:
        UnavailableError: The server cannot be reached.
        InvalidError: The URL is malformed, or the server refuses the user, the password, the database or a setting.
    """
    shown = shown or without_password(url)
    try:
        defaults: dict[str, Any] = {"fallback_application_name": name}
        if replication:
            defaults["replication"] = "database"
        if "connect_timeout" not in conninfo_to_dict(url) and "PGCONNECT_TIMEOUT" not in os.environ:
            defaults["connect_timeout"] = _CONNECT_S
        connection = psycopg.connect(lasting(url), autocommit=True, **defaults)
    except psycopg.Error as error:
        raise _connecting_error(url, shown, error) from error
    try:
        listing = (
            f"psql {shlex.quote(shown)} -c '\\drds' lists who has it; a superuser runs ALTER DATABASE or ROLE … RESET"
        )
        with talking(shown, privileges=listing):
            connection.execute(pinning_sql(settings).encode())
    except BaseException:
        connection.close()
        raise
    return connection


def lasting(url: str) -> str:
    """Return the connection string with TCP keepalives, unless the URL sets them.

    Raises:
        psycopg.ProgrammingError: The URL is malformed.
    """
    given = conninfo_to_dict(url)
    return make_conninfo(url, **{name: value for name, value in _KEEPALIVE.items() if name not in given})


@contextmanager
def talking(shown: str, *, privileges: str | None = None) -> Iterator[None]:
    """Translate errors of statements.

    Args:
        shown: URL without a password.
        privileges: Hint for a missing privilege; the server's own hint if omitted.

    Raises:
        UnavailableError: The server failed or has become unreachable.
        InvalidError: A privilege is missing, or the server refuses the statement.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None and not is_outage(error):
            # This error is not from the server but a bug in dbfarm.
            raise
        is_forbidden = error.sqlstate == _FORBIDDEN
        hint = privileges if is_forbidden and privileges else error.diag.message_hint
        raise translated(shown, first_line(error), error.sqlstate or "", hint) from error


def translated(shown: str, message: str, state: str, hint: str | None = None) -> FarmError:
    """Translate an error of a server.

    Args:
        shown: URL without a password.
        message: The server's message.
        state: The server's error code, "" if there is none.
        hint: The user's remedy for a refused statement.
    """
    text = f"{shown}: {message.strip()}"
    if not state or state[:2] in _OUTAGES:
        return UnavailableError(text, hint="try again; nothing was lost", path=shown)
    return InvalidError(text, hint=hint, path=shown)


def is_outage(error: psycopg.Error) -> bool:
    """Say whether the server or the connection failed, and not the statement."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def first_line(error: psycopg.Error) -> str:
    """Return the server's message in one line."""
    return (error.diag.message_primary or str(error)).strip().partition("\n")[0]


def _connecting_error(url: str, shown: str, error: psycopg.Error) -> FarmError:
    # Without a server there is no code, only text.
    said = " ".join(str(error).split())
    text = without_secrets(said, url)
    if isinstance(error, psycopg.ProgrammingError) or _MALFORMED.search(said):
        return InvalidError(f"{shown} is no URL of a database: {text}", hint="postgresql://user@host/db", path=shown)
    # PostgreSQL's programs do not accept dbfarm's parameters.
    typed = _OURS.sub("", shown).rstrip("?&")
    if missing := _NO_DATABASE.search(said):
        # Without the URL, these programs connect to the server of their own variables.
        there = shlex.quote(_SERVER.sub(r"\g<1>postgres", typed))
        name = shlex.quote(missing[1])
        hint = (
            f"psql {there} -l lists the server's databases; createdb --maintenance-db={there} {name} adds an empty one"
        )
        return InvalidError(f"{shown}: {text}", hint=hint, path=shown)
    quoted = shlex.quote(typed)
    if "no password supplied" in said:
        hint = f"export PGPASSWORD=… or write a line in ~/.pgpass; psql {quoted} asks for the password, and tries it"
        return InvalidError(f"{shown}: {text}", hint=hint, path=shown)
    if _REFUSED.search(said):
        return InvalidError(f"{shown}: {text}", hint=f"psql {quoted} shows whether you can connect", path=shown)
    return UnavailableError(f"{shown}: {text}", hint=f"pg_isready -d {quoted} says if the server runs", path=shown)
