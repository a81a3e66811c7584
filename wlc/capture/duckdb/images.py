"""Row images of one table in one transaction: saved before a statement, completed and counted before the commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import packed
from wlc.capture.duckdb.journal import LOCAL_ROWID
from wlc.capture.duckdb.superset import FEW
from wlc.dialect.sql import literal
from wlc.dialect.types import DigestText, parse, storage_type
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from wlc.capture.duckdb.few_rows import FewRows
    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.packed import Packing
    from wlc.farm.model import Column, Name


@dataclass
class Images:
    """What is known and saved about one table since the transaction first touched it.

    Attributes:
        saved: Number of images of earlier rows, saved in the journal under `tick`.
        rowids: Row ids of the saved rows if they are few, else None.
        copy: Temporary table with all rows as they were, for statements without a known narrower superset.
        cleared: Number of rows the table had when the transaction removed them all, else None.
        local_before: Of the rows that the table had with this layout at first, those that the transaction had added.
        has_local: The transaction may have added rows that are in its local storage.
        net: Rows added less rows removed, as the statements themselves reported.
        is_reported: Every statement so far reported exactly what it did, so that `net`, `updated` and `deleted` hold.
        updated: Rows that updates reported; `deleted`: rows that deletes reported.
        rows_before: Rows of the table when the transaction first touched it, once that is known.
        last_rowid: Greatest row id before the transaction removed all rows.
        carries_meta: Some image carries the transaction's own data.
        packed: Bytes of the data file that holds the images, if they are not in the image table.
        few: What its statements have changed, as long as that is enough to know.
    """

    connection: duckdb.DuckDBPyConnection
    table: CapturedTable
    tick: int
    saved: int = 0
    rowids: list[int] | None = None
    copy: str | None = None
    cleared: int | None = None
    local_before: int = 0
    has_local: bool = False
    net: int = 0
    statements: int = 0
    updated: int = 0
    deleted: int = 0
    is_reported: bool = True
    rows_before: int | None = None
    last_rowid: int | None = None
    added: int = 0
    removed: int = 0
    carries_meta: bool = False
    packed: int = 0
    few: FewRows | None = None
    _rows_now: int | None = None

    # Before a statement ---------------------------------------------------------------------------------------------

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was done and saved yet."""
        nothing = self.saved == self.statements == 0 and self.copy is None and self.cleared is None
        return nothing and self.is_reported and self.few is None

    def settle(self) -> None:
        """Save the few rows that were kept, as other statements save theirs."""
        few, self.few = self.few, None
        if few is not None and few.changed:
            self.saved, _ = few.journal(self.tick, None, is_whole=False)
            self.rowids = list(few.changed)

    def remember_count(self) -> None:
        """Learn how many rows the table had, from its present count and what was reported since."""
        if self.rows_before is None:
            self.rows_before = self._count(self.table.sql) - self.net

    def save(self, where: str, parameters: dict[str, object], *, is_few: bool) -> int:
        """Save the committed rows for which `where` holds and that are not saved yet; returns how many.

        Args:
            where: Condition on the table's own name, which may use `rowid`.
            parameters: Values of the `$` markers in it.
            is_few: Expect few rows, so that fetching their row ids costs nothing.
        """
        self.settle()
        unsaved = ""
        if self.saved:
            unsaved = f" AND rowid NOT IN (SELECT _rowid FROM {self._saved()})"
        # Before its first statement on the table a transaction has no local rows; the filter would hide the index.
        is_first = self.statements == 0 and not self.has_local
        committed = "" if is_few and is_first else f" AND rowid < {LOCAL_ROWID}"
        statement = (
            f"INSERT INTO {self.table.images} SELECT {self.tick}, -1, rowid, NULL, {', '.join(self.table.values)}"
            f" FROM {where}{committed}{unsaved}"
        )
        first = self.saved == 0
        if is_few:
            rows = self.connection.execute(statement + " RETURNING _rowid", parameters).fetchall()
            found = len(rows)
            known = [row[0] for row in rows] if first else (self.rowids or []) + [row[0] for row in rows]
            self.rowids = known if (first or self.rowids is not None) and len(known) <= FEW else None
        else:
            found = self._changed(statement, parameters)
            self.rowids = None if found or not first else []
            if first and 0 < found <= FEW:
                rows = self.connection.execute(f"SELECT _rowid FROM {self._saved()}").fetchall()
                self.rowids = [row[0] for row in rows]
        self.saved += found
        return found

    def save_local(self) -> None:
        """Save the rows that the transaction has added so far: the state with which a new layout starts."""
        self.settle()
        self.has_local = True
        self.local_before = self._changed(
            f"INSERT INTO {self.table.images} SELECT {self.tick}, -1, rowid, NULL, {', '.join(self.table.values)}"
            f" FROM {self.table.sql} WHERE rowid >= {LOCAL_ROWID}"
        )
        self.saved += self.local_before
        self.rowids = None
        self.is_reported = False

    def save_whole(self) -> None:
        """Copy all committed rows that are not saved yet: the superset that is always right."""
        self.settle()
        self.is_reported, self.has_local = False, True
        if self.copy is not None or self.cleared is not None:
            return
        self.copy = f'temp."wlc copy of {self.table.id} at {self.tick}"'
        values = self.table.named_values
        if not self.table.has_rowid:
            self.connection.execute(f"CREATE TEMP TABLE {self.copy} AS SELECT {values} FROM {self.table.sql}")
            return
        unsaved = f" AND rowid NOT IN (SELECT _rowid FROM {self._saved()})" if self.saved else ""
        self.connection.execute(
            f"CREATE TEMP TABLE {self.copy} AS SELECT rowid AS _rowid, {values} FROM {self.table.sql}"
            f" WHERE rowid < {LOCAL_ROWID}{unsaved}"
        )

    def clear(self) -> None:
        """Note that the transaction has removed every row: one record stands for the images of all earlier rows."""
        if self.saved:
            self.connection.execute(f"DELETE FROM {self.table.images} WHERE _tick = {self.tick}")
        self._drop_copy()
        self.few, self.has_local = None, True
        self.saved, self.rowids, self.is_reported = 0, None, False
        self.cleared = self.rows_before

    def written(self) -> tuple[str, ...]:
        """Return conditions on the table of which one holds for each row that the transaction has added or altered.

        DuckDB finds the rows of each quickly, and reads the whole table where the two are one condition.
        """
        self.settle()
        if self.copy is not None or not self.table.has_rowid:
            return ("true",)
        saved = f"rowid IN (SELECT _rowid FROM {self._saved()})"
        return (f"rowid >= {LOCAL_ROWID}", *((saved,) if self.saved else ()))

    # Before the commit ----------------------------------------------------------------------------------------------

    def complete(self, meta: str | None, packing: Packing | None = None) -> None:
        """Write the images of rows as they are now and check the counts.

        Args:
            meta: JSON of the transaction's own data, if it consists of these images only.
            packing: How to journal many rows that were only added; None if these are needed in the image table.

        Raises:
            UnsupportedError: The images do not account for the table's rows.
        """
        if self.few is not None and self._is_known():
            self.removed, self.added = self.few.journal(self.tick, meta, is_whole=True)
            self.carries_meta = meta is not None and self.removed + self.added > 0
            return
        self.settle()
        if self.cleared and self.table.has_rowid:
            self._spare_others()
        self.removed, self.added = self.saved, 0
        # First the rows that were saved one by one: the copy's images would count as saved, too.
        if self.saved and self.cleared is None and not self._only_deleted():
            self.added += self._add(self._still_there(), meta)
        if self.copy is not None:
            self._complete_copy(meta)
        if self.table.has_rowid and (self.has_local or (self.updated and self.added < self.saved)):
            local = f"rowid >= {LOCAL_ROWID}"
            if self.copy is None or self._count(f"{self.table.sql} WHERE {local}"):
                self.added += self._pack(local, packing) or self._add(local, meta)
        self.carries_meta = meta is not None and not self.packed and self.added + self.removed > self.saved
        self._check()
        self._drop_copy()

    def _pack(self, where: str, packing: Packing | None) -> int:
        """Journal added rows as a data file if they are many and all that there is; returns their number, else 0."""
        if packing is None or self.saved or self.copy is not None or self._growth() < packed.ROWS:
            return 0
        found = packing.pack(self.connection, self.table, self.tick, where)
        rows, self.packed = found or (0, 0)
        return rows

    def _growth(self) -> int:
        """By how many rows the table has grown; rows that are removed together count as if they had not been there."""
        if self.is_reported:
            return self.net
        if self.cleared is not None:
            return self._now()
        self.remember_count()
        return self._now() - (self.rows_before or 0)

    def remember_last(self) -> None:
        """Learn the greatest row id before the transaction removes all rows."""
        self.remember_count()
        if self.cleared is None:
            query = f"SELECT max(rowid) FROM {self.table.sql} WHERE rowid < {LOCAL_ROWID}"
            self.last_rowid = self.connection.execute(query).fetchall()[0][0]

    def _spare_others(self) -> None:
        """Replace the record by images if other transactions have added rows since, which must not be cleared.

        The transaction cannot see its removed rows any more, but another connection still can.
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

    def refuse_conflict(self) -> None:
        """Refuse to commit if other transactions have changed or removed rows that this one has saved.

        DuckDB notices two transactions that delete a row, or that update the same column of it. It accepts a delete
        beside an update, and updates of two columns: the images would then be of a row that never existed.

        Raises:
            duckdb.TransactionException: Others have. Run the transaction again, as after DuckDB's own conflicts.
        """
        if self.cleared is not None:
            # A clear removes all rows, also those that others changed.
            return
        if not self.table.has_rowid or self._is_outdated():
            raise conflict(self.table.name)

    def _is_outdated(self) -> bool:
        saved = f"SELECT _rowid AS r, * FROM {self._saved()} AND _rowid < {LOCAL_ROWID}"
        rowids = self.connection.sql(f"SELECT r FROM ({saved})").to_arrow_table()
        # Another connection sees what is committed now; this one sees what was committed when it began.
        with self.connection.cursor() as other:
            other.register("wlc rowids", rowids)
            query = f"SELECT rowid, {', '.join(self.table.values)} FROM {self.table.sql}"
            present = other.sql(f'{query} WHERE rowid IN (SELECT r FROM "wlc rowids")').to_arrow_table()
        self.connection.register("wlc present", present.rename_columns(["r", *self.table.columns]))
        changed = " OR ".join(self._differs(f"o.{name}", f"n.{name}", n) for n, name in enumerate(self.table.columns))
        found = self.connection.execute(
            f'SELECT 1 FROM ({saved}) AS o LEFT JOIN "wlc present" AS n ON o.r = n.r'
            f" WHERE n.r IS NULL OR {changed} LIMIT 1"
        ).fetchall()
        self.connection.unregister("wlc present")
        return bool(found)

    def failed(self) -> None:
        """Account by counting from now on: rows were saved for a statement that failed, and the transaction goes on."""
        self.settle()
        if self.saved or self.copy is not None:
            self.remember_count()
            self.is_reported, self.has_local = False, True

    def discard(self) -> None:
        """Forget the table, which the transaction has dropped."""
        self.few = None
        self.connection.execute(f"DELETE FROM {self.table.images} WHERE _tick = {self.tick}")
        self._drop_copy()

    def _is_known(self) -> bool:
        """Whether the rows that were kept account for all that the statements reported."""
        few = self.few
        if few is None or self.saved or self.copy is not None or self.cleared is not None or not self.is_reported:
            return False
        if few.added is not None:
            return self.statements == self.net == 1 and not few.changed
        return not self.has_local and few.found == self.updated + self.deleted and self.net == -self.deleted

    def _only_deleted(self) -> bool:
        return self.is_reported and self.deleted == self.saved and not self.updated

    def _still_there(self) -> str:
        if self.rowids is not None and len(self.rowids) == 1:
            return f"rowid = {self.rowids[0]}"
        if self.rowids is not None:
            return f"rowid IN ({', '.join(map(str, self.rowids))})" if self.rowids else "false"
        return f"rowid < {LOCAL_ROWID} AND rowid IN (SELECT _rowid FROM {self._saved()})"

    def _add(self, where: str, meta: str | None) -> int:
        values = ", ".join(self.table.values)
        return self._changed(
            f"INSERT INTO {self.table.images} SELECT {self.tick}, 1, rowid, {_meta(meta)}, {values}"
            f" FROM {self.table.sql} WHERE {where}"
        )

    def _complete_copy(self, meta: str | None) -> None:
        """Compare the copy with the table: images of both sides for rows that are gone or changed."""
        if not self.table.has_rowid:
            self._complete_copy_as_bag(meta)
            return
        names = self.table.columns
        joined = (
            f"FROM {self.copy} o LEFT JOIN (SELECT rowid AS _rowid, {self.table.named_values} FROM {self.table.sql}"
            f" WHERE rowid < {LOCAL_ROWID}) n ON o._rowid = n._rowid"
        )
        changed = " OR ".join(self._differs(f"o.{name}", f"n.{name}", index) for index, name in enumerate(names))
        if not self.connection.execute(f"SELECT 1 {joined} WHERE n._rowid IS NULL OR {changed} LIMIT 1").fetchall():
            # Nothing may be written to the journal either: the transaction may have written to another database.
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

    def _differs(self, old: str, new: str, index: int) -> str:
        """SQL that is true unless two values are identical."""
        declared = self._stored[index].type
        if parse(declared).row.is_float:
            return f"{old} IS DISTINCT FROM {new} OR signbit({old}) IS DISTINCT FROM signbit({new})"
        return f"{exact_sql(declared, old)} IS DISTINCT FROM {exact_sql(declared, new)}"

    def _check(self) -> None:
        """Account for every row: by the reports of the statements, or by counting if these are not exact."""
        if self.is_reported and self.statements == 1:
            expected = (self.net, self.updated + self.deleted)
            if (self.added - self.removed, self.removed) == expected:
                return
        elif self.cleared is not None:
            left = self._count(f"{self.table.sql} WHERE rowid < {LOCAL_ROWID}") if self.table.has_rowid else 0
            if left == 0 and self._now() == self.added:
                return
        else:
            self.remember_count()
            if self.rows_before is not None and self._now() == self.rows_before + self.added - self.removed:
                return
        message = (
            f"the change to table {self.table.name} could not be captured exactly: {self.removed} images before and"
            f" {self.added} after do not account for its rows, so the transaction was rolled back"
        )
        raise UnsupportedError(message, hint="run the statement again with SET threads = 1, and report this")

    def _now(self) -> int:
        """Number of rows at the end; nobody changes them between here and the check."""
        if self._rows_now is None:
            self._rows_now = self._count(self.table.sql)
        return self._rows_now

    def _count(self, source: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM {source}").fetchall()[0][0])

    def _saved(self) -> str:
        return f"{self.table.images} WHERE rowid >= {LOCAL_ROWID} AND _tick = {self.tick} AND _weight = -1"

    def _changed(self, statement: str, parameters: dict[str, object] | None = None) -> int:
        """Insert images, and return how many."""
        result = self.connection.execute(statement, parameters) if parameters else self.connection.execute(statement)
        return int(result.fetchall()[0][0])

    def _drop_copy(self) -> None:
        if self.copy is not None:
            self.connection.execute(f"DROP TABLE IF EXISTS {self.copy}")
            self.copy = None


def conflict(table: Name) -> duckdb.TransactionException:
    """Build the error for rows that another transaction has changed, in the form of DuckDB's own."""
    return duckdb.TransactionException(
        f"TransactionContext Error: Conflict: rows of table {table} that this transaction changes were changed by"
        " another one after it began"
    )


def bag_difference_sql(table: CapturedTable, before: str | None) -> str:
    """Query for the rows that one side has more often than the other: `w` more times if the table has more.

    Args:
        table: Gives the rows as they are now.
        before: Query for -1 and the columns of the image table, of the rows as they were; None if there were none.
    """
    stored = list(zip(table.layout.stored, table.columns, strict=True))
    # Equal means identical: 0.0 is not -0.0, and texts are compared as bytes whatever their collation is.
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
    """SQL that is equal only for values that are identical. DuckDB takes 0.0 and -0.0 for equal, and maybe a and A.

    Which texts are equal depends on the collations of the column and of the session, which may change at any time.
    """
    storage = parse(storage_type(declared))
    if storage.text == "VARCHAR":
        return f"encode({value})"
    if storage.holds(lambda row: row.is_float or row.digest is DigestText.COUNTED):
        # The text of a nested value shows -0.0 and A, but perhaps not everything that its comparison sees.
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
