"""Replicas, feeds and streams of a site: what fits only together, histories that broke off, and another site's log.

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import wlc
import wlr
from tests.scratch import attached
from tests.sites import Backup, Sites, write_offline
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, InseparableError, InvalidError, ReplayError
from wlc.farm.model import Position
from wlr.care import drills
from wlr.engine.adapters import target_at
from wlr.replay.farm_log import FarmLog
from wlr.spark import FarmDataSource


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_time_lies_between_transactions_that_were_taken_together(swapped: Sites) -> None:
    log, into = swapped.log("rome").url, swapped.folder / "copy.duckdb"
    done = wlr.replicate(log, into=into, until=misfit(swapped, "_committed"), register=False)
    assert done.tick == misfit(swapped) + 1


@pytest.mark.slow
def test_a_drill_goes_on_to_a_tick_that_it_can_restore(swapped: Sites, tmp_path: Path) -> None:
    log, tick = swapped.log("rome").url, misfit(swapped)
    with patch.object(drills, "choose_tick", return_value=tick):
        done = wlr.drill(log, folder=tmp_path)
    assert (done.is_sound, done.tick, done.snapshot, done.transactions) == (True, tick + 1, 0, 3)
    with pytest.raises(InseparableError):
        wlr.drill(log, tick=tick, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 1])
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


@pytest.mark.slow
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
    assert "--rebase rebuilds the replica" in str(caught.value.hint)
    with pytest.raises(InvalidError, match=f"tick {lost} of rome cannot be restored") as caught:
        wlc.tag(log.url, "lost", lost)
    assert caught.value.hint == f"The nearest that can be tagged: --tick {end} and --tick {start}."
    with patch.object(drills, "choose_tick", return_value=lost):
        assert wlr.drill(log.url, folder=tmp_path).tick == start


# A restored site's new history begins in the middle of a log file ------------------------------------------------------

# Rome's batch 3 ends with ticks 4 and 5, which the backup holds, and 6 to 8, which it lacks. The new history grew from
# tick 5: batch 4 is ticks 10 and 11, of which the first snapshot is, and batch 5 (13 to 15) takes 6 to 8 back.


@pytest.fixture(scope="module")
def rome(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """For tests that change nothing; replicas of Rome at tick 8 and of Oslo level with it were made meanwhile."""
    sites = Sites(tmp_path_factory.mktemp("sites"))
    sites.found("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)")
    sites.join("rome")
    sites.write("oslo", "INSERT INTO t SELECT range, 'both' FROM range(10)")
    sites.exchange()
    sites.write("rome", "INSERT INTO t VALUES (100, 'rome')")
    sites.exchange()
    with wlc.connect(sites.file("rome")) as connection:
        connection.execute("INSERT INTO t VALUES (101, 'held')")
        connection.execute("UPDATE t SET v = 'held' WHERE k = 5")
        connection.execute("CHECKPOINT")
        backup = Backup.of(sites, "rome")
        connection.execute("INSERT INTO t VALUES (102, 'lost')")
        connection.execute("UPDATE t SET v = 'lost' WHERE k IN (5, 6)")
        connection.execute("DELETE FROM t WHERE k = 7")
    wlc.flush(sites.file("rome"))
    sites.exchange()
    wlr.feed(sites.log("rome").url, to=sites.folder / "level.jsonl")
    wlr.replicate(sites.log("oslo").url, into=sites.folder / "of_oslo.duckdb", register=False)
    backup.restore()
    write_offline(sites, "rome", "INSERT INTO t VALUES (103, 'since')", "UPDATE t SET v = 'since' WHERE k = 8")
    with pytest.warns(UserWarning, match="a new history begins"):
        wlc.flush(sites.file("rome"))
    sites.exchange()
    batch = sites.log("rome").read_batch(4)[0]
    assert (batch.parent and batch.parent.tick, batch.first, batch.last) == (5, 10, 11)
    return sites


def held(sites: Sites, tick: int) -> Counter[tuple[Any, ...]]:
    into = sites.folder / f"at {tick}.duckdb"
    if not into.exists():
        wlr.replicate(sites.log("rome").url, into=into, tick=tick, register=False)
    return Counter(rows(into))


def rows(file: Path) -> list[tuple[Any, ...]]:
    with attached(file) as connection:
        return connection.execute("FROM t ORDER BY k").fetchall()


def net(sites: Sites, since: int, until: int) -> Counter[tuple[Any, ...]]:
    """What the changes between two ticks add up to."""
    total: Counter[tuple[Any, ...]] = Counter()
    for batch in wlr.changes(sites.log("rome").url, "t", since=since, until=until):
        for row in batch.to_pylist():
            total[row["k"], row["v"]] += row["_weight"]
    return total


@pytest.mark.slow
@pytest.mark.parametrize("until", [11, 15])
@pytest.mark.parametrize("since", [3, 5, 7, 8, 9])
def test_changes_and_differences_across_the_break_are_refused(rome: Sites, since: int, until: int) -> None:
    with pytest.raises(wlr.InvalidError, match="begins history .*: no changes lead from tick 8 to it") as caught:
        net(rome, since, until)
    assert "up to 8, or after 10; wlr rows changes DB --table TABLE --snapshot" in str(caught.value.hint)
    with pytest.raises(wlr.InvalidError, match="no changes lead|tick 9 cannot be restored"):
        wlr.diff(rome.log("rome").url, since, until)


@pytest.mark.slow
@pytest.mark.parametrize("since, until", [(3, 8), (5, 7), (8, 8), (11, 15), (13, 14)])
def test_changes_within_a_history_lead_from_one_state_to_the_next(rome: Sites, since: int, until: int) -> None:
    total = held(rome, since)
    total.update(net(rome, since, until))
    assert +total == held(rome, until) == total
    (differing,) = wlr.diff(rome.log("rome").url, since, until, table="t")
    added = len(held(rome, until)) - len(held(rome, since))
    assert differing.added - differing.removed == added


def test_a_consumer_of_the_former_history_begins_with_all_rows(rome: Sites) -> None:
    url = rome.log("rome").url
    (batch,) = wlr.changes(url, "t", snapshot=True)
    assert sorted((row["k"], row["v"]) for row in batch.to_pylist()) == rome.rows("rome", "t")
    with pytest.raises(wlr.ExpiredError, match="ended at tick 8") as caught:
        wlr.feed(url, to=rome.folder / "level.jsonl")
    assert "--from snapshot" in str(caught.value.hint)
    assert wlr.feed(url, to=rome.folder / "level.jsonl", start="snapshot").tick == 15


def spark(url: str, **options: str) -> Any:
    source = FarmDataSource({"database": url, "table": "t", "changes": "true", **options})
    return source, source.schema()


@pytest.mark.parametrize("first, tasks", [("9", None), ("10", True), ("12", True)])
def test_spark_reads_no_changes_across_the_break(rome: Sites, first: str, tasks: bool | None) -> None:
    source, schema = spark(rome.log("rome").url, from_tick=first)
    reader, stream = source.reader(schema), source.streamReader(schema)
    begun = stream.initialOffset()
    end = {"batch": 5, "chain": rome.log("rome").read_batch(5)[1]}
    for partitions in (reader.partitions, lambda: stream.partitions(begun, end)):
        if tasks:
            assert partitions()
        else:
            with pytest.raises(wlr.InvalidError, match="no changes lead from tick 8 to it"):
                partitions()


def test_a_level_stream_of_spark_does_not_go_on_in_the_new_history(rome: Sites) -> None:
    source, schema = spark(rome.log("rome").url)
    level, end = ({"batch": number, "chain": rome.log("rome").read_batch(number)[1]} for number in (3, 4))
    with pytest.raises(wlr.InvalidError, match="no changes lead from tick 8 to it"):
        source.streamReader(schema).partitions(level, end)


def test_a_stream_of_spark_begins_with_the_new_history_if_what_was_before_was_pruned(
    rome: Sites, tmp_path: Path
) -> None:
    copy = shutil.copytree(rome.folder, tmp_path / "copy")
    for file in copy.rglob("rome_00000000000[123]"):
        file.unlink()
    log = open_database(rome.log("rome").url.replace(str(rome.folder), str(copy)))
    assert log.batch_numbers()[0] == 4
    source, schema = spark(log.url)
    stream = source.streamReader(schema)
    begun = stream.initialOffset()
    assert stream.partitions(begun, stream.latestOffset(begun, ReadAllAvailable()))


@pytest.mark.parametrize("tick, number, is_known", [(5, 3, True), (8, 3, True), (10, 4, False), (11, 4, True)])
def test_digests_of_the_abandoned_end_do_not_count_in_the_new_history(
    rome: Sites, tick: int, number: int, is_known: bool
) -> None:
    log = FarmLog(rome.log("rome"))
    batch, chain = log.batch(number)
    assert bool(log.digests(Position(batch.history, tick, number, chain))) is is_known


@pytest.mark.slow
@pytest.mark.parametrize("start", [11, 13, 14, 15])
@pytest.mark.parametrize("name", ["back.duckdb", "back"])
def test_a_replica_goes_back_into_the_first_log_file_of_the_new_history(rome: Sites, start: int, name: str) -> None:
    url, into = rome.log("rome").url, rome.folder / f"{start} {name}"
    wlr.replicate(url, into=into, tick=start, register=False)
    done = wlr.replicate(url, into=into, tick=10, register=False)
    assert (done.tick, done.is_back) == (10, True)
    before = (Counter({**held(rome, 11)}) - Counter([(8, "since")])) + Counter([(8, "both")])
    assert Counter(wlr.read(into, "t").fetchall()) == before
    assert {check.outcome for check in wlr.verify(into).tables} == {"same"}
    wlr.replicate(url, into=into, register=False)
    assert sorted(wlr.read(into, "t").fetchall()) == rome.rows("rome", "t")


def test_a_replica_does_not_switch_to_the_abandoned_end(rome: Sites) -> None:
    into, url = rome.folder / "of_oslo.duckdb", rome.log("rome").url
    before = wlr.status(into)
    for dry_run in (True, False):
        for refused in (wlr.switch, lambda into, url, **more: wlr.replicate(url, into=into, **more)):
            with pytest.raises(wlr.InvalidError, match="ended at tick 8, and no changes lead from there to") as caught:
                refused(into, url, register=False, dry_run=dry_run)
            assert f"roll the replica forward first: wlr replicate --into {into}" in str(caught.value.hint)
    assert (wlr.status(into).master, wlr.status(into).tick) == (before.master, before.tick)
    wlr.replicate(into=into, register=False)
    assert wlr.replicate(url, into=into, register=False).tick == 15
    assert rows(into) == rome.rows("rome", "t")
    assert {check.outcome for check in wlr.verify(into).tables} == {"same"}


def test_a_replica_of_the_new_history_gets_what_was_taken_back_before_it_switches(rome: Sites) -> None:
    into, url = rome.folder / "of_rome.duckdb", rome.log("oslo").url
    wlr.replicate(rome.log("rome").url, into=into, tick=11, register=False)
    with pytest.raises(wlr.InvalidError, match="oslo took transactions before tick 11 of history") as caught:
        wlr.switch(into, url, register=False)
    assert f"wlr replicate --into {into}" in str(caught.value.hint)
    wlr.replicate(into=into, register=False)
    wlr.switch(into, url, register=False)
    wlr.replicate(into=into, register=False)
    assert rows(into) == rome.rows("oslo", "t")


# A replica of one site goes on from the log of another one, without a row copied, or learns why it cannot ---------------


SWITCHED = "CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO a VALUES (1, 'one'), (2, 'two')"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Oslo and rome; rome has taken what oslo wrote."""
    sites = Sites(tmp_path_factory.mktemp("switch"))
    sites.found(SWITCHED)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')", "CREATE VIEW w AS FROM a")
    sites.take("rome")
    return sites


