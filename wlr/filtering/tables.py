"""The tables that filters name, looked up in a snapshot and in the log after it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.model import Ddl
from wlr.ddl.relevance import created_by
from wlr.filtering.images import masking, refuse_unfit
from wlr.filtering.schema import refuse_references

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.farm.model import Layout, Manifest, Name
    from wlr.plan.row_filters import RowFilters
    from wlr.plan.step import Step


def named_tables(filters: RowFilters, manifest: Manifest | None, steps: Iterable[Step]) -> RowFilters:
    """Return filters with their tables as they are called, each checked against the columns that it has first.

    Raises:
        InvalidError: There is no such table, a filter does not fit it, or another table refers to it.
    """
    layouts: dict[Name, Layout] = {table.table: table.layout for table in manifest.tables} if manifest else {}
    names = set(layouts)
    if not {each.table.folded for each in filters.tables} <= {name.folded for name in names}:
        # Only now the whole log is read twice.
        for transaction in (t for step in steps for t in step.transactions):
            names.update(created_by(transaction))
            for record in transaction.records:
                if isinstance(record, Ddl):
                    refuse_references(record, filters)
                    if record.layout is not None:
                        layouts.setdefault(record.object, record.layout)
    named = filters.named_as(names)
    with tempfile.TemporaryDirectory(prefix="wlr-filter-") as work, masking(b"", Path(work)) as connection:
        for each in named.tables:
            if each.table in layouts:
                refuse_unfit(connection, each, layouts[each.table])
    return named
