"""Columns whose changes are added: each site adds a transaction's increment to its number, in any order.

The increment of a transaction is the difference of its two row images, for an inserted row the number itself. Other
columns of the row follow the rule `newest`, which considers only transactions that have written them. A site that takes
a transaction merges it into the present row and journals the result: with the same increment, and with the present
other columns if a newer transaction has written them. If they had these values already, the images do not show whether
the transaction has written them, so the row is also journalled as read with the intention to write.

Rows of such a table cannot be deleted: changes before and after a deletion would not have one sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.types import load_sql, store_sql
from wlc.farm.errors import CorruptError
from wlc.multi_master.duckdb.conflict_window import has_written, others_sql
from wlc.multi_master.duckdb.verdicts import DIRECT, TOUCHED, same_key, step_key

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.multi_master.duckdb.verdicts import StepTable


_MERGED = 'temp."wlc merged"'


def keep_written(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, added: Collection[str]) -> None:
    """Reduce a step's touched rows of a table to those whose other columns were written.

    Args:
        connection: In the transaction of the step.
        place: Of the table among the step's.
        step: The table.
        added: Which columns are added.

    Raises:
        CorruptError: A transaction deletes a row of the table.
    """
    table = step.table
    gone = connection.execute(f"SELECT line FROM {TOUCHED} WHERE place = {place} AND NOT has LIMIT 1").fetchall()
    if gone:
        raise CorruptError(
            f"another site has published a deletion in {table.name}, in which columns are added",
            hint="if the rule has just changed, let all sites take everything under the former one first:"
            f" wlc site rule DB {table.name} newest",
        )
    others = others_sql(table.layout, added, [f"i.{name}" for name in table.columns])
    written = (
        f"SELECT {step_key(table, 'i')} AS key, i._line AS line FROM {step.lines} AS i GROUP BY ALL"
        f" HAVING {has_written(others)}"
    )
    if step.reads:
        written += f" UNION SELECT {step_key(table, 'r')}, r._line FROM {step.reads} AS r"
    connection.execute(f"DELETE FROM {TOUCHED} WHERE place = {place} AND (key, line) NOT IN ({written})")


def merge(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, added: Collection[str]) -> None:
    """Replace the images of a step with the result of merging them into the present rows.

    Args:
        connection: In the transaction of the step, which is judged and not applied.
        place: Of the table among the step's.
        step: The table, with `reads`.
        added: Which columns are added.
    """
    table = step.table
    assert step.reads is not None
    sums = _sums(table, added)
    keys = [table.columns[number] for number in table.layout.key_places]
    changed = "".join(f", sum(l._weight * {value}) AS d{number}" for number, value in sums.items())
    listed = ", ".join(f"l.{name}" for name in keys)
    running = "".join(f", sum(d{number}) OVER before AS d{number}" for number in sums)
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE "wlc merged" AS
        WITH judged AS (SELECT key, line FROM {TOUCHED} WHERE place = {place} AND NOT is_read
            EXCEPT SELECT key, line FROM {DIRECT} WHERE place = {place}),
        written AS (SELECT {step_key(table, "l")} AS key, l.* FROM {step.lines} AS l
            WHERE l._weight > 0 AND ({step_key(table, "l")}, l._line) IN (FROM judged)),
        changes AS (SELECT {step_key(table, "l")} AS key, l._line AS line, {listed}{changed}
            FROM {step.lines} AS l GROUP BY ALL),
        placed AS (SELECT c.* EXCLUDE ({", ".join(["line", *(f"d{number}" for number in sums)])}), c.line,
                w.key IS NOT NULL AS is_written, max(w._line) OVER before AS origin{running}
            FROM changes AS c LEFT JOIN written AS w ON w.key = c.key AND w._line = c.line
            WINDOW before AS (PARTITION BY c.key ORDER BY c.line)),
        here AS (SELECT p.key, t.* FROM (SELECT DISTINCT key, {", ".join(keys)} FROM placed) AS p
            JOIN (SELECT {table.named_values} FROM {table.sql}) AS t ON {same_key(table, "p", "t")})
        SELECT p.line AS _line, p.is_written, {_merged(table, sums)} FROM placed AS p
        LEFT JOIN here AS h ON h.key = p.key LEFT JOIN written AS w ON w.key = p.key AND w._line = p.origin
        """
    )
    columns = ", ".join(table.columns)
    connection.execute(f"DELETE FROM {step.lines}")
    connection.execute(f"DELETE FROM {step.reads}")
    connection.execute(f"INSERT INTO {step.lines} SELECT _line, 1, {columns} FROM {_MERGED}")
    connection.execute(f"INSERT INTO {step.reads} SELECT _line, true, {columns} FROM {_MERGED} WHERE is_written")


def _sums(table: CapturedTable, added: Collection[str]) -> dict[int, str]:
    """Return the added numbers of an image, by their places."""
    return {
        number: load_sql(column, f"l.c{number}")
        for number, column in enumerate(table.layout.stored)
        if column.name in added
    }


def _merged(table: CapturedTable, sums: Collection[int]) -> str:
    values = []
    for number, column in enumerate(table.layout.stored):
        name = f"c{number}"
        if number in table.layout.key_places:
            value = f"p.{name}"
        elif number in sums:
            here = f"coalesce({load_sql(column, f'h.{name}')}, 0)"
            value = store_sql(column, f"CAST({here} + p.d{number} AS {column.type})")
        else:
            value = f"CASE WHEN w.key IS NULL THEN h.{name} ELSE w.{name} END"
        values.append(f"{value} AS {name}")
    return ", ".join(values)
