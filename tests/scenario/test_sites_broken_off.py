"""A restored site's new history begins in the middle of a log file: whoever reads the abandoned end is told the truth.

Rome's batch 3 ends with ticks 4 and 5, which the backup holds, and 6 to 8, which it lacks. The new history grew from
tick 5: batch 4 is ticks 10 and 11, of which the first snapshot is, and batch 5 (13 to 15) takes 6 to 8 back.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import wlc
import wlr
from tests.scratch import attached
from tests.sites import Backup, Sites, write_offline
from wlc.farm.database import open_database
from wlc.farm.model import Position
from wlr.replay.farm_log import FarmLog
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from pathlib import Path


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
    assert "up to 8, or after 10; wlr changes DB --table TABLE --snapshot" in str(caught.value.hint)
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


@pytest.mark.parametrize("start, records", [(9, None), (10, 6), (11, 5), (12, 4)])
def test_a_feed_begins_anywhere_in_the_new_history(rome: Sites, start: int, records: int | None) -> None:
    url, out = rome.log("rome").url, rome.folder / f"from {start}.jsonl"
    if records is None:
        with pytest.raises(wlr.ExpiredError, match="ended at tick 8"):
            wlr.feed(url, to=out, start=start)
    else:
        assert wlr.feed(url, to=out, start=start).records == records


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
            assert f"bring the replica further first: wlr replicate --into {into}" in str(caught.value.hint)
    assert (wlr.status(into).master, wlr.status(into).tick) == (before.master, before.tick)
    wlr.replicate(into=into, register=False)
    assert wlr.replicate(url, into=into, register=False).tick == 15
    assert rows(into) == rome.rows("rome", "t")
    assert {check.outcome for check in wlr.verify(into).tables} == {"same"}


def test_a_replica_of_the_new_history_gets_what_was_taken_back_before_it_switches(rome: Sites) -> None:
    into, url = rome.folder / "of_rome.duckdb", rome.log("oslo").url
    wlr.replicate(rome.log("rome").url, into=into, tick=11, register=False)
    with pytest.raises(wlr.InvalidError, match="oslo took something before tick 11 of history") as caught:
        wlr.switch(into, url, register=False)
    assert f"wlr replicate --into {into}" in str(caught.value.hint)
    wlr.replicate(into=into, register=False)
    wlr.switch(into, url, register=False)
    wlr.replicate(into=into, register=False)
    assert rows(into) == rome.rows("oslo", "t")
