"""Check that this DuckDB behaves as the capture assumes."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import duckdb

from wlc.capture.duckdb.journal import LOCAL_ROWID
from wlc.dialect.duckdb import engine
from wlc.farm.errors import UnsupportedError


@lru_cache(maxsize=1)
def check() -> None:
    """Probe row ids of transaction-local rows, what an update and an open transaction do to others, and snapshots.

    Raises:
        UnsupportedError: The installed DuckDB behaves otherwise; the hint names the supported versions.
    """
    with duckdb.connect() as connection:
        check_connection(connection)


def check_connection(connection: duckdb.DuckDBPyConnection) -> None:
    """The same with a connection to an empty database."""
    try:
        failed = engine.defect() or _failed(connection)
    except duckdb.Error as error:
        text = str(error).partition("\n")[0]
        failed = f"does not run a statement ({text})"
    if failed:
        raise UnsupportedError(
            f"DuckDB {duckdb.__version__} {failed}, which the capture relies on",
            hint=f"{engine.SUPPORTED} are supported: pip install '{engine.REQUIREMENT}'",
        )


def _failed(connection: duckdb.DuckDBPyConnection) -> str | None:
    connection.execute(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER); INSERT INTO t SELECT i, i FROM range(9) r(i)"
    )
    connection.execute(
        "BEGIN; INSERT INTO t VALUES (9, 9); UPDATE t SET v = -1 WHERE k = 3; UPDATE t SET k = 90 WHERE k = 5"
    )
    local = connection.execute(f"SELECT k FROM t WHERE rowid >= {LOCAL_ROWID} ORDER BY k").fetchall()
    placed = connection.execute("SELECT v FROM t WHERE rowid = 3").fetchall()
    seen = connection.cursor().execute("SELECT v FROM t WHERE rowid IN (3, 5) ORDER BY v").fetchall()
    connection.execute("ROLLBACK")
    if [row[0] for row in local] != [9, 90]:
        return "does not give rows of an open transaction the expected row ids"
    if placed != [(-1,)]:
        return "moves a row when a plain column of it is updated"
    if seen != [(3,), (5,)]:
        return "does not show committed rows to other connections while a transaction is open"
    for method in engine.PRIVATE_METHODS:
        if not hasattr(connection, method):
            return f"has no {method}() on its connections"
    connection.execute("BEGIN")
    connection._table_kind(("memory", "main", "t"))
    connection.cursor().execute("DELETE FROM t")
    if connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]:
        return "does not take a transaction's snapshot when a table is looked up"
    with suppress(duckdb.ConversionException):
        connection.execute("SELECT 'no number'::INTEGER").fetchall()
    with suppress(duckdb.TransactionException):
        connection._table_kind(("memory", "main", "t"))
        return "lets tables be looked up in a transaction that has failed"
    return None
