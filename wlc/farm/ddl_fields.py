"""Schema statements and what they did as JSON, and back; raises FieldError as `wlc.farm.json_fields` does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.json_fields import FieldError, short
from wlc.farm.model import (
    AlteredObject,
    Check,
    ColumnStep,
    CreatedObject,
    DbObject,
    Ddl,
    DdlEffect,
    DroppedObject,
    Name,
    Reference,
    RenamedObject,
    TableConstraint,
    Unique,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_KIND = re.compile(r"[A-Z]+(?: [A-Z]+)*")
# Objects that belong to a table or domain say to which.
_PARTS = frozenset({"INDEX", "TRIGGER", "POLICY", "CONSTRAINT", "DOMAIN CONSTRAINT"})
_OF_TABLE = "columns key constraints parents"
_OPTIONAL = {
    ("created", "TABLE"): f"replaces {_OF_TABLE}",
    ("created", "INDEX"): "replaces unique",
    ("created", ""): "replaces",
    ("altered", "TABLE"): _OF_TABLE,
    ("altered", "VIEW"): "columns",
    ("altered", "MATERIALIZED VIEW"): "columns",
    ("altered", "TYPE"): "columns values",
}


# Statements ----------------------------------------------------------------------------------------------------------


def as_ddl(value: object) -> Ddl:
    """Return a schema statement."""
    content = fields.as_object(value)
    fields.known(content, "kind object statement search_path dialect layout does", "original digest settings info")
    path = tuple(fields.as_text(schema) for schema in fields.as_list(content["search_path"]))
    if not path:
        raise FieldError("a search path names no schema")
    settings = fields.as_object(content.get("settings", {}))
    return Ddl(
        kind=fields.as_text(content["kind"]),
        object=fields.as_object_name(content["object"]),
        statement=fields.as_text(content["statement"]),
        search_path=path,
        dialect=fields.as_text(content["dialect"]),
        layout=None if content["layout"] is None else fields.as_layout(content["layout"]),
        original=None if content.get("original") is None else fields.as_text(content["original"]),
        digest=None if content.get("digest") is None else fields.as_digest(content["digest"]),
        settings=tuple(sorted((name, fields.as_text(value)) for name, value in settings.items())),
        does=tuple(map(_as_effect, fields.as_list(content["does"]))),
    )


def ddl_json(ddl: Ddl) -> dict[str, Any]:
    """Write a schema statement."""
    content: dict[str, Any] = {
        "kind": ddl.kind,
        "object": fields.name_json(ddl.object),
        "statement": ddl.statement,
        "search_path": list(ddl.search_path),
        "dialect": ddl.dialect,
        "layout": fields.layout_json(ddl.layout) if ddl.layout else None,
    }
    if ddl.original is not None:
        content["original"] = ddl.original
    if ddl.digest is not None:
        content["digest"] = fields.digest_json(ddl.digest)
    if ddl.settings:
        content["settings"] = dict(ddl.settings)
    content["does"] = [_effect_json(effect) for effect in ddl.does]
    return content


# Effects -------------------------------------------------------------------------------------------------------------


def _as_effect(value: object) -> DdlEffect:
    """Return one thing that a statement did."""
    content = fields.as_object(value)
    verb = next((verb for verb in ("created", "dropped", "renamed", "altered") if verb in content), None)
    if verb is None:
        raise FieldError(f"{short(value)} says of no object what happened to it")
    found = _as_object(content[verb])
    optional = _OPTIONAL.get((verb, found.kind), _OPTIONAL.get((verb, ""), ""))
    if found.kind in _PARTS:
        fields.known(content, f"{verb} of{' to' if verb == 'renamed' else ''}", optional)
        of: Name | None = fields.as_name(content["of"])
    else:
        fields.known(content, f"{verb} to" if verb == "renamed" else verb, optional)
        of = None
    match verb:
        case "created":
            return _as_created(content, found, of)
        case "dropped":
            return DroppedObject(found, of)
        case "renamed":
            return RenamedObject(found, fields.as_name(content["to"]), of)
        case _:
            return _as_altered(content, found, of)


def _as_created(content: dict[str, Any], found: DbObject, of: Name | None) -> CreatedObject:
    key = content.get("key")
    return CreatedObject(
        found,
        replaces=fields.as_flag(content.get("replaces", False)),
        of=of,
        unique=tuple(_or_none(column) for column in _filled(content["unique"])) if "unique" in content else (),
        columns=_as_steps(content.get("columns", [])),
        key=None if key is None else _as_texts(key),
        constraints=_as_constraints(content.get("constraints", [])),
        parents=_as_names(content.get("parents", [])),
    )


def _as_altered(content: dict[str, Any], found: DbObject, of: Name | None) -> AlteredObject:
    return AlteredObject(
        found,
        of=of,
        columns=_as_steps(content.get("columns", [])),
        key=_as_texts(content["key"]) if "key" in content else None,
        constraints=_as_constraints(content["constraints"]) if "constraints" in content else None,
        parents=_as_names(content["parents"]) if "parents" in content else None,
        values=_as_steps(content.get("values", [])),
    )


def _effect_json(effect: DdlEffect) -> dict[str, Any]:
    """Write one thing that a statement did."""
    of = {} if effect.of is None else {"of": fields.name_json(effect.of)}
    found = _object_json(effect.object)
    match effect:
        case CreatedObject():
            return {"created": found, **({"replaces": True} if effect.replaces else {}), **of, **_created_json(effect)}
        case DroppedObject():
            return {"dropped": found, **of}
        case RenamedObject():
            return {"renamed": found, "to": fields.name_json(effect.to), **of}
        case AlteredObject():
            return {"altered": found, **of, **_altered_json(effect)}


def _created_json(effect: CreatedObject) -> dict[str, Any]:
    content = {
        "unique": list(effect.unique),
        "columns": _steps_json(effect.columns),
        "constraints": [_constraint_json(each) for each in effect.constraints],
        "parents": [fields.name_json(parent) for parent in effect.parents],
    }
    key = {} if effect.key is None else {"key": list(effect.key)}
    return {name: value for name, value in content.items() if value} | key


def _altered_json(effect: AlteredObject) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if effect.columns:
        content["columns"] = _steps_json(effect.columns)
    if effect.key is not None:
        content["key"] = list(effect.key)
    if effect.constraints is not None:
        content["constraints"] = [_constraint_json(each) for each in effect.constraints]
    if effect.parents is not None:
        content["parents"] = [fields.name_json(parent) for parent in effect.parents]
    if effect.values:
        content["values"] = _steps_json(effect.values)
    return content


# Their parts ---------------------------------------------------------------------------------------------------------


def _as_object(value: object) -> DbObject:
    listed = fields.as_list(value)
    if len(listed) not in (3, 4) or not _KIND.fullmatch(fields.as_text(listed[0])):
        raise FieldError(f"{short(value)} is not an object of a database")
    return DbObject(listed[0], fields.as_object_name(listed[1:3]), _as_texts(listed[3]) if len(listed) > 3 else None)


def _object_json(found: DbObject) -> list[Any]:
    named = [found.kind, *fields.name_json(found.name)]
    return named if found.arguments is None else [*named, list(found.arguments)]


def _as_constraints(value: object) -> tuple[TableConstraint, ...]:
    return tuple(map(_as_constraint, fields.as_list(value)))


def _as_constraint(value: object) -> TableConstraint:
    content = fields.as_object(value)
    if "unique" in content:
        fields.known(content, "unique")
        return Unique(_as_texts(_filled(content["unique"])))
    if "check" in content:
        fields.known(content, "check sql")
        return Check(_as_texts(content["check"]), fields.as_text(content["sql"]))
    fields.known(content, "foreign to keys")
    columns, keys = _as_texts(_filled(content["foreign"])), _as_texts(content["keys"])
    if len(columns) != len(keys):
        raise FieldError(f"{short(value)} is not a foreign key")
    return Reference(columns, fields.as_name(content["to"]), keys)


def _constraint_json(constraint: TableConstraint) -> dict[str, Any]:
    match constraint:
        case Unique(columns):
            return {"unique": list(columns)}
        case Check(columns, sql):
            return {"check": list(columns), "sql": sql}
        case Reference(columns, to, keys):
            return {"foreign": list(columns), "to": fields.name_json(to), "keys": list(keys)}


def _as_steps(value: object) -> tuple[ColumnStep, ...]:
    return tuple(map(_as_step, fields.as_list(value)))


def _as_step(value: object) -> ColumnStep:
    listed = fields.as_list(value)
    if len(listed) != 2 or listed == [None, None]:
        raise FieldError(f"{short(value)} is not a name before and after")
    return _or_none(listed[0]), _or_none(listed[1])


def _steps_json(steps: Iterable[ColumnStep]) -> list[list[str | None]]:
    return [list(step) for step in steps]


def _or_none(value: object) -> str | None:
    return None if value is None else fields.as_text(value)


def _as_texts(value: object) -> tuple[str, ...]:
    return tuple(map(fields.as_text, fields.as_list(value)))


def _as_names(value: object) -> tuple[Name, ...]:
    return tuple(map(fields.as_name, fields.as_list(value)))


def _filled(value: object) -> list[Any]:
    listed = fields.as_list(value)
    if not listed:
        raise FieldError("a constraint or index has no column")
    return listed
