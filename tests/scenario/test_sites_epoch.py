"""What the primary rejects of a site's changes: the cases of MySQL NDB Cluster's suite ndb_rpl, with real sites. docs/sites.md has one of them.

Oslo is the primary, rome a secondary. All cases run side by side, each with tables of its own: both sites know the same
rows, then both write without reading each other, then oslo takes what rome published, and rome what oslo published.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites
from wlc.farm.circle import Circle, Rule, circle_object, with_rule
from wlc.farm.errors import InvalidError
from wlc.farm.model import Name, RowsRead
from wlc.multi_master import missing_steps
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from pathlib import Path

INSERTED = "WRITE_ROW ROW_ALREADY_EXISTS"
UPDATED, DELETED = "UPDATE_ROW DATA_IN_CONFLICT", "DELETE_ROW DATA_IN_CONFLICT"
UPDATED_GONE, DELETED_GONE = "UPDATE_ROW ROW_DOES_NOT_EXIST", "DELETE_ROW ROW_DOES_NOT_EXIST"
IN_TRANSACTION = "TRANS_IN_CONFLICT"
Rows = list[tuple[object, ...]]


@dataclass(frozen=True)
class Case:
    """Statements name the case's tables {t}, {u} and {n}; each item of `oslo` and `rome` is one transaction.

    Attributes:
        rules: Of each table, and which reads it tracks; "" for none.
        indexes: Statements before there is a second site.
        before: Rows that both sites know.
        rejected: For each rejected row the table, the kind of change and the cause, in order.
        counts: What the counters rise by.
        after: Rows of {t}, {u} and {n} at both sites in the end.
    """

    oslo: tuple[str, ...]
    rome: tuple[str, ...]
    rejected: tuple[str, ...]
    counts: dict[str, int]
    after: tuple[Rows, ...]
    before: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    rules: dict[str, str] = field(default_factory=lambda: {"t": "epoch"})


TRANS = {"t": "epoch_trans", "u": "epoch_trans"}
TRACKED = {"t": "epoch_trans exclusive", "u": "epoch_trans"}
ALL_READS = {"t": "epoch_trans shared", "u": "epoch_trans"}
MIXED = {"t": "epoch_trans", "u": "epoch", "n": ""}


def many(first: int, last: int) -> str:
    return f"INSERT INTO {{t}} SELECT range, 'x' FROM range({first}, {last + 1})"


def read_and_update(condition: str, indexes: tuple[str, ...] = ()) -> Case:
    """Rome reads row 1 of {t} for an update of {u}, while oslo changes it."""
    return Case(
        rules=TRACKED,
        indexes=indexes,
        before=("INSERT INTO {t} VALUES (1, 'one'), (2, 'two'); INSERT INTO {u} VALUES (3, 'x')",),
        oslo=("UPDATE {t} SET v = 'oslo' WHERE k = 1",),
        rome=(f"SELECT * FROM {{t}} WHERE {condition} FOR UPDATE; UPDATE {{u}} SET v = 'rome'",),
        rejected=(f"t READ_ROW {IN_TRANSACTION}", f"u UPDATE_ROW {IN_TRANSACTION}"),
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 1},
        after=([(1, "oslo"), (2, "two")], [(3, "x")]),
    )


def read_and_read(clause: str, *, is_rejected: bool) -> Case:
    """Both sites read row 1 of {t}, and rome changes {u}."""
    counts = {"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 1}
    return Case(
        rules=TRACKED,
        before=("INSERT INTO {t} VALUES (1, 'one'), (2, 'two'); INSERT INTO {u} VALUES (3, 'x')",),
        oslo=(f"SELECT * FROM {{t}} WHERE k = 1 {clause}",),
        rome=(f"SELECT v FROM {{t}} AS r WHERE r.k = 1 {clause}; UPDATE {{u}} SET v = 'rome'",),
        rejected=(f"t READ_ROW {IN_TRANSACTION}", f"u UPDATE_ROW {IN_TRANSACTION}") if is_rejected else (),
        counts=counts if is_rejected else {},
        after=([(1, "one"), (2, "two")], [(3, "x" if is_rejected else "rome")]),
    )


CASES = {
    "e1": Case(
        oslo=(),
        before=("INSERT INTO {t} VALUES (1, 'Metropole')",),
        rome=("UPDATE {t} SET v = 'Favourite'", "UPDATE {t} SET v = 'a'", "UPDATE {t} SET v = 'b'"),
        rejected=(),
        counts={},
        after=([(1, "b")],),
    ),
    "e2": Case(
        oslo=(),
        rome=("INSERT INTO {t} VALUES (2, 'a')", "UPDATE {t} SET v = 'b'", "DELETE FROM {t}"),
        rejected=(),
        counts={},
        after=([],),
    ),
    "e3": Case(
        oslo=("INSERT INTO {t} VALUES (2, 'Loopy')",),
        rome=("INSERT INTO {t} VALUES (2, 'Cloisters')",),
        rejected=(f"t {INSERTED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(2, "Loopy")],),
    ),
    "e4": Case(
        before=("INSERT INTO {t} VALUES (2, 'Loopy')",),
        oslo=("UPDATE {t} SET v = 'Peters Yard'",),
        rome=("UPDATE {t} SET v = 'x'",),
        rejected=(f"t {UPDATED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(2, "Peters Yard")],),
    ),
    "e5": Case(
        before=("INSERT INTO {t} VALUES (2, 'Loopy')",),
        oslo=("UPDATE {t} SET v = 'new'",),
        rome=("DELETE FROM {t}",),
        rejected=(f"t {DELETED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(2, "new")],),
    ),
    "e6": Case(
        before=("INSERT INTO {t} VALUES (2, 'Loopy')",),
        oslo=("DELETE FROM {t}",),
        rome=("UPDATE {t} SET v = 'x'",),
        rejected=(f"t {UPDATED_GONE}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([],),
    ),
    "e7": Case(
        before=("INSERT INTO {t} VALUES (2, 'Loopy')",),
        oslo=("DELETE FROM {t}",),
        rome=("DELETE FROM {t}",),
        rejected=(f"t {DELETED_GONE}",),
        counts={"epoch": 1, "delete_delete": 1},
        after=([],),
    ),
    "e8": Case(
        before=("INSERT INTO {t} VALUES (3, 'x')",),
        oslo=("DELETE FROM {t}",),
        rome=("DELETE FROM {t}", "INSERT INTO {t} VALUES (3, 'Dalriada')"),
        rejected=(f"t {DELETED_GONE}", "t WRITE_ROW DATA_IN_CONFLICT"),
        counts={"epoch": 2, "delete_delete": 1, "refreshed": 1},
        after=([],),
    ),
    "e9": Case(
        oslo=("INSERT INTO {t} VALUES (4, 'Haymarket')",),
        rome=("INSERT INTO {t} VALUES (4, 'a')", "UPDATE {t} SET v = 'b'", "DELETE FROM {t}"),
        rejected=(f"t {INSERTED}", f"t {UPDATED}", f"t {DELETED}"),
        counts={"epoch": 3, "refreshed": 1},
        after=([(4, "Haymarket")],),
    ),
    "e10": Case(
        before=("INSERT INTO {t} VALUES (4, 'x')",),
        oslo=("UPDATE {t} SET v = 'Blind poet'",),
        rome=("DELETE FROM {t}", "INSERT INTO {t} VALUES (4, 'a')", "UPDATE {t} SET v = 'b'"),
        rejected=(f"t {DELETED}", f"t {INSERTED}", f"t {UPDATED}"),
        counts={"epoch": 3, "refreshed": 1},
        after=([(4, "Blind poet")],),
    ),
    "e11": Case(
        oslo=(),
        rome=("INSERT INTO {t} VALUES (5, 'a')", "UPDATE {t} SET v = 'b'", "DELETE FROM {t}"),
        rejected=(),
        counts={},
        after=([],),
    ),
    "e12": Case(
        oslo=("INSERT INTO {t} VALUES (1, 'oslo')",),
        rome=(
            many(0, 99),
            *(f"{change} WHERE k = 1" for change in ("UPDATE {t} SET v = 'y'", "DELETE FROM {t}")),
            "INSERT INTO {t} VALUES (1, 'z')",
        ),
        rejected=(f"t {INSERTED}", f"t {UPDATED}", f"t {DELETED}", f"t {INSERTED}"),
        counts={"epoch": 4, "refreshed": 1},
        after=([(0, "x"), (1, "oslo"), *((key, "x") for key in range(2, 100))],),
    ),
    "e13": Case(
        before=("INSERT INTO {t} VALUES (1, 'x')",),
        oslo=("DELETE FROM {t}",),
        rome=("DELETE FROM {t}; " + many(2, 201), "INSERT INTO {t} VALUES (1, 'again')"),
        rejected=(f"t {DELETED_GONE}", "t WRITE_ROW DATA_IN_CONFLICT"),
        counts={"epoch": 2, "delete_delete": 1, "refreshed": 1},
        after=([(key, "x") for key in range(2, 202)],),
    ),
    "truncated": Case(
        before=(many(1, 3),),
        oslo=("UPDATE {t} SET v = 'new' WHERE k = 2",),
        rome=("TRUNCATE {t}",),
        rejected=(f"t {DELETED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(2, "new")],),
    ),
    # A row whose key changes is one that is deleted and another one that is inserted.
    "renamed": Case(
        before=(many(1, 1),),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=("UPDATE {t} SET k = 5",),
        rejected=(f"t {DELETED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(1, "oslo"), (5, "x")],),
    ),
    "renamedwhole": Case(
        rules=TRANS,
        before=(many(1, 1),),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=("UPDATE {t} SET k = 5", "UPDATE {t} SET v = 'rome' WHERE k = 5"),
        rejected=(f"t DELETE_ROW {IN_TRANSACTION}",)
        + (f"t WRITE_ROW {IN_TRANSACTION}", f"t UPDATE_ROW {IN_TRANSACTION}"),
        counts={"row_conflicts": 1, "row_rejects": 3, "rejects": 2, "dependents": 1, "refreshed": 2},
        after=([(1, "oslo")],),
    ),
    "twice": Case(
        rules={"t": "epoch", "u": "epoch_trans"},
        before=(many(1, 1), "INSERT INTO {u} FROM {t}"),
        oslo=(),
        rome=tuple(
            f"INSERT INTO {t} VALUES (2, 'a'); UPDATE {t} SET v = 'b'; UPDATE {t} SET v = 'c' WHERE k = 2;"
            f" DELETE FROM {t} WHERE k = 1; INSERT INTO {t} VALUES (1, 'again')"
            for t in ("{t}", "{u}")
        ),
        rejected=(),
        counts={},
        after=([(1, "again"), (2, "c")], [(1, "again"), (2, "c")]),
    ),
    "t1": Case(
        rules=TRANS,
        before=(many(2, 2),),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=("UPDATE {t} SET v = 'rome'",),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",),
        counts={"row_conflicts": 1, "row_rejects": 1, "rejects": 1, "refreshed": 1},
        after=([(2, "oslo")],),
    ),
    "t2": Case(
        rules=TRANS,
        before=(many(4, 5),),
        oslo=("UPDATE {t} SET v = 'oslo' WHERE k = 4",),
        rome=("UPDATE {t} SET v = 'rome'",),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",) * 2,
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 2},
        after=([(4, "oslo"), (5, "x")],),
    ),
    "t3": Case(
        rules=TRANS,
        before=(many(1, 1), many(3, 3)),
        oslo=("UPDATE {t} SET v = 'oslo' WHERE k = 1",),
        rome=("UPDATE {t} SET v = 'rome'", "UPDATE {t} SET v = 'b' WHERE k = 3; INSERT INTO {t} VALUES (11, 'b')"),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",) * 3 + (f"t WRITE_ROW {IN_TRANSACTION}",),
        counts={"row_conflicts": 1, "row_rejects": 4, "rejects": 2, "dependents": 1, "refreshed": 3},
        after=([(1, "oslo"), (3, "x")],),
    ),
    "t4": Case(
        rules=TRANS,
        before=(many(6, 6),),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=(
            "UPDATE {t} SET v = 'rome'; INSERT INTO {u} VALUES (1, 'a'), (2, 'a')",
            "UPDATE {u} SET v = 'b' WHERE k = 2; INSERT INTO {u} VALUES (3, 'b')",
        ),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",)
        + (f"u WRITE_ROW {IN_TRANSACTION}",) * 3
        + (f"u UPDATE_ROW {IN_TRANSACTION}",),
        counts={"row_conflicts": 1, "row_rejects": 5, "rejects": 2, "dependents": 1, "refreshed": 4},
        after=([(6, "oslo")], []),
    ),
    "t5": Case(
        rules=TRANS,
        before=(many(10, 10),),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=("UPDATE {t} SET v = 'rome'; " + many(11, 11), many(12, 14)),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}", f"t WRITE_ROW {IN_TRANSACTION}"),
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 2},
        after=([(10, "oslo"), (12, "x"), (13, "x"), (14, "x")],),
    ),
    "t6": Case(
        rules=TRANS,
        before=(many(7, 9),),
        oslo=("UPDATE {t} SET v = 'oslo' WHERE k = 7",),
        rome=("UPDATE {t} SET v = 'innocent' WHERE k IN (8, 9)", "UPDATE {t} SET v = 'rome' WHERE k IN (7, 9)"),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",) * 2,
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 2},
        after=([(7, "oslo"), (8, "innocent"), (9, "innocent")],),
    ),
    # {t}: accounts 1 of the employer, 2 Larry, 3 of the dealer, 4 of the paper; {u}: transactions.
    "t7": Case(
        rules=TRANS,
        before=("INSERT INTO {t} VALUES (1, '0'), (2, '100'), (3, '0'), (4, '0')",),
        oslo=("UPDATE {t} SET v = '50' WHERE k IN (2, 3); INSERT INTO {u} VALUES (100, 'yacht')",),
        rome=(
            "UPDATE {t} SET v = '-10' WHERE k = 1; UPDATE {t} SET v = '110' WHERE k = 2;"
            " INSERT INTO {u} VALUES (1, 'wage')",
            "UPDATE {t} SET v = '-20' WHERE k = 1; UPDATE {t} SET v = '120' WHERE k = 2;"
            " INSERT INTO {u} VALUES (2, 'wage')",
            "UPDATE {t} SET v = '5' WHERE k = 4; UPDATE {t} SET v = '115' WHERE k = 2;"
            " INSERT INTO {u} VALUES (3, 'magazine')",
        ),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",) * 6 + (f"u WRITE_ROW {IN_TRANSACTION}",) * 3,
        counts={"row_conflicts": 3, "row_rejects": 9, "rejects": 3, "refreshed": 6},
        after=([(1, "0"), (2, "50"), (3, "50"), (4, "0")], [(100, "yacht")]),
    ),
    "t8": Case(
        rules=MIXED,
        before=(many(1, 1), "INSERT INTO {u} FROM {t}", "INSERT INTO {n} FROM {t}"),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=("UPDATE {t} SET v = 'rome'; UPDATE {u} SET v = 'rome'; UPDATE {n} SET v = 'rome'",),
        rejected=tuple(f"{table} UPDATE_ROW {IN_TRANSACTION}" for table in "ntu"),
        counts={"row_conflicts": 1, "row_rejects": 3, "rejects": 1, "refreshed": 3},
        after=([(1, "oslo")], [(1, "x")], [(1, "x")]),
    ),
    "t9": Case(
        rules=MIXED,
        before=(many(1, 1), "INSERT INTO {u} FROM {t}", "INSERT INTO {n} FROM {t}"),
        oslo=("UPDATE {u} SET v = 'oslo'",),
        rome=("UPDATE {t} SET v = 'rome'; UPDATE {u} SET v = 'rome'; UPDATE {n} SET v = 'rome'",),
        rejected=(f"u {UPDATED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(1, "rome")], [(1, "oslo")], [(1, "rome")]),
    ),
    "t10": Case(
        rules=TRANS,
        before=(many(1, 2),),
        oslo=("UPDATE {t} SET v = repeat('o', 10000) WHERE k = 1",),
        rome=("UPDATE {t} SET v = repeat('r', 10000)",),
        rejected=(f"t UPDATE_ROW {IN_TRANSACTION}",) * 2,
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 2},
        after=([(1, "o" * 10_000), (2, "x")],),
    ),
    "r1": Case(
        rules=TRANS,
        before=(many(1, 2), "INSERT INTO {u} VALUES (3, 'x')"),
        oslo=("UPDATE {t} SET v = 'oslo'",),
        rome=("SELECT * FROM {t} WHERE k = 1; UPDATE {u} SET v = 'rome'",),
        rejected=(),
        counts={},
        after=([(1, "oslo"), (2, "oslo")], [(3, "rome")]),
    ),
    "r2": read_and_update("k = 1"),
    "r3": Case(
        rules=TRANS,
        before=(many(1, 2), "INSERT INTO {u} VALUES (3, 'x')"),
        oslo=("SELECT * FROM {t} WHERE k = 1",),
        rome=("SELECT * FROM {t} WHERE k = 1; UPDATE {u} SET v = 'rome'",),
        rejected=(),
        counts={},
        after=([(1, "x"), (2, "x")], [(3, "rome")]),
    ),
    "r4": read_and_read("FOR UPDATE", is_rejected=True),
    "r4shared": read_and_read("FOR SHARE", is_rejected=False),
    "r5": read_and_update("v = 'one'", ("CREATE UNIQUE INDEX r5 ON {t} (v)",)),
    "r6": read_and_update("v BETWEEN 'o' AND 'p'", ("CREATE INDEX r6 ON {t} (v)",)),
    "r7": read_and_update("v LIKE '%ne'"),
    # Reads of transactions that write count without a clause, and no others.
    "all": Case(
        rules=ALL_READS,
        before=("INSERT INTO {t} VALUES (1, '5'), (2, '7'); INSERT INTO {u} VALUES (3, 'x')",),
        oslo=("UPDATE {t} SET v = '6' WHERE k = 1",),
        rome=(
            "SELECT sum(v::INTEGER) FROM {t} WHERE k < 2; UPDATE {u} SET v = 'rome'",
            "SELECT * FROM {t}; SELECT * FROM {u}",
            "SELECT t.k FROM {t} AS t, {u} AS u; INSERT INTO {u} VALUES (4, 'joined')",
        ),
        rejected=(f"t READ_ROW {IN_TRANSACTION}", f"u UPDATE_ROW {IN_TRANSACTION}"),
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 1},
        after=([(1, "6"), (2, "7")], [(3, "x"), (4, "joined")]),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What is seen once every site has taken everything."""

    sites: Sites
    rejected: dict[str, list[str]]
    counts: dict[str, int]


