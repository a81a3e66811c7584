"""Rows of every table, followed through journalled transactions."""

from __future__ import annotations

from wlc.capture.duckdb.schema import compare
from wlc.capture.duckdb.source import count_rows
from wlc.model import Name

T, U = Name("main", "t"), Name("main", "u")


def change(table: str, added: int, removed: int) -> dict[str, object]:
    return {"change": {"table": ["main", table], "added": added, "removed": removed}}


def test_changes_and_clears_add_up() -> None:
    entries = [
        {"records": [change("t", 5, 2)]},
        {"records": [{"clear": {"table": ["main", "t"], "removed": 13}}, change("t", 4, 0)]},
        {"committed": None},
    ]
    assert count_rows({T: 10, U: 1}, entries) == {T: 4, U: 1}


def test_schema_changes_move_counts() -> None:
    ddl = {"ddl": {}, "renamed": [[["main", "t"], ["main", "u"]]], "dropped": [["main", "t"]], "created": []}
    again = {"ddl": {}, "created": [["main", "t"]]}
    assert count_rows({T: 10}, [{"records": [ddl, again, change("t", 1, 0)]}]) == {U: 10, T: 1}
    replaced = {"ddl": {}, "dropped": [["main", "t"]], "created": [["main", "t"]]}
    assert count_rows({T: 10}, [{"records": [replaced, change("t", 3, 0)]}]) == {T: 3}


def objects(**tables: tuple[int, str]) -> dict[tuple[str, str, str], tuple[object, ...]]:
    return {("TABLE", "main", name): (number, sql, None, None) for name, (number, sql) in tables.items()}


def test_compare_tells_replaced_from_altered_and_renamed() -> None:
    altered = compare(objects(t=(1, "a")), objects(t=(1, "a, b")))
    assert (altered.created_tables, altered.altered_tables, altered.dropped_tables) == ((), (T,), ())
    replaced = compare(objects(t=(1, "a")), objects(t=(2, "a")))
    assert (replaced.created_tables, replaced.altered_tables, replaced.dropped_tables) == ((T,), (), (T,))
    assert replaced.replaced_tables == {T}
    renamed = compare(objects(t=(1, "a")), objects(u=(1, "a")))
    assert (renamed.altered_tables, renamed.dropped_tables, renamed.renamed_tables) == ((U,), (T,), ((T, U),))
