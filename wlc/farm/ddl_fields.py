"""Effects of a schema statement, as values and as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from wlc.farm.json_fields import (
    FieldError,
    Filled,
    JsonForm,
    JsonKey,
    Must,
    Omitted,
    as_list,
    as_object,
    as_text,
    short,
)
from wlc.farm.json_records import form_of, record_of
from wlc.farm.names import Name, TableName, as_object_name, name_json

_KIND = re.compile(r"[A-Z]+(?: [A-Z]+)*")
# Objects that belong to a table or domain name it.
_PARTS = frozenset({"INDEX", "TRIGGER", "POLICY", "CONSTRAINT", "DOMAIN CONSTRAINT"})
_OF_TABLE = frozenset({"columns", "key", "constraints", "parents"})
# Additional keys of effects on objects of one kind.
_OPTIONAL = {
    ("created", "TABLE"): _OF_TABLE,
    ("created", "INDEX"): frozenset({"unique"}),
    ("altered", "TABLE"): _OF_TABLE,
    ("altered", "VIEW"): frozenset({"columns"}),
    ("altered", "MATERIALIZED VIEW"): frozenset({"columns"}),
    ("altered", "TYPE"): frozenset({"columns", "values"}),
}
_OF_SOME = frozenset().union(*_OPTIONAL.values())


@dataclass(frozen=True, order=True, slots=True)
class DbObject:
    """An object of a database: its kind as it follows CREATE, such as `TABLE`, and its name.

    The name of a schema is both parts of its own `name`. `arguments` are a routine's argument types, which distinguish
    overloads; None for every other kind.
    """

    kind: str
    name: Name
    arguments: tuple[str, ...] | None = None


def _as_db_object(value: object) -> DbObject:
    listed = as_list(value)
    if len(listed) not in (3, 4) or not _KIND.fullmatch(as_text(listed[0])):
        raise FieldError(f"{short(value)} is not an object of a database")
    arguments = form_of(tuple[str, ...]).read(listed[3]) if len(listed) > 3 else None
    return DbObject(listed[0], as_object_name(listed[1:3]), arguments)


def _db_object_json(found: DbObject) -> list[Any]:
    named = [found.kind, *name_json(found.name)]
    return named if found.arguments is None else [*named, found.arguments]


WrittenObject = Annotated[DbObject, JsonForm(_as_db_object, _db_object_json)]


@dataclass(frozen=True, slots=True)
class Unique:
    """A UNIQUE constraint."""

    columns: Annotated[Filled[str], JsonKey("unique")]


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint: the columns that it names, and its expression in the master's SQL."""

    columns: Annotated[tuple[str, ...], JsonKey("check")]
    sql: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: `columns` refer to the columns `keys` of the table `to`."""

    columns: Annotated[Filled[str], JsonKey("foreign")]
    to: TableName
    keys: tuple[str, ...]

    @property
    def problem(self) -> str | None:
        """Why this is not a valid foreign key, None if it is valid."""
        return None if len(self.columns) == len(self.keys) else "it does not refer to as many columns as it has"


TableConstraint = Unique | Check | Reference
# Names of a column before and after a statement: None where there is none; the same name if it was redefined.
ColumnStep = tuple[str | None, str | None]
Steps = tuple[Annotated[ColumnStep, Must(lambda step: "it names no column" if step == (None, None) else None)], ...]


@dataclass(frozen=True, slots=True)
class CreatedObject:
    """A statement created an object.

    Attributes:
        replaces: It replaced an object of the same kind and name.
        of: The table or domain that it belongs to.
        unique: Of a unique index its columns, None for an expression.
        columns: Columns of a table if the statement's layout is another table's.
        key: Primary key of such a table.
        constraints: A table's constraints without the primary key and NOT NULL.
        parents: Tables that a table is a partition of or inherits from.
    """

    object: Annotated[WrittenObject, JsonKey("created")]
    replaces: Omitted[bool] = False
    of: Omitted[TableName | None] = None
    unique: Omitted[Filled[str | None]] = ()
    columns: Omitted[Steps] = ()
    constraints: Omitted[tuple[TableConstraint, ...]] = ()
    parents: Omitted[tuple[TableName, ...]] = ()
    key: Omitted[tuple[str, ...] | None] = None


@dataclass(frozen=True, slots=True)
class DroppedObject:
    """A statement dropped an object with all dependent parts; `of` is the table that the object belonged to."""

    object: Annotated[WrittenObject, JsonKey("dropped")]
    of: Omitted[TableName | None] = None


@dataclass(frozen=True, slots=True)
class RenamedObject:
    """A statement gave an object, with all its parts, another schema or name."""

    object: Annotated[WrittenObject, JsonKey("renamed")]
    to: TableName
    of: Omitted[TableName | None] = None


@dataclass(frozen=True, slots=True)
class AlteredObject:
    """A statement changed an object in place; without attributes, the change affects no rows.

    Attributes:
        of: The table that it belongs to.
        columns: Columns of a table that were added at the end, dropped, renamed or redefined; for views and composite
            types, the renamed columns.
        key: The primary key afterwards, None if at most names of its columns changed.
        constraints: All constraints afterwards, None if at most names in them changed.
        parents: All parents afterwards, None if they are the same.
        values: Values of an enum that were added, dropped or renamed.
    """

    object: Annotated[WrittenObject, JsonKey("altered")]
    of: Omitted[TableName | None] = None
    columns: Omitted[Steps] = ()
    key: Omitted[tuple[str, ...] | None] = None
    constraints: Omitted[tuple[TableConstraint, ...] | None] = None
    parents: Omitted[tuple[TableName, ...] | None] = None
    values: Omitted[Steps] = ()


DdlEffect = CreatedObject | DroppedObject | RenamedObject | AlteredObject


@cache
def _any_effect() -> JsonForm:
    return form_of(DdlEffect)


def as_effect(value: object) -> DdlEffect:
    """Return one thing that a statement did."""
    content = as_object(value)
    effect: DdlEffect = _any_effect().read(content)
    verb, kind = record_of(type(effect)).keys[0], effect.object.kind
    if unfit := (content.keys() & _OF_SOME) - _OPTIONAL.get((verb, kind), frozenset()):
        raise FieldError(f"key {short(min(unfit))} is unknown for {kind}")
    if (kind in _PARTS) != (effect.of is not None):
        raise FieldError(f"{short(value)} says {'nothing' if effect.of is None else 'something'} of a table around it")
    return effect


WrittenEffect = Annotated[DdlEffect, JsonForm(as_effect, lambda effect: record_of(type(effect)).write(effect))]
