"""A statement that changes few rows and commits at once: its images are journalled by the statement itself.

A writable common table expression returns the rows as they are after the statement, and puts them into the image table.
That is one statement of DuckDB instead of two, and it finds the rows without scanning the table. DuckDB's `RETURNING`
loses rows where several threads work, so the number of rows is compared with one that was found without it: the rows of
the VALUES list, or the rows that were saved before. The commit lock is held all the time. So the transaction's tick and
commit time are known before its rows are written, and no other transaction can come in between.

Whoever cannot be captured in this way, or fails, or has other counts, is rolled back and captured like everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import superset
from wlc.capture.duckdb.analysis import called
from wlc.capture.duckdb.effects import AppendEffect, Effect, TouchEffect, target_of
from wlc.capture.duckdb.images import FEW
from wlc.dialect.duckdb.lexer import numbered, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable

# Longer VALUES lists are not worth while: they may have more rows than DuckDB processes at a time.
MOST_VALUES = 1000
_MOST_REMEMBERED = 1000
# In a condition with one of these words, a test of the key may leave many rows.
_WIDE_WORDS = (" or ", " or(", ")or ", ")or(", "not ", "not(", "case ")
# Functions of DuckDB that a column's default may call: none of them waits for another connection.
_DEFAULTS = frozenset({"cast", "current_date", "get_current_timestamp", "now", "random", "today", "uuid"})

_Values = dict[str, Any] | list[Any] | tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class _Statements:
    """What DuckDB runs for one statement of the user, parsed.

    Attributes:
        save: Saves the rows that an UPDATE or DELETE finds; None for an INSERT.
        write: The user's statement; except for a DELETE, it journals the rows that it returns.
        tick: Name of the parameter that stands for the tick, and `meta` for the transaction's own data.
    """

    save: duckdb.Statement | None
    write: duckdb.Statement
    tick: str
    meta: str


@dataclass
class SmallChanges:
    """The small changes of one connection.

    Attributes:
        added: Rows that the last one added, and `removed` those that it removed; an updated row counts as both.
    """

    connection: duckdb.DuckDBPyConnection
    tables: CapturedTables
    added: int = 0
    removed: int = 0
    _parsed: dict[tuple[str, int, bool, int], _Statements] = field(default_factory=dict)

    def table(self, effect: Effect, values: object, *, settings_vary: bool) -> CapturedTable | None:
        """The table of a statement that may be a small change; None for all others.

        Args:
            effect: What the statement does.
            values: Its parameters.
            settings_vary: A session may have settings with which other rows are accepted.
        """
        if not isinstance(values, (dict, list, tuple, NoneType)) or not _is_small(effect):
            return None
        table = self.tables.known(target_of(effect))
        if table is None or not table.has_rowid or self.tables.has_sequences or self.tables.triggers:
            return None
        has_rules = any(rule.table == table.name for rule in self.tables.rules)
        if has_rules and (settings_vary or self.tables.row_settings != ()):
            return None
        if isinstance(effect, TouchEffect):
            return table if superset.pins_key(effect, table) else None
        return table if all(_is_plain(c.default) for c in table.layout.stored if c.default) else None

    def run(self, effect: Effect, table: CapturedTable, text: str, values: _Values, tick: int, meta: str) -> int | None:
        """Run the statement in the open transaction, captured.

        Args:
            effect: What it does.
            table: The table of which `table()` said so.
            text: The statement.
            values: Its parameters.
            tick: The transaction's tick.
            meta: The transaction's own data as JSON.

        Returns:
            The number of rows that the statement changed; None if it failed, or the images do not account for them.
        """
        try:
            return self._run(effect, table, text, values, tick, meta)
        except duckdb.InterruptException:
            raise
        except duckdb.Error:
            # The statement will run by itself, so that the error is the one that DuckDB raises for it.
            return None

    def _run(
        self, effect: Effect, table: CapturedTable, text: str, values: _Values, tick: int, meta: str
    ) -> int | None:
        assert isinstance(effect, (AppendEffect, TouchEffect))
        parsed = self._statements(effect, table, text, values)
        own = {parsed.tick: tick, parsed.meta: meta}
        if isinstance(effect, AppendEffect):
            self.added, self.removed = self._count(parsed.write, _with(values, own)), 0
            return self.added if self.added == effect.values else None
        assert parsed.save is not None
        self.removed = self._count(parsed.save, {**superset.subset(values, effect.parameters), **own})
        if effect.deletes:
            self.added, changed = 0, self._count(parsed.write, values)
        else:
            del own[parsed.meta]
            self.added = changed = self._count(parsed.write, _with(values, own))
        return changed if changed == self.removed <= FEW else None

    def _count(self, statement: duckdb.Statement, values: Any) -> int:
        return int(self.connection.execute(statement, values).fetchall()[0][0])

    def _statements(
        self, effect: AppendEffect | TouchEffect, table: CapturedTable, text: str, values: _Values
    ) -> _Statements:
        is_named = isinstance(values, dict)
        key = text, len(values or ()), is_named, table.id
        found = self._parsed.get(key)
        if found is None:
            if len(self._parsed) >= _MOST_REMEMBERED:
                self._parsed.clear()
            found = self._parsed[key] = self._parse(effect, table, text, values)
        return found

    def _parse(
        self, effect: AppendEffect | TouchEffect, table: CapturedTable, text: str, values: _Values
    ) -> _Statements:
        number = len(values or ())
        tick, meta = ("wlc_tick", "wlc_meta") if isinstance(values, dict) else (str(number + 1), str(number + 2))
        write, save = _bare(numbered(text)), None
        if isinstance(effect, TouchEffect):
            save = self._one(
                f"INSERT INTO {table.images} SELECT ${tick}, -1, rowid, ${meta}, {', '.join(table.values)}"
                f" FROM {superset.touched_rows(effect, table)}"
            )
        if isinstance(effect, AppendEffect) or not effect.deletes:
            data = "NULL" if save else f"${meta}"
            # The text keeps lines of its own: it may end in a comment.
            write = (
                f'WITH "wlc rows" AS (\n{write}\nRETURNING {table.named_values})'
                f' INSERT INTO {table.images} SELECT ${tick}, 1, NULL, {data}, * FROM "wlc rows"'
            )
        return _Statements(save, self._one(write), tick, meta)

    def _one(self, text: str) -> duckdb.Statement:
        (statement,) = self.connection.extract_statements(text)
        return statement


def _is_small(effect: Effect) -> bool:
    if isinstance(effect, AppendEffect):
        return 0 < effect.values <= MOST_VALUES
    if not isinstance(effect, TouchEffect) or not effect.is_simple or not effect.is_stable:
        return False
    condition = f" {effect.condition or ''}".lower()
    return not any(word in condition for word in _WIDE_WORDS)


def _bare(text: str) -> str:
    """A statement without semicolons and comments behind it."""
    return text[: next(token.end for token in reversed(tokens(text)) if token.text != ";")]


def _with(values: _Values, own: Mapping[str, Any]) -> Any:
    """The parameters of a statement and our own, which follow them."""
    return {**values, **own} if isinstance(values, dict) else [*(values or ()), *own.values()]


@lru_cache(maxsize=1000)
def _is_plain(default: str) -> bool:
    """Whether a default calls functions of DuckDB only; others might use a connection of their own, and wait."""
    return called(tokens(default)) <= _DEFAULTS
