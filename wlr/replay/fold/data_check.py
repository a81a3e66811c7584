"""Checks data files against their log file or manifest, for all engines, before anything is applied.

It reads columns, types and missing values from the footers of files, and weights and ticks from their two columns. It
reads no other column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.file_columns import reading, refuse_missing_values, refuse_other_columns, required
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.farm.errors import CorruptError
from wlc.farm.model import WEIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.dialect.duckdb.fold import RowImages
    from wlr.replay.plan.step import TableChange


def refuse_other_images(
    connection: duckdb.DuckDBPyConnection, change: TableChange, found: Sequence[RowImages], *, is_whole: bool = True
) -> bool:
    """Refuse data files without exactly the row images that the log lists.

    Args:
        connection: A connection that may read the files.
        change: The change in the log.
        found: Files and ticks of its images.
        is_whole: All images of the change are in these files, so they can be counted.

    Returns:
        Whether all images belong to one transaction.

    Raises:
        CorruptError: The files have other columns, types, weights or ticks; the message names them.
    """
    local = [file for source in found for file in source.files]
    paths = {file: read.file.file.path for file, read in zip(local, change.reads, strict=True) if not read.is_local}
    if paths:
        layouts = [read.file.layout for read in change.reads]
        refuse_other_columns(connection, layouts[-1], paths, is_images=True)
        refuse_missing_values(connection, set.intersection(*map(required, layouts)), paths)
    if not local:
        return False
    images = " UNION ALL ".join(
        f"SELECT {WEIGHT} AS w, _tick AS t FROM {rows_of(*source.files)}"
        f" WHERE _tick BETWEEN {source.first} AND {source.last}"
        for source in found
    )
    with reading(", ".join(sorted(set(paths.values())))):
        query = (
            "SELECT count(*) FILTER (w = 1), count(*) FILTER (w = -1), count(*), coalesce(min(t) = max(t), false)"
            f" FROM ({images})"
        )
        added, removed, rows, is_one = connection.execute(query).fetchall()[0]
    is_right = (added, removed) == (change.added, change.removed) or not is_whole
    if added + removed != rows or not is_right:
        files = ", ".join(sorted({read.file.file.path for read in change.reads}))
        listed = f", the log file says {change.added} and {change.removed}" if is_whole else ""
        more = f" and {rows - added - removed} of other weights" if added + removed != rows else ""
        counted = f"{added} rows of weight 1 and {removed} of weight -1{more}"
        ticks = f"transactions {change.reads[0].first} to {change.reads[-1].last}"
        raise CorruptError(f"{files}: {ticks} have {counted} of {change.table}{listed}", path=files)
    return bool(is_one)
