"""A statement that changes few rows and commits at once: its images are journalled by the statement itself.

A writable common table expression returns the rows that an INSERT adds, or a DELETE of one key removes, and puts them
into the image table: one statement of DuckDB instead of two. One query with an UPDATE's condition and values saves its
old and new rows; the values must be plain expressions of constants, parameters and columns. (An UPDATE with `RETURNING`
would move its rows to the end of the table, and no longer conflict with another UPDATE of the same row.) DuckDB's
`RETURNING` loses rows with several threads, so the number of rows is compared with an independent one: the rows of the
VALUES list, the one row that a key can have, or the report of the user's statement. The commit lock is held throughout.
So the transaction's tick and commit time are known before its rows are written, and no other transaction can intervene.

A statement that cannot be captured in this way, fails, or has differing counts is rolled back and captured in the
general way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import superset
from wlc.capture.duckdb.analysis import AppendEffect, Effect, TouchEffect, called
from wlc.capture.duckdb.superset import FEW
from wlc.dialect import types
from wlc.dialect.duckdb.lexer import numbered, tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable

# Longer VALUES lists do not pay off: they may exceed DuckDB's vector size.
MOST_VALUES = 1000
_MOST_REMEMBERED = 1000
# A parsed statement takes thirty times the memory of its text.
_LONGEST_REMEMBERED = 2000
# Functions of DuckDB that a column's default may call: none waits for another connection.
_DEFAULTS = frozenset({"cast", "current_date", "get_current_timestamp", "now", "random", "today", "uuid"})
# In a condition with one of these words, a test of the key may leave many rows.
_WIDE_WORDS = (" or ", " or(", ")or ", ")or(", "not ", "not(", "case ")
# Keywords that are values.
_VALUES = frozenset({"null", "true", "false"})

_Values = dict[str, Any] | list[Any] | tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class _Statements:
    """The parsed statements that DuckDB runs for one statement of the user.

    Attributes:
        save: Saves the rows that an UPDATE or DELETE finds; None if `write` journals the rows.
        parameters: The user's parameters that `save` also uses.
        images: Number of images per saved row.
        write: The user's statement.
        tick: Name of the tick's parameter; `meta`: that of the transaction's own data.
    """

    save: duckdb.Statement | None
    parameters: frozenset[str]
    images: int
    write: duckdb.Statement
    tick: str
    meta: str


@dataclass
class SmallChanges:
    """The small changes of one connection.

    Attributes:
        added: Rows that the last statement added; `removed`: rows that it removed; an updated row counts as both.
    """

    connection: duckdb.DuckDBPyConnection
    tables: CapturedTables
    added: int = 0
    removed: int = 0
    _known: dict[int, tuple[Effect, CapturedTable, bool]] = field(default_factory=dict)
    _parsed: dict[tuple[str, tuple[tuple[str, bool], ...], bool, int], _Statements | None] = field(default_factory=dict)

    def table(self, effect: Effect, values: object, *, settings_vary: bool) -> CapturedTable | None:
        """The table of a statement that may be a small change; None for other statements.

        Args:
            effect: The statement's effect.
            values: Its parameters.
            settings_vary: A session may have settings that accept other rows.
        """
        if not isinstance(values, (dict, list, tuple, NoneType)) or not isinstance(effect, (AppendEffect, TouchEffect)):
            return None
        table = self.tables.known(effect.target)
        if table is None or self.tables.has_sequences or self.tables.triggers or not self._may_be_small(effect, table):
            return None
        has_rules = any(rule.table == table.name for rule in self.tables.rules)
        return None if has_rules and (settings_vary or self.tables.row_settings != ()) else table

    def _may_be_small(self, effect: AppendEffect | TouchEffect, table: CapturedTable) -> bool:
        # The callers cache both objects: comparing their values would take longer.
        known = self._known.get(id(effect))
        if known is None or known[0] is not effect or known[1] is not table:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[id(effect)] = effect, table, _may_be_small(effect, table)
        return known[2]

    def run(self, effect: Effect, table: CapturedTable, text: str, values: _Values, tick: int, meta: str) -> int | None:
        """Run the statement in the open transaction, captured.

        Args:
            effect: Its effect.
            table: The result of `table()`.
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
            # The statement will run alone, so that DuckDB raises the error of the user's text.
            return None

    def _run(
        self, effect: Effect, table: CapturedTable, text: str, values: _Values, tick: int, meta: str
    ) -> int | None:
        assert isinstance(effect, (AppendEffect, TouchEffect))
        parsed = self._statements(effect, table, text, values)
        if parsed is None:
            return None
        own = {parsed.tick: tick, parsed.meta: meta}
        if parsed.save is None:
            count = self._count(parsed.write, _with(values, own))
            self.added, self.removed = (count, 0) if isinstance(effect, AppendEffect) else (0, count)
            return count if count == (effect.values if isinstance(effect, AppendEffect) else 1) else None
        assert isinstance(effect, TouchEffect)
        given = {**superset.subset(values, parsed.parameters), **own}
        saved = self._count(parsed.save, given)
        if saved > FEW:
            return None
        changed = self._count(parsed.write, values)
        self.removed, self.added = changed, 0 if effect.deletes else changed
        return changed if saved == changed * parsed.images else None

    def _count(self, statement: duckdb.Statement | str, values: Any) -> int:
        return int(self.connection.execute(statement, values).fetchall()[0][0])

    def _statements(
        self, effect: AppendEffect | TouchEffect, table: CapturedTable, text: str, values: _Values
    ) -> _Statements | None:
        pairs = values.items() if isinstance(values, dict) else enumerate(values or (), start=1)
        given = {str(name).lower(): type(value) is int and abs(value) < 1 << 63 for name, value in pairs}
        key = text, tuple(given.items()), isinstance(values, dict), table.id
        if key in self._parsed:
            return self._parsed[key]
        found = self._parse(effect, table, text, values, given)
        if len(text) <= _LONGEST_REMEMBERED:
            if len(self._parsed) >= _MOST_REMEMBERED:
                self._parsed.clear()
            self._parsed[key] = found
        return found

    def _parse(
        self,
        effect: AppendEffect | TouchEffect,
        table: CapturedTable,
        text: str,
        values: _Values,
        given: dict[str, bool],
    ) -> _Statements | None:
        number = len(values or ())
        tick, meta = ("wlc_tick", "wlc_meta") if isinstance(values, dict) else (str(number + 1), str(number + 2))
        write = _bare(numbered(text))
        wanted = {name.lower() for name in self._one(write).named_parameters}
        if wanted != given.keys() or not given.keys().isdisjoint((tick, meta)):
            # The additional parameters must not replace missing ones of the user.
            return None
        if isinstance(effect, AppendEffect) or (effect.deletes and superset.finds_one(effect, table, given)):
            # The text is on separate lines: it may end in a comment.
            write = (
                f'WITH "wlc rows" AS (\n{write}\nRETURNING {table.named_values}) INSERT INTO {table.images}'
                f' SELECT ${tick}, {1 if isinstance(effect, AppendEffect) else -1}, NULL, ${meta}, * FROM "wlc rows"'
            )
            return _Statements(None, frozenset(), 0, self._one(write), tick, meta)
        after = {} if effect.deletes else _assigned(effect, table) or {}
        values_sql = [f"unnest([{one}, {after[n]}])" if n in after else one for n, one in enumerate(table.values)]
        save = self._one(
            f"INSERT INTO {table.images} SELECT ${tick}, {'unnest([-1, 1])' if after else '-1'}, rowid, ${meta},"
            f" {', '.join(values_sql)} FROM {superset.touched_rows(effect, table)}"
        )
        uses = frozenset(save.named_parameters) - {tick, meta}
        return _Statements(save, uses, 2 if after else 1, self._one(write), tick, meta)

    def _one(self, text: str) -> duckdb.Statement:
        (statement,) = self.connection.extract_statements(text)
        return statement


