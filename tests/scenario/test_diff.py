"""`wlr.diff` and `wlr rows diff` say which rows plain Python finds different between two ticks."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import wlr
from cli.command import run_app
from cli.wlr import app
from tests.handmade import HandmadeFarm, Rows
from tests.new_master import new_master
from tests.scenario.test_reading import Model, sql
from wlc.farm.model import Clear, Name
from wlr import TableDifference

if TYPE_CHECKING:
    from pathlib import Path

Bag = Counter[tuple[Any, ...]]


def expected(before: Bag, after: Bag, *, has_key: bool) -> Bag:
    """(change, row…) with copies."""
    gone, new = before - after, after - before
    both = {row[0] for row in gone} & {row[0] for row in new} if has_key else set()
    found: Bag = Counter()
    for bag, one, other in ((gone, "removed", "changed from"), (new, "added", "changed to")):
        for row, copies in bag.items():
            found[other if row[0] in both else one, *row] += copies
    return found


@pytest.mark.slow
@pytest.mark.parametrize("has_key", [True, False])
def test_differences_are_those_of_the_model(tmp_path: Path, has_key: bool) -> None:
    farm, model = HandmadeFarm(tmp_path), Model(11, has_key=has_key)
    farm.publish([f"CREATE TABLE t (k INTEGER {'PRIMARY KEY' if has_key else ''}, v VARCHAR, f DOUBLE)"])
    model.at[1] = Counter()
    for batch in range(4):
        made: list[list[object]] = []
        for number in range(4):
            before = model.rows.total()
            if (batch, number) == (2, 1):
                kept = next(iter(model.rows))
                model.rows = Counter([kept])
                made.append([Clear(Name("main", "t"), before), Rows("t", added=(sql(kept),))])
            else:
                made.append([model.transaction()[0]])
            model.at[farm.tick + number + 1] = model.rows.copy()
        farm.publish(*made)
    draw = random.Random(2)
    pairs = [(1, farm.tick), (farm.tick, 1), (5, 5), *(tuple(draw.sample(range(1, farm.tick), 2)) for _ in range(5))]
    for first, last in pairs:
        rows = expected(model.at[first], model.at[last], has_key=has_key)
        relation = wlr.differing_rows(farm.url, first, last, "t")
        assert relation.columns == ["_change", "k", "v", "f"]
        assert Counter(relation.fetchall()) == rows, (first, last)
        counts: Counter[str] = Counter()
        for (change, *_), copies in rows.items():
            counts[change] += copies
        changed = counts["changed to"] if has_key else None
        counted = TableDifference("main.t", counts["added"], counts["removed"], changed)
        assert wlr.diff(farm.url, first, last, table="t") == [counted]
        assert wlr.diff(farm.url, first, last) == ([counted] if rows else [])


def test_tables_that_come_and_go_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(
        ["CREATE TABLE gone (i INTEGER)", Rows("gone", added=("1", "1"))],
        ["CREATE TABLE kept (i INTEGER PRIMARY KEY, s VARCHAR)", Rows("kept", added=("1, 'a'", "2, 'b'", "3, 'c'"))],
    )
    farm.publish(
        [Rows("kept", added=("1, chr(27) || 'x'", "4, NULL"), removed=("1, 'a'", "3, 'c'"))],
        ["DROP TABLE gone", "CREATE TABLE new (i INTEGER)", Rows("new", added=("7",))],
    )
    wlr.replicate(farm.url, into=tmp_path / "copy.duckdb", register=False)
    copy = str(tmp_path / "copy.duckdb")
    monkeypatch.setenv("WLC_FARM", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str]:
        code = run_app(app, "wlr", ["rows", "diff", *arguments])
        shown = capsys.readouterr()
        return code, shown.out or shown.err

    code, text = run(copy, "--tick", "2:4", "--json")
    assert (code, json.loads(text)) == (
        0,
        [
            {"table": "main.gone", "added": 0, "removed": 2, "changed": None},
            {"table": "main.kept", "added": 1, "removed": 1, "changed": 1},
            {"table": "main.new", "added": 1, "removed": 0, "changed": None},
        ],
    )
    assert wlr.diff(copy, 4, 2, table="gone") == [TableDifference("main.gone", 2, 0, None)]
    code, text = run(copy, "--tick", "2:4", "--table", "kept")
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["changed", "from", "1", "a"],
        ["changed", "to", "1", "\\x1bx"],
        ["removed", "3", "c"],
        ["added", "4", "NULL"],
    ]
    for arguments, said in (
        (("--tick", "2"), "hint: --tick 1040:1050"),
        (("--tick", "2:9"), "hint: --tick 2:4"),
        (("--tick", "2:4", "--table", "kep"), "Did you mean main.kept?"),
    ):
        code, text = run(copy, *arguments)
        assert code == 2
        assert said in text


@pytest.mark.slow
def test_rows_have_the_values_that_schema_changes_gave_them(tmp_path: Path) -> None:
    """Images of one row that were written before and after a schema change cancel out, and no value is made up."""
    with new_master(tmp_path / "sales.duckdb") as connection:
        for statement in (
            "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",  # 2
            "INSERT INTO t VALUES (3, 'c'), (4, 'd')",  # 3
            "ALTER TABLE t RENAME COLUMN v TO w",  # 4
            "DELETE FROM t WHERE k = 3",  # 5
            "UPDATE t SET w = 'z' WHERE k IN (1, 4)",  # 6
            "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7",  # 7
            "DELETE FROM t WHERE k = 4",  # 8
            "UPDATE t SET n = 8 WHERE k = 1",  # 9
            "ALTER TABLE t ALTER n TYPE VARCHAR",  # 10
            "TRUNCATE t",  # 11
            "INSERT INTO t VALUES (2, 'b', '9')",  # 12
        ):
            connection.execute(statement)
        for statement in (
            "BEGIN",
            "INSERT INTO t VALUES (5, 'e', '5')",
            "ALTER TABLE t DROP COLUMN w",
            "ALTER TABLE t ADD COLUMN w VARCHAR DEFAULT 'q'",
            "DELETE FROM t WHERE k = 5",
            "ALTER TABLE t RENAME COLUMN w TO u",
            "INSERT INTO t VALUES (6, '6', 'g')",
            "COMMIT",  # 13
        ):
            connection.execute(statement)
    for first, last, expected in (
        (2, 5, [("added", 4, "d")]),
        (2, 6, [("changed from", 1, "a"), ("changed to", 1, "z"), ("added", 4, "z")]),
        (2, 9, [("changed from", 1, "a", 7), ("changed to", 1, "z", 8)]),
        (
            3,
            8,
            [("changed from", 1, "a", 7), ("changed to", 1, "z", 7), ("removed", 3, "c", 7), ("removed", 4, "d", 7)],
        ),
        (9, 2, [("changed from", 1, "z", 8), ("changed to", 1, "a", 7)]),
        (9, 10, []),
        (
            3,
            11,
            [("removed", 1, "a", "7"), ("removed", 2, "b", "7"), ("removed", 3, "c", "7"), ("removed", 4, "d", "7")],
        ),
        (8, 12, [("removed", 1, "z", "7"), ("changed from", 2, "b", "7"), ("changed to", 2, "b", "9")]),
        (12, 13, [("added", 6, "6", "g")]),
    ):
        farm = str(tmp_path / "farm" / "sales")
        assert wlr.differing_rows(farm, first, last, "t").fetchall() == expected, (first, last)
        counts = Counter(row[0] for row in expected)
        counted = TableDifference("main.t", counts["added"], counts["removed"], counts["changed to"])
        assert wlr.diff(farm, first, last) == ([counted] if expected else []), (first, last)


def test_tables_that_went_with_their_schema_are_removed(tmp_path: Path) -> None:
    with new_master(tmp_path / "sales.duckdb") as connection:
        for statement in ("CREATE SCHEMA s", "CREATE TABLE s.t AS SELECT 1 AS i", "DROP SCHEMA s CASCADE"):
            connection.execute(statement)
    assert wlr.diff(tmp_path / "sales.duckdb", 2, 3) == [TableDifference("s.t", 0, 1, None)]
