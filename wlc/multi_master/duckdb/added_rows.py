"""Tables without a primary key to which all sites of a mesh add rows, and from which only the primary removes them.

Equal rows of several sites are indistinguishable, so only their number counts: the sum of added and removed copies. A
site takes each log in its order, so a site that contains a removal contains the rows that the primary saw. Only the
primary removes rows, so the sum is never below zero, and every order of taking leads to the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError
from wlc.multi_master.duckdb.commits import is_added_to, removing
from wlc.multi_master.membership import author_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.multi_master.circle import Circle
    from wlc.multi_master.duckdb.verdicts import StepTable
    from wlc.multi_master.site_step import SiteTransaction


def refuse_removals(
    connection: duckdb.DuckDBPyConnection,
    circle: Circle,
    transactions: Sequence[SiteTransaction],
    tables: Sequence[StepTable],
    hint: str,
) -> None:
    """Refuse a step in which a site, even through another site's log, removes rows of a table to which it may only add.

    Args:
        connection: In the transaction that applies the step.
        circle: The circle with the rules.
        transactions: The step's.
        tables: Its tables.
        hint: How to continue with the log.

    Raises:
        CorruptError: There is one.
    """
    histories = {each.line: each.origin.history for each in transactions}
    for step in tables:
        if step.table.layout.primary_key or not is_added_to(circle, step.table):
            continue
        for (line,) in connection.execute(removing(step.table, step.lines, "_line")).fetchall():
            author = author_of(circle, histories[line])
            if author != circle.primary:
                raise CorruptError(
                    f"site {author or 'unknown'} has published that it removed rows of {step.table.name}, to which it"
                    " may only add some",
                    hint=hint,
                )
