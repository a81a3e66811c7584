"""Verdicts of the primary: it rejects changes of another site to rows that it has changed concurrently.

A change of a row is in conflict if the window has a line on the row's key whose name the change's past does not contain
(see `conflict_window`), if it adds an existing row, or if it changes or removes a missing row. With the rule `epoch`,
the change of that row is rejected; with `epoch_trans`, the whole transaction, with its rows in tables of any rule. A
rejected row is in conflict for all later transactions of the step: they are based on an image that the primary does not
have. Earlier transactions stay accepted.

A row of any other table is accepted with its transaction. If its author had not seen the primary's refresh of the row
(as a part of a wholly rejected transaction), the refresh would overwrite the accepted change at the author. So the row
is refreshed once more.

All of it is decided by SQL over whole steps, in temporary tables:

    wlc pasts     line, is_read, history, tick: what the author of a transaction had seen; of its reads, when it began
    wlc touched   place, rule, key, line, had, has, found, is_read: each row of each table that a transaction touches
    wlc direct    place, key, line, is_read: rows in conflict themselves
    wlc spoilt    place, key, line: rows that were rejected, and in which transaction for the first time
    wlc refused   line, cause: transactions rejected as a whole
    wlc missed    place, key: rows of other tables whose refresh their author had not seen
    wlc rejected  the rows of these that are rejected, with what is reported of them

`place` is the table's place in the list of the step's tables. `had` and `has`: the row was there before, is there after
the transaction, where that was made. `found`: the primary has it before the step. Of a rejected row, `accepted` is the
last transaction before that changed it and is not rejected, and `is_absent` says that the primary has no such row then.

A removal of a row that the primary has removed, too, is reported and rejects its transaction, but it spoils nothing:
both sites lack the row.

Source: MySQL NDB Cluster, conflict functions NDB$EPOCH and NDB$EPOCH_TRANS, with exact names instead of epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from wlc.dialect.sql import literal
from wlc.dialect.types import store_sql
from wlc.multi_master.circle import EPOCH, EPOCH_TRANS
from wlc.multi_master.duckdb.conflict_window import WINDOW, key_columns, key_sql, key_value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.farm.model import Name, Origin
    from wlc.farm.vectors import Vector


PASTS, TOUCHED, SPOILT = 'temp."wlc pasts"', 'temp."wlc touched"', 'temp."wlc spoilt"'
REFUSED, REJECTED = 'temp."wlc refused"', 'temp."wlc rejected"'
DIRECT, MISSED = 'temp."wlc direct"', 'temp."wlc missed"'
_NEW, _FLOOR = 'temp."wlc newly refused"', 'temp."wlc floor"'

WRITE_ROW, UPDATE_ROW, DELETE_ROW, READ_ROW = "WRITE_ROW", "UPDATE_ROW", "DELETE_ROW", "READ_ROW"
ROW_DOES_NOT_EXIST, ROW_ALREADY_EXISTS = "ROW_DOES_NOT_EXIST", "ROW_ALREADY_EXISTS"
DATA_IN_CONFLICT, TRANS_IN_CONFLICT = "DATA_IN_CONFLICT", "TRANS_IN_CONFLICT"


class StepTable(Protocol):
    """One table's images in a step; see `wlc.multi_master.duckdb.lines`."""

    @property
    def table(self) -> CapturedTable:
        """The table."""

    @property
    def lines(self) -> str:
        """Relation with columns `_line, _weight, c0 ...`."""

    @property
    def reads(self) -> str | None:
        """Relation with columns `_line, exclusive, c0 ...`; None without reads."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One transaction of a step with its author's knowledge.

    Attributes:
        line: Its number in the step.
        origin: Where it was first committed.
        past: Its site's vector just before it.
        reads_past: Its site's vector when it began; the same if omitted.
    """

    line: int
    origin: Origin
    past: Vector
    reads_past: Vector | None = None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The rejections in a step.

    Attributes:
        lines: Numbers of wholly rejected transactions.
        counts: Increments of counters, by rule and name.
        has_missed: Some rows must be refreshed again although they are not rejected.
    """

    lines: frozenset[int] = frozenset()
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    has_missed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether everything is accepted."""
        return not self.counts and not self.has_missed


