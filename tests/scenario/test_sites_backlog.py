"""A primary that judges many log files of a site in one round derives what is concurrent once, and judges as ever."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
from tests.sites import Sites, windows_compared
from wlc.farm.errors import CorruptError, UnavailableError
from wlc.farm.model import Batch
from wlc.farm.store.local import LocalStore
from wlc.multi_master import missing_steps
from wlc.multi_master.circle import EPOCH, EPOCH_TRANS
from wlc.multi_master.duckdb import conflict_window, take_step
from wlc.multi_master.missing_steps import SiteLog
from wlc.multi_master.site_step import SiteTransaction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.multi_master.site_step import SiteStep

pytestmark = pytest.mark.slow


def publish_each(sites: Sites, site: str, *statements: str) -> None:
    """Publish every statement in a log file of its own."""
    with wlc.connect(sites.file(site)) as connection:
        for statement in statements:
            connection.execute(statement)
            wlc.flush(sites.file(site))


@pytest.fixture
def two(tmp_path: Path) -> Sites:
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
def test_a_backlog_is_judged_by_one_window(two: Sites) -> None:
    publish_each(two, "oslo", *(f"UPDATE t SET v = 'oslo' WHERE k = {k}" for k in range(5)))
    publish_each(two, "rome", *(f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(30)))
    before = two.log("oslo").batch_numbers()
    with (
        patch.object(conflict_window, "create", wraps=conflict_window.create) as derived,
        patch.object(conflict_window, "add_batch", wraps=conflict_window.add_batch) as read,
    ):
        assert two.take("oslo") == 30
    assert derived.call_count == 1
    assert sorted(call.args[1].number for call in read.call_args_list) == before[-5:]
    two.exchange()
    two.refuse_differences("t")
    assert [row[1] for row in two.rows("oslo", "t")[:31]] == ["oslo"] * 5 + ["rome"] * 25 + [""]


@pytest.mark.slow
def test_the_window_of_a_round_is_that_of_each_step(two: Sites) -> None:
    """Users of oslo commit and publish between the steps, steps are tried again and halved, and readers began earlier."""
    publish_each(two, "oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
    with wlc.connect(two.file("rome")) as connection, connection.cursor() as reader:
        reader.execute("BEGIN; SELECT * FROM t WHERE k = 1 FOR UPDATE; UPDATE t SET v = 'read' WHERE k = 50")
        two.take("rome")
        two.write("oslo", "INSERT INTO u VALUES (0, 'name 5')")
        publish_each(two, "rome", "UPDATE t SET v = 'rome' WHERE k = 2", "UPDATE t SET v = 'rome' WHERE k = 3")
        for k in range(4, 8):
            connection.execute(f"UPDATE t SET v = 'rome' WHERE k = {k}; INSERT INTO u VALUES ({k}, 'name {k}')")
        wlc.flush(two.file("rome"))
        reader.execute("COMMIT")
        wlc.flush(two.file("rome"))
        publish_each(two, "rome", "UPDATE t SET v = 'rome again' WHERE k IN (2, 9)")
    steps, commit, attempts = SiteLog.steps, take_step._commit, []
    written = iter(range(1, 100))

    def beside_users(log: SiteLog) -> Iterator[SiteStep]:
        for step in steps(log):
            k = next(written)
            # A program that ends publishes what waits; what is taken is journalled then.
            two.write("oslo", f"UPDATE t SET v = 'oslo {k}' WHERE k = {k}")
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
        two.take("oslo")
    # Once by the round and for each comparison; and again, since the reader had begun before rome took.
    assert derived.call_count - len(sizes) == 2
    assert len(sizes) > 8
    assert max(sizes) > min(sizes)
    two.exchange()
    two.refuse_differences("t", "u")
    rejected = {(row.key["k"], row.op_type, row.cause) for row in wlc.exceptions(two.file("oslo"))}
    assert (1, "READ_ROW", "TRANS_IN_CONFLICT") in rejected
    assert (5, "WRITE_ROW", "constraint") in rejected
    assert (9, "UPDATE_ROW", "TRANS_IN_CONFLICT") in rejected


@pytest.mark.slow
def test_a_backlog_is_taken_at_once_up_to_a_batch_that_cannot_be_taken(two: Sites) -> None:
    publish_each(two, "rome", *(f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(8)))
    # What was rejected of one log file is what the next ones go on with.
    two.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
    publish_each(two, "rome", "UPDATE t SET v = 'again' WHERE k IN (1, 20)", "UPDATE t SET v = 'again' WHERE k = 20")
    log = two.log("rome")
    damaged = log.read_batch(log.batch_numbers()[-1])[0].files[0]
    file, commits = log.fetch(damaged), []
    data, commit = file.read_bytes(), take_step._commit
    file.write_bytes(data[:-1])

    def counted(attempt: take_step._Attempt) -> None:
        commit(attempt)
        commits.append(len(attempt.step.transactions))

    with patch.object(take_step, "_commit", counted):
        with pytest.raises(CorruptError, match=damaged.file.path):
            two.take("oslo")
        # Halved until the one that is damaged is left.
        assert commits == [5, 2, 1, 1]
        file.write_bytes(data)
        assert two.take("oslo") == 1
    rejected = [(row.origin_tick, row.key, row.dependent) for row in wlc.exceptions(two.file("oslo"))]
    assert [key["k"] for _, key, _ in rejected] == [1, 1, 20, 20]
    two.exchange()
    two.refuse_differences("t")


def test_files_of_a_step_are_given_up_before_the_next_step(two: Sites) -> None:
    """A bucket's are downloaded: the disk has room for those of a step, and not for those of a long round."""
    publish_each(two, "rome", *(f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(3)))
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
        assert two.take("oslo") == 3
    assert (most, held) == ([1, 1, 1], [])


@pytest.mark.slow
@pytest.mark.parametrize("is_each_published", [True, False])
def test_a_round_holds_one_step_at_a_time(two: Sites, is_each_published: bool) -> None:
    """Many small log files, or a large one: what was taken is given up, and what comes later is not read yet."""
    statements = [f"UPDATE t SET v = 'rome' WHERE k = {k}" for k in range(24)]
    if is_each_published:
        publish_each(two, "rome", *statements)
    else:
        two.write("rome", *statements)
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
            assert two.take("oslo") == 24
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
def test_a_long_round_takes_no_more_memory_than_a_short_one(two: Sites) -> None:
    """Beside DuckDB's own memory, which its limit bounds: the long round's images are more than that."""
    two.write("oslo", "INSERT INTO t SELECT range, repeat('o', 200) FROM range(100, 50100)")
    two.exchange()
    peaks = []
    for batches in (3, 30):
        changes = [f"UPDATE t SET v = md5(k || '{batches} {number}') || repeat('r', 200)" for number in range(batches)]
        publish_each(two, "rome", *changes)
        command = [sys.executable, "-c", TAKEN, str(two.file("oslo"))]
        count, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(count) == batches
        peaks.append(int(peak))
        two.exchange()
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
