"""What the primary rejects of a site's changes, with real sites: the table of cases, orders of events, and counterexamples.

Oslo is the primary, rome and paris are secondaries. Names such as e8, x2 and c2 are those of MySQL NDB Cluster's suite ndb_rpl.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.epoch_cases import CASES, Case, Outcome, counters_of, expected_of, run_cases
from tests.sampling import sampled
from tests.scratch import attached
from tests.sites import Sites, counted, take_from
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.model import RowsRead
from wlc.multi_master import missing_steps
from wlc.multi_master.circle import read_circle
from wlc.multi_master.missing_steps import SiteLog
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.multi_master.site_step import RejectedRow, SiteStep


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("epoch"), CASES)


EVER = datetime(2026, 1, 1, tzinfo=UTC)
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


def refuse_other_verdicts(outcome: Outcome, found: Outcome, cases: dict[str, Case]) -> None:
    assert len(found.sites.log("rome").batch_numbers()) > len(cases)
    for name, case in cases.items():
        assert sorted(found.rejected[name]) == sorted(outcome.rejected[name])
        for table, rows in zip(case.rules, case.after, strict=False):
            assert [found.sites.rows(site, f"{name}_{table}") for site in found.sites.names] == [rows, rows]


@pytest.mark.slow
@pytest.mark.parametrize("joined", [1, missing_steps.JOINED_TRANSACTIONS])
def test_p7_borders_of_batches_and_of_steps_change_no_verdict(outcome: Outcome, tmp_path: Path, joined: int) -> None:
    """Every batch has one transaction, and is taken by itself, or all are taken at once."""
    with patch.object(missing_steps, "JOINED_TRANSACTIONS", joined):
        found = run_cases(tmp_path, SEVERAL, is_each_published=True)
    refuse_other_verdicts(outcome, found, SEVERAL)
    assert joined == 1 or counters_of(found) == expected_of(SEVERAL)


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
    assert run_app(app, "wlc", ["site", "exceptions", file, "--table", "e6_t", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["source"], row["op_type"], row["cause"]) == ("rome", "UPDATE_ROW", "ROW_DOES_NOT_EXIST")
    # As --table takes it.
    assert row["table"] == "main.e6_t"
    assert (row["old"], row["new"], row["local"]) == ({"k": 2, "v": "Loopy"}, {"k": 2, "v": "x"}, None)
    assert run_app(app, "wlc", ["site", "exceptions", file, "--count"]) == 0
    assert str(len(wlc.exceptions(file))) in capsys.readouterr().out
    assert wlc.exceptions(file, since="2126-01-01") == []
    assert run_app(app, "wlc", ["site", "conflicts", file]) == 0
    assert "conflict_steps" in capsys.readouterr().out
    with attached(file) as connection:
        found = connection.execute('SELECT k, "v$OLD", "v$NEW", op_type, cft_cause FROM wlc."e3_t$EX"').fetchall()
    assert found == [(2, None, "Cloisters", "WRITE_ROW", "ROW_ALREADY_EXISTS")]
    # Nothing of the primary's is rejected; rows that a secondary had are replaced.
    last = {(row.table, str(row.key)): row.op_type for row in wlc.exceptions(file)}
    replaced = sum(kind in ("WRITE_ROW", "UPDATE_ROW") for kind in last.values())
    counts = [(counter.site, counter.name, counter.value) for counter in wlc.conflicts(few.sites.file("rome"))]
    assert counts == [("rome", "overwritten", replaced)]


def told(sites: Sites, name: str) -> list[RejectedRow]:
    """What a site lists, in one order, and whenever it was detected."""
    rows = (replace(row, detected=EVER) for row in wlc.exceptions(sites.file(name)))
    return sorted(rows, key=lambda row: (row.source_tick, row.count, row.table))


def test_the_author_sees_what_the_primary_rejected(few: Outcome) -> None:
    assert {row.op_type for row in told(few.sites, "rome")} >= {"WRITE_ROW", "UPDATE_ROW", "READ_ROW"}
    assert told(few.sites, "rome") == told(few.sites, "oslo")


@pytest.mark.slow
def test_the_author_sees_the_rejected_rows_of_every_case(outcome: Outcome) -> None:
    assert told(outcome.sites, "rome") == [row for row in told(outcome.sites, "oslo") if row.source == "rome"]
    assert len(told(outcome.sites, "rome")) > 40
    with attached(str(outcome.sites.file("rome"))) as connection:
        found = connection.execute('SELECT k, "v$OLD", "v$NEW", cft_cause FROM wlc."e3_t$EX"').fetchall()
    assert found == [(2, None, "Cloisters", "ROW_ALREADY_EXISTS")]


@pytest.mark.slow
def test_what_was_read_is_published_and_a_transaction_that_only_reads_is_not(outcome: Outcome) -> None:
    log = outcome.sites.log("rome")
    records = [r for n in log.batch_numbers() for t in log.read_batch(n)[0].transactions for r in t.records]
    found = {(r.table.name, r.rows, r.exclusive) for r in records if isinstance(r, RowsRead)}
    expected = {(f"{name}_t", 1, True) for name in ("r2", "r4", "r5", "r6")}
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
        for sql in (connection.sql, functools.partial(duckdb.sql, connection=connection)):
            with pytest.raises(InvalidError, match="a relation"):
                sql(f"{query} FOR UPDATE")
        # The transaction goes on.
        connection.execute("BEGIN; SELECT * FROM r2_t WHERE k = 1 FOR SHARE; ROLLBACK")


@pytest.mark.slow
def test_only_the_owner_writes_a_table(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    sites, rule = outcome.sites, ["site", "rule", str(outcome.sites.file("oslo")), "a"]
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
    sites.write("rome", "BEGIN; DELETE FROM a WHERE id = 1; INSERT INTO e7_t VALUES (90, 'rome'); COMMIT")
    wlc.flush(sites.file("rome"))
    assert sites.take("oslo") == 1
    rejected = [
        (row.table.name, row.op_type, row.cause) for row in wlc.exceptions(sites.file("oslo")) if row.cause == "owner"
    ]
    assert rejected == [("a", "DELETE_ROW", "owner"), ("e7_t", "WRITE_ROW", "owner")]
    sites.exchange()
    sites.refuse_differences("a", "e7_t")
    assert len(sites.rows("rome", "a")) == 2
    wlc.set_rule(sites.file("oslo"), "a", "none")
    sites.exchange()


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


# Other orders of events ----------------------------------------------------------------------------------------------


RULES = {**dict.fromkeys(("x1", "x2", "c2", "p7"), "epoch"), "p7_trans": "epoch_trans"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("three"))
    sites.found("; ".join(f"CREATE TABLE {table} (k INTEGER PRIMARY KEY, v VARCHAR)" for table in RULES))
    sites.write("oslo", *(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'a'), (3, 'a')" for table in RULES))
    sites.join("rome")
    sites.join("paris")
    for table, rule in RULES.items():
        wlc.set_rule(sites.file("oslo"), table, rule)
    sites.exchange()
    return sites


def causes(sites: Sites, table: str) -> list[str]:
    return [f"{row.op_type} {row.cause}" for row in wlc.exceptions(sites.file("oslo"), table=table)]


@pytest.mark.slow
def test_x1_a_newer_change_survives_the_echo_of_an_older_one(three: Sites) -> None:
    """epoch2_extra: what comes back from the primary overwrites nothing that its author has changed since."""
    with counted(three):
        three.write("rome", "INSERT INTO x1 VALUES (4, 'old'), (5, 'old')", "UPDATE x1 SET v = 'old' WHERE k IN (1, 3)")
        three.write("rome", "DELETE FROM x1 WHERE k = 2")
        wlc.flush(three.file("rome"))
        three.take("oslo")
        three.write("rome", "UPDATE x1 SET v = 'new' WHERE k IN (1, 4)", "INSERT INTO x1 VALUES (2, 'new')")
        three.write("rome", "DELETE FROM x1 WHERE k IN (3, 5)")
        three.take("rome")
        assert three.rows("rome", "x1") == [(1, "new"), (2, "new"), (4, "new")]
        three.exchange()
    three.refuse_differences("x1")
    assert three.rows("oslo", "x1") == [(1, "new"), (2, "new"), (4, "new")]


@pytest.mark.slow
@pytest.mark.parametrize("joined", [missing_steps.JOINED_TRANSACTIONS, 1])
def test_x2_a_row_that_was_overwritten_and_is_gone_is_reported(three: Sites, joined: int) -> None:
    """Rome's changes are in two batches: taken in one step they are answered once, and by themselves each is."""
    refreshed = 2 if joined == 1 else 1
    with patch.object(missing_steps, "JOINED_TRANSACTIONS", joined), counted(three, epoch=2, refreshed=refreshed):
        three.write("oslo", "INSERT INTO x2 VALUES (5, 'oslo')")
        wlc.flush(three.file("oslo"))
        three.write("rome", "INSERT INTO x2 VALUES (5, 'rome')")
        three.take("rome")
        assert (5, "oslo") in three.rows("rome", "x2")
        three.write("rome", "UPDATE x2 SET v = 'rome' WHERE k = 5")
        three.write("oslo", "DELETE FROM x2 WHERE k = 5")
        three.exchange()
    assert causes(three, "x2")[-2:] == ["WRITE_ROW DATA_IN_CONFLICT", "UPDATE_ROW ROW_DOES_NOT_EXIST"]
    three.refuse_differences("x2")
    assert three.rows("oslo", "x2") == [(1, "a"), (2, "a"), (3, "a")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "order"),
    sampled(
        [
            (10, "rome>oslo paris>oslo oslo>rome oslo>paris"),
            (20, "paris>oslo rome>oslo oslo>paris oslo>rome"),
            (30, "oslo>rome paris>oslo oslo>paris rome>oslo"),
            (40, "oslo>paris oslo>rome rome>oslo paris>oslo"),
        ],
        2,
    ),
)
def test_p7_the_order_in_which_sites_take_changes_no_verdict(three: Sites, base: int, order: str) -> None:
    """Where two secondaries change one row, the first that the primary reads is accepted, and the other one is not."""

    def updated(table: str, value: str, *keys: int) -> str:
        return f"UPDATE {table} SET v = '{value}' WHERE k IN ({', '.join(str(base + key) for key in keys)})"

    three.write("oslo", *(f"INSERT INTO {t} SELECT {base} + range, 'a' FROM range(6)" for t in ("p7", "p7_trans")))
    three.exchange()
    three.write("oslo", updated("p7", "oslo", 0), updated("p7_trans", "oslo", 0))
    three.write("rome", updated("p7", "rome", 0, 1, 5), updated("p7_trans", "rome", 0, 1))
    three.write("rome", updated("p7_trans", "again", 1), updated("p7_trans", "rome", 5))
    three.write("paris", f"DELETE FROM p7 WHERE k = {base}", updated("p7", "paris", 2, 5))
    three.write("paris", updated("p7_trans", "paris", 2), updated("p7_trans", "paris", 4, 5))
    for site in three.names:
        wlc.flush(three.file(site))
    before = len(wlc.exceptions(three.file("oslo")))
    assert min(take_from(three, *order.split())) > 0
    three.exchange()
    found = {
        (row.source, row.table.name, int(str(row.key["k"])) - base, row.op_type)
        for row in wlc.exceptions(three.file("oslo"))[before:]
    }
    update = "UPDATE_ROW"
    always = {("rome", "p7", 0, update), ("paris", "p7", 0, "DELETE_ROW")}
    always |= {("rome", "p7_trans", key, update) for key in (0, 1)}
    if order.index("rome>oslo") < order.index("paris>oslo"):
        second = {("paris", "p7", 5, update), *(("paris", "p7_trans", key, update) for key in (4, 5))}
    else:
        second = {("rome", "p7", 5, update), ("rome", "p7_trans", 5, update)}
    assert found == always | second
    three.refuse_differences("p7", "p7_trans")