def written(sites: Sites, site: str, transactions: list[str]) -> None:
    sites.write(site, *(f"BEGIN; {transaction}; COMMIT" for transaction in transactions))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("epoch"), CASES)


def run_cases(folder: Path, cases: dict[str, Case], *, is_each_published: bool = False) -> Outcome:
    """Run cases; Rome publishes its transactions as one batch, or each as a batch of its own."""
    sites = Sites(folder)
    tables = {f"{name}_{table}": rule for name, case in cases.items() for table, rule in case.rules.items()}
    with duckdb.connect(sites.file("oslo")) as connection:
        connection.execute("; ".join(f"CREATE TABLE {table} (k INTEGER PRIMARY KEY, v VARCHAR)" for table in tables))
        for name, case in cases.items():
            for index in case.indexes:
                connection.execute(index.format(t=f"{name}_t"))
    sites.found()
    sites.join("rome")

    def with_rules(circle: Circle | None) -> Circle:
        assert circle is not None
        for table, rule in tables.items():
            kind, _, reads = rule.partition(" ")
            added = Rule(Name("main", table), kind, reads=reads or "none")
            circle = with_rule(circle, added) if rule else circle
        return circle

    circle_object(sites.log("oslo")).change(with_rules)

    def of(name: str, statements: tuple[str, ...]) -> list[str]:
        named = {table: f"{name}_{table}" for table in "tun"}
        return [statement.format(**named) for statement in statements]

    written(sites, "oslo", ["; ".join(text for name, case in cases.items() for text in of(name, case.before))])
    sites.exchange()
    if is_each_published:
        wlc.beat(sites.file("rome"), 0)
    written(sites, "oslo", ["; ".join(text for name, case in cases.items() for text in of(name, case.oslo))])
    written(sites, "rome", [text for name, case in cases.items() for text in of(name, case.rome)])
    wlc.flush(sites.file("rome"))
    sites.exchange()
    rejected: dict[str, list[str]] = {name: [] for name in cases}
    for row in wlc.exceptions(sites.file("oslo")):
        name, table = row.table.name.split("_")
        rejected[name].append(f"{table} {row.op_type} {row.cause}")
    counts = {counter.name: counter.value for counter in wlc.conflicts(sites.file("oslo"))}
    return Outcome(sites, rejected, counts)