def judge(
    connection: duckdb.DuckDBPyConnection,
    seen: Sequence[Seen],
    tables: Sequence[StepTable],
    rules: Mapping[Name, str],
    refused: Mapping[int, str] | None = None,
    *,
    foreign: Collection[str] | None = None,
) -> Verdicts:
    """Decide which changes of a step are rejected; the relations of the step are not changed.

    Args:
        connection: In the transaction that applies the step, with a window.
        seen: The step's transactions.
        tables: Its tables.
        rules: Tables that have a rule, and which.
        refused: Transactions that are rejected in any case, with the cause.
        foreign: Histories whose lines no author was to see; None if authors had seen all other lines on rows of tables
            without a rule.
    """
    judged = [rules.get(table.table.name, "") in (EPOCH, EPOCH_TRANS) and _is_keyed(table) for table in tables]
    if not any(judged) and not refused and foreign is None:
        return Verdicts()
    _note_pasts(connection, seen)
    create_touched(connection)
    # Rows of tables without a rule matter only if a whole transaction can be, or was, rejected.
    has_whole = refused or foreign is not None or any(rules.get(table.table.name) == EPOCH_TRANS for table in tables)
    for place, table in enumerate(tables):
        if judged[place] or (has_whole and _is_keyed(table)):
            touch(connection, place, table, rules.get(table.table.name, "") if judged[place] else "")
    _find_conflicts(connection)
    has_missed = _find_missed(connection, foreign)
    if not refused and not has_missed and not connection.execute(f"SELECT 1 FROM {DIRECT} LIMIT 1").fetchall():
        return Verdicts()
    _spread(connection, refused or {})
    list_rejected(connection)
    return replace(_verdicts(connection), has_missed=has_missed)


def _is_keyed(table: StepTable) -> bool:
    return bool(table.table.layout.primary_key)


# Touched rows --------------------------------------------------------------------------------------------------------


def _note_pasts(connection: duckdb.DuckDBPyConnection, seen: Sequence[Seen]) -> None:
    """Record the authors' vectors when they change; a site's own ticks are omitted after the first."""
    rows: list[tuple[int, bool, str, int]] = []
    for is_read in (False, True):
        last: dict[str, int] = {}
        for each in seen:
            past = _reads_past(each) if is_read else each.past
            for history in past.keys() | last.keys():
                tick = past.get(history, 0)
                if last.get(history) != tick and (history != each.origin.history or history not in last):
                    rows.append((each.line, is_read, history, tick))
            last = dict(past)
    least = contained_by_all(seen)
    create(connection, PASTS, ("line BIGINT", "is_read BOOLEAN", "history VARCHAR", "tick BIGINT"), rows)
    create(connection, _FLOOR, ("history VARCHAR", "tick BIGINT"), list(least.items()))


def contained_by_all(seen: Sequence[Seen]) -> dict[str, int]:
    """Return the vector that the authors of all transactions had seen, for reads and changes."""
    # A site's vector never falls.
    least = dict(seen[0].past) if seen else {}
    for each in seen:
        if each.reads_past is not None:
            least = {history: min(tick, each.reads_past.get(history, 0)) for history, tick in least.items()}
    return least


