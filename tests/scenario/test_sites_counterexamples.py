"""Cases in which a simpler design of several masters loses a change, lets two sites drift apart, or rejects too much.

Oslo is the primary, rome a secondary; both tables have the rule `epoch`. The cases of an eviction are in
`test_sites_constraints`, those of a restored site in `test_sites_restored`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import wlc
from tests.sites import Sites
from wlc.farm.errors import ExpiredError
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.multi_master.site_step import SiteStep


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


@pytest.mark.slow
def test_delete_delete(two: Sites) -> None:
    """Both delete a row and one inserts it again: NDB Cluster's epochs, which forget deletions, end with two states."""
    before = {counter.name: counter.value for counter in wlc.conflicts(two.file("oslo"))}
    two.write("oslo", "DELETE FROM t WHERE k = 5")
    two.write("rome", "DELETE FROM t WHERE k = 5", "INSERT INTO t VALUES (5, 'Dalriada')")
    two.exchange()
    assert rejected(two, 5) == [("DELETE_ROW", "ROW_DOES_NOT_EXIST"), ("WRITE_ROW", "DATA_IN_CONFLICT")]
    assert value(two, 5) == {"oslo": [], "rome": []}
    after = {counter.name: counter.value for counter in wlc.conflicts(two.file("oslo"))}
    assert {name: after[name] - before.get(name, 0) for name in ("epoch", "delete_delete", "refreshed")} == {
        "epoch": 2,
        "delete_delete": 1,
        "refreshed": 1,
    }


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
        assert "wlc join" in str(caught.value.hint)