@pytest.mark.parametrize("name", CASES)
def test_conflicts(outcome: Outcome, name: str) -> None:
    case = CASES[name]
    in_order = sorted if case.rules != {"t": "epoch"} else list
    assert in_order(outcome.rejected[name]) == in_order(case.rejected)
    for table, rows in zip(case.rules, case.after, strict=False):
        for site in ("oslo", "rome"):
            assert outcome.sites.rows(site, f"{name}_{table}") == rows


def test_the_counters_are_exactly_those_of_all_cases(outcome: Outcome) -> None:
    # Rome published everything as one batch, which is one step.
    assert counted(outcome) == expected_of(CASES)
    assert outcome.counts["last_conflict_tick"] > 0


@pytest.mark.parametrize("joined", [pytest.param(1, marks=pytest.mark.deep), missing_steps.JOINED_TRANSACTIONS])
def test_p7_borders_of_batches_and_of_steps_change_no_verdict(outcome: Outcome, tmp_path: Path, joined: int) -> None:
    """Every batch has one transaction, and is taken by itself, or all are taken at once."""
    cases = {name: case for name, case in CASES.items() if len(case.rome) > 1}
    with patch.object(missing_steps, "JOINED_TRANSACTIONS", joined):
        found = run_cases(tmp_path, cases, is_each_published=True)
    assert len(found.sites.log("rome").batch_numbers()) > len(cases)
    for name, case in cases.items():
        assert sorted(found.rejected[name]) == sorted(outcome.rejected[name])
        for table, rows in zip(case.rules, case.after, strict=False):
            assert [found.sites.rows(site, f"{name}_{table}") for site in found.sites.names] == [rows, rows]
    # Alone, a transaction meets the refresh of the one before it, and not that one.
    assert joined == 1 or counted(found) == expected_of(cases)


