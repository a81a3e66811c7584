"""Prepared statements that the capture runs repeatedly: DuckDB plans them once, which takes most of the time.

DuckDB reuses the plan of a prepared statement while the catalog is unchanged and the values have the types of its
preparation. Values of SQL's `EXECUTE` are constants in its text. So every value is a VARCHAR here, and the statement
casts it to the required type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

_MOST = 200
# Types whose cast from VARCHAR and back depends on no setting and is lossless.
_PLAIN_TYPES = frozenset(
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT HUGEINT UHUGEINT FLOAT DOUBLE VARCHAR"
    " DATE TIME TIMESTAMP UUID".split()
)


@dataclass(slots=True)
class PreparedStatements:
    """The prepared statements of one connection.

    They are dropped when the catalog has changed, because DuckDB then plans them again at every run.

    Attributes:
        is_outdated: Settings have changed, which plans may hold.
    """

    connection: duckdb.DuckDBPyConnection
    is_outdated: bool = False
    _generation: int = -1
    _names: dict[Hashable, str | None] = field(default_factory=dict)
    _number: int = 0

    def name(self, generation: int, key: Hashable, text: Callable[[], str | None]) -> str | None:
        """Return the name of a statement, prepared at its second use.

        Args:
            generation: The catalog's.
            key: Identifies the statement's text.
            text: Returns the text; None if it must not be prepared.

        Returns:
            None if it is not prepared, or at its first use.
        """
        if not self._is_valid(generation) or len(self._names) >= _MOST:
            self._clear(generation)
        if key not in self._names:
            self._names[key] = ""
            return None
        if self._names[key] == "":
            # After a failure, it is not prepared again.
            self._names[key] = None
            self._names[key] = self._prepare(text())
        return self._names[key]

    def refuses(self, generation: int, key: Hashable) -> bool:
        """Say whether it is known that a statement is not prepared."""
        return self._is_valid(generation) and self._names.get(key, "") is None

    def execute(self, key: Hashable, name: str, values: str) -> int:
        """Run a prepared statement that changes rows, and return their number.

        Args:
            key: Identifies the statement's text.
            name: The result of `name`.
            values: Its parameters, `listed`.
        """
        try:
            return int(self.connection.execute(f"EXECUTE {name}({values})").fetchall()[0][0])
        except (duckdb.BinderException, duckdb.CatalogException):
            # The user has dropped it, or another connection its table.
            self._names[key] = None
            raise

    def _is_valid(self, generation: int) -> bool:
        return not self.is_outdated and self._generation == generation

    def _prepare(self, text: str | None) -> str | None:
        if text is None:
            return None
        self._number += 1
        name = f'"wlc statement {self._number}"'
        self.connection.execute(f"PREPARE {name} AS {text}")
        return name

    def _clear(self, generation: int) -> None:
        names = [name for name in self._names.values() if name]
        self._names.clear()
        self.is_outdated, self._generation = False, generation
        for name in names:
            self.connection.execute(f"DEALLOCATE {name}")


def listed(values: Iterable[str | None]) -> str:
    """Return parameters as EXECUTE takes them."""
    return ", ".join(["NULL::VARCHAR" if value is None else literal(value) for value in values])


def is_plain_type(type_: str) -> bool:
    """Whether values of a type are the same after a cast to VARCHAR and back, in every session."""
    return type_ in _PLAIN_TYPES or type_.startswith("DECIMAL(")


def is_text(value: str) -> bool:
    """Whether a text can be a constant of a statement."""
    return "\0" not in value and (value.isascii() or not any("\ud800" <= one <= "\udfff" for one in value))