def test_c2_rules_are_one_object_and_exceptions_have_one_layout(three: Sites) -> None:
    """conflict_basic: a rule at one site only, or an exceptions table that lacks columns, cannot be."""
    for site in ("oslo", "rome"):
        three.write(site, f"UPDATE c2 SET v = '{site}' WHERE k = 1")
    three.exchange()
    rules = {(str(rule.table), rule.rule) for rule in read_circle(three.log("oslo")).rules}
    assert rules == {(f"main.{table}", rule) for table, rule in RULES.items()}
    with attached(three.file("oslo")) as connection:
        found = connection.execute('DESCRIBE wlc."c2$EX"').fetchall()
        keys = connection.execute(
            "SELECT count(*), count(DISTINCT (site, source, source_tick, count)) FROM wlc.exceptions"
        ).fetchall()
    expected = "server_id master_server_id master_epoch count k k$OLD k$NEW v$OLD v$NEW op_type cft_cause orig_transid"
    assert [column[0] for column in found] == [*expected.split(), "detected"]
    assert keys[0][0] == keys[0][1] > 0


# Cases in which a simpler design loses a change, lets two sites drift apart, or rejects too much -----------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("two"))
    sites.found("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)")
    sites.write("oslo", "INSERT INTO t SELECT range, 'both' FROM range(100)")
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "t", "epoch")
    sites.exchange()
    return sites


