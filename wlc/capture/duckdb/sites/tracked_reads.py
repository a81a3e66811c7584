"""Rows that a transaction at a site reads and that count in conflicts: they are journalled beside what it changes.

The images wait under a tick of no transaction, since the capture of changes deletes what it saved under the real one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb import journal, locking, superset
from wlc.capture.duckdb.effects import LockingReadEffect
from wlc.capture.duckdb.journal import JournalledReads
from wlc.farm.circle import EPOCH_TRANS, EXCLUSIVE_READS, NO_READS, OWNER, SHARED_READS
from wlc.farm.errors import InvalidError
from wlc.masters.circle_place import founder_of
from wlc.masters.contract import database_of

if TYPE_CHECKING:
    import duckdb

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.effects import Effect, TouchEffect
    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.circle import Circle

# Images of reads have this tick until their transaction commits.
READS_TICK = -3
# More queries than these do not wait for the first change, whether it comes or not.
_MOST_WAITING = 1000


@dataclass
class TrackedReads:
    """The tracked reads of one open transaction.

    Attributes:
        tables: Image tables that hold some, by their numbers.
    """

    connection: duckdb.DuckDBPyConnection
    shared: Shared
    captured: CapturedTables
    tables: dict[int, CapturedTable] = field(default_factory=dict)
    _rows: dict[tuple[int, int], int] = field(default_factory=dict)
    _has_changes: bool = False
    _waiting: list[tuple[TouchEffect, CapturedTable, dict[str, object]]] = field(default_factory=list)

    def before(self, effect: Effect, parameters: Any) -> None:
        """Journal what was read so far, as it was read, before a statement that may change something."""
        if isinstance(effect, LockingReadEffect):
            self.lock(effect, parameters)
        else:
            self._has_changes = True
            self._note_waiting()

    def lock(self, effect: LockingReadEffect, parameters: Any) -> None:
        """Track the rows of a SELECT with `FOR UPDATE` or `FOR SHARE`.

        Raises:
            InvalidError: They cannot be tracked.
        """
        site = self.shared.site
        if site is None or site.circle is None:
            # As long as nobody else is known, nobody else writes.
            return
        clause = "FOR UPDATE" if effect.exclusive else "FOR SHARE"
        if effect.rows is None:
            raise InvalidError(
                f"{clause} can track the rows of one table that WHERE chooses, not joins, subqueries and UNION",
                hint=f"SELECT … FROM table WHERE key = … {clause}, one table at a time; or leave the clause out",
            )
        shown = ".".join(effect.rows.target)
        table = self.captured.resolve(effect.rows.target)
        if table is None:
            raise InvalidError(
                f"{clause} cannot track rows of {shown}, which is no table of {site.circle.database}",
                hint="read from the tables themselves, or leave the clause out",
            )
        if not self._is_wanted(site.circle, table, site.name, clause):
            return
        if not self._is_certain(effect.rows, table):
            raise InvalidError(
                f"{clause} cannot track these rows of {table.name}: the condition names something besides its columns,"
                " or may choose other rows a second time",
                hint="choose the rows by their keys, or leave the clause out",
            )
        weight = journal.READ_EXCLUSIVELY if effect.exclusive else journal.READ
        self._note(effect.rows, table, superset.subset(parameters, effect.rows.parameters), weight)

    def _is_wanted(self, circle: Circle, table: CapturedTable, site: str, clause: str) -> bool:
        rule = circle.rule_of(table.name)
        if rule is not None and rule.rule == OWNER and rule.site == site:
            # Nobody else writes it.
            return False
        if not table.layout.primary_key:
            raise InvalidError(
                f"{clause} cannot track rows of {table.name}, which has no primary key",
                hint=f"give the table a primary key at {circle.ddl}, or leave the clause out",
            )
        if rule is None or rule.rule != EPOCH_TRANS or rule.reads == NO_READS:
            raise InvalidError(
                f"{clause} protects nothing: the rule of {table.name} does not track reads",
                hint=f"wlc rule {shlex.quote(self._founder_url)} {table.name} {EPOCH_TRANS} --reads {EXCLUSIVE_READS},"
                f" then wlc take FILE at {site}",
            )
        return True

    @property
    def _founder_url(self) -> str:
        state = self.shared.require_state()
        assert state.site is not None
        return founder_of(database_of(state), state.site).url

    def _is_certain(self, rows: TouchEffect, table: CapturedTable) -> bool:
        return superset.is_stable(self.captured, rows) and superset.binds(
            self.connection, superset.touched_rows(rows, table)
        )

    def note(self, text: str, parameters: Any) -> None:
        """Track the rows of a SELECT without a clause, of a table whose rule wants that, if the transaction writes."""
        site = self.shared.site
        if site is None or site.circle is None or all(rule.reads != SHARED_READS for rule in site.circle.rules):
            return
        rows = locking.rows_read(text)
        table = None if rows is None else self.captured.resolve(rows.target)
        if rows is None or table is None or not table.layout.primary_key:
            return
        rule = site.circle.rule_of(table.name)
        if rule is None or rule.reads != SHARED_READS or not self._is_certain(rows, table):
            return
        self._waiting.append((rows, table, superset.subset(parameters, rows.parameters)))
        if self._has_changes or len(self._waiting) > _MOST_WAITING:
            self._note_waiting()

    def _note_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rows, table, values in waiting:
            self._note(rows, table, values, journal.READ)

    def _note(self, rows: TouchEffect, table: CapturedTable, values: dict[str, object], weight: int) -> None:
        rowid = "rowid" if table.has_rowid else "NULL"
        listed = f"{READS_TICK} AS t, {weight} AS w, {rowid} AS r, NULL AS m, {table.named_values}"
        found = f"SELECT {listed} FROM {superset.touched_rows(rows, table)}"
        if table.id in self.tables and table.has_rowid:
            known = f"SELECT _rowid FROM {table.images} WHERE _tick = {READS_TICK} AND _weight >= {weight}"
            found = f"SELECT * FROM ({found}) WHERE r NOT IN ({known})"
        noted = self.connection.execute(f"INSERT INTO {table.images} {found}", values).fetchall()[0][0]
        if noted:
            self.tables[table.id] = table
            self._rows[table.id, weight] = self._rows.get((table.id, weight), 0) + int(noted)

    def complete(self, tick: int) -> list[JournalledReads]:
        """Give what was read the tick of the transaction, which commits next, and return the records of it."""
        for table in self.tables.values():
            self.connection.execute(f"UPDATE {table.images} SET _tick = {tick} WHERE _tick = {READS_TICK}")
        return [
            JournalledReads(self.tables[number].name, number, count, weight == journal.READ_EXCLUSIVELY)
            for (number, weight), count in sorted(self._rows.items())
        ]
