"""Eviction: a secondary sets back its own unjudged rows that conflict with the primary's rows by a constraint.

The primary's log is the verdict, so its rows must fit. A row of the secondary that blocks them by a UNIQUE or FOREIGN
KEY constraint is set back to its state before the secondary's change: updated, deleted if it is new, or restored if the
secondary deleted it. The eviction is an ordinary transaction of the secondary: the primary judges it after the
transaction that it undoes, so both sites become equal whatever the primary holds by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.captured_tables import CapturedTables
from wlc.capture.duckdb.journal import JournalEntry, JournalledImages
from wlc.capture.duckdb.open_transaction import user
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.sql import quote
from wlc.farm.vectors import NO_LINEAGE, expanded
from wlc.multi_master.duckdb import lines, parking, rejected_rows, unjudged_rows
from wlc.multi_master.duckdb.conflict_window import key_value
from wlc.multi_master.duckdb.lines import LinesTable
from wlc.multi_master.duckdb.rejected_rows import Detection
from wlc.multi_master.duckdb.unjudged_rows import UnjudgedRows, relation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.farm.model import Name, TableFile
    from wlc.multi_master.site_step import SiteStep


# More rounds than any observed chain of constraints needs.
_PASSES = 100
_IN_THE_WAY = 'temp."wlc in the way {}"'


def evict(shared: Shared, step: SiteStep, fetch: Callable[[TableFile], Path]) -> int:
    """Set back own rows that conflict with a step of the primary, and own rows that conflict with these, and so on.

    This is a separate transaction. The caller repeats it until the step fits or no row can be set back.

    Args:
        shared: A secondary.
        step: The step, which violates a constraint.
        fetch: Returns a local file with the content of a data file.

    Returns:
        Number of rows set back; 0 if no own row conflicts.
    """
    return parking.with_parked(shared, lambda: _evict(shared, step, fetch))


def _evict(shared: Shared, step: SiteStep, fetch: Callable[[TableFile], Path]) -> int:
    with shared.commit_lock, shared.root.cursor() as connection:
        connection.execute("BEGIN")
        shared.take_snapshot(connection)
        try:
            present, order = parking.present(connection, shared)
            found = lines.load(connection, step, present, fetch)
            state = shared.require_state()
            lineage = state.circle.lineage() if state.circle else NO_LINEAGE
            found = unjudged_rows.keep(connection, shared, step, found)
            unjudged = UnjudgedRows(connection, shared, expanded(step.transactions[-1].past, lineage), lineage)
            in_step = {table.table.name: table for table in found}
            known = CapturedTables(connection, shared.catalog)
            known.refresh(-1)
            evicted = _Search(connection, shared, present, in_step, unjudged, known.by_name).found()
            rows = _apply(connection, shared, evicted, order)
            lines.drop(connection, [*found, *evicted])
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        if not rows:
            connection.execute("ROLLBACK")
    return rows


@dataclass(slots=True)
class _Search:
    """The search for conflicting rows.

    Attributes:
        present: The secondary's tables.
        step: The step's tables.
        unjudged: Finds own rows that the primary had not judged before the step.
        unique: The tables with their unique columns.
        in_the_way: By table, queries for keys of candidate rows.
        is_unjudged: Cache: whether a table has own unjudged rows.
    """

    connection: duckdb.DuckDBPyConnection
    shared: Shared
    present: Mapping[Name, TakenTable]
    step: Mapping[Name, LinesTable]
    unjudged: UnjudgedRows
    unique: Mapping[Name, CapturedTable]
    in_the_way: dict[Name, set[str]] = field(default_factory=dict)
    is_unjudged: dict[Name, bool] = field(default_factory=dict)

    def found(self) -> list[LinesTable]:
        """Return the evicted rows as lines of a step, one per row: its former state, or its removal."""
        keys = duckdb_catalog.references(self.connection, self.shared.catalog)
        for table in self.step.values():
            self._look_around(table, _left(table), keys)
        evicted: dict[Name, LinesTable] = {}
        sums: list[tuple[object, ...]] = []
        for _ in range(_PASSES):
            for table in evicted.values():
                self._look_around(table, f"FROM {table.lines} WHERE _weight > 0", keys)
            evicted = {name: self._evicted(name) for name in sorted(self.in_the_way) if self._has_unjudged(name)}
            before, sums = sums, [self._sum(table) for table in evicted.values()]
            if sums == before:
                break
        return [table for table in evicted.values() if table.count(self.connection)]

    def _look_around(self, table: LinesTable, left: str, keys: Sequence[ForeignKey]) -> None:
        """Find rows that conflict with lines of a table, given the rows that the lines leave."""
        self._find_equal(table, left)
        for key in keys:
            if key.table == table.table.name:
                self._find_parents(key, left)
            if key.parent == table.table.name and table.key:
                self._find_children(key, table)

    def _sum(self, table: LinesTable) -> tuple[object, ...]:
        """Return a checksum of the set of evicted rows."""
        query = f"SELECT count(*), sum(hash({table.keys})) FROM {table.lines}"
        return self.connection.execute(query).fetchall()[0]

    def _has_unjudged(self, name: Name) -> bool:
        if name not in self.is_unjudged:
            table, kept = self.present[name].table, self.step[name].kept if name in self.step else None
            is_keyed = bool(table.layout.primary_key)
            self.is_unjudged[name] = is_keyed and self.unjudged.load(table, kept) is not None
        return self.is_unjudged[name]

    def _add(self, name: Name, query: str) -> None:
        if self.present[name].table.layout.primary_key:
            self.in_the_way.setdefault(name, set()).add(query)

    def _keys(self, name: Name) -> str:
        """Select list of a table's key columns, as its image table has them."""
        table = self.present[name].table
        return ", ".join(f"{table.values[place]} AS c{place}" for place in table.layout.key_places)

    def _stays(self, name: Name, among: LinesTable) -> str:
        """SQL condition: the step changes conflicting lines but leaves this row alone."""
        step = self.step.get(name) if among is self.step.get(among.table.name) else None
        return f"NOT EXISTS (FROM {step.lines} AS l WHERE {step.same_key('l')})" if step else "true"

    def _value(self, name: Name, column: str, alias: str) -> str:
        """A column of an image in the type of its table, as an index compares it."""
        table = LinesTable(self.present[name], "")
        place = [each.name for each in table.table.layout.stored].index(column)
        return key_value(table.table.layout.stored[place], table.value(place, alias))

    def _here(self, name: Name, column: str, alias: str) -> str:
        found = next(each for each in self.present[name].table.layout.stored if each.name == column)
        return key_value(found, f"{alias}.{quote(column)}")

    def _find_equal(self, table: LinesTable, left: str) -> None:
        """Find rows that have the unique values of a new row under another key."""
        name = table.table.name
        for columns in (self.unique[name].keys or ())[1:]:
            same = " AND ".join(
                f"{self._here(name, column, 't')} = {self._value(name, column, 'n')}" for column in columns
            )
            self._add(
                name,
                f"SELECT {self._keys(name)} FROM {table.table.sql} AS t JOIN ({left}) AS n ON {same}"
                f" WHERE NOT ({table.same_key('n')}) AND {self._stays(name, table)}",
            )

    def _find_children(self, key: ForeignKey, parent: LinesTable) -> None:
        """Find rows that refer to a row that lines remove, or whose referenced columns they change."""
        same = " AND ".join(f"{self._here(key.table, column, 't')} = p.r{n}" for n, column in enumerate(key.columns))
        table = self.present[key.table].table
        self._add(
            key.table,
            f"SELECT {self._keys(key.table)} FROM {table.sql} AS t JOIN ({self._gone(key, parent)}) AS p ON {same}"
            f" WHERE {self._stays(key.table, parent)}",
        )

    def _gone(self, key: ForeignKey, parent: LinesTable) -> str:
        """Select referred values `r0` … that lines remove, or change."""
        gone = ", ".join(f"{self._here(key.parent, column, 't')} AS r{n}" for n, column in enumerate(key.referred))
        left = ", ".join(self._value(key.parent, column, "n") for column in key.referred)
        return (
            f"SELECT {gone} FROM {parent.table.sql} AS t WHERE EXISTS (FROM {parent.lines} AS l WHERE"
            f" {parent.same_key('l')}) EXCEPT SELECT {left} FROM ({_left(parent)}) AS n"
        )

    def _find_parents(self, key: ForeignKey, left: str) -> None:
        """Find rows that were removed here and to which a new row refers."""
        if not self._has_unjudged(key.parent):
            return
        parent = self.present[key.parent].table
        same = " AND ".join(
            f"{self._value(key.table, column, 'n')} = {self._value(key.parent, referred, 'u')}"
            for column, referred in zip(key.columns, key.referred, strict=True)
        )
        there = " AND ".join(
            f"{self._here(key.parent, column, 't')} = {self._value(key.parent, column, 'u')}" for column in key.referred
        )
        listed = ", ".join(f"u.c{place}" for place in parent.layout.key_places)
        self._add(
            key.parent,
            f"SELECT {listed} FROM {relation_of(parent)} AS u JOIN ({left}) AS n ON {same}"
            f" WHERE u.had AND NOT EXISTS (FROM {parent.sql} AS t WHERE {there})",
        )

    def _evicted(self, name: Name) -> LinesTable:
        """Turn conflicting unjudged rows into lines with their former state."""
        place = self.present[name]
        table = place.table
        keys = ", ".join(f"c{place}" for place in table.layout.key_places)
        made = LinesTable(place, _IN_THE_WAY.format(table.id))
        wanted = " UNION ".join(sorted(self.in_the_way[name]))
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {made.bare} AS SELECT 0::BIGINT AS _line,"
            f" if(had, 1, -1)::TINYINT AS _weight, {', '.join(table.columns)}, tick"
            f" FROM {relation_of(table)} SEMI JOIN ({wanted}) AS w USING ({keys})"
        )
        self.connection.execute(
            f"DELETE FROM {made.lines} AS l WHERE l._weight > 0 AND EXISTS (FROM {table.sql} AS t"
            f" WHERE {made.same_image('l')})"
        )
        return made