def rejected(sites: Sites, key: int) -> list[tuple[str, str]]:
    found = wlc.exceptions(sites.file("oslo"))
    return [(row.op_type, row.cause) for row in found if row.key == {"k": key}]


def value(sites: Sites, key: int) -> dict[str, list[object]]:
    return {site: [row[1] for row in sites.rows(site, "t") if row[0] == key] for site in sites.names}


def write_during_steps(sites: Sites, site: str, *statements: str) -> pytest.MonkeyPatch:
    """Let users of a site commit after it has published and before it takes."""
    patch = pytest.MonkeyPatch()
    steps = SiteLog.steps

    def late(log: SiteLog) -> Iterator[SiteStep]:
        sites.write(site, *statements)
        yield from steps(log)

    patch.setattr(SiteLog, "steps", late)
    return patch


@pytest.mark.slow
def test_window_start(two: Sites) -> None:
    """Rome commits, then takes what oslo had changed: the change is judged by what rome had seen when it committed."""
    for number in range(3):
        two.write("oslo", f"UPDATE t SET v = 'oslo {number}' WHERE k = 1")
        wlc.flush(two.file("oslo"))
    two.write("rome", "UPDATE t SET v = 'rome' WHERE k = 1")
    two.take("rome")
    # Rome has read all of oslo's log, and oslo needs it to judge rome.
    wlc.snapshot(two.file("oslo"))
    kept = wlc.prune(two.file("oslo"), keep_for="0s")
    assert any("changes between this site and rome are judged" in reason for reason in kept.reasons)
    two.exchange()
    assert rejected(two, 1) == [("UPDATE_ROW", "DATA_IN_CONFLICT")]
    assert value(two, 1) == {"oslo": ["oslo 2"], "rome": ["oslo 2"]}
    wlc.snapshot(two.file("oslo"))
    assert len(wlc.prune(two.file("oslo"), keep_for="0s").delete_batches) >= 3


