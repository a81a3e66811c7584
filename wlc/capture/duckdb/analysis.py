"""Possible effects of one SQL statement on the rows of a table, decided from its text alone.

The result is a superset by construction. A statement that is not recognised becomes an `UnknownEffect`: the capture
then copies every captured table that the text names. A statement must name the table it writes to, so none is missed.

Classes of possible effects on the rows of a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import Token, numbered, tokens, words

if TYPE_CHECKING:
    from wlc.capture.duckdb.journal import CapturedTable


@dataclass(frozen=True, slots=True)
class AppendEffect:
    """Only adds rows to `target`; `reports` is False if DuckDB does not report their number.

    Attributes:
        values: Number of rows of its VALUES list, if it adds only these and they are simple; else 0. A part of a
            statement is simple if it computes only with constants, parameters and columns of `target`.
    """

    target: tuple[str, ...]
    reports: bool = True
    values: int = 0


@dataclass(frozen=True, slots=True)
class TouchEffect:
    """Removes or alters the rows of `target` for which `condition` holds; None stands for all rows.

    Attributes:
        alias: Alias by which the condition knows the target, or "".
        source: FROM or USING items the condition joins with, or None.
        with_clause: Text of the statement's WITH clause, or "".
        parameters: Names of the parameters that condition, source and WITH clause use.
        functions: Functions called in them; the capture looks up whether all of them are deterministic.
        relations: Tables and views read in them.
        is_stable: False if a second run may choose other rows, even if all functions are deterministic.
        deletes: True for DELETE and TRUNCATE, False for UPDATE.
        is_simple: All of it is simple (see `AppendEffect`), and it returns no rows.
        assignments: Columns that an UPDATE assigns, and the text of their values; () for other forms of assignment.
    """

    target: tuple[str, ...]
    alias: str
    condition: str | None
    source: str | None
    with_clause: str
    parameters: frozenset[str]
    functions: frozenset[str]
    relations: frozenset[str]
    is_stable: bool
    deletes: bool
    is_simple: bool = False
    assignments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UpsertEffect:
    """Adds rows to `target` and replaces the rows that have a key in common with the added ones.

    Attributes:
        columns: Columns that the statement names, or () for all.
        by_name: The names of the query's columns are the table's columns.
        query: Text of the VALUES list or query the rows come from.
    """

    target: tuple[str, ...]
    columns: tuple[str, ...]
    by_name: bool
    query: str
    with_clause: str
    parameters: frozenset[str]
    functions: frozenset[str]
    relations: frozenset[str]
    is_stable: bool


@dataclass(frozen=True, slots=True)
class MergeEffect:
    """Joins `target` with `source` and may alter the rows that meet `condition`."""

    target: tuple[str, ...]
    alias: str
    source: str
    condition: str
    with_clause: str
    parameters: frozenset[str]
    functions: frozenset[str]
    relations: frozenset[str]
    is_stable: bool


@dataclass(frozen=True, slots=True)
class UnknownEffect:
    """May do anything to any table whose name is among `names` (lower case)."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReadEffect:
    """Changes no rows of a table."""


@dataclass(frozen=True, slots=True)
class LockingReadEffect:
    """Reads rows with `FOR UPDATE`, if `exclusive`, or `FOR SHARE`.

    Attributes:
        rows: The rows, as a DELETE would remove them; None if unknown.
    """

    rows: TouchEffect | None
    exclusive: bool


@dataclass(frozen=True, slots=True)
class SchemaEffect:
    """Changes the catalog. `names` are words (lower case) that contain the names of all objects it alters.

    Attributes:
        rewrites: The statement computes values for existing rows, and another session may compute different ones: with
            other settings, at another time or with another random seed.
        casts: It gives existing rows a constant. The type of its cast determines whether another session may get
            another value.
        target: Name of what an ALTER alters, or ().
        loads: It may write rows into existing tables: those of `names`, or any if `names` is empty.
        inner: The statement itself, if another one wraps it.
    """

    names: frozenset[str]
    rewrites: bool
    loads: bool = False
    inner: str | None = None
    target: tuple[str, ...] = ()
    casts: bool = False

    @property
    def may_change_macros(self) -> bool:
        """Whether it may create, change or drop a macro, perhaps with its schema."""
        return self.loads or not self.names.isdisjoint(("function", "macro", "schema"))