def create(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Create a temporary table from columns with their types and few rows: of transactions, not of tables."""
    values = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns]
    listed = ", ".join(
        f"unnest(${number}::{kind}[]) AS {name}"
        for number, (name, kind) in enumerate((column.split(" ") for column in columns), start=1)
    )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table.removeprefix('temp.')} AS SELECT {listed}", values)


def _reads_past(seen: Seen) -> Vector:
    """The vector of reads. A site knows the order of transactions in its own history."""
    if seen.reads_past is None:
        return seen.past
    own = seen.origin.history
    return {**seen.reads_past, own: seen.past[own]} if own in seen.past else seen.reads_past


def create_touched(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the empty list of a step's touched rows."""
    connection.execute(
        'CREATE OR REPLACE TEMP TABLE "wlc touched" (place INTEGER, rule VARCHAR, whole_table UHUGEINT, key UHUGEINT,'
        " line BIGINT, had BOOLEAN, has BOOLEAN, found BOOLEAN, is_read BOOLEAN)"
    )


def touch(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, rule: str) -> None:
    """List a table's rows that the transactions of the step touch, and whether the primary has them."""
    table = step.table
    keys = ", ".join(key_names(table))
    changed = "bool_or(_weight < 0) AS had, bool_or(_weight > 0) AS has, false AS is_read"
    relations = [f"SELECT {keys}, _line, {changed} FROM {step.lines} GROUP BY ALL"]
    if step.reads and rule == EPOCH_TRANS:
        relations.append(f"SELECT DISTINCT {keys}, _line, true, true, true FROM {step.reads}")
    connection.execute(
        f"INSERT INTO {TOUCHED} SELECT {place}, {literal(rule)}, {key_sql(table.name, (), ())}, {step_key(table, 'i')},"
        f" i._line, i.had, i.has, t.there IS NOT NULL, i.is_read FROM ({' UNION ALL '.join(relations)}) AS i"
        f" LEFT JOIN ({_base_keys(table)}) AS t ON {same_key(table, 'i', 't')}"
    )


def key_names(table: CapturedTable) -> list[str]:
    """Return the names of the key's columns in image tables."""
    return [f"c{place}" for place in table.layout.key_places]


def step_key(table: CapturedTable, alias: str) -> str:
    """Return the number of an image's key as SQL."""
    values = [f"{alias}.{name}" for name in key_names(table)]
    return key_sql(table.name, key_columns(table.layout), values)


def same_key(table: CapturedTable, one: str, other: str) -> str:
    """Say of two relations with image columns that the keys are equal."""
    columns = zip(key_columns(table.layout), key_names(table), strict=True)
    return " AND ".join(f"{key_value(c, f'{one}.{name}')} = {key_value(c, f'{other}.{name}')}" for c, name in columns)


def _base_keys(table: CapturedTable) -> str:
    columns = zip(key_columns(table.layout), key_names(table), strict=True)
    listed = ", ".join(f"{key_value(column, store_sql(column))} AS {name}" for column, name in columns)
    return f"SELECT {listed}, true AS there FROM {table.sql}"


# Conflicts -----------------------------------------------------------------------------------------------------------


# Lines of the window that not all authors had seen.
_LINES = (
    f"SELECT w.key, w.history, w.tick FROM {WINDOW} AS w LEFT JOIN {_FLOOR} AS f ON f.history = w.history"
    " WHERE w.tick > coalesce(f.tick, 0)"
)


def _find_conflicts(connection: duckdb.DuckDBPyConnection) -> None:
    """List the rows in conflict with the primary's changes before the step."""
    met = (
        "SELECT t.place, t.key, t.line, t.is_read, w.history, w.tick FROM touched AS t JOIN lines AS w ON w.key = {key}"
    )
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE "wlc direct" AS
        WITH lines AS MATERIALIZED ({_LINES}), touched AS (SELECT * FROM {TOUCHED} WHERE rule <> ''),
        met AS ({met.format(key="t.key")} UNION ALL {met.format(key="t.whole_table")})
        SELECT m.place, m.key, m.line, m.is_read FROM met AS m ASOF LEFT JOIN {PASTS} AS p
            ON p.history = m.history AND p.is_read = m.is_read AND p.line <= m.line
            WHERE m.tick > coalesce(p.tick, 0)
        UNION SELECT place, key, min(line), false FROM touched WHERE NOT is_read GROUP BY place, key
            HAVING arg_min(had, line) <> arg_min(found, line)
        """
    )


def _find_missed(connection: duckdb.DuckDBPyConnection, foreign: Collection[str] | None) -> bool:
    """List the rows of tables without a rule of which their author had not seen a line; returns whether there are any.

    That is a refresh, or what the author's site had committed before it was restored from a backup.
    """
    create(connection, MISSED, ("place INTEGER", "key UHUGEINT"), [])
    if foreign is None:
        return False
    met = "SELECT t.place, t.key, t.line, w.history, w.tick FROM touched AS t JOIN lines AS w ON w.key = {key}"
    rows = connection.execute(
        f"""
        INSERT INTO {MISSED}
        WITH lines AS MATERIALIZED (FROM ({_LINES}) WHERE NOT list_contains(?::VARCHAR[], history)),
        touched AS (SELECT * FROM {TOUCHED} WHERE rule = ''),
        met AS ({met.format(key="t.key")} UNION ALL {met.format(key="t.whole_table")})
        SELECT DISTINCT m.place, m.key FROM met AS m ASOF LEFT JOIN {PASTS} AS p
            ON p.history = m.history AND NOT p.is_read AND p.line <= m.line WHERE m.tick > coalesce(p.tick, 0)
        """,
        [list(foreign)],
    ).fetchall()
    return bool(rows[0][0])


def _spread(connection: duckdb.DuckDBPyConnection, refused: Mapping[int, str]) -> None:
    """Reject whole transactions, and later changes of their rows, repeatedly until no rejection is added."""
    create(connection, REFUSED, ("line BIGINT", "cause VARCHAR"), list(refused.items()))
    # The row is absent at the primary before this transaction, as long as nothing spoilt it.
    connection.execute(
        'CREATE OR REPLACE TEMP TABLE "wlc spoiling" AS SELECT place, rule, key, line FROM (SELECT *, coalesce(lag(has)'
        " OVER (PARTITION BY place, key ORDER BY line), found) AS there FROM (SELECT * FROM"
        f" {TOUCHED} WHERE NOT is_read)) WHERE has OR there"
    )
    connection.execute(
        'CREATE OR REPLACE TEMP TABLE "wlc spoilt" AS SELECT s.place, s.key, min(s.line) AS line'
        f' FROM "wlc spoiling" AS s JOIN {DIRECT} AS d USING (place, key, line)'
        f" WHERE s.rule = {literal(EPOCH)} GROUP BY ALL"
    )
    connection.execute(
        'CREATE OR REPLACE TEMP TABLE "wlc newly refused" AS'
        f" SELECT line FROM {REFUSED} UNION SELECT line FROM {DIRECT} AS d WHERE EXISTS (SELECT 1 FROM {TOUCHED} AS t"
        f" WHERE t.place = d.place AND t.rule = {literal(EPOCH_TRANS)})"
    )
    _refuse_new(connection, 'SELECT place, key, line FROM temp."wlc spoilt"')
    while connection.execute(f"SELECT 1 FROM {_NEW} LIMIT 1").fetchall():
        _spoil_new(connection)


def _spoil_new(connection: duckdb.DuckDBPyConnection) -> None:
    """Mark the rows of the last refused transactions as spoilt, and find later transactions that touch them."""
    connection.execute(
        'CREATE OR REPLACE TEMP TABLE "wlc newly spoilt" AS SELECT s.place, s.key, min(s.line) AS line'
        f' FROM "wlc spoiling" AS s JOIN {_NEW} USING (line) GROUP BY ALL'
    )
    connection.execute(f'INSERT INTO {SPOILT} SELECT * FROM "wlc newly spoilt"')
    connection.execute('CREATE OR REPLACE TEMP TABLE "wlc newly refused" (line BIGINT)')
    _refuse_new(connection, 'SELECT * FROM "wlc newly spoilt"')


def _refuse_new(connection: duckdb.DuckDBPyConnection, spoilt: str) -> None:
    """Refuse later transactions that touch spoilt rows, in addition to the newly refused ones."""
    connection.execute(
        f"INSERT INTO {_NEW} SELECT DISTINCT t.line FROM {TOUCHED} AS t JOIN ({spoilt}) AS s"
        f" ON s.place = t.place AND s.key = t.key AND s.line < t.line WHERE t.rule = {literal(EPOCH_TRANS)}"
        f" AND t.line NOT IN (SELECT line FROM {REFUSED}) AND t.line NOT IN (SELECT line FROM {_NEW})"
    )
    connection.execute(
        f"INSERT INTO {REFUSED} SELECT line, {literal(TRANS_IN_CONFLICT)} FROM {_NEW}"
        f" WHERE line NOT IN (SELECT line FROM {REFUSED})"
    )


# The verdict ---------------------------------------------------------------------------------------------------------


def list_rejected(connection: duckdb.DuckDBPyConnection) -> None:
    """List every rejected row with the data for its report."""
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE "wlc rejected" AS
        WITH spoilt AS (SELECT place, key, min(line) AS line FROM {SPOILT} GROUP BY ALL),
        judged AS (
            SELECT t.*, r.cause AS whole_cause, d.line IS NOT NULL AS direct,
                coalesce(s.line < t.line, false) AS is_spoilt
            FROM {TOUCHED} AS t LEFT JOIN {REFUSED} AS r ON r.line = t.line
            LEFT JOIN {DIRECT} AS d
                ON d.place = t.place AND d.key = t.key AND d.line = t.line AND d.is_read = t.is_read
            LEFT JOIN spoilt AS s ON s.place = t.place AND s.key = t.key
        ),
        rejected AS (
            SELECT * FROM judged WHERE whole_cause IS NOT NULL OR (rule = {literal(EPOCH)} AND (direct OR is_spoilt))
        ),
        kept AS (
            SELECT place, key, line, has FROM judged WHERE NOT is_read
            AND whole_cause IS NULL AND NOT (rule = {literal(EPOCH)} AND (direct OR is_spoilt))
        ),
        placed AS (
            SELECT r.*, k.line AS accepted, NOT coalesce(k.has, r.found) AS is_absent FROM rejected AS r
            ASOF LEFT JOIN kept AS k ON k.place = r.place AND k.key = r.key AND k.line < r.line
        ),
        named AS (
            SELECT *, CASE WHEN is_read THEN 'READ_ROW' WHEN had AND has THEN 'UPDATE_ROW' WHEN has THEN 'WRITE_ROW'
                ELSE 'DELETE_ROW' END AS op,
                CASE WHEN whole_cause IS NOT NULL THEN whole_cause
                    WHEN had AND is_absent THEN 'ROW_DOES_NOT_EXIST'
                    WHEN NOT had AND NOT is_absent THEN 'ROW_ALREADY_EXISTS'
                    ELSE 'DATA_IN_CONFLICT' END AS cause
            FROM placed
        )
        SELECT place, rule, key, line, row_number() OVER (PARTITION BY line ORDER BY place, key, is_read) AS number,
            op, cause, direct, whole_cause IS NOT NULL AS is_whole,
            NOT direct AND coalesce(whole_cause = {literal(TRANS_IN_CONFLICT)}, true) AS is_dependent,
            is_absent, accepted, found, is_read,
            NOT is_read AND (has OR NOT is_absent) AS spoils
        FROM named
        """
    )


