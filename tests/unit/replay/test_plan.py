from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.model import (
    Batch,
    Change,
    Clear,
    DataFile,
    Ddl,
    Layout,
    Name,
    Origin,
    Position,
    Record,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    TableFile,
    Transaction,
)
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Reach, Stop
from wlr.replay.plan.log_steps import Limits, cut
from wlr.replay.plan.step import Action, Fold, Read

if TYPE_CHECKING:
    from collections.abc import Callable

START = datetime(2026, 1, 1, tzinfo=UTC)
T, U, S = Name("main", "t"), Name("main", "u"), Name("main", "s")
DDL = Ddl("CREATE TABLE", U, "CREATE TABLE u (a INTEGER)")


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def transaction(tick: int, *records: Record, committed: bool = True) -> Transaction:
    return Transaction(tick, "ann", at(tick), at(tick) if committed else None, records)


def file(number: int, table: Name = T, batch: int = 1) -> TableFile:
    return TableFile(DataFile(path(number, batch), 1, 1, ""), table, Layout(()))


def path(number: int, batch: int = 1) -> str:
    return f"d_{batch}.d/{number}"


def batch(
    *transactions: Transaction,
    number: int = 1,
    files: tuple[TableFile, ...] = (file(0), file(1, U)),
    history: str = "h",
    parent: Origin | None = None,
) -> tuple[Batch, str]:
    first, last = transactions[0].tick, transactions[-1].tick
    made = Batch("d", number, history, first, last, "", "c", transactions, files, {history: last}, parent)
    return made, f"chain{number}"


def change(added: int = 1, removed: int = 0, *, table: Name = T, number: int = 0, in_batch: int = 1) -> Change:
    return Change(table, path(number, in_batch), added, removed)


START_OF_H = Position("h", 0)


def ticks(steps: object) -> list[list[int]]:
    return [[t.tick for t in step.transactions] for step in steps]  # type: ignore[attr-defined]


# Where to start


REACH = Reach(((10, at(10)), (20, at(20))), 5, 30)


@pytest.mark.parametrize(
    "reach, stop, expected",
    [
        (REACH, Stop(), 20),
        (REACH, Stop(tick=30), 20),
        (REACH, Stop(tick=20), 20),
        (REACH, Stop(tick=19), 10),
        (REACH, Stop(until=at(20)), 20),
        (REACH, Stop(until=at(20) - timedelta(microseconds=1)), 10),
        (REACH, Stop(tick=9), "oldest snapshot, tick 10"),
        (REACH, Stop(until=at(9)), "oldest snapshot, tick 10"),
        (REACH, Stop(tick=31), "tick 31 is not published: the farm's last one is 30"),
        # A whole log needs no snapshot.
        (Reach(((10, at(10)),), 1, 30), Stop(tick=9), None),
        (Reach((), 1, 30), Stop(), None),
        (Reach((), None, 0), Stop(), None),
        (Reach((), 2, 30), Stop(), "no snapshot"),
    ],
)
def test_the_newest_snapshot_at_or_before_the_target(reach: Reach, stop: Stop, expected: int | str | None) -> None:
    if isinstance(expected, str):
        with pytest.raises((ExpiredError, InvalidError), match=expected) as caught:
            bounds.choose_snapshot(reach, stop)
        assert "oldest" not in expected or "--tick 10" in str(caught.value.hint)
    else:
        assert bounds.choose_snapshot(reach, stop) == expected


BROKEN = [batch(transaction(7), number=3, history="h2", parent=Origin("h", 5))[0], batch(transaction(5), number=2)[0]]


@pytest.mark.parametrize(
    "refuse, error",
    [
        (lambda stop: bounds.choose_snapshot(REACH, stop), ExpiredError),
        (lambda stop: bounds.refuse_before_first(batch(transaction(9))[0], stop), InvalidError),
        (lambda stop: bounds.refuse_hole(Position("h", 4), (4, 9), stop), ExpiredError),
        (
            lambda stop: bounds.refuse_beyond_break(BROKEN, START_OF_H, "h2", stop, lambda _: False, lambda: (9,)),
            InvalidError,
        ),
    ],
)
def test_a_time_that_moves_on_with_the_clock_only_has_to_wait_for_what_is_too_young(
    refuse: Callable[[Stop], object], error: type[FarmError]
) -> None:
    with pytest.raises(error):
        refuse(Stop(until=at(8)))
    told = []
    for second in (7, 8):
        with pytest.raises(UnavailableError, match="nothing is old enough yet") as caught:
            refuse(Stop(until=at(second), is_moving=True))
        told.append(caught.value.message)
    # A follower reports it once.
    assert told[0] == told[1]


def test_behind_the_replica() -> None:
    position = Position("h", 15)
    bounds.refuse_behind(position, at(15), Stop(tick=15))
    bounds.refuse_behind(position, at(15), Stop(until=at(15)))
    for stop in (Stop(tick=14), Stop(until=at(14))):
        with pytest.raises(UnavailableError, match="before the replica, which is at tick 15"):
            bounds.refuse_behind(position, at(15), stop)