@dataclass(frozen=True, slots=True)
class SessionEffect:
    """Changes settings, the search path or attached databases."""


@dataclass(frozen=True, slots=True)
class BeginEffect:
    """Starts an explicit transaction."""


@dataclass(frozen=True, slots=True)
class CommitEffect:
    """Commits the explicit transaction."""


@dataclass(frozen=True, slots=True)
class RollbackEffect:
    """Rolls the explicit transaction back."""


Effect = (
    AppendEffect
    | TouchEffect
    | UpsertEffect
    | MergeEffect
    | UnknownEffect
    | ReadEffect
    | LockingReadEffect
    | SchemaEffect
    | SessionEffect
    | BeginEffect
    | CommitEffect
    | RollbackEffect
)


def target_of(effect: Effect) -> tuple[str, ...]:
    """The target table of a statement, as it names it; empty for statements that may write to several tables."""
    return effect.target if isinstance(effect, (AppendEffect, TouchEffect, UpsertEffect, MergeEffect)) else ()


def clears(effect: TouchEffect, table: CapturedTable) -> bool:
    """Whether the statement removes every row."""
    return effect.deletes and effect.condition is None and effect.source is None and table.has_rowid


# Aggregates whose value does not depend on the order in which threads deliver rows.
_ORDER_FREE = frozenset({"count", "min", "max", "bool_and", "bool_or", "count_star"})
# A subquery with one of these words may return other rows when it runs a second time.
_UNSTABLE_WORDS = frozenset({"LIMIT", "SAMPLE", "TABLESAMPLE", "OVER", "OFFSET", "FETCH", "POSITIONAL", "ASOF", "KEY"})
# A subquery with these pairs of words may, too: they choose one row of several, or depend on the order of rows.
_UNSTABLE_PAIRS = frozenset({("DISTINCT", "ON"), ("ARRAY", "(")})
# Keywords before a parenthesis that call no function, and casts, whose value depends on their operand only.
_NOT_CALLED = frozenset(
    "ALL AND ANY ARRAY AS BETWEEN BY CASE CAST CHAR DECIMAL DISTINCT ELSE EXCEPT EXISTS EXTRACT FILTER FROM IN "
    "INTERSECT INTERVAL IS JOIN LIKE ILIKE MAP NOT NUMERIC ON OR ROW SELECT SOME STRUCT THEN TRY_CAST UNION USING "
    "VALUES VARCHAR WHEN WHERE WITH".split()
)

# A part of a statement with one of these words may read a relation.
_READING_WORDS = frozenset({"FROM", "PIVOT", "SELECT", "TABLE", "UNPIVOT", "WITH"})

# A statement type without a name in DuckDB's Python package.
UNKNOWN = "UNKNOWN"
_READ = ReadEffect()
_SESSION = SessionEffect()
_SESSION_TYPES = frozenset({"SET", "VARIABLE_SET", "ATTACH", "DETACH", "LOAD", "PRAGMA", "CALL", "EXTENSION"})
_CONSTANTS = ("numeric_const", "string_const")
_LOAD = SchemaEffect(frozenset(), rewrites=False, loads=True)
_SCHEMA_TYPES = frozenset({"CREATE", "CREATE_FUNC", "ALTER", "DROP"})
# Types of statements that create an object, or may contain a statement that does.
MAY_CREATE = frozenset({"CREATE", "CREATE_FUNC", "EXPLAIN", "MULTI", UNKNOWN})
_WRITING_WORDS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
# Functions that move a sequence in a statement that only reads.
SEQUENCE_MOVERS = frozenset({"nextval", "setval"})
_MAY_WRITE = re.compile("|".join([*_WRITING_WORDS, *SEQUENCE_MOVERS]), re.IGNORECASE)
_WRAPPED_WORDS = _WRITING_WORDS | {"COPY", "EXECUTE"}


