"""Which changes of another site lose by a column of the row: the rules `old`, `max` and their relatives.

A change is compared with the row as it is here before it, changes accepted earlier in the step included. Nothing is
told to others of what is rejected: sites become equal only if the application sees to it. An empty column is lower
than any number, and a tie loses.

Source: MySQL NDB Cluster, conflict functions NDB$OLD, NDB$MAX, NDB$MAX_DELETE_WIN, NDB$MAX_INS, NDB$MAX_DEL_WIN_INS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.sites.verdicts import DIRECT, key_names, same_key, step_key
from wlc.dialect.types import load_sql
from wlc.farm.circle import MAX, MAX_DEL_WIN_INS, MAX_DELETE_WINS, MAX_INS, OLD
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    import duckdb

    from wlc.capture.duckdb.sites.verdicts import StepTable
    from wlc.farm.circle import Rule

# Of a row that is here, `h.value` is the column; of a change, `c.old` and `c.new` are before and after it.
_ABSENT = "NOT h.there"
_SAME = "h.there AND h.value IS NOT DISTINCT FROM c.old"
_GREATER = "h.there AND c.new IS NOT NULL AND (h.value IS NULL OR c.new > h.value)"
# What a rule accepts: inserts, updates and deletions.
_ACCEPTED = {
    OLD: (_ABSENT, _SAME, _SAME),
    MAX: (_ABSENT, _GREATER, _SAME),
    MAX_DELETE_WINS: (_ABSENT, _GREATER, "h.there"),
    MAX_INS: (f"{_ABSENT} OR ({_GREATER})", _GREATER, _SAME),
    MAX_DEL_WIN_INS: (f"{_ABSENT} OR ({_GREATER})", _GREATER, "h.there"),
}


def reject(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, rule: Rule) -> int:
    """Add to the rows in conflict what a rule rejects of a table, and return how many there are.

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
            hint=f"wlc rule DB {table.name} {rule.rule} --column COLUMN names another one, then wlc take",
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
