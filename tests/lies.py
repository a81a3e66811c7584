"""Schema statements that say something else than they do, made of honest ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.model import (
    AlteredObject,
    Check,
    Column,
    CreatedObject,
    DbObject,
    Ddl,
    DroppedObject,
    Layout,
    Name,
    Reference,
    RenamedObject,
    Unique,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.model import DdlEffect, TableConstraint
    from wlc.farm.schema_fold import FoldedTable

# Of these a catalog may lose more than a statement says: they go with an object that is dropped.
MAY_GO = frozenset({"VIEW", "SEQUENCE", "TYPE", "SCHEMA"})


def lies(ddl: Ddl, other: FoldedTable) -> Iterator[tuple[str, Ddl]]:
    """Yield what the statement could say instead, each with what is wrong.

    Args:
        ddl: An honest statement.
        other: A table with an index, beside the one that the statement is about; it has no column `more`.
    """
    for number, effect in enumerate(ddl.does):
        for what, said in _instead(effect, ddl.layout):
            yield what, replace(ddl, does=(*ddl.does[:number], *said, *ddl.does[number + 1 :]))
        if isinstance(effect, AlteredObject) and effect.object.kind == "TABLE" and " TYPE " in ddl.statement:
            yield "not redefined", replace(ddl, does=(replace(effect, columns=()),))
    for what, more in _more(other):
        yield f"extra {what}", replace(ddl, does=(*ddl.does, more))
    for what, layout in _layouts(ddl.layout):
        yield what, replace(ddl, layout=layout)


def _instead(effect: DdlEffect, layout: Layout | None) -> Iterator[tuple[str, tuple[DdlEffect, ...]]]:
    found = effect.object
    if isinstance(effect, DroppedObject):
        yield "rename, not drop", (RenamedObject(found, Name(found.name.schema, "another"), effect.of),)
        if found.kind in MAY_GO:
            return
    yield "missing", ()
    if effect.of is None:
        kind = "VIEW" if found.kind == "TABLE" else "TABLE"
        yield "other kind", (replace(effect, object=DbObject(kind, found.name)),)
    yield "other name", (replace(effect, object=replace(found, name=Name(found.name.schema, "another"))),)
    match effect:
        case CreatedObject():
            yield from _created_instead(effect, layout)
        case RenamedObject(_, to, of):
            yield "drop, not rename", (DroppedObject(found, of),)
            yield "other target", (RenamedObject(found, Name(to.schema, "another"), of),)
            if found.kind == "TABLE":
                yield "new, not renamed", (DroppedObject(found), CreatedObject(DbObject("TABLE", to)))
        case AlteredObject() if found.kind == "TABLE":
            yield from _altered_instead(effect)
        case _:
            pass


def _created_instead(effect: CreatedObject, layout: Layout | None) -> Iterator[tuple[str, tuple[DdlEffect, ...]]]:
    if effect.of is not None:
        yield "other table", (replace(effect, of=Name(effect.of.schema, "other")),)
    if effect.object.kind == "INDEX":
        yield "other uniqueness", (replace(effect, unique=() if effect.unique else ("id",)),)
    if effect.object.kind != "TABLE":
        return
    yield "replaces", (replace(effect, replaces=not effect.replaces),)
    for what, constraints in _constraints(effect.constraints):
        yield what, (replace(effect, constraints=constraints),)
    if layout is None:
        yield "other columns", (replace(effect, columns=effect.columns[1:]),)
        yield "other key", (replace(effect, key=() if effect.key else (str(effect.columns[0][1]),)),)
    if effect.parents:
        yield "other parents", (replace(effect, parents=()),)


def _altered_instead(effect: AlteredObject) -> Iterator[tuple[str, tuple[DdlEffect, ...]]]:
    for number, (old, new) in enumerate(effect.columns):
        rest = (effect.columns[:number], effect.columns[number + 1 :])
        if old != new:
            yield "missing column", (replace(effect, columns=(*rest[0], *rest[1])),)
        yield "other column", (replace(effect, columns=(*rest[0], (old, f"{new or old}2"), *rest[1])),)
        if old is not None and old != new:
            yield "kept column", (replace(effect, columns=(*rest[0], (old, old), *rest[1])),)
    if effect.key is not None:
        yield "other key", (replace(effect, key=()),)
    yield "more key", (replace(effect, key=(*(effect.key or ()), "more")),)
    for what, constraints in _constraints(effect.constraints or ()):
        yield what, (replace(effect, constraints=constraints),)
    if effect.parents:
        yield "other parents", (replace(effect, parents=()),)
    yield "more parents", (replace(effect, parents=(*(effect.parents or ()), effect.object.name)),)


def _constraints(honest: tuple[TableConstraint, ...]) -> Iterator[tuple[str, tuple[TableConstraint, ...]]]:
    for number, constraint in enumerate(honest):
        rest = (*honest[:number], *honest[number + 1 :])
        yield "missing constraint", rest
        yield "other constraint", (*rest, replace(constraint, columns=("more",)))
        if isinstance(constraint, Reference):
            yield "other reference", (*rest, replace(constraint, to=Name("main", "elsewhere")))
            yield "other keys", (*rest, replace(constraint, keys=("more",)))
    for more in (Unique(("more",)), Check(("more",), "more"), Reference(("more",), Name("main", "other"), ("id",))):
        yield "more constraints", (*honest, more)


def _more(other: FoldedTable) -> Iterator[tuple[str, DdlEffect]]:
    table, name, last = DbObject("TABLE", other.name), other.name, other.columns[-1]
    mood, ghost = DbObject("TYPE", Name(name.schema, "mood")), Name(name.schema, "ghost")
    yield "dropped TABLE", DroppedObject(table)
    yield "renamed TABLE", RenamedObject(table, Name(name.schema, "renamed"))
    steps = tuple((None, column) for column in other.columns)
    yield "replaced TABLE", CreatedObject(table, replaces=True, columns=steps, key=other.key)
    yield "created TABLE", CreatedObject(DbObject("TABLE", ghost))
    yield "new column", AlteredObject(table, columns=((None, "more"),))
    yield "dropped column", AlteredObject(table, columns=((last, None),))
    yield "renamed column", AlteredObject(table, columns=((last, "more"),))
    yield "key", AlteredObject(table, key=(last,))
    yield "constraints", AlteredObject(table, constraints=(*other.constraints, Unique((last,))))
    yield "parents", AlteredObject(table, parents=(name,))
    yield "new value", AlteredObject(mood, values=((None, "angry"),))
    yield "dropped value", AlteredObject(mood, values=(("busy", None),))
    yield "created VIEW", CreatedObject(DbObject("VIEW", ghost))
    yield "created INDEX", CreatedObject(DbObject("INDEX", ghost), of=name)
    yield "dropped INDEX", DroppedObject(DbObject("INDEX", Name(name.schema, "by_value")), of=name)


def _layouts(layout: Layout | None) -> Iterator[tuple[str, Layout]]:
    if layout is None:
        return
    first, *rest = layout.columns
    key = tuple(column for column in layout.primary_key if column != first.name)
    yield "layout lacks a column", Layout(tuple(rest), key)
    yield "layout has one more", replace(layout, columns=(*layout.columns, Column("more", "INTEGER")))
    yield "layout has another type", replace(layout, columns=(replace(first, type="INTERVAL"), *rest))
    yield "layout has another key", replace(layout, primary_key=() if layout.primary_key else (first.name,))
