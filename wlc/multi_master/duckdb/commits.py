"""Commits of a site: refused writes, and reads that are journalled beside changes.

Images of reads wait under an unused tick, because the capture of changes deletes the images that it saved under the
real tick.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb import for_update, journal, superset
from wlc.capture.duckdb.analysis import LockingReadEffect
from wlc.capture.duckdb.images import exact_sql
from wlc.capture.duckdb.journal import JournalledImages, JournalledReads
from wlc.dialect.duckdb.catalog import references
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.model import Clear, Ddl, DroppedObject, RenamedObject
from wlc.farm.schema_fold import table_effects
from wlc.masters.contract import database_of
from wlc.multi_master.circle import (
    ADD,
    EPOCH_TRANS,
    EXCLUSIVE_READS,
    NO_READS,
    OWNER,
    SHARED_READS,
    SHARED_RULES,
    naming,
)
from wlc.multi_master.circle_place import founder_of
from wlc.multi_master.membership import STEP
from wlc.multi_master.rule_columns import refuse_without_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    import duckdb

    from wlc.capture.duckdb.analysis import Effect, TouchEffect
    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.images import Images
    from wlc.capture.duckdb.journal import CapturedTable, JournalRecord
    from wlc.farm.model import Name
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.circle_place import SiteState


# Images of reads have this tick until their transaction commits.
READS_TICK = -3
# Maximum number of queries whose tracking waits for the transaction's first change.
_MOST_WAITING = 1000


def is_added_to(circle: Circle, table: CapturedTable) -> bool:
    """Say whether all sites but the primary may only add rows to a table."""
    rule = circle.rule_of(table.name)
    return rule is not None and rule.rule == ADD


def removing(table: CapturedTable, images: str, line: str) -> str:
    """Select the transactions that reduce the number of rows of some value."""
    exact = "".join(
        f", {exact_sql(column.type, name)}" for column, name in zip(table.layout.stored, table.columns, strict=True)
    )
    return f"SELECT DISTINCT {line} FROM (SELECT {line} FROM {images} GROUP BY {line}{exact} HAVING sum(_weight) < 0)"


@dataclass(frozen=True, slots=True)
class SiteCommits:
    """The additions to a site's transactions over those of a plain master: tracked reads, and refusals.

    Attributes:
        remembered: Returns the master's present state, which names the site and its circle.
    """

    remembered: Callable[[], MasterState]

    @property
    def site(self) -> SiteState:
        """The master's state as a site."""
        return self.remembered().member

    @property
    def circle(self) -> Circle:
        """The circle of sites, with the present rules."""
        return self.site.known_circle

    def founder_url(self) -> str:
        """Return the URL of the founder's folder."""
        return founder_of(database_of(self.remembered()), self.site).url

    def earliest_after(self, last: datetime) -> datetime:
        """Return the earliest time of a commit: in a mesh, later than all commits the transaction may have seen."""
        return last + STEP if self.circle.is_mesh else last

    def reads_of(self, connection: duckdb.DuckDBPyConnection, tables: CapturedTables) -> TrackedReads:
        """Return the tracker of reads for a transaction that has just begun."""
        return TrackedReads(connection, self, tables)

    def refuse_commit(
        self,
        tables: CapturedTables,
        records: Sequence[JournalRecord],
        settled: Sequence[Images],
        tick: int,
        changes_schema: bool,
    ) -> None:
        """Refuse changes that only another site may make.

        Args:
            tables: The tables after the transaction; its images are complete.
            records: The records to journal.
            settled: Its images.
            tick: Their tick in the journal.
            changes_schema: It has changed the schema.
        """
        with naming(self.founder_url):
            self.refuse_schema_change(records, tables.by_name)
            if changes_schema and self.circle.is_mesh:
                self.refuse_schema_in_mesh(records, tables)
            self.refuse_rows(images.table for images in settled if images.added or images.removed)
            self._refuse_deletions(tables.connection, [images.table for images in settled if images.removed], tick)

    def refuse_difference(
        self, records: Sequence[JournalRecord], present: Iterable[Name], written: Iterable[CapturedTable]
    ) -> None:
        """Refuse uncaptured changes that only another site may make."""
        with naming(self.founder_url):
            self.refuse_schema_change(records, present)
            self.refuse_rows(written)

    def refuse_whole_tables(self, source: str) -> None:
        """Refuse to publish whole tables if other sites would have to take them."""
        site, circle = self.site, self.circle
        database, file = shlex.quote(database_of(self.remembered()).url), shlex.quote(source)
        again = f"wlc site join {file} --name {database} --site {site.name} --again"
        other = next((each.name for each in circle.sites if each.name != site.name), "SITE")
        raise UnsupportedError(
            f"the log of site {site.name} cannot be applied, and other sites have taken what it says",
            hint=f"wlc site role {file} {other} primary, wlc site take at {other}, then {again}"
            if circle.primary == site.name
            else again,
        )

    def refuse_schema_change(self, records: Sequence[JournalRecord], present: Iterable[Name]) -> None:
        """Refuse a schema change at a site that may not make it, or one that removes the table of a rule.

        Args:
            records: The records that a transaction will journal. A site clears a table only to publish it again, after
                a statement that changes its schema.
            present: The tables after the transaction.

        Raises:
            InvalidError: There is one.
        """
        site, circle = self.site, self.circle
        changes = [record for record in records if isinstance(record, Ddl)]
        if not (changes or any(isinstance(record, Clear) for record in records)):
            return
        if circle.ddl != site.name:
            raise InvalidError(
                f"site {site.name} cannot change the schema: only site {circle.ddl} of {circle.database} can",
                hint=f"run the statement at {circle.ddl}, then wlc site take FILE here, once it is published there",
            )
        gone = {
            effect.object.name
            for each in changes
            for effect in table_effects(each)
            if isinstance(effect, DroppedObject | RenamedObject)
        }
        left = {name.folded for name in present}
        for name in sorted(gone):
            if name.folded not in left and (rule := circle.rule_of(name)) is not None:
                raise InvalidError(
                    f"cannot rename or drop {name}, which has the rule {rule.rule}",
                    hint=f"first remove the rule: wlc site rule DB {name} none, then wlc site take at {site.name}",
                )

    def refuse_schema_in_mesh(self, records: Sequence[JournalRecord], tables: CapturedTables) -> None:
        """Refuse a schema change after which the newest change of a row would be unknown or could violate a constraint.

        Args:
            records: The records that a transaction will journal.
            tables: The tables after the transaction.

        Raises:
            InvalidError: A transaction changes the schema and writes rows of a table that all sites write, or drops a
                column that a rule compares.
            UnsupportedError: Such a table has a constraint beside its primary key.
        """
        wanted = {rule.table.folded: rule for rule in self.circle.rules if rule.rule in SHARED_RULES}
        for record in records:
            if isinstance(record, JournalledImages | Clear) and record.table.folded in wanted:
                raise InvalidError(
                    f"a transaction that changes the schema cannot write rows of {record.table}, which has the rule"
                    f" {wanted[record.table.folded].rule}",
                    hint="commit the schema change by itself; a statement that computes all rows anew needs a new"
                    " column: ADD COLUMN, then UPDATE",
                )
        checked = {rule.table for rule in tables.rules if rule.kind == "CHECK"}
        linked = [(key.table, key.parent) for key in references(tables.connection, tables.catalog)]
        for table in tables.by_name.values():
            if (rule := wanted.get(table.name.folded)) is not None:
                refuse_without_columns(table.name, table.layout, rule, "DB")
                problem = (
                    "a UNIQUE constraint"
                    if table.keys is None or len(table.keys) > bool(table.layout.primary_key)
                    else None
                )
                if any(table.name in pair for pair in linked):
                    problem = "a FOREIGN KEY"
                if rule.add and table.name in checked:
                    problem = "a CHECK constraint while columns are added"
                if problem is not None:
                    raise UnsupportedError(
                        f"{table.name} has the rule {rule.rule}, which decides row by row, and cannot have {problem}",
                        hint=f"first give the table another rule: wlc site rule DB {table.name} owner --site"
                        f" {self.site.name}, then wlc site take at {self.site.name}",
                    )

    def refuse_rows(self, tables: Iterable[CapturedTable]) -> None:
        """Refuse rows of tables that only another site may write.

        Raises:
            InvalidError: There is one.
        """
        with naming(self.founder_url):
            for table in tables:
                self._refuse_rows_of(table)

    def _refuse_rows_of(self, table: CapturedTable) -> None:
        site, circle = self.site, self.circle
        rule = circle.rule_of(table.name)
        if circle.is_mesh and rule is None and table.layout.primary_key and circle.primary != site.name:
            raise InvalidError(
                f"site {site.name} cannot write {table.name}, which has no rule: only the primary,"
                f" {circle.primary}, can",
                hint=f"wlc site rule DB {table.name} newest lets all sites write it, each from its next wlc"
                f" site take; or wlc site rule DB {table.name} owner --site {site.name}",
            )
        if rule is not None and rule.rule == OWNER and rule.site != site.name:
            raise InvalidError(
                f"site {site.name} cannot write {table.name}: the table belongs to site {rule.site}",
                hint=f"write it at {rule.site}; or let this site own it from its next wlc site take:"
                f" wlc site rule DB {table.name} owner --site {site.name}",
            )
        if not table.layout.primary_key and circle.primary != site.name and (rule is None or rule.rule != ADD):
            raise InvalidError(
                f"site {site.name} cannot write {table.name}, which has no primary key: only the primary,"
                f" {circle.primary}, can",
                hint=f"write it at {circle.primary}, or give the table a primary key there"
                + (f"; wlc site rule DB {table.name} add lets all sites add rows" if circle.is_mesh else ""),
            )

    def _refuse_deletions(
        self, connection: duckdb.DuckDBPyConnection, tables: Iterable[CapturedTable], tick: int
    ) -> None:
        """Refuse to delete rows of tables in which columns are added, or to which other sites only add rows.

        Args:
            connection: In the transaction, whose images are complete.
            tables: Tables with removed rows.
            tick: Tick of the images in the journal.

        Raises:
            InvalidError: A row is deleted or its key changes, or a row of a table without a key changes.
        """
        circle = self.circle
        for table in tables:
            self._refuse_own_removals(connection, table, tick)
            if circle.added_columns(table.name):
                keys = ", ".join(f"c{place}" for place in table.layout.key_places)
                gone = f"FROM {table.images} WHERE _tick = {tick} GROUP BY {keys} HAVING sum(_weight) < 0 LIMIT 1"
                if connection.execute(f"SELECT 1 {gone}").fetchall():
                    columns = ", ".join(circle.added_columns(table.name))
                    raise InvalidError(
                        f"rows of {table.name} cannot be deleted, or get another key: changes of {columns} are added,"
                        " and what another site adds to a row meanwhile would be lost",
                        hint="mark the row instead, in a column for that; or let all sites take everything, then"
                        f" wlc site rule DB {table.name} newest",
                    )

    def _refuse_own_removals(self, connection: duckdb.DuckDBPyConnection, table: CapturedTable, tick: int) -> None:
        """Refuse to remove rows at a site that may only add rows."""
        site, circle = self.site.name, self.circle
        if site == circle.primary or not is_added_to(circle, table):
            return
        images = f"(FROM {table.images} WHERE _tick = {tick})"
        if connection.execute(removing(table, images, "_tick")).fetchall():
            raise InvalidError(
                f"site {site} can only add rows to {table.name}, which has the rule {ADD}: only the primary,"
                f" {circle.primary}, can delete or change them",
                hint=f"delete them at {circle.primary}, or give the table a primary key there, then the rule newest",
            )


