"""The list of objects that a replica lacks, by name: it follows renames, and forgets dropped objects.

An entry ends with the name of its object, for a routine with the types of its arguments; for an index or a
constraint, the object is the table. The causes hold statements to type, with quoted names.

Decides which schema statements a replica runs, and which failures a replica of some tables may ignore.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Reference, RenamedObject
from wlc.farm.schema_fold import created_table, table_effects, touched_tables
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from wlc.farm.model import DdlEffect, Name, Transaction
    from wlr.replay.plan.step import Action


# Between the cause and the statement to type: replicas retry the first kind by themselves.
THEN_RUN = "; once it is there, run "
OR_RUN = "; to have it, run "
_RUN = re.compile(f"({THEN_RUN}|{OR_RUN})")
# Forms of entries that are parts of a table or domain.
_PARTS = {
    "INDEX": "index {} of table {}",
    "CONSTRAINT": "constraint {} of table {}",
    "DOMAIN CONSTRAINT": "constraint {} of domain {}",
}
# Kinds with separate namespaces; all other kinds share one.
_NAMES_APART = dict.fromkeys(("function", "procedure", "aggregate"), "routine") | {
    "type": "type",
    "domain": "type",
    "schema": "schema",
    "macro": "macro",
}
# Kinds of a PostgreSQL master that replicas of other engines do not need for their rows.
_WITHOUT_COUNTERPART = "only PostgreSQL replicas have it"
_OF_POSTGRESQL = frozenset({"FUNCTION", "PROCEDURE", "AGGREGATE", "VIEW", "MATERIALIZED VIEW", "INDEX", "CONSTRAINT"})


def without_counterparts(
    left_out: Mapping[str, str], changes: Iterable[Ddl], patterns: Collection[str] = ()
) -> Mapping[str, str]:
    """Return the objects of a PostgreSQL master that a replica of another engine lacks, after schema changes.

    Args:
        left_out: The list before, with the causes.
        changes: The master's schema changes, in order; those of a DuckDB master change nothing.
        patterns: Patterns of its tables; objects of other tables are not listed.
    """
    lacking = dict(left_out)
    for ddl in changes:
        if ddl.original or not is_run(ddl, ()):
            follow(lacking, ddl)
            made = (effect for effect in ddl.does if isinstance(effect, CreatedObject))
            missing = (each for each in made if each.object.kind in _OF_POSTGRESQL)
            wanted = (listed(each) for each in missing if each.of is None or matches(each.of, patterns))
            lacking |= dict.fromkeys(wanted, _WITHOUT_COUNTERPART)
    return lacking


def listed_object(ddl: Ddl) -> str:
    """Return the entry of a statement's object, if a replica lacks it afterwards."""
    return listed(ddl.does[0]) if ddl.does else f"{ddl.kind.partition(' ')[2].lower()} {ddl.object}"


def listed(effect: DdlEffect) -> str:
    """Return the entry of an object after a statement changed it."""
    found = effect.object
    name = effect.to if isinstance(effect, RenamedObject) else found.name
    if effect.of is not None and found.kind in _PARTS:
        return _PARTS[found.kind].format(name.name, effect.of)
    return f"{found.kind.lower()} {name}{_arguments(found)}"