@lru_cache(maxsize=2048)
def analyse(text: str, kind: str) -> Effect:
    """Return the possible effect of a statement.

    Args:
        text: One statement.
        kind: DuckDB's name of its type, for example "INSERT".
    """
    if kind == UNKNOWN:
        return UnknownEffect(words(text))
    if kind == "TRANSACTION":
        return _transaction(tokens(text))
    if kind in ("INSERT", "UPDATE", "DELETE", "MERGE_INTO"):
        return _Write(text).effect(kind)
    if kind in _SCHEMA_TYPES:
        return _schema(text, kind)
    if kind == "SELECT":
        return _query(text)
    if kind == "COPY":
        return _copy(text)
    if kind in ("EXPLAIN", "EXECUTE", "PREPARE", "MULTI", "COPY_DATABASE", "IMPORT"):
        return _wrapped(text, kind)
    if kind == "PRAGMA" and tokens(text)[0].word in ("IMPORT", "COPY"):
        return _LOAD
    return _SESSION if kind in _SESSION_TYPES else _READ


def detached(text: str, kind: str) -> str | None:
    """Lower-case name of the database that a statement detaches, or replaces by attaching another one."""
    parts = tokens(text.rstrip("; \n"))
    named = [token.word for token in parts]
    if kind == "DETACH":
        return parts[-1].name.lower()
    if kind == "ATTACH" and "REPLACE" in named:
        if "AS" in named:
            return parts[named.index("AS") + 1].name.lower()
        return PurePath(next(token.name for token in parts if token.text[0] == "'")).stem.lower()
    return None


def _transaction(parts: list[Token]) -> Effect:
    first = parts[0].word
    if first in ("BEGIN", "START"):
        return BeginEffect()
    return RollbackEffect() if first in ("ROLLBACK", "ABORT") else CommitEffect()


def _query(text: str) -> Effect:
    """Analyse a query, which may contain statements that write and functions that move sequences."""
    if not _MAY_WRITE.search(text):
        # Most queries only read. Tokenizing them would take longer than many of them run.
        return _READ
    named = words(text)
    if _writes(text):
        return UnknownEffect(named)
    return UnknownEffect(SEQUENCE_MOVERS) if SEQUENCE_MOVERS & named else _READ


def _writes(text: str) -> bool:
    return _MAY_WRITE.search(text) is not None and any(token.word in _WRITING_WORDS for token in tokens(text))


def _wrapped(text: str, kind: str) -> Effect:
    if kind == "EXPLAIN":
        return _explain(text)
    if kind == "PREPARE":
        return _READ
    if kind == "MULTI":
        # DuckDB splits some statements into several: ALTER … ADD COLUMN with a volatile default, PIVOT.
        first = tokens(text)[0].word
        if first in ("ALTER", "CREATE", "DROP"):
            return _schema(text, first)
        return _query(text)
    return UnknownEffect(words(text)) if kind == "EXECUTE" else _LOAD


def _explain(text: str) -> Effect:
    parts = tokens(text)
    if not any(token.word in ("ANALYZE", "ANALYSE") for token in parts):
        return UnknownEffect(SEQUENCE_MOVERS) if SEQUENCE_MOVERS & words(text) else _READ
    for token in parts:
        if token.depth == 0 and token.word in ("CREATE", "ALTER", "DROP"):
            inner = text[token.start :]
            found = _schema(inner, token.word)
            return replace(found, inner=inner)
    return UnknownEffect(words(text)) if any(token.word in _WRAPPED_WORDS for token in parts) else _query(text)


def _copy(text: str) -> Effect:
    parts = tokens(text)
    if len(parts) > 1 and parts[1].text == "(":
        return UnknownEffect(words(text)) if _writes(text) else _READ
    if len(parts) > 2 and parts[1].word == "FROM" and parts[2].word == "DATABASE":
        return _LOAD
    target, after = _name(parts, 1)
    while after < len(parts) and parts[after].word not in ("FROM", "TO"):
        after += 1
    if after < len(parts) and parts[after].word == "FROM":
        return AppendEffect(target)
    return _READ


