"""What the primary rejects of a site's changes: the cases of MySQL NDB Cluster's suite ndb_rpl, with real sites. docs/sites.md has one of them.

Oslo is the primary, rome a secondary. All cases run side by side, each with tables of its own: both sites know the same
rows, then both write without reading each other, then oslo takes what rome published, and rome what oslo published.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.epoch_cases import CASES, Case, Outcome, counters_of, expected_of, meet, prepared, run_cases
from tests.scratch import attached
from tests.sites import Sites, counted
from wlc.farm.errors import InvalidError
from wlc.farm.model import RowsRead
from wlc.multi_master import missing_steps
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("epoch"), CASES)


# Rows alone, transactions that depend on each other, and rows that were read.
FEW = {name: CASES[name] for name in ("e3", "e6", "t3", "r2")}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("few"), FEW)


def refuse_other_outcome(outcome: Outcome, name: str) -> None:
    case = CASES[name]
    in_order = sorted if case.rules != {"t": "epoch"} else list
    assert in_order(outcome.rejected[name]) == in_order(case.rejected)
    for table, rows in zip(case.rules, case.after, strict=False):
        for site in ("oslo", "rome"):
            assert outcome.sites.rows(site, f"{name}_{table}") == rows


def test_a_few_conflicts(few: Outcome) -> None:
    for name in FEW:
        refuse_other_outcome(few, name)
    assert counters_of(few) == expected_of(FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_conflicts(outcome: Outcome, name: str) -> None:
    refuse_other_outcome(outcome, name)


@pytest.mark.slow
def test_the_counters_are_exactly_those_of_all_cases(outcome: Outcome) -> None:
    # Rome published everything as one batch, which is one step.
    assert counters_of(outcome) == expected_of(CASES)
    assert outcome.counts["last_conflict_tick"] > 0


SEVERAL = {name: case for name, case in CASES.items() if len(case.rome) > 1}
# What counters rise by where each transaction is a step of its own. A later one of rome's meets the refresh that answered
# the one before it, and not that one: it is in conflict itself, depends on none, and is answered once more.
EACH_BY_ITSELF = {
    "e8": CASES["e8"].counts,
    "e10": {"epoch": 3, "refreshed": 3},
    "e13": CASES["e13"].counts,
    "t3": {"row_conflicts": 2, "row_rejects": 4, "rejects": 2, "conflict_steps": 2, "refreshed": 4},
}


def refuse_other_verdicts(outcome: Outcome, found: Outcome, cases: dict[str, Case]) -> None:
    assert len(found.sites.log("rome").batch_numbers()) > len(cases)
    for name, case in cases.items():
        assert sorted(found.rejected[name]) == sorted(outcome.rejected[name])
        for table, rows in zip(case.rules, case.after, strict=False):
            assert [found.sites.rows(site, f"{name}_{table}") for site in found.sites.names] == [rows, rows]


@pytest.mark.slow
@pytest.mark.parametrize("joined", [pytest.param(1, marks=pytest.mark.deep), missing_steps.JOINED_TRANSACTIONS])
def test_p7_borders_of_batches_and_of_steps_change_no_verdict(outcome: Outcome, tmp_path: Path, joined: int) -> None:
    """Every batch has one transaction, and is taken by itself, or all are taken at once."""
    with patch.object(missing_steps, "JOINED_TRANSACTIONS", joined):
        found = run_cases(tmp_path, SEVERAL, is_each_published=True)
    refuse_other_verdicts(outcome, found, SEVERAL)
    assert joined == 1 or counters_of(found) == expected_of(SEVERAL)


@pytest.mark.slow
def test_p7_a_step_for_each_transaction_changes_no_verdict(outcome: Outcome, tmp_path: Path) -> None:
    cases = {name: CASES[name] for name in EACH_BY_ITSELF}
    with patch.object(missing_steps, "JOINED_TRANSACTIONS", 1):
        found = run_cases(tmp_path, cases, is_each_published=True)
    refuse_other_verdicts(outcome, found, cases)
    assert counters_of(found) == sum(map(Counter, EACH_BY_ITSELF.values()), Counter[str]())


# Of all others, `test_epoch_counters` tries the verdict alone.
ALONE = {name: CASES[name] for name in ("e5", "t4", "t7", "t10", "r2", "r4", "r4shared", "r5", "r6", "r7")}


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return prepared(tmp_path_factory.mktemp("alone"), ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_the_counters_of_a_case_alone(one_by_one: Sites, name: str) -> None:
    with counted(one_by_one, **expected_of({name: ALONE[name]})):
        meet(one_by_one, {name: ALONE[name]})


@pytest.mark.slow
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


def test_what_was_rejected_is_shown(few: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(few.sites.file("oslo"))
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
    with attached(file) as connection:
        found = connection.execute('SELECT k, "v$OLD", "v$NEW", op_type, cft_cause FROM wlc."e3_t$EX"').fetchall()
    assert found == [(2, None, "Cloisters", "WRITE_ROW", "ROW_ALREADY_EXISTS")]
    # Of a secondary nothing is rejected, and what it rejects is not replicated; rows that it had are replaced.
    assert wlc.exceptions(few.sites.file("rome")) == []
    last = {(row.table, str(row.key)): row.op_type for row in wlc.exceptions(file)}
    replaced = sum(kind in ("WRITE_ROW", "UPDATE_ROW") for kind in last.values())
    counts = [(counter.site, counter.name, counter.value) for counter in wlc.conflicts(few.sites.file("rome"))]
    assert counts == [("rome", "overwritten", replaced)]


@pytest.mark.slow
def test_what_was_read_is_published_and_a_transaction_that_only_reads_is_not(outcome: Outcome) -> None:
    log = outcome.sites.log("rome")
    records = [r for n in log.batch_numbers() for t in log.read_batch(n)[0].transactions for r in t.records]
    found = {(r.table.name, r.rows, r.exclusive) for r in records if isinstance(r, RowsRead)}
    expected = {(f"{name}_t", 1, True) for name in ("r2", "r4", "r5", "r6", "r7")}
    assert found == expected | {("r4shared_t", 1, False), ("all_t", 1, False)}


@pytest.mark.slow
def test_reads_see_what_was_there_when_their_transaction_began(outcome: Outcome) -> None:
    sites = outcome.sites
    with wlc.connect(sites.file("rome")) as connection:
        connection.execute("BEGIN; SELECT * FROM r2_t WHERE k = 1 FOR UPDATE")
        sites.write("oslo", "UPDATE r2_t SET v = 'later' WHERE k = 1")
        wlc.flush(sites.file("oslo"))
        sites.take("rome")
        # It does not see what was taken meanwhile, although it commits after it.
        assert connection.execute("SELECT v FROM r2_t WHERE k = 1 FOR UPDATE").fetchall() == [("oslo 1",)]
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
        ("SELECT * FROM t3_t", "rule of main.t3_t does not track reads"),
    ],
)
def test_a_lock_that_would_protect_nothing_is_refused(few: Outcome, query: str, why: str) -> None:
    with wlc.connect(few.sites.file("rome")) as connection:
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
    few: Outcome, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run_app(app, "wlc", ["rule", str(few.sites.file("oslo")), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
