"""An INSERT of one row that is prepared, journals itself, and is a transaction by itself; several run at a time.

The prepared statement computes nothing and reads no table (see `prepared_insert`). If its table has no foreign keys, it
has the same effect before and after every other INSERT of this kind: nothing depends on what it sees of them, and the
ticks that they take when they begin need not be in the order of their commits. Everything else that commits, and
whoever reads, waits until all of them have ended. So nothing is published behind a tick that is still open, and nobody
takes a snapshot during their COMMIT, of which DuckDB 2.0 would show a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import prepared_insert
from wlc.capture.duckdb.effects import AppendEffect, Effect
from wlc.capture.duckdb.journal import JournalEntry
from wlc.capture.duckdb.open_transaction import user
from wlc.dialect.sql import literal
from wlc.farm.clock import utc_now

if TYPE_CHECKING:
    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared

# After these, nobody knows whether the transaction has committed. All others fail before that.
_UNCERTAIN = (
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.InterruptException,
    duckdb.IOException,
    duckdb.OutOfMemoryException,
)


def run(
    shared: Shared, tables: CapturedTables, table: CapturedTable, effect: Effect, text: str, values: Any
) -> int | None:
    """Run an INSERT, captured.

    Args:
        shared: The master.
        tables: The connection's, which has no open transaction.
        table: The table that the statement writes to, of which `SmallChanges.table` said that it may be a small change.
        effect: What the statement does.
        text: The statement.
        values: Its parameters.

    Returns:
        1, or None if it must run in another way: it is no such INSERT, came for the first time, or failed, which DuckDB
        must report of the user's own text.

    Raises:
        FencedError: What it writes could not be published.
    """
    if not isinstance(effect, AppendEffect) or effect.values != 1:
        return None
    found = prepared_insert.types_and_values(values)
    if found is None:
        return None
    types, listed = found
    key = text, types, table.id
    if tables.prepared.refuses(tables.generation, key):
        return None
    lock = shared.commit_lock
    with lock if tables.has_foreign_keys(table) else lock.shared:
        if tables.generation != shared.generation or shared.site is not None:
            return None
        name = tables.prepared.name(
            tables.generation, key, lambda: prepared_insert.statement(tables, table, text, types)
        )
        if name is None:
            return None
        shared.refuse_writes()
        started = utc_now()
        tick, committed = shared.next_commit()
        meta = literal(JournalEntry(tick, user(), started, committed).header)
        failed = False
        try:
            return tables.prepared.execute(key, name, f"{listed}, '{tick}', {meta}")
        except duckdb.Error as error:
            failed = not isinstance(error, _UNCERTAIN)
            if not failed:
                raise
            return None
        finally:
            if not failed:
                shared.committed(tick, committed, added_to=(table.name,))
