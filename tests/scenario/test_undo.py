"""`wlr.undo` and `wlc undo` give rows what they held before, or say which rows plain Python finds changed since."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.oracle import Contents, contents
from tests.scenario.test_types_end_to_end import WIDE, change, fill
from wlc.farm.errors import ChangedSinceError, ExpiredError, InvalidError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

Row = tuple[Any, ...]
EXAMPLES = int(os.environ.get("DBFARM_EXAMPLES", "0")) or 1


class Model:
    """Table k with a primary key and table b without one, at every tick."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keyed: dict[int, Row] = {}
        self.bag: Counter[Row] = Counter()
        self.at: dict[int, tuple[dict[int, Row], Counter[Row]]] = {}

    def note(self, tick: int) -> None:
        for gap in range(max(self.at, default=tick) + 1, tick):
            # A transaction that was rolled back leaves one.
            self.at[gap] = self.at[gap - 1]
        self.at[tick] = dict(self.keyed), self.bag.copy()

    def statements(self) -> list[str]:
        """Change rows, and return the SQL that does the same."""
        made = []
        for _ in range(self.random.randrange(1, 5)):
            k, v = self.random.randrange(4), self.random.choice([None, "a", "b"])
            what = self.random.random()
            if what < 0.06:
                made.append(f"DELETE FROM {self.random.choice('kb')}")
                (self.keyed if made[-1].endswith("k") else self.bag).clear()
            elif what < 0.25:
                made.append(f"DELETE FROM k WHERE k = {k}")
                self.keyed.pop(k, None)
            elif what < 0.6:
                made.append(f"INSERT OR REPLACE INTO k (k, v) VALUES ({k}, {text(v)})")
                self.keyed[k] = (k, v)
            elif what < 0.8 or not self.bag:
                made.append(f"INSERT INTO b VALUES ({k % 3}, {text(v)}), ({k % 3}, {text(v)})")
                self.bag[k % 3, v] += 2
            else:
                gone = self.random.choice(sorted(self.bag, key=str))
                made.append(f"DELETE FROM b WHERE k = {gone[0]} AND v IS NOT DISTINCT FROM {text(gone[1])}")
                del self.bag[gone]
        return made

    def undo(self, first: int, last: int, *, force: bool) -> set[tuple[str, Any]]:
        """Undo transactions unless there are conflicts, which are returned."""
        (before, bag_before), (after, bag_after) = self.at[first - 1], self.at[last]
        found: set[tuple[str, Any]] = set()
        keyed, bag = dict(self.keyed), self.bag.copy()
        for key in before.keys() | after.keys():
            old, new, now = before.get(key), after.get(key), self.keyed.get(key)
            if old != new:
                if now not in (old, new):
                    found.add(("main.k", key))
                keyed.pop(key, None)
                if old is not None:
                    keyed[key] = old
        for row, copies in (bag_after - bag_before).items():
            if bag[row] < copies:
                found.add(("main.b", row))
        bag = (bag - (bag_after - bag_before)) + (bag_before - bag_after)
        if force or not found:
            self.keyed, self.bag = keyed, bag
        return found


def text(value: str | None) -> str:
    return "NULL" if value is None else f"'{value}'"


def told(error: ChangedSinceError) -> set[tuple[str, Any]]:
    found = set()
    for each in error.conflicts:
        if each.key is not None:
            found.add((each.table, each.key["k"]))
        else:
            assert each.expected is not None
            found.add((each.table, (each.expected["k"], each.expected["v"])))
    return found


def master_of(folder: Path, *statements: str) -> str:
    source = str(folder / "sales.duckdb")
    wlc.master(source, create=True, beat_s=0)
    run(source, *statements)
    return source


def run(source: str, *statements: str) -> int:
    """Run statements as one transaction, and return its tick."""
    with wlc.connect(source) as connection:
        connection.begin()
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return wlc.tick(source)


