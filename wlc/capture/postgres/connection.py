"""Connections to a PostgreSQL master, and what the server's errors mean here."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from wlc.address import without_password, without_secrets
from wlc.errors import FarmError, InvalidError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

# Text forms that do not depend on anybody's settings.
_FORMS = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"
# What takes long here is no mistake.
_SETTINGS = f"{_FORMS} -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
_RETRY = {"08", "53", "57", "58", "XX", "55", "40"}


def connect(url: str, *, replication: bool = False) -> psycopg.Connection[Any]:
    """Connect; every statement is its own transaction unless one is begun.

    Args:
        url: `postgresql://user@host/database`; libpq's variables and password file fill in what it leaves out.
        replication: Speak the replication protocol, which knows few statements and no others.

    Raises:
        UnavailableError: The server cannot be reached.
        InvalidError: It refuses the user, the password or the database.
    """
    more: dict[str, Any] = {"replication": "database"} if replication else {"options": _SETTINGS}
    try:
        return psycopg.connect(url, autocommit=True, application_name="dbfarm", **more)
    except psycopg.Error as error:
        raise _connecting_error(url, error) from error


class Reader:
    """Reads large answers as Arrow: rows go from the server into columns without passing through Python.

    Raises:
        UnavailableError: The server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        import adbc_driver_postgresql.dbapi as adbc

        self._url = url
        try:
            self._connection = adbc.connect(url)
            self._cursor = self._connection.cursor()
            for setting in re.findall(r"-c (\w+)=(\S+)", _SETTINGS):
                self._cursor.execute(f"SET {setting[0]} = '{setting[1]}'")
            self._connection.commit()
        except adbc.Error as error:
            where = without_password(url)
            raise UnavailableError(f"{where}: {_first_line(error)}", path=where) from error

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._cursor.close()
        self._connection.close()

    def run(self, statement: str) -> None:
        """Run a statement without an answer, in the open transaction."""
        with self._talking():
            self._cursor.execute(statement)

    def blocks(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the answer of a query a block at a time, and end the transaction."""
        with self._talking():
            self._cursor.execute(query)
            reader = self._cursor.fetch_record_batch()
            yield from reader

    @contextmanager
    def _talking(self) -> Iterator[None]:
        import adbc_driver_postgresql.dbapi as adbc

        try:
            yield
        except adbc.Error as error:
            state = getattr(error, "sqlstate", None) or ""
            raise translated(self._url, str(error), state) from error
        except OSError as error:
            # What fails in the middle of an answer has no code.
            raise translated(self._url, _first_line(error), "") from error


@contextmanager
def talking(url: str) -> Iterator[None]:
    """Turn errors of statements into the farm's."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
            # No answer of the server, but a mistake of ours.
            raise
        raise translated(url, _first_line(error), error.sqlstate or "", error.diag.message_hint) from error


def translated(url: str, message: str, state: str, hint: str | None = None) -> FarmError:
    """Return the error that a server's error means: it failed, or what was asked of it is wrong."""
    where = without_password(url)
    text = f"{where}: {message.strip()}"
    if not state or state[:2] in _RETRY:
        return UnavailableError(text, hint="try again; nothing was lost", path=where)
    return InvalidError(text, hint=hint, path=where)


def _connecting_error(url: str, error: psycopg.Error) -> FarmError:
    # Without a server there is no code, only text.
    said = " ".join(str(error).split())
    text, where = without_secrets(said, url), without_password(url)
    if "does not exist" in said or "authentication failed" in said or "no password supplied" in said:
        return InvalidError(f"{where}: {text}", hint=f"psql '{where}' shows whether you can connect", path=where)
    if isinstance(error, psycopg.ProgrammingError) or "connection option" in said:
        return InvalidError(f"{where} is no URL of a database: {text}", hint="postgresql://user@host/db", path=where)
    return UnavailableError(f"{where}: {text}", hint="is the server running?", path=where)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
