"""What is listed as left out of a PostgreSQL replica follows the names of the master."""

from __future__ import annotations

import pytest

from wlc.farm.model import Ddl, Name
from wlr.ddl.left_out import THEN_RUN, follow, forget, to_retry, without_counterparts

LISTED = {
    "SELECT for joe on table s.t": 'run GRANT SELECT ON TABLE "s"."t" TO "joe"',
    'SELECT ("a b") for joe on table s.t': 'run GRANT SELECT ("a b"), UPDATE ("c") ON TABLE "s"."t" TO "joe"',
    "default of column c of table s.t": "PostgreSQL has no counterpart",
    "privileges and row security of table s.t": "came in",
    "EXECUTE for joe on function s.t(integer, text)": 'run GRANT EXECUTE ON FUNCTION "s"."t"(integer, text) TO "joe"',
    "index s.i": "no operator class",
    "access to view s.tt": 'once view s.tt is, run GRANT SELECT ON "s"."tt" TO "joe"',
}


def followed(kind: str, name: Name, text: str, *, is_own: bool = True) -> dict[str, str]:
    left_out = dict(LISTED)
    follow(left_out, Ddl(kind, name, text, dialect="postgres" if is_own else "duckdb"), text if is_own else None)
    return left_out


@pytest.mark.parametrize(
    ("kind", "text", "moved"),
    [
        ("ALTER TABLE", 'ALTER TABLE "s"."t" RENAME TO "u v"', ("s.t", "s.u v", '"s"."t"', '"s"."u v"')),
        ("ALTER TABLE", 'ALTER TABLE "s"."t" SET SCHEMA "o"', ("s.t", "o.t", '"s"."t"', '"o"."t"')),
        ("ALTER VIEW", 'ALTER VIEW "s"."tt" RENAME TO "w"', ("s.tt", "s.w", '"s"."tt"', '"s"."w"')),
        ("ALTER INDEX", 'ALTER INDEX "s"."i" RENAME TO "\\1"', ("s.i", "s.\\1", '"s"."i"', '"s"."\\1"')),
        ("CREATE SCHEMA", 'ALTER SCHEMA "s" RENAME TO "z"', ("s.", "z.", '"s".', '"z".')),
    ],
)
def test_a_renamed_object_is_listed_under_its_new_name(kind: str, text: str, moved: tuple[str, ...]) -> None:
    is_table, old, new, old_sql, new_sql = kind == "ALTER TABLE", *moved
    expected = {}
    for what, cause in LISTED.items():
        is_meant = what.endswith((f" {old}", f" {old}(integer, text)")) or kind == "CREATE SCHEMA"
        if is_meant and not (is_table and "function" in what):
            expected[what.replace(f" {old}", f" {new}")] = cause.replace(old_sql, new_sql)
        else:
            expected[what] = cause
    assert followed(kind, Name("s", "t"), text) == expected
    assert expected != LISTED


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('ALTER TABLE "s"."t" RENAME COLUMN "a" TO "b"', {"view s.w", "constraint k of table s.t"}),
        ('ALTER TABLE "s"."u" RENAME TO "x"', {"view s.v", "constraint k of table s.t"}),
        ('ALTER VIEW "s"."v" SET SCHEMA "z"', {"view s.w", "constraint k of table s.t"}),
        ('ALTER SCHEMA "s" RENAME TO "z"', {"constraint k of table z.t"}),
        ('ALTER TABLE "s"."t" ADD COLUMN "a" integer', {"view s.v", "view s.w", "constraint k of table s.t"}),
    ],
)
def test_statements_are_given_up_that_name_what_has_another_name(text: str, kept: set[str]) -> None:
    left_out = {
        "view s.v": f"no f(){THEN_RUN}CREATE OR REPLACE VIEW s.v AS SELECT a FROM s.t",
        "view s.w": f"no f(){THEN_RUN}CREATE OR REPLACE VIEW s.w AS SELECT 'a' FROM s.u",
        "constraint k of table s.t": f'no f(){THEN_RUN}ALTER TABLE "s"."t" ADD CONSTRAINT "k" CHECK (f("a"))',
        "view s.x": "it reads a file",
    }
    follow(left_out, Ddl("ALTER", Name("s", "t"), text, dialect="postgres"), text)
    assert {what for what, _ in to_retry(left_out)} == kept
    assert len(left_out) == 4


