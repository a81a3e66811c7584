"""A history begins in the middle of a log file of the former one, whose end is abandoned: no changes lead across that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.handmade import HandmadeFarm, Rows
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.model import Name, Origin
from wlr.reading import change_feed
from wlr.reading.change_feed import ChangeFeed
from wlr.reading.feeds.log_source import beginning
from wlr.replay import log_reader
from wlr.replay.plan import bounds

if TYPE_CHECKING:
    from pathlib import Path

T = Name("main", "t")


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    """Batch 2 ends at tick 5, and history h2 goes on from tick 3 with batch 3, ticks 7 and 8."""
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)"])
    farm.publish(*([Rows("t", added=(str(i),))] for i in range(2, 6)))
    farm.history, farm.parent, farm.tick = "h2", Origin("h1", 3), 6
    farm.publish(*([Rows("t", added=(str(i),))] for i in (7, 8)))
    return farm


def batches(farm: HandmadeFarm, since: int, until: int, *, leads: bool = True) -> list[int]:
    return [batch.number for batch, _ in change_feed.batches_of(farm.db, since + 1, until, leads=leads)]


@pytest.mark.parametrize("since", [1, 3, 4, 5, 6])
def test_changes_do_not_lead_into_the_new_history(farm: HandmadeFarm, since: int) -> None:
    with pytest.raises(InvalidError, match="batch 3 begins history h2, which grew from tick 3 of history h1") as caught:
        batches(farm, since, 8)
    assert "no changes lead from tick 5 to it" in str(caught.value)
    assert "up to 5, or after 7" in str(caught.value.hint)


@pytest.mark.parametrize("since, until, read", [(0, 5, [1, 2]), (3, 5, [2]), (5, 5, []), (7, 8, [3]), (8, 8, [])])
def test_each_history_is_read_by_itself(farm: HandmadeFarm, since: int, until: int, read: list[int]) -> None:
    if read:
        assert batches(farm, since, until) == read
    layout = farm.layouts[T]
    with ChangeFeed(farm.db, T, layout, since + 1, until).images() as images:
        assert ("UNION" in images) == bool(read)


def test_what_transactions_did_needs_nothing_before_them(farm: HandmadeFarm) -> None:
    """As `wlr undo` asks."""
    assert batches(farm, 6, 8, leads=False) == [3]
    with pytest.raises(InvalidError, match="no changes lead from tick 5"):
        batches(farm, 4, 8, leads=False)


def test_what_was_pruned_leads_nowhere_either(farm: HandmadeFarm) -> None:
    farm.db.delete_batch(1)
    farm.db.delete_batch(2)
    with pytest.raises(InvalidError, match="no changes lead from tick 3"):
        batches(farm, 6, 8)
    with pytest.raises(ExpiredError, match="before tick 7 was pruned") as caught:
        batches(farm, 5, 8)
    assert "--since 7 (" in str(caught.value.hint)
    assert batches(farm, 7, 8) == [3]


def test_a_history_that_goes_on_is_followed(farm: HandmadeFarm) -> None:
    farm.history, farm.parent = "h3", Origin("h2", 8)
    farm.publish([Rows("t", added=("9",))])
    assert batches(farm, 8, 9) == [4]
    assert [batch.number for batch, _ in log_reader.batches_between(farm.db, 4, 4, after=1)] == [4]
    farm.db.delete_batch(3)
    assert batches(farm, 8, 9) == [4]


@pytest.mark.parametrize("first, leads", [(6, False), (7, True), (8, True)])
def test_a_feed_can_begin_with_the_first_transaction_of_a_history(farm: HandmadeFarm, first: int, leads: bool) -> None:
    position, batch_last = beginning(farm.db, first)
    batch, chain = farm.db.read_batch(3)
    assert bounds.goes_on(batch, position) is leads
    assert (position.tick, batch_last) == ((first - 1, 8) if leads else (5, 5))
    assert not leads or (position.batch, position.chain) == (3, chain)


def test_a_feed_begins_within_a_batch_with_what_is_wanted(farm: HandmadeFarm) -> None:
    position, batch_last = beginning(farm.db, 3)
    assert (position.history, position.tick, position.batch, batch_last) == ("h1", 2, 2, 5)
    assert beginning(farm.db, None)[0].tick == 0
