"""Verdicts of a site of a mesh on another site's step: each table's rule decides row by row, and no site is informed.

A rule lists the rows in conflict (`verdicts.DIRECT`). A table with none of the rules here has one writer, whose newest
changes count.

Rule `newest`: reject changes of another site that are older than this site's rows.

A change is as new as the first commit of its transaction; histories and ticks decide between equal times. Deletions
count like any other change, and stay known while a site may publish a transaction that was committed without knowledge
of them. So a row has the result of the newest change that a site contains, however the changes arrived.

The author of a change may have seen some lines of the window (see `conflict_window`). The change is newer than these
lines, because clocks of a mesh never fall behind taken transactions, so the lines need not be distinguished.

Rules by column: `old`, `max` and their relatives reject changes of another site by a column of the row.

A change is compared with the row here before it, including changes accepted earlier in the step. No site reports
rejections to the others: sites become equal only if the application makes them equal. An empty column is lower than any
number, and a tie loses.

Source: MySQL NDB Cluster, conflict functions NDB$OLD, NDB$MAX, NDB$MAX_DELETE_WIN, NDB$MAX_INS, NDB$MAX_DEL_WIN_INS.

Columns whose changes are added: each site adds a transaction's increment to its number, in any order.

The increment of a transaction is the difference of its two row images, for an inserted row the number itself. Other
columns of the row follow the rule `newest`, which considers only transactions that have written them. A site that takes
a transaction merges it into the present row and journals the result: with the same increment, and with the present
other columns if a newer transaction has written them. If they had these values already, the images do not show whether
the transaction has written them, so the row is also journalled as read with the intention to write.

Rows of such a table cannot be deleted: changes before and after a deletion would not have one sum.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wlc.dialect.sql import literal
from wlc.dialect.types import load_sql, store_sql
from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.multi_master.circle import COLUMN_RULES, EPOCH, MAX, MAX_DEL_WIN_INS, MAX_DELETE_WINS, MAX_INS, NEWEST, OLD
from wlc.multi_master.duckdb import verdicts
from wlc.multi_master.duckdb.conflict_window import WINDOW, has_written, microseconds, others_sql
from wlc.multi_master.duckdb.verdicts import DIRECT, REFUSED, SPOILT, TOUCHED, Verdicts, key_names, same_key, step_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.farm.model import Name
    from wlc.multi_master.circle import Rule
    from wlc.multi_master.duckdb.verdicts import StepTable
    from wlc.multi_master.site_step import SiteTransaction


_STAMPS = 'temp."wlc stamps"'


def reject_older(
    connection: duckdb.DuckDBPyConnection, transactions: Sequence[SiteTransaction], places: Sequence[int]
) -> int:
    """Add rows older than the present ones to the rows in conflict, and return their number.

    Args:
        connection: In the transaction that applies the step, with a window.
        transactions: The step's.
        places: Places of the touched tables.
    """
    stamps = [
        (each.line, microseconds(each.origin.committed), each.origin.history, each.origin.tick) for each in transactions
    ]
    columns = ("line BIGINT", "committed BIGINT", "history VARCHAR", "tick BIGINT")
    verdicts.create(connection, _STAMPS, columns, stamps)
    added = connection.execute(
        f"INSERT INTO {DIRECT} SELECT DISTINCT t.place, t.key, t.line, false FROM {TOUCHED} AS t"
        f" JOIN {_STAMPS} AS s ON s.line = t.line JOIN {WINDOW} AS w ON w.key = t.key"
        f" WHERE t.place IN ({', '.join(map(str, places))})"
        " AND (w.committed, w.history, w.tick) > (s.committed, s.history, s.tick)"
    ).fetchall()
    return int(added[0][0])


# `h.value` is the column of the present row; `c.old` and `c.new` are its values before and after a change.
_ABSENT = "NOT h.there"
_SAME = "h.there AND h.value IS NOT DISTINCT FROM c.old"
_GREATER = "h.there AND c.new IS NOT NULL AND (h.value IS NULL OR c.new > h.value)"
# Conditions under which a rule accepts inserts, updates and deletions.
_ACCEPTED = {
    OLD: (_ABSENT, _SAME, _SAME),
    MAX: (_ABSENT, _GREATER, _SAME),
    MAX_DELETE_WINS: (_ABSENT, _GREATER, "h.there"),
    MAX_INS: (f"{_ABSENT} OR ({_GREATER})", _GREATER, _SAME),
    MAX_DEL_WIN_INS: (f"{_ABSENT} OR ({_GREATER})", _GREATER, "h.there"),
}


def reject_by_column(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, rule: Rule) -> int:
    """Add a table's rows that its rule rejects to the rows in conflict, and return their number.

    Args:
        connection: In the transaction that applies the step.
        place: Of the table among the step's.
        step: The table; it has a primary key.
        rule: Its rule.

    Raises:
        UnsupportedError: The table has no such column any more.
    """
    table, keys = step.table, ", ".join(f"l.{name}" for name in key_names(step.table))
    found = [number for number, column in enumerate(table.layout.stored) if column.name == rule.column]
    if not found:
        raise UnsupportedError(
            f"{table.name} has no column {rule.column}, which its rule {rule.rule} compares",
            hint=f"wlc site rule DB {table.name} {rule.rule} --column COLUMN names another one, then wlc site take",
        )
    number, column = found[0], table.layout.stored[found[0]]

    def value(alias: str) -> str:
        return f"CAST({load_sql(column, f'{alias}.c{number}')} AS HUGEINT)"

    inserted, updated, deleted = _ACCEPTED[rule.rule]
    added = connection.execute(
        f"""
        INSERT INTO {DIRECT}
        WITH RECURSIVE changes AS MATERIALIZED (
            SELECT *, row_number() OVER (PARTITION BY key ORDER BY line) AS number FROM (
                SELECT {step_key(table, "l")} AS key, l._line AS line, bool_or(l._weight < 0) AS had,
                    bool_or(l._weight > 0) AS has, any_value({value("l")}) FILTER (l._weight < 0) AS old,
                    any_value({value("l")}) FILTER (l._weight > 0) AS new
                FROM {step.lines} AS l GROUP BY {keys}, l._line)
        ),
        judged AS (
            SELECT l.key, 0 AS number, 0 AS line, true AS accepted, t.there IS NOT NULL AS there, t.value
            FROM (SELECT DISTINCT {step_key(table, "l")} AS key, {keys} FROM {step.lines} AS l) AS l LEFT JOIN
                (SELECT *, true AS there, {value("t")} AS value
                    FROM (SELECT {table.named_values} FROM {table.sql}) AS t) AS t ON {same_key(table, "l", "t")}
            UNION ALL
            SELECT key, number, line, accepted, CASE WHEN accepted THEN has ELSE there END,
                CASE WHEN accepted THEN new ELSE value END
            FROM (SELECT c.*, h.there, h.value, CASE WHEN NOT c.had THEN {inserted} WHEN c.has THEN {updated}
                    ELSE {deleted} END AS accepted
                FROM judged AS h JOIN changes AS c ON c.key = h.key AND c.number = h.number + 1)
        )
        SELECT {place}, key, line, false FROM judged WHERE NOT accepted
        """
    ).fetchall()
    return int(added[0][0])


def needs_window(table: StepTable, rules: Mapping[Name, Rule]) -> bool:
    """Say whether verdicts about a table depend on when its rows were changed."""
    rule = rules.get(table.table.name)
    return bool(table.table.layout.primary_key) and (rule is None or rule.rule not in COLUMN_RULES)


def judge(
    connection: duckdb.DuckDBPyConnection,
    transactions: Sequence[SiteTransaction],
    tables: Sequence[StepTable],
    rules: Mapping[Name, Rule],
) -> Verdicts:
    """Decide which changes of a step lose; the relations of the step are not changed.

    Args:
        connection: In the transaction that applies the step, with a window if a table needs one.
        transactions: The step's.
        tables: Its tables.
        rules: Rules of tables, by name.
    """
    verdicts.create_touched(connection)
    columns = ("place INTEGER", "key UHUGEINT", "line BIGINT", "is_read BOOLEAN")
    verdicts.create(connection, DIRECT, columns, [])
    rejected: Counter[tuple[str, str]] = Counter()
    timed = []
    for place, table in enumerate(tables):
        if not table.table.layout.primary_key:
            continue
        # These rules, too, reject row by row.
        verdicts.touch(connection, place, table, EPOCH)
        rule = rules.get(table.table.name)
        if rule is not None and rule.add:
            keep_written(connection, place, table, rule.add)
        if rule is not None and rule.rule in COLUMN_RULES:
            rejected[rule.rule, rule.rule] += reject_by_column(connection, place, table, rule)
        else:
            timed.append(place)
    if timed:
        rejected[NEWEST, "older"] += reject_older(connection, transactions, timed)
    if not rejected.total():
        return Verdicts()
    verdicts.create(connection, REFUSED, ("line BIGINT", "cause VARCHAR"), [])
    verdicts.create(connection, SPOILT, ("place INTEGER", "key UHUGEINT", "line BIGINT"), [])
    verdicts.list_rejected(connection)
    deleted = f"SELECT count(*) FROM {verdicts.REJECTED} WHERE op = {literal(verdicts.DELETE_ROW)} AND is_absent"
    rejected["", "delete_delete"] += connection.execute(deleted).fetchall()[0][0]
    return Verdicts(counts={name: rise for name, rise in rejected.items() if rise})


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
