"""A site that was restored from a backup: the cases of `wlc.multi_master.restored`, each with real files.

Oslo is the primary, rome a secondary. In no case is a tick used twice, and in the end all sites are equal.
"""

from __future__ import annotations

import re
import shlex
import threading
import warnings
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.scratch import attached
from tests.sites import Backup, Sites, offline, write_offline
from wlc.capture.duckdb import journal
from wlc.capture.duckdb.source import DuckDBSource
from wlc.farm.errors import FencedError, InvalidError, UnavailableError
from wlc.farm.model import Origin
from wlc.masters.master_state import decode
from wlc.multi_master.circle import change_circle, read_circle
from wlc.multi_master.duckdb import own_past
from wlc.multi_master.duckdb.duckdb_site import DuckDBSite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wlc.multi_master.circle import Circle

pytestmark = pytest.mark.slow
SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def two(tmp_path: Path) -> Sites:
    return found_two(tmp_path)


def found_two(tmp_path: Path, *, mesh: bool = False) -> Sites:
    sites = Sites(tmp_path)
    sites.found(SCHEMA, mesh=mesh)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO t SELECT range, 'both' FROM range(10)")
    if mesh:
        wlc.set_rule("sales", "t", "newest", farm=sites.farm)
        sites.exchange()
    sites.write("rome", "INSERT INTO t VALUES (100, 'rome')")
    sites.exchange()
    return sites


def in_step(sites: Sites) -> None:
    sites.exchange()
    sites.refuse_differences("t")
    for site in sites.names:
        log = sites.log(site)
        batches = [log.read_batch(number)[0] for number in log.batch_numbers()]
        ticks = [each.tick for batch in batches for each in batch.transactions]
        assert ticks == sorted(set(ticks)), "a tick was used twice"
        # A history that grew from an earlier one takes back what that one had published.
        names = [
            (batch.history, each.origin.history, each.origin.tick)
            for batch in batches
            for each in batch.transactions
            if each.origin is not None
        ]
        assert len(set(names)) == len(names), "a transaction was taken twice"


def histories(sites: Sites, site: str) -> list[Origin | None]:
    return [history.parent for history in read_circle(sites.log("oslo")).site(site).histories]


def keys(sites: Sites, site: str) -> list[object]:
    return [row[0] for row in sites.rows(site, "t") if isinstance(row[0], int) and row[0] >= 100]


def dies(*_: object, **__: object) -> None:
    raise SystemExit(9)


def test_case_1_a_site_that_is_ahead_of_its_log_goes_on(two: Sites) -> None:
    two.write("rome", "INSERT INTO t VALUES (101, 'rome')")
    backup = Backup.of(two, "rome")
    backup.restore()
    two.write("rome", "INSERT INTO t VALUES (102, 'rome')")
    in_step(two)
    assert keys(two, "oslo") == [100, 101, 102]
    assert histories(two, "rome") == [None]


@pytest.mark.slow
def test_case_2_a_site_rolls_forward_from_its_own_log_before_it_commits(two: Sites) -> None:
    """389-ds ruvstore_test: the vector in backups."""
    backup = Backup.of(two, "rome")
    two.write("rome", "INSERT INTO t VALUES (101, 'rome'), (102, 'rome')", "DELETE FROM t WHERE k = 102")
    wlc.flush(two.file("rome"))
    two.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
    two.exchange()
    two.write("rome", "UPDATE t SET v = 'once more' WHERE k = 101")
    wlc.flush(two.file("rome"))
    last = two.log("rome").config().tick
    before = two.log("rome").read_batch(two.log("rome").batch_numbers()[-1])[0].vector
    backup.restore()
    # The vector comes with the backup: the file contains what it did then, and not what was taken since.
    oslo = wlc.status(two.file("oslo")).history
    with attached(two.file("rome")) as plain:
        stored = decode(journal.read_state(plain, "rome"), "rome.duckdb")
    assert stored is not None
    assert stored.site is not None
    assert 0 < stored.site.contained[oslo] < before[oslo]
    with pytest.warns(UserWarning, match="has taken 4 transactions back from its own log"):
        opened = wlc.connect(two.file("rome"))
    with opened as rome:
        site = rome._shared.require_state().site
        assert site is not None
        assert site.contained[oslo] == before[oslo]
        assert rome.execute("FROM t WHERE k > 100").fetchall() == [(101, "once more")]
        assert rome.execute("SELECT v FROM t WHERE k = 1").fetchall() == [("oslo",)]
        rome.execute("INSERT INTO t VALUES (103, 'rome')")
    wlc.flush(two.file("rome"))
    assert two.log("rome").config().tick > last
    in_step(two)
    assert keys(two, "oslo") == [100, 101, 103]
    # It is still the same history.
    assert histories(two, "rome") == [None]
    assert wlc.status(two.file("rome")).bypassed == {}
    assert all(check.outcome == "same" for check in wlc.verify_source(two.file("rome")))


