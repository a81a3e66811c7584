"""The rows of a secondary that its own transactions have changed last, and that the primary has not judged yet.

They are read from what is journalled and from the secondary's own log, as far as the primary has not seen it.

What the primary tells of such a row in a table that nobody judges is older than the row, and does not replace it: the
own transaction is accepted when the primary takes it, and stands behind what it told. That holds for a refresh, and for
what the secondary had committed itself before it was restored from a backup. What other sites write is applied as it
comes: nothing is promised of a row that several sites write without a rule. Nor is a row kept that could have to give
way to others: it goes back to what it was before the own transactions, and what the primary told is that.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.capture.duckdb import taken_tables, unpublished
from wlc.capture.duckdb.sites.conflict_window import bare
from wlc.capture.duckdb.sites.lines import projected
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.types import storage_type
from wlc.farm.anchors import has_seen
from wlc.farm.circle import OWNER
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import WEIGHT, Change, RowsRefreshed
from wlc.farm.store import MissingError
from wlc.farm.vectors import expanded
from wlc.masters.contract import database_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.sites.lines import LinesTable
    from wlc.farm.circle import Circle
    from wlc.farm.vectors import Lineage, Vector
    from wlc.masters.contract import SiteStep, SiteTransaction

_OWN = 'temp."wlc own lines"'
_JUDGED = 'temp."wlc judged"'


@dataclass(frozen=True, slots=True)
class UnjudgedRows:
    """Finds them, table by table.

    Attributes:
        connection: In a transaction.
        shared: A secondary.
        past: What the primary has judged, with all that it implies.
        lineage: What vectors leave out.
    """

    connection: duckdb.DuckDBPyConnection
    shared: Shared
    past: Vector
    lineage: Lineage

    def load(self, table: CapturedTable) -> str | None:
        """Find those of a table.

        Returns:
            A relation, see `relation_of`, with the key's columns as in image tables, the last own transaction that
            changed the row, `tick`, and what was there before all of them: `had`, and the other columns. None if there
            are no such rows.
        """
        columns = "".join(f", c{n} {storage_type(column.type)}" for n, column in enumerate(table.layout.stored))
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {bare(_OWN)} (tick BIGINT, is_own BOOLEAN, weight TINYINT{columns})"
        )
        self._load_journal(table)
        self._load_log(table)
        found = relation_of(table)
        keys = [f"c{place}" for place in table.layout.key_places]
        listed = "".join(f", o.{column} AS {column}" for column in table.columns if column not in keys)
        self.connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE {bare(found)} AS
            WITH taken AS (SELECT {", ".join(keys)}, max(tick) FILTER (NOT is_own) AS tick FROM {_OWN} GROUP BY ALL),
            own AS (
                SELECT {", ".join(f"o.{key}" for key in keys)}, min(o.tick) AS first, max(o.tick) AS tick
                FROM {_OWN} AS o JOIN taken AS t USING ({", ".join(keys)})
                WHERE o.is_own AND o.tick > coalesce(t.tick, 0) GROUP BY ALL
            )
            SELECT {", ".join(f"w.{key}" for key in keys)}, w.tick, o.weight IS NOT NULL AS had{listed}
            FROM own AS w LEFT JOIN (FROM {_OWN} WHERE weight < 0) AS o ON o.tick = w.first
                AND {" AND ".join(f"o.{key} = w.{key}" for key in keys)}
            """
        )
        return found if self.connection.execute(f"SELECT 1 FROM {found} LIMIT 1").fetchall() else None

    def _load_journal(self, table: CapturedTable) -> None:
        judged = self.past.get(self.shared.require_state().history, 0)
        waiting = unpublished.pending(self.connection, self.shared.catalog, most=2**62).transactions
        own = [entry.tick for entry in waiting if entry.origin is None]
        self.connection.execute(
            f"INSERT INTO {_OWN} SELECT _tick, list_contains(?::BIGINT[], _tick), _weight, {', '.join(table.columns)}"
            f" FROM {table.images} WHERE _tick > {judged} AND abs(_weight) = 1",
            [own],
        )

    def _load_log(self, table: CapturedTable) -> None:
        state = self.shared.require_state()
        database = database_of(state)
        number, last = state.batch, state.tick
        while number > 0:
            batch = database.read_batch(number)[0]
            if has_seen(self.past, batch, self.lineage):
                # Pruning keeps nothing older; see `wlc.masters.unjudged`.
                return
            judged = self.past.get(batch.history, 0)
            own = [each.tick for each in batch.transactions if each.origin is None and each.tick > judged]
            counted = {r.path for each in batch.transactions for r in each.records if isinstance(r, Change)}
            for file in batch.files:
                if file.table == table.name and file.file.path in counted:
                    local = database.fetch(file)
                    try:
                        self.connection.execute(
                            f"INSERT INTO {_OWN} SELECT _tick, list_contains(?::BIGINT[], _tick), {WEIGHT},"
                            f" {', '.join(projected(table, file.layout))} FROM {rows_of(local)} AS f"
                            f" WHERE _tick BETWEEN {judged + 1} AND {last}",
                            [own],
                        )
                    finally:
                        database.release(local)
            if batch.first <= judged + 1:
                return
            if batch.parent is not None:
                # A site that was restored from a backup does not hold what came after that in the history before.
                last = batch.parent.tick
            number -= 1