def play(model: Model, source: str, connection: Any, begin: int) -> str:
    """Commit two transactions, undo some, and compare; returns what came of it."""
    for _ in range(2):
        connection.begin()
        for statement in model.statements():
            connection.execute(statement)
        connection.commit()
        model.note(tick := wlc.tick(source))
    first = model.random.randint(max(begin + 1, tick - 7), tick)
    last = model.random.randint(first, min(first + 2, tick))
    force = model.random.random() < 0.5
    expected = model.undo(first, last, force=force)
    outcome = "forced" if expected else "undone"
    try:
        done = wlr.undo(source, first, last, force=force)
    except ChangedSinceError as error:
        assert (force, told(error), error.count) == (False, expected, len(expected))
        assert wlc.tick(source) == tick, "nothing is written"
        outcome = "refused"
    except InvalidError as error:
        assert "changed no row" in error.message
    else:
        assert force or not expected
        assert done.tick in (None, wlc.tick(source))
        model.note(wlc.tick(source))
    assert {row[0]: row for row in connection.execute("SELECT k, v FROM k").fetchall()} == model.keyed
    assert Counter(connection.execute("SELECT * FROM b").fetchall()) == model.bag
    return outcome


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_what_is_undone_is_what_the_model_says(tmp_path: Path, seed: int) -> None:
    model = Model(seed)
    # The generated column is not stored, and not undone.
    keyed = "CREATE TABLE k (k INTEGER PRIMARY KEY, v VARCHAR COLLATE nocase, g AS (k + 1))"
    source = master_of(tmp_path, keyed, "CREATE TABLE b (k INTEGER, v VARCHAR)")
    model.note(begin := wlc.tick(source))
    with wlc.connect(source) as connection:
        found = {play(model, source, connection, begin) for _ in range(8)}
    assert seed or found == {"undone", "refused", "forced"}, "chance found all"
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(source, into=copy, register=False)
    assert all(table.outcome == "same" for table in wlr.verify(copy).tables)
    assert all(check.outcome == "same" for check in wlc.verify_source(source))


def test_every_type_comes_back(tmp_path: Path) -> None:
    source = str(tmp_path / "types.duckdb")
    wlc.master(source, create=True)
    with wlc.connect(source) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        fill(connection)
        before = user_rows(connection)
        first = wlc.flush(source).tick + 1
        change(connection)
        changed = user_rows(connection)
        # The transactions still wait to be published.
        done = wlr.undo(source, first, first + len(WIDE) - 1)
        assert (done.undone, len(done.tables)) == (len(WIDE), len(WIDE))
        assert user_rows(connection) == before != changed
        assert done.tick is not None
        wlr.undo(source, done.tick)
        assert user_rows(connection) == changed
    assert all(check.outcome == "same" for check in wlc.verify_source(source))


def user_rows(connection: Any) -> Contents:
    catalog = connection.execute("SELECT current_database()").fetchall()[0][0]
    return {name: rows for name, rows in contents(connection, catalog).items() if not name.startswith("wlc.")}


def test_rows_that_others_refer_to_beside_such_that_change_a_unique_value(tmp_path: Path) -> None:
    source = master_of(
        tmp_path,
        "CREATE TABLE p (i INTEGER PRIMARY KEY, email VARCHAR UNIQUE, v VARCHAR)",
        "CREATE TABLE c (i INTEGER PRIMARY KEY, p INTEGER REFERENCES p (i))",
    )
    run(source, "INSERT INTO p VALUES (1, 'a', 'x'), (2, 'b', 'x')", "INSERT INTO c VALUES (1, 1)")
    with wlc.connect(source) as connection:
        before = user_rows(connection)
    tick = run(source, "UPDATE p SET v = 'y' WHERE i = 1", "UPDATE p SET email = 'c' WHERE i = 2")
    wlr.undo(source, tick)
    with wlc.connect(source) as connection:
        assert user_rows(connection) == before