@pytest.mark.slow
def test_commit_between_flush_and_take(two: Sites) -> None:
    """What oslo's users commit while it takes is in no log yet, and is judged from the journal."""
    two.write("rome", "UPDATE t SET v = 'rome' WHERE k = 2", "UPDATE t SET v = 'rome' WHERE k = 3")
    wlc.flush(two.file("rome"))
    patch = write_during_steps(two, "oslo", "UPDATE t SET v = 'oslo' WHERE k = 2", "DELETE FROM t WHERE k = 3")
    two.take("oslo")
    patch.undo()
    two.exchange()
    assert rejected(two, 2) == [("UPDATE_ROW", "DATA_IN_CONFLICT")]
    assert rejected(two, 3) == [("UPDATE_ROW", "ROW_DOES_NOT_EXIST")]
    assert value(two, 2) == {"oslo": ["oslo"], "rome": ["oslo"]}
    assert value(two, 3) == {"oslo": [], "rome": []}


@pytest.mark.slow
def test_a_commit_while_a_secondary_takes_is_judged_by_what_it_had_seen(two: Sites) -> None:
    """Rome tells how far it has read only after it has published what it committed before that."""
    two.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 4")
    wlc.flush(two.file("oslo"))
    overwritten = sum(counter.value for counter in wlc.conflicts(two.file("rome")))
    patch = write_during_steps(two, "rome", "UPDATE t SET v = 'rome' WHERE k = 4")
    two.take("rome")
    patch.undo()
    wlc.snapshot(two.file("oslo"))
    wlc.prune(two.file("oslo"), keep_for="0s")
    two.exchange()
    assert rejected(two, 4) == [("UPDATE_ROW", "DATA_IN_CONFLICT")]
    assert value(two, 4) == {"oslo": ["oslo"], "rome": ["oslo"]}
    # Where it was written, a row was replaced by what the primary had, once.
    counts = {(counter.site, counter.name): counter.value for counter in wlc.conflicts(two.file("rome"))}
    assert counts == {("rome", "overwritten"): 1 + overwritten}