@pytest.mark.parametrize(
    "tick, batch_last, numbers, expected",
    [
        (15, 20, [2, 3, 4], 3),  # in the middle of batch 3: read it again
        (20, 20, [3, 4], 3),
        (20, 20, [4], 4),  # done with batch 3, which was pruned
        (20, 20, [], 4),
        (20, 20, [5, 6], None),
        (15, 20, [4, 5], None),
        (15, 20, [], None),
    ],
)
def test_first_batch_to_read(tick: int, batch_last: int, numbers: list[int], expected: int | None) -> None:
    pruned = pytest.raises(ExpiredError, match=f"after tick {tick} was pruned") if expected is None else nullcontext()
    with pruned:
        assert bounds.first_batch_to_read(Position("h", tick, 3), batch_last, numbers, lambda: [40]) == expected


# Steps


def test_data_transactions_are_one_step_and_ddl_is_its_own() -> None:
    log = [batch(transaction(1, change()), transaction(2, change()), transaction(3, DDL), transaction(4, change()))]
    assert ticks(cut(log, START_OF_H, Stop())) == [[1, 2], [3], [4]]


def test_step_reaches_over_batches_and_its_halves_know_their_own() -> None:
    first = batch(transaction(1, change()), transaction(2, change()))
    second = batch(transaction(3, change(in_batch=2)), transaction(4), number=2, files=(file(0, batch=2),))
    (step,) = cut([first, second], START_OF_H, Stop())
    assert step.position == Position("h", 4, 2, "chain2")
    left, right = step.halves()
    assert (left.position, left.mark.batch_last) == (Position("h", 2, 1, "chain1"), 2)
    assert right.position == Position("h", 4, 2, "chain2")
    quarter = left.halves()[0]
    assert (quarter.position, quarter.mark.batch_last) == (Position("h", 1, 1, "chain1"), 2)


@pytest.mark.parametrize("stop", [Stop(tick=2), Stop(until=at(2))])
def test_stop_is_exact_inside_a_batch_and_goes_on(stop: Stop) -> None:
    log = [batch(*(transaction(tick, change()) for tick in range(1, 5)))]
    (step,) = cut(log, START_OF_H, stop)
    assert (step.last, step.mark.batch_last) == (2, 4)
    assert ticks(cut(log, step.position, Stop())) == [[3, 4]]


def test_stop_in_a_gap_of_ticks() -> None:
    log = [batch(transaction(1, change()), transaction(5, change()))]
    (step,) = cut(log, START_OF_H, Stop(tick=3))
    assert step.last == 1


def test_time_stops_at_the_first_later_transaction_even_if_clocks_went_back() -> None:
    late = Transaction(2, "ann", at(9), at(9), (change(),))
    log = [batch(transaction(1, change()), late, transaction(3, change()))]
    assert ticks(cut(log, START_OF_H, Stop(until=at(5)))) == [[1]]


def test_nothing_is_read_after_the_target() -> None:
    def log() -> object:
        yield batch(transaction(1, change()), transaction(2, change()))
        raise AssertionError

    assert ticks(cut(log(), START_OF_H, Stop(tick=2))) == [[1, 2]]  # type: ignore[arg-type]


def test_rolled_back_transactions_move_the_position_and_nothing_else() -> None:
    log = [batch(transaction(1, change()), transaction(2, committed=False))]
    (step,) = cut(log, START_OF_H, Stop())
    assert (step.last, step.clock, len(step.applied)) == (2, at(1), 1)


def test_accepted_and_failed_transactions_are_alone() -> None:
    log = [batch(*(transaction(tick, change()) for tick in range(1, 7)))]
    steps = list(cut(log, START_OF_H, Stop(), skipped=frozenset({2}), alone=5))
    assert ticks(steps) == [[1], [2], [3, 4], [5], [6]]
    assert not steps[1].applied
    assert steps[1].actions() == ()


def test_full_steps_are_closed() -> None:
    log = [batch(*(transaction(tick, change(added=4)) for tick in range(1, 6)))]
    assert ticks(cut(log, START_OF_H, Stop(), limits=Limits(rows=10))) == [[1, 2, 3], [4, 5]]
    # The last part of a large batch is not added up again and again.
    large = [batch(*(transaction(tick, change()) for tick in range(1, 9001)))]
    steps = ticks(cut(large, START_OF_H, Stop(), limits=Limits(rows=4000)))
    assert [len(step) for step in steps] == [4000, 4000, 1000]
    assert [step[0] for step in steps] == [1, 4001, 8001]


def test_history_that_grew_from_here_is_followed() -> None:
    grown = batch(
        transaction(3, change(in_batch=2)), number=2, history="k", parent=Origin("h", 2), files=(file(0, batch=2),)
    )
    log = [batch(transaction(1, change()), transaction(2, change())), grown]
    (step,) = cut(log, START_OF_H, Stop())
    assert step.position == Position("k", 3, 2, "chain2")
    assert step.halves()[0].position.history == "h"