@pytest.mark.slow
@pytest.mark.parametrize("inside", [(own_past, "_note"), (DuckDBSite, "take_back")], ids=["a batch", "between two"])
def test_case_2_no_commit_gets_in_while_a_site_takes_its_own_past_back(two: Sites, inside: tuple[Any, str]) -> None:
    """Programs that had opened the file while the farm could not be reached, and such as come now."""
    backup = Backup.of(two, "rome")
    for key in (101, 102, 103):
        two.write("rome", f"INSERT INTO t VALUES ({key}, 'published')")
        wlc.flush(two.file("rome"))
    last = two.log("rome").config().tick
    backup.restore()
    with offline():
        user, began = wlc.connect(two.file("rome")), wlc.connect(two.file("rome"))
    insert, events, threads = "INSERT INTO t VALUES ({}, 'meanwhile')", list[str](), list[threading.Thread]()
    began.execute(f"BEGIN; {insert.format(104)}")

    def open_and_commit() -> None:
        with wlc.connect(two.file("rome")) as opened:
            opened.execute(insert.format(105))

    commits: dict[str, Callable[[], object]] = {
        "a transaction that began before": lambda: began.execute("COMMIT"),
        "a connection opened meanwhile": open_and_commit,
        "a statement": lambda: user.execute(insert.format(106)),
    }

    def commit(how: str) -> None:
        commits[how]()
        events.append(how)

    method = getattr(*inside)

    def meeting(*given: Any) -> Any:
        if threading.current_thread() in threads:
            # A connection that is opened meanwhile looks, too, whether something is to be taken back.
            return method(*given)
        # At the second batch.
        if events == ["inside"]:
            threads.extend(threading.Thread(target=commit, args=[how]) for how in commits)
            for thread in threads:
                thread.start()
            for thread in threads:
                # Time enough to commit, if anything let it.
                thread.join(0.5)
        events.append("inside")
        return method(*given)

    with user, began, patch.object(*inside, meeting):
        with pytest.warns(UserWarning, match="has taken 3 transactions back from its own log"):
            settled = wlc.connect(two.file("rome"))
        with settled:
            for thread in threads:
                thread.join()
            held = settled.execute("SELECT k FROM t WHERE k > 100 ORDER BY k").fetchall()
            assert held == [(key,) for key in range(101, 107)]
    assert events[:3] == ["inside"] * 3
    assert sorted(events[3:]) == sorted(commits)
    in_step(two)
    log = two.log("rome")
    ticks = [
        each.tick
        for number in log.batch_numbers()
        for batch in log.read_batch(number)[:1]
        for each in batch.transactions
        if each.origin is None and each.tick > last
    ]
    assert ticks == [last + 1, last + 2, last + 3]
    assert keys(two, "oslo") == list(range(100, 107))
    assert histories(two, "rome") == [None]


