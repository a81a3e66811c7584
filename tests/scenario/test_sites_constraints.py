"""Rows of another site that meet constraints, triggers and keys of the site that takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
from tests.sites import Sites, play
from wlc.farm.errors import ReplayError, UnsupportedError
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.multi_master.site_step import SiteStep


@pytest.mark.slow
def test_a_secondary_that_was_pruned_still_gives_way(tmp_path: Path) -> None:
    """What the primary has judged and the secondary has not read yet, the secondary still needs of its own log."""
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    rome = sites.file("rome")
    wlc.set_rule(sites.file("oslo"), "u", "epoch")
    sites.exchange()
    sites.write("oslo", "INSERT INTO u VALUES (1, 'same')")
    wlc.flush(sites.file("oslo"))
    for statement in ("INSERT INTO u VALUES (2, 'same')", "INSERT INTO u VALUES (3, 'three')"):
        sites.write("rome", statement)
        wlc.flush(rome)
    assert sites.take("oslo") == 2
    wlc.snapshot(rome)
    assert wlc.prune(rome, keep_for="0s").delete_batches == ()
    sites.exchange()
    assert sites.rows("rome", "u") == sites.rows("oslo", "u") == [(1, "same"), (3, "three")]
    wlc.snapshot(rome)
    # It goes on with one batch for each that it takes, and none of its own.
    assert wlc.prune(rome, keep_for="0s").delete_batches != ()
    sites.write("oslo", "INSERT INTO u VALUES (4, 'four')")
    sites.write("rome", "INSERT INTO u VALUES (5, 'four')")
    sites.exchange()
    assert sites.rows("rome", "u") == sites.rows("oslo", "u") == [(1, "same"), (3, "three"), (4, "four")]


@pytest.mark.slow
def test_triggers_are_refused_and_references_are_kept(tmp_path: Path) -> None:
    two = Sites(tmp_path)
    two.found()
    two.join("rome")
    two.write(
        "oslo",
        "CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (id))",
        "CREATE TABLE noted (id INTEGER PRIMARY KEY)",
        "CREATE TABLE notes (id INTEGER PRIMARY KEY)",
        "CREATE TRIGGER noting AFTER INSERT ON noted FOR EACH STATEMENT INSERT INTO notes VALUES (1)",
    )
    two.exchange()
    two.write("rome", "INSERT INTO noted VALUES (1)")
    with pytest.raises(UnsupportedError, match="has a trigger, noting"):
        two.take("oslo")
    two.write("oslo", "DROP TRIGGER noting ON noted")
    two.write("rome", "INSERT INTO parents VALUES (1, 'p')", "INSERT INTO children VALUES (1, 1)")
    two.write("rome", "INSERT INTO tree VALUES (1, NULL)", "INSERT INTO tree VALUES (2, 1), (3, 1)")
    two.write("rome", "INSERT INTO tree VALUES (4, 3), (5, NULL)", "DELETE FROM tree WHERE id = 2")
    two.exchange()
    # DuckDB does not remove a child and then its parent in one transaction.
    two.write("rome", "DELETE FROM children", "DELETE FROM parents", "DELETE FROM tree WHERE id = 4")
    two.write("rome", "DELETE FROM tree WHERE id = 3", "UPDATE tree SET up = 5 WHERE id = 1")
    two.exchange()
    two.refuse_differences("noted", "parents", "children", "tree")
    assert two.rows("oslo", "tree") == [(1, 5), (5, None)]


@pytest.mark.slow
def test_a_key_knows_no_collation_and_an_emptied_table_lists_its_rows(tmp_path: Path) -> None:
    """Before it knows of another site, the first one must say which rows it removes."""
    sites = Sites(tmp_path)
    sites.found()
    sites.write("oslo", "CREATE TABLE names (name VARCHAR COLLATE NOCASE PRIMARY KEY, n INTEGER)")
    sites.write("oslo", "INSERT INTO names VALUES ('A', 1), ('a', 2)")
    wlc.flush(sites.file("oslo"))
    sites.join("rome")
    sites.write(
        "rome", "UPDATE names SET n = 9 WHERE name COLLATE \"binary\" = 'A'", "INSERT INTO a VALUES (9, 'r', 1)"
    )
    wlc.flush(sites.file("rome"))
    sites.write("oslo", "DELETE FROM a")
    sites.exchange()
    assert set(sites.rows("oslo", "names")) == {("A", 9), ("a", 2)}
    wlc.set_rule(sites.file("oslo"), "names", "epoch")
    sites.write("oslo", "UPDATE names SET n = 10 WHERE name COLLATE \"binary\" = 'A'")
    sites.write("rome", "UPDATE names SET n = 11 WHERE name COLLATE \"binary\" = 'A'")
    wlc.flush(sites.file("rome"))
    sites.exchange()
    (rejected,) = wlc.exceptions(sites.file("oslo"))
    assert rejected.local == {"name": "A", "n": 10}
    assert set(sites.rows("oslo", "names")) == {("A", 10), ("a", 2)}
    assert sites.rows("oslo", "a") == [(9, "r", 1.0)]
    sites.refuse_differences("names", "a")


@dataclass(frozen=True)
class Eviction:
    """What both sites write, and what rome has to give up, as table and kind of change.

    Attributes:
        before: Rows that both sites know.
        after: Rows of each table at both sites in the end, without the case's first number.
        is_late: Rome commits while it takes, so that its change is in no log yet.
    """

    rome: tuple[str, ...]
    oslo: str
    evicted: tuple[str, ...]
    after: dict[str, list[tuple[str, str]]]
    before: tuple[str, ...] = ()
    is_late: bool = False


EVICTIONS = {
    "new": Eviction(
        rome=("INSERT INTO u VALUES ({n}1, '{n}')", "UPDATE u SET id = {n}2 WHERE id = {n}1"),
        oslo="INSERT INTO u VALUES ({n}3, '{n}')",
        evicted=("main.u WRITE_ROW",),
        after={"u": [("3", "")]},
    ),
    "late": Eviction(
        rome=("INSERT INTO u VALUES ({n}1, '{n}')",),
        oslo="INSERT INTO u VALUES ({n}3, '{n}')",
        evicted=("main.u WRITE_ROW",),
        after={"u": [("3", "")]},
        is_late=True,
    ),
    "changed": Eviction(
        before=("INSERT INTO u VALUES ({n}1, '{n}a')",),
        rome=("UPDATE u SET name = '{n}b' WHERE id = {n}1", "UPDATE u SET name = '{n}c' WHERE id = {n}1"),
        oslo="INSERT INTO u VALUES ({n}2, '{n}c')",
        evicted=("main.u UPDATE_ROW",),
        # Oslo accepts the first one of rome's changes and rejects the second.
        after={"u": [("1", "b"), ("2", "c")]},
    ),
    "children": Eviction(
        before=("INSERT INTO parents VALUES ({n}1, '')",),
        rome=("INSERT INTO children VALUES ({n}1, {n}1)", "INSERT INTO leaves VALUES ({n}1, {n}1)"),
        oslo="DELETE FROM parents WHERE id = {n}1",
        evicted=("main.children WRITE_ROW", "main.leaves WRITE_ROW"),
        after={"parents": [], "children": [], "leaves": []},
    ),
    "reference": Eviction(
        before=("INSERT INTO parents VALUES ({n}1, ''), ({n}2, '')", "INSERT INTO children VALUES ({n}1, {n}1)"),
        rome=("UPDATE children SET parent = {n}2 WHERE id = {n}1",),
        oslo="DELETE FROM parents WHERE id = {n}2",
        evicted=("main.children UPDATE_ROW",),
        after={"parents": [("1", "")], "children": [("1", "1")]},
    ),
    "deleted": Eviction(
        before=("INSERT INTO parents VALUES ({n}1, '')",),
        rome=("DELETE FROM parents WHERE id = {n}1",),
        oslo="INSERT INTO children VALUES ({n}1, {n}1)",
        evicted=("main.parents DELETE_ROW",),
        after={"parents": [("1", "")], "children": [("1", "1")]},
    ),
    "accepted": Eviction(
        before=("INSERT INTO u VALUES ({n}1, '{n}a')",),
        rome=("UPDATE u SET name = '{n}b' WHERE id = {n}1",),
        oslo="UPDATE u SET name = '{n}c' WHERE id = {n}1",
        evicted=(),
        after={"u": [("1", "c")]},
    ),
}


@pytest.fixture(scope="module")
def evicted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sites, dict[str, list[str]]]:
    """Write all cases, let rome take oslo's changes before oslo has judged rome's, then let both fall silent."""
    sites = Sites(tmp_path_factory.mktemp("evicted"))
    sites.found()
    sites.write("oslo", "CREATE TABLE leaves (id INTEGER PRIMARY KEY, child INTEGER REFERENCES children (id))")
    cases = [(100 + place, case) for place, case in enumerate(EVICTIONS.values())]
    sites.write("oslo", *(text.format(n=n) for n, case in cases for text in case.before))
    sites.join("rome")
    for table in ("u", "parents", "children", "leaves"):
        wlc.set_rule(sites.file("oslo"), table, "epoch")
    sites.exchange()
    sites.write("oslo", *(case.oslo.format(n=n) for n, case in cases))
    wlc.flush(sites.file("oslo"))
    sites.write("rome", *(text.format(n=n) for n, case in cases if not case.is_late for text in case.rome))
    steps = SiteLog.steps

    def late(log: SiteLog) -> Iterator[SiteStep]:
        sites.write("rome", *(text.format(n=n) for n, case in cases if case.is_late for text in case.rome))
        yield from steps(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteLog, "steps", late)
        sites.take("rome")
    names = list(EVICTIONS)
    found: dict[str, list[str]] = {name: [] for name in names}
    for row in wlc.exceptions(sites.file("rome")):
        assert (row.site, row.source, row.cause) == ("rome", "rome", "constraint")
        found[names[int(str(row.key["id"])[:3]) - 100]].append(f"{row.table} {row.op_type}")
    sites.exchange()
    return sites, found


@pytest.mark.slow
@pytest.mark.parametrize("name", EVICTIONS)
def test_eviction(evicted: tuple[Sites, dict[str, list[str]]], name: str) -> None:
    sites, found = evicted
    case, n = EVICTIONS[name], 100 + list(EVICTIONS).index(name)
    assert sorted(found[name]) == sorted(case.evicted)
    for table, rows in case.after.items():
        for site in sites.names:
            # Keys and references without the case's number, and names without it.
            found_rows = [tuple(str(value) for value in row) for row in sites.rows(site, table)]
            shown = [(key[3:], value[3:]) for key, value in found_rows if key.startswith(str(n))]
            assert shown == rows, site


@pytest.mark.slow
def test_evictions_are_counted_and_reported_with_both_images(evicted: tuple[Sites, dict[str, list[str]]]) -> None:
    sites, _ = evicted
    sites.refuse_differences("u", "parents", "children", "leaves")
    counts = {counter.name: counter.value for counter in wlc.conflicts(sites.file("rome"))}
    # What the primary had is put in the place of the accepted row, and of the one that was set back too far.
    assert counts == {"evicted": sum(len(case.evicted) for case in EVICTIONS.values()), "overwritten": 2}
    n = 100 + list(EVICTIONS).index("changed")
    set_back = [row for row in wlc.exceptions(sites.file("rome"), table="u") if row.site == "rome"]
    (row,) = [row for row in set_back if row.op_type == "UPDATE_ROW"]
    assert row.key == {"id": n * 10 + 1}
    assert (row.old, row.new) == ({"id": n * 10 + 1, "name": f"{n}a"}, {"id": n * 10 + 1, "name": f"{n}c"})
    assert row.local == row.old
    assert row.origin_tick == row.source_tick > 0
    # An eviction is a transaction of rome's own, which everybody can follow.
    for site in sites.names:
        sites.replica_equals(site)


@pytest.mark.slow
def test_what_did_not_fit_is_taken_once_its_site_has_mended_it(tmp_path: Path) -> None:
    """Nobody judges the table, so the primary may not reject it; it fits with what its site did behind it."""
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    sites.write("oslo", "INSERT INTO u VALUES (1, 'same')")
    sites.write("rome", "INSERT INTO u VALUES (2, 'same')")
    with pytest.raises(ReplayError, match="does not fit this database"):
        sites.take("oslo")
    sites.write("rome", "INSERT INTO u VALUES (3, 'three')", "UPDATE u SET name = 'other' WHERE id = 2")
    assert sites.take("oslo") == 3
    sites.exchange()
    sites.refuse_differences("u")
    assert sites.rows("oslo", "u") == [(1, "same"), (2, "other"), (3, "three")]


@pytest.mark.slow
def test_a_rule_and_a_constraint_that_is_not_published_yet_do_not_meet(tmp_path: Path) -> None:
    """Given the file, what waits is published first; else the site that holds the constraint does not publish it."""
    sites = Sites(tmp_path)
    constraints = ["n INTEGER UNIQUE", "n INTEGER; CREATE UNIQUE INDEX i ON {t} (n)", "n INTEGER REFERENCES parents"]
    constraints.append("n INTEGER NOT NULL CHECK (n > 0)")
    tables = [f"q{number}" for number in range(len(constraints))]
    sites.found(
        " ".join(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY);" for table in [*tables, "parents"]), mesh=True
    )
    sites.join("rome")
    farm = f"{sites.farm}/sales"
    for table, constraint in zip(tables, constraints, strict=True):
        layout, _, index = constraint.partition("; ")
        add = ["n"] if "CHECK" in constraint else []
        with wlc.connect(sites.file("oslo")) as connection:
            connection.execute(f"CREATE OR REPLACE TABLE {table} (id INTEGER PRIMARY KEY, {layout})")
            connection.execute(index.format(t=table) or "SELECT 1")
            if not add:
                wlc.set_rule(farm, table, "newest")
                with pytest.raises(UnsupportedError, match=f"main.{table} has the rule newest") as refused:
                    wlc.flush(sites.file("oslo"))
                assert f"wlc site rule {farm} main.{table} owner --site oslo" in str(refused.value.hint)
                wlc.set_rule(farm, table, "owner", site="oslo")
                sites.take("oslo")
                connection.execute(f"COMMENT ON TABLE {table} IS 'again'")
            with pytest.raises(UnsupportedError, match=f"main.{table} has a"):
                wlc.set_rule(sites.file("oslo"), table, "newest", add=add)
    sites.exchange()
    sites.write("oslo", "INSERT INTO q0 VALUES (1, 1)")
    sites.exchange()
    sites.refuse_differences(*tables)


SHAPES = """
    CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE parents (id INTEGER PRIMARY KEY);
    CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (id));
    CREATE TABLE grandchildren (id INTEGER PRIMARY KEY, child INTEGER REFERENCES children (id));
    CREATE TABLE tree (k INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (k));
    CREATE TABLE pairs (k INTEGER PRIMARY KEY, a INTEGER, b INTEGER, v VARCHAR, UNIQUE (a, b));
    CREATE TABLE of_pairs (k INTEGER PRIMARY KEY, p INTEGER REFERENCES pairs (k));
    CREATE TABLE codes (code INTEGER UNIQUE);
    CREATE TABLE coded (k INTEGER PRIMARY KEY, code INTEGER REFERENCES codes (code), u VARCHAR);
    CREATE UNIQUE INDEX spelled_otherwise ON coded (U);
    INSERT INTO a VALUES (1, 'one'), (2, 'two');
    INSERT INTO parents VALUES (1);
    INSERT INTO tree VALUES (1, NULL);
    INSERT INTO tree VALUES (9, 1);
    INSERT INTO pairs VALUES (1, 1, 1, 'x'), (2, 2, 1, 'x'), (3, 3, 3, 'x');
    INSERT INTO of_pairs VALUES (1, 3);
    INSERT INTO codes VALUES (1);
