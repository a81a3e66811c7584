"""Conflicts with other transactions that DuckDB does not detect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb.images import conflict
from wlc.capture.duckdb.journal import LOCAL_ROWID
from wlc.capture.duckdb.uncaptured import refuse_changed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wlc.capture.duckdb.images import Images
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Name


def refuse(
    shared: Shared,
    settled: Sequence[Images],
    known_as: Mapping[Name, Name | None],
    rewritten: Iterable[Name],
    began_after: int,
) -> None:
    """Refuse conflicts with other transactions or programs that DuckDB does not detect.

    DuckDB detects two transactions that delete a row, or update the same column of it. It accepts a delete beside an
    update, and updates of two columns: the images would then show a row that never existed.

    Args:
        shared: The database.
        settled: The images of the transaction, complete.
        known_as: The committed name of each table that the transaction has altered; None if it created the table.
        rewritten: Tables whose rows are all published again.
        began_after: Number of commits that the transaction sees.

    Raises:
        duckdb.TransactionException: Other transactions have changed the same rows or their table. UnsupportedError:
        Rows of a table were changed without capture.
    """
    for images in settled:
        name = images.table.name
        known = known_as.get(name, name)
        if images.removed and known is not None and shared.last_changes.has_removed_since(known, began_after):
            refuse_altered(shared, known, began_after)
            if name in known_as:
                # Other connections cannot read the table as this transaction sees it.
                raise conflict(name)
            # A clear also removes rows that other transactions changed.
            if images.cleared is None and (not images.table.has_rowid or _is_outdated(images)):
                raise conflict(name)
    for name in rewritten:
        # The rows were published as this transaction sees them. DuckDB also rewrites rows that it does not see.
        if shared.last_changes.has_changed_since(name, began_after):
            raise conflict(name)
    refuse_changed(shared, [images.table.name for images in settled if images.removed])


def refuse_altered(shared: Shared, table: Name, began_after: int) -> None:
    """Refuse to compare changed rows with a table that another transaction has altered or dropped.

    DuckDB itself refuses only at the commit.

    Raises:
        duckdb.TransactionException: Another transaction has.
    """
    if shared.last_changes.has_altered_since(table, began_after):
        raise duckdb.TransactionException(
            f"TransactionContext Error: Conflict: table {table}, whose rows this transaction changes, was altered or"
            " dropped by another one after it began"
        )


def _is_outdated(images: Images) -> bool:
    """Whether other transactions have changed or removed rows that this one has saved."""
    connection, table = images.connection, images.table
    saved = f"SELECT _rowid AS r, * FROM {images.saved_sql} AND _rowid < {LOCAL_ROWID}"
    rowids = connection.sql(f"SELECT r FROM ({saved})").to_arrow_table()
    # Another connection sees the present commits; this one sees the commits at its begin.
    with connection.cursor() as other:
        other.register("wlc rowids", rowids)
        query = f"SELECT rowid, {', '.join(table.values)} FROM {table.sql}"
        present = other.sql(f'{query} WHERE rowid IN (SELECT r FROM "wlc rowids")').to_arrow_table()
    connection.register("wlc present", present.rename_columns(["r", *table.columns]))
    changed = " OR ".join(images.differs(f"o.{name}", f"n.{name}", n) for n, name in enumerate(table.columns))
    found = connection.execute(
        f'SELECT 1 FROM ({saved}) AS o LEFT JOIN "wlc present" AS n ON o.r = n.r WHERE n.r IS NULL OR {changed} LIMIT 1'
    ).fetchall()
    connection.unregister("wlc present")
    return bool(found)
