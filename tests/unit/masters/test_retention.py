from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wlc
from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.keeping import KeepPolicy, Tag, announced, announced_windows, encode_window
from wlc.farm.model import Batch, Manifest, Position, Transaction
from wlc.farm.paths import pruning_path
from wlc.farm.reachable_past import Window, begins_empty, window_of
from wlc.farm.registry import ACTIVE, PENDING, Replica, decode_replica, encode_replica, register, replicas, unregister
from wlc.farm.store.local import LocalStore
from wlc.masters.prune import prune_database as prune
from wlc.masters.retention import SnapshotPoint, children, decide, held_bytes
from wlr.care.farm_audit import verify_farm

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def snapshot(batch: int, age_days: float = 0) -> SnapshotPoint:
    return SnapshotPoint(Position("h", batch * 10, batch), NOW - timedelta(days=age_days))


def replica(name: str, batch: int | None, silent_days: float = 0) -> Replica:
    position = None if batch is None else Position("h", batch * 10, batch, "c" * 64)
    return Replica(name, f"/data/{name}", position, NOW, NOW - timedelta(days=silent_days), "host", "ann")


def arrived(batch: int, minutes: float) -> SnapshotPoint:
    return replace(snapshot(batch), arrived=NOW - timedelta(minutes=minutes))


HOUR = timedelta(hours=1)
SILENT = [replica("dead", 2, 7.01), replica("never", None, 8), replica("late", 5, 6.99)]
AGED = [snapshot(0, 30), snapshot(3, 10), snapshot(6, 1)]
ARRIVED = [arrived(2, 300), arrived(4, 90), arrived(6, 59), arrived(8, 1)]
KINDS = [replace(replica(kind, 4), kind=kind) for kind in ("replica", "relay", "site", "feed")]


@pytest.mark.parametrize(
    "starts, registered, options, first, gone, said",
    [
        pytest.param([], [], {}, 1, (), "wlc snapshot", id="without a snapshot everything stays"),
        pytest.param([snapshot(0), snapshot(3), snapshot(6)], [], {}, 6, (0, 30), "", id="before the newest snapshot"),
        pytest.param([snapshot(9)], [], {}, 9, (), "", id="a snapshot at the end keeps the last batch"),
        pytest.param(
            [snapshot(6)], [replica("slow", 4), replica("fast", 8)], {}, 4, (), "replica slow (/data/slow) is at tick 40", id="what a live replica needs"
        ),
        pytest.param([snapshot(6)], SILENT, {}, 5, (), "replica dead (/data/dead of ann on host) was last seen", id="who is silent"),
        pytest.param([snapshot(6)], SILENT, {"deadline": timedelta(days=30)}, 1, (), "", id="who may be silent for longer"),
        pytest.param(AGED, [], {"reach": NOW - timedelta(days=5)}, 3, (0,), "", id="what is needed to go back"),
        pytest.param(AGED, [], {"reach": NOW - timedelta(days=99)}, 1, (), "", id="to go back to the beginning"),
        pytest.param([snapshot(0), snapshot(8)], [replica("a", 8)], {"windows": {"a": 3, "gone": 1}}, 3, (0,), "between this site and a are judged by log files from batch 3 on", id="what judges a site that has read it"),
        pytest.param([snapshot(8)], [replica("a", 8)], {"windows": {"a": 9}}, 8, (), "", id="a window that is over"),
        pytest.param([snapshot(8)], [replica("a", 8, 99)], {"windows": {"a": 3}}, 8, (), "", id="a window of who is silent"),
        pytest.param(ARRIVED, [], {"keep_for": HOUR}, 4, (20,), "the snapshot at tick 80 is less than 1:00:00 old", id="the newest snapshot an hour ago, with all after it"),
        # Whoever listed the snapshots within the last hour begins with one that stays.
        pytest.param(ARRIVED[2:], [], {"keep_for": HOUR}, 6, (), "", id="younger than an hour"),
        pytest.param(ARRIVED, [], {}, 8, (20, 40, 60), "", id="whatever their age"),
        pytest.param([snapshot(6)], children([replace(replica("below", 1), upstream="relay"), *KINDS]), {}, 4, (), "", id="children of every kind, not theirs"),
    ],
)  # fmt: skip
def test_what_is_kept(
    starts: list[SnapshotPoint],
    registered: list[Replica],
    options: dict[str, Any],
    first: int,
    gone: tuple[int, ...],
    said: str,
) -> None:
    decided = decide(starts, range(1, 10), registered, NOW, **options)
    assert decided.keep_batches == tuple(range(first, 10))
    assert decided.delete_batches == tuple(range(1, first))
    assert decided.delete_snapshots == gone
    assert any(said in reason for reason in decided.reasons)
    assert not set(gone) & set(decided.keep_snapshots)


