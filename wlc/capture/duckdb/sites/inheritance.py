"""What a site of a mesh inherits from the log of the site with whose rows it began: who changed which rows when.

Its own log begins behind that. Without this, a change that another site made before it knew of a deletion would bring
the row back here, and nowhere else. It is written once, when the site joins, and never grows: the site's own log holds
what comes later. It goes when the beginning of that log is pruned: whoever lacks a part of it lacks that beginning,
too, and cannot be judged any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.sites import conflict_window
from wlc.dialect.sql import quote
from wlc.farm.anchors import before

if TYPE_CHECKING:
    import duckdb

    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase


def inherit(
    connection: duckdb.DuckDBPyConnection, catalog: str, log: FarmDatabase, last: int, circle: Circle
) -> dict[str, int]:
    """Keep what another site's log says of rows, as far as it reaches back, and return the vector where it begins.

    Args:
        connection: Any of the database; doing it twice is harmless.
        catalog: The database.
        log: The other site's folder.
        last: Number of the batch with which the database began.
        circle: Says which columns of which tables are added.
    """
    numbers = [number for number in log.batch_numbers() if number <= last]
    conflict_window.create(connection)
    for number in numbers:
        conflict_window.add_batch(connection, log.read_batch(number)[0], log, circle)
    connection.execute(
        f"CREATE OR REPLACE TABLE {quote(catalog)}.wlc.{conflict_window.INHERITED} AS "
        f"SELECT DISTINCT * FROM {conflict_window.WINDOW}"
    )
    return before(log.read_batch(numbers[0])[0], circle.lineage()) if numbers and numbers[0] > 1 else {}


def disinherit(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Delete what was kept; doing it twice is harmless."""
    connection.execute(f"DROP TABLE IF EXISTS {quote(catalog)}.wlc.{conflict_window.INHERITED}")
