"""What is left of MySQL NDB Cluster's suite ndb_rpl: more orders of events (X), roles, exceptions and circles (C).

Oslo is the primary, rome and paris are secondaries. E, T and R are in `test_sites_epoch`.

X3, the roles of primary and secondary swapped, is in `test_sites_succession`; the rules `old` and `max` (O) are rules of
a mesh, in `test_mesh_columns`.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.scratch import attached
from tests.sites import Sites, counted, counters, take_from
from wlc.multi_master import missing_steps
from wlc.multi_master.circle import read_circle
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.multi_master.site_step import SiteStep

KILLED = "../fault/test_killed_sites.py::test_money_stays_while_sites_are_killed"

# Where the cases of 389 Directory Server's replication suite are that a star of databases has: a test, or one of its
# cases by its id.
OF_389_DS = {
    "acceptance_test (add, modify, delete on several masters)": "test_sites.py::test_rows_are_exchanged_and_then_there_is_silence",
    "acceptance_test (over four masters)": "test_mesh.py::test_four_sites_as_389_ds_accepts_them",
    "acceptance_test (double delete)": "test_sites_counterexamples.py::test_delete_delete",
    "acceptance_test (pause and resume)": "test_sites_membership.py::test_three_sites_in_a_star",
    "acceptance_test (rename)": "test_sites_epoch.py::test_conflicts[renamed]",
    "acceptance_test (rename, whole)": "test_sites_epoch.py::test_conflicts[renamedwhole]",
    "acceptance_test (new suffix late)": "test_sites.py::test_only_one_site_changes_the_schema",
    "cascading_test (hub)": "test_sites_roles.py::test_c3_circular",
    "ruvstore_test (in memory as stored after each operation)": "test_mesh_lists.py::test_389_ds_ruvstore",
    "ruvstore_test (not advanced after an aborted operation)": (
        "test_sites.py::test_a_failed_take_changes_nothing_and_the_next_one_goes_on"
    ),
    "ruvstore_test (vector in backups)": (
        "test_sites_restored.py::test_case_2_a_site_rolls_forward_from_its_own_log_before_it_commits"
    ),
    "changelog_trimming_test": "test_sites_counterexamples.py::test_window_start",
    "changelog_trimming_test (max_age)": (
        "test_sites_counterexamples.py::test_a_site_that_was_silent_for_too_long_is_refused"
    ),
    "changelog_trimming_test (not for a replica that never saw it)": (
        "../unit/masters/test_retention.py::test_a_replica_never_heard_of_is_not_taken_for_caught_up"
    ),
    "cleanallruv_test (clean)": "test_sites_anew.py::test_a_history_whose_site_left_leaves_all_vectors",
    "cleanallruv_test (force)": "test_sites_membership.py::test_a_site_that_was_stopped_or_left_goes_on_as_its_hints_say",
    "cleanallruv_test (stress)": "test_sites_membership.py::test_a_site_leaves_while_the_others_write_and_take",
    "cleanallruv_test (a consumer lags)": (
        "test_sites_membership.py::test_a_site_that_lags_takes_what_one_that_left_has_written[by itself]"
    ),
    "cleanallruv_test (abort, restart, crash at shutdown)": (
        "../fault/test_broken_sites.py::test_a_repeated_command_ends_where_an_undisturbed_one_ends"
    ),
    "regression_m3::test_cleanallruv_repl (the anchor is of a removed replica)": (
        "test_sites_anew.py::test_a_history_whose_site_left_leaves_all_vectors"
    ),
    "regression_m2c2 (another generation)": "test_sites_restored.py::test_case_5_an_unknown_past_is_refused",
    "backup_test::test_replication": ("test_sites_restored.py::test_case_3_what_diverged_begins_a_history_of_its_own"),
    "repl_conflict (delete onto modify)": "test_sites_epoch.py::test_conflicts[e5]",
    "repl_conflict (modify onto delete)": "test_sites_epoch.py::test_conflicts[e6]",
    "promote_demote, ticket48325": "test_sites_succession.py::test_x3_roles_are_swapped_four_times",
    "mmr_single_value_conflict (two writers, a third reader)": (
        "test_mesh_lists.py::test_389_ds_mmr_single_value_conflict"
    ),
    "mmr_single_value_conflict (of a star)": (
        "test_sites_roles.py::test_p7_the_order_in_which_sites_take_changes_no_verdict"
    ),
}
# Not applicable: test_offline_import and ruvstore's reindex and import (a site has no import beside its log);
# csngen_task (what is compared are ticks, not clocks); changelog_trimming's max_entries (what somebody needs is kept).

# The same of spock.
OF_SPOCK = {
    "bidirectional": "test_sites.py::test_rows_are_exchanged_and_then_there_is_silence",
    "node_origin_cascade": "test_mesh_lists.py::test_spock_node_origin_cascade_and_tuple_origin",
    "tuple_origin": "test_sites.py::test_what_is_taken_keeps_its_origin_and_its_first_commit",
    "conflict_secondary_unique": "test_sites_constraints.py::test_eviction",
    "024 node-id collision": "test_mesh_lists.py::test_spock_024_a_name_is_given_once",
    "025 same row twice in one transaction": "test_sites_epoch.py::test_conflicts[twice]",
    "016 progress after a crash": KILLED,
}


def ids_of(test: Any) -> set[str]:
    """Return the ids of a test's cases; of none if it is one."""
    names = set[str]()
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            cases, ids = mark.args[1], mark.kwargs.get("ids")
            names |= set(ids) if isinstance(ids, list) else {getattr(case, "id", None) or str(case) for case in cases}
    return names


