"""Rows that the primary rejects: their images, the present rows, and their removal from the step.

Refresh: the primary publishes its values of rejected rows, and other sites set theirs to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalledRefresh
from wlc.multi_master.duckdb.verdicts import MISSED, REFUSED, REJECTED, TOUCHED, key_names, same_key, step_key

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import duckdb

    from wlc.multi_master.duckdb.verdicts import StepTable


IMAGES, KEYS, PRESENT = 'temp."wlc images"', 'temp."wlc keys"', 'temp."wlc present"'


def collect(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable) -> bool:
    """Copy the images of a table's rejected rows, and list their keys; returns whether there are any.

    The images have the columns `key`, `line`, `_weight` (0 of a row that was read) and `c0` …, the keys `key` and the
    columns of the key.
    """
    table, columns = step.table, "".join(f", i.{name}" for name in step.table.columns)
    relations = [f"SELECT _line, _weight{columns} FROM {step.lines} AS i"]
    if step.reads:
        listed = ", ".join(["_line", *key_names(table)])
        relations.append(f"SELECT DISTINCT ON ({listed}) _line, 0{columns} FROM {step.reads} AS i")
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE "wlc images" AS
        WITH rejected AS (SELECT DISTINCT key, line, is_read FROM {REJECTED} WHERE place = {place}),
        images AS (
            SELECT {step_key(table, "i")} AS key, i._line AS line, i._weight{columns}
            FROM ({" UNION ALL ".join(relations)}) AS i WHERE i._line IN (SELECT line FROM rejected)
        )
        SELECT i.* FROM images AS i SEMI JOIN rejected AS r
            ON r.key = i.key AND r.line = i.line AND r.is_read = (i._weight = 0)
        """
    )
    keys = ", ".join(f"any_value({name}) AS {name}" for name in key_names(table))
    connection.execute(f'CREATE OR REPLACE TEMP TABLE "wlc keys" AS SELECT key, {keys} FROM {IMAGES} GROUP BY key')
    return bool(connection.execute(f"SELECT 1 FROM {KEYS} LIMIT 1").fetchall())


def add_missed(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable) -> bool:
    """Also list the keys of a table's rows whose refresh their author had missed; return whether any key is listed."""
    names = key_names(step.table)
    connection.execute(
        f"INSERT INTO {KEYS} SELECT i.key, {', '.join(f'any_value(i.{name})' for name in names)} FROM"
        f" (SELECT {step_key(step.table, 'l')} AS key, {', '.join(names)} FROM {step.lines} AS l) AS i"
        f" SEMI JOIN (FROM {MISSED} WHERE place = {place}) AS m ON m.key = i.key"
        f" ANTI JOIN {KEYS} AS k ON k.key = i.key GROUP BY i.key"
    )
    return bool(connection.execute(f"SELECT 1 FROM {KEYS} LIMIT 1").fetchall())


def find_present(connection: duckdb.DuckDBPyConnection, step: StepTable, wanted: str) -> None:
    """Find the primary's present rows, with the columns `key`, `line` and `c0` ….

    Args:
        connection: Before the step is applied.
        step: A table whose rejected rows are collected.
        wanted: A query for `key`, `line` and `accepted`, the last accepted transaction that changed the row.
    """
    table, columns = step.table, step.table.columns
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE "wlc present" AS
        WITH wanted AS MATERIALIZED ({wanted})
        SELECT w.key, w.line{"".join(f", i.{name}" for name in columns)} FROM wanted AS w
        JOIN (SELECT {step_key(table, "l")} AS key, l.* FROM {step.lines} AS l
            WHERE l._weight > 0 AND l._line IN (SELECT accepted FROM wanted)) AS i
            ON i.key = w.key AND i._line = w.accepted
        UNION ALL
        SELECT w.key, w.line{"".join(f", t.{name}" for name in columns)} FROM wanted AS w
        JOIN {KEYS} AS k ON k.key = w.key JOIN (SELECT {table.named_values} FROM {table.sql}) AS t
            ON {same_key(table, "k", "t")}
        WHERE w.accepted IS NULL
        """
    )


def before_sql(place: int) -> str:
    """Select each rejected row of a table just before its transaction."""
    return f"SELECT key, line, any_value(accepted) AS accepted FROM {REJECTED} WHERE place = {place} GROUP BY key, line"


def after_sql(place: int) -> str:
    """Select each row of a table that must be refreshed at other sites, with its state after the step."""
    return (
        f"WITH kept AS (SELECT t.key, max(t.line) AS line FROM {TOUCHED} AS t ANTI JOIN {REJECTED} AS r"
        " ON r.place = t.place AND r.key = t.key AND r.line = t.line AND r.is_read = t.is_read"
        f" WHERE t.place = {place} AND NOT t.is_read GROUP BY t.key)"
        f" SELECT r.key, 0 AS line, k.line AS accepted FROM"
        f" (SELECT key FROM {REJECTED} WHERE place = {place} AND spoils"
        f" UNION SELECT key FROM {MISSED} WHERE place = {place}) AS r LEFT JOIN kept AS k ON k.key = r.key"
    )


def remove(connection: duckdb.DuckDBPyConnection, steps: Sequence[StepTable], *, kept: Container[int] = ()) -> None:
    """Delete rejected rows from the step, except in the tables at the kept places."""
    for place, step in enumerate(steps):
        if place in kept:
            continue
        for relation in (step.lines, *([step.reads] if step.reads else [])):
            connection.execute(f"DELETE FROM {relation} WHERE _line IN (SELECT line FROM {REFUSED})")
        if not step.table.layout.primary_key:
            continue
        alone = f"SELECT line, key FROM {REJECTED} WHERE place = {place} AND NOT is_whole"
        connection.execute(
            f"DELETE FROM {step.lines} AS i WHERE i._line IN (SELECT line FROM ({alone}))"
            f" AND (i._line, {step_key(step.table, 'i')}) IN ({alone})"
        )


def journal_refresh(
    connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, tick: int
) -> list[JournalledRefresh]:
    """Journal the collected rejected rows of one table with their state after the step, before it is applied.

    Args:
        connection: In the transaction of the step.
        place: Of the table among the step's.
        step: The table.
        tick: Tick of the refreshing transaction.

    Returns:
        Records of that transaction; none if all rejected rows are removed on both sides.
    """
    table, wanted = step.table, after_sql(place)
    find_present(connection, step, wanted)
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
