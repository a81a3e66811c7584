"""Turning a DuckDB database into a master: the `wlc` schema with an image table for every table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.capture.duckdb import acceptance, checks, journal, packed, unpublished
from wlc.capture.duckdb.home import encode_home
from wlc.capture.duckdb.journal import CapturedTable
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.sql import quote
from wlc.farm.clock import utc_now
from wlc.masters.state import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

    from wlc.capture.duckdb.shared import Shared
    from wlc.masters.state import MasterState


# Tables that stay when a new history begins: what a site has rejected stays readable for its owner.
_KEPT = ("exceptions", "counters")


def begin(
    shared: Shared, state: MasterState, release: Callable[[duckdb.DuckDBPyConnection], None] | None = None
) -> None:
    """Install the journal afresh, in one transaction.

    Args:
        shared: The database.
        state: What it remembers then.
        release: Removes what a replica has besides its tables, of one that becomes a site.

    Raises:
        UnsupportedError: A column of some table cannot be replicated exactly, or replicas would not take some object.
    """
    connection, catalog = shared.root, shared.catalog
    connection.execute("BEGIN")
    try:
        _drop_journal(connection, catalog)
        if release is not None:
            release(connection)
        acceptance.refuse_present(connection, catalog)
        rules = checks.read_rules(connection, catalog)
        checks.refuse_unstable(connection, catalog, rules)
        checks.refuse_present(connection, catalog, rules)
        journal.install(connection, catalog)
        packed.create(connection, catalog)
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


def _drop_journal(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Drop what an earlier history left."""
    query = "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'wlc'"
    for (table,) in connection.execute(query, [catalog]).fetchall():
        if table not in _KEPT:
            connection.execute(f"DROP TABLE {quote(catalog)}.wlc.{quote(table)}")