def _verdicts(connection: duckdb.DuckDBPyConnection) -> Verdicts:
    """Return what is rejected, and what is counted."""
    lines = connection.execute(f"SELECT line FROM {REFUSED}").fetchall()
    in_whole = f"is_whole AND cause = {literal(TRANS_IN_CONFLICT)}"
    counted = {
        (EPOCH, "epoch"): "count(*) FILTER (NOT is_whole)",
        (EPOCH_TRANS, "row_conflicts"): f"count(*) FILTER (direct AND rule = {literal(EPOCH_TRANS)})",
        (EPOCH_TRANS, "row_rejects"): f"count(*) FILTER ({in_whole})",
        (EPOCH_TRANS, "rejects"): f"count(DISTINCT line) FILTER ({in_whole})",
        (EPOCH_TRANS, "dependents"): (
            f"count(DISTINCT line) FILTER ({in_whole}) - count(DISTINCT line) FILTER"
            f" ({in_whole} AND direct AND rule = {literal(EPOCH_TRANS)})"
        ),
        (EPOCH_TRANS, "conflict_steps"): f"CAST(count(*) FILTER ({in_whole}) > 0 AS BIGINT)",
        ("", "delete_delete"): f"count(*) FILTER (op = {literal(DELETE_ROW)} AND is_absent)",
        ("", "refused"): f"count(DISTINCT line) FILTER (is_whole) - count(DISTINCT line) FILTER ({in_whole})",
    }
    found = connection.execute(f"SELECT {', '.join(counted.values())} FROM {REJECTED}").fetchall()[0]
    return Verdicts(
        frozenset(line for (line,) in lines), {name: n for name, n in zip(counted, found, strict=True) if n}
    )