def replica(sites: Sites, site: str, name: str, **more: object) -> Path:
    into = sites.folder / name
    wlr.replicate(sites.log(site).url, into=into, register=False, **more)  # type: ignore[arg-type]
    return into


def switched(sites: Sites, into: Path, site: str) -> wlr.Switched:
    return wlr.switch(into, sites.log(site).url, register=False)


def goes_on(sites: Sites, into: Path, site: str) -> None:
    """The replica reads that site's log from its next tick on, and equals a new replica of it."""
    wlr.replicate(into=into, register=False)
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    assert wlr.status(into).tick == sites.log(site).config().tick


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy.duckdb", "lake"])
def test_there_and_back(two: Sites, name: str) -> None:
    into = replica(two, "rome", name)
    state = target_at(into).read_state()
    oslo, rome = two.log("oslo").config(), two.log("rome").config()
    assert state.contained.vector == {oslo.history: 2, rome.history: rome.tick}
    assert [proof.site for proof in state.contained.proofs] == ["oslo"]
    assert state.contained.own == 0
    assert wlr.status(into).proofs == state.contained.proofs
    planned = wlr.switch(into, two.log("oslo").url, dry_run=True)
    assert planned == wlr.Switched(2, two.log("rome").url, two.log("oslo").url, is_dry_run=True)
    assert target_at(into).read_state() == state
    assert switched(two, into, "oslo") == replace(planned, is_dry_run=False)
    assert wlr.replicate(into=into, register=False).transactions == 0
    assert switched(two, into, "rome").tick == rome.tick
    goes_on(two, into, "rome")