@pytest.mark.parametrize("parent", [None, Origin("h", 1), Origin("g", 2)])
def test_history_that_grew_elsewhere_is_refused(parent: Origin | None) -> None:
    log = [batch(transaction(3, change(in_batch=2)), number=2, history="k", parent=parent, files=(file(0, batch=2),))]
    with pytest.raises(InvalidError, match="begins history k"):
        list(cut(log, Position("h", 2, 1, "chain1"), Stop()))


def test_history_with_a_gap_before_it_is_refused() -> None:
    """The tick left out stands for changes that were not captured."""
    log = [
        batch(
            transaction(4, change(in_batch=2)), number=2, history="k", parent=Origin("h", 2), files=(file(0, batch=2),)
        )
    ]
    with pytest.raises(InvalidError, match="the changes between the two are in no log"):
        list(cut(log, Position("h", 2, 1, "chain1"), Stop()))


def test_parts_are_cut_before_a_parent_goes_after_its_child() -> None:
    """U refers to T."""
    (step,) = cut(
        [
            batch(
                transaction(1, change(0, 1, table=U, number=1)),
                transaction(2, change(5, 1)),  # more rows come than go: taken for an update
                transaction(3, change(0, 1)),
                transaction(4, change(0, 1)),
                transaction(5, Clear(U, 1)),
                transaction(6, Clear(T, 1)),
            )
        ],
        START_OF_H,
        Stop(),
    )
    assert ticks(step.parts({U: {T}})) == [[1, 2], [3, 4, 5], [6]]
    assert [part.position.tick for part in step.parts({U: {T}})] == [2, 5, 6]
    assert ticks(step.parts({})) == [[1, 2, 3], [4, 5, 6]]


# Actions


def actions(*transactions: Transaction) -> tuple[Action, ...]:
    (step,) = cut([batch(*transactions)], START_OF_H, Stop())
    return step.actions()


def test_changes_of_a_table_are_one() -> None:
    (fold,) = actions(
        transaction(1, change(2, 1)), transaction(2), transaction(3, change(1, 1), change(4, table=U, number=1))
    )
    assert isinstance(fold, Fold)
    of_t, of_u = fold.changes
    assert (of_t.added, of_t.removed, of_t.cleared) == (3, 2, None)
    assert of_t.reads == (Read(file(0), 1, 3),)
    assert of_u.reads == (Read(file(1, U), 3, 3),)


def test_clear_forgets_what_came_before_and_knows_what_must_have_been_there() -> None:
    (fold,) = actions(
        transaction(1, change(5, 2)), transaction(2, Clear(T, 10), change(1)), transaction(3, change(2, 1))
    )
    assert isinstance(fold, Fold)
    (of_t,) = fold.changes
    assert (of_t.cleared, of_t.added, of_t.removed) == (7, 3, 1)
    assert of_t.reads == (Read(file(0), 2, 3),)


def test_second_clear_must_fit_the_first() -> None:
    fitting = (transaction(1, Clear(T, 4), change(2)), transaction(2, Clear(T, 2)))
    (fold,) = actions(*fitting)
    assert isinstance(fold, Fold)
    assert (fold.changes[0].cleared, fold.changes[0].reads) == (4, ())
    with pytest.raises(CorruptError, match=r"cleared of 3 rows, the log added 2"):
        actions(fitting[0], transaction(2, Clear(T, 3)))


def test_ddl_parts_what_is_before_from_what_is_after() -> None:
    before, ddl, after = actions(transaction(1, change(), DDL, change(number=1, table=U)))
    assert ddl is DDL
    assert isinstance(before, Fold)
    assert isinstance(after, Fold)
    assert [c.table for c in before.changes] == [T]
    assert [c.table for c in after.changes] == [U]


def test_rows_that_were_read_or_refreshed_change_nothing() -> None:
    told = (RowsRead(T, path(2), 1_000, exclusive=True), RowsRefreshed(T, path(3), 1_000, absent=False))
    origin = Origin("elsewhere", 8, at(0))
    first = replace(transaction(1, told[0], change(2, 1), told[1]), origin=origin, after=0)
    files = (file(0), file(1, U), file(2), file(3))
    (step,) = cut([batch(first, transaction(2, *told), files=files)], START_OF_H, Stop(), limits=Limits(rows=1_000))
    (fold,) = step.actions()
    assert isinstance(fold, Fold)
    (of_t,) = fold.changes
    assert (of_t.reads, of_t.added, of_t.removed) == ((Read(file(0), 1, 1),), 2, 1)
    assert (step.rows, list(step.files)) == (3, [path(0)])
    assert step.transactions[0].origin == origin
    assert step.digests == {T: None}
    (nothing,) = cut([batch(transaction(1, *told), files=files)], START_OF_H, Stop())
    assert (nothing.actions(), nothing.digests) == ((), {})


def test_last_position_of_a_sequence_counts() -> None:
    (fold,) = actions(transaction(1, SequencePosition(S, 5)), transaction(2, SequencePosition(S, 9)))
    assert isinstance(fold, Fold)
    assert fold.sequences == (SequencePosition(S, 9),)