def _schema(text: str, kind: str) -> SchemaEffect:
    if kind != "ALTER":
        named = words(text)
        return SchemaEffect(named, rewrites=False, loads="with" in named and _writes(text))
    parts = tokens(text)
    found = {token.word for token in parts}
    default = _default(parts) if {"DEFAULT", "ADD"} <= found else []
    target, _ = _name(parts, 4 if parts[2].word == "IF" and parts[3].word == "EXISTS" else 2)
    casts = len(default) == 1 and (default[0].kind in _CONSTANTS or default[0].word in ("TRUE", "FALSE"))
    computes = bool(default) and not casts and [token.word for token in default] != ["NULL"]
    rewrites = computes or not found.isdisjoint(("TYPE", "USING"))
    return SchemaEffect(words(text), rewrites=rewrites, target=target, casts=casts)


def _default(parts: list[Token]) -> list[Token]:
    """The value after DEFAULT, without signs."""
    at = next(index for index, token in enumerate(parts) if token.word == "DEFAULT")
    return [token for token in parts[at + 1 :] if token.text not in (";", "-", "+")]


def _name(parts: list[Token], at: int) -> tuple[tuple[str, ...], int]:
    """Read a dotted name that starts at token `at`; returns its parts and the index behind it."""
    names = [parts[at].name]
    at += 1
    while at + 1 < len(parts) and parts[at].text == ".":
        names.append(parts[at + 1].name)
        at += 2
    return tuple(names), at