@pytest.mark.slow
def test_rules_that_change_while_windows_are_open(tmp_path: Path) -> None:
    """What is taken is judged by the rule that the primary knows then, whatever held when it was written."""
    sites = Sites(tmp_path)
    rules = {
        "a": ("none", "epoch"),
        "b": ("epoch", "none"),
        "c": ("epoch", "epoch_trans"),
        "d": ("epoch_trans", "epoch"),
    }
    sites.found("; ".join(f"CREATE TABLE {table} (k INTEGER PRIMARY KEY, v VARCHAR)" for table in rules))
    sites.write("oslo", *(f"INSERT INTO {table} VALUES (1, 'both'), (2, 'both')" for table in rules))
    sites.join("rome")
    for table, (before, _) in rules.items():
        wlc.set_rule(sites.file("oslo"), table, before)
    sites.exchange()
    sites.write("oslo", *(f"UPDATE {table} SET v = 'oslo' WHERE k = 1" for table in rules))
    sites.write("rome", *(f"UPDATE {table} SET v = 'rome'" for table in rules))
    wlc.flush(sites.file("rome"))
    for table, (_, after) in rules.items():
        wlc.set_rule(sites.file("oslo"), table, after)
    sites.exchange()
    assert sites.rows("oslo", "b") == [(1, "rome"), (2, "rome")]
    assert sites.rows("oslo", "c") == [(1, "oslo"), (2, "both")]
    assert sites.rows("oslo", "a") == sites.rows("oslo", "d") == [(1, "oslo"), (2, "rome")]
    sites.refuse_differences("a", "c", "d")
    found = [(row.table.name, row.key["k"], row.cause) for row in wlc.exceptions(sites.file("oslo"))]
    both = [("c", 1, "TRANS_IN_CONFLICT"), ("c", 2, "TRANS_IN_CONFLICT")]
    assert sorted(found) == [("a", 1, "DATA_IN_CONFLICT"), *both, ("d", 1, "DATA_IN_CONFLICT")]


@pytest.mark.slow
def test_truncate(two: Sites) -> None:
    """A table that is emptied says which rows went, so that rows that others changed meanwhile are told apart."""
    two.write("oslo", "CREATE TABLE emptied (k INTEGER PRIMARY KEY, v VARCHAR)", "INSERT INTO emptied VALUES (1, 'a')")
    two.write("oslo", "INSERT INTO emptied VALUES (2, 'a'), (3, 'a')")
    wlc.flush(two.file("oslo"))
    wlc.set_rule(two.file("oslo"), "emptied", "epoch")
    two.exchange()
    two.write("oslo", "TRUNCATE emptied", "INSERT INTO emptied VALUES (3, 'oslo')")
    two.write("rome", "UPDATE emptied SET v = 'rome' WHERE k < 3", "INSERT INTO emptied VALUES (4, 'rome')")
    two.exchange()
    two.refuse_differences("emptied")
    assert two.rows("oslo", "emptied") == [(3, "oslo"), (4, "rome")]
    two.write("oslo", "UPDATE emptied SET v = 'oslo' WHERE k = 4")
    two.write("rome", "TRUNCATE emptied")
    two.exchange()
    two.refuse_differences("emptied")
    assert two.rows("oslo", "emptied") == [(4, "oslo")]


def test_a_site_that_was_silent_for_too_long_is_refused(two: Sites) -> None:
    """Last: rome cannot go on. Neither can oslo judge what rome writes, nor does rome get what it lacks."""
    two.write("rome", "UPDATE t SET v = 'rome' WHERE k = 6")
    wlc.flush(two.file("rome"))
    for number in range(2):
        two.write("oslo", f"UPDATE t SET v = 'oslo {number}' WHERE k = 7")
        wlc.flush(two.file("oslo"))
        wlc.snapshot(two.file("oslo"))
    found = wlc.prune(two.file("oslo"), keep_for="0s", deadline=timedelta(0))
    assert [replica.id for replica in found.overdue] == ["rome"]
    for site in two.names:
        with pytest.raises(ExpiredError) as caught:
            two.take(site)
        assert "wlc site join" in str(caught.value.hint)
