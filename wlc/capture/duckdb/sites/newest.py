"""Which changes of another site are older than what this site of a mesh holds: of each row the newest change counts.

A change is as new as the first commit of its transaction; histories and ticks decide between equal times. Deletions
count like any other change, and stay known as long as a site may publish something that was committed without knowing
of them. So a row is what the newest of all changes made of it that a site contains, however they came there.

The author of a change may have seen some of the lines of the window (see `conflict_window`). It is newer than
these, because clocks of a mesh never fall behind what a site has taken, so that it need not be asked which they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.sites import verdicts
from wlc.capture.duckdb.sites.conflict_window import WINDOW, microseconds
from wlc.capture.duckdb.sites.verdicts import DIRECT, TOUCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.masters.site_step import SiteTransaction

_STAMPS = 'temp."wlc stamps"'


def reject(
    connection: duckdb.DuckDBPyConnection, transactions: Sequence[SiteTransaction], places: Sequence[int]
) -> int:
    """Add to the rows in conflict those that are older than what is here, and return how many there are.

    Args:
        connection: In the transaction that applies the step, with a window.
        transactions: The step's.
        places: Of the tables, which are touched.
    """
    stamps = [
        (each.line, microseconds(each.origin.committed), each.origin.history, each.origin.tick) for each in transactions
    ]
    columns = ("line BIGINT", "committed BIGINT", "history VARCHAR", "tick BIGINT")
    verdicts.create(connection, _STAMPS, columns, stamps)
    added = connection.execute(
        f"INSERT INTO {DIRECT} SELECT DISTINCT t.place, t.key, t.line, false FROM {TOUCHED} AS t"
        f" JOIN {_STAMPS} AS s ON s.line = t.line JOIN {WINDOW} AS w ON w.key = t.key"
        f" WHERE t.place IN ({', '.join(map(str, places))})"
        " AND (w.committed, w.history, w.tick) > (s.committed, s.history, s.tick)"
    ).fetchall()
    return int(added[0][0])