@pytest.mark.slow
def test_an_edit_between_is_refused_until_it_was_taken(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SWITCHED)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')")
    sites.take("rome")
    sites.write("rome", "INSERT INTO a VALUES (9, 'edit')")
    into = replica(sites, "rome", "copy.duckdb")
    with pytest.raises(InvalidError, match="oslo has not taken them"):
        switched(sites, into, "oslo")
    sites.take("oslo")
    wlc.flush(sites.file("oslo"))
    assert switched(sites, into, "oslo").now == sites.log("oslo").url
    sites.write("oslo", "UPDATE a SET v = 'later'")
    goes_on(sites, into, "oslo")
    # The primary dies: the replica goes on from the secondary.
    sites.take("rome")
    shutil.move(sites.file("oslo"), sites.folder / "gone")
    assert switched(sites, into, "rome").now == sites.log("rome").url
    sites.write("rome", "DELETE FROM a WHERE id = 1")
    goes_on(sites, into, "rome")


def restored(sites: Sites, site: str, *statements: str) -> None:
    """Bring file and folder of a site back to where they were saved, and let it write something."""
    for kept in (sites.file(site), Path(sites.log(site).url)):
        saved = kept.with_name(f"saved {kept.name}")
        if kept.is_dir():
            shutil.rmtree(kept)
            shutil.copytree(saved, kept)
        else:
            shutil.copy(saved, kept)
    sites.write(site, *statements)