def counted(outcome: Outcome) -> dict[str, int]:
    return {name: value for name, value in outcome.counts.items() if not name.endswith("_tick")}


def expected_of(cases: dict[str, Case]) -> dict[str, int]:
    expected: Counter[str] = Counter()
    for case in cases.values():
        expected.update(case.counts)
    return dict(expected) | {"conflict_steps": 1}


def test_logs_with_rejections_are_logs_like_others(outcome: Outcome, tmp_path: Path) -> None:
    """Rows that are only reported, as read or as refreshed, add nothing to what anybody reads of a site's folder."""
    outcome.sites.replica_equals("oslo")
    for site in outcome.sites.names:
        url = outcome.sites.log(site).url
        assert wlr.drill(url, folder=tmp_path).is_sound
        wlr.replicate(url, into=tmp_path / site, register=False)
        assert all(check.outcome == "same" for check in wlr.verify(tmp_path / site).tables)
        for table in ("t3_t", "r2_t", "e6_t"):
            held = outcome.sites.rows(site, table)
            assert sorted(wlr.read(tmp_path / site, table).fetchall()) == held
            source = FarmDataSource({"database": url, "table": table})
            reader = source.reader(source.schema())
            found = [row for task in reader.partitions() for part in reader.read(task) for row in part.to_pylist()]
            assert sorted((row["k"], row["v"]) for row in found) == held