def test_who_holds_and_who_is_given_up_is_named_with_its_bytes() -> None:
    live = [replica("slow", 4), replica("slower", 2), replica("fast", 8)]
    decided = decide([snapshot(0), snapshot(6)], range(1, 9), live, NOW)
    assert [holding.id for holding in decided.holding] == ["slow", "slower"]
    assert held_bytes(decided, {number: 10**number for number in range(1, 9)}) == {"slow": 110_000, "slower": 111_100}
    silent = decide([snapshot(6)], range(1, 9), SILENT, NOW)
    assert [overdue.id for overdue in silent.overdue] == ["dead", "never"]
    assert any("dead" in reason and "7 days ago" in reason for reason in silent.reasons)


def test_a_replica_never_heard_of_is_not_taken_for_caught_up() -> None:
    decided = decide([snapshot(6)], range(1, 9), [replica("new", None)], NOW)
    assert decided.delete_batches == ()
    assert "has never reported its position" in decided.reasons[1]


@given(
    st.sets(st.integers(0, 20), max_size=5),
    st.integers(1, 20),
    st.lists(st.tuples(st.none() | st.integers(0, 20), st.floats(0, 14)), max_size=5),
)
def test_nobody_who_counts_loses_anything(starts: set[int], last: int, told: list[tuple[int | None, float]]) -> None:
    snapshots = [snapshot(batch) for batch in {min(start, last) for start in starts}]
    registered = [
        replica(str(index), None if batch is None else min(batch, last), days)
        for index, (batch, days) in enumerate(told)
    ]
    decided = decide(snapshots, range(1, last + 1), registered, NOW)
    kept, gone = set(decided.keep_batches), set(decided.delete_batches)
    assert kept | gone == set(range(1, last + 1))
    assert not kept & gone
    assert last in kept
    assert kept == set(range(min(kept), last + 1))
    if starts:
        newest = max(start.position.tick for start in snapshots)
        assert newest in decided.keep_snapshots
        assert newest not in decided.delete_snapshots
        assert all(number in kept for number in range(newest // 10 + 1, last + 1))
    for known in registered:
        if NOW - known.seen <= timedelta(days=7):
            needed = known.position.batch if known.position else 0
            assert not any(number > needed for number in gone)


# By a policy and tags


BEGIN, DAY = datetime(2026, 1, 5, tzinfo=UTC), timedelta(days=1)


@dataclass
class PlainFarm:
    """A farm as lists: batch N holds the one transaction of tick N."""

    commits: list[datetime] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    ever: list[int] = field(default_factory=list)

    def point(self, tick: int) -> SnapshotPoint:
        clock = self.commits[tick - 1] if tick else BEGIN
        return SnapshotPoint(Position("h", tick, tick), clock)

    def reachable(self) -> set[int]:
        """Ticks that can be reached: by applying, one after the other, what there is."""
        found = set()
        starts = list(self.snapshots)
        if 1 in self.batches and 0 not in starts:
            starts.append(0)
        for start in starts:
            following = itertools.takewhile(self.batches.__contains__, itertools.count(start + 1))
            found.update([start, *following])
        return found

    def wanted(self, now: datetime, policy: KeepPolicy) -> tuple[set[int], list[set[int]]]:
        """Ticks that were current within the window, and groups of which each keeps one."""
        assert policy.keep is not None
        start = now - policy.keep
        ticks = range(len(self.commits) + 1)
        current = {tick for tick in ticks if tick >= len(self.commits) or self.commits[tick] > start}
        base = max((tick for tick in self.ever if self.point(tick).clock <= start), default=0)
        older = [tick for tick in self.ever if tick < base]
        by_day: dict[object, set[int]] = {}
        for tick in older:
            by_day.setdefault(self.point(tick).clock.date(), set()).add(tick)
        days = sorted(by_day, key=str)[-policy.keep_daily :] if policy.keep_daily else []
        by_week: dict[object, set[int]] = {}
        for tick in older:
            if (date := self.point(tick).clock.date()) not in days:
                by_week.setdefault(str(date.isocalendar()[:2]).replace(" ", "").zfill(12), set()).add(tick)
        weeks = list(by_week)[-policy.keep_weekly :] if policy.keep_weekly else []
        return current, [by_day[day] for day in days] + [by_week[week] for week in weeks]


Events = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from(["commit", "snapshot", "snapshot", "prune", "tag"])), max_size=60
)


