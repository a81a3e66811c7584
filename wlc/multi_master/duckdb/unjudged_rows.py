"""Unjudged rows: a secondary's rows that its own transactions changed last and the primary has not judged yet.

They are read from the journal and from the part of the secondary's own log that the primary has not seen.

In a table without a rule, the primary's value of such a row is older than the row and does not replace it: the primary
will accept the own transaction when it takes it. This applies to a refresh, and to the secondary's own commits from
before it was restored from a backup. Changes of other sites are applied as they arrive: rows that several sites write
without a rule have no guarantee.

The primary's values are stored as images that change nothing: if the row must be set back, because it conflicts with
other rows or its transaction is rejected, it gets that value.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.capture.duckdb import unpublished
from wlc.capture.duckdb.journal import ABSENT, REFRESHED
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.types import storage_type
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import WEIGHT, Change, RowsRefreshed
from wlc.farm.store import MissingError
from wlc.farm.vectors import expanded
from wlc.masters.contract import database_of
from wlc.multi_master.anchors import has_seen
from wlc.multi_master.circle import OWNER
from wlc.multi_master.duckdb.conflict_window import bare
from wlc.multi_master.duckdb.lines import projected

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Batch
    from wlc.farm.vectors import Lineage, Vector
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.duckdb.lines import LinesTable
    from wlc.multi_master.site_step import SiteStep, SiteTransaction


_OWN = 'temp."wlc own lines"'
_JUDGED = 'temp."wlc judged"'


@dataclass(frozen=True, slots=True)
class UnjudgedRows:
    """Finds them, table by table.

    Attributes:
        connection: In a transaction.
        shared: A secondary.
        past: The expanded vector that the primary has judged.
        lineage: Restores histories that vectors leave out.
    """

    connection: duckdb.DuckDBPyConnection
    shared: Shared
    past: Vector
    lineage: Lineage

    def load(self, table: CapturedTable, kept: str | None = None) -> str | None:
        """Find the unjudged rows of a table.

        Args:
            table: The table.
            kept: The values of such rows in a step that is not taken yet, see `keep`.

        Returns:
            A relation, see `relation_of`, with the key's columns as in image tables, the last own transaction that
            changed the row, `tick`, and the primary's row: `had`, and the other columns. None if there are no such
            rows.
        """
        columns = "".join(f", c{n} {storage_type(column.type)}" for n, column in enumerate(table.layout.stored))
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {bare(_OWN)} (tick BIGINT, is_own BOOLEAN, weight TINYINT{columns})"
        )
        self._load_journal(table)
        self._load_log(table)
        if kept is not None:
            self.connection.execute(f"INSERT INTO {_OWN} SELECT {2**62} + _line, false, * EXCLUDE (_line) FROM {kept}")
        found, keys = relation_of(table), [f"c{place}" for place in table.layout.key_places]
        listed, others = ", ".join(keys), [column for column in table.columns if column not in keys]
        # The primary's last value since the first own change counts, otherwise the row before that change.
        self.connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE {bare(found)} AS
            WITH taken AS (
                SELECT {listed}, max(tick) AS tick FROM {_OWN} WHERE NOT is_own AND abs(weight) = 1 GROUP BY ALL
            ), own AS (
                SELECT {listed}, min(o.tick) AS first, max(o.tick) AS last
                FROM {_OWN} AS o LEFT JOIN taken AS t USING ({listed})
                WHERE o.is_own AND abs(o.weight) = 1 AND o.tick > coalesce(t.tick, 0) GROUP BY ALL
            ), had AS (
                FROM {_OWN} AS o JOIN own USING ({listed})
                WHERE CASE WHEN o.is_own THEN weight = -1 AND tick = first ELSE abs(weight) > 1 AND tick > first END
                QUALIFY row_number() OVER (PARTITION BY {listed} ORDER BY tick DESC) = 1
            )
            SELECT {listed}, own.last AS tick, coalesce(had.weight <> {ABSENT}, false) AS had
                {"".join(f", had.{column}" for column in others)}
            FROM own LEFT JOIN had USING ({listed})
            """
        )
        return found if self.connection.execute(f"SELECT 1 FROM {found} LIMIT 1").fetchall() else None

    def _load_journal(self, table: CapturedTable) -> None:
        judged = self.past.get(self.shared.require_state().history, 0)
        waiting = unpublished.pending(self.connection, self.shared.catalog, most=2**62).transactions
        own = [entry.tick for entry in waiting if entry.origin is None]
        self.connection.execute(
            f"INSERT INTO {_OWN} SELECT _tick, list_contains(?::BIGINT[], _tick), _weight, {', '.join(table.columns)}"
            f" FROM {table.images} WHERE _tick > {judged} AND _weight IN (-1, 1, {REFRESHED}, {ABSENT})",
            [own],
        )

    def _load_log(self, table: CapturedTable) -> None:
        state = self.shared.require_state()
        database = database_of(state)
        number, last = state.batch, state.tick
        while number > 0:
            batch = database.read_batch(number)[0]
            if has_seen(self.past, batch, self.lineage):
                # Pruning keeps nothing older; see `wlc.multi_master.unjudged`.
                return
            judged = self.past.get(batch.history, 0)
            own = [each.tick for each in batch.transactions if each.origin is None and each.tick > judged]
            weights = _weights(batch)
            for file in batch.files:
                if file.table == table.name and file.file.path in weights:
                    local = database.fetch(file)
                    try:
                        self.connection.execute(
                            f"INSERT INTO {_OWN} SELECT _tick, list_contains(?::BIGINT[], _tick),"
                            f" {weights[file.file.path]}, {', '.join(projected(table, file.layout))}"
                            f" FROM {rows_of(local)} AS f WHERE _tick BETWEEN {judged + 1} AND {last}",
                            [own],
                        )
                    finally:
                        database.release(local)
            if batch.first <= judged + 1:
                return
            if batch.parent is not None:
                # A site restored from a backup lacks the later transactions of its former history.
                last = batch.parent.tick
            number -= 1