@dataclass
class TrackedReads:
    """The tracked reads of one open transaction.

    Attributes:
        tables: Image tables that hold some, by their numbers.
    """

    connection: duckdb.DuckDBPyConnection
    commits: SiteCommits
    captured: CapturedTables
    tables: dict[int, CapturedTable] = field(default_factory=dict)
    _rows: dict[tuple[int, int], int] = field(default_factory=dict)
    _has_changes: bool = False
    _waiting: list[tuple[TouchEffect, CapturedTable, dict[str, object]]] = field(default_factory=list)

    def before(self, effect: Effect, parameters: Any) -> None:
        """Journal the rows read so far, before a statement that may change them."""
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
        site, circle = self.commits.site, self.commits.circle
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
                f"{clause} cannot track rows of {shown}, which is no table of {circle.database}",
                hint="read from the tables themselves, or leave the clause out",
            )
        if not self._is_wanted(circle, table, site.name, clause):
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
            # No other site writes it.
            return False
        if not table.layout.primary_key:
            raise InvalidError(
                f"{clause} cannot track rows of {table.name}, which has no primary key",
                hint=f"give the table a primary key at {circle.ddl}, or leave the clause out",
            )
        if rule is None or rule.rule != EPOCH_TRANS or rule.reads == NO_READS:
            raise InvalidError(
                f"{clause} protects nothing: the rule of {table.name} does not track reads",
                hint=f"wlc site rule {shlex.quote(self.commits.founder_url())} {table.name} {EPOCH_TRANS}"
                f" --reads {EXCLUSIVE_READS}, then wlc site take FILE at {site}",
            )
        return True

    def _is_certain(self, rows: TouchEffect, table: CapturedTable) -> bool:
        return superset.is_stable(self.captured, rows) and superset.binds(
            self.connection, superset.touched_rows(rows, table)
        )

    def note(self, text: str, parameters: Any) -> None:
        """Track rows of a SELECT without a locking clause for a transaction that writes, if the rule counts them."""
        circle = self.commits.circle
        if all(rule.reads != SHARED_READS for rule in circle.rules):
            return
        rows = for_update.rows_read(text)
        table = None if rows is None else self.captured.resolve(rows.target)
        if rows is None or table is None or not table.layout.primary_key:
            return
        rule = circle.rule_of(table.name)
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
        """Move read images to the tick of the transaction, which commits next, and return their records."""
        for table in self.tables.values():
            self.connection.execute(f"UPDATE {table.images} SET _tick = {tick} WHERE _tick = {READS_TICK}")
        return [
            JournalledReads(self.tables[number].name, number, count, weight == journal.READ_EXCLUSIVELY)
            for (number, weight), count in sorted(self._rows.items())
        ]
