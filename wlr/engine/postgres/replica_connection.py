"""Connections to a PostgreSQL replica, and the meaning of its errors in a step."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote_plus

import psycopg
from psycopg import errors

from wlc.dialect.postgres import server_connection as connections
from wlc.dialect.postgres.server_connection import first_line, is_outage
from wlc.farm.errors import InvalidError, UnavailableError
from wlr.replay.ddl.limits import limit_s, overrun
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from wlc.dialect.postgres.server_connection import Connection
    from wlr.engine.place import Place


# PostgreSQL 12 is the first with stored generated columns.
_OLDEST = 120000
# Any number that no other program uses: "wlr" in ASCII. Locks of this kind belong to one database.
_LOCK = 0x776C72
_SETTINGS = {
    # Checks and generated columns call functions by names that a master's users resolve in these schemas.
    "search_path": "public",
    # A hash join of half a million rows fits into memory, and compiling expressions does not pay off.
    "work_mem": "64MB",
    "temp_buffers": "64MB",
    "jit": "off",
}
_PRIVILEGES = "The role needs CREATE and TEMPORARY in the database, and to own the replica's tables."
_HOLDER = """
    SELECT l.pid, a.application_name FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = 0 AND l.objid = %s
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# How long another run may take to end.
_PARTING_S = 1.0
_COPIED = re.compile(r"COPY [^,]+, line \d+, column ([^:]+)")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the database.

    Attributes:
        shown: URL without a password.
        schema: Schema for the tables of the master's `main`; None if the user named none.
    """

    conninfo: str
    shown: str
    schema: str | None

    @classmethod
    def of(cls, place: Place) -> Address:
        """Read a place."""
        base, _, query = place.url.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        schema = next((value for name, value in pairs if name == "schema"), None)
        if schema == "":
            raise InvalidError(f"{place} names no schema", hint="Leave ?schema= out for schema public.")
        # libpq itself reports parameters that it does not understand.
        rest = "&".join(f"{name}={quote_plus(value).replace('+', '%20')}" for name, value in pairs if name != "schema")
        return cls(f"{base}?{rest}" if rest else base, str(place), schema)


def connect(address: Address) -> Connection:
    """Connect to the database.

    Raises:
        InvalidError: The database does not exist, or refuses the user.
        UnavailableError: The server cannot be reached.
    """
    name = f"wlr, process {os.getpid()} on {socket.gethostname()}"[:63]
    connection = connections.connect(address.conninfo, name=name, settings=_SETTINGS, shown=address.shown)
    try:
        with using(address):
            _set_up(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, address: Address) -> None:
    version = connection.info.server_version
    if version < _OLDEST:
        message = f"{address.shown} is PostgreSQL {version // 10000}; a replica needs 12 or later"
        raise InvalidError(message, path=address.shown)
    # Without it, the server continues the statement of a killed run, and the next run waits.
    with suppress(psycopg.Error):
        connection.execute("SET client_connection_check_interval = 1000")
    connection.prepare_threshold = None


def take_alone(connection: Connection, address: Address) -> None:
    """Lock the replica against other runs until the connection is closed.

    Raises:
        UnavailableError: Another run has locked it.
    """
    with using(address):
        until = time.monotonic() + _PARTING_S
        # The server releases the lock a moment after the connection was closed, or its process killed.
        while not fetch(connection, "SELECT pg_try_advisory_lock(%s)", [_LOCK])[0][0]:
            if time.monotonic() > until:
                break
            time.sleep(_PARTING_S / 20)
        else:
            return
        holder = fetch(connection, _HOLDER, [_LOCK])
    who = f"process {holder[0][0]} ({holder[0][1]})" if holder else "another process"
    message = f"{address.shown} is in use by {who}: try again when it is done"
    raise UnavailableError(message, path=address.shown)


def identity(connection: Connection) -> str:
    """Return a stable id of the database for this user, so that a run cleans up after a killed one."""
    info = connection.info
    named = f"{info.host}\n{info.port}\n{info.dbname}\n{os.getuid()}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def refuse_without_privileges(connection: Connection, address: Address) -> None:
    """Refuse a role that cannot turn off triggers and foreign keys, whose effects the log already contains.

    Raises:
        InvalidError: The role lacks the privilege; the hint is the statement that grants it.
    """
    try:
        with connection.transaction():
            as_replica(connection)
    except errors.InsufficientPrivilege as error:
        role = connection.info.user
        message = f"role {role} may not set session_replication_role in {address.shown}"
        if connection.info.server_version >= 150000:
            hint = f'As a superuser: GRANT SET ON PARAMETER session_replication_role TO "{role}";'
        else:
            hint = "Before PostgreSQL 15 only a superuser may: replicate as one."
        raise InvalidError(message, hint=hint, path=address.shown) from error


def as_replica(connection: Connection) -> None:
    """Turn off triggers and foreign keys in the open transaction: the log contains their effects in the master."""
    connection.execute("SET LOCAL session_replication_role = replica")


def fetch(
    connection: Connection, query: str, values: Sequence[Any] | Mapping[str, str | None] | None = None
) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    return connection.execute(query.encode(), values).fetchall()


def run(connection: Connection, statement: str) -> int:
    """Run one of our own statements and return the number of changed rows."""
    return connection.execute(statement.encode()).rowcount


def run_foreign(connection: Connection, statement: str) -> None:
    """Run one statement from the farm. The extended protocol refuses a second statement in the same text.

    Args:
        connection: Connection in a transaction, which the caller rolls back, or back to a savepoint, after an error.
        statement: Its text.

    Raises:
        StepError: It took too long.
    """
    seconds = limit_s(statement)
    query = "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %s, true)"
    before = fetch(connection, query, [f"{max(1, round(seconds * 1000))}ms"])[0][0]
    begun = time.monotonic()
    try:
        connection.execute(statement.encode(), binary=True)
    except errors.QueryCanceled as error:
        if time.monotonic() - begun < seconds:
            raise
        raise overrun(seconds) from error
    connection.execute("SELECT set_config('statement_timeout', %s, true)", [before])


# Errors --------------------------------------------------------------------------------------------------------------


def using(address: Address) -> AbstractContextManager[None]:
    """Translate errors outside of steps; raises as `wlc.dialect.postgres.server_connection.talking` does."""
    return connections.talking(address.shown, privileges=_PRIVILEGES)


@contextmanager
def applying(address: Address) -> Iterator[None]:
    """Translate errors in a step.

    Raises:
        StepError: The server refuses the step.
        UnavailableError: The server or the connection failed.
        InvalidError: The role lacks a privilege.
    """
    try:
        yield
    except psycopg.Error as error:
        if is_outage(error):
            hint = "Nothing was lost: run it again."
            message = f"writing to {address.shown} failed: {first_line(error)}"
            raise UnavailableError(message, hint=hint, path=address.shown) from error
        if isinstance(error, errors.InsufficientPrivilege):
            message = f"{address.shown}: {first_line(error)}"
            raise InvalidError(message, hint=_PRIVILEGES, path=address.shown) from error
        raise StepError(cause(error), is_constraint=isinstance(error, psycopg.IntegrityError)) from error


def cause(error: psycopg.Error, columns: Mapping[str, str] | None = None) -> str:
    """Return PostgreSQL's message with the column of a data file, but without the row.

    Args:
        error: PostgreSQL's error.
        columns: The table's names of the columns that the message may name.
    """
    parts = [first_line(error), error.diag.message_detail or ""]
    if found := _COPIED.match(error.diag.context or ""):
        parts.append(f"column {(columns or {}).get(found[1], found[1])}")
    return "; ".join(part.rstrip(".") for part in parts if part)