@given(
    Events,
    st.integers(0, 10),
    st.integers(0, 4),
    st.integers(0, 3),
    st.booleans(),
    st.none() | st.integers(0, 20),
)
def test_what_the_policy_promises_is_there_after_any_number_of_prunes(
    events: list[tuple[int, str]], keep_days: int, daily: int, weekly: int, begins_with_rows: bool, reader: int | None
) -> None:
    policy = KeepPolicy(timedelta(days=keep_days), daily, weekly)
    farm, now, pinned = PlainFarm(), BEGIN, list[Tag]()
    if begins_with_rows:
        farm.snapshots, farm.ever = [0], [0]
    for hours, event in events:
        now += hours * HOUR
        if event in ("commit", "snapshot"):
            farm.commits.append(now)
            farm.batches.append(len(farm.commits))
        if event == "snapshot":
            farm.snapshots.append(len(farm.commits))
            farm.ever.append(len(farm.commits))
        if event == "tag":
            tick = sorted(farm.reachable() or {0})[-1 - hours % 3 :][0]
            pinned.append(Tag(f"t{len(pinned)}", tick, now, "ann"))
        if event != "prune" or not (farm.snapshots or farm.batches):
            continue
        before = farm.reachable()
        readers = []
        if reader is not None and reader in farm.batches:
            readers = [Replica("r", "/r", Position("h", reader, reader, "c" * 64), now, now, "host", "ann")]
        points = [farm.point(tick) for tick in farm.snapshots]
        decided = decide(points, farm.batches, readers, now, policy=policy, tags=pinned)
        assert sorted([*decided.keep_batches, *decided.delete_batches]) == farm.batches
        assert sorted([*decided.keep_snapshots, *decided.delete_snapshots]) == farm.snapshots
        farm.batches, farm.snapshots = list(decided.keep_batches), list(decided.keep_snapshots)
        # Without a hole, and nobody takes a log that was pruned for one that begins with an empty database.
        assert not farm.batches or farm.batches == list(range(farm.batches[0], len(farm.commits) + 1))
        assert not begins_with_rows or farm.batches[:1] != [1] or farm.snapshots[0] == 0
        current, groups = farm.wanted(now, policy)
        after = farm.reachable()
        assert current & before <= after
        assert all(any(tick in after for tick in group) for group in groups)
        assert {tag.tick for tag in pinned} & before <= after
        assert not readers or set(range(readers[0].position.batch, len(farm.commits) + 1)) <= set(farm.batches)
        again = decide(
            [farm.point(tick) for tick in farm.snapshots], farm.batches, readers, now, policy=policy, tags=pinned
        )
        assert again.delete_batches == again.delete_snapshots == ()
        # What window says is what can be reached.
        joined = [(farm.point(tick).position, farm.point(tick).clock) for tick in farm.snapshots]
        window = window_of(joined, farm.batches[0] if farm.batches else None, BEGIN)
        assert window.tick is not None
        assert after == {*window.older, *range(window.tick, len(farm.commits) + 1)}


def days_of(count: int) -> list[SnapshotPoint]:
    """One snapshot a day, each ten batches after the one before, at the batch's end."""
    return [SnapshotPoint(Position("h", n, 10 * n), BEGIN + n * DAY) for n in range(1, count + 1)]


def test_days_are_kept_before_the_window_and_weeks_before_the_days() -> None:
    policy = KeepPolicy(timedelta(days=10), 7, 4)
    decided = decide(days_of(100), range(1, 1001), [], BEGIN + 100 * DAY, policy=policy)
    # Ten days exactly, from the snapshot of day 90; seven days before; Sundays of four weeks before those.
    assert decided.keep_batches == tuple(range(900, 1001))
    assert decided.keep_snapshots == (62, 69, 76, 82, *range(83, 101))
    assert any("62, 69, 76, 82, 83" in reason for reason in decided.reasons)
    evening = [
        SnapshotPoint(Position("h", tick, 10 * tick), BEGIN + day) for tick, day in ((4, 3 * DAY + HOUR), (5, 9 * DAY))
    ]
    twice = decide([*days_of(3), *evening], range(1, 60), [], BEGIN + 9 * DAY, policy=KeepPolicy(timedelta(0), 2))
    assert twice.keep_snapshots == (2, 4, 5), "of a day the last one"
    bare = decide(days_of(100), range(1, 1001), [], BEGIN + 100 * DAY, policy=KeepPolicy(snapshot_every=DAY))
    assert (bare.keep_snapshots, bare.has_policy) == ((100,), False)