@dataclass
class _Write:
    """Reads one INSERT, UPDATE, DELETE or MERGE by its top-level keywords.

    `?` markers become `$1`, `$2` … first, so that a part of the statement can run with its own parameters.
    """

    text: str
    parts: list[Token] = field(init=False)

    def __post_init__(self) -> None:
        self.text = numbered(self.text)
        self.parts = tokens(self.text)
        while self.parts and self.parts[-1].text == ";":
            self.parts.pop()
        self.text = self.text[: self.parts[-1].end] if self.parts else self.text

    def effect(self, kind: str) -> Effect:
        """Return the effect; an `UnknownEffect` for every form that is not recognised as a whole."""
        try:
            start = self._statement_start()
            read = {"INSERT": self._insert, "UPDATE": self._update, "DELETE": self._delete, "MERGE_INTO": self._merge}
            found = read[kind](start)
        except (IndexError, ValueError):
            found = None
        if found is None or (self.parts[0].word == "WITH" and self._with_writes()):
            return UnknownEffect(words(self.text))
        return found

    def _statement_start(self) -> int:
        if self.parts[0].word != "WITH":
            return 0
        leads = ("INSERT", "UPDATE", "DELETE", "MERGE")
        return next(i for i, token in enumerate(self.parts) if token.depth == 0 and token.word in leads)

    def _with_writes(self) -> bool:
        return any(token.depth > 0 and token.word in _WRITING_WORDS for token in self.parts)

    def _with_clause(self, start: int) -> str:
        return self._slice(0, start) if start else ""

    def _slice(self, first: int, after: int) -> str:
        end = self.parts[after].start if after < len(self.parts) else None
        text = self.text[self.parts[first].start : end].strip().rstrip(";").strip()
        # A comment at the end must not hide the text that follows.
        return text + "\n" if "--" in text else text

    def _find(self, keyword: str, start: int) -> int:
        """Index of a keyword outside parentheses, or the number of tokens."""
        for index in range(start, len(self.parts)):
            token = self.parts[index]
            if token.depth == 0 and token.word == keyword and not self._is_distinct_from(index):
                return index
        return len(self.parts)

    def _is_distinct_from(self, index: int) -> bool:
        return self.parts[index].word == "FROM" and self.parts[index - 1].word == "DISTINCT"

    def _alias(self, at: int, stop: tuple[str, ...]) -> tuple[str | None, int]:
        if at < len(self.parts) and self.parts[at].word == "AS":
            return self.parts[at + 1].text, at + 2
        if at < len(self.parts) and self.parts[at].word not in stop and self.parts[at].text not in ("(", ";"):
            return self.parts[at].text, at + 1
        return None, at

    def _insert(self, start: int) -> Effect | None:
        at = start + 1
        mode = ""
        if self.parts[at].word == "OR":
            mode, at = self.parts[at + 1].word, at + 2
        if self.parts[at].word != "INTO":
            return None
        target, at = _name(self.parts, at + 1)
        conflict = self._find("CONFLICT", at)
        while conflict < len(self.parts) and self.parts[conflict - 1].word != "ON":
            # A column or a table may be called CONFLICT.
            conflict = self._find("CONFLICT", conflict + 1)
        has_conflict = conflict < len(self.parts)
        if not has_conflict and mode in ("", "IGNORE"):
            return AppendEffect(target, values=0 if mode or start else self._simple_values(at))
        nothing = has_conflict and "UPDATE" not in {t.word for t in self.parts[conflict:]}
        if mode == "" and nothing:
            return AppendEffect(target)
        return self._upsert(start, target, at, conflict - 1 if has_conflict else None)

    def _simple_values(self, at: int) -> int:
        """Number of rows of the VALUES list that follows a target, if they are simple and nothing follows; else 0."""
        if self.parts[at].text == "(":
            at = (
                next(i for i in range(at, len(self.parts)) if self.parts[i].text == ")" and self.parts[i].depth == 0)
                + 1
            )
        listed = [token for token in self.parts[at:] if token.text != ";"]
        if listed[0].word != "VALUES" or not _is_simple(listed):
            return 0
        outside = [token.text for token in listed[1:] if token.depth == 0]
        rows = outside.count("(")
        return rows if outside == ["(", ")", ",", *["(", ")", ","] * (rows - 1)][:-1] else 0

    def _upsert(self, start: int, target: tuple[str, ...], at: int, conflict: int | None) -> Effect | None:
        if self.parts[at].word == "AS":
            at += 2
        columns: tuple[str, ...] = ()
        if self.parts[at].text == "(" and self.parts[at].depth == 0 and self.parts[at + 1].word != "SELECT":
            close = next(
                i for i in range(at, len(self.parts)) if self.parts[i].text == ")" and self.parts[i].depth == 0
            )
            columns = tuple(token.name for token in self.parts[at + 1 : close] if token.text != ",")
            at = close + 1
        by_name = False
        if self.parts[at].word == "BY":
            by_name, at = self.parts[at + 1].word == "NAME", at + 2
        end = conflict if conflict is not None else self._find("RETURNING", at)
        query = self._slice(at, end)
        if any(token.word == "DEFAULT" for token in self.parts[at:end]):
            return None
        checked = self._stability(self._with_clause(start), query)
        return UpsertEffect(target, columns, by_name, query, self._with_clause(start), *checked)

    def _update(self, start: int) -> Effect | None:
        target, at = _name(self.parts, start + 1)
        alias, at = self._alias(at, ("SET",))
        if self.parts[at].word != "SET":
            return None
        where, returning = self._find("WHERE", at), self._find("RETURNING", at)
        joined = self._find("FROM", at)
        source = self._slice(joined + 1, min(where, returning)) if joined < min(where, returning) else None
        touch = self._touch(start, target, alias, source, where, returning, deletes=False)
        if not touch.is_simple:
            return touch
        return replace(touch, assignments=self._assignments(at + 1, min(where, returning)))

    def _assignments(self, at: int, end: int) -> tuple[tuple[str, str], ...]:
        if any(token.text in ("[", "{") for token in self.parts[at:end]):
            # Their commas would look like those between assignments.
            return ()
        found = []
        while at < end:
            if self.parts[at + 1].text != "=":
                return ()
            after = next((i for i in range(at, end) if self.parts[i].text == "," and not self.parts[i].depth), end)
            found.append((self.parts[at].name, self._slice(at + 2, after)))
            at = after + 1
        return tuple(found)

    def _delete(self, start: int) -> Effect | None:
        if self.parts[start].word == "TRUNCATE":
            at = start + 2 if self.parts[start + 1].word == "TABLE" else start + 1
            target, at = _name(self.parts, at)
            end = len(self.parts)
            return self._touch(start, target, None, None, end, end, deletes=True)
        if self.parts[start + 1].word != "FROM":
            return None
        target, at = _name(self.parts, start + 2)
        alias, at = self._alias(at, ("WHERE", "USING", "RETURNING"))
        where, returning = self._find("WHERE", at), self._find("RETURNING", at)
        joined = self._find("USING", at)
        source = self._slice(joined + 1, min(where, returning)) if joined < min(where, returning) else None
        return self._touch(start, target, alias, source, where, returning, deletes=True)

    def _touch(
        self,
        start: int,
        target: tuple[str, ...],
        alias: str | None,
        source: str | None,
        where: int,
        returning: int,
        *,
        deletes: bool,
    ) -> TouchEffect:
        condition = self._slice(where + 1, returning) if where < returning else None
        with_clause = self._with_clause(start)
        checked = self._stability(with_clause, source or "", condition or "")
        is_simple = start == 0 and source is None and returning == len(self.parts) and _is_simple(self.parts[2:])
        return TouchEffect(target, alias or "", condition, source, with_clause, *checked, deletes, is_simple)

    def _merge(self, start: int) -> Effect | None:
        if self.parts[start + 1].word != "INTO":
            return None
        target, at = _name(self.parts, start + 2)
        alias, at = self._alias(at, ("USING",))
        if self.parts[at].word != "USING":
            return None
        when = self._find("WHEN", at)
        on = self._find("ON", at)
        tail = " ".join(token.word for token in self.parts[when:])
        if on >= when or "BY SOURCE" in tail:
            return None
        source, condition = self._slice(at + 1, on), self._slice(on + 1, when)
        with_clause = self._with_clause(start)
        checked = self._stability(with_clause, source, condition)
        return MergeEffect(target, alias or "", source, condition, with_clause, *checked)

    def _stability(self, *texts: str) -> tuple[frozenset[str], frozenset[str], frozenset[str], bool]:
        """Parameters, called functions, relations read, and whether a second run must give the same result."""
        parts = [token for text in texts if text for token in tokens(text)]
        pairs = list(pairwise(parts))
        parameters = frozenset(follower.text for token, follower in pairs if token.text == "$")
        functions = called(parts)
        is_stable = not any(token.word in _UNSTABLE_WORDS for token in parts)
        is_stable = is_stable and not any((one.word, other.text.upper()) in _UNSTABLE_PAIRS for one, other in pairs)
        reads = any(token.word in ("SELECT", "FROM", "JOIN", "TABLE") for token in parts) or bool(texts[-2:][0])
        relations = _relations(*texts) if reads else frozenset()
        if relations is None:
            return parameters, functions, frozenset(), False
        return parameters, functions, relations, is_stable


