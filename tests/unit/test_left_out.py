"""What is listed as left out of a PostgreSQL replica follows the names of the master."""

from __future__ import annotations

import pytest

from wlc.farm.model import Ddl, Name
from wlr.engine.postgres.left_out import follow, forget

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
