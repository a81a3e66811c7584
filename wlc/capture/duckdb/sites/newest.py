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
from wlc.capture.duckdb.sites.verdicts import DIRECT, REFUSED, SPOILT, TOUCHED, Verdicts
from wlc.dialect.sql import literal
from wlc.farm.circle import EPOCH, NEWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.capture.duckdb.sites.verdicts import StepTable
    from wlc.masters.contract import SiteTransaction

_STAMPS = 'temp."wlc stamps"'


def judge(
    connection: duckdb.DuckDBPyConnection, transactions: Sequence[SiteTransaction], tables: Sequence[StepTable]
) -> Verdicts:
    """Decide what of a step is older than what is here; the relations of the step stay as they are.

    Args:
        connection: In the transaction that applies the step, with a window.
        transactions: The step's.
        tables: Its tables.
    """
    stamps = [
        (each.line, microseconds(each.origin.committed), each.origin.history, each.origin.tick) for each in transactions
    ]
    columns = ("line BIGINT", "committed BIGINT", "history VARCHAR", "tick BIGINT")
    verdicts.create(connection, _STAMPS, columns, stamps)
    verdicts.create_touched(connection)
    for place, table in enumerate(tables):
        if table.table.layout.primary_key:
            # Rejected row by row, as by that rule.
            verdicts.touch(connection, place, table, EPOCH)
    found = connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {DIRECT.removeprefix('temp.')} AS"
        f" SELECT DISTINCT t.place, t.key, t.line, false AS is_read FROM {TOUCHED} AS t"
        f" JOIN {_STAMPS} AS s ON s.line = t.line JOIN {WINDOW} AS w ON w.key = t.key"
        " WHERE (w.committed, w.history, w.tick) > (s.committed, s.history, s.tick)"
    ).fetchall()[0][0]
    if not found:
        return Verdicts()
    verdicts.create(connection, REFUSED, ("line BIGINT", "cause VARCHAR"), [])
    verdicts.create(connection, SPOILT, ("place INTEGER", "key UHUGEINT", "line BIGINT"), [])
    verdicts.list_rejected(connection)
    deleted = f"SELECT count(*) FROM {verdicts.REJECTED} WHERE op = {literal(verdicts.DELETE_ROW)} AND is_absent"
    both = connection.execute(deleted).fetchall()[0][0]
    counts = {(NEWEST, "older"): found, ("", "delete_delete"): both}
    return Verdicts(counts={name: rise for name, rise in counts.items() if rise})
