"""The capture of every statement: images of a superset of the rows that a transaction touches in one table.

Before a statement, the rows that it may touch are saved. Before the commit, images of the present rows are added, and
all are counted. `small_change` is the other capture, for a statement that is a transaction by itself. Both journal,
under the transaction's tick, one image of each removed and of each added row, return their numbers, and refuse if the
images do not account for the statements' reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import packed
from wlc.capture.duckdb.analysis import AppendEffect, Effect, TouchEffect
from wlc.capture.duckdb.journal import LOCAL_ROWID
from wlc.capture.duckdb.superset import FEW
from wlc.dialect.sql import literal
from wlc.dialect.types import DigestText, parse, storage_type
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.packed import Packing
    from wlc.farm.model import Column, Name

# Rows in the transaction's local storage.
_LOCAL = f"rowid >= {LOCAL_ROWID}"


@dataclass
class Images:
    """The saved images of one table since the transaction first touched it.

    Attributes:
        saved: Number of images of earlier rows, saved in the journal under `tick`.
        rowids: Row ids of the saved rows if they are few, else None.
        copy: Temporary table with all former rows, for statements without a known narrower superset.
        cleared: Number of rows the table had when the transaction removed them all, else None.
        local_before: Rows added by the transaction before the table got this layout.
        found: Rows that the saving queries found, a row of two statements counted twice; None if unknown.
        appended: Rows that inserts reported; `updated` and `deleted`: rows that updates and deletes reported.
        rows_before: Rows of the table at first; None while all statements report exactly what they do.
        last_rowid: Greatest row id before the transaction removed all rows.
        added: Images of present rows; `removed`: images of former rows; complete before the commit.
        carries_meta: An image carries the transaction's own data.
        packed: Bytes of the data file that holds the images, if they are not in the image table.
    """

    tables: CapturedTables
    table: CapturedTable
    tick: int
    saved: int = 0
    rowids: list[int] | None = None
    copy: str | None = None
    cleared: int | None = None
    local_before: int = 0
    statements: int = 0
    found: int | None = 0
    appended: int = 0
    updated: int = 0
    deleted: int = 0
    rows_before: int | None = None
    last_rowid: int | None = None
    added: int = 0
    removed: int = 0
    carries_meta: bool = False
    packed: int = 0
    _asked: set[int] = field(default_factory=set)
    _rows_now: int | None = None

    # Before a statement ---------------------------------------------------------------------------------------------

    def count_before(self, rows: int | None = None) -> None:
        """Count the table's rows (`rows` if known) before a statement that does not report all its effects."""
        if rows is not None:
            self.rows_before = rows
        elif self.rows_before is None:
            self.rows_before = self._count(self.table.sql) - self._net

    def save(self, where: str, parameters: dict[str, object], *, is_few: bool) -> None:
        """Save the committed rows for which `where` holds and that are not saved yet.

        Args:
            where: Condition on the table's own name, which may use `rowid`.
            parameters: Values of the `$` markers in it.
            is_few: Expect few rows.
        """
        if self.copy is not None or self.cleared is not None:
            return
        if is_few and (self.rowids is not None or not self.saved):
            self._save_few(where, parameters)
            return
        self._drop_repeated()
        unsaved = f" AND rowid NOT IN (SELECT _rowid FROM {self.saved_sql})" if self.saved else ""
        found = self._changed(
            f"INSERT INTO {self.table.images} SELECT {self.tick}, -1, rowid, NULL, {', '.join(self.table.values)}"
            f" FROM {where} AND rowid < {LOCAL_ROWID}{unsaved}",
            parameters,
        )
        self.found = None if self.statements else found
        self.rowids = None if found or self.saved else []
        if not self.saved and 0 < found <= FEW:
            rows = self.connection.execute(f"SELECT _rowid FROM {self.saved_sql}").fetchall()
            self.rowids = [row[0] for row in rows]
        self.saved += found

    def _save_few(self, where: str, parameters: dict[str, object]) -> None:
        """Save rows without a filter, which would prevent index use: also added rows, and rows saved before."""
        known = self.rowids or []
        if (asked := hash(str([*parameters.values()] or where))) in self._asked:
            # Same key as before: the statement probably changes the same rows.
            query = self.tables.parsed(f"SELECT rowid FROM {where}")
            again = [row[0] for row in self.connection.execute(query, parameters).fetchall()]
            if all(rowid in known or rowid >= LOCAL_ROWID for rowid in again):
                self._count_found(len(again))
                return
        self._asked.add(asked)
        tick = _unused(parameters)
        text = (
            f"INSERT INTO {self.table.images} SELECT ${tick}, -1, rowid, NULL, {', '.join(self.table.values)}"
            f" FROM {where} RETURNING _rowid"
        )
        rows = self.connection.execute(self.tables.parsed(text), {**parameters, tick: self.tick}).fetchall()
        self.rowids = known + [rowid for (rowid,) in rows if rowid < LOCAL_ROWID and rowid not in known]
        self.saved += len(rows)
        self._count_found(len(rows))
        if len(self.rowids) > FEW:
            self._drop_repeated()
            self.rowids = None

    def _count_found(self, rows: int) -> None:
        self.found = None if self.found is None else self.found + rows

    def _drop_repeated(self) -> None:
        """Delete images of rows that were saved before, or that the transaction itself had added."""
        if self.rowids is not None and len(self.rowids) < self.saved:
            first = f"SELECT min(rowid) FROM {self.saved_sql} AND _rowid < {LOCAL_ROWID} GROUP BY _rowid"
            self.saved -= self._changed(f"DELETE FROM {self.saved_sql} AND rowid NOT IN ({first})")

    def save_local(self) -> None:
        """Save the rows that the transaction has added so far: the initial state of a new layout."""
        self.count_before()
        self.local_before = self._changed(
            f"INSERT INTO {self.table.images} SELECT {self.tick}, -1, rowid, NULL, {', '.join(self.table.values)}"
            f" FROM {self.table.sql} WHERE {_LOCAL}"
        )
        self.saved += self.local_before
        self.rowids = None

    def save_whole(self) -> None:
        """Copy all committed rows that are not saved yet: the superset that is always valid."""
        self.count_before()
        if self.copy is not None or self.cleared is not None:
            return
        self.copy = f'temp."wlc copy of {self.table.id} at {self.tick}"'
        values = self.table.named_values
        if not self.table.has_rowid:
            self.connection.execute(f"CREATE TEMP TABLE {self.copy} AS SELECT {values} FROM {self.table.sql}")
            return
        unsaved = f" AND rowid NOT IN (SELECT _rowid FROM {self.saved_sql})" if self.saved else ""
        self.connection.execute(
            f"CREATE TEMP TABLE {self.copy} AS SELECT rowid AS _rowid, {values} FROM {self.table.sql}"
            f" WHERE rowid < {LOCAL_ROWID}{unsaved}"
        )

    # After a statement ----------------------------------------------------------------------------------------------

    def account(self, effect: Effect, count: int | None) -> None:
        """Account for a statement's report; `count` is None if it does not report the number of changed rows."""
        self.statements += 1
        if count is None:
            assert self.rows_before is not None, "a statement without a count was taken for one that reports it"
        elif isinstance(effect, AppendEffect):
            self.appended += count
        elif isinstance(effect, TouchEffect) and effect.deletes:
            self.deleted += count
        elif isinstance(effect, TouchEffect):
            self.updated += count

    def clear(self) -> None:
        """Record that the transaction has removed every row: one record replaces the images of all earlier rows."""
        if self.saved:
            self.connection.execute(f"DELETE FROM {self.table.images} WHERE _tick = {self.tick}")
        self._drop_copy()
        self.saved, self.rowids = 0, None
        self.cleared = self.rows_before

    def written(self) -> tuple[str, ...]:
        """Return conditions on the table; one of them holds for each row that the transaction has added or altered.

        DuckDB finds the rows of each condition quickly, but would scan the table for their disjunction.
        """
        if self.copy is not None or not self.table.has_rowid:
            return ("true",)
        saved = f"rowid IN (SELECT _rowid FROM {self.saved_sql})"
        return (_LOCAL, *((saved,) if self.saved else ()))

    # Before the commit ----------------------------------------------------------------------------------------------

    def complete(self, meta: str | None, packing: Packing | None = None) -> None:
        """Write the images of present rows and check the counts.

        Args:
            meta: JSON of the transaction's own data, if it consists only of these images.
            packing: Journals large numbers of added rows; None if the image table must hold them.

        Raises:
            UnsupportedError: The images do not account for the table's rows.
        """
        self._drop_repeated()
        if self.cleared and self.table.has_rowid:
            self._spare_others()
        self.removed, self.added = self.saved, 0
        # Rows saved individually come first: the copy's images would count as saved, too.
        if self.saved and self.cleared is None and not self._only_deleted():
            self.added = self._add_saved(meta) if self._has_local else self._add_updated(meta)
        if self.copy is not None:
            self._complete_copy(meta)
        looks = self.table.has_rowid and self._has_local
        if looks and (self.copy is None or self._count(f"{self.table.sql} WHERE {_LOCAL}")):
            self.added += self._pack(_LOCAL, packing) or self._add(_LOCAL, meta)
        self.carries_meta = meta is not None and not self.packed and self.added + self.removed > self.saved
        self._check()
        self._drop_copy()

    def _pack(self, where: str, packing: Packing | None) -> int:
        """Journal many added rows as a data file if there are no other images; return their number, else 0."""
        if packing is None or self.saved or self.copy is not None or self._growth() < packed.ROWS:
            return 0
        found = packing.pack(self.connection, self.table, self.tick, where)
        rows, self.packed = found or (0, 0)
        return rows

    def _growth(self) -> int:
        """Growth of the table in rows; rows that were cleared count as never present."""
        if self.rows_before is None:
            return self._net
        return self._now() - (self.rows_before if self.cleared is None else 0)

    def remember_last(self) -> None:
        """Read the greatest row id before the transaction removes all rows."""
        self.count_before()
        if self.cleared is None:
            query = f"SELECT max(rowid) FROM {self.table.sql} WHERE rowid < {LOCAL_ROWID}"
            self.last_rowid = self.connection.execute(query).fetchall()[0][0]

    def _spare_others(self) -> None:
        """Replace the clear record by images if other transactions have added rows since, which must not be cleared.

        The transaction can no longer see its removed rows, but another connection can.
        """
        assert self.cleared is not None
        last = -1 if self.last_rowid is None else self.last_rowid
        query = f"SELECT rowid, {', '.join(self.table.values)} FROM {self.table.sql} WHERE rowid <= {last}"
        with self.connection.cursor() as other:
            committed = other.execute(f"SELECT count(*) FROM {self.table.sql}").fetchall()[0][0]
            if committed == self.cleared - self.local_before:
                return
            removed = other.sql(query).to_arrow_table()
        names = ", ".join(f"removed.{name}" for name in self.table.columns)
        removed = removed.rename_columns(["r", *self.table.columns])
        self.connection.register("wlc removed", removed)
        self.saved = self._changed(
            f'INSERT INTO {self.table.images} SELECT {self.tick}, -1, r, NULL, {names} FROM "wlc removed" AS removed'
        )
        self.connection.unregister("wlc removed")
        self.cleared, self.rowids = None, []

    def renumber(self, tick: int) -> None:
        """Give the transaction another tick."""
        if self.saved:
            self.connection.execute(f"UPDATE {self.table.images} SET _tick = {tick} WHERE _tick = {self.tick}")
        self.tick = tick

    def failed(self) -> None:
        """Account by counting from now on: a statement failed after rows were saved, and the transaction continues."""
        if self.found != 0:
            self.count_before()

    def discard(self) -> None:
        """Discard the images of a table that the transaction has dropped."""
        self.connection.execute(f"DELETE FROM {self.table.images} WHERE _tick = {self.tick}")
        self._drop_copy()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The transaction's connection."""
        return self.tables.connection

    @property
    def is_pending(self) -> bool:
        """Whether the transaction may have changed the table."""
        return self.statements > 0 or self.rows_before is not None

    @property
    def _has_local(self) -> bool:
        """Whether rows that inserts have added may be in the transaction's local storage."""
        return self.appended > 0 or self.rows_before is not None

    @property
    def _net(self) -> int:
        return self.appended - self.deleted

    def _only_deleted(self) -> bool:
        return self.rows_before is None and self.deleted == self.saved and not self.updated

    def _add_updated(self, meta: str | None) -> int:
        """Add images of the saved rows if there are no other changes: rows in place, and rows that DuckDB has moved.

        DuckDB moves a row when an indexed or nested column is updated. Check the mode of the table's last update first.
        """
        moving = self.tables.moving
        looks = [lambda: self._add_saved(meta), lambda: self._add(_LOCAL, meta)]
        if self.table.id in moving:
            looks.reverse()
        first = looks[0]()
        rest = looks[1]() if first < self.saved else 0
        if rest > first:
            moving ^= {self.table.id}
        return first + rest

    def _add_saved(self, meta: str | None) -> int:
        """Add images of the saved rows that still exist."""
        if self.rowids is None:
            return self._add(f"rowid < {LOCAL_ROWID} AND rowid IN (SELECT _rowid FROM {self.saved_sql})", meta)
        markers = ", ".join(f"${number}" for number in range(3, len(self.rowids) + 3))
        return self._add(f"rowid IN ({markers})", meta, self.rowids) if self.rowids else 0

    def _add(self, where: str, meta: str | None, given: Sequence[int] = ()) -> int:
        text = (
            f"INSERT INTO {self.table.images} SELECT $1, 1, rowid, $2, {', '.join(self.table.values)}"
            f" FROM {self.table.sql} WHERE {where}"
        )
        return self._changed(self.tables.parsed(text), [self.tick, meta, *given])

    def _complete_copy(self, meta: str | None) -> None:
        """Compare the copy with the table: images of both sides for removed or changed rows."""
        if not self.table.has_rowid:
            self._complete_copy_as_bag(meta)
            return
        names = self.table.columns
        joined = (
            f"FROM {self.copy} o LEFT JOIN (SELECT rowid AS _rowid, {self.table.named_values} FROM {self.table.sql}"
            f" WHERE rowid < {LOCAL_ROWID}) n ON o._rowid = n._rowid"
        )
        changed = " OR ".join(self.differs(f"o.{name}", f"n.{name}", index) for index, name in enumerate(names))
        if not self.connection.execute(f"SELECT 1 {joined} WHERE n._rowid IS NULL OR {changed} LIMIT 1").fetchall():
            # Do not write to the journal without need: the transaction may have written to another database.
            return
        before = ", ".join(f"o.{name}" for name in names)
        after = ", ".join(f"n.{name}" for name in names)
        self.removed += self._changed(
            f"INSERT INTO {self.table.images} SELECT {self.tick}, -1, o._rowid, {_meta(meta)}, {before}"
            f" {joined} WHERE n._rowid IS NULL OR {changed}"
        )
        self.added += self._changed(
            f"INSERT INTO {self.table.images} SELECT {self.tick}, 1, n._rowid, {_meta(meta)}, {after}"
            f" {joined} WHERE n._rowid IS NOT NULL AND ({changed})"
        )

    def _complete_copy_as_bag(self, meta: str | None) -> None:
        rows = bag_difference_sql(self.table, f"SELECT -1 AS w, * FROM {self.copy}")
        self.removed += self._changed(insert_difference_sql(self.table, rows, -1, self.tick, meta))
        self.added += self._changed(insert_difference_sql(self.table, rows, 1, self.tick, meta))

    @property
    def _stored(self) -> tuple[Column, ...]:
        return self.table.layout.stored

    def differs(self, old: str, new: str, index: int) -> str:
        """SQL condition: two values are not identical."""
        declared = self._stored[index].type
        if parse(declared).row.is_float:
            return f"{old} IS DISTINCT FROM {new} OR signbit({old}) IS DISTINCT FROM signbit({new})"
        return f"{exact_sql(declared, old)} IS DISTINCT FROM {exact_sql(declared, new)}"

    def _check(self) -> None:
        """Account for every row: by the statements' reports, or by counting if these are not exact."""
        if self.rows_before is None:
            is_found = self.found in (None, self.updated + self.deleted)
            if is_found and self.added - self.removed == self._net:
                return
        elif self.cleared is not None:
            left = self._count(f"{self.table.sql} WHERE rowid < {LOCAL_ROWID}") if self.table.has_rowid else 0
            if left == 0 and self._now() == self.added:
                return
        elif self._now() == self.rows_before + self.added - self.removed:
            return
        message = (
            f"the change to table {self.table.name} could not be captured exactly: {self.removed} images before and"
            f" {self.added} after do not account for its rows, so the transaction was rolled back"
        )
        raise UnsupportedError(message, hint="run the statement again with SET threads = 1, and report this")

    def _now(self) -> int:
        """Number of rows at the end; the commit lock prevents changes until the check."""
        if self._rows_now is None:
            self._rows_now = self._count(self.table.sql)
        return self._rows_now

    def _count(self, source: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM {source}").fetchall()[0][0])

    @property
    def saved_sql(self) -> str:
        """FROM and WHERE of the images that are saved."""
        return f"{self.table.images} WHERE {_LOCAL} AND _tick = {self.tick} AND _weight = -1"

    def _changed(self, statement: str | duckdb.Statement, parameters: object = None) -> int:
        """Insert images, and return how many."""
        result = self.connection.execute(statement, parameters) if parameters else self.connection.execute(statement)
        return int(result.fetchall()[0][0])

    def _drop_copy(self) -> None:
        if self.copy is not None:
            self.connection.execute(f"DROP TABLE IF EXISTS {self.copy}")
            self.copy = None


def _unused(parameters: Mapping[str, object]) -> str:
    """Name of an additional parameter beside a statement's, whose names are all words or all numbers."""
    return "wlc_tick" if not all(map(str.isdecimal, parameters)) else str(max(map(int, parameters), default=0) + 1)


def conflict(table: Name) -> duckdb.TransactionException:
    """Build the error for rows that another transaction has changed, in the form of DuckDB's error."""
    return duckdb.TransactionException(
        f"TransactionContext Error: Conflict: rows of table {table} that this transaction changes were changed by"
        " another one after it began"
    )


def bag_difference_sql(table: CapturedTable, before: str | None) -> str:
    """Query for the rows with different numbers of copies on the two sides: `w` is positive if the table has more.

    Args:
        table: Returns the present rows.
        before: Query for -1 and the columns of the image table, for the former rows; None if there were none.
    """
    stored = list(zip(table.layout.stored, table.columns, strict=True))
    # Equal means identical: 0.0 is not -0.0, and texts are compared as bytes regardless of collation.
    exact = ", ".join(exact_sql(column.type, name) for column, name in stored)
    kept = ", ".join(f"{any_sql(column.type, name)} AS {name}" for column, name in stored)
    both = f"SELECT 1 AS w, {table.named_values} FROM {table.sql}" + (f" UNION ALL {before}" if before else "")
    return f"SELECT sum(w)::BIGINT AS w, {kept} FROM ({both}) GROUP BY {exact} HAVING sum(w) <> 0"


def insert_difference_sql(table: CapturedTable, rows: str, weight: int, tick: int, meta: str | None) -> str:
    """Statement that saves images of one weight, of the rows of `bag_difference_sql`."""
    return (
        f"INSERT INTO {table.images} SELECT {tick}, {weight}, NULL, {_meta(meta)}, {', '.join(table.columns)}"
        f" FROM (SELECT *, unnest(range(abs(w))) FROM ({rows}) WHERE sign(w) = {weight})"
    )


def exact_sql(declared: str, value: str) -> str:
    """SQL that is equal only for identical values. DuckDB considers 0.0 and -0.0 equal, and possibly a and A.

    Equality of texts depends on the collations of the column and the session, which may change at any time.
    """
    storage = parse(storage_type(declared))
    if storage.text == "VARCHAR":
        return f"encode({value})"
    if storage.holds(lambda row: row.is_float or row.digest is DigestText.COUNTED):
        # The text of a nested value distinguishes -0.0 and A, but perhaps not everything that its comparison does.
        return f"row(encode(CAST({value} AS VARCHAR)), {value})"
    return value


def any_sql(declared: str, value: str) -> str:
    """SQL that takes one value of a group of identical values."""
    storage = parse(storage_type(declared))
    # DuckDB's any_value() turns -0.0 within a nested value into 0.0.
    is_nested_float = storage.row.is_nested and storage.holds(lambda row: row.is_float)
    return f"list({value})[1]" if is_nested_float else f"any_value({value})"


def _meta(meta: str | None) -> str:
    return "NULL" if meta is None else literal(meta)