"""


@pytest.mark.slow
def test_families_of_any_shape_go_back_and_change(tmp_path: Path) -> None:
    """DuckDB does not remove a row and one that refers to it in one transaction, nor swap unique values in one statement."""
    sites = Sites(tmp_path)
    sites.found(SHAPES)
    tables = {"a": [(1, "oslo"), (2, "oslo")], "parents": [(1,)], "children": [], "grandchildren": []}
    tables |= {"tree": [(1, None), (9, 1)], "coded": [(9, 1, "b")], "of_pairs": [(1, 3)]}
    tables |= {"pairs": [(1, 2, 2, "x"), (2, 2, 3, "y"), (3, 3, 3, "y")]}
    for table in ("a", "parents", "children", "grandchildren", "tree"):
        wlc.set_rule(sites.file("oslo"), table, "epoch_trans")
    wlc.set_rule(sites.file("oslo"), "coded", "epoch")
    sites.join("paris")
    sites.join("rome")
    play(
        sites,
        [
            "oslo: UPDATE a SET v = 'oslo'",
            # Unique values of two columns change hands, in a table to which others refer.
            "oslo: BEGIN; UPDATE pairs SET a = 2, b = CASE k WHEN 1 THEN 2 ELSE 3 END WHERE k < 3;"
            " UPDATE pairs SET v = 'y' WHERE k > 1; COMMIT",
            # The index spells its column in another way, and the parent has no primary key.
            "oslo: INSERT INTO coded VALUES (9, 1, 'b')",
            "rome: BEGIN; UPDATE a SET v = 'rome' WHERE id = 1; INSERT INTO parents VALUES (2);"
            " INSERT INTO children VALUES (1, 1), (2, 2); INSERT INTO grandchildren VALUES (2, 2); COMMIT",
            "rome: BEGIN; INSERT INTO tree VALUES (2, 1), (5, 1); INSERT INTO tree VALUES (3, 2), (4, 2); INSERT INTO tree"
            " VALUES (6, 4); UPDATE tree SET up = 6 WHERE k = 9; UPDATE a SET v = 'rome' WHERE id = 2; COMMIT",
            "rome: INSERT INTO coded VALUES (2, 1, 'b')",
            "oslo>rome",
        ],
    )
    sites.exchange()
    sites.refuse_differences(*tables)
    assert {table: sites.rows("rome", table) for table in tables} == tables
    counts = {each.name: each.value for each in wlc.conflicts(sites.file("oslo")) if each.site == "rome"}
    assert counts["refreshed"] == 13
    for site in ("oslo", "rome"):
        sites.replica_equals(site, *tables)


FAMILIES = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE p (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
    CREATE TABLE c (k INTEGER PRIMARY KEY, p INTEGER REFERENCES p (k), u VARCHAR UNIQUE);
"""
BEGINNING = "t VALUES (1, 't')", "p VALUES (1, 'x'), (2, 'y')", "c VALUES (1, 1, 'a'), (2, 2, 'b')"
# What happens, and the rows of c at rome then; p is as in the beginning.
GIVES_WAY: dict[str, tuple[list[str], list[tuple[object, ...]]]] = {
    "another row, which gives way too, has its former value": (
        [
            "rome: UPDATE c SET u = 'z' WHERE k = 1",
            "rome: INSERT INTO c VALUES (5, 1, 'a'), (6, 1, 'free')",
            "oslo: INSERT INTO c VALUES (9, 2, 'z')",
        ],
        [(1, 1, "a"), (2, 2, "b"), (6, 1, "free"), (9, 2, "z")],
    ),
    "what it referred to is gone, and comes back, for which others go first": (
        [
            "rome: UPDATE c SET p = 2, u = 'z' WHERE k = 1",
            "rome: DELETE FROM p WHERE k = 1",
            "rome: INSERT INTO p VALUES (5, 'x')",
            "rome: INSERT INTO c VALUES (5, 5, 'a')",
            "oslo: INSERT INTO c VALUES (9, 2, 'z')",
        ],
        [(1, 1, "a"), (2, 2, "b"), (9, 2, "z")],
    ),
    "the step changes the row that has its former value": (
        [
            "rome: UPDATE c SET u = 'z' WHERE k = 1",
            "rome: UPDATE c SET u = 'a' WHERE k = 2",
            "oslo: BEGIN; UPDATE c SET u = 'q' WHERE k = 2; INSERT INTO c VALUES (9, 2, 'z'); COMMIT",
        ],
        [(1, 1, "a"), (2, 2, "q"), (9, 2, "z")],
    ),
}
# Transactions of rome, of which each also changes a row of t that oslo has changed: nothing of them stays.
GOES_BACK = {
    "moved to a new one": ["INSERT INTO p VALUES (3, 'z'); UPDATE c SET p = 3 WHERE k = 1"],
    "and the former one changed": [
        "INSERT INTO p VALUES (3, 'z'); UPDATE c SET p = 3 WHERE k = 1",
        "UPDATE p SET v = 'w' WHERE k = 1",
    ],
    "both new": ["INSERT INTO p VALUES (3, 'z'); INSERT INTO c VALUES (3, 3, 'c')"],
    "removed": ["UPDATE c SET p = 2 WHERE k = 1", "DELETE FROM p WHERE k = 1"],
    "values used again": [
        "UPDATE c SET p = 2, u = 'z' WHERE k = 1",
        "DELETE FROM p WHERE k = 1",
        "INSERT INTO p VALUES (5, 'x'); INSERT INTO c VALUES (5, 5, 'a')",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("rule, joined", [("epoch", 1), ("epoch_trans", 1_000)])
def test_rows_give_way_and_go_back_with_what_they_refer_to(tmp_path: Path, rule: str, joined: int) -> None:
    sites = Sites(tmp_path)
    sites.found(FAMILIES)
    for table in "tpc":
        wlc.set_rule("sales", table, rule, farm=sites.farm)
    sites.join("paris")
    sites.join("rome")

    def begin_again() -> None:
        sites.write(
            "oslo", *(f"DELETE FROM {table}" for table in "ctp"), *(f"INSERT INTO {each}" for each in BEGINNING)
        )
        sites.exchange()

    for name, (steps, rows) in GIVES_WAY.items():
        begin_again()
        play(sites, [*steps, "oslo>rome"])
        assert sites.rows("rome", "c") == rows, name
        assert sites.rows("rome", "p") == [(1, "x"), (2, "y")], name
        sites.exchange()
        sites.refuse_differences("p", "c")
    for name, transactions in GOES_BACK.items() if rule == "epoch_trans" else ():
        begin_again()
        play(sites, ["oslo: UPDATE t SET v = 'oslo'"])
        play(sites, [f"rome: BEGIN; {each}; UPDATE t SET v = 'rome'; COMMIT" for each in transactions])
        sites.exchange()
        sites.refuse_differences("t", "p", "c")
        assert sites.rows("rome", "p") == [(1, "x"), (2, "y")], name
        assert sites.rows("rome", "c") == [(1, 1, "a"), (2, 2, "b")], name
    begin_again()
    others_take_a_row_that_the_new_primary_gave_up(sites, joined)


def others_take_a_row_that_the_new_primary_gave_up(sites: Sites, joined: int) -> None:
    """It does not fit them, who have what it gave way to; with what follows it in the log, it does."""
    sites.write("oslo", "INSERT INTO p VALUES (3, 'same')")
    wlc.flush(sites.file("oslo"))
    for statement in ("INSERT INTO p VALUES (4, 'same')", "INSERT INTO p VALUES (5, 'five')", "DELETE FROM c"):
        sites.write("rome", statement)
        wlc.flush(sites.file("rome"))
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=sites.farm)
    sites.take("rome")
    sites.write("rome", "INSERT INTO c VALUES (1, 1, 'new')")
    with patch("wlc.multi_master.missing_steps.JOINED_TRANSACTIONS", joined):
        sites.take("paris")
    assert sites.rows("paris", "p") == [(1, "x"), (2, "y"), (3, "same"), (5, "five")]
    sites.exchange()
    sites.refuse_differences("p", "c")
    sites.replica_equals("paris", "t", "p", "c")