def to_retry(left_out: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield objects that may be possible after other changes, with their statements, in the order of the list."""
    for what, cause in left_out.items():
        _, then, statement = _parted(cause)
        if then == THEN_RUN:
            yield what, statement


def without_statement(cause: str) -> str:
    """Return a cause without the statement to type."""
    return _parted(cause)[0]


def _parted(cause: str) -> tuple[str, str, str]:
    cause, *rest = _RUN.split(cause, maxsplit=1)
    return (cause, rest[0], rest[1]) if rest else (cause, "", "")


def follow(left_out: dict[str, str], ddl: Ddl) -> None:
    """Apply the renames of a statement to the entries, and remove the objects that it drops.

    Args:
        left_out: The list, with the causes; it is changed.
        ddl: The statement. One that PostgreSQL does not run changes nothing.
    """
    for effect in ddl.does if ddl.original != "" else ():
        match effect:
            case RenamedObject(found, to, None):
                _rename(left_out, found, to)
            case RenamedObject():
                _rename_part(left_out, effect)
            case DroppedObject(found, of) if of is not None:
                left_out.pop(listed(effect), None)
            # A view that is replaced keeps its privileges.
            case DroppedObject(found) | CreatedObject(DbObject("TABLE") as found, replaces=True):
                for head in _heads(left_out, found):
                    del left_out[f"{head} {found.name}{_arguments(found)}"]
            case AlteredObject(found, columns=steps):
                for before, after in steps:
                    _follow_column(left_out, found.name, before, after)


def _outdate(left_out: dict[str, str], name: str) -> None:
    """Remove statements that create objects, and rename entries."""
    for what, cause in left_out.items():
        _, _, statement = _parted(cause)
        if statement.startswith("CREATE ") and any(t.name == name for t in tokens(statement) if not t.is_string):
            left_out[what] = without_statement(cause)


# Objects -------------------------------------------------------------------------------------------------------------


def _arguments(found: DbObject) -> str:
    return "" if found.arguments is None else f"({','.join(found.arguments)})"


def _heads(left_out: Mapping[str, str], found: DbObject) -> list[str]:
    """Return the entries of an object, and of its parts, without its name."""
    end = f" {found.name}{_arguments(found)}"
    heads = [what.removesuffix(end) for what in left_out if what.endswith(end)]
    return [head for head in heads if _names(head) == _names(found.kind.lower())]


def _names(text: str) -> str:
    """Return the namespace of the kind that a text ends with."""
    return _NAMES_APART.get(text.rpartition(" ")[2], "relation")


def _rename(left_out: dict[str, str], found: DbObject, to: Name) -> None:
    _outdate(left_out, found.name.name)
    arguments = _arguments(found)
    for head in _heads(left_out, found):
        left_out[f"{head} {to}{arguments}"] = left_out.pop(f"{head} {found.name}{arguments}")
    if found.kind == "SCHEMA":
        old, written = (re.escape(text) for text in (found.name.name, quote(found.name.name)))
        written = rf"{written}(?=\.)|(?<= ON SCHEMA ){written}"
        _replace(left_out, rf"(?<=[ (,]){old}(?=\.)", to.name, written, quote(to.name))
    else:
        # Arguments of routines may have the type.
        typed = rf"(?<=[(,]){re.escape(str(found.name))}(?=[\[,)])"
        written = re.escape(found.name.sql) + (re.escape(arguments) or r"(?!\()")
        _replace(left_out, typed, str(to), written, f"{to.sql}{arguments}")


def _rename_part(left_out: dict[str, str], renamed: RenamedObject) -> None:
    _outdate(left_out, renamed.object.name.name)
    cause = left_out.pop(listed(DroppedObject(renamed.object, renamed.of)), None)
    if cause is not None:
        old, new = (f"ADD CONSTRAINT {quote(name.name)}" for name in (renamed.object.name, renamed.to))
        left_out[listed(renamed)] = cause.replace(old, new)


def _replace(left_out: dict[str, str], listed_as: str, name: str, written: str, sql: str) -> None:
    """Replace a name in the entries, and in the causes."""
    for what in list(left_out):
        cause = re.sub(written, lambda _: sql, left_out.pop(what))
        left_out[re.sub(listed_as, lambda _: name, what)] = cause


# Columns -------------------------------------------------------------------------------------------------------------


def _follow_column(left_out: dict[str, str], table: Name, old: str | None, new: str | None) -> None:
    """Rename a column of a table or view in the entries, or remove its entries without a new name."""
    if old is None or old == new:
        return
    if new is not None:
        _outdate(left_out, old)
    for what in [what for what in left_out if what.endswith(f" table {table}")]:
        renamed = _renamed(what, old, new or "")
        if new is not None:
            left_out[renamed] = _with_column(left_out.pop(what), old, new)
        elif renamed != what:
            del left_out[what]


def _renamed(what: str, old: str, new: str) -> str:
    """Return the entry of a column's privilege, default or collation under another name; other entries unchanged."""
    what = what.replace(f" ({quote(old)}) for ", f" ({quote(new)}) for ", 1)
    return what.replace(f" of column {old} of ", f" of column {new} of ", 1)


def _with_column(cause: str, old: str, new: str) -> str:
    """Rename a column in a statement about its table."""
    before_it, then, statement = _parted(cause)
    if not statement.startswith("ALTER TABLE "):
        return cause.replace(f"({quote(old)})", f"({quote(new)})")
    places = tokens(statement)
    # Columns after REFERENCES belong to another table.
    end = next((at for at, token in enumerate(places) if token.word == "REFERENCES"), len(places))
    # A name before a bracket is a function, next to a dot an object, and after CONSTRAINT a constraint.
    for (before, token), (_, after) in reversed([*pairwise(pairwise(places[: end + 1]))]):
        is_name = not token.is_string and token.name == old and before.text != "." and before.word != "CONSTRAINT"
        if is_name and after.text not in ("(", "."):
            statement = f"{statement[: token.start]}{quote(new)}{statement[token.end :]}"
    return f"{before_it}{then}{statement}"


# These hold no rows, and may need tables that a replica of some tables lacks.
_DERIVED = frozenset({"VIEW", "MACRO", "FUNCTION"})


def is_run(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Return whether a DuckDB replica of some tables runs the statement.

    It ignores a statement that only PostgreSQL has, such as CREATE FUNCTION, which is recorded in its dialect alone.
    """
    return ddl.dialect != "postgres" and is_wanted(ddl, patterns)


def is_wanted(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Return whether a replica of some tables runs the statement: it ignores triggers and missing tables."""
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
    """Return whether a replica of some tables may ignore a failure: of a view, or of a statement about other tables."""
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
    """Return whether the failed action is a statement whose failure may be ignored; see `may_fail`."""
    action = actions[number] if actions else None
    return isinstance(action, Ddl) and may_fail(action, patterns, tables)


def leaving_out(attempt: Callable[[set[int]], int | None]) -> None:
    """Retry a step without statements that a replica of some tables cannot run and does not need.

    Args:
        attempt: Tries it without the actions of these numbers; returns the number of one more to leave out, None on
            success.
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
    """Return whether the statement is about a trigger. The log holds the rows that triggers changed on the master."""
    return any(effect.object.kind == "TRIGGER" for effect in ddl.does)


def references(ddl: Ddl) -> Iterator[tuple[Name, Name]]:
    """Yield the tables whose foreign keys a statement sets, each with a referred table."""
    for effect in table_effects(ddl):
        constraints = effect.constraints if isinstance(effect, CreatedObject | AlteredObject) else None
        yield from ((effect.object.name, found.to) for found in constraints or () if isinstance(found, Reference))


def unmet_reference(ddl: Ddl, patterns: Collection[str]) -> UnsupportedError | None:
    """Return why a replica of some tables cannot create a table: a foreign key refers to an unreplicated table."""
    wanted = references(ddl) if created_table(ddl) else ()
    table, missing = next(((table, to) for table, to in wanted if not matches(to, patterns)), (None, None))
    if table is None:
        return None
    # A filtered table has no foreign keys.
    hint = f"Replicate it, too: --tables {missing}; or leave the foreign keys out: --where '{table}: true'"
    return UnsupportedError(f"table {table} has a foreign key to {missing}, which is not replicated", hint=hint)