def test_routines_have_names_of_their_own() -> None:
    found = followed("ALTER FUNCTION", Name("s", "g"), 'ALTER FUNCTION "s"."t"(integer, text) RENAME TO "g"')
    assert found.keys() - LISTED.keys() == {"EXECUTE for joe on function s.g(integer, text)"}
    (new,) = found.keys() - LISTED.keys()
    assert found[new] == 'run GRANT EXECUTE ON FUNCTION "s"."g"(integer, text) TO "joe"'


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ('ALTER TABLE "s"."t" RENAME COLUMN "a b" TO "d"', True),
        ('alter table only "s"."t" rename "a b" to d', True),
        ('ALTER TABLE IF EXISTS db.t RENAME COLUMN "a b" TO d', False),
    ],
)
def test_a_renamed_column_is_listed_under_its_new_name(text: str, is_own: bool) -> None:
    found = followed("ALTER TABLE", Name("s", "t"), text, is_own=is_own)
    assert found['SELECT ("d") for joe on table s.t'] == (
        'run GRANT SELECT ("d"), UPDATE ("c") ON TABLE "s"."t" TO "joe"'
    )
    assert len(found) == len(LISTED)
    assert followed(
        "ALTER TABLE", Name("s", "t"), 'ALTER TABLE t RENAME c TO "e"', is_own=False
    ).keys() - LISTED.keys() == {"default of column e of table s.t"}


def test_what_is_dropped_is_forgotten() -> None:
    gone = (
        LISTED.keys()
        - followed("ALTER TABLE", Name("s", "t"), 'ALTER TABLE "s"."t" DROP COLUMN IF EXISTS "a b"').keys()
    )
    assert gone == {'SELECT ("a b") for joe on table s.t'}
    left_out = dict(LISTED)
    dropped = Ddl("DROP TABLE", Name("s", "t"), "DROP TABLE s.t")
    # A master that moves a table has only replicas of other kinds drop it.
    forget(left_out, dropped, "")
    assert left_out == LISTED
    forget(left_out, dropped, None)
    assert set(left_out) == {"index s.i", "access to view s.tt"}


@pytest.mark.parametrize(
    "text",
    [
        'ALTER TABLE "s"."t" RENAME CONSTRAINT "c" TO "d"',
        'ALTER TABLE "s"."t" DROP CONSTRAINT IF EXISTS "c" CASCADE',
        "ALTER TABLE s.t RENAME c.field TO d",
        "ALTER TABLE s.t DROP COLUMN c.field",
        'ALTER TABLE "s"."t" ADD COLUMN "x" integer DEFAULT 1',
        "ALTER TYPE \"s\".\"y\" RENAME VALUE 'c' TO 'd'",
        "ALTER TABLE",
    ],
)
def test_other_changes_leave_the_list_alone(text: str) -> None:
    assert followed("ALTER TABLE", Name("s", "t"), text) == LISTED


def own(kind: str, name: Name, statement: str) -> Ddl:
    """A statement that only PostgreSQL has."""
    return Ddl(kind, name, statement, dialect="postgres")


