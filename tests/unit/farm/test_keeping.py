"""Policies and tags: their files, and how far back one can go by what they keep."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.clock import format_age, parse_age
from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, ExpiredError, GapError, InvalidError
from wlc.farm.keeping import (
    KeepPolicy,
    Tag,
    add_tag,
    change_policy,
    check_tag_name,
    checked,
    decode_policy,
    decode_tag,
    delete_tag,
    encode_policy,
    encode_tag,
    end_policy,
    find_tag,
    read_policy,
    tags,
)
from wlc.farm.model import Batch, Manifest, Origin, Position, Transaction
from wlc.farm.paths import parse_tag_path, tag_path
from wlc.farm.reachable_past import Window, first_of_unbroken, read_window, window_of
from wlc.masters.prune import prune_database
from wlr.replay.log_reader import choose_snapshot, steps_after
from wlr.replay.plan.bounds import Stop

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


# The files


@pytest.fixture
def database(tmp_path: Path) -> FarmDatabase:
    return open_database("sales", str(tmp_path / "farm"))


POLICY = KeepPolicy(timedelta(days=30), 30, 12, DAY)


def test_a_policy_is_changed_shown_and_ended(database: FarmDatabase) -> None:
    assert read_policy(database) is None
    assert change_policy(database, lambda _: POLICY) == read_policy(database) == POLICY
    changed = change_policy(database, lambda present: replace(present, keep_daily=7))
    assert read_policy(database) == changed == replace(POLICY, keep_daily=7)
    end_policy(database)
    assert read_policy(database) is None


@pytest.mark.parametrize(
    "policy",
    [
        KeepPolicy(keep_daily=3),
        KeepPolicy(keep_weekly=3, snapshot_every=DAY),
        KeepPolicy(timedelta(days=40_000)),
        KeepPolicy(-DAY),
        KeepPolicy(DAY, -1),
        KeepPolicy(DAY, snapshot_every=timedelta(milliseconds=1)),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_and_changes_nothing(
    database: FarmDatabase, policy: KeepPolicy
) -> None:
    with pytest.raises(InvalidError) as caught:
        change_policy(database, lambda _: policy)
    assert caught.value.hint
    assert read_policy(database) is None


def test_damaged_policies_and_tags_are_named_and_pruning_refuses(database: FarmDatabase) -> None:
    whole, tag = encode_policy(POLICY), encode_tag(Tag("v1", 3, BEGIN, "ann@host"))
    assert decode_policy(whole, "x") == POLICY
    assert decode_tag(tag, "farm/tags/v1.json").tick == 3
    for damaged in (whole[:-9], b"", whole.replace(b'"keep_daily": 30', b'"keep_daily": 31'), tag):
        with pytest.raises(CorruptError, match="retention"):
            decode_policy(damaged, "farm/retention.json")
    for place in ("farm/tags/v2.json", "farm/tags/v1"):
        with pytest.raises(CorruptError):
            decode_tag(tag, place)
    publish(database, 4)
    database.store.create("retention.json", whole[:-9])
    with pytest.raises(CorruptError, match=r"retention\.json"):
        prune_database(database, now=BEGIN)
    end_policy(database)
    database.store.create("tags/v2.json", tag)
    with pytest.raises(CorruptError, match=r"tags/v2\.json"):
        prune_database(database, now=BEGIN)
    assert database.batch_numbers() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "name", ["12", "1e5", "-3", "0x1f", "nan", "now", "yesterday", "2026-11-20", "30d", "20261120", "a/b", "", "x" * 65]
)
def test_a_tag_that_could_be_a_time_or_a_number_is_refused(name: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_tag_name(name)
    assert caught.value.hint


def test_tags_are_made_once_found_and_deleted(database: FarmDatabase) -> None:
    first = add_tag(database, Tag("before-import", 7, BEGIN, "ann@host"))
    assert add_tag(database, Tag("before-import", 7, BEGIN + DAY, "bob@host")) == first
    with pytest.raises(InvalidError, match="is at tick 7"):
        add_tag(database, Tag("before-import", 8, BEGIN, "ann@host"))
    add_tag(database, Tag("v1.2", 3, BEGIN, "ann@host"))
    database.store.create("tags/readme.txt", b"not a tag")
    assert [tag.name for tag in tags(database)] == ["v1.2", "before-import"]
    with pytest.raises(InvalidError) as caught:
        find_tag(database, "before_import")
    assert caught.value.hint == "its tags are before-import, v1.2"
    assert delete_tag(database, "v1.2").tick == 3
    assert [tag.name for tag in tags(database)] == ["before-import"]
    assert parse_tag_path(tag_path("v1.2")) == "v1.2"
    assert parse_tag_path("tags/.json") is parse_tag_path("snapshots/v1.json") is None


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_ages_are_written_as_they_are_read(age: timedelta) -> None:
    assert abs(parse_age(format_age(age)) - age) <= timedelta(microseconds=1)
    assert checked(KeepPolicy(age)).keep == age


# How far back one can go


def publish(database: FarmDatabase, last: int) -> None:
    chain = ""
    for tick in range(1, last + 1):
        transaction = Transaction(tick, "ann", BEGIN, BEGIN + tick * DAY)
        batch = Batch("sales", tick, "h", tick, tick, chain, "sales", (transaction,), (), {"h": tick})
        chain = database.publish(batch, {})


def take(database: FarmDatabase, tick: int) -> None:
    position = Position("h", tick, tick, database.read_batch(tick)[1] if tick else "")
    database.publish_snapshot(Manifest("sales", position, BEGIN + tick * DAY, "sales", (), (), ()), {})


def reached(database: FarmDatabase, last: int) -> set[int]:
    """The ticks to which reading the snapshots and the log leads."""
    found = set()
    for tick in range(last + 1):
        with suppress(ExpiredError, GapError, InvalidError):
            manifest = choose_snapshot(database, Stop(tick=tick))
            end = manifest.position.tick if manifest else 0
            for step in steps_after(database, manifest, Stop(tick=tick)):
                end = step.last
            found |= {tick} if end == tick else set()
    return found


@pytest.mark.parametrize("snapshots", [(), (0,), (2,), (0, 3), (4,), (0, 2, 5), (5,)])
@pytest.mark.parametrize("missing", [(), (1,), (2,), (3,), (2, 4), (5,), (1, 2, 3, 4, 5)])
def test_how_far_back_one_can_go_is_what_is_really_there(
    database: FarmDatabase, snapshots: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    """Every batch can be missing, wherever the snapshots are: what is promised can be read, and no more."""
    last = 5
    publish(database, last)
    for tick in snapshots:
        take(database, tick)
    database.create_config(replace(first_config("sales"), batches=last + 1, tick=last, history="h"))
    for number in missing:
        database.delete_batch(number)
    window, ticks = read_window(database), reached(database, last)
    assert {tick for tick in range(last + 1) if window.holds(tick)} <= ticks
    unbroken = [tick for tick in range(max(missing, default=0), last + 1) if set(range(tick, last + 1)) <= ticks]
    assert window.tick == (unbroken[0] if unbroken else None)
    if last not in missing:
        points = [(database.read_manifest(tick).position, BEGIN) for tick in snapshots]
        # Pruning decides by what it has read.
        assert window_of(points, first_of_unbroken(database.batch_numbers()), None).tick == window.tick


@pytest.mark.parametrize("policy", [None, KeepPolicy(snapshot_every=DAY)])
def test_nothing_is_pruned_unattended_without_a_policy(database: FarmDatabase, policy: KeepPolicy | None) -> None:
    publish(database, 3)
    take(database, 3)
    if policy is not None:
        change_policy(database, lambda _: policy)
    for dry_run in (True, False):
        with pytest.raises(InvalidError, match="has no retention policy") as refused:
            prune_database(database, now=BEGIN, dry_run=dry_run, needs_policy=True)
        assert refused.value.hint == f"wlc retention {database.url} --keep 30d"
    assert database.batch_numbers() == [1, 2, 3]
    change_policy(database, lambda present: replace(present, keep=timedelta(0)))
    prune_database(database, now=BEGIN + 9 * DAY, needs_policy=True)
    assert database.batch_numbers() == [3]


def test_the_window_is_that_of_the_log_and_pruning_says_it_before_and_after(database: FarmDatabase) -> None:
    assert (read_window(database).tick, read_window(database).is_whole) == (None, True)
    publish(database, 20)
    window = read_window(database)
    assert (window.tick, window.clock, window.is_whole) == (0, BEGIN + DAY, True)
    assert window.covers(timedelta(days=99), BEGIN + 20 * DAY)
    for tick in (4, 9, 12, 18):
        take(database, tick)
    change_policy(database, lambda _: KeepPolicy(timedelta(days=5), keep_daily=1))
    told = prune_database(database, now=BEGIN + 20 * DAY)
    assert told.before == window
    window = read_window(database)
    assert told.after == window
    assert (window.tick, window.clock, window.older, window.is_whole) == (12, BEGIN + 12 * DAY, (9,), False)
    assert window.covers(timedelta(days=8), BEGIN + 20 * DAY)
    assert not window.covers(timedelta(days=9), BEGIN + 20 * DAY)


def two_histories(database: FarmDatabase, *later: int) -> None:
    """Publish "h" up to tick 8, and "k", which grew from its tick 5, from tick 10 on, with snapshots at later ticks."""
    publish(database, 8)
    take(database, 3)
    chain = database.read_batch(8)[1]
    for number, tick in enumerate(range(10, 14), start=9):
        parent = Origin("h", 5) if tick == 10 else None
        transaction = Transaction(tick, "ann", BEGIN, BEGIN + tick * DAY)
        batch = Batch("sales", number, "k", tick, tick, chain, "sales", (transaction,), (), {"k": tick}, parent)
        chain = database.publish(batch, {})
        if tick in later:
            position = Position("k", tick, number, chain)
            database.publish_snapshot(Manifest("sales", position, BEGIN + tick * DAY, "sales", (), (), ()), {})


def test_the_first_ticks_of_a_history_cannot_be_reached_before_its_first_snapshot(database: FarmDatabase) -> None:
    two_histories(database, 11, 13)
    window = read_window(database)
    assert (window.tick, window.is_whole, window.lost) == (0, True, ((9, 10),))
    assert [tick for tick in range(15) if not window.holds(tick)] == [9, 10]
    assert [window.reached_from(tick) for tick in (8, 9, 10, 11)] == [8, 11, 11, 11]
    # A tag there keeps nothing that could help; one behind it keeps what it needs.
    add_tag(database, Tag("lost", 10, BEGIN, "ann@host"))
    told = prune_database(database, now=BEGIN + 20 * DAY, dry_run=True)
    assert (told.before, told.keep_snapshots, told.keep_batches) == (window, (13,), (12,))
    assert "tag lost at tick 10 cannot be reached" in told.reasons
    add_tag(database, Tag("behind", 12, BEGIN, "ann@host"))
    told = prune_database(database, now=BEGIN + 20 * DAY, dry_run=True)
    assert (told.keep_snapshots, told.keep_batches[0], told.after) == ((11, 13), 10, Window(11, BEGIN + 11 * DAY))
    # What a tag keeps of the former history does not lead on to the next one.
    delete_tag(database, "behind")
    add_tag(database, Tag("before", 7, BEGIN, "ann@host"))
    told = prune_database(database, now=BEGIN + 20 * DAY)
    assert (told.keep_snapshots, told.after) == ((3, 13), read_window(database))
    assert read_window(database) == Window(3, BEGIN + 3 * DAY, lost=((9, 12),))


def test_a_history_without_a_snapshot_cannot_be_reached(database: FarmDatabase) -> None:
    two_histories(database)
    window = read_window(database)
    assert window.lost == ((9, None),)
    assert [window.reached_from(tick) for tick in (8, 9, 13)] == [8, 8, 8]
