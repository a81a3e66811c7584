"""Several masters of one database: each takes what the others published, and all of it happens once."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.sites import Sites, windows_compared
from wlc.capture.duckdb import journal
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.model import Batch, Ddl, Origin
from wlc.farm.store.local import LocalStore
from wlc.multi_master import missing_steps
from wlc.multi_master.circle import EPOCH, EPOCH_TRANS
from wlc.multi_master.duckdb import conflict_window, lines, take_step
from wlc.multi_master.missing_steps import SiteLog
from wlc.multi_master.site_step import SiteTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wlc.farm.model import DdlEffect
    from wlc.multi_master.site_step import SiteStep


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("two"))
    sites.found()
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three', NULL)")
    log = sites.log("oslo")
    # The founder pays nothing as long as it is alone.
    text = log.logs.read("sales_000000000001").decode()
    assert not [key for key in ('"term"', '"own"', '"taken"', '"after"') if key in text]
    sites.join("rome")
    return sites


@pytest.mark.slow
def test_rows_are_exchanged_and_then_there_is_silence(two: Sites) -> None:
    """389-ds acceptance_test, spock bidirectional."""
    two.write("oslo", "INSERT INTO a VALUES (10, 'oslo', -0.0)", "UPDATE a SET v = 'ONE' WHERE id = 1")
    two.write("oslo", "INSERT INTO bag VALUES ('z')", "DELETE FROM bag WHERE v = 'x'")
    two.write("rome", "INSERT INTO a VALUES (11, 'rome', 'nan')", "DELETE FROM a WHERE id = 2")
    two.exchange()
    two.refuse_differences("a", "bag")
    assert [row[0] for row in two.rows("rome", "a")] == [1, 3, 10, 11]
    before = [two.log(site).batch_numbers() for site in two.names]
    two.exchange()
    assert [two.log(site).batch_numbers() for site in two.names] == before
    for site in two.names:
        assert len(set(two.names_of(site))) == len(two.names_of(site))
        two.replica_equals(site)


def test_what_is_taken_keeps_its_origin_and_its_first_commit(two: Sites) -> None:
    """spock tuple_origin."""
    two.write("rome", "INSERT INTO a VALUES (20, 'kept', 1)")
    two.exchange()
    rome, oslo = two.log("rome"), two.log("oslo")
    theirs = rome.read_batch(rome.batch_numbers()[-1])[0]
    ours = oslo.read_batch(oslo.batch_numbers()[-1])[0]
    first, taken = theirs.transactions[-1], ours.transactions[-1]
    assert taken.origin == Origin(theirs.history, first.tick, first.committed)
    assert ours.vector == {theirs.history: first.tick, ours.history: ours.last}
    assert (ours.taken[0].site, ours.taken[0].tick, ours.taken[0].batch) == ("rome", theirs.last, theirs.number)
    assert ours.term == 1
    assert ours.own is not None
    assert ours.own < ours.last


@pytest.mark.slow
def test_what_another_one_changed_meanwhile_is_journalled_as_it_was_here(two: Sites) -> None:
    """Without a rule, what is read last overwrites; the log of each site stays a log of its own states."""
    two.write("oslo", "INSERT INTO a VALUES (40, 'x', 0), (41, 'y', 0)")
    two.exchange()
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id = 40", "DELETE FROM a WHERE id = 41")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 40", "DELETE FROM a WHERE id = 41")
    two.exchange()
    assert (40, "rome", 0.0) in two.rows("oslo", "a")
    assert (40, "oslo", 0.0) in two.rows("rome", "a")
    for site in two.names:
        two.replica_equals(site)
    two.write("oslo", "DELETE FROM a WHERE id = 40")
    two.exchange()
    two.refuse_differences("a")


@pytest.mark.slow
def test_only_one_site_changes_the_schema(two: Sites) -> None:
    """389-ds acceptance_test, a suffix that comes late."""
    with pytest.raises(InvalidError, match="site rome cannot change the schema"):
        two.write("rome", "CREATE TABLE wrong (id INTEGER)")
    two.write(
        "oslo",
        "CREATE TABLE made (id INTEGER PRIMARY KEY, v VARCHAR)",
        "INSERT INTO made VALUES (1, 'a')",
        "ALTER TABLE made ADD COLUMN w INTEGER DEFAULT 7",
        "CREATE TABLE copied AS SELECT * FROM made",
        "INSERT INTO made VALUES (2, 'b', 8)",
        "CREATE TABLE checked (id INTEGER PRIMARY KEY, n INTEGER UNIQUE CHECK (n > 0))",
        "ALTER TABLE checked RENAME n TO m",
        "ALTER TABLE checked RENAME TO renamed",
        "CREATE UNIQUE INDEX once ON renamed (M, (id + 1))",
        "CREATE SCHEMA gone; CREATE SEQUENCE gone.s; CREATE TABLE gone.t (i INTEGER DEFAULT nextval('gone.s'))",
        "DROP SCHEMA gone CASCADE",
    )
    two.take("oslo")
    assert two.take("rome") > 0
    two.write("rome", "INSERT INTO made VALUES (3, 'c', 9)")
    two.exchange()
    two.refuse_differences("made", "copied")
    assert two.rows("rome", "made") == [(1, "a", 7), (2, "b", 8), (3, "c", 9)]
    assert wlc.status(two.file("rome")).bypassed == {}
    # A site runs the statements, and says the same of what they did.
    said = effects(two, "rome")
    assert len(said) > 10
    assert said == effects(two, "oslo")[-len(said) :]
    for site in two.names:
        two.replica_equals(site)


def effects(sites: Sites, site: str) -> list[tuple[DdlEffect, ...]]:
    """What all schema statements in the log of a site did."""
    log = sites.log(site)
    transactions = (each for number in log.batch_numbers() for each in log.read_batch(number)[0].transactions)
    statements = (record for each in transactions for record in each.records if isinstance(record, Ddl))
    return [ddl.does for ddl in statements]


def test_only_the_primary_writes_tables_without_a_key(two: Sites) -> None:
    with pytest.raises(InvalidError, match=r"site rome cannot write main\.bag"):
        two.write("rome", "INSERT INTO bag VALUES ('rome')")
    two.refuse_differences("bag")


@pytest.mark.slow
def test_rows_of_a_table_that_was_renamed_are_taken_under_its_old_name(two: Sites) -> None:
    two.write("rome", "INSERT INTO a VALUES (59, 'rome', 0)")
    two.write("oslo", "ALTER TABLE a RENAME TO b")
    with pytest.raises(UnsupportedError, match="which is no table here") as refused:
        two.take("oslo")
    assert "rename it back" in str(refused.value.hint)
    two.write("oslo", "ALTER TABLE b RENAME TO a")
    assert two.take("oslo") == 1
    two.exchange()
    two.refuse_differences("a")


def test_a_repair_publishes_no_schema_change_of_another_site(two: Sites, tmp_path: Path) -> None:
    published = tmp_path / "published.duckdb"
    wlr.replicate(two.log("rome").url, into=published, register=False)
    with duckdb.connect(two.file("rome")) as plain:
        plain.execute("CREATE TABLE wrong (id INTEGER)")
    with pytest.raises(InvalidError, match="site rome cannot change the schema"):
        wlc.repair(two.file("rome"), published=published)
    with duckdb.connect(two.file("rome")) as plain:
        plain.execute("DROP TABLE wrong")


def vector_of(sites: Sites, site: str) -> dict[str, int]:
    """Return what a site's file says that it contains."""
    with wlc.connect(sites.file(site)) as connection:
        state = connection._shared.require_state()
    assert state.site is not None
    return {**state.site.contained, state.history: state.tick}


