"""What a site of a mesh rejects of another one's step: each table's rule decides row by row, and no site is informed.

A rule lists the rows in conflict (`verdicts.DIRECT`); one file for each: `newest`, `column_rules`. A table without one
of these rules has one writer, of whose changes the newest count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wlc.capture.duckdb.sites import added_columns, column_rules, newest, verdicts
from wlc.capture.duckdb.sites.verdicts import DIRECT, REFUSED, SPOILT, Verdicts
from wlc.dialect.sql import literal
from wlc.farm.circle import COLUMN_RULES, EPOCH, NEWEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.sites.verdicts import StepTable
    from wlc.farm.circle import Rule
    from wlc.farm.model import Name
    from wlc.masters.site_step import SiteTransaction


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
    """Decide what of a step loses; the relations of the step stay as they are.

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
        # Rejected row by row, as by that rule.
        verdicts.touch(connection, place, table, EPOCH)
        rule = rules.get(table.table.name)
        if rule is not None and rule.add:
            added_columns.keep_written(connection, place, table, rule.add)
        if rule is not None and rule.rule in COLUMN_RULES:
            rejected[rule.rule, rule.rule] += column_rules.reject(connection, place, table, rule)
        else:
            timed.append(place)
    if timed:
        rejected[NEWEST, "older"] += newest.reject(connection, transactions, timed)
    if not rejected.total():
        return Verdicts()
    verdicts.create(connection, REFUSED, ("line BIGINT", "cause VARCHAR"), [])
    verdicts.create(connection, SPOILT, ("place INTEGER", "key UHUGEINT", "line BIGINT"), [])
    verdicts.list_rejected(connection)
    deleted = f"SELECT count(*) FROM {verdicts.REJECTED} WHERE op = {literal(verdicts.DELETE_ROW)} AND is_absent"
    rejected["", "delete_delete"] += connection.execute(deleted).fetchall()[0][0]
    return Verdicts(counts={name: rise for name, rise in rejected.items() if rise})
