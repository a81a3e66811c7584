"""What the parts of a statement say of the table that it writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb.statement import Append, Effect, Merge, Touch, Upsert

if TYPE_CHECKING:
    from wlc.capture.duckdb.journal import Table


def subset(parameters: Any, names: frozenset[str]) -> dict[str, object]:
    """The parameters that part of a statement uses, by the names of their markers."""
    if not names or parameters is None:
        return {}
    if isinstance(parameters, dict):
        wanted = {name.lower() for name in names}
        return {name: value for name, value in parameters.items() if name.lower() in wanted}
    return {str(number): value for number, value in enumerate(parameters, start=1) if str(number) in names}


def aliased(effect: Touch | Merge, table: Table) -> str:
    """The target as the statement knows it: without an alias, columns may be called by the table's full name."""
    return f"{table.sql} AS {effect.alias}" if effect.alias else table.sql


def target_of(effect: Effect) -> tuple[str, ...]:
    """The table that a statement writes to, as it names it; empty for statements that may write to others."""
    return effect.target if isinstance(effect, (Append, Touch, Upsert, Merge)) else ()


def clears(effect: Touch, table: Table) -> bool:
    """Whether the statement removes every row."""
    return effect.deletes and effect.condition is None and effect.source is None and table.has_rowid


def pins_key(effect: Touch, table: Table) -> bool:
    """Whether the condition looks like one on the primary key, so that few rows will be found."""
    condition = (effect.condition or "").lower()
    keys = table.keys or ()
    return effect.source is None and any(
        all(f"{column.lower()} =" in condition or f"{column.lower()}=" in condition for column in key) for key in keys
    )