def test_a_window_without_a_snapshot_at_its_beginning_keeps_the_log_from_its_start() -> None:
    decided = decide(days_of(100)[-5:], range(1, 1001), [], BEGIN + 100 * DAY, policy=KeepPolicy(timedelta(days=10)))
    assert decided.delete_batches == ()


def test_a_tag_keeps_its_snapshot_or_the_log_to_it() -> None:
    def kept(tick: int, points: list[SnapshotPoint]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        decided = decide(points, range(1, 1001), [], BEGIN, tags=[Tag("t", tick, BEGIN, "ann")])
        return decided.keep_snapshots, decided.keep_batches[:1]

    assert kept(40, days_of(100)) == ((40, 100), (1000,))
    assert kept(40, [*days_of(30), *days_of(100)[-1:]]) == ((30, 100), (300,))
    assert kept(40, days_of(100)[50:]) == ((100,), (1,))
    assert kept(100, days_of(100)) == ((100,), (1000,))


def test_a_log_never_begins_right_after_the_batch_of_a_single_snapshot() -> None:
    """Else the rest of a batch in whose middle the snapshot lies would be passed over."""
    points = [SnapshotPoint(Position("h", 95, 10), BEGIN), SnapshotPoint(Position("h", 110, 11), BEGIN + DAY)]
    decided = decide(points, range(1, 13), [], BEGIN + DAY, tags=[Tag("t", 95, BEGIN, "ann")])
    assert (decided.keep_snapshots, decided.keep_batches) == ((95, 110), (10, 11, 12))


# The registry


@pytest.fixture
def database(tmp_path: Path) -> FarmDatabase:
    return open_database("sales", str(tmp_path / "farm"))


def test_replicas_register_again_and_again(database: FarmDatabase) -> None:
    register(database, replica("b", 1))
    a, b = register(database, replica("a", None)), register(database, replica("b", 2))
    assert (a.state, b.state, b.position) == (PENDING, ACTIVE, replica("b", 2).position)
    database.store.create("replicas/readme.txt", b"not a replica")
    # It was seen when the store got it.
    assert [replace(known, seen=NOW) for known in replicas(database)] == [replace(a, seen=NOW), replace(b, seen=NOW)]
    unregister(database, "b")
    unregister(database, "b")
    assert [known.id for known in replicas(database)] == ["a"]
    with pytest.raises(InvalidError):
        register(database, replica("../b", 1))
    publish(database, 4)
    take(database, 3)
    database.store.create("replicas/c.json", b"{}")
    with pytest.raises(CorruptError, match=r"replicas/c\.json"):
        prune(database, now=NOW)
    assert database.batch_numbers() == [1, 2, 3, 4]


def test_a_damaged_registration_is_named(database: FarmDatabase) -> None:
    whole = encode_replica(replica("a", 1))
    bad = [
        whole[:-9],
        b"",
        b"[]",
        b"\xff",
        whole.replace(b'"format": 1', b'"format": 2'),
        whole.replace(b'"a"', b'"b"'),
    ]
    for content in [*bad, whole.replace(b'"seen"', b'"sean"'), b"[" * 99999]:
        with pytest.raises(CorruptError, match=r"replicas/a\.json") as caught:
            decode_replica(content, "farm/replicas/a.json")
        assert "Delete farm/replicas/a.json" in str(caught.value.hint)
    assert decode_replica(whole, "farm/replicas/a.json") == replica("a", 1)


# Pruning


def publish(database: FarmDatabase, last: int) -> None:
    chain = ""
    for number in range(1, last + 1):
        tick = number * 10
        transaction = Transaction(tick, "ann", NOW, NOW)
        batch = Batch("sales", number, "h", tick, tick, chain, "sales", (transaction,), (), {"h": tick})
        chain = database.publish(batch, {})


def take(database: FarmDatabase, batch: int) -> None:
    chain = database.read_batch(batch)[1] if batch else ""
    take_at(database, Position("h", batch * 10, batch, chain))


def take_at(database: FarmDatabase, position: Position) -> None:
    database.publish_snapshot(Manifest("sales", position, NOW, "sales", (), (), ()), {})


def test_prune_deletes_what_it_says(database: FarmDatabase) -> None:
    publish(database, 8)
    take(database, 3)
    take(database, 6)
    register(database, replica("slow", 5))
    database.logs.create("sales_000000000002.d/9.parquet", b"leftover")
    for tick in (20, 70):
        database.store.create(f"snapshots/{tick:012d}/0.parquet", b"of one that died, or is under way")
    before = database.store.list()
    told = prune(database, now=NOW, dry_run=True)
    assert database.store.list() == before
    assert prune(database, now=NOW) == told
    assert told.delete_batches == (1, 2, 3, 4)
    assert database.batch_numbers() == [5, 6, 7, 8]
    assert database.snapshot_ticks() == [60]
    assert not database.logs.list("sales_000000000002")
    assert [entry.path for entry in database.store.list("snapshots/") if not entry.path.endswith("manifest.json")] == [
        "snapshots/000000000070/0.parquet"
    ]
    assert prune(database, now=NOW).delete_batches == ()


def test_a_prune_that_dies_anywhere_leaves_no_log_that_seems_to_begin_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, left = LocalStore.delete, [0]

    def delete_or_die(store: LocalStore, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        delete(store, path)

    def die_after(count: int) -> bool:
        """Prune a farm whose log begins with a snapshot; returns whether that was cut short."""
        database = open_database("sales", str(tmp_path / str(count)))
        publish(database, 4)
        for batch in (0, 1, 3):
            take(database, batch)
        left[0], died = count, False
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "delete", delete_or_die)
            try:
                prune(database, now=NOW)
            except KeyboardInterrupt:
                died = True
        oldest = database.read_manifest(database.snapshot_ticks()[0]).position
        assert not begins_empty(oldest, min(database.batch_numbers()))
        prune(database, now=NOW)
        assert (database.snapshot_ticks(), database.batch_numbers()) == ([30], [3, 4])
        return died

    assert [die_after(count) for count in range(6)] == [True, True, True, True, True, False]


def test_the_announcement_of_a_process_that_died_is_forgotten_after_a_day(database: FarmDatabase) -> None:
    for process in ("alive", "dead"):
        database.store.create(pruning_path(process), encode_window(Window(70, None, (20,))))
    long_ago = time() - 25 * 3600
    os.utime(Path(database.store.url, pruning_path("dead")), (long_ago, long_ago))
    with announced(database, Window(80, None)):
        assert sorted((window.tick, window.older) for window in announced_windows(database)) == [(70, (20,)), (80, ())]
    assert [window.tick for window in announced_windows(database)] == [70]


@pytest.mark.parametrize(
    "forge",
    [
        lambda end: replace(end, tick=10**9, batch=10**6),
        lambda end: replace(end, tick=10**9),
        lambda end: replace(end, chain="ab" * 32),
        lambda end: replace(end, history="other"),
        lambda end: replace(end, history="other", tick=end.tick + 1),
        lambda end: replace(end, tick=15, batch=0, history="other"),
    ],
)
def test_a_snapshot_that_the_master_did_not_take_has_nothing_deleted(
    database: FarmDatabase, forge: Callable[[Position], Position]
) -> None:
    publish(database, 4)
    take(database, 0)
    take(database, 2)
    forged = forge(Position("h", 40, 4, database.read_batch(4)[1]))
    take_at(database, forged)
    database.create_config(replace(first_config("sales"), history="h", tick=40, batches=5))
    problems = {problem.path.rpartition(" ")[2]: problem.problem for problem in verify_farm(database.url).problems}
    assert list(problems) == [str(forged.tick)]
    assert "the log has no such tick" in problems[str(forged.tick)]
    told = prune(database, now=NOW)
    assert (told.delete_batches, told.delete_snapshots) == ((1,), (0,) if forged.batch else (0, 15))
    assert told.after == Window(20, NOW)
    if forged.batch:
        assert f"snapshot {forged.tick} is ignored and stays" in told.reasons[-1]


@pytest.mark.slow
def test_histories_that_published_nothing_have_snapshots_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "sales.duckdb"
    wlc.master(source, create=True)
    for _ in range(2):
        with wlc.connect(source) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS t (i INTEGER)")
        wlc.stop(source)
        wlc.master(source)
        wlc.stop(source)
        wlc.master(source)
        assert verify_farm(source, full=True).problems == ()


def test_a_snapshot_that_begins_a_history_is_one_of_the_masters(database: FarmDatabase) -> None:
    """Its tick stands for what was not captured in between."""
    publish(database, 2)
    new = Position("new", 21, 2, database.read_batch(2)[1])
    take_at(database, new)
    database.create_config(replace(first_config("sales"), history="new", tick=21, batches=3))
    assert prune(database, now=NOW).delete_batches == (1,)
    transaction = Transaction(22, "ann", NOW, NOW)
    database.publish(Batch("sales", 3, "new", 22, 22, new.chain, "sales", (transaction,), (), {"new": 22}), {})
    take(database, 2)
    assert prune(database, now=NOW).delete_snapshots == (20,)


@pytest.mark.parametrize("moment", ["while the log is listed", "after the decision"])
def test_a_child_that_registers_while_a_prune_runs_is_safe(
    database: FarmDatabase, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    publish(database, 8)
    take(database, 6)
    numbers = FarmDatabase.batch_numbers

    def listed(self: FarmDatabase, after: int = 0) -> list[int]:
        register(self, replica("new", 2))
        return numbers(self, after)

    def read_late(found: FarmDatabase) -> list[Replica]:
        known = replicas(found)
        register(found, replica("new", 2))
        return known

    if moment == "after the decision":
        monkeypatch.setattr("wlc.masters.prune.replicas", read_late)
        assert prune(database, now=NOW).delete_batches == (1,)
    else:
        monkeypatch.setattr(FarmDatabase, "batch_numbers", listed)
        told = prune(database, now=NOW)
        assert (told.delete_batches, [holding.id for holding in told.holding]) == ((1,), ["new"])
        assert told.held_bytes["new"] > 0
    assert database.batch_numbers() == [2, 3, 4, 5, 6, 7, 8]


def test_changes_of_state_are_kept_with_cause_actor_and_time(database: FarmDatabase) -> None:
    def said(batch: int | None, minute: int, **options: str | bool) -> list[tuple[str, str]]:
        moment = NOW + timedelta(minutes=minute)
        found = register(database, replace(replica("a", batch), seen=moment), **options)  # type: ignore[arg-type]
        assert {transition.actor for transition in found.transitions} == {"ann@host"}
        return [(transition.state, transition.cause) for transition in found.transitions]

    assert said(None, 0) == [("pending", "registered")]
    assert said(3, 1)[1:] == [("active", "holds a position")]
    assert said(3, 2, failure="transaction 31 failed")[2:] == [("stuck", "transaction 31 failed")]
    assert len(said(3, 3)) == 3  # Nothing has come further.
    assert said(4, 4)[3:] == [("active", "goes on")]
    assert replicas(database)[0].transitions[2].time == NOW + timedelta(minutes=2)


def test_an_interval_is_estimated_from_visits_and_progress_from_positions(database: FarmDatabase) -> None:
    def said(batch: int, minute: int, *, is_level: bool = False) -> tuple[float | None, float]:
        moment = NOW + timedelta(minutes=minute)
        found = register(database, replace(replica("a", batch), seen=moment), is_level=is_level)
        assert found.progressed is not None
        return found.interval_s, (found.progressed - NOW).total_seconds() / 60

    assert said(1, 0) == (3600, 0)
    # Several visits of a round do not make a habit …
    assert said(1, 1) == (3540, 0)
    assert said(1, 2, is_level=True) == (3480, 2)
    assert said(1, 62) == (3600, 2)
    assert said(2, 63) == (3540, 63)
    # … and an hour of them does.
    for minute in range(64, 63 + 60):
        said(2, minute)
    assert said(2, 63 + 60) == (60, 63)


@pytest.mark.parametrize("linked", ["wlc_logs/sales_000000000002.d", "snapshots/000000000010"])
def test_prune_finds_a_link_before_it_deletes_anything(database: FarmDatabase, tmp_path: Path, linked: str) -> None:
    publish(database, 4)
    for batch in (1, 3):
        take(database, batch)
    (outside := tmp_path / "outside").mkdir()
    for name in ("manifest.json", "0.parquet"):
        (outside / name).write_bytes(b"of another owner")
    place = Path(database.url, linked)
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(outside)
    before = {str(path) for path in tmp_path.rglob("*")}
    with pytest.raises(CorruptError, match=f"{place} is a symbolic link to {outside}"):
        prune(database, now=NOW)
    assert {str(path) for path in tmp_path.rglob("*") if "pruning" not in path.name} == before
