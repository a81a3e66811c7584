"""`wlr.undo` of rows that refer to each other: together and whole, or not at all."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.scenario.test_undo import EXAMPLES, master_of, run, text
from tests.sites import Sites
from wlc.capture.duckdb import compensation
from wlc.farm.errors import ChangedSinceError, InvalidError, UnavailableError
from wlc.masters.compensation import ChangedRows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# Rows by table and key, and those of table b, which has no key.
State = dict[str, Any]
TABLES = (
    "CREATE TABLE p (i INTEGER PRIMARY KEY, v VARCHAR)",
    "CREATE TABLE c (i INTEGER PRIMARY KEY, p INTEGER REFERENCES p (i))",
    "CREATE TABLE tree (i INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (i))",
    "CREATE TABLE b (p INTEGER REFERENCES p (i), v VARCHAR)",
)
PARENTS = {"c": "p", "tree": "tree"}


def empty() -> State:
    return {"p": {}, "c": {}, "tree": {}, "b": Counter()}


def fits(state: State) -> bool:
    """Say whether every row refers to one that is there."""
    refers = [(state[parent], row[1]) for child, parent in PARENTS.items() for row in state[child].values()]
    refers += [(state["p"], row[0]) for row in state["b"]]
    return all(key is None or key in parent for parent, key in refers)


def statement(draw: random.Random, state: State) -> str:
    """Change a row, and return the SQL that does the same, whether or not it breaks a reference."""
    table, key = draw.choice(["p", "p", "c", "c", "tree", "tree", "b"]), draw.randrange(3)
    if table == "b":
        row = (draw.choice([None, *state["p"]]), draw.choice([None, "x"]))
        if state["b"][row] and draw.random() < 0.6:
            del state["b"][row]
            same = " AND ".join(f"{n} IS NOT DISTINCT FROM {value(v)}" for n, v in zip("pv", row, strict=True))
            return f"DELETE FROM b WHERE {same}"
        state["b"][row] += 2
        return f"INSERT INTO b VALUES ({value(row[0])}, {value(row[1])}), ({value(row[0])}, {value(row[1])})"
    other = draw.choice([None, "x", "y"]) if table == "p" else draw.choice([None, *state[PARENTS[table]]])
    column = {"p": "v", "c": "p", "tree": "up"}[table]
    if key in state[table] and draw.random() < 0.4:
        del state[table][key]
        return f"DELETE FROM {table} WHERE i = {key}"
    is_there = key in state[table]
    state[table][key] = (key, other)
    if is_there:
        return f"UPDATE {table} SET {column} = {value(other)} WHERE i = {key}"
    return f"INSERT INTO {table} VALUES ({key}, {value(other)})"


def value(given: int | str | None) -> str:
    return str(given) if isinstance(given, int) else text(given)


def undone(before: State, after: State, now: State) -> tuple[State, bool]:
    """Return what is there once the changes between two states are undone, and whether rows were changed since."""
    made, has_conflicts = deepcopy(now), False
    for table in ("p", "c", "tree"):
        for key in before[table].keys() | after[table].keys():
            old, new, there = before[table].get(key), after[table].get(key), now[table].get(key)
            if old != new:
                has_conflicts |= there not in (old, new)
                made[table].pop(key, None)
                if old is not None:
                    made[table][key] = old
    gone, come = after["b"] - before["b"], before["b"] - after["b"]
    has_conflicts |= any(now["b"][row] < copies for row, copies in gone.items())
    made["b"] = (now["b"] - gone) + come
    return made, has_conflicts


def moves_parent(now: State, made: State) -> bool:
    """Say whether a row that others refer to gets a new value in an indexed column, which DuckDB refuses."""
    referred = {up for _, up in now["tree"].values()}
    return any(made["tree"].get(key, row) != row for key, row in now["tree"].items() if key in referred)


def held(connection: Any) -> State:
    keyed = {t: {row[0]: row for row in connection.execute(f"FROM {t}").fetchall()} for t in ("p", "c", "tree")}
    return {**keyed, "b": Counter(connection.execute("FROM b").fetchall())}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_undo_is_that_of_plain_python(tmp_path: Path, seed: int) -> None:
    source, draw = master_of(tmp_path, *TABLES), random.Random(seed)
    state, at, seen = empty(), {wlc.tick(source): empty()}, Counter[str]()
    with wlc.connect(source) as connection:
        for _ in range(6):
            for _ in range(2):
                state = committed(connection, draw, state)
                at[wlc.tick(source)] = state
            before, after = sorted(draw.sample(sorted(at)[-3:], 2)) if len(at) > 1 else (0, 0)
            if before == after:
                continue
            force = draw.random() < 0.3
            made, has_conflicts = undone(at[before], at[after], state)
            try:
                done = wlr.undo(source, before + 1, after, force=force)
            except ChangedSinceError:
                assert has_conflicts
                assert not force
                seen["conflict"] += 1
            except InvalidError as error:
                is_nothing = "changed no row" in error.message
                assert is_nothing or not fits(made), error.message
                seen["refused"] += not is_nothing
            else:
                assert fits(made)
                assert force or not has_conflicts
                state = made
                seen["in several" if done.transactions > 1 else "in one"] += 1
            assert held(connection) == state
            at[wlc.tick(source)] = state
    assert seed or seen["in several"], "chance found what DuckDB does not do in one transaction"
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(source, into=copy, register=False)
    assert {table.outcome for table in wlr.verify(copy).tables} == {"same"}
    assert {check.outcome for check in wlc.verify_source(source)} == {"same"}


def committed(connection: Any, draw: random.Random, state: State) -> State:
    """Commit a transaction of some changes, or none if DuckDB refuses one of them."""
    new = deepcopy(state)
    connection.begin()
    try:
        for _ in range(draw.randrange(1, 6)):
            connection.execute(statement(draw, new))
        connection.commit()
    except duckdb.ConstraintException:
        connection.rollback()
        return state
    assert fits(new), "DuckDB keeps references"
    new["b"] = +new["b"]
    return new


@pytest.mark.slow
def test_rows_and_what_refers_to_them_go_and_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = master_of(tmp_path, *TABLES)
    run(source, "INSERT INTO p VALUES (1, 'a')", "INSERT INTO c VALUES (7, 1)")
    before = rows_of(source)
    tick = run(
        source,
        "INSERT INTO p VALUES (2, 'b')",
        "INSERT INTO c VALUES (8, 2)",
        "UPDATE c SET p = 2 WHERE i = 7",
        "INSERT INTO b VALUES (2, 'x'), (2, 'x')",
        "INSERT INTO tree VALUES (1, NULL)",
        "INSERT INTO tree VALUES (2, 1)",
        "INSERT INTO tree VALUES (3, 2)",
    )
    full = rows_of(source)
    planned = wlr.undo(source, tick, dry_run=True)
    assert (planned.tick, planned.transactions) == (None, 3)
    assert run_app(app, "wlc", ["undo", source, "--tick", str(tick), "--json"]) == 0
    assert f'"tick":{tick + 3}' in capsys.readouterr().out.replace(" ", "")
    assert rows_of(source) == before
    # The new transactions are undone as any others.
    assert wlr.undo(source, tick + 1, tick + 3).transactions == 1
    assert rows_of(source) == full
    with wlc.connect(source) as connection:
        # What came since refers to a row that has to go.
        connection.execute("INSERT INTO c VALUES (9, 2)")
        last = wlc.tick(source)
        with pytest.raises(
            InvalidError, match=r"rows of main.p cannot be written: rows of main.c refer to them"
        ) as refused:
            wlr.undo(source, tick)
        command = str(refused.value.hint).partition(" lists")[0].split()
        assert run_app(app, "wlc", command[1:]) == 0
        assert f"\n{last} " in capsys.readouterr().out
        assert wlc.tick(source) == last
        connection.execute("DELETE FROM c WHERE i = 9")
    # A process that was killed after the first transaction has left this.
    wlr.undo(source, tick, table="c")
    assert wlr.undo(source, tick).transactions == 3
    assert rows_of(source) == before


def rows_of(source: str) -> State:
    with wlc.connect(source) as connection:
        return held(connection)


def test_what_fails_between_two_transactions_is_said_and_the_same_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = master_of(tmp_path, *TABLES)
    tick = run(source, "INSERT INTO p VALUES (1, 'a')", "INSERT INTO c VALUES (7, 1)")
    remove = compensation._Run._remove

    def failing(its: Any, table: Any, source: str) -> None:
        if table.name.name == "p" and "later" in source:
            raise duckdb.IOException("No space left on device")
        remove(its, table, source)

    monkeypatch.setattr(compensation._Run, "_remove", failing)
    with pytest.raises(UnavailableError, match=r"1 of 2 transactions were committed; then rows of main\.p.*No space"):
        wlr.undo(source, tick)
    monkeypatch.undo()
    assert wlr.undo(source, tick).tables == (ChangedRows("main.p", 0, 1, 0),)
    assert rows_of(source) == empty()


@pytest.mark.slow
def test_nothing_is_undone_if_a_part_of_it_belongs_to_another_site(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(
        "CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (id INTEGER PRIMARY KEY, p INTEGER REFERENCES p)"
    )
    sites.join("rome")
    wlc.set_rule("sales", "p", "owner", site="oslo", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO p VALUES (1)", "INSERT INTO c VALUES (7, 1)")
    sites.exchange()
    for dry_run in (True, False):
        with pytest.raises(InvalidError, match="site rome cannot write main.p: the table belongs to site oslo"):
            wlr.undo(sites.file("rome"), 1, wlc.tick(sites.log("rome").url), dry_run=dry_run)
    assert sites.rows("rome", "c") == [(7, 1)]