def test_what_was_rejected_is_shown(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(outcome.sites.file("oslo"))
    assert run_app(app, "wlc", ["exceptions", file, "--table", "e6_t", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["source"], row["op_type"], row["cause"]) == ("rome", "UPDATE_ROW", "ROW_DOES_NOT_EXIST")
    # As --table takes it.
    assert row["table"] == "main.e6_t"
    assert (row["old"], row["new"], row["local"]) == ({"k": 2, "v": "Loopy"}, {"k": 2, "v": "x"}, None)
    assert run_app(app, "wlc", ["exceptions", file, "--count"]) == 0
    assert str(len(wlc.exceptions(file))) in capsys.readouterr().out
    assert wlc.exceptions(file, since="2126-01-01") == []
    assert run_app(app, "wlc", ["conflicts", file]) == 0
    assert "conflict_steps" in capsys.readouterr().out
    with duckdb.connect(file, read_only=True) as connection:
        found = connection.execute('SELECT k, "v$OLD", "v$NEW", op_type, cft_cause FROM wlc."e3_t$EX"').fetchall()
    assert found == [(2, None, "Cloisters", "WRITE_ROW", "ROW_ALREADY_EXISTS")]
    # Of a secondary nothing is rejected, and what it rejects is not replicated; rows that it had are replaced.
    assert wlc.exceptions(outcome.sites.file("rome")) == []
    last = {(row.table, str(row.key)): row.op_type for row in wlc.exceptions(file)}
    replaced = sum(kind in ("WRITE_ROW", "UPDATE_ROW") for kind in last.values())
    counts = [(counter.site, counter.name, counter.value) for counter in wlc.conflicts(outcome.sites.file("rome"))]
    assert counts == [("rome", "overwritten", replaced)]


def test_what_was_read_is_published_and_a_transaction_that_only_reads_is_not(outcome: Outcome) -> None:
    log = outcome.sites.log("rome")
    records = [r for n in log.batch_numbers() for t in log.read_batch(n)[0].transactions for r in t.records]
    found = {(r.table.name, r.rows, r.exclusive) for r in records if isinstance(r, RowsRead)}
    expected = {(f"{name}_t", 1, True) for name in ("r2", "r4", "r5", "r6", "r7")}
    assert found == expected | {("r4shared_t", 1, False), ("all_t", 1, False)}


def test_reads_see_what_was_there_when_their_transaction_began(outcome: Outcome) -> None:
    sites = outcome.sites
    with wlc.connect(sites.file("rome")) as connection:
        connection.execute("BEGIN; SELECT * FROM r2_t WHERE k = 1 FOR UPDATE")
        sites.write("oslo", "UPDATE r2_t SET v = 'later' WHERE k = 1")
        wlc.flush(sites.file("oslo"))
        sites.take("rome")
        # It does not see what was taken meanwhile, although it commits after it.
        assert connection.execute("SELECT v FROM r2_t WHERE k = 1 FOR UPDATE").fetchall() == [("oslo",)]
        connection.execute("UPDATE r2_u SET v = 'stale'; COMMIT")
    before = len(wlc.exceptions(sites.file("oslo")))
    sites.exchange()
    rows = [(row.table.name, row.op_type) for row in wlc.exceptions(sites.file("oslo"))[before:]]
    assert sorted(rows) == [("r2_t", "READ_ROW"), ("r2_u", "UPDATE_ROW")]
    assert sites.rows("rome", "r2_u") == [(3, "x")]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT r2_t.k FROM r2_t JOIN r2_u USING (k)", "not joins, subqueries"),
        ("SELECT * FROM r2_t WHERE k IN (SELECT k FROM r2_u)", "not joins, subqueries"),
        ("SELECT * FROM r2_t WHERE random() < 0.5", "may choose other rows"),
        ("SELECT k AS n FROM r2_t WHERE n = 1", "something besides its columns"),
        ("SELECT * FROM bag", "no primary key"),
        ("SELECT * FROM duckdb_tables", "no table of sales"),
        ("SELECT * FROM t1_t", "rule of main.t1_t does not track reads"),
    ],
)
def test_a_lock_that_would_protect_nothing_is_refused(outcome: Outcome, query: str, why: str) -> None:
    with wlc.connect(outcome.sites.file("rome")) as connection:
        with pytest.raises(InvalidError, match=why):
            connection.execute(f"{query} FOR UPDATE")
        with pytest.raises(InvalidError, match="a relation"):
            connection.sql(f"{query} FOR UPDATE")
        # The transaction goes on.
        connection.execute("BEGIN; SELECT * FROM r2_t WHERE k = 1 FOR SHARE; ROLLBACK")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "epoch", "--reads", "shared"), "rule epoch tracks no reads"),
        (("a", "epoch_trans", "--reads", "all"), "'all' are no reads"),
        (("bag", "epoch"), "has no primary key"),
        (("bag", "owner", "--site", "rome"), "site rome cannot own it"),
        (("nothing", "epoch"), "no table 'nothing'"),
        (("a", "latest"), "'latest' is no rule"),
        (("a", "newest"), "rule newest has no meaning"),
        (("a", "owner"), "names a site"),
        (("a", "epoch", "--site", "rome"), "names a site"),
        (("a", "owner", "--site", "paris"), "no site 'paris'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(
    outcome: Outcome, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run_app(app, "wlc", ["rule", str(outcome.sites.file("oslo")), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_only_the_owner_writes_a_table(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    sites, rule = outcome.sites, ["rule", str(outcome.sites.file("oslo")), "a"]
    assert run_app(app, "wlc", [*rule, "owner", "--site", "rome"]) == 0
    assert "main.a" in capsys.readouterr().out
    sites.exchange()
    with pytest.raises(InvalidError, match=r"site oslo cannot write main\.a"):
        sites.write("oslo", "INSERT INTO a VALUES (9, 'oslo', 0)")
    sites.write("rome", "INSERT INTO a VALUES (9, 'rome', 0)")
    sites.exchange()
    assert (9, "rome", 0.0) in sites.rows("oslo", "a")
    assert run_app(app, "wlc", [*rule, "none"]) == 0
    sites.exchange()
    sites.write("oslo", "DELETE FROM a WHERE id = 9")


def test_the_primary_rejects_what_another_site_than_the_owner_has_written(outcome: Outcome) -> None:
    """Rome wrote the table before it knew the rule, or against it."""
    sites = outcome.sites
    sites.exchange()
    wlc.set_rule(sites.file("oslo"), "a", "owner", site="oslo")
    sites.write("rome", "BEGIN; DELETE FROM a WHERE id = 1; INSERT INTO e1_t VALUES (90, 'rome'); COMMIT")
    wlc.flush(sites.file("rome"))
    assert sites.take("oslo") == 1
    rejected = [
        (row.table.name, row.op_type, row.cause) for row in wlc.exceptions(sites.file("oslo")) if row.cause == "owner"
    ]
    assert rejected == [("a", "DELETE_ROW", "owner"), ("e1_t", "WRITE_ROW", "owner")]
    sites.exchange()
    sites.refuse_differences("a", "e1_t")
    assert len(sites.rows("rome", "a")) == 2
    wlc.set_rule(sites.file("oslo"), "a", "none")
    sites.exchange()


def test_a_transaction_that_breaks_a_constraint_of_the_primary_is_rejected(outcome: Outcome) -> None:
    sites = outcome.sites
    wlc.set_rule(sites.file("oslo"), "u", "epoch")
    sites.exchange()
    sites.write("oslo", "INSERT INTO u VALUES (1, 'unique')")
    sites.write("rome", "INSERT INTO u VALUES (2, 'unique')", "INSERT INTO u VALUES (3, 'other')")
    sites.take("oslo")
    assert sites.rows("oslo", "u") == [(1, "unique"), (3, "other")]
    (row,) = wlc.exceptions(sites.file("oslo"), table="u")
    assert (row.op_type, row.cause, row.new) == ("WRITE_ROW", "constraint", {"id": 2, "name": "unique"})
    # Rome's row was rejected and gives way to oslo's.
    sites.exchange()
    (row,) = wlc.exceptions(sites.file("rome"))
    assert (row.op_type, row.cause, row.new) == ("WRITE_ROW", "constraint", {"id": 2, "name": "unique"})
    sites.refuse_differences("u")


def test_what_a_site_had_when_it_joined_is_known_to_it_and_a_primary_that_only_takes_may_prune(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found()
    sites.write("oslo", "INSERT INTO a VALUES (10, 'of oslo', 0)")
    wlc.flush(sites.file("oslo"))
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "a", "epoch")
    for value in range(3):
        sites.write("rome", f"UPDATE a SET x = {value + 1} WHERE id = 10")
        sites.exchange()
    wlc.snapshot(sites.file("oslo"))
    assert wlc.prune(sites.file("oslo"), keep_for="0s").delete_batches
    sites.write("rome", "UPDATE a SET x = 50 WHERE id = 10")
    sites.exchange()
    assert wlc.exceptions(sites.file("oslo")) == []
    assert (10, "of oslo", 50.0) in sites.rows("oslo", "a")
    sites.refuse_differences("a")
