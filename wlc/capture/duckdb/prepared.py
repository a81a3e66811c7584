"""A statement that inserts one row and journals it, prepared: DuckDB makes its plan once, which takes most of the time.

DuckDB goes on using the plan of a prepared statement as long as the catalog is the same and the values have the types
with which it was prepared. Values of SQL's `EXECUTE` are constants in its text. So every one is a VARCHAR here, and the
statement casts it to the type that DuckDB would have given to the Python value.

A plan may hold what settings and the names' meanings were when it was made. So it writes to one table, holds no
constants and computes nothing with types or defaults that depend on settings; and it is dropped with every statement
that changes settings. A prepared statement that is changed or dropped behind our back fails, or journals another
number of rows, and the INSERT is captured in another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.lexer import numbered, tokens
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable

_MOST = 100
_LONGEST = 2000
_LONGEST_VALUE = 1000
# A cast to them depends on no setting.
_PLAIN_TYPES = frozenset(
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT HUGEINT UHUGEINT FLOAT DOUBLE VARCHAR"
    " DATE TIME TIMESTAMP UUID".split()
)
_OF_CONSTANTS = _PLAIN_TYPES | {"AS", "CAST", "FALSE", "NULL", "TRUE"}
_NULL = "NULL::VARCHAR"


@dataclass(slots=True)
class PreparedInserts:
    """The prepared statements of one connection, by text, types of the values, and table.

    They are dropped when the catalog has changed, for then DuckDB plans them anew every time.
    """

    connection: duckdb.DuckDBPyConnection
    tables: CapturedTables
    is_outdated: bool = False
    _generation: int = -1
    _names: dict[tuple[str, tuple[str, ...], int], str | None] = field(default_factory=dict)
    _number: int = 0

    def run(self, table: CapturedTable, text: str, values: Sequence[object], tick: int, meta: str) -> int | None:
        """Insert and journal a row in the open transaction; returns how many were journalled.

        Args:
            table: The table that the statement writes to.
            text: An INSERT of one row of a VALUES list.
            values: Its parameters.
            tick: The transaction's tick.
            meta: The transaction's own data as JSON.

        Returns:
            None if the statement cannot be prepared, or came for the first time; nothing was done then.
        """
        if not values or len(text) > _LONGEST:
            return None
        typed = [_typed(value) for value in values]
        given = [one[1] for one in typed if one is not None]
        if len(given) < len(values):
            return None
        if self.is_outdated or self._generation != self.tables.generation:
            self._clear()
        key = text, tuple(one[0] for one in typed if one is not None), table.id
        if key not in self._names:
            if len(self._names) >= _MOST:
                self._clear()
            self._names[key] = "" if self._is_plain(table) else None
            return None
        name = self._names[key]
        if name == "":
            # If it fails, nobody tries again.
            self._names[key] = None
            name = self._names[key] = self._prepare(table, text, key[1])
        if name is None:
            return None
        listed = ", ".join([*given, f"'{tick}'", literal(meta)])
        try:
            return int(self.connection.execute(f"EXECUTE {name}({listed})").fetchall()[0][0])
        except (duckdb.BinderException, duckdb.CatalogException):
            self._names[key] = None
            raise

    def _clear(self) -> None:
        names = [name for name in self._names.values() if name]
        self._names.clear()
        self.is_outdated, self._generation = False, self.tables.generation
        for name in names:
            self.connection.execute(f"DEALLOCATE {name}")

    def _is_plain(self, table: CapturedTable) -> bool:
        return not any(rule.table == table.name for rule in self.tables.rules) and all(
            _is_plain_type(column.type) and _is_constant(column.default or "") for column in table.layout.stored
        )

    def _prepare(self, table: CapturedTable, text: str, types: tuple[str, ...]) -> str | None:
        head = _head(text, len(types))
        if head is None:
            return None
        self._number += 1
        name = f'"wlc insert {self._number}"'
        casts = [f"CAST(${number}::VARCHAR AS {type_})" for number, type_ in enumerate((*types, "BIGINT"), start=1)]
        tick = casts.pop()
        self.connection.execute(
            f'PREPARE {name} AS WITH "wlc rows" AS (\n{head} ({", ".join(casts)})\nRETURNING {table.named_values})'
            f' INSERT INTO {table.images} SELECT {tick}, 1, NULL, ${len(types) + 2}::VARCHAR, * FROM "wlc rows"'
        )
        return name


def _typed(value: object) -> tuple[str, str] | None:
    """The type that DuckDB gives to a Python value, and SQL of the value as a VARCHAR; None for others than plain."""
    if value is None:
        return "VARCHAR", _NULL
    kind = type(value)
    if kind is int:
        assert isinstance(value, int)
        size = "INTEGER" if -(1 << 31) <= value < 1 << 31 else "BIGINT"
        return (size, f"'{value}'") if -(1 << 63) <= value < 1 << 63 else None
    if kind is str:
        assert isinstance(value, str)
        is_text = len(value) <= _LONGEST_VALUE and "\0" not in value and (value.isascii() or _is_unicode(value))
        return ("VARCHAR", literal(value)) if is_text else None
    if kind is float:
        assert isinstance(value, float)
        return ("DOUBLE", f"'{value!r}'") if math.isfinite(value) else None
    return ("BOOLEAN", f"'{value}'") if kind is bool else None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_plain_type(type_: str) -> bool:
    return type_ in _PLAIN_TYPES or type_.startswith("DECIMAL(")


def _is_constant(default: str) -> bool:
    return all(token.word in _OF_CONSTANTS for token in tokens(default) if token.word or token.text[0] == '"')


def _head(text: str, count: int) -> str | None:
    """The text of an INSERT as far as VALUES, if parameters follow in their order and nothing else; else None."""
    text = numbered(text)
    parts = [token for token in tokens(text) if token.text != ";"]
    at = next((number for number, token in enumerate(parts) if token.word == "VALUES" and not token.depth), len(parts))
    listed = [token.text for token in parts[at + 1 :]]
    wanted = [part for number in range(1, count + 1) for part in ("$", str(number), ",")]
    return text[: parts[at].end] if listed == ["(", *wanted[:-1], ")"] else None
