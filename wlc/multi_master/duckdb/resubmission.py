"""Resubmission of a rejected row, or of all rejected rows of a transaction, as a new transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import taken_tables
from wlc.capture.duckdb.analysis import analyse
from wlc.capture.duckdb.session import CaptureSession
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, storage_type
from wlc.farm.errors import InvalidError
from wlc.multi_master.duckdb import rejected_rows
from wlc.multi_master.duckdb.conflict_window import added_columns
from wlc.multi_master.duckdb.verdicts import DELETE_ROW, READ_ROW, WRITE_ROW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Column, Name
    from wlc.multi_master.site_step import RejectedRow


def resubmit(shared: Shared, source: str, tick: int, count: int | None) -> int:
    """Resubmit rejected rows; see `wlc.masters.contract.SiteSource.resubmit`."""
    with shared.root.cursor() as raw:
        session = CaptureSession(raw, shared)
        session.begin("BEGIN TRANSACTION", explicit=False).look()
        try:
            rows = _chosen(rejected_rows.read(raw, shared.catalog), source, tick, count)
            present, order = taken_tables.tables(raw, shared.catalog)
            tables, circle = {name: each.table for name, each in present.items()}, shared.require_state().circle
            writes = [_Write(row, _table(row, tables), frozenset(added_columns(circle, row.table))) for row in rows]
            for write in writes:
                write.refuse_other_row(raw)
            for write in sorted(writes, key=lambda write: write.place(order)):
                _run(session, write)
            rejected_rows.mark_resubmitted(raw, shared.catalog, rows)
            session.commit("COMMIT")
        except BaseException:
            if session.transaction is not None:
                session.rollback("ROLLBACK")
            raise
    return len(writes)


def _chosen(rows: Sequence[RejectedRow], source: str, tick: int, count: int | None) -> list[RejectedRow]:
    of_transaction = [row for row in rows if (row.source, row.source_tick) == (source, tick)]
    found = [row for row in of_transaction if row.op_type != READ_ROW and count in (None, row.count)]
    shown = f"{source}:{tick}" if count is None else f"{source}:{tick}:{count}"
    if not found:
        raise InvalidError(
            f"nothing that could be written was rejected here as {shown}",
            hint="wlc site exceptions SOURCE lists rejected rows; in a mesh, the site that rejected a row lists it",
        )
    for row in found:
        if row.resubmitted is not None:
            raise InvalidError(
                f"exception {row.id}, {row.table} {_text(row.key)}, was resubmitted at {row.resubmitted.isoformat()}",
                hint="choose single rows by their ids: wlc site exceptions SOURCE",
            )
    return found


def _table(row: RejectedRow, tables: Mapping[Name, CapturedTable]) -> CapturedTable:
    table = tables.get(row.table)
    names = {column.name for column in table.layout.stored} if table is not None else set[str]()
    if table is None or not {*(row.old or {}), *(row.new or {})} <= names:
        raise InvalidError(
            f"exception {row.id} is about {row.table}, which was dropped or has other columns now",
            hint="write the intended row: wlc sql SOURCE",
        )
    return table


def _run(session: CaptureSession, write: _Write) -> None:
    try:
        session.run(analyse(write.sql, write.sql.split()[0]), write.sql, None)
    except duckdb.ConstraintException as error:
        raise InvalidError(
            f"exception {write.row.id} cannot be written: {str(error).splitlines()[0]}",
            hint="change the conflicting row, or write the intended values: wlc sql SOURCE",
        ) from error


@dataclass(frozen=True, slots=True)
class _Write:
    """One rejected row to resubmit.

    Attributes:
        added: Columns of the table whose changes are added: the rejected transaction's increments already count.
    """

    row: RejectedRow
    table: CapturedTable
    added: frozenset[str] = frozenset()

    def place(self, order: Mapping[Name, int]) -> tuple[int, int]:
        """Return its sort key: removals first, children before parents; then all others, parents first."""
        number = order[self.table.name]
        return (0, -number) if self.row.op_type == DELETE_ROW else (1, number)

    @property
    def _key(self) -> str:
        columns = [self.table.layout.stored[place] for place in self.table.layout.key_places]
        return " AND ".join(f"{quote(each.name)} = {_value(each, self.row.key[each.name])}" for each in columns)

    @property
    def sql(self) -> str:
        """The statement."""
        old, new = self.row.old or {}, self.row.new or {}
        if self.row.op_type == DELETE_ROW:
            return f"DELETE FROM {self.table.sql} WHERE {self._key}"
        columns = [each for each in self.table.layout.stored if each.name in new]
        if self.row.op_type == WRITE_ROW:
            names = ", ".join(quote(each.name) for each in columns)
            values = ", ".join(_value(each, new[each.name]) for each in columns)
            return f"INSERT INTO {self.table.sql} ({names}) VALUES ({values})"
        columns = [each for each in columns if each.name not in self.added]
        changed = [each for each in columns if each.name not in old or new[each.name] != old[each.name]] or columns[:1]
        sets = ", ".join(f"{quote(each.name)} = {_value(each, new[each.name])}" for each in changed)
        return f"UPDATE {self.table.sql} SET {sets} WHERE {self._key}"

    def _without_added(self, image: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if image is None else {name: each for name, each in image.items() if name not in self.added}

    def refuse_other_row(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse to overwrite a row that the owner cannot have seen in the exception.

        Raises:
            InvalidError: The present row differs from both the local row of the exception and the author's row.
        """
        shown = rejected_rows.json_sql(self.table, self.table.layout.stored, "t")
        found = connection.execute(
            f"SELECT {shown} FROM (SELECT {self.table.named_values} FROM {self.table.sql} WHERE {self._key}) AS t"
        ).fetchall()
        present = json.loads(found[0][0]) if found else None
        what = f"exception {self.row.id} cannot be written: {self.table.name}"
        if present is None and self.row.op_type != WRITE_ROW:
            raise InvalidError(
                f"{what} has no row {_text(self.row.key)}", hint="insert it if it is wanted: wlc sql SOURCE"
            )
        if present is not None and self.row.op_type == WRITE_ROW:
            raise InvalidError(
                f"{what} has a row {_text(self.row.key)} already: {_text(present)}",
                hint="update it as it should be now: wlc sql SOURCE",
            )
        shown_then = [self._without_added(image) for image in (self.row.local, self.row.old)]
        if present is not None and self._without_added(present) not in shown_then:
            raise InvalidError(
                f"{what} row {_text(self.row.key)} has changed since it was rejected, and is {_text(present)}",
                hint="update it as it should be now: wlc sql SOURCE",
            )


def _value(column: Column, value: object) -> str:
    if value is None:
        return "NULL"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return load_sql(column, f"CAST({literal(text)} AS {storage_type(column.type)})")


def _text(image: Mapping[str, Any]) -> str:
    return json.dumps(image, ensure_ascii=False)