def _left(table: LinesTable) -> str:
    """Select the rows that lines leave, also those of a table without a key."""
    return lines.last_sql(table) if table.key else f"FROM {table.lines} WHERE _weight > 0"


def _apply(
    connection: duckdb.DuckDBPyConnection, shared: Shared, tables: Sequence[LinesTable], order: Mapping[Name, int]
) -> int:
    """Set the rows back, journal and report it, and commit; the caller holds the commit lock."""
    rows = sum(table.count(connection) for table in tables)
    if not rows:
        return 0
    tick, time, state = shared.new_tick(), shared.commit_time(), shared.require_state()
    name = state.member.name
    rejected_rows.prepare(connection, shared.catalog)
    where = Detection(shared.catalog, name, name, time)
    records = []
    for table in tables:
        rejected_rows.write_evicted(connection, where, state.history, table)
        lines.journal_images(connection, table, tick)
    rejected_rows.count(connection, shared.catalog, name, {("", "evicted"): rows})
    parking.write(connection, shared, tables, order)
    for table in tables:
        images = f"FROM {table.table.images} WHERE _tick = {tick}"
        added, removed = connection.execute(
            f"SELECT count(*) FILTER (_weight > 0), count(*) FILTER (_weight < 0) {images}"
        ).fetchall()[0]
        records.append(JournalledImages(table.table.name, table.table.id, added, removed))
    entry = JournalEntry(tick, user(), time, time, tuple(records), after=shared.last_tick or None)
    journal.add_entry(connection, shared.catalog, entry)
    lines.drop(connection, tables)
    connection.execute("COMMIT")
    touched = [table.table.name for table in tables]
    shared.committed(tick, time, touched, touched)
    return rows
