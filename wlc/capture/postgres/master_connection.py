"""Connections to a PostgreSQL master, and translation of the server's errors."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from wlc.dialect.postgres import server_connection as connections
from wlc.dialect.postgres.server_connection import pinning_sql
from wlc.farm.addresses import without_password
from wlc.farm.errors import UnavailableError
from wlc.farm.read_ahead import one_ahead

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from wlc.dialect.postgres.server_connection import Connection


_NAME = "dbfarm"
_SETTINGS = {
    # All names are qualified, also those that the server writes.
    "search_path": "pg_catalog, pg_temp",
    # The server stores the published position of its log apart from the master's state, and writes it at once.
    "synchronous_commit": "on",
}
# Blocks that fit into a processor's cache are taken apart faster.
_BLOCK_BYTES = str(4 << 20)


def connect(url: str, *, replication: bool = False) -> Connection:
    """Connect; raises as `wlc.dialect.postgres.server_connection.connect` does.

    Args:
        url: `postgresql://user@host/database`; libpq's variables and password file fill in what it leaves out.
        replication: Speak the replication protocol, which knows few statements and no others.
    """
    return connections.connect(url, name=_NAME, settings=_SETTINGS, replication=replication)


class ArrowReader:
    """Reads large answers as Arrow: rows go from the server into columns without passing through Python.

    Raises:
        UnavailableError: The server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        import adbc_driver_postgresql.dbapi as adbc

        self._url = url
        try:
            self._connection = adbc.connect(_unquoted(connections.lasting(url)))
            self._cursor = self._connection.cursor()
            self._cursor.execute(pinning_sql(_SETTINGS))
            self._cursor.fetchall()
            self._connection.commit()
        except adbc.Error as error:
            where = without_password(url)
            raise UnavailableError(f"{where}: {_first_line(error)}", path=where) from error

    def __enter__(self) -> ArrowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._cursor.close()
        self._connection.close()

    def run(self, statement: str) -> None:
        """Run a statement without an answer, in the open transaction."""
        with self._talking():
            self._cursor.execute(statement)

    def end(self) -> None:
        """End the open transaction, also while an answer is being read."""
        with self._talking():
            self._connection.rollback()

    def blocks(self, query: str) -> Generator[pa.RecordBatch, None, None]:
        """Yield the answer of a query a block at a time, and read the next one meanwhile."""
        from adbc_driver_postgresql import StatementOptions

        with self._talking():
            self._cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: _BLOCK_BYTES})
            self._cursor.execute(query)
            reader = self._cursor.fetch_record_batch()
            with (
                ThreadPoolExecutor(1, thread_name_prefix="postgres rows") as pool,
                closing(one_ahead(pool, reader)) as blocks,
            ):
                yield from blocks

    @contextmanager
    def _talking(self) -> Iterator[None]:
        import adbc_driver_postgresql.dbapi as adbc

        try:
            yield
        except adbc.Error as error:
            state = getattr(error, "sqlstate", None) or ""
            raise connections.translated(without_password(self._url), str(error), state) from error
        except OSError as error:
            # An error in the middle of an answer has no code.
            raise connections.translated(without_password(self._url), _first_line(error), "") from error


def _unquoted(conninfo: str) -> str:
    """Let the Arrow driver find types by their names while it connects."""
    given = conninfo_to_dict(conninfo).get("options") or os.environ.get("PGOPTIONS", "")
    return make_conninfo(conninfo, options=f"{given} -c quote_all_identifiers=off".strip())


def talking(url: str) -> AbstractContextManager[None]:
    """Translate errors of statements; raises as `wlc.dialect.postgres.server_connection.talking` does."""
    return connections.talking(without_password(url))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