def save(sites: Sites, site: str) -> None:
    for kept in (sites.file(site), Path(sites.log(site).url)):
        saved = kept.with_name(f"saved {kept.name}")
        shutil.copytree(kept, saved) if kept.is_dir() else shutil.copy(kept, saved)


@pytest.mark.slow
def test_a_restored_site_is_refused_with_the_last_common_tick(tmp_path: Path) -> None:
    """Although the same is written again: the log files have other hashes."""
    sites = Sites(tmp_path)
    sites.found(SWITCHED)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')")
    sites.take("rome")
    wlc.flush(sites.file("rome"))
    circle = (Path(sites.log("oslo").url) / "circle.json").read_bytes()
    rome = Path(sites.log("rome").url)
    shutil.copytree(rome, tmp_path / "rome now")
    sites.names.remove("rome")
    save(sites, "oslo")
    sites.write("oslo", "INSERT INTO a VALUES (4, 'four')")
    direct = replica(sites, "oslo", "direct.duckdb")
    sites.take("rome")
    wlc.flush(sites.file("rome"))
    through = replica(sites, "rome", "through.duckdb")
    shutil.copytree(rome, tmp_path / "rome later")
    restored(sites, "oslo", "INSERT INTO a VALUES (4, 'four')")
    shutil.rmtree(rome, ignore_errors=True)
    shutil.copytree(tmp_path / "rome later", rome)
    assert (Path(sites.log("oslo").url) / "circle.json").read_bytes() == circle
    with pytest.raises(InvalidError, match=r"restored.*the last tick that both hold is 1") as caught:
        switched(sites, through, "oslo")
    assert str(caught.value.hint).endswith("--rebase")
    with pytest.raises(CorruptError, match="differs from the one that its reader has read"):
        wlr.replicate(into=direct, register=False)
    with pytest.raises(InvalidError, match="restored"):
        wlr.replicate(sites.log("oslo").url, into=through, register=False)
    planned = wlr.replicate(sites.log("oslo").url, into=through, register=False, rebase=True, dry_run=True)
    assert "restored" in planned.rebuilt_because
    for into in (direct, through):
        done = wlr.replicate(sites.log("oslo").url, into=into, register=False, rebase=True)
        assert done.rebuilt_because
        goes_on(sites, into, "oslo")
        assert sites.rows("oslo", "a") == rows_in(into)


def rows_in(into: Path) -> list[tuple[object, ...]]:
    with attached(into) as connection:
        return connection.execute("FROM a ORDER BY ALL").fetchall()


@pytest.mark.slow
def test_a_bad_past_is_undone_where_a_relay_keeps_it(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SWITCHED)
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')")
    save(sites, "oslo")
    sites.write("oslo", "UPDATE a SET v = 'bad'", "INSERT INTO a VALUES (5, 'five')")
    wlc.flush(sites.file("oslo"))
    wlc.ship(sites.log("oslo").url, to=str(tmp_path / "relay"))
    places = [str(tmp_path / "copy.duckdb"), str(tmp_path / "lake")]
    for into in places:
        wlr.replicate(str(tmp_path / "relay" / "sales"), into=into, register=False)
    restored(sites, "oslo", "INSERT INTO a VALUES (6, 'six')")
    for into in places:
        with pytest.raises(CorruptError, match="its reader is at tick 3"):
            wlr.replicate(sites.log("oslo").url, into=into, register=False)
        planned = wlr.replicate(sites.log("oslo").url, into=into, register=False, rebase=True, dry_run=True)
        assert (planned.tick, planned.transactions, planned.is_back, planned.rebuilt_because) == (1, 2, True, "")
        done = wlr.replicate(sites.log("oslo").url, into=into, register=False, rebase=True)
        assert (done.tick, done.rebuilt_because, done.transactions) == (2, "", 1)
        assert all(check.outcome == "same" for check in wlr.verify(into).tables)
        assert wlr.status(into).master == sites.log("oslo").url
    assert sites.rows("oslo", "a") == rows_in(Path(places[0]))