def relation_of(table: CapturedTable) -> str:
    """Return where `UnjudgedRows.load` puts the rows of a table."""
    return f'temp."wlc unjudged {table.id}"'


def keep(connection: duckdb.DuckDBPyConnection, shared: Shared, step: SiteStep, tables: Sequence[LinesTable]) -> None:
    """Delete from a step of the primary what is older than own rows of tables that nobody judges.

    Args:
        connection: In the transaction of the step.
        shared: A secondary.
        step: The step.
        tables: Its lines.
    """
    state = shared.require_state()
    site = state.site
    if site is None or site.circle is None or not step.is_primary or shared.is_in_mesh:
        return
    if not site.own and shared.last_tick <= state.tick:
        # Whoever never writes has nothing to keep.
        return
    own = {each.history for each in site.circle.site(site.name).histories}
    older = [each for each in step.transactions if _is_older(each, own)]
    kept = [table for table in tables if table.key and not _is_judged(site.circle, table)] if older else []
    constrained = taken_tables.constrained(connection, shared.catalog) if kept else ()
    kept = [table for table in kept if table.table.name not in constrained]
    if not kept:
        return
    lineage = site.circle.lineage()
    pasts = [expanded(each.past, lineage) for each in older]
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {bare(_JUDGED)} AS SELECT unnest($1::BIGINT[]) AS line,"
        " unnest($2::BIGINT[]) AS tick",
        # Ticks of a later history are greater than all that were seen of those before.
        [[each.line for each in older], [max(past.get(history, 0) for history in own) for past in pasts]],
    )
    # What the primary contains never falls.
    rows = UnjudgedRows(connection, shared, pasts[0], lineage)
    for table in kept:
        if not table.count(connection, f"_line IN (SELECT line FROM {_JUDGED})"):
            continue
        found = None
        # Its own log was pruned, or the table has other columns since.
        with suppress(MissingError, UnsupportedError):
            found = rows.load(table.table)
        if found is not None:
            connection.execute(
                f"DELETE FROM {table.lines} AS l WHERE EXISTS (SELECT 1 FROM {_JUDGED} AS j JOIN {found} AS u"
                f" ON u.tick > j.tick WHERE j.line = l._line AND"
                f" {' AND '.join(f'u.{key} = l.{key}' for key in table.key)})"
            )


def _is_older(transaction: SiteTransaction, own: set[str]) -> bool:
    """Say whether the primary tells what rows are, or passes on what this site had committed and does not hold."""
    records = transaction.transaction.records
    return transaction.origin.history in own or any(isinstance(record, RowsRefreshed) for record in records)


def _is_judged(circle: Circle, table: LinesTable) -> bool:
    rule = circle.rule_of(table.table.name)
    return rule is not None and rule.rule != OWNER
