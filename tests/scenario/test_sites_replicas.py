"""Plain replicas of a site follow its log, in which several transactions may fit only together."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.scratch import attached
from tests.sites import Backup, Sites, write_offline
from wlc.farm.errors import InseparableError, InvalidError, ReplayError
from wlr.care import drills

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def swapped(tmp_path: Path) -> Sites:
    """Rome has swapped two unique values, and taken two transactions of Oslo, which knows nothing of it, in one."""
    sites = Sites(tmp_path)
    sites.found("""
        CREATE TABLE b (id INTEGER PRIMARY KEY, u VARCHAR UNIQUE, tag VARCHAR);
        INSERT INTO b VALUES (1, 'h', ''), (2, 'c', ''), (3, NULL, '');
    """)
    sites.join("rome")
    wlc.set_rule("sales", "b", "epoch_trans", farm=sites.farm)
    sites.exchange()
    swap = "; ".join(f"UPDATE b SET u = '{u}' WHERE id = {k}" for k, u in ((1, "z"), (2, "h"), (1, "c")))
    sites.write("rome", f"BEGIN; {swap}; COMMIT")
    with wlc.connect(sites.file("oslo")) as oslo:
        oslo.execute("UPDATE b SET tag = 'x' WHERE id = 1")
        oslo.execute("UPDATE b SET tag = 'y' WHERE id = 2")
    sites.exchange()
    sites.refuse_differences("b")
    return sites


def misfit(sites: Sites, column: str = "_tick") -> Any:
    """Return the tick of Rome's log whose rows keep no constraint, or when it was committed."""
    return next(
        row[column]
        for batch in wlr.changes(sites.log("rome").url, "b")
        for row in batch.to_pylist()
        if (row["_weight"], row["tag"]) == (1, "x")
    )


def test_a_replica_that_could_not_stop_between_two_transactions_goes_on(swapped: Sites) -> None:
    log, into = swapped.log("rome").url, swapped.folder / "copy.duckdb"
    tick = misfit(swapped)
    with pytest.raises(InseparableError, match=f"transaction {tick}, table main.b: .*unique constraint") as caught:
        wlr.replicate(log, into=into, tick=tick, register=False)
    assert "Replicate to a later tick, or to the end" in str(caught.value.hint)
    assert wlr.status(into).failure is not None
    wlr.replicate(log, into=into, register=False)
    assert wlr.status(into).failure is None
    with attached(into) as connection:
        assert connection.execute("FROM b ORDER BY id").fetchall() == swapped.rows("oslo", "b")
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)


def test_no_time_lies_between_transactions_that_were_taken_together(swapped: Sites) -> None:
    log, into = swapped.log("rome").url, swapped.folder / "copy.duckdb"
    done = wlr.replicate(log, into=into, until=misfit(swapped, "_committed"), register=False)
    assert done.tick == misfit(swapped) + 1


def test_a_drill_goes_on_to_a_tick_that_it_can_restore(swapped: Sites, tmp_path: Path) -> None:
    log, tick = swapped.log("rome").url, misfit(swapped)
    with patch.object(drills, "choose_tick", return_value=tick):
        done = wlr.drill(log, folder=tmp_path)
    assert (done.is_sound, done.tick, done.snapshot, done.transactions) == (True, tick + 1, 0, 3)
    with pytest.raises(InseparableError):
        wlr.drill(log, tick=tick, folder=tmp_path)


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_step_that_fails_elsewhere_applies_together_what_fits_only_together(swapped: Sites, behind: int) -> None:
    """The replica lacks a row that is removed later: the step is cut to single transactions, wherever that cuts it."""
    log, into = swapped.log("rome").url, swapped.folder / "copy.duckdb"
    swapped.write("rome", "DELETE FROM b WHERE id = 3")
    swapped.write("rome", *(f"INSERT INTO b (id) VALUES ({10 + number})" for number in range(behind)))
    wlr.replicate(log, into=into, tick=misfit(swapped) - 1, register=False)
    wlr.unlock(into)
    with duckdb.connect(into) as connection:
        connection.execute("DELETE FROM b WHERE id = 3")
    wlr.lock(into)
    with pytest.raises(ReplayError, match="1 of 1 rows to remove are not in the replica"):
        wlr.replicate(log, into=into, register=False)
    with attached(into) as connection:
        assert connection.execute("FROM b ORDER BY id").fetchall() == [(1, "h", "x"), (2, "c", "y")]


def test_ticks_before_the_first_snapshot_of_a_restored_site_are_refused_by_all_that_restore(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE t (k INTEGER PRIMARY KEY)")
    sites.join("rome")
    sites.exchange()
    backup = Backup.of(sites, "rome")
    sites.write("rome", "INSERT INTO t VALUES (1)")
    sites.exchange()
    log, end = sites.log("rome"), sites.log("rome").config().tick
    wlr.replicate(log.url, into=(behind := tmp_path / "behind.duckdb"), register=False)
    backup.restore()
    write_offline(sites, "rome", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    with pytest.warns(UserWarning, match="a new history begins"):
        wlc.flush(sites.file("rome"))
    start, newest = log.snapshot_ticks()[-1], log.read_batch(log.batch_numbers()[-1])[0]
    lost = newest.first
    assert (newest.last, wlc.retention(log.url).window.lost) == (start, ((end + 1, start - 1),)), "2 is before it"
    committed = newest.transactions[0].committed
    assert committed is not None
    into = tmp_path / "copy.duckdb"
    for stop in ({"tick": end + 1}, {"tick": lost}, {"until": committed + timedelta(microseconds=1)}):
        for target in (into, behind):
            with pytest.raises(InvalidError, match=f"cannot be restored: tick {end} is followed by history") as caught:
                wlr.replicate(log.url, into=target, register=False, **stop)
            assert caught.value.hint == f"The nearest that can be reached: --tick {end} and --tick {start}."
        with pytest.raises(InvalidError, match="cannot be restored"):
            wlr.read(log.url, "t", **stop)
    for tick in (end, start):
        assert wlr.replicate(log.url, into=tmp_path / f"{tick}.duckdb", tick=tick, register=False).tick == tick
    with pytest.raises(InvalidError, match=f"ended at tick {end}; .*") as caught:
        wlr.replicate(log.url, into=behind, tick=start, register=False)
    assert "--rebase makes the replica anew" in str(caught.value.hint)
    with pytest.raises(InvalidError, match=f"tick {lost} of rome cannot be restored") as caught:
        wlc.tag(log.url, "lost", lost)
    assert caught.value.hint == f"The nearest that can be tagged: --tick {end} and --tick {start}."
    with patch.object(drills, "choose_tick", return_value=lost):
        assert wlr.drill(log.url, folder=tmp_path).tick == start
