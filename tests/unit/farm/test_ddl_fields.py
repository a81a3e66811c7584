"""What a schema statement did is read as it was written, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from wlc.farm.json_fields import FieldError
from wlc.farm.json_records import record_of
from wlc.farm.model import (
    AlteredObject,
    Check,
    CreatedObject,
    DbObject,
    Ddl,
    DdlEffect,
    DroppedObject,
    Name,
    Reference,
    RenamedObject,
    Unique,
)

DDL = Ddl("ALTER TABLE", Name("main", "t"), "ALTER TABLE …")

T, P, Q = Name("main", "t"), Name("s", "p"), Name("main", "i")
TABLE, INDEX, CHECK = DbObject("TABLE", T), DbObject("INDEX", Q), DbObject("CONSTRAINT", Name("main", "c"))
ROUTINE, TYPE = DbObject("FUNCTION", Q, ("integer", "text")), DbObject("TYPE", Q)
SEQUENCE, VIEW = DbObject("SEQUENCE", Q), DbObject("MATERIALIZED VIEW", Q)
CONSTRAINTS = (Unique(("a", "b")), Check((), "(1 > 0)"), Check(("a",), "(a > 0)"), Reference(("b",), P, ("k",)))
STEPS = ((None, "a"), ("b", None), ("c", "d"), ("e", "e"))
EFFECTS: tuple[DdlEffect, ...] = (
    CreatedObject(TABLE),
    CreatedObject(TABLE, replaces=True, columns=STEPS[:1], key=("a",), constraints=CONSTRAINTS, parents=(P, T)),
    CreatedObject(TABLE, key=()),
    CreatedObject(INDEX, of=T),
    CreatedObject(INDEX, of=T, unique=("a", None)),
    CreatedObject(CHECK, of=T),
    CreatedObject(SEQUENCE),
    CreatedObject(ROUTINE, replaces=True),
    CreatedObject(DbObject("FUNCTION", Q, ())),
    DroppedObject(VIEW),
    DroppedObject(INDEX, of=T),
    DroppedObject(DbObject("SCHEMA", Name("s", "s"))),
    RenamedObject(TABLE, P),
    RenamedObject(ROUTINE, P),
    RenamedObject(CHECK, P, of=T),
    AlteredObject(TABLE),
    AlteredObject(TABLE, columns=STEPS, key=(), constraints=(), parents=()),
    AlteredObject(TABLE, key=("a",), constraints=CONSTRAINTS, parents=(P,)),
    AlteredObject(INDEX, of=T),
    AlteredObject(TYPE, columns=STEPS[2:3], values=STEPS[:3]),
    AlteredObject(VIEW, columns=STEPS[2:3]),
    DroppedObject(DbObject("DOMAIN CONSTRAINT", Name("main", "c")), of=Q),
)


@pytest.mark.parametrize("does", [(), EFFECTS], ids=["nothing", "all"])
def test_effects_are_read_as_they_were_written(does: tuple[DdlEffect, ...]) -> None:
    ddl = replace(DDL, does=does)
    assert record_of(Ddl).read(json.loads(json.dumps(record_of(Ddl).write(ddl)))) == ddl


def test_an_effect_is_written_as_the_format_says() -> None:
    effect = AlteredObject(
        DbObject("TABLE", Name("main", "c")), columns=(("email", "mail"),), constraints=(Unique(("mail",)),)
    )
    said = {"altered": ["TABLE", "main", "c"], "columns": [["email", "mail"]], "constraints": [{"unique": ["mail"]}]}
    assert record_of(Ddl).write(replace(DDL, does=(effect,)))["does"] == [said]


SAID = ["TABLE", "main", "t"]


@pytest.mark.parametrize(
    "effect",
    [
        {},
        {"moved": SAID},
        {"created": SAID, "dropped": SAID},
        {"created": ["TABLE", "main"]},
        {"created": ["table", "main", "t"]},
        {"created": ["FUNCTION", "main", "f", "INTEGER"]},
        {"created": SAID, "to": ["main", "u"]},
        {"created": SAID, "values": []},
        {"created": SAID, "key": None, "unique": ["a"]},
        {"created": ["VIEW", "main", "v"], "columns": []},
        {"created": ["INDEX", "main", "i"]},
        {"created": ["DOMAIN CONSTRAINT", "main", "c"]},
        {"altered": ["DOMAIN", "main", "d"], "columns": []},
        {"created": ["INDEX", "main", "i"], "of": ["main", "t"], "unique": []},
        {"dropped": SAID, "of": ["main", "t"]},
        {"dropped": SAID, "columns": []},
        {"renamed": SAID, "to": ["main", ""]},
        {"altered": SAID, "columns": [["a"]]},
        {"altered": SAID, "columns": [[None, None]]},
        {"altered": SAID, "constraints": None},
        {"altered": SAID, "constraints": [{}]},
        {"altered": SAID, "constraints": [{"unique": []}]},
        {"altered": SAID, "constraints": [{"unique": ["a"], "check": []}]},
        {"altered": SAID, "constraints": [{"foreign": ["a"], "to": ["main", "p"], "keys": []}]},
        {"altered": SAID, "values": [[None, "a"]]},
        {"altered": ["TYPE", "main", "e"], "values": [[None, None]]},
    ],
    ids=json.dumps,
)
def test_anything_else_is_refused(effect: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        record_of(Ddl).read({**record_of(Ddl).write(DDL), "does": [effect]})