def _may_be_small(effect: AppendEffect | TouchEffect, table: CapturedTable) -> bool:
    if not table.has_rowid:
        return False
    if isinstance(effect, TouchEffect):
        is_plain = effect.deletes or _assigned(effect, table) is not None
        return is_plain and _is_row_wise(effect) and superset.pins_key(effect, table)
    return 0 < effect.values <= MOST_VALUES and all(_is_plain(c.default) for c in table.layout.columns if c.default)


def _is_row_wise(effect: TouchEffect) -> bool:
    """Whether a test of the key in the condition leaves few rows, and all of the statement is simple."""
    if not effect.is_simple or not effect.is_stable:
        return False
    condition = f" {effect.condition or ''}".lower()
    return not any(word in condition for word in _WIDE_WORDS)


def _assigned(effect: TouchEffect, table: CapturedTable) -> dict[int, str] | None:
    """SQL of an UPDATE's values, by the columns' places; None if they are not plain expressions."""
    places = {column.name.lower(): number for number, column in enumerate(table.layout.stored)}
    found = {}
    for name, value in effect.assignments:
        place = places.get(name.lower())
        if place is None or not _is_plain_value(value, places):
            return None
        column = table.layout.stored[place]
        # DuckDB casts assigned values in the same way.
        found[place] = types.store_sql(column, f"CAST({value} AS {column.type})")
    return found or None


def _is_plain_value(text: str, columns: Iterable[str]) -> bool:
    """Whether all names in an expression are those of columns (in lower case) and parameters."""
    parts = tokens(text)
    named = (
        token.name.lower()
        for before, token in zip([None, *parts], parts, strict=False)
        if (token.word or token.text[0] == '"') and (before is None or before.text != "$")
    )
    return all(name in columns or name in _VALUES for name in named)


def _bare(text: str) -> str:
    """A statement without trailing semicolons and comments."""
    return text[: next(token.end for token in reversed(tokens(text)) if token.text != ";")]


def _with(values: _Values, own: Mapping[str, Any]) -> Any:
    """The parameters of a statement, followed by the additional ones."""
    return {**values, **own} if isinstance(values, dict) else [*(values or ()), *own.values()]


@lru_cache(maxsize=1000)
def _is_plain(default: str) -> bool:
    """Whether a default calls only functions of DuckDB; other functions might use another connection, and wait."""
    return called(tokens(default)) <= _DEFAULTS
