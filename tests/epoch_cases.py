"""Cases of MySQL NDB Cluster's suite ndb_rpl with real sites: what both know, what each then writes, and what is rejected.

Oslo is the primary, rome a secondary. Each case has tables of its own, so that many can run side by side. All other cases
of the suite are in `tests/unit/multi_master/test_verdicts.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb

import wlc
from tests.sites import Sites
from wlc.farm.model import Name
from wlc.multi_master.circle import Circle, Rule, circle_object, with_rule

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
    """Rome reads row 1 of {t} for an update of {u}, while oslo changes rows 1 and 2."""
    return Case(
        rules=TRACKED,
        indexes=indexes,
        before=("INSERT INTO {t} VALUES (1, 'one'), (2, 'two'); INSERT INTO {u} VALUES (3, 'x')",),
        oslo=("UPDATE {t} SET v = 'oslo ' || k",),
        rome=(f"SELECT * FROM {{t}} WHERE {condition} FOR UPDATE; UPDATE {{u}} SET v = 'rome'",),
        rejected=(f"t READ_ROW {IN_TRANSACTION}", f"u UPDATE_ROW {IN_TRANSACTION}"),
        counts={"row_conflicts": 1, "row_rejects": 2, "rejects": 1, "refreshed": 1},
        after=([(1, "oslo 1"), (2, "oslo 2")], [(3, "x")]),
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
    "e3": Case(
        oslo=("INSERT INTO {t} VALUES (2, 'Loopy')",),
        rome=("INSERT INTO {t} VALUES (2, 'Cloisters')",),
        rejected=(f"t {INSERTED}",),
        counts={"epoch": 1, "refreshed": 1},
        after=([(2, "Loopy")],),
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
    "e10": Case(
        before=("INSERT INTO {t} VALUES (4, 'x')",),
        oslo=("UPDATE {t} SET v = 'Blind poet'",),
        rome=("DELETE FROM {t}", "INSERT INTO {t} VALUES (4, 'a')", "UPDATE {t} SET v = 'b'"),
        rejected=(f"t {DELETED}", f"t {INSERTED}", f"t {UPDATED}"),
        counts={"epoch": 3, "refreshed": 1},
        after=([(4, "Blind poet")],),
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
    "r2": read_and_update("k = 1"),
    "r4": read_and_read("FOR UPDATE", is_rejected=True),
    "r4shared": read_and_read("FOR SHARE", is_rejected=False),
    "r5": read_and_update("v = 'one'", ("CREATE UNIQUE INDEX r5 ON {t} (v)",)),
    "r6": read_and_update("v BETWEEN 'o' AND 'p'", ("CREATE INDEX r6 ON {t} (v)",)),
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


def prepared(folder: Path, cases: dict[str, Case]) -> Sites:
    """Make Oslo and Rome, which know the rows before the cases and the rules of their tables."""
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
    written(sites, "oslo", ["; ".join(text for name, case in cases.items() for text in named(name, case.before))])
    sites.exchange()
    return sites


def named(name: str, statements: tuple[str, ...]) -> list[str]:
    """Return statements with the names of a case's tables."""
    return [statement.format(**{table: f"{name}_{table}" for table in "tun"}) for statement in statements]


def meet(sites: Sites, cases: dict[str, Case]) -> None:
    """Let both sites write without reading each other, and then take everything."""
    written(sites, "oslo", ["; ".join(text for name, case in cases.items() for text in named(name, case.oslo))])
    written(sites, "rome", [text for name, case in cases.items() for text in named(name, case.rome)])
    wlc.flush(sites.file("rome"))
    sites.exchange()


def run_cases(folder: Path, cases: dict[str, Case], *, is_each_published: bool = False) -> Outcome:
    """Run cases; Rome publishes its transactions as one batch, or each as a batch of its own."""
    sites = prepared(folder, cases)
    if is_each_published:
        wlc.beat(sites.file("rome"), 0)
    meet(sites, cases)
    rejected: dict[str, list[str]] = {name: [] for name in cases}
    for row in wlc.exceptions(sites.file("oslo")):
        name, table = row.table.name.split("_")
        rejected[name].append(f"{table} {row.op_type} {row.cause}")
    counts = {counter.name: counter.value for counter in wlc.conflicts(sites.file("oslo"))}
    return Outcome(sites, rejected, counts)


def counters_of(outcome: Outcome) -> dict[str, int]:
    return {name: value for name, value in outcome.counts.items() if not name.endswith("_tick")}


def expected_of(cases: dict[str, Case]) -> dict[str, int]:
    expected: Counter[str] = Counter()
    for case in cases.values():
        expected.update(case.counts)
    return dict(expected) | ({"conflict_steps": 1} if expected["rejects"] else {})
