"""What statements say that they did adds up to what there is."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.fault.processes import rounds
from tests.schema_changes import SchemaChanges, refuse_differences
from wlc.dialect.duckdb.schema import schema_statements
from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.farm.model import (
    AlteredObject,
    Check,
    Column,
    CreatedObject,
    DbObject,
    Ddl,
    DdlEffect,
    DroppedObject,
    Layout,
    Name,
    Reference,
    RenamedObject,
    Unique,
)
from wlc.farm.schema_fold import FoldedIndex, FoldedTable, SchemaFold, folded

if TYPE_CHECKING:
    from collections.abc import Iterator

P, Q, R = Name("s", "p"), Name("s", "q"), Name("t", "r")
P_TABLE, Q_TABLE = DbObject("TABLE", P), DbObject("TABLE", Q)
BY_ID, CHECKED = DbObject("INDEX", Name("s", "by_id")), DbObject("CONSTRAINT", Name("s", "checked"))
SCHEMA = DbObject("SCHEMA", Name("s", "s"))
TO_P = Reference(("pid",), P, ("id",))


def did(*effects: DdlEffect, about: Name = P, layout: Layout | None = None) -> Ddl:
    return Ddl("ALTER TABLE", about, "…", layout=layout, does=effects)


def begun() -> SchemaFold:
    """Two tables of a PostgreSQL master, the second one with a foreign key to the first one."""
    return folded(
        [
            did(CreatedObject(SCHEMA)),
            did(
                CreatedObject(P_TABLE, columns=((None, "id"), (None, "n")), key=("id",), constraints=(Unique(("n",)),))
            ),
            did(CreatedObject(Q_TABLE, columns=((None, "pid"),), constraints=(TO_P,), parents=(P,))),
            did(CreatedObject(BY_ID, of=P, unique=("id", None)), CreatedObject(CHECKED, of=P)),
        ]
    )


def test_a_table_takes_what_belongs_to_it_along() -> None:
    fold = begun()
    fold.apply(did(RenamedObject(P_TABLE, R)))
    assert fold.tables[R] == FoldedTable(R, ("id", "n"), ("id",), (Unique(("n",)),))
    assert fold.tables[Q].constraints == (replace(TO_P, to=R),)
    assert fold.tables[Q].parents == (R,)
    assert fold.indexes == {Name("t", "by_id"): FoldedIndex(R, ("id", None))}
    assert fold.others == {(SCHEMA, None), (replace(CHECKED, name=Name("t", "checked")), R)}
    assert list(fold.references_to(R)) == [Q]
    fold.apply(did(DroppedObject(DbObject("TABLE", R))))
    assert (set(fold.tables), fold.indexes) == ({Q}, {})
    assert fold.others == {(SCHEMA, None)}


def test_a_domain_takes_its_constraints_along() -> None:
    domain, other = DbObject("DOMAIN", Name("s", "d")), Name("t", "e")
    check = DbObject("DOMAIN CONSTRAINT", Name("s", "c"))
    fold = folded([did(CreatedObject(domain), CreatedObject(check, of=domain.name))])
    fold.apply(did(RenamedObject(domain, other)))
    moved, check = replace(domain, name=other), replace(check, name=Name("t", "c"))
    assert fold.others == {(moved, None), (check, other)}
    fold.apply(did(DroppedObject(DbObject("FUNCTION", other, ()))))
    assert fold.others == {(moved, None), (check, other)}
    fold.apply(did(DroppedObject(moved)))
    assert fold.others == set()


def test_a_routine_is_told_apart_by_the_names_that_its_arguments_have_now() -> None:
    enum, routine = DbObject("TYPE", Name("s", "e")), Name("s", "f")
    arguments = ("s.e[]", "s.p", "integer", "timestamp with time zone", "s.p_other")
    fold = folded([did(CreatedObject(P_TABLE), CreatedObject(enum))])
    fold.apply(did(CreatedObject(DbObject("FUNCTION", routine, arguments))))
    fold.apply(did(RenamedObject(enum, Name("s", "My e")), RenamedObject(P_TABLE, Name("t", "p"))))
    fold.apply(did(RenamedObject(SCHEMA, Name("S", "S"))))
    (found,) = (found for found, _ in fold.others if found.kind == "FUNCTION")
    assert found.name == Name("S", "f")
    assert found.arguments == ('"S"."My e"[]', "t.p", *arguments[2:4], '"S".p_other')


def test_a_schema_takes_its_objects_along() -> None:
    fold = begun()
    fold.apply(did(RenamedObject(SCHEMA, Name("z", "z"))))
    there = Name("z", "p")
    assert set(fold.tables) == {there, Name("z", "q")}
    assert fold.tables[Name("z", "q")].constraints == (replace(TO_P, to=there),)
    assert fold.indexes == {Name("z", "by_id"): FoldedIndex(there, ("id", None))}
    names = {(DbObject("SCHEMA", Name("z", "z")), None), (DbObject("CONSTRAINT", Name("z", "checked")), there)}
    assert fold.others == names


def test_columns_have_their_new_names_everywhere() -> None:
    fold = begun()
    fold.apply(did(AlteredObject(P_TABLE, columns=(("id", "i"), ("n", "n"), (None, "m")))))
    assert fold.tables[P] == FoldedTable(P, ("i", "n", "m"), ("i",), (Unique(("n",)),))
    assert fold.tables[Q].constraints == (replace(TO_P, keys=("i",)),)
    assert fold.indexes[BY_ID.name].unique == ("i", None)
    fold.apply(did(AlteredObject(P_TABLE, columns=(("n", None),), key=(), constraints=(Check(("m",), "m > 0"),))))
    assert fold.tables[P] == FoldedTable(P, ("i", "m"), (), (Check(("m",), "m > 0"),))


def test_other_objects_come_and_go() -> None:
    fold = begun()
    view = DbObject("VIEW", Name("s", "v"))
    fold.apply(did(CreatedObject(view), RenamedObject(view, R), RenamedObject(BY_ID, Q), AlteredObject(view)))
    assert (replace(view, name=R), None) in fold.others
    assert fold.indexes == {Q: FoldedIndex(P, ("id", None))}
    fold.apply(did(DroppedObject(replace(view, name=R)), DroppedObject(CHECKED, of=P), DroppedObject(SCHEMA)))
    fold.apply(did(DroppedObject(DbObject("INDEX", Q), of=P)))
    assert not fold.others
    assert not fold.indexes


LAYOUT = Layout((Column("id", "INTEGER"), Column("n", "INTEGER")), ("id",))


@pytest.mark.parametrize(
    "ddl",
    [
        did(AlteredObject(DbObject("TABLE", R))),
        did(RenamedObject(DbObject("TABLE", R), P)),
        did(AlteredObject(P_TABLE, columns=(("x", None),))),
        did(AlteredObject(P_TABLE, columns=((None, "n"),))),
        did(AlteredObject(P_TABLE, columns=(("id", "n"),))),
        did(AlteredObject(P_TABLE, columns=((None, "m"),)), layout=LAYOUT),
        did(AlteredObject(P_TABLE, key=("n",)), layout=LAYOUT),
    ],
)
def test_a_contradiction_is_corrupt(ddl: Ddl) -> None:
    with pytest.raises(CorruptError, match="cannot have done what it says"):
        begun().apply(ddl)


def test_a_layout_is_of_the_table_that_a_statement_is_about() -> None:
    fold = begun()
    fold.apply(did(AlteredObject(P_TABLE), layout=LAYOUT))
    # An index may have the name of a table.
    fold.apply(did(CreatedObject(DbObject("INDEX", Q), of=P), about=Q, layout=LAYOUT))
    assert (fold.tables[P].layout, fold.tables[Q].layout) == (LAYOUT, None)


# Random histories of a DuckDB master ---------------------------------------------------------------------------------

_TABLES = ("t", "u", '"T x"', "s.t", "z.T")
_COLUMNS = ("a", "b", '"C d"', "E")
_CONSTRAINTS = (
    "",
    "",
    "UNIQUE",
    "CHECK ({column} > 0)",
    "PRIMARY KEY",
    "NOT NULL",
    "DEFAULT 5",
    "REFERENCES {table}",
    "GENERATED ALWAYS AS (a + 1)",
)
_TYPES = ("INTEGER", "BIGINT", "STRUCT(a INTEGER)")
_OTHERS = (
    "ALTER TABLE {table} RENAME TO {name}",
    "ALTER TABLE {table} RENAME TO {name}",
    "ALTER TABLE {table} RENAME {column} TO {other}",
    "ALTER TABLE {table} RENAME {column} TO {other}",
    "ALTER TABLE {table} ADD COLUMN {column} INTEGER {constraint}",
    "ALTER TABLE {table} DROP COLUMN {column}",
    "ALTER TABLE {table} ALTER {column} TYPE {type}",
    "ALTER TABLE {table} ALTER {column} SET DEFAULT 3",
    "ALTER TABLE {table} ALTER {column} SET NOT NULL",
    "ALTER TABLE {table} ADD PRIMARY KEY ({column})",
    "ALTER TABLE {table} ADD UNIQUE ({column}, {other})",
    "ALTER TABLE {table} ADD COLUMN {column}.x INTEGER",
    "COMMENT ON TABLE {table} IS 'x'",
    "COMMENT ON COLUMN {table}.{column} IS 'x'",
    "CREATE INDEX i{number} ON {table} ({column})",
    "CREATE UNIQUE INDEX i{number} ON {table} ({column}, ({other} + 1))",
    "DROP INDEX i{number}",
    "DROP INDEX s.i{number}",
    "DROP TABLE {table}",
    "DROP SCHEMA z CASCADE",
    "CREATE SCHEMA z",
    "CREATE SCHEMA s",
    "CREATE OR REPLACE VIEW {view} AS SELECT 1 AS a",
    "ALTER VIEW {view} RENAME TO {name}",
    "DROP VIEW {view}",
    "CREATE OR REPLACE MACRO m{number}(x) AS x",
    "CREATE SEQUENCE q{number}",
    "DROP SEQUENCE q{number} CASCADE",
    "CREATE TYPE e{number} AS ENUM ('a')",
    "DROP TYPE e{number}",
    "CREATE TABLE {table} AS SELECT 1 AS a, 2 AS b",
)


def statement(rng: random.Random) -> str:
    column, other = rng.sample(_COLUMNS, 2)
    table, name = rng.choice(_TABLES), rng.choice(("t", "U", "w"))
    found = {"table": table, "name": name, "column": column, "other": other, "number": rng.randint(1, 3)}
    constraint = rng.choice(_CONSTRAINTS).format(**found)
    if rng.random() < 0.3:
        listed = ", ".join(
            f"{each} INTEGER {rng.choice(_CONSTRAINTS).format(**{**found, 'column': each})}"
            for each in ("a", *rng.sample(_COLUMNS[1:], 2))
        )
        return f"CREATE {rng.choice(('', 'OR REPLACE '))}TABLE {table} ({listed}{rng.choice(('', ', CHECK (A < 9)'))})"
    more = {"constraint": constraint, "type": rng.choice(_TYPES), "view": rng.choice(("v", "t", "s.v"))}
    return rng.choice(_OTHERS).format(**found, **more)


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(rounds(2)))
def test_a_random_history_says_what_the_catalog_has(connection: duckdb.DuckDBPyConnection, seed: int) -> None:
    rng = random.Random(seed)
    changes, fold, done = SchemaChanges(connection), SchemaFold(), 0
    while done < 40:
        text = statement(rng)
        try:
            found = changes.run(text)
        except duckdb.Error:
            continue
        for ddl in found:
            assert ddl.does, text
            fold.apply(ddl)
        if found:
            done += 1
            refuse_differences(fold, connection, "memory")
    # A snapshot says the same. After a rename, DuckDB looks for the former name in a foreign key to the same table.
    with suppress(UnsupportedError):
        before, after = schema_statements(connection, "memory")
        refuse_differences(folded([*before, *after]), connection, "memory")