def test_foreign_keys(tmp_path: Path) -> None:
    source = master_of(
        tmp_path,
        "CREATE TABLE p (i INTEGER PRIMARY KEY, v VARCHAR)",
        "CREATE TABLE c (i INTEGER PRIMARY KEY, p INTEGER REFERENCES p (i))",
        "CREATE TABLE tree (i INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (i), v VARCHAR)",
    )
    run(source, "INSERT INTO p VALUES (1, 'a'), (2, 'b')", "INSERT INTO c VALUES (1, 1)")
    for row in ("1, NULL", "2, 1", "3, 2"):
        run(source, f"INSERT INTO tree VALUES ({row}, 'x')")
    with wlc.connect(source) as connection:
        before = user_rows(connection)
    first = run(source, "DELETE FROM c")
    run(source, "DELETE FROM p WHERE i = 1", "UPDATE p SET v = 'z' WHERE i = 2")
    for number in (3, 2, 1):
        last = run(source, f"DELETE FROM tree WHERE i = {number}")
    done = wlr.undo(source, first, last)
    assert [(t.table, t.added, t.removed, t.changed) for t in done.tables] == [
        ("main.c", 1, 0, 0),
        ("main.p", 1, 0, 1),
        ("main.tree", 3, 0, 0),
    ]
    with wlc.connect(source) as connection:
        assert user_rows(connection) == before
    # What a row refers to now cannot go.
    tick = run(source, "INSERT INTO p VALUES (3, 'c')")
    run(source, "INSERT INTO c VALUES (3, 3)")
    with pytest.raises(InvalidError, match=r"rows of main.p cannot be written: .*foreign key") as refused:
        wlr.undo(source, tick)
    assert refused.value.hint is not None
    assert wlr.undo(source, tick + 1).tables[0].removed == 1
    assert wlr.undo(source, tick).tables[0].removed == 1


def test_what_is_refused_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = master_of(tmp_path, "CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)", "CREATE TABLE u (i INTEGER)")
    tick = run(source, "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO u VALUES (1)")
    run(source, "UPDATE t SET v = 'c' WHERE i = 2")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run_app(app, "wlc", ["undo", source, *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    code, out, err = command("--tick", str(tick), "--json")
    assert code == 5
    row = {"i": 2, "v": "c"}
    assert json.loads(out) == [
        {"table": "main.t", "key": {"i": 2}, "present": row, "expected": {**row, "v": "b"}, "copies": 1}
    ]
    assert '1 row was changed since: main.t {"i": 2}' in err
    hint = next(line for line in err.splitlines() if line.startswith("hint: "))
    assert hint == f"hint: wlc undo {source} --tick {tick} --force restores the old values in any case"
    code, out, err = command("--tick", str(tick), "--table", "u", "--dry-run", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "tick": None,
            "undone": 1,
            "tables": [{"table": "main.u", "added": 0, "removed": 1, "changed": 0}],
            "is_dry_run": True,
            "transactions": 1,
        },
    )
    code, out, err = command("--tick", str(tick), "--force", "--json")
    assert (code, json.loads(out)["tick"]) == (0, wlc.tick(source))
    # Repeated, it finds nothing to do in a table with a key.
    assert wlr.undo(source, tick, table="t", force=True).tick is None
    for arguments, status, said in (
        (("--tick", "1"), 8, "hint: undo the transactions before and after 1"),
        (("--tick", f"{tick}:99"), 2, f"hint: --tick {tick}:{wlc.tick(source)}"),
        (("--tick", f"{tick}:"), 2, "has no end"),
        (("--tick", str(tick), "--table", "v"), 2, "There are: main.t, main.u"),
        (("--tick", str(tick + 1), "--table", "u"), 2, f"hint: wlc log {tmp_path}/dbfarm/sales --tick"),
    ):
        code, _, err = command(*arguments)
        assert code == status, err
        assert said in err
    altered = run(source, "ALTER TABLE t ADD COLUMN w INTEGER")
    with pytest.raises(UnsupportedError, match="main.t has other columns"):
        wlr.undo(source, tick + 1)
    run(source, "DROP TABLE u")
    with pytest.raises(UnsupportedError, match=f"transaction {altered} changes the schema"):
        wlr.undo(source, tick + 1, altered)
    with pytest.raises(UnsupportedError, match="main.u was dropped or renamed"):
        wlr.undo(source, tick, table="u")
    wlc.snapshot(source)
    wlc.prune(source)
    with pytest.raises(ExpiredError, match="was pruned") as expired:
        wlr.undo(source, tick)
    assert str(expired.value.hint).startswith(f"wlc list {tmp_path}/dbfarm ")