T, OTHER = Name("main", "t"), Name("s", "Other one")
OF_POSTGRESQL = (
    own("CREATE VIEW", Name("main", "v"), "CREATE VIEW public.v AS SELECT 1"),
    own("CREATE FUNCTION", Name("main", "f"), "CREATE FUNCTION public.f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'"),
    own("CREATE INDEX", Name("main", "by_a"), "CREATE INDEX by_a ON main.t USING btree (a)"),
    own("CREATE INDEX", Name("s", "i"), 'CREATE UNIQUE INDEX i ON s."Other one" USING btree (lower(b)) WHERE (a > 0)'),
    own("ALTER TABLE", T, 'ALTER TABLE "main"."t" ADD CONSTRAINT "positive" CHECK ((a > 0))'),
    own("CREATE POLICY", T, "CREATE POLICY mine ON main.t USING (true)"),
    own("CREATE TYPE", Name("main", "mood"), "CREATE TYPE public.mood AS ENUM ('a')"),
    Ddl(
        "CREATE TABLE",
        T,
        "CREATE TABLE t (a INTEGER)",
        original='CREATE TABLE main.t ("a" int NOT NULL, "constraint" text, CONSTRAINT "t_pkey" PRIMARY KEY (a), CONSTRAINT "one" UNIQUE (a))',
    ),
)
LACKING = {
    "view main.v",
    "function main.f",
    "index main.by_a",
    "index s.i",
    "constraint positive of table main.t",
    "constraint one of table main.t",
}


def test_replicas_of_other_kinds_list_what_only_postgresql_has() -> None:
    listed = without_counterparts({"Delta table main.t": "a type"}, OF_POSTGRESQL)
    assert set(listed) == LACKING | {"Delta table main.t"}
    # A replica of some tables does not miss what belongs to others.
    assert set(without_counterparts({}, OF_POSTGRESQL, ("t",))) == LACKING - {"index s.i"}
    assert set(without_counterparts({}, OF_POSTGRESQL, ("s.*",))) == {"view main.v", "function main.f", "index s.i"}


@pytest.mark.parametrize(
    "change, gone, new",
    [
        (own("DROP VIEW", Name("main", "v"), "DROP VIEW public.v"), "view main.v", None),
        (own("DROP FUNCTION", Name("main", "f"), "DROP FUNCTION public.f(int)"), "function main.f", None),
        (
            own("ALTER INDEX", Name("main", "by_a"), "ALTER INDEX main.by_a RENAME TO by_b"),
            "index main.by_a",
            "index main.by_b",
        ),
        (
            own("ALTER TABLE", T, 'ALTER TABLE main.t DROP CONSTRAINT "positive"'),
            "constraint positive of table main.t",
            None,
        ),
        (own("DROP POLICY", T, "DROP POLICY mine ON main.t"), None, None),
    ],
)
def test_the_list_follows_what_is_altered_and_dropped(change: Ddl, gone: str | None, new: str | None) -> None:
    listed = set(without_counterparts(without_counterparts({}, OF_POSTGRESQL), [change]))
    assert listed == (LACKING - {gone}) | ({new} if new else set())


def test_constraints_follow_their_table() -> None:
    listed = without_counterparts({}, OF_POSTGRESQL)
    renamed = Ddl(
        "ALTER TABLE", Name("main", "u"), "ALTER TABLE t RENAME TO u", original="ALTER TABLE main.t RENAME TO u"
    )
    listed = without_counterparts(listed, [renamed])
    assert {what for what in listed if "constraint" in what} == {
        "constraint positive of table main.u",
        "constraint one of table main.u",
    }
    dropped = Ddl("DROP TABLE", Name("main", "u"), "DROP TABLE u", original="DROP TABLE main.u")
    assert not any("constraint" in what for what in without_counterparts(listed, [dropped]))


@pytest.mark.parametrize("kind", ["CREATE INDEX", "ALTER TABLE", "CREATE TABLE", "GRANT TABLE", "DROP", ""])
@pytest.mark.parametrize(
    "text",
    ["", "(", "ALTER TABLE", "ALTER TABLE ONLY IF", "ALTER TABLE t RENAME TO", "CREATE INDEX i ON", "ADD CONSTRAINT"],
)
def test_what_nobody_understands_is_not_listed(kind: str, text: str) -> None:
    listed = without_counterparts({"view main.v": "x"}, [own(kind, T, text)])
    assert set(listed) <= {"view main.v", "index main.t"}


def test_a_master_in_duckdb_leaves_nothing_out() -> None:
    changes = [Ddl("CREATE VIEW", Name("main", "v"), "CREATE VIEW v AS SELECT 1")]
    assert without_counterparts({"x": "y"}, changes) == {"x": "y"}