def _weights(batch: Batch) -> dict[str, str]:
    """Return, for the data files to read, an expression for the journal weight of their rows."""
    found: dict[str, str] = {}
    for record in (record for each in batch.transactions for record in each.records):
        if isinstance(record, Change):
            found[record.path] = WEIGHT
        elif isinstance(record, RowsRefreshed) and record.kept:
            found[record.path] = str(ABSENT if record.absent else REFRESHED)
    return found


def relation_of(table: CapturedTable) -> str:
    """Return where `UnjudgedRows.load` puts the rows of a table."""
    return f'temp."wlc unjudged {table.id}"'


def keep(
    connection: duckdb.DuckDBPyConnection, shared: Shared, step: SiteStep, tables: Sequence[LinesTable]
) -> list[LinesTable]:
    """Remove values older than own rows from a step of the primary, for tables without a rule.

    Args:
        connection: In the transaction of the step.
        shared: A secondary.
        step: The step.
        tables: Its lines.

    Returns:
        The lines; for a table with such rows, `kept` holds the removed values as images of the journal.
    """
    state = shared.require_state()
    site = state.site
    if site is None or site.circle is None or not step.is_primary or shared.is_in_mesh:
        return list(tables)
    if not site.own and shared.last_tick <= state.tick:
        # A site that never writes has no own rows.
        return list(tables)
    own = {each.history for each in site.circle.site(site.name).histories}
    older = [each for each in step.transactions if _is_older(each, own)]
    if not older:
        return list(tables)
    lineage = site.circle.lineage()
    pasts = [expanded(each.past, lineage) for each in older]
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {bare(_JUDGED)} AS SELECT unnest($1::BIGINT[]) AS line,"
        " unnest($2::BIGINT[]) AS tick",
        # Ticks of a later history are greater than all ticks of earlier ones that any site has seen.
        [[each.line for each in older], [max(past.get(history, 0) for history in own) for past in pasts]],
    )
    # The primary's vector never falls.
    rows = UnjudgedRows(connection, shared, pasts[0], lineage)
    return [_kept(rows, table) if table.key and not _is_judged(site.circle, table) else table for table in tables]


def _kept(rows: UnjudgedRows, table: LinesTable) -> LinesTable:
    if not table.count(rows.connection, f"_line IN (SELECT line FROM {_JUDGED})"):
        return table
    # Its own log was pruned, or the table has other columns since.
    with suppress(MissingError, UnsupportedError):
        found = rows.load(table.table)
        if found is None:
            return table
        kept = f'temp."wlc kept {table.table.id}"'
        older = (
            f"FROM {table.lines} AS l WHERE EXISTS (FROM {_JUDGED} AS j JOIN {found} AS u ON u.tick > j.tick"
            f" WHERE j.line = l._line AND {' AND '.join(f'u.{key} = l.{key}' for key in table.key)})"
        )
        images = [
            name if name in table.key else f"if(_weight > 0, {name}, NULL) AS {name}" for name in table.table.columns
        ]
        rows.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {bare(kept)} AS SELECT _line,"
            f" if(_weight > 0, {REFRESHED}, {ABSENT})::TINYINT AS _weight, {', '.join(images)} {older}"
            f" QUALIFY row_number() OVER (PARTITION BY _line, {table.keys} ORDER BY _weight DESC) = 1"
        )
        rows.connection.execute(f"DELETE {older}")
        return replace(table, kept=kept)
    return table


def journal_kept(connection: duckdb.DuckDBPyConnection, found: LinesTable, before: int) -> None:
    """Write the primary's values of kept rows into the image table, after the step itself."""
    if found.kept is not None:
        images, columns = found.table.images, ", ".join(found.table.columns)
        connection.execute(
            f"INSERT INTO {images} SELECT {before} + _line, _weight, NULL, NULL, {columns} FROM {found.kept}"
        )


def _is_older(transaction: SiteTransaction, own: set[str]) -> bool:
    """Say whether a transaction is a refresh, or one of this site's own that a restore has removed here."""
    records = transaction.transaction.records
    is_refresh = any(isinstance(record, RowsRefreshed) and not record.kept for record in records)
    return is_refresh or transaction.origin.history in own


def _is_judged(circle: Circle, table: LinesTable) -> bool:
    rule = circle.rule_of(table.table.name)
    return rule is not None and rule.rule != OWNER