@pytest.mark.slow
def test_case_2_of_a_primary_with_schema_changes_and_sequences(two: Sites) -> None:
    backup = Backup.of(two, "oslo")
    two.write(
        "oslo",
        "CREATE SEQUENCE numbers",
        "CREATE TABLE numbered (k INTEGER PRIMARY KEY, v VARCHAR)",
        "INSERT INTO numbered SELECT nextval('numbers'), 'a' FROM range(3)",
        "ALTER TABLE numbered ADD COLUMN w INTEGER DEFAULT 7",
        "INSERT INTO numbered VALUES (nextval('numbers'), 'b', 8)",
        "UPDATE t SET v = 'oslo' WHERE k = 1",
    )
    two.write("rome", "UPDATE t SET v = 'rome' WHERE k = 2")
    two.exchange()
    backup.restore()
    with pytest.warns(UserWarning, match="transactions back from its own log"):
        two.write("oslo", "INSERT INTO numbered VALUES (nextval('numbers'), 'c', 9)")
    in_step(two)
    two.refuse_differences("numbered")
    assert two.rows("rome", "numbered") == [(1, "a", 7), (2, "a", 7), (3, "a", 7), (4, "b", 8), (5, "c", 9)]
    assert histories(two, "oslo") == [None]
    assert all(check.outcome == "same" for check in wlc.verify_source(two.file("oslo")))


def test_case_3_what_is_journalled_and_was_published_is_dropped(two: Sites) -> None:
    two.write("rome", "INSERT INTO t VALUES (101, 'rome')", "INSERT INTO t VALUES (102, 'rome')")
    backup = Backup.of(two, "rome")
    # The batch holds more than the backup has journalled.
    two.write("rome", "INSERT INTO t VALUES (103, 'rome')")
    two.exchange()
    backup.restore()
    with pytest.warns(UserWarning, match="has taken 1 transactions back"):
        wlc.flush(two.file("rome"))
    assert keys(two, "rome") == [100, 101, 102, 103]
    in_step(two)
    assert keys(two, "oslo") == [100, 101, 102, 103]
    assert histories(two, "rome") == [None]


