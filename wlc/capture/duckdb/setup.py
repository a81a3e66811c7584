"""Turning a DuckDB database into a master: the `wlc` schema with an image table for every table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc import catalog as duckdb_catalog
from wlc.capture.duckdb import journal, source
from wlc.capture.duckdb.journal import Table
from wlc.clock import format_time, utc_now
from wlc.model import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.capture.duckdb.shared import Shared


def begin(shared: Shared, state: Mapping[str, str]) -> None:
    """Install the journal afresh, in one transaction.

    Raises:
        UnsupportedError: A column of some table cannot be replicated exactly.
    """
    connection, catalog = shared.root, shared.catalog
    connection.execute("BEGIN")
    try:
        connection.execute(f"DROP SCHEMA IF EXISTS {quote(catalog)}.wlc CASCADE")
        journal.install(connection, catalog)
        for number, (name, layout) in enumerate(duckdb_catalog.tables(connection, catalog).items(), start=1):
            journal.add_layout(connection, Table(number, catalog, name, layout))
        # No commit is earlier than the snapshot that comes next, even if the clock is set back in between.
        journal.write_state(connection, catalog, {**state, "began": format_time(utc_now())})
        source.reset_counts(connection, catalog)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    shared.load()
