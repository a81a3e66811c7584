"""What is listed as left out of a PostgreSQL replica follows the names of the master."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Name, RenamedObject
from wlr.replay.ddl.left_out import THEN_RUN, follow, listed_object, to_retry, without_counterparts

if TYPE_CHECKING:
    from wlc.farm.model import ColumnStep, DdlEffect

LISTED = {
    "SELECT for joe on table s.t": 'run GRANT SELECT ON TABLE "s"."t" TO "joe"',
    'SELECT ("a b") for joe on table s.t': 'run GRANT SELECT ("a b"), UPDATE ("c") ON TABLE "s"."t" TO "joe"',
    "default of column c of table s.t": "PostgreSQL has no counterpart",
    "collation of column c of table s.t": f'no x{THEN_RUN}ALTER TABLE "s"."t" ALTER COLUMN "c" TYPE text COLLATE x.y',
    "constraint c of table s.t": f'no f(){THEN_RUN}ALTER TABLE "s"."t" ADD CONSTRAINT "c" CHECK (c > f(t."c", \'c\'))',
    "privileges and row security of table s.t": "came in",
    "EXECUTE for joe on function s.t(integer,text)": 'run GRANT EXECUTE ON FUNCTION "s"."t"(integer,text) TO "joe"',
    "function s.t(s.tt)": "it calls f()",
    "index i of table s.t": "no operator class",
    "access to view s.tt": 'once view s.tt is, run GRANT SELECT ON "s"."tt" TO "joe"',
    "default of domain s.d": "no f()",
    "constraint c of domain s.d": f'no f(){THEN_RUN}ALTER DOMAIN "s"."d" ADD CONSTRAINT "c" CHECK (f(VALUE))',
    "USAGE for joe on schema s.s": 'run GRANT USAGE ON SCHEMA "s" TO "joe"',
    "macro s.t": "PostgreSQL has no macros",
}
T, S, D = Name("s", "t"), Name("s", "s"), Name("s", "d")
TABLE, SCHEMA, DOMAIN = DbObject("TABLE", T), DbObject("SCHEMA", S), DbObject("DOMAIN", D)
VIEW, ROUTINE = DbObject("VIEW", Name("s", "tt")), DbObject("FUNCTION", T, ("integer", "text"))
C, OF_DOMAIN, INDEX = (
    DbObject(kind, Name("s", name)) for kind, name in (("CONSTRAINT", "c"), ("DOMAIN CONSTRAINT", "c"), ("INDEX", "i"))
)


def did(*does: DdlEffect, original: str | None = None) -> Ddl:
    """A statement of which nobody reads the text."""
    return Ddl("ALTER", T, "…", dialect="postgres" if original is None else "duckdb", original=original, does=does)


def followed(*does: DdlEffect) -> dict[str, str]:
    left_out = dict(LISTED)
    follow(left_out, did(*does))
    return left_out


def altered(*columns: ColumnStep, table: DbObject = TABLE) -> AlteredObject:
    return AlteredObject(table, columns=columns)


@pytest.mark.parametrize(
    ("effect", "moved", "old", "new", "old_sql", "new_sql"),
    [
        (RenamedObject(TABLE, Name("s", "u v")), 7, " s.t", " s.u v", '"s"."t" ', '"s"."u v" '),
        (RenamedObject(TABLE, Name("o", "t")), 7, " s.t", " o.t", '"s"."t" ', '"o"."t" '),
        (RenamedObject(VIEW, Name("s", "\\1")), 2, "s.tt", "s.\\1", '"s"."tt"', '"s"."\\1"'),
        (RenamedObject(ROUTINE, Name("o", "f")), 1, " s.t(integer", " o.f(integer", '"s"."t"(', '"o"."f"('),
        (RenamedObject(DOMAIN, Name("o", "e")), 2, " s.d", " o.e", '"s"."d"', '"o"."e"'),
        (RenamedObject(INDEX, Name("s", "j"), T), 1, "index i ", "index j ", "-", "-"),
        (RenamedObject(C, Name("s", "d"), T), 1, "c of table", "d of table", 'CONSTRAINT "c"', 'CONSTRAINT "d"'),
        (
            RenamedObject(OF_DOMAIN, Name("s", "e"), D),
            1,
            "constraint c of domain",
            "constraint e of domain",
            'CONSTRAINT "c"',
            'CONSTRAINT "e"',
        ),
    ],
    ids=str,
)
def test_a_renamed_object_is_listed_under_its_new_name(
    effect: RenamedObject, moved: int, old: str, new: str, old_sql: str, new_sql: str
) -> None:
    found = followed(effect)
    gone = [what for what in LISTED if what not in found]
    assert len(gone) == moved
    assert len(found) == len(LISTED)
    assert {what: found[what.replace(old, new)] for what in gone} == {
        what: LISTED[what].replace(old_sql, new_sql) for what in gone
    }
    assert all(found[what] == LISTED[what] for what in LISTED.keys() - set(gone))


def test_all_that_is_in_a_renamed_schema_is_listed_under_its_new_name() -> None:
    found = followed(RenamedObject(SCHEMA, Name("z", "z")))
    assert set(found) == {what.replace("s.s", "z.z").replace("s.t", "z.t").replace("s.d", "z.d") for what in LISTED}
    assert not any('"s"' in cause for cause in found.values())
    assert found["USAGE for joe on schema z.z"] == 'run GRANT USAGE ON SCHEMA "z" TO "joe"'


@pytest.mark.parametrize(
    ("effect", "kept"),
    [
        (altered(("a", "b")), {"view s.w", "constraint k of table s.t"}),
        (altered(("a", "b"), table=DbObject("TYPE", Name("s", "pair"))), {"view s.w", "constraint k of table s.t"}),
        (RenamedObject(DbObject("TABLE", Name("s", "u")), Name("s", "x")), {"view s.v", "constraint k of table s.t"}),
        (RenamedObject(DbObject("VIEW", Name("s", "v")), Name("z", "v")), {"view s.w", "constraint k of table s.t"}),
        (RenamedObject(SCHEMA, Name("z", "z")), {"constraint k of table z.t"}),
        (altered((None, "a")), {"view s.v", "view s.w", "constraint k of table s.t"}),
        (altered(("a", "a")), {"view s.v", "view s.w", "constraint k of table s.t"}),
    ],
)
def test_statements_are_given_up_that_name_what_has_another_name(effect: DdlEffect, kept: set[str]) -> None:
    left_out = {
        "view s.v": f"no f(){THEN_RUN}CREATE OR REPLACE VIEW s.v AS SELECT a FROM s.t",
        "view s.w": f"no f(){THEN_RUN}CREATE OR REPLACE VIEW s.w AS SELECT 'a' FROM s.u",
        "constraint k of table s.t": f'no f(){THEN_RUN}ALTER TABLE "s"."t" ADD CONSTRAINT "k" CHECK (f("a"))',
        "view s.x": "it reads a file",
    }
    follow(left_out, did(effect))
    assert {what for what, _ in to_retry(left_out)} == kept
    assert len(left_out) == 4


def test_a_renamed_column_is_listed_under_its_new_name() -> None:
    found = followed(altered(("a b", "d")))
    assert found.keys() - LISTED.keys() == {'SELECT ("d") for joe on table s.t'}
    given = 'run GRANT SELECT ("d"), UPDATE ("c") ON TABLE "s"."t" TO "joe"'
    assert found['SELECT ("d") for joe on table s.t'] == given
    found = followed(altered(("c", "e")))
    assert found['SELECT ("a b") for joe on table s.t'].endswith('UPDATE ("e") ON TABLE "s"."t" TO "joe"')
    assert found.keys() - LISTED.keys() == {"default of column e of table s.t", "collation of column e of table s.t"}
    assert found["collation of column e of table s.t"].endswith('ALTER COLUMN "e" TYPE text COLLATE x.y')
    # Its own name, a string and a column of something else stay.
    assert found["constraint c of table s.t"].endswith('ADD CONSTRAINT "c" CHECK ("e" > f(t."c", \'c\'))')


def test_columns_of_other_tables_keep_their_names() -> None:
    added = f'x{THEN_RUN}ALTER TABLE "s"."a" ADD CONSTRAINT "k" FOREIGN KEY (a) REFERENCES s.p(a)'
    left_out = {"constraint k of table s.a": added}
    follow(left_out, did(altered(("a", "b"), table=DbObject("TABLE", Name("s", "a")))))
    assert list(left_out.values()) == [added.replace("KEY (a)", 'KEY ("b")')]


@pytest.mark.parametrize(
    ("effect", "gone"),
    [
        (altered(("a b", None)), {'SELECT ("a b") for joe on table s.t'}),
        (altered(("c", None)), {"default of column c of table s.t", "collation of column c of table s.t"}),
        (DroppedObject(C, T), {"constraint c of table s.t"}),
        (DroppedObject(OF_DOMAIN, D), {"constraint c of domain s.d"}),
        (DroppedObject(INDEX, T), {"index i of table s.t"}),
        (DroppedObject(TABLE), {what for what in LISTED if what.endswith("table s.t")}),
        (CreatedObject(TABLE, replaces=True), {what for what in LISTED if what.endswith("table s.t")}),
        (DroppedObject(VIEW), {"access to view s.tt"}),
        (DroppedObject(ROUTINE), {"EXECUTE for joe on function s.t(integer,text)"}),
        (DroppedObject(DOMAIN), {"default of domain s.d", "constraint c of domain s.d"}),
        (DroppedObject(SCHEMA), {"USAGE for joe on schema s.s"}),
        (DroppedObject(DbObject("MACRO", T)), {"macro s.t"}),
        (CreatedObject(VIEW, replaces=True), set()),
        (CreatedObject(C, of=T), set()),
        (altered((None, "x"), ("c", "c")), set()),
        (AlteredObject(DbObject("TYPE", T), values=(("c", "d"),)), set()),
    ],
)
def test_what_is_dropped_is_forgotten(effect: DdlEffect, gone: set[str]) -> None:
    left_out = followed(effect)
    assert LISTED.keys() - left_out.keys() == gone
    assert left_out == {what: cause for what, cause in LISTED.items() if what not in gone}


def test_what_postgresql_does_not_run_changes_nothing() -> None:
    # A master that moves a table has only replicas of other kinds drop it.
    left_out = dict(LISTED)
    follow(left_out, did(DroppedObject(TABLE), original=""))
    assert left_out == LISTED
    follow(left_out, did(DroppedObject(TABLE), original="DROP TABLE s.t"))
    assert "SELECT for joe on table s.t" not in left_out


def test_a_statement_without_effects_has_an_object() -> None:
    assert listed_object(Ddl("CREATE MATERIALIZED VIEW", Name("s", "v"), "…")) == "materialized view s.v"


MAIN_T, OTHER = Name("main", "t"), Name("s", "Other one")
MADE = (
    CreatedObject(DbObject("VIEW", Name("main", "v"))),
    CreatedObject(DbObject("FUNCTION", Name("main", "f"), ("integer",))),
    CreatedObject(DbObject("INDEX", Name("main", "by_a")), of=MAIN_T),
    CreatedObject(DbObject("INDEX", Name("s", "i")), of=OTHER, unique=(None,)),
    CreatedObject(DbObject("CONSTRAINT", Name("main", "positive")), of=MAIN_T),
    CreatedObject(DbObject("POLICY", Name("main", "mine")), of=MAIN_T),
    CreatedObject(DbObject("TYPE", Name("main", "mood"))),
    CreatedObject(DbObject("DOMAIN CONSTRAINT", Name("main", "d_check")), of=Name("main", "d")),
    CreatedObject(DbObject("TABLE", MAIN_T)),
)
LACKING = {
    "view main.v",
    "function main.f(integer)",
    "index by_a of table main.t",
    "index i of table s.Other one",
    "constraint positive of table main.t",
}


def test_replicas_of_other_kinds_list_what_only_postgresql_has() -> None:
    listed = without_counterparts({"Delta table main.t": "a type"}, map(did, MADE))
    assert set(listed) == LACKING | {"Delta table main.t"}
    # A replica of some tables does not miss what belongs to others.
    assert set(without_counterparts({}, map(did, MADE), ("t",))) == LACKING - {"index i of table s.Other one"}
    only = {"view main.v", "function main.f(integer)", "index i of table s.Other one"}
    assert set(without_counterparts({}, map(did, MADE), ("s.*",))) == only
    # A partitioned table is a view in replicas of other kinds: they have it.
    assert without_counterparts({}, [did(MADE[0], original="")]) == {}


def test_the_list_follows_what_is_altered_and_dropped() -> None:
    listed = without_counterparts({}, map(did, MADE))
    renamed = did(RenamedObject(DbObject("TABLE", MAIN_T), Name("s", "u")), original="ALTER TABLE …")
    listed = without_counterparts(listed, [renamed, did(DroppedObject(MADE[0].object))])
    expected = {what.replace("main.t", "s.u") for what in LACKING - {"view main.v"}}
    assert set(listed) == expected
    listed = without_counterparts(listed, [did(DroppedObject(DbObject("TABLE", Name("s", "u"))))])
    assert set(listed) == {what for what in expected if "s.u" not in what}


def test_a_master_in_duckdb_leaves_nothing_out() -> None:
    changes = [Ddl("CREATE VIEW", Name("main", "v"), "CREATE VIEW v AS SELECT 1", does=MADE[:1])]
    assert without_counterparts({"x": "y"}, changes) == {"x": "y"}
