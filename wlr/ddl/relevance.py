"""Which schema statements a replica runs, and which failures do not matter to a replica of some tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import UnsupportedError
from wlc.farm.model import AlteredObject, CreatedObject, Ddl, Reference, RenamedObject
from wlc.farm.schema_fold import created_table, table_effects, touched_tables
from wlr.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from wlc.farm.model import Name, Transaction
    from wlr.plan.step import Action

# These hold no rows, and may need tables that a replica of some tables lacks.
_DERIVED = frozenset({"VIEW", "MACRO", "FUNCTION"})


def is_run(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Say whether a DuckDB replica of some tables runs the statement.

    A statement that only PostgreSQL has, such as CREATE FUNCTION, is recorded in its dialect alone and is ignored.
    """
    return ddl.dialect != "postgres" and is_wanted(ddl, patterns)


def is_wanted(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Say whether a replica of some tables runs the statement: it ignores triggers and tables that it does not have."""
    made = created_table(ddl)
    return not _is_about_trigger(ddl) and (made is None or matches(made, patterns))


def created_by(transaction: Transaction) -> Iterator[Name]:
    """Return the names that a transaction gives to tables."""
    for record in transaction.records:
        for effect in table_effects(record) if isinstance(record, Ddl) else ():
            if isinstance(effect, CreatedObject):
                yield effect.object.name
            elif isinstance(effect, RenamedObject):
                yield effect.to


def may_fail(ddl: Ddl, patterns: Collection[str], tables: Collection[Name]) -> bool:
    """Say whether a replica of some tables may ignore a failure: of a view, or of a statement about other tables."""
    if not patterns or created_table(ddl) is not None:
        return False
    if ddl.does and all(effect.object.kind in _DERIVED for effect in ddl.does):
        return True
    touched = {name.folded for name in (ddl.object, *touched_tables(ddl))}
    touched |= {effect.of.folded for effect in ddl.does if effect.of is not None}
    return touched.isdisjoint(table.folded for table in tables)


def may_be_left_out(
    actions: Sequence[Action], number: int, patterns: Collection[str], tables: Collection[Name]
) -> bool:
    """Say whether the action that failed is a statement whose failure may be ignored; see `may_fail`."""
    action = actions[number] if actions else None
    return isinstance(action, Ddl) and may_fail(action, patterns, tables)


def leaving_out(attempt: Callable[[set[int]], int | None]) -> None:
    """Try a step until it is done, without statements that a replica of some tables cannot run and does not need.

    Args:
        attempt: Tries it without the actions of these numbers; returns the number of one more to leave out, None once
            the step is done.
    """
    skipped: set[int] = set()
    while (failed := attempt(skipped)) is not None:
        skipped.add(failed)


def schema_move(ddl: Ddl) -> tuple[Name, Name] | None:
    """Return the old and the new name of a table that a PostgreSQL master moved to another schema; None otherwise.

    A DROP TABLE and a CREATE TABLE follow, for replicas that are no PostgreSQL.
    """
    if ddl.dialect != "postgres":
        return None
    moves = ((e.object.name, e.to) for e in table_effects(ddl) if isinstance(e, RenamedObject))
    return next(((old, new) for old, new in moves if old.schema != new.schema), None)


def _is_about_trigger(ddl: Ddl) -> bool:
    """Say whether the statement is about a trigger. The log holds what triggers changed on the master."""
    return any(effect.object.kind == "TRIGGER" for effect in ddl.does)


def references(ddl: Ddl) -> Iterator[tuple[Name, Name]]:
    """Yield the tables whose foreign keys a statement sets, each with one that it refers to."""
    for effect in table_effects(ddl):
        constraints = effect.constraints if isinstance(effect, CreatedObject | AlteredObject) else None
        yield from ((effect.object.name, found.to) for found in constraints or () if isinstance(found, Reference))


def unmet_reference(ddl: Ddl, patterns: Collection[str]) -> UnsupportedError | None:
    """Return why a table cannot be made in a replica of some tables, if a foreign key wants one that it leaves out."""
    wanted = references(ddl) if created_table(ddl) else ()
    table, missing = next(((table, to) for table, to in wanted if not matches(to, patterns)), (None, None))
    if table is None:
        return None
    # A filtered table has no foreign keys.
    hint = f"Replicate it, too: --tables {missing}; or leave the foreign keys out: --where '{table}: true'"
    return UnsupportedError(f"table {table} has a foreign key to {missing}, which is not replicated", hint=hint)
