"""Refresh: the primary tells what rows are whose changes it rejected, and other sites make theirs equal."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalledRefresh
from wlc.capture.duckdb.sites import rejection
from wlc.capture.duckdb.sites.rejection import KEYS, PRESENT
from wlc.capture.duckdb.sites.verdicts import key_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.sites.verdicts import StepTable
    from wlc.farm.model import Name

# Rows of a table that are there, or that are absent.
_Rows = tuple["Name", bool]


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
    # DuckDB loses rows of a table whose first INSERT in a transaction adds none; see `images.unspoil`.
    absent = f"FROM {KEYS} AS k SEMI JOIN ({wanted}) AS w ON w.key = k.key ANTI JOIN {PRESENT} AS p ON p.key = k.key"
    there, gone = (
        bool(connection.execute(f"SELECT 1 {rows} LIMIT 1").fetchall()) for rows in (f"FROM {PRESENT}", absent)
    )
    # Two statements: as one with UNION ALL, DuckDB 2.0 has been seen to hang in it.
    if there:
        columns = ", ".join(table.columns)
        connection.execute(
            f"INSERT INTO {table.images} SELECT {tick}, {journal.REFRESHED}, NULL, NULL, {columns} FROM {PRESENT}"
        )
    if gone:
        connection.execute(
            f"INSERT INTO {table.images} SELECT {tick}, {journal.ABSENT}, NULL, NULL, {', '.join(keys)} {absent}"
        )
    if not (there or gone):
        return []
    counts = connection.execute(
        f"SELECT _weight, count(*) FROM {table.images} WHERE _tick = {tick} GROUP BY 1 ORDER BY 1"
    )
    return [
        JournalledRefresh(table.name, table.id, rows, weight == journal.ABSENT) for weight, rows in counts.fetchall()
    ]


def in_transactions(
    records: Sequence[JournalledRefresh], parents: Mapping[Name, Collection[Name]], unique: Collection[Name]
) -> tuple[tuple[JournalledRefresh, ...], ...]:
    """Divide a refresh into transactions that a site can take one after the other.

    DuckDB does not remove a row in the transaction in which one that refers to it goes, or refers to another one.

    Args:
        records: The refresh.
        parents: For each table with foreign keys those that they refer to.
        unique: Tables with a UNIQUE constraint.
    """
    before = _before(records, parents, unique)
    levels: dict[_Rows, int] = {}
    try:
        order = [*TopologicalSorter(before).static_order()]
    except CycleError:
        # Rows that stay are changed in place, unless an indexed column of them differs.
        before = {rows: {o: n for o, n in of.items() if rows[1] or not o[1] or n == 0} for rows, of in before.items()}
        order = [*TopologicalSorter(before).static_order()]
    for rows in order:
        levels[rows] = max((levels[other] + more for other, more in before[rows].items()), default=0)
    parts: dict[int, list[JournalledRefresh]] = {}
    for record in records:
        parts.setdefault(levels[record.table, record.absent], []).append(record)
    return tuple(tuple(parts[each]) for each in sorted(parts))


def _before(
    records: Sequence[JournalledRefresh], parents: Mapping[Name, Collection[Name]], unique: Collection[Name]
) -> dict[_Rows, dict[_Rows, int]]:
    """Return for rows those that come before them, and how many transactions before, 0 if the same one will do."""
    before: dict[_Rows, dict[_Rows, int]] = {(each.table, each.absent): {} for each in records}
    for table, absent in before:
        if (table, not absent) in before and absent and table in unique:
            # Others get the values that these had.
            before[table, False][table, True] = 0
        for parent in set(parents.get(table, ())) - {table}:
            gone, there = (parent, True) in before, (parent, False) in before
            if gone and (absent or not (there and parent in unique)):
                before[parent, True][table, absent] = 1
            if there and absent:
                before[parent, False][table, True] = 1
            if there and not absent:
                before[table, False][parent, False] = 0
    return before
