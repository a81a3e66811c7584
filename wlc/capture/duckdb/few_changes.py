"""Statements of an open transaction after which its few changed rows are known; see `few_rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb import superset
from wlc.capture.duckdb.analysis import AppendEffect
from wlc.capture.duckdb.few_rows import FewRows, journal_sql, texts
from wlc.capture.duckdb.outcome import StatementOutcome, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.capture.duckdb.analysis import Effect, TouchEffect
    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.images import Images

_LONGEST = 2000


def find(tables: CapturedTables, effect: TouchEffect, images: Images, values: Any) -> bool:
    """Keep the rows that an UPDATE or DELETE is about to change; False if it must be captured in another way."""
    table = images.table
    if images.few is None and images.is_untouched and not images.has_local and journal_sql(tables, table):
        images.few = FewRows(tables, table)
    if images.few is None or images.has_local or tables.triggers:
        return False
    if not superset.is_row_wise(effect) or not superset.pins_key(effect, table):
        return False
    return images.few.look(effect, values)


def insert(
    tables: CapturedTables, effect: Effect, touched: Sequence[Images], text: str, values: Any
) -> StatementOutcome | None:
    """Run an INSERT of one row, which is kept; None if it must run and be captured in another way."""
    if not isinstance(effect, AppendEffect) or effect.values != 1 or len(touched) != 1:
        return None
    (images,) = touched
    table = images.table
    if not images.is_untouched or tables.triggers or not journal_sql(tables, table) or len(text) > _LONGEST:
        return None
    # The text keeps lines of its own: it may end in a comment, and an error shows the line where it occurred.
    statement = tables.parsed(
        ("insert", text, table.id), lambda: f"{text.rstrip('; ')}\nRETURNING {', '.join(texts(table, table.values))}"
    )
    if statement is None:
        return None
    rows = tables.connection.execute(statement, values).fetchall()
    if len(rows) == 1:
        images.few = FewRows(tables, table, added=rows[0])
    return counted(effect.values)
