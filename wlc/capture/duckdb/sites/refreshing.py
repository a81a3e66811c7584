"""Refresh: the primary tells what rows are whose changes it rejected, and other sites make theirs equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalledRefresh
from wlc.capture.duckdb.sites import rejection
from wlc.capture.duckdb.sites.rejection import KEYS, PRESENT
from wlc.capture.duckdb.sites.verdicts import key_names

if TYPE_CHECKING:
    import duckdb

    from wlc.capture.duckdb.sites.verdicts import StepTable


def journal_refresh(
    connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, tick: int
) -> list[JournalledRefresh]:
    """Journal what the rejected rows of one table, which are collected, are after the step that is not applied yet.

    Args:
        connection: In the transaction of the step.
        place: Of the table among the step's.
        step: The table.
        tick: Of the transaction that tells it.

    Returns:
        Records of that transaction; none if only rows were rejected that are removed on both sides.
    """
    table, wanted = step.table, rejection.after_sql(place)
    rejection.find_present(connection, step, wanted)
    keys = [f"k.{name}" if name in key_names(table) else "NULL" for name in table.columns]
    absent = f"FROM {KEYS} AS k SEMI JOIN ({wanted}) AS w ON w.key = k.key ANTI JOIN {PRESENT} AS p ON p.key = k.key"
    # Two statements: as one with UNION ALL, DuckDB 2.0 has been seen to hang in it.
    connection.execute(
        f"INSERT INTO {table.images} SELECT {tick}, {journal.REFRESHED}, NULL, NULL, {', '.join(table.columns)}"
        f" FROM {PRESENT}"
    )
    connection.execute(
        f"INSERT INTO {table.images} SELECT {tick}, {journal.ABSENT}, NULL, NULL, {', '.join(keys)} {absent}"
    )
    counts = connection.execute(
        f"SELECT _weight, count(*) FROM {table.images} WHERE _tick = {tick} GROUP BY ALL ORDER BY ALL"
    )
    return [
        JournalledRefresh(table.name, table.id, rows, weight == journal.ABSENT) for weight, rows in counts.fetchall()
    ]