def called(parts: list[Token]) -> frozenset[str]:
    """Lower-case names of the functions that a part of a statement calls."""
    return frozenset(
        token.name.lower()
        for token, follower in pairwise(parts)
        if follower.text == "(" and token.word not in _NOT_CALLED and (token.word or token.text.startswith('"'))
    )


def _is_simple(parts: list[Token]) -> bool:
    return not called(parts) and not any(token.word in _READING_WORDS for token in parts)


def _relations(*texts: str) -> frozenset[str] | None:
    """Last parts of the names of all relations that the parts of a statement read; None if one has no name.

    Raises:
        ValueError: The parts cannot be parsed.
    """
    # Half as long as importing DuckDB, and most programs write without reading another relation.
    import sqlglot
    from sqlglot import exp

    with_clause, *middle, last = texts
    source = middle[0] if middle else ""
    if source:
        text = f"{with_clause} SELECT 1 FROM {source} WHERE {last or 'true'}"
    elif last[:6].upper() in ("VALUES", "SELECT") or last.startswith("("):
        text = f"{with_clause} {last}"
    else:
        text = f"{with_clause} SELECT 1 WHERE {last}"
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(text) from error
    defined = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    found = set()
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            return None
        found.add(table.name.lower())
    return frozenset(found - defined)


def aggregates_in_order_free(functions: frozenset[str], aggregates: frozenset[str]) -> bool:
    """Whether the aggregates among `functions` give the same value however threads order their rows."""
    return (functions & aggregates) <= _ORDER_FREE