@pytest.mark.parametrize("where", sorted({*OF_389_DS.values(), *OF_SPOCK.values()}))
def test_every_case_of_the_lists_is_there(where: str) -> None:
    file, _, name = where.partition("::")
    path = (Path(__file__).parent / file).resolve()
    root = Path(__file__).parents[2]
    module = importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
    function, _, case = name.removesuffix("]").partition("[")
    assert function.startswith("test_")
    assert inspect.isfunction(getattr(module, function))
    assert not case or case in ids_of(getattr(module, function))


@pytest.mark.parametrize(
    "where",
    [
        "test_sites.py::",
        "test_sites_epoch.py::CASES",
        "test_sites_epoch.py::test_conflicts[e99]",
        "test_sites.py::test_no",
    ],
)
def test_a_case_that_is_not_there_is_missed(where: str) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        test_every_case_of_the_lists_is_there(where)


RULES = {**dict.fromkeys(("x1", "x2", "x4", "x5", "c1", "c2", "c3", "p7"), "epoch"), "p7_trans": "epoch_trans"}


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
    [
        (10, "rome>oslo paris>oslo oslo>rome oslo>paris"),
        (20, "paris>oslo rome>oslo oslo>paris oslo>rome"),
        (30, "oslo>rome paris>oslo oslo>paris rome>oslo"),
        (40, "oslo>paris oslo>rome rome>oslo paris>oslo"),
    ],
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


@pytest.mark.slow
def test_x5_stable_not_stable_stable(three: Sites) -> None:
    """Stable: every site contains what the primary has decided at its last conflict."""

    def is_stable() -> bool:
        found = {site.site: site for site in wlc.sites("sales", farm=three.farm)}
        contained = found["rome"].vector.get(found["oslo"].history, 0)
        assert found["rome"].is_stable == (contained >= counters(three).get("last_conflict_tick", 0))
        return found["rome"].is_stable

    three.exchange()
    assert is_stable()
    three.write("oslo", "UPDATE x5 SET v = 'oslo' WHERE k = 1")
    three.write("rome", "UPDATE x5 SET v = 'rome' WHERE k = 1")
    wlc.flush(three.file("rome"))
    with counted(three, epoch=1, refreshed=1):
        three.take("oslo")
    assert not is_stable()
    for number in range(10):
        three.write("oslo", f"INSERT INTO x5 VALUES ({10 + number}, 'oslo')")
        wlc.flush(three.file("oslo"))
    assert not is_stable()
    three.exchange()
    assert is_stable()
    three.refuse_differences("x5")


