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
    from collections.abc import Callable, Iterable, Mapping

    from wlc.farm.model import Layout, Manifest, Name
    from wlr.plan.row_filters import RowFilters
    from wlr.plan.step import Step


def named_tables(filters: RowFilters, manifest: Manifest | None, steps: Iterable[Step]) -> RowFilters:
    """Return filters with their tables as they are called, each checked against the columns that it has first.

    Raises:
        InvalidError: There is no such table, a filter does not fit it, or another table refers to it.
    """
    wanted = {each.table.folded for each in filters.tables}

    def is_enough(names: set[Name]) -> bool:
        return wanted <= {name.folded for name in names}

    layouts, names = known_tables(manifest, steps, is_enough, lambda ddl: refuse_references(ddl, filters))
    named = filters.named_as(names)
    refuse_all_unfit(named, layouts)
    return named


def known_tables(
    manifest: Manifest | None,
    steps: Iterable[Step],
    is_enough: Callable[[set[Name]], bool],
    look: Callable[[Ddl], None] = lambda _: None,
) -> tuple[dict[Name, Layout], set[Name]]:
    """Return the columns that tables have first, and the names of all tables of a snapshot and of the log after it.

    Args:
        manifest: The snapshot, None for an empty database.
        steps: The log after it, which is only read if the snapshot's tables are not enough.
        is_enough: Says so of names.
        look: Sees every schema change that is read.
    """
    layouts: dict[Name, Layout] = {table.table: table.layout for table in manifest.tables} if manifest else {}
    names = set(layouts)
    if not is_enough(names):
        # Only now the whole log is read twice.
        for transaction in (t for step in steps for t in step.transactions):
            names.update(created_by(transaction))
            for record in transaction.records:
                if isinstance(record, Ddl):
                    look(record)
                    if record.layout is not None:
                        layouts.setdefault(record.object, record.layout)
    return layouts, names


def refuse_all_unfit(filters: RowFilters, layouts: Mapping[Name, Layout]) -> None:
    """Refuse a filter that does not fit the columns of its table; raises as `refuse_unfit` does."""
    with tempfile.TemporaryDirectory(prefix="wlr-filter-") as work, masking(b"", Path(work)) as connection:
        for each in filters.tables:
            if each.table in layouts:
                refuse_unfit(connection, each, layouts[each.table])
