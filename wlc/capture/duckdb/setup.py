"""Turning a DuckDB database into a master: the `wlc` schema with an image table for every table.

Check of the capture's assumptions about this DuckDB.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import acceptance, journal, known_objects, packed, unpublished
from wlc.capture.duckdb.home import encode_home
from wlc.capture.duckdb.journal import LOCAL_ROWID, CapturedTable
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.permitted_ddl import GUARD
from wlc.dialect.sql import quote
from wlc.farm.clock import utc_now
from wlc.farm.errors import UnsupportedError
from wlc.masters.master_state import encode

if TYPE_CHECKING:
    from wlc.capture.duckdb.shared import Shared
    from wlc.masters.master_state import MasterState


@lru_cache(maxsize=1)
def check() -> None:
    """Probe row ids of transaction-local rows, visible effects of updates and open transactions, and snapshots.

    Raises:
        UnsupportedError: The installed DuckDB behaves otherwise; the hint names the supported versions.
    """
    with engine.connect() as connection:
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
            f"{engine.running()} {failed}, which the capture relies on",
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


# Tables that stay when a new history begins: rejected rows of a site stay readable for its owner.
_KEPT = ("exceptions", "counters")


def check_replica(shared: Shared) -> None:
    """Refuse a replica that cannot become a master; nothing is changed.

    Raises:
        UnsupportedError: A column of some table cannot be replicated exactly, or replicas would not take some object.
    """
    connection, catalog = shared.root, shared.catalog
    connection.execute("BEGIN")
    try:
        _release(connection, catalog)
        _refuse_unreplicable(connection, catalog)
    finally:
        connection.execute("ROLLBACK")


def begin(shared: Shared, state: MasterState) -> None:
    """Install a new journal, in one transaction, in which a replica ceases to be one.

    Args:
        shared: The database.
        state: Its new state.

    Raises:
        UnsupportedError: A column cannot be replicated exactly, or replicas would refuse an object.
    """
    connection, catalog = shared.root, shared.catalog
    connection.execute("BEGIN")
    try:
        _drop_journal(connection, catalog)
        _release(connection, catalog)
        _refuse_unreplicable(connection, catalog)
        journal.install(connection, catalog)
        packed.create(connection, catalog)
        known_objects.create(connection, catalog)
        for number, (name, layout) in enumerate(duckdb_catalog.tables(connection, catalog).items(), start=1):
            journal.add_layout(connection, CapturedTable(number, catalog, name, layout))
        # No commit is earlier than the snapshot that comes next, even if the clock is set back in between.
        values = encode(replace(state, began=utc_now())) | {"home": encode_home(shared.here)}
        journal.write_state(connection, catalog, values)
        unpublished.reset_counts(connection, catalog)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    shared.load()
    shared.watch(is_new=True)


def _refuse_unreplicable(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    acceptance.refuse_present(connection, catalog)
    rules = acceptance.read_rules(connection, catalog)
    acceptance.refuse_unstable(connection, catalog, rules)
    acceptance.refuse_present_checks(connection, catalog, rules)


def _release(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Remove what a replica has besides its tables; a database that is no replica stays as it is."""
    if not journal.is_replica(connection, catalog):
        return
    guards = connection.execute(
        "SELECT schema_name, table_name, trigger_name FROM duckdb_triggers()"
        " WHERE database_name = ? AND starts_with(trigger_name, ?)",
        [catalog, GUARD],
    ).fetchall()
    for schema, table, trigger in guards:
        connection.execute(f"DROP TRIGGER {quote(trigger)} ON {quote(catalog)}.{quote(schema)}.{quote(table)}")
    connection.execute(f"DROP SCHEMA {quote(catalog)}.wlr CASCADE")


def _drop_journal(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Drop the objects of an earlier history."""
    query = "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'wlc'"
    for (table,) in connection.execute(query, [catalog]).fetchall():
        if table not in _KEPT:
            connection.execute(f"DROP TABLE {quote(catalog)}.wlc.{quote(table)}")
