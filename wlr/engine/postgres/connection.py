"""Connections to a PostgreSQL database that is a replica, and what its errors mean here."""

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

from wlc.address import without_secrets
from wlc.errors import FarmError, InvalidError, UnavailableError
from wlc.model import literal
from wlr.engine import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wlr.engine.place import Place

Connection = psycopg.Connection[tuple[Any, ...]]

# PostgreSQL 12 is the first with stored generated columns.
_OLDEST = 120000
_CONNECT_S = "10"
# Any number will do that nobody else takes: "wlr" in ASCII. Locks of this kind belong to one database.
_LOCK = 0x776C72
# Values are written as PostgreSQL's text in one dialect, and read in it whatever the server's settings are. A step may
# take as long as it takes.
_SESSION = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "standard_conforming_strings": "on",
    "xmloption": "content",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
    # Half a million rows are joined by a hash that fits, and no expression is worth compiling.
    "work_mem": "64MB",
    "temp_buffers": "64MB",
    "jit": "off",
}
_REFUSED = re.compile(
    r"does not exist|authentication failed|no password supplied|no pg_hba\.conf entry|not permitted to log in"
    r"|permission denied|invalid (?:connection|URI|port)|SSL"
)
_HOLDER = """
    SELECT l.pid, a.application_name FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = 0 AND l.objid = %s
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# How long another run may take to go.
_PARTING_S = 1.0
_COPIED = re.compile(r"COPY [^,]+, line \d+, column ([^:]+)")
_MACHINE = (psycopg.OperationalError, psycopg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is.

    Attributes:
        shown: URL without a password.
        schema: Schema that takes the tables of the master's `main`, None where none was asked for.
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
        # What libpq does not understand of the rest it says itself.
        rest = "&".join(f"{name}={quote_plus(value).replace('+', '%20')}" for name, value in pairs if name != "schema")
        return cls(f"{base}?{rest}" if rest else base, str(place), schema)


def connect(address: Address) -> Connection:
    """Connect to the database.

    Raises:
        InvalidError: It is not there, or lets nobody in.
        UnavailableError: It cannot be reached now.
    """
    name = f"wlr, process {os.getpid()} on {socket.gethostname()}"[:63]
    try:
        told = {"fallback_application_name": name, "client_encoding": "utf8"}
        given = psycopg.conninfo.conninfo_to_dict(address.conninfo)
        if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
            told["connect_timeout"] = _CONNECT_S
        connection = psycopg.connect(psycopg.conninfo.make_conninfo(address.conninfo, **told), autocommit=True)
    except psycopg.Error as error:
        raise _connecting_error(error, address) from error
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
    settings = ", ".join(f"set_config({literal(name)}, {literal(value)}, false)" for name, value in _SESSION.items())
    fetch(connection, f"SELECT {settings}")
    # A server that goes on with the statement of a run that was killed keeps the next one waiting.
    with suppress(psycopg.Error):
        connection.execute("SET client_connection_check_interval = 1000")
    connection.prepare_threshold = None


def take_alone(connection: Connection, address: Address) -> None:
    """Keep other runs away until the connection is closed.

    Raises:
        UnavailableError: Another run is at it.
    """
    with using(address):
        until = time.monotonic() + _PARTING_S
        # The server gives up the lock of a connection a moment after that was closed, or its process killed.
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
    """Name the database alike in every run of this user, so that one clears up behind another that was killed."""
    info = connection.info
    named = f"{info.host}\n{info.port}\n{info.dbname}\n{os.getuid()}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def refuse_without_privileges(connection: Connection, address: Address) -> None:
    """Refuse a role under which triggers and foreign keys would do again what the log holds already.

    Raises:
        InvalidError: The role may not turn them off; the hint is the statement that allows it.
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
    """Turn off triggers and foreign keys for the open transaction: what they did in the master is in the log."""
    connection.execute("SET LOCAL session_replication_role = replica")


def fetch(connection: Connection, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    return connection.execute(query.encode(), values).fetchall()


def run(connection: Connection, statement: str) -> int:
    """Run one statement of ours and return how many rows it touched."""
    return connection.execute(statement.encode()).rowcount


def run_foreign(connection: Connection, statement: str) -> None:
    """Run one statement from the farm: the protocol's extended form refuses a second one behind it."""
    connection.execute(statement.encode(), binary=True)


# Errors --------------------------------------------------------------------------------------------------------------


def _connecting_error(error: psycopg.Error, address: Address) -> FarmError:
    text = without_secrets(first_line(error), address.conninfo)
    message = f"{address.shown} cannot be opened: {text}"
    if isinstance(error, psycopg.OperationalError) and not _REFUSED.search(str(error)):
        return UnavailableError(message, path=address.shown)
    if "database" in text and "does not exist" in text:
        return InvalidError(message, hint="createdb NAME", path=address.shown)
    hint = "Give postgresql://USER@HOST/DATABASE, and the password in ~/.pgpass or PGPASSWORD."
    return InvalidError(message, hint=hint, path=address.shown)


@contextmanager
def using(address: Address) -> Iterator[None]:
    """Turn PostgreSQL's errors outside of steps into `UnavailableError`, or `InvalidError` where rights are missing."""
    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise _forbidden(error, address) from error
    except psycopg.Error as error:
        raise UnavailableError(f"{address.shown}: {first_line(error)}", path=address.shown) from error


@contextmanager
def applying(address: Address) -> Iterator[None]:
    """Turn PostgreSQL's errors in a step into `StepError`, or `UnavailableError` where the machine failed."""
    try:
        yield
    except _MACHINE as error:
        hint = "Nothing was lost: run it again."
        message = f"writing to {address.shown} failed: {first_line(error)}"
        raise UnavailableError(message, hint=hint, path=address.shown) from error
    except errors.InsufficientPrivilege as error:
        raise _forbidden(error, address) from error
    except psycopg.Error as error:
        raise StepError(cause(error)) from error


def _forbidden(error: psycopg.Error, address: Address) -> InvalidError:
    hint = "The role needs CREATE and TEMPORARY in the database, and to own the replica's tables."
    return InvalidError(f"{address.shown}: {first_line(error)}", hint=hint, path=address.shown)


def cause(error: psycopg.Error, columns: Mapping[str, str] | None = None) -> str:
    """What PostgreSQL says, and of which column of a data file; the row itself stays out of messages.

    Args:
        error: What it said.
        columns: How the table calls the columns that PostgreSQL may have named.
    """
    parts = [first_line(error), error.diag.message_detail or ""]
    if found := _COPIED.match(error.diag.context or ""):
        parts.append(f"column {(columns or {}).get(found[1], found[1])}")
    return "; ".join(part.rstrip(".") for part in parts if part)


def first_line(error: psycopg.Error) -> str:
    """What PostgreSQL says, in one line."""
    return (error.diag.message_primary or str(error)).strip().partition("\n")[0]