@pytest.mark.slow
def test_case_3_what_diverged_begins_a_history_of_its_own(two: Sites) -> None:
    """389 Directory Server's backup_test::test_replication: backup, changes on both, destroy, restore, in step."""
    wlc.set_rule(two.file("oslo"), "t", "epoch")
    two.exchange()
    file, former = two.file("rome"), wlc.status(two.file("rome"))
    backup = Backup.of(two, "rome")
    two.write("rome", "INSERT INTO t VALUES (101, 'published')", "UPDATE t SET v = 'published' WHERE k = 3")
    two.write("oslo", "INSERT INTO t VALUES (200, 'oslo')", "UPDATE t SET v = 'oslo' WHERE k = 4")
    two.exchange()
    two.write("rome", "INSERT INTO t VALUES (102, 'published, and not taken')")
    wlc.flush(file)
    published = two.log("rome").config().tick
    file.unlink()
    two.folder.joinpath("restored").write_bytes(backup.data)
    two.folder.joinpath("restored").rename(file)
    wlc.master(file, moved=True)
    write_offline(two, "rome", "INSERT INTO t VALUES (103, 'since')", "UPDATE t SET v = 'since' WHERE k = 3")
    with pytest.warns(UserWarning, match="a new history begins"):
        two.take("rome")
    (first, second) = histories(two, "rome")
    assert first is None
    assert second == Origin(former.history, former.tick)
    assert two.log("rome").config().tick > published
    in_step(two)
    assert keys(two, "rome") == [100, 101, 102, 103, 200]
    # Its change of a row that it had changed before the restore is concurrent to that one.
    assert [(row.key, row.cause) for row in wlc.exceptions(two.file("oslo"))] == [({"k": 3}, "DATA_IN_CONFLICT")]
    assert (3, "published") in two.rows("rome", "t")
    two.replica_equals("rome", "t")


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "rule"), [(False, "owner"), (False, "none"), (True, "owner")])
def test_case_3_what_a_site_has_committed_since_is_newer_than_its_own_past(
    tmp_path: Path, rule: str, *, mesh: bool
) -> None:
    """In a table that nobody judges; the past comes back beside it."""
    two = found_two(tmp_path, mesh=mesh)
    wlc.set_rule("sales", "t", rule, site="rome" if rule == "owner" else "", farm=two.farm)
    two.exchange()
    backup = Backup.of(two, "rome")
    two.write(
        "rome",
        "UPDATE t SET v = 'past' WHERE k < 3",
        "INSERT INTO t VALUES (101, 'past'), (102, 'past')",
        "DELETE FROM t WHERE k IN (5, 6)",
    )
    two.exchange()
    backup.restore()
    write_offline(
        two,
        "rome",
        "UPDATE t SET v = 'since' WHERE k IN (0, 5)",
        "DELETE FROM t WHERE k = 1",
        "INSERT INTO t VALUES (101, 'since')",
    )
    with pytest.warns(UserWarning, match="a new history begins"):
        two.take("rome")
    in_step(two)
    expected = {0: "since", 2: "past", 3: "both", 4: "both", 5: "since", 7: "both", 8: "both", 9: "both"}
    assert dict(two.rows("oslo", "t")) == {**expected, 100: "rome", 101: "since", 102: "past"}
    assert wlc.exceptions(two.file("oslo")) == []
    two.replica_equals("oslo", "t")


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["epoch", "none"])
def test_case_3_what_the_backup_held_and_was_published_since_is_no_new_transaction(two: Sites, rule: str) -> None:
    """The log file that it came with holds more, which the backup does not."""
    wlc.set_rule("sales", "t", rule, farm=two.farm)
    two.exchange()
    with wlc.connect(two.file("rome")) as rome:
        rome.execute("INSERT INTO t VALUES (101, 'in the backup')")
        before = rome._shared.last_tick
        rome.execute("CHECKPOINT")
        backup = Backup.of(two, "rome")
        rome.execute("UPDATE t SET v = 'published' WHERE k = 101")
    two.exchange()
    backup.restore()
    write_offline(two, "rome", "INSERT INTO t VALUES (102, 'since')")
    with pytest.warns(UserWarning, match="a new history begins"):
        two.take("rome")
    (_, second) = histories(two, "rome")
    assert second is not None
    assert second.tick == before
    in_step(two)
    assert two.rows("oslo", "t")[-2:] == [(101, "published"), (102, "since")]
    assert wlc.exceptions(two.file("oslo")) == []
    two.replica_equals("rome", "t")