@pytest.mark.slow
def test_a_failed_take_changes_nothing_and_the_next_one_goes_on(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """389-ds ruvstore_test: the vector is not advanced after an aborted operation."""
    two.write("rome", "INSERT INTO a VALUES (50, 'once', 1)")
    wlc.flush(two.file("rome"))
    before, vector = repr(two.rows("oslo", "a")), vector_of(two, "oslo")
    for place in (journal, "add_entries"), (journal, "write_state"), (lines, "journal_images"), (lines, "add"):

        def broken(*_: object, **__: object) -> None:
            raise OSError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(*place, broken)
            with pytest.raises(wlc.UnavailableError, match="broken"):
                two.take("oslo")
        assert repr(two.rows("oslo", "a")) == before
        assert wlc.status(two.file("oslo")).unpublished == 0
        assert vector_of(two, "oslo") == vector
    assert two.take("oslo") == 1
    rome = wlc.status(two.file("rome"))
    assert vector_of(two, "oslo")[rome.history] == rome.tick > vector.get(rome.history, 0)
    assert two.take("oslo") == 0
    two.exchange()
    two.refuse_differences("a")


def test_two_rounds_at_once_take_everything_once(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("rome", "INSERT INTO a VALUES (55, 'once', 1)")
    wlc.flush(two.file("rome"))
    steps = SiteLog.steps
    others: list[int] = []

    def meeting(log: SiteLog) -> Iterator[SiteStep]:
        for step in steps(log):
            if not others:
                others.append(0)
                others[0] = two.take("oslo")
            yield step

    monkeypatch.setattr(SiteLog, "steps", meeting)
    with pytest.raises(wlc.UnavailableError, match="is taking from site rome already"):
        two.take("oslo")
    assert others == [1]
    two.exchange()
    two.refuse_differences("a")


@pytest.mark.slow
def test_a_user_who_commits_meanwhile_loses_nothing(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("rome", "INSERT INTO a VALUES (60, 'rome', 1)", "UPDATE a SET v = 'r' WHERE id = 3")
    wlc.flush(two.file("rome"))
    with wlc.connect(two.file("oslo")) as user:
        add = lines.add
        meetings: list[object] = []

        def meeting(*arguments: object) -> None:
            add(*arguments)  # type: ignore[arg-type]
            if len(meetings) < 2:
                meetings.append(user.execute(f"INSERT INTO a VALUES ({61 + len(meetings)}, 'user', 1)").fetchall())

        monkeypatch.setattr(lines, "add", meeting)
        assert two.take("oslo") == 2
    assert len(meetings) == 2
    two.exchange()
    two.refuse_differences("a")
    two.replica_equals("oslo")


@pytest.mark.slow
def test_what_meets_an_open_transaction_waits_for_its_end(two: Sites) -> None:
    """What comes before it is taken, and who takes in the background goes on."""

    def wait_for(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def taken() -> list[object]:
        with user.cursor() as other:
            return [key for (key,) in other.execute("SELECT id FROM a WHERE v = 'open' ORDER BY id").fetchall()]

    two.write("oslo", "INSERT INTO a VALUES (71, 'one', 1), (72, 'two', 1)")
    two.exchange()
    with wlc.connect(two.file("oslo"), take=True, beat_s=0.05) as user:
        user.execute("BEGIN; DELETE FROM a WHERE id = 71")
        changes = (f"UPDATE a SET v = 'open' WHERE id = {key}" for key in (72, 71))
        two.write("rome", *changes, "INSERT INTO a VALUES (73, 'open', 1)")
        wait_for(lambda: user.wlc.failure is not None)
        assert "has changed rows that tick" in str(user.wlc.failure)
        assert taken() == [72]
        user.execute("COMMIT")
        wait_for(lambda: taken() == [71, 72, 73])
    two.exchange()
    two.replica_equals("oslo")


# A site that is alone writes the log of any master, record by record, but for tables that are emptied --------------------


SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR, u INTEGER UNIQUE);
    CREATE TABLE children (k INTEGER PRIMARY KEY, t INTEGER REFERENCES t (k));
    CREATE TABLE bag (v VARCHAR);
    CREATE TABLE emptied (k INTEGER PRIMARY KEY, v VARCHAR);
    INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2);
    INSERT INTO emptied VALUES (1, 'one'), (2, 'two');
"""
# Each inner list is a transaction.
USUAL = (
    ["INSERT INTO t VALUES (3, 'three', 3)", "INSERT INTO children VALUES (1, 3), (3, 3)"],
    ["UPDATE t SET v = 'changed' WHERE k = 1"],
    ["UPDATE t SET k = 9 WHERE k = 2"],
    ["INSERT INTO bag SELECT 'x' FROM range(5000)"],
    ["DELETE FROM children WHERE k = 1", "INSERT INTO children VALUES (2, 9)"],
    ["DELETE FROM t WHERE k = 1"],
    ["CREATE SEQUENCE numbers", "CREATE TABLE late (k INTEGER DEFAULT nextval('numbers') PRIMARY KEY, v VARCHAR)"],
    ["INSERT INTO late (v) VALUES ('a'), ('b')", "ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 7"],
    ["SELECT * FROM t WHERE k = 9 FOR UPDATE", "UPDATE late SET v = 'read' WHERE k = 1"],
    ["SELECT * FROM t WHERE k = 9 FOR SHARE", "SELECT count(*) FROM t", "UPDATE late SET v = 'shared' WHERE k = 2"],
    ["SELECT * FROM t"],
    ["INSERT INTO bag VALUES ('y')", "DROP TABLE late", "CREATE VIEW few AS SELECT v FROM t"],
    ["UPDATE bag SET v = 'z' WHERE v = 'y'"],
)
EMPTIED = {"TRUNCATE": ["TRUNCATE emptied"], "DELETE": ["DELETE FROM emptied"]}


def write(connection: Any, statements: list[str], *, is_site: bool) -> None:
    connection.execute("BEGIN")
    for statement in statements:
        # A master that is no site leaves the clause to DuckDB, which does not know it.
        connection.execute(statement if is_site else re.sub(" FOR (UPDATE|SHARE)$", "", statement)).fetchall()
    connection.execute("COMMIT")


def content(folder: Path, transactions: list[list[str]], *, site: bool, mesh: bool = False) -> list[Any]:
    """Write transactions at a master; returns the lines of its log, without what no two logs share, and its images."""
    folder.mkdir()
    file = folder / "same.duckdb"
    with duckdb.connect(file) as connection:
        connection.execute(SCHEMA)
    wlc.master(file, farm=str(folder / "farm"), name="same", site="oslo" if site else None, mesh=mesh)
    for place, statements in enumerate(transactions):
        # Some log files have one transaction, and some several.
        with wlc.connect(file, beat_s=3600) as connection:
            write(connection, statements, is_site=site)
            if place % 3 == 0:
                connection.execute("INSERT INTO bag VALUES ('more')")
    log, history = open_database(f"{folder}/farm/same"), wlc.status(file).history
    lines: list[Any] = []
    for number in log.batch_numbers():
        text = log.logs.read(f"same_{number:012d}").decode()
        lines += [without_chance(json.loads(line)) for line in text.replace(history, "history").splitlines()]
        for each in log.read_batch(number)[0].files:
            rows = duckdb.sql(f"SELECT * FROM '{log.fetch(each)}'").fetchall()
            lines.append({"images": each.file.path, "rows": sorted(map(repr, rows))})
    assert not list((folder / "farm" / "same").glob("replicas/*"))
    return lines


def without_chance(value: Any) -> Any:
    """Leave out times, hashes and sizes of files."""
    if isinstance(value, dict):
        return {key: without_chance(each) for key, each in value.items() if key != "bytes"}
    if isinstance(value, list):
        return [without_chance(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]{15}Z", "time", re.sub("[0-9a-f]{64}", "hash", value))
    return value


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [False, True], ids=["star", "mesh"])
def test_its_log_is_that_of_any_master(tmp_path: Path, mesh: bool) -> None:
    plain = content(tmp_path / "plain", list(USUAL), site=False)
    alone = content(tmp_path / "alone", list(USUAL), site=True, mesh=mesh)
    assert len(plain) > 5 * len(USUAL)
    assert alone == plain


@pytest.mark.slow
@pytest.mark.parametrize("how", EMPTIED)
def test_a_table_that_is_emptied_lists_its_rows_and_nothing_else_does(tmp_path: Path, how: str) -> None:
    written = [*USUAL[:3], EMPTIED[how], *USUAL[3:6]]
    plain = content(tmp_path / "plain", written, site=False)
    alone = content(tmp_path / "alone", written, site=True)
    (change,) = [each["change"] for each in alone if each.get("change", {}).get("table") == ["main", "emptied"]]
    assert (change["added"], change["removed"]) == (0, 2)
    (images,) = [each for each in alone if each.get("images") == change["path"]]
    assert [row.partition(", ")[2] for row in images["rows"]] == ["-1, 1, 'one')", "-1, 2, 'two')"]
    # Without these images, and with the record that counts the rows only, it is the other one's.
    alone.remove(images)
    for each in alone:
        if each.get("change") is change:
            each.clear()
            each["clear"] = {"table": ["main", "emptied"], "removed": 2}
        if "end" in each:
            each["end"]["files"] = [file for file in each["end"]["files"] if file["path"] != change["path"]]
    assert alone == plain


# A primary that judges many log files of a site in one round derives what is concurrent once -----------------------------


def publish_each(sites: Sites, site: str, *statements: str) -> None:
    """Publish every statement in a log file of its own."""
    with wlc.connect(sites.file(site)) as connection:
        for statement in statements:
            connection.execute(statement)
            wlc.flush(sites.file(site))


@pytest.fixture
def backlog(tmp_path: Path) -> Sites:
    sites = Sites(tmp_path)
    sites.found(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);"
        "INSERT INTO t SELECT range, '' FROM range(100)"
    )
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "t", EPOCH_TRANS, reads="exclusive")
    wlc.set_rule(sites.file("oslo"), "u", EPOCH)
    sites.exchange()
    return sites


@pytest.mark.slow
def test_a_backlog_is_judged_by_one_window(backlog: Sites) -> None:
    publish_each(backlog, "oslo", *(f"UPDATE t SET v = 'oslo' WHERE k = {k}" for k in range(5)))
    publish_each(backlog, "rome", *(f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(30)))
    before = backlog.log("oslo").batch_numbers()
    with (
        patch.object(conflict_window, "create", wraps=conflict_window.create) as derived,
        patch.object(conflict_window, "add_batch", wraps=conflict_window.add_batch) as read,
    ):
        assert backlog.take("oslo") == 30
    assert derived.call_count == 1
    assert sorted(call.args[1].number for call in read.call_args_list) == before[-5:]
    backlog.exchange()
    backlog.refuse_differences("t")
    assert [row[1] for row in backlog.rows("oslo", "t")[:31]] == ["oslo"] * 5 + ["rome"] * 25 + [""]


@pytest.mark.slow
def test_the_window_of_a_round_is_that_of_each_step(backlog: Sites) -> None:
    """Users of oslo commit and publish between the steps, steps are tried again and halved, and readers began earlier."""
    publish_each(backlog, "oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
    with wlc.connect(backlog.file("rome")) as connection, connection.cursor() as reader:
        reader.execute("BEGIN; SELECT * FROM t WHERE k = 1 FOR UPDATE; UPDATE t SET v = 'read' WHERE k = 50")
        backlog.take("rome")
        backlog.write("oslo", "INSERT INTO u VALUES (0, 'name 5')")
        publish_each(backlog, "rome", "UPDATE t SET v = 'rome' WHERE k = 2", "UPDATE t SET v = 'rome' WHERE k = 3")
        for k in range(4, 8):
            connection.execute(f"UPDATE t SET v = 'rome' WHERE k = {k}; INSERT INTO u VALUES ({k}, 'name {k}')")
        wlc.flush(backlog.file("rome"))
        reader.execute("COMMIT")
        wlc.flush(backlog.file("rome"))
        publish_each(backlog, "rome", "UPDATE t SET v = 'rome again' WHERE k IN (2, 9)")
    steps, commit, attempts = SiteLog.steps, take_step._commit, []
    written = iter(range(1, 100))

    def beside_users(log: SiteLog) -> Iterator[SiteStep]:
        for step in steps(log):
            k = next(written)
            # A program that ends publishes what waits; what is taken is journalled then.
            backlog.write("oslo", f"UPDATE t SET v = 'oslo {k}' WHERE k = {k}")
            yield step

    def twice_in_vain(attempt: take_step._Attempt) -> None:
        attempts.append(attempt.step)
        if len(attempts) in (2, 3):
            raise duckdb.TransactionException("as if a user had committed")
        commit(attempt)

    with (
        patch.object(missing_steps, "JOINED_TRANSACTIONS", 1),
        windows_compared() as sizes,
        patch.object(SiteLog, "steps", beside_users),
        patch.object(take_step, "_commit", twice_in_vain),
        patch.object(conflict_window, "create", wraps=conflict_window.create) as derived,
    ):
        backlog.take("oslo")
    # Once by the round and for each comparison; and again, since the reader had begun before rome took.
    assert derived.call_count - len(sizes) == 2
    assert len(sizes) > 8
    assert max(sizes) > min(sizes)
    backlog.exchange()
    backlog.refuse_differences("t", "u")
    rejected = {(row.key["k"], row.op_type, row.cause) for row in wlc.exceptions(backlog.file("oslo"))}
    assert (1, "READ_ROW", "TRANS_IN_CONFLICT") in rejected
    assert (5, "WRITE_ROW", "constraint") in rejected
    assert (9, "UPDATE_ROW", "TRANS_IN_CONFLICT") in rejected


@pytest.mark.slow
def test_a_backlog_is_taken_at_once_up_to_a_batch_that_cannot_be_taken(backlog: Sites) -> None:
    publish_each(backlog, "rome", *(f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(8)))
    # What was rejected of one log file is what the next ones go on with.
    backlog.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
    publish_each(
        backlog, "rome", "UPDATE t SET v = 'again' WHERE k IN (1, 20)", "UPDATE t SET v = 'again' WHERE k = 20"
    )
    log = backlog.log("rome")
    damaged = log.read_batch(log.batch_numbers()[-1])[0].files[0]
    file, commits = log.fetch(damaged), []
    data, commit = file.read_bytes(), take_step._commit
    file.write_bytes(data[:-1])

    def counted(attempt: take_step._Attempt) -> None:
        commit(attempt)
        commits.append(len(attempt.step.transactions))

    with patch.object(take_step, "_commit", counted):
        with pytest.raises(CorruptError, match=damaged.file.path):
            backlog.take("oslo")
        # Halved until the one that is damaged is left.
        assert commits == [5, 2, 1, 1]
        file.write_bytes(data)
        assert backlog.take("oslo") == 1
    rejected = [(row.origin_tick, row.key, row.dependent) for row in wlc.exceptions(backlog.file("oslo"))]
    assert [key["k"] for _, key, _ in rejected] == [1, 1, 20, 20]
    backlog.exchange()
    backlog.refuse_differences("t")


@pytest.mark.slow
def test_files_of_a_step_are_given_up_before_the_next_step(backlog: Sites) -> None:
    """A bucket's are downloaded: the disk has room for those of a step, and not for those of a long round."""
    publish_each(backlog, "rome", *(f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(3)))
    held: list[Path] = []
    most = []
    fetch = LocalStore.fetch

    def fetched(store: LocalStore, path: str, bytes_max: int | None = None) -> Path:
        held.append(fetch(store, path, bytes_max))
        most.append(len(held))
        return held[-1]

    def released(_: LocalStore, file: Path) -> None:
        held[:] = [each for each in held if each != file]

    with (
        patch.object(missing_steps, "JOINED_TRANSACTIONS", 1),
        patch.object(LocalStore, "fetch", fetched),
        patch.object(LocalStore, "release", released),
    ):
        assert backlog.take("oslo") == 3
    assert (most, held) == ([1, 1, 1], [])


@pytest.mark.slow
@pytest.mark.parametrize("is_each_published", [True, False])
def test_a_round_holds_one_step_at_a_time(backlog: Sites, is_each_published: bool) -> None:
    """Many small log files, or a large one: what was taken is given up, and what comes later is not read yet."""
    statements = [f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(24)]
    if is_each_published:
        publish_each(backlog, "rome", *statements)
    else:
        backlog.write("rome", *statements)
    # A log file of which a part is taken is read as a whole.
    kind = Batch if is_each_published else SiteTransaction
    steps, held = SiteLog.steps, []

    def living() -> int:
        gc.collect()
        return sum(type(each) is kind for each in gc.get_objects())

    def counting(log: SiteLog) -> Iterator[SiteStep]:
        for step in steps(log):
            held.append((len(step.transactions), living()))
            yield step

    # What earlier tests have left behind is not looked through each time.
    gc.freeze()
    try:
        with (
            patch.object(missing_steps, "JOINED_TRANSACTIONS", 2),
            patch.object(missing_steps, "STEP_TRANSACTIONS", 2),
            patch.object(SiteLog, "steps", counting),
        ):
            assert backlog.take("oslo") == 24
    finally:
        gc.unfreeze()
    assert [transactions for transactions, _ in held] == [2] * 12
    # The step itself, what it was joined from, and the next one; of log files the last four.
    assert max(count for _, count in held) <= 6


TAKEN = """
import resource, sys, wlc
config = {"memory_limit": "200MB", "threads": 1}
with wlc.connect(sys.argv[1], config=config) as connection:
    print(connection.wlc.take()[0].transactions, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.deep
def test_a_long_round_takes_no_more_memory_than_a_short_one(backlog: Sites) -> None:
    """Beside DuckDB's own memory, which its limit bounds: the long round's images are more than that."""
    backlog.write("oslo", "INSERT INTO t SELECT range, repeat('o', 200) FROM range(100, 50100)")
    backlog.exchange()
    peaks = []
    for batches in (3, 30):
        changes = [f"UPDATE t SET v = md5(k || '{batches} {number}') || repeat('r', 200)" for number in range(batches)]
        publish_each(backlog, "rome", *changes)
        command = [sys.executable, "-c", TAKEN, str(backlog.file("oslo"))]
        count, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(count) == batches
        peaks.append(int(peak))
        backlog.exchange()
    assert peaks[1] < 1.5 * peaks[0], peaks


@pytest.mark.slow
def test_what_fits_only_together_is_taken_before_what_a_user_has_changed(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    sites.write("oslo", "INSERT INTO u VALUES (1, 'same'), (50, 'fifty')")
    sites.take("rome")
    sites.write("oslo", "INSERT INTO u VALUES (60, 'six')")
    with wlc.connect(sites.file("rome")) as rome:
        for change in ("VALUES (3, 'six')", "VALUES (4, 'four')"):
            rome.execute(f"INSERT INTO u {change}")
        rome.execute("DELETE FROM u WHERE id = 3")
        rome.execute("UPDATE u SET name = 'theirs' WHERE id = 50")
    with wlc.connect(sites.file("oslo")) as user:
        user.execute("BEGIN; UPDATE u SET name = 'mine' WHERE id = 50")
        with pytest.raises(UnavailableError, match="an open transaction of .* has changed rows that tick"):
            wlc.take(sites.file("oslo"))
        user.execute("ROLLBACK")
    assert (4, "four") in sites.rows("oslo", "u")
    assert sites.take("oslo") == 1
    sites.exchange()
    sites.refuse_differences("u")