def test_c1_roles(three: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    """role_var: every transition of a role that is legal, and every other one."""
    for site, role, code in (
        ("rome", "secondary", 0),
        ("rome", "pass", 2),
        ("rome", "none", 0),
        ("rome", "pass", 0),
        ("rome", "secondary", 2),
        ("rome", "primary", 2),
        ("rome", "none", 0),
        ("rome", "secondary", 0),
        ("oslo", "secondary", 2),
        ("oslo", "none", 2),
        ("oslo", "primary", 0),
        ("rome", "slave", 2),
    ):
        assert run_app(app, "wlc", ["role", str(three.file("oslo")), site, role]) == code, (site, role)
        assert code == 0 or "hint" in (err := capsys.readouterr().err)
        if (site, role) == ("rome", "pass") and code:
            # Typed as it is, without a farm in the environment.
            assert f"hint: wlc role {three.log('oslo').url} rome none" in err
    assert [site.role for site in read_circle(three.log("oslo")).sites] == ["primary", "secondary", "secondary"]


@pytest.mark.slow
def test_c1_a_role_that_changes_while_a_site_takes_holds_from_its_next_round(
    three: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.write("oslo", "INSERT INTO c1 VALUES (4, 'first')")
    wlc.flush(three.file("oslo"))
    steps = SiteLog.steps

    def changing(log: SiteLog) -> Iterator[SiteStep]:
        wlc.set_role("sales", "rome", "none", farm=three.farm)
        yield from steps(log)

    with monkeypatch.context() as patch:
        patch.setattr(SiteLog, "steps", changing)
        assert three.take("rome") > 0
    three.write("oslo", "INSERT INTO c1 VALUES (5, 'second')")
    wlc.flush(three.file("oslo"))
    assert three.take("rome") == 0
    assert (4, "first") in three.rows("rome", "c1")
    wlc.set_role("sales", "rome", "secondary", farm=three.farm)
    three.exchange()
    three.refuse_differences("c1")


@pytest.mark.slow
def test_x4_pass(three: Sites) -> None:
    """A site whose role is pass is read and judged by nobody: nothing stops, and nothing promises that it is equal."""
    for role in ("none", "pass"):
        wlc.set_role("sales", "rome", role, farm=three.farm)
    with counted(three):
        three.write("oslo", "UPDATE x4 SET v = 'oslo' WHERE k = 1", "DELETE FROM x4 WHERE k IN (2, 3)")
        three.write("rome", "UPDATE x4 SET v = 'rome' WHERE k IN (1, 2)", "DELETE FROM x4 WHERE k = 3")
        wlc.flush(three.file("rome"))
        three.exchange()
    assert causes(three, "x4") == []
    assert three.rows("oslo", "x4") == [(1, "rome"), (2, "rome")]
    for role in ("none", "secondary"):
        wlc.set_role("sales", "rome", role, farm=three.farm)
    three.exchange()
    three.write("oslo", "DELETE FROM x4")
    three.exchange()
    three.refuse_differences("x4")


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


@pytest.mark.slow
def test_c3_circular(three: Sites) -> None:
    """circular_simplex, 2ch, 3site_no_log_updates: every change arrives once by whatever way, then there is silence."""
    for number, site in enumerate(three.names):
        three.write(
            site, f"INSERT INTO c3 VALUES ({10 + number}, '{site}')", f"UPDATE c3 SET v = 'b' WHERE k = {number + 1}"
        )
    three.exchange()
    three.refuse_differences("c3")
    assert [row[0] for row in three.rows("paris", "c3")] == [1, 2, 3, 10, 11, 12]
    for site in three.names:
        assert len(set(three.names_of(site))) == len(three.names_of(site))
    before = [three.log(site).batch_numbers() for site in three.names]
    three.exchange()
    assert [three.log(site).batch_numbers() for site in three.names] == before


@pytest.mark.slow
def test_a_new_primary_reads_a_log_whose_beginning_was_pruned(tmp_path: Path) -> None:
    """It has what was pruned through the former primary, and has never read the log itself."""
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)")
    sites.join("rome")
    sites.join("paris")
    wlc.set_rule("sales", "t", "epoch", farm=sites.farm)
    sites.exchange()
    for number, site in enumerate(sites.names):
        sites.write(site, f"INSERT INTO t VALUES ({number}, 1)")
    for _ in range(2):
        for site in sites.names:
            sites.take(site)
    wlc.snapshot(sites.file("paris"))
    assert wlc.prune(sites.file("paris"), keep_for="0s").delete_batches == (1,)
    wlc.set_role(sites.file("oslo"), "rome", "primary")
    sites.write("rome", "INSERT INTO t VALUES (4, 1)")
    sites.take("rome")
    sites.exchange()
    sites.write("paris", "INSERT INTO t VALUES (5, 1)")
    sites.exchange()
    sites.refuse_differences("t")
    assert len(sites.rows("rome", "t")) == 5
