"""Few rows that statements of an open transaction change, kept until it commits: then one statement journals them.

An UPDATE or DELETE by key is preceded by a query for its rows as they are and, for an UPDATE, as they will be. An
INSERT of one row returns it. So nobody has to look for them before the commit. Values are kept as texts, of types for
which that loses nothing, and written by one prepared statement.

That holds as long as all statements on the table are of this kind, and report as many rows as were found. Otherwise the
rows as they were are put into the image table, as those that other statements save are, and those after are looked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb import superset
from wlc.capture.duckdb.journal import LOCAL_ROWID
from wlc.capture.duckdb.prepared import is_plain_type
from wlc.capture.duckdb.superset import FEW
from wlc.dialect.types import storage_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.capture.duckdb.analysis import TouchEffect
    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable

_Row = tuple[Any, ...]
# Python's text of their values is one that DuckDB casts back to the same value.
_AS_THEY_ARE = frozenset(
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT DOUBLE VARCHAR".split()
)


@dataclass(slots=True)
class FewRows:
    """Rows of one table.

    Attributes:
        changed: By row id, rows as they were before the transaction, and as they are now; None for deleted ones.
        added: The row that an INSERT has added, or None.
        found: How many rows the UPDATE and DELETE statements have found, a row that is changed twice counted twice.
    """

    tables: CapturedTables
    table: CapturedTable
    changed: dict[int, tuple[_Row, _Row | None]] = field(default_factory=dict)
    added: _Row | None = None
    found: int = 0

    def look(self, effect: TouchEffect, values: Any) -> bool:
        """Find the rows that a statement is about to change; False if it must be captured in another way."""
        query = self.tables.parsed(("look", effect, self.table.id), lambda: _query(effect, self.table))
        if query is None:
            return False
        given = superset.subset(values, frozenset(query.named_parameters))
        if len(given) < len(query.named_parameters):
            return False
        found = self.tables.connection.execute(query, given).fetchmany(FEW + 1)
        if len(found) + len(self.changed) > FEW or any(row[0] >= LOCAL_ROWID for row in found):
            return False
        count = len(self.table.layout.stored)
        for rowid, *rest in found:
            before = self.changed[rowid][0] if rowid in self.changed else tuple(rest[:count])
            self.changed[rowid] = before, None if effect.deletes else tuple(rest[count:])
        self.found += len(found)
        return True

    def journal(self, tick: int, meta: str | None, *, is_whole: bool) -> tuple[int, int]:
        """Write images; returns how many of rows before and after.

        Args:
            tick: The transaction's tick.
            meta: The transaction's own data, if it consists of these images.
            is_whole: Write the rows as they are now, too.
        """
        images = [*self._images(tick, meta, is_whole=is_whole)]
        if images:
            text = json.dumps([[None if v is None else str(v) for v in image] for image in images])
            sql = journal_sql(self.tables, self.table)
            assert sql is not None
            key = "journal", self.table.id
            count = self.tables.prepared.run(self.tables.generation, key, lambda: sql, [text])
            if count is None:
                count = int(self.tables.connection.execute(sql, [text]).fetchall()[0][0])
            assert count == len(images), f"{count} of {len(images)} images were journalled"
        removed = sum(image[1] < 0 for image in images)
        return removed, len(images) - removed

    def _images(self, tick: int, meta: str | None, *, is_whole: bool) -> Iterator[_Row]:
        for rowid, (before, _) in self.changed.items():
            yield tick, -1, rowid, meta, *before
        for _, after in self.changed.values() if is_whole else ():
            if after is not None:
                yield tick, 1, None, meta, *after
        if is_whole and self.added is not None:
            yield tick, 1, None, meta, *self.added


def journal_sql(tables: CapturedTables, table: CapturedTable) -> str | None:
    """Statement that journals images, given as JSON; None if values of the table cannot be kept as texts."""
    if table.id not in tables.journals:
        stored = [storage_type(column.type) for column in table.layout.stored]
        types = ["BIGINT", "TINYINT", "BIGINT", "VARCHAR", *stored]
        values = ", ".join(f"CAST(r->>{number} AS {type_})" for number, type_ in enumerate(types))
        rows = "SELECT unnest(CAST($1::VARCHAR::JSON AS JSON[])) AS r"
        sql = f"INSERT INTO {table.images} SELECT {values} FROM ({rows})"
        tables.journals[table.id] = sql if all(map(is_plain_type, stored)) else None
    return tables.journals[table.id]


def texts(table: CapturedTable, values: list[str]) -> list[str]:
    """SQL of a row's stored values in the form in which they are kept."""
    return [
        value if storage_type(column.type) in _AS_THEY_ARE else f"CAST({value} AS VARCHAR)"
        for value, column in zip(values, table.layout.stored, strict=True)
    ]


def _query(effect: TouchEffect, table: CapturedTable) -> str | None:
    values = texts(table, table.values)
    if not effect.deletes:
        assigned = superset.assigned(effect, table)
        if assigned is None:
            return None
        # If a value cannot be computed, the statement itself will say so.
        after = [f"TRY({assigned[n]})" if n in assigned else value for n, value in enumerate(table.values)]
        values += texts(table, after)
    return f"SELECT rowid, {', '.join(values)} FROM {superset.touched_rows(effect, table)}"
