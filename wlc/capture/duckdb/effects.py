"""What a statement may do to the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wlc.capture.duckdb.journal import CapturedTable


@dataclass(frozen=True, slots=True)
class AppendEffect:
    """Only adds rows to `target`; `reports` is False where nobody reports how many.

    Attributes:
        values: Number of rows of its VALUES list, if these are all that it adds and they are simple; else 0. A part of
            a statement is simple if constants, parameters and columns of `target` are all that it computes with.
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
        is_stable: False where a second run may choose other rows, even if all functions are deterministic.
        deletes: True for DELETE and TRUNCATE, False for UPDATE.
        is_simple: All of it is simple (see `AppendEffect`), and it returns no rows.
        assignments: Columns that an UPDATE assigns, and the text of their values; () if it assigns anything else.
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
        rows: The rows as those that a DELETE would remove; None if it cannot be said which they are.
    """

    rows: TouchEffect | None
    exclusive: bool


@dataclass(frozen=True, slots=True)
class SchemaEffect:
    """Changes the catalog. `names` are words (lower case) that contain the names of all objects it alters.

    Attributes:
        rewrites: The statement computes values for existing rows, and another session may compute others: it has
            other settings, another time or another random seed.
        casts: It gives existing rows a constant. The type that this is cast to says whether another session may get
            another value.
        target: Name of what an ALTER alters, or ().
        loads: It may write rows into existing tables: those of `names`, or any if `names` is empty.
        inner: The statement itself, where another one wraps it.
    """

    names: frozenset[str]
    rewrites: bool
    loads: bool = False
    inner: str | None = None
    target: tuple[str, ...] = ()
    casts: bool = False


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
    """The table that a statement writes to, as it names it; empty for statements that may write to others."""
    return effect.target if isinstance(effect, (AppendEffect, TouchEffect, UpsertEffect, MergeEffect)) else ()


def clears(effect: TouchEffect, table: CapturedTable) -> bool:
    """Whether the statement removes every row."""
    return effect.deletes and effect.condition is None and effect.source is None and table.has_rowid