@pytest.mark.slow
@pytest.mark.parametrize("site, lost", [("rome", None), ("oslo", 0), ("rome", 5), ("oslo", 5)])
def test_case_3_sequences_go_on_behind_both_pasts(two: Sites, site: str, lost: int | None) -> None:
    """Behind what was committed since, and behind what was lost and published; None: that has not diverged.

    One sequence rises, the other one falls.
    """
    steps = {"up": 1, "down": -1}

    def inserts(v: str) -> list[str]:
        return [f"INSERT INTO {name} (v) VALUES ('{v}')" for name in steps]

    for name, step in steps.items():
        create = f"CREATE TABLE {name} (k INTEGER PRIMARY KEY DEFAULT nextval('{name}_q'), v VARCHAR)"
        two.write("oslo", f"CREATE SEQUENCE {name}_q INCREMENT BY {step} START {step}", create)
    two.exchange()
    with wlc.connect(two.file(site)) as master:
        for statement in inserts("in the backup"):
            master.execute(statement)
        master.execute("CHECKPOINT")
        backup = Backup.of(two, site)
        if lost is not None:
            for name in steps:
                master.execute(f"INSERT INTO {name} VALUES (1000, 'published')")
            wlc.flush(two.file(site))
            for statement in inserts("published") * lost:
                master.execute(statement)
    wlc.flush(two.file(site))
    two.exchange()
    backup.restore()
    write_offline(two, site, *inserts("since") * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wlc.flush(two.file(site))
        two.exchange()
    two.write(site, *inserts("then"))
    found = {name: [row[0] for row in two.rows(site, name) if row[1] == "then"] for name in steps}
    assert found == {name: [step * (1 + max(3, lost or 0) + 1)] for name, step in steps.items()}


@pytest.mark.slow
def test_case_3_what_was_read_since_had_not_seen_its_own_past(two: Sites) -> None:
    """The second transaction began behind the first one, whose tick was that of the past then."""
    wlc.set_rule("sales", "t", "epoch_trans", reads="exclusive", farm=two.farm)
    two.exchange()
    backup = Backup.of(two, "rome")
    two.write("rome", "UPDATE t SET v = 'past' WHERE k = 3")
    two.exchange()
    backup.restore()
    reading = "BEGIN; SELECT v FROM t WHERE k = 3 FOR UPDATE; INSERT INTO t VALUES (103, 'since'); COMMIT"
    write_offline(two, "rome", "INSERT INTO t VALUES (102, 'since')", reading)
    with pytest.warns(UserWarning, match="a new history begins"):
        two.take("rome")
    log, history = two.log("rome"), wlc.status(two.file("rome")).history
    batches = [log.read_batch(number)[0] for number in log.batch_numbers()]
    first, second = next(batch for batch in batches if batch.history == history).transactions
    assert second.after == first.tick
    in_step(two)
    assert keys(two, "oslo") == [100, 102]
    assert sorted((row.key["k"], row.op_type) for row in wlc.exceptions(two.file("oslo"))) == [
        (3, "READ_ROW"),
        (103, "WRITE_ROW"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("site", ["rome", "oslo"])
def test_nothing_is_published_in_a_history_that_the_farm_has_not_heard_of(two: Sites, site: str) -> None:
    """The farm gives no answer when it is told of the new history; the program writes on, and publishes that."""
    backup = Backup.of(two, site)
    two.write(site, "INSERT INTO t VALUES (101, 'published')")
    two.exchange()
    backup.restore()
    write_offline(two, site, "INSERT INTO t VALUES (103, 'since')")
    failures = iter([UnavailableError("no answer")])

    def tell(*arguments: Any) -> Circle:
        for failure in failures:
            raise failure
        return change_circle(*arguments)

    with (
        patch("wlc.multi_master.restored.change_circle", tell),
        pytest.warns(UserWarning, match="a new history begins"),
    ):
        two.write(site, "INSERT INTO t VALUES (104, 'since')")
    assert len(histories(two, site)) == 2
    in_step(two)
    assert keys(two, "rome") == [100, 101, 103, 104]
    two.replica_equals(site, "t")


@pytest.mark.slow
def test_a_site_that_died_before_the_first_snapshot_of_its_history_takes_it(two: Sites) -> None:
    wlc.set_rule(two.file("oslo"), "t", "epoch")
    two.exchange()
    backup = Backup.of(two, "rome")
    two.write("rome", "INSERT INTO t VALUES (101, 'published')")
    two.exchange()
    backup.restore()
    write_offline(two, "rome", "INSERT INTO t VALUES (103, 'since')")
    with pytest.MonkeyPatch.context() as patched:
        # As if it had been killed there: what is open is closed, and nothing of the process is left.
        patched.setattr(DuckDBSource, "take_snapshot", dies)
        with pytest.warns(UserWarning, match="a new history begins"), pytest.raises(SystemExit):
            two.take("rome")
    assert len(histories(two, "rome")) == 2
    two.exchange()
    in_step(two)
    two.replica_equals("rome", "t")


@pytest.mark.slow
def test_case_3_of_a_primary_judges_what_it_has_committed_since(two: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    """All others go by what it had published: it is judged as if another site had written it."""
    wlc.set_rule(two.file("oslo"), "t", "epoch")
    two.exchange()
    file, former = two.file("oslo"), wlc.status(two.file("oslo"))
    backup = Backup.of(two, "oslo")
    two.write("oslo", "INSERT INTO t VALUES (201, 'oslo')", "UPDATE t SET v = 'published' WHERE k = 1")
    two.write("rome", "UPDATE t SET v = 'rome' WHERE k = 2")
    two.exchange()
    two.write("rome", "UPDATE t SET v = 'not taken' WHERE k = 4")
    wlc.flush(two.file("rome"))
    published = two.log("oslo").config().tick
    backup.restore()
    write_offline(
        two,
        "oslo",
        "INSERT INTO t VALUES (202, 'since')",
        "UPDATE t SET v = 'since' WHERE k < 4",
        "UPDATE t SET v = 'since' WHERE k = 4",
    )
    with pytest.warns(
        UserWarning, match="a new history begins, and what it had published comes back with wlc site take"
    ):
        wlc.flush(file)
    with pytest.raises(UnavailableError, match="has not taken over yet"):
        two.take("rome")
    assert run_app(app, "wlc", ["site", "take", str(file)]) == 0
    assert "oslo" in capsys.readouterr().out
    (first, second) = histories(two, "oslo")
    assert (first, second) == (None, Origin(former.history, former.tick))
    assert two.log("oslo").config().tick > published
    in_step(two)
    assert keys(two, "rome") == [100, 201, 202]
    values = [row[1] for row in two.rows("rome", "t")[:5]]
    assert values == ["since", "published", "rome", "since", "since"]
    rejected = [(row.source, row.key["k"], row.cause) for row in wlc.exceptions(file)]
    assert sorted(rejected) == [
        (site, key, "DATA_IN_CONFLICT") for site, key in (("oslo", 1), ("oslo", 2), ("rome", 4))
    ]
    assert all(check.outcome == "same" for check in wlc.verify_source(file))
    two.replica_equals("oslo", "t")
    # It judges as before.
    two.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 5")
    two.write("rome", "UPDATE t SET v = 'rome' WHERE k = 5")
    in_step(two)
    assert (5, "oslo") in two.rows("rome", "t")
    # A backup from before that is of no use any more; as the hint says, another site leads.
    backup.restore()
    with pytest.raises(FencedError, match="older than the present history of site oslo") as caught:
        wlc.flush(file)
    succeed, _, anew = (shlex.split(part.rpartition(": ")[2]) for part in str(caught.value.hint).split("; "))
    assert run_app(app, "wlc", succeed[1:]) == 0
    two.take("rome")
    assert run_app(app, "wlc", [*anew[anew.index("wlc") + 1 :], "--yes"]) == 0
    two.exchange()
    two.refuse_differences("t")


def test_case_3_of_a_primary_that_has_changed_the_schema_is_refused(two: Sites) -> None:
    backup = Backup.of(two, "oslo")
    two.write("oslo", "INSERT INTO t VALUES (201, 'oslo')")
    two.exchange()
    backup.restore()
    write_offline(two, "oslo", "INSERT INTO t VALUES (202, 'oslo')", "CREATE TABLE new (k INTEGER PRIMARY KEY)")
    with pytest.raises(FencedError, match="has committed tick .* it changes the schema: CREATE TABLE") as caught:
        wlc.flush(two.file("oslo"))
    assert "restore the backup again" in str(caught.value.hint)
    # As the hint says.
    backup.restore()
    with pytest.warns(UserWarning, match="transactions back from its own log"):
        wlc.flush(two.file("oslo"))
    in_step(two)
    assert keys(two, "oslo") == [100, 201]


@pytest.mark.slow
@pytest.mark.parametrize("site, has_held", [("rome", True), ("rome", False), ("oslo", True)])
def test_a_backup_behind_what_was_pruned_is_refused(
    two: Sites, site: str, has_held: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it held was published since, and others have changed it since; the hint's commands bring all in step."""
    other = "oslo" if site == "rome" else "rome"
    with wlc.connect(two.file(site)) as master:
        if has_held:
            master.execute("UPDATE t SET v = 'held' WHERE k = 5")
            master.execute("INSERT INTO t VALUES (101, 'held')")
        master.execute("CHECKPOINT")
        backup = Backup.of(two, site)
        master.execute("INSERT INTO t VALUES (102, 'lost')")
    two.exchange()
    two.write(other, "UPDATE t SET v = 'newer' WHERE k = 5", "DELETE FROM t WHERE k = 101")
    for key in (104, 105):
        two.exchange()
        two.write(site, f"INSERT INTO t VALUES ({key}, 'lost')")
    two.exchange()
    wlc.snapshot(two.file(site))
    wlc.prune(two.log(site).url, keep_for="0s")
    backup.restore()
    published = two.log(site).config()
    for _ in range(2):
        with pytest.raises(FencedError, match=r"which it lacks, was pruned") as caught:
            wlc.flush(two.file(site))
    with pytest.raises(FencedError, match=r"which it lacks, was pruned"):
        wlc.take(two.file(site), dry_run=True)
    assert two.log(site).config() == published
    hint = str(caught.value.hint)
    if site == "oslo":
        role, anew = re.fullmatch(
            r"let another site be the primary: (.*); wlc site take there; then (.*)", hint
        ).groups()
        typed = [role, f"wlc site take {two.file('rome')}", anew]
    else:
        typed = [hint]
    for command in typed:
        assert run_app(app, "wlc", [*shlex.split(command)[1:], *["--yes"] * command.endswith("--again")]) == 0
    capsys.readouterr()
    in_step(two)
    assert keys(two, site) == [100, 102, 104, 105]
    assert (5, "newer") in two.rows(site, "t")


def test_case_5_an_unknown_past_is_refused(two: Sites) -> None:
    """389-ds regression_m2c2, another generation."""
    backup = Backup.of(two, "rome")
    two.write("rome", "INSERT INTO t VALUES (101, 'rome')")
    wlc.flush(two.file("rome"))
    backup.restore()
    with duckdb.connect(two.file("rome")) as plain:
        plain.execute("UPDATE wlc.state SET value = repeat('0', 64) WHERE key = 'chain'")
    with pytest.raises(FencedError, match="was published by another master") as caught:
        wlc.flush(two.file("rome"))
    assert "wlc site leave" in str(caught.value.hint) or "wlc site join" in str(caught.value.hint)
    with pytest.raises(FencedError):
        two.write("rome", "INSERT INTO t VALUES (102, 'rome')")


@pytest.mark.slow
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_site_whose_published_past_nobody_took_does_not_take_over(
    two: Sites, capsys: pytest.CaptureFixture[str], *, is_alone: bool
) -> None:
    backup = Backup.of(two, "rome")
    two.write("rome", "INSERT INTO t VALUES (101, 'rome')", "UPDATE t SET v = 'lost' WHERE k = 1")
    wlc.flush(two.file("rome"))
    backup.restore()
    write_offline(two, "rome", "INSERT INTO t VALUES (102, 'rome')")
    with pytest.warns(UserWarning, match="new history"):
        wlc.flush(two.file("rome"))
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=two.farm)
    if is_alone:
        wlc.leave("sales", "oslo", farm=two.farm, force=True)
    with pytest.raises(FencedError, match="has 2 transactions that its file lacks and site oslo has not") as caught:
        two.take("rome")
    hint = str(caught.value.hint)
    for number, command in enumerate(re.findall(r"wlc [a-z ]+ /[^,;]*", hint)):
        if is_alone and number:
            # Without a name it would be another database than its readers know.
            with pytest.raises(InvalidError, match="and was stopped") as refused:
                wlc.master(two.file("rome"))
            assert str(refused.value.hint).endswith(command)
        assert run_app(app, "wlc", shlex.split(command)[1:]) == 0, capsys.readouterr().err
    if is_alone:
        assert wlc.status(two.file("rome")).name == "OTHER"
        return
    for site in ("oslo", "rome"):
        two.take(site)
    in_step(two)
    assert keys(two, "rome") == [100, 101, 102]
    assert (1, "lost") in two.rows("rome", "t")
    wlc.set_role(two.file("oslo"), "rome", "primary")
    two.take("rome")
    two.write("rome", "INSERT INTO t VALUES (103, 'rome')")
    in_step(two)
    assert keys(two, "oslo") == [100, 101, 102, 103]
