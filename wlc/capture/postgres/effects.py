"""Effects of statements on the tables of a PostgreSQL master, derived from the descriptions before and after.

Effects concern the farm's content: they contain no generated column, and no constraint that some rows violate. Replicas
of other kinds have no names of keys: an effect names a primary key only if it is renamed or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.model import (
    AlteredObject,
    Check,
    CreatedObject,
    DbObject,
    Ddl,
    DroppedObject,
    Name,
    Reference,
    RenamedObject,
    Unique,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from wlc.capture.postgres.described import DescribedConstraint, DescribedTable
    from wlc.farm.model import ColumnStep, DdlEffect, Record, TableConstraint

POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Carried:
    """PostgreSQL changes a table with the previous statement, which is about another object.

    Examples are the table that it inherits from, or a function named in a constraint.
    """

    table: Name
    does: tuple[DdlEffect, ...]


def created(table: DescribedTable) -> tuple[DdlEffect, ...]:
    """Return the effects of creating a table without constraints but its key; its layout is not in the line."""
    steps = tuple((None, column.name) for column in table.stored.values())
    return (CreatedObject(_object(table), columns=steps, key=_names(table, _key(table)) or None),)


def altered(old: DescribedTable, new: DescribedTable, redefined: Collection[str] = ()) -> tuple[DdlEffect, ...]:
    """Return the effects of altering a table.

    Args:
        old: The former table. Names of other tables are as in `new`.
        new: The present table.
        redefined: Columns with changes beyond names and types.
    """
    table = _object(new)
    renamed = () if old.qualified == new.qualified else (RenamedObject(_object(old), new.qualified),)
    lost, named, made = _constraint_objects(old, new)
    change = AlteredObject(
        table,
        columns=tuple(_column_steps(old, new, redefined)),
        key=None if _key(old) == _key(new) else _names(new, _key(new)),
        constraints=None if _compared(old, new) == _compared(new, old) else _constraints(new),
        parents=None if _parents(old) == _parents(new) else tuple(parent.qualified for parent in new.parents),
    )
    return (*renamed, *lost, *named, *(() if change == AlteredObject(table) else (change,)), *made)


def bare(table: DescribedTable) -> DescribedTable:
    """Return what replicas that are no PostgreSQL know of a table."""
    return replace(table, constraints={}, parents=())


def carried_back(records: Iterable[Record | Carried]) -> list[Record]:
    """Add to the previous statement the effects that PostgreSQL carries out with it."""
    found: list[Record] = []
    for record in records:
        if not isinstance(record, Carried):
            found.append(record)
            continue
        run = ((at, ddl) for at, ddl in reversed([*enumerate(found)]) if isinstance(ddl, Ddl) and ddl.original != "")
        at, ddl = next(run, (0, None))
        if ddl is None:
            # A statement without a place in the log changed it, such as one about a function in C.
            found.append(Ddl("ALTER TABLE", record.table, "", dialect=POSTGRES, does=record.does))
        else:
            found[at : at + 1] = _with(ddl, record.does)
    return found


def apart(ddl: Ddl, does: tuple[DdlEffect, ...]) -> tuple[Ddl, Ddl]:
    """Return a statement for PostgreSQL, with other effects there, and one for replicas of other kinds."""
    if ddl.layout is not None:
        # The layout is in the line for the others.
        made = CreatedObject(DbObject("TABLE", ddl.object))
        steps = tuple((None, column.name) for column in ddl.layout.columns)
        whole = replace(made, columns=steps, key=ddl.layout.primary_key or None)
        does = tuple(whole if effect == made else effect for effect in does)
    own = Ddl(ddl.kind, ddl.object, str(ddl.original), dialect=POSTGRES, does=does)
    return own, replace(ddl, original="")


def _with(ddl: Ddl, more: tuple[DdlEffect, ...]) -> tuple[Ddl, ...]:
    does = (*ddl.does, *more)
    return (replace(ddl, does=does),) if ddl.dialect == POSTGRES else apart(ddl, does)


def _object(table: DescribedTable) -> DbObject:
    return DbObject("TABLE", table.qualified)


def _names(table: DescribedTable, numbers: Iterable[int]) -> tuple[str, ...]:
    names = {column.number: column.name for column in table.columns}
    return tuple(names[number] for number in numbers if number in names)


def _key(table: DescribedTable) -> tuple[int, ...]:
    """Return the numbers of the columns by which the farm knows rows, in the order of the key."""
    found = next((c.columns for c in table.constraints.values() if c.is_primary_key), ())
    return found if set(found) <= table.stored.keys() else ()


def _parents(table: DescribedTable) -> list[int]:
    return [parent.oid for parent in table.parents]


def _column_steps(old: DescribedTable, new: DescribedTable, redefined: Collection[str]) -> Iterator[ColumnStep]:
    before, after = old.stored, new.stored
    yield from ((column.name, None) for number, column in before.items() if number not in after)
    for number, column in after.items():
        was = before.get(number)
        if was is None:
            yield None, column.name
        elif was.name != column.name or was.declared != column.declared or column.name in redefined:
            yield was.name, column.name


def _constraint_objects(
    old: DescribedTable, new: DescribedTable
) -> tuple[list[DroppedObject], list[RenamedObject], list[CreatedObject]]:
    """Return dropped, renamed, and new constraints without keys. A rebuilt one counts as unchanged."""
    before, after = ({c.oid: name for name, c in table.held.items()} for table in (old, new))
    of, keys = new.qualified, {name for name, found in new.held.items() if found.is_primary_key}
    lost = {name for oid, name in before.items() if oid not in after}
    made = {name for oid, name in after.items() if oid not in before}
    named = sorted((before[oid], name) for oid, name in after.items() if before.get(oid, name) != name)
    return (
        [DroppedObject(_constraint_object(name, new), of) for name in sorted(lost - made)],
        [RenamedObject(_constraint_object(was, new), Name(new.schema, name), of) for was, name in named],
        [CreatedObject(_constraint_object(name, new), of=of) for name in sorted(made - lost - keys)],
    )


def _constraint_object(name: str, table: DescribedTable) -> DbObject:
    return DbObject("CONSTRAINT", Name(table.schema, name))


def _listed(table: DescribedTable) -> list[DescribedConstraint]:
    """Return the constraints beside the key; one that excludes rows by operators has no form in the farm."""
    is_key = bool(_key(table))
    held = (c for c in table.held.values() if c.type in "ucf" or (c.is_primary_key and not is_key))
    return sorted(held, key=lambda constraint: constraint.oid)


def _constraints(table: DescribedTable) -> tuple[TableConstraint, ...]:
    return tuple(_constraint(table, found) for found in _listed(table))


def _constraint(table: DescribedTable, found: DescribedConstraint) -> TableConstraint:
    columns = _names(table, found.columns)
    if found.type == "c":
        return Check(columns, found.check)
    if found.to is None:
        return Unique(columns)
    if found.to.oid == table.oid:
        return Reference(columns, table.qualified, _names(table, found.keys))
    return Reference(columns, found.to.qualified, tuple(found.key_names[str(number)] for number in found.keys))


def _compared(table: DescribedTable, other: DescribedTable) -> list[str]:
    """Return the constraints of a table in a form that renamed columns and tables do not change.

    A reader that follows renames has them under the new names. It does not know of renamed generated columns.
    """
    followed = table.stored.keys() & other.stored.keys()
    names = {column.number: column.name for column in table.columns if column.number not in followed}

    def form(found: DescribedConstraint) -> str:
        columns = [names.get(number, number) for number in found.columns]
        if found.type == "c":
            return repr((columns, found.check))
        return repr((columns, found.to and found.to.oid, found.keys))

    return sorted(map(form, _listed(table)))
