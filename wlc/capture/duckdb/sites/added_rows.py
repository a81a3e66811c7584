"""Tables without a primary key to which all sites of a mesh add rows, and from which only the primary removes them.

Equal rows of several sites cannot be told apart, so that what counts is how many there are: the sum of what was added
and removed. A site takes from each log in its order, so whoever contains a removal contains the rows that the primary
saw. As nobody else removes any, the sum is never below zero, and every order of taking leaves the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.images import exact_sql
from wlc.farm.circle import ADD
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.mesh import author_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.sites.verdicts import StepTable
    from wlc.farm.circle import Circle
    from wlc.masters.site_step import SiteTransaction


def _is_added_to(circle: Circle, table: CapturedTable) -> bool:
    rule = circle.rule_of(table.name)
    return rule is not None and rule.rule == ADD


def _removing(table: CapturedTable, images: str, line: str) -> str:
    """Select the transactions that leave fewer rows of some value than there were."""
    exact = "".join(
        f", {exact_sql(column.type, name)}" for column, name in zip(table.layout.stored, table.columns, strict=True)
    )
    return f"SELECT DISTINCT {line} FROM (SELECT {line} FROM {images} GROUP BY {line}{exact} HAVING sum(_weight) < 0)"


def refuse_own_removals(
    connection: duckdb.DuckDBPyConnection, circle: Circle, site: str, table: CapturedTable, tick: int
) -> None:
    """Refuse to remove rows at a site that may only add them.

    Args:
        connection: In the transaction, whose images are complete.
        circle: Says who may.
        site: The site.
        table: The table.
        tick: Under which the images are journalled.

    Raises:
        InvalidError: The transaction removes or changes rows.
    """
    if site == circle.primary or not _is_added_to(circle, table):
        return
    images = f"(FROM {table.images} WHERE _tick = {tick})"
    if connection.execute(_removing(table, images, "_tick")).fetchall():
        raise InvalidError(
            f"site {site} can only add rows to {table.name}, which has the rule {ADD}: only the primary,"
            f" {circle.primary}, can delete or change them",
            hint=f"delete them at {circle.primary}, or give the table a primary key there, then the rule newest",
        )


def refuse_removals(
    connection: duckdb.DuckDBPyConnection,
    circle: Circle,
    transactions: Sequence[SiteTransaction],
    tables: Sequence[StepTable],
    hint: str,
) -> None:
    """Refuse a step in which a site removes rows that may only add them, whoever passed it on.

    Args:
        connection: In the transaction that applies the step.
        circle: Says who may.
        transactions: The step's.
        tables: Its tables.
        hint: What to do with the log.

    Raises:
        CorruptError: There is one.
    """
    histories = {each.line: each.origin.history for each in transactions}
    for step in tables:
        if step.table.layout.primary_key or not _is_added_to(circle, step.table):
            continue
        for (line,) in connection.execute(_removing(step.table, step.lines, "_line")).fetchall():
            author = author_of(circle, histories[line])
            if author != circle.primary:
                raise CorruptError(
                    f"site {author or 'unknown'} has published that it removed rows of {step.table.name}, to which it"
                    " may only add some",
                    hint=hint,
                )
