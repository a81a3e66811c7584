"""Where a replay can start and stop, and what it must refuse, decided before anything is changed.

Where a replay stops: at a tick, at a time, or at the end of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time
from wlc.farm.digest import touched
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.log_columns import Transactions
from wlc.farm.model import Origin, Position
from wlc.farm.reachable_past import first_after, not_restorable
from wlc.farm.typed_names import tables_meant
from wlr.replay.plan.patterns import IGNORED, idle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.model import Batch, Name, Transaction


# What helps a replica that the log does not lead on from; `wlr.replay.request` adds which one.
REBASE = "wlr replicate --rebase"


@dataclass(frozen=True, slots=True)
class Reach:
    """What the farm offers.

    Attributes:
        snapshots: (tick, clock) of snapshots, rising; the clock is None where it does not matter.
        first_batch: Number of the oldest batch, None without batches.
        tick: Last published tick.
    """

    snapshots: tuple[tuple[int, datetime | None], ...]
    first_batch: int | None
    tick: int


def choose_snapshot(reach: Reach, stop: Stop) -> int | None:
    """Return the tick of the newest snapshot at or before the stop, None to start from an empty database.

    Raises:
        InvalidError: The stop is ahead of the farm.
        ExpiredError: Nothing at or before the stop is left; the message names what can be reached.
        UnavailableError: The stop moves on with the clock, and is still before all that is left.
    """
    refuse_ahead(reach.tick, stop)
    for tick, clock in reversed(reach.snapshots):
        is_early = stop.until is None or (clock is not None and clock <= stop.until)
        if is_early and (stop.tick is None or tick <= stop.tick):
            return tick
    # A log that begins with a snapshot does not begin with an empty database.
    has_start = bool(reach.snapshots) and reach.snapshots[0][0] == 0
    if not has_start and (reach.first_batch == 1 or (reach.first_batch is None and not reach.snapshots)):
        return None
    if not reach.snapshots:
        raise ExpiredError("the first log files were pruned and there is no snapshot", hint="wlc snapshot SOURCE")
    oldest, clock = reach.snapshots[0]
    at = f"the oldest snapshot, tick {oldest}{f' at {format_time(clock)}' if clock else ''}"
    error = ExpiredError(
        f"{stop} is before {at}",
        hint=f"The nearest that can be reached is --tick {oldest}; the newest is --tick {reach.tick}.",
    )
    raise _early(stop, at, error)


def _early(stop: Stop, first: str, error: FarmError) -> FarmError:
    """Return why a time cannot be reached that is before what can: one that moves on with the clock will be.

    Args:
        stop: Where to stop.
        first: What can be reached after it, empty for nothing; the same in every round, so that it is reported once.
        error: Why, for a time that stays.
    """
    if not (stop.is_moving and first):
        return error
    hint = "Run it again later, or with a shorter --delay."
    return UnavailableError(f"nothing is old enough yet; the first to come is {first}", hint=hint)


def _next_snapshot(tick: int | None) -> str:
    return "" if tick is None else f"the next snapshot, tick {tick}"


def refuse_ahead(end: int, stop: Stop) -> None:
    """Refuse a tick that was not published yet.

    Raises:
        InvalidError: It was not; the message names the last one.
    """
    if stop.tick is not None and stop.tick > end and not stop.is_awaited:
        raise InvalidError(
            f"tick {stop.tick} is not published: the farm's last one is {end}",
            hint=f"Use --tick {end}, or wait with --follow; wlc flush SOURCE publishes what is journalled.",
        )


def refuse_behind(position: Position, clock: datetime | None, stop: Stop) -> None:
    """Refuse a stop that the replica has passed.

    Raises:
        UnavailableError: It has, and had not a moment ago: try again.
    """
    if is_behind(position, clock, stop):
        at = f", which is at tick {position.tick}{f' of {format_time(clock)}' if clock else ''}"
        raise UnavailableError(f"{stop} is behind the replica{at}", hint="The replica moved meanwhile: run it again.")


def refuse_lost_position(position: Position, end: int, last: int) -> None:
    """Refuse a log that does not reach to where its reader stands: its master was restored from a backup.

    Args:
        position: Where the reader stands.
        end: Last tick of the farm; it can be beyond the reader's again, in fewer batches.
        last: Number of the farm's last batch.

    Raises:
        CorruptError: It does not.
    """
    if position.tick > end or position.batch > last:
        at, here = (f"tick {end}", "") if position.tick > end else (f"batch {last}", f" in batch {position.batch}")
        raise CorruptError(
            f"the farm ends at {at}, its reader is at {position}{here} already",
            hint=f"The master was restored from another past: {REBASE}",
            position=position,
        )


def is_behind(position: Position, clock: datetime | None, stop: Stop) -> bool:
    """Say whether a replica has passed a stop."""
    if stop.tick is not None:
        return stop.tick < position.tick
    return stop.until is not None and clock is not None and stop.until < clock


def refuse_idle(patterns: Sequence[str], tables: Collection[Name], choosing: str = "--tables") -> None:
    """Refuse patterns that match none of the tables there are.

    Args:
        patterns: They choose tables or leave them out.
        tables: The tables that there are.
        choosing: The option that chooses tables, for the message.

    Raises:
        InvalidError: There is one; the hint lists the tables.
    """
    for pattern in idle(patterns, tables):
        text = pattern.removeprefix(IGNORED)
        option = choosing if text == pattern else "--ignore"
        raise InvalidError(f"no table matches {option} {text!r}", hint=tables_meant(text, tables))


def refuse_before_first(first: Batch, stop: Stop) -> None:
    """Refuse a time before the first transaction of a log that begins with nothing.

    Raises:
        InvalidError: It is; a replica at it would be empty.
        UnavailableError: It moves on with the clock, and is still before it.
    """
    committed = next((t.committed for t in first.transactions if t.committed is not None), None)
    if stop.until is not None and committed is not None and stop.until < committed:
        error = InvalidError(
            f"{stop} is before the first transaction, which was committed at {format_time(committed)}",
            hint=f"--until {format_time(committed)}; an empty replica: --tick 0",
        )
        raise _early(stop, f"the first transaction, committed at {format_time(committed)}", error)


def follows(batch: Batch, history: str) -> bool:
    """Say whether the first batch of a history goes on at the next tick after another history's last one."""
    return batch.parent == Origin(history, batch.first - 1)


def refuse_beyond_break(
    newest_first: Iterable[Batch],
    position: Position,
    history: str,
    stop: Stop,
    is_restorable: Callable[[int], bool] = lambda _: True,
    snapshot_ticks: Callable[[], Sequence[int]] = tuple,
) -> Mapping[str, int]:
    """Refuse to go beyond the tick after which a later history grew with changes that no log has.

    Args:
        newest_first: All batches; read no further than to the replica's own history.
        position: Where the replica stands.
        history: The farm's present one.
        stop: How far the replica shall go.
        is_restorable: Says whether a replica can be made at the stop, given the last tick before the break.
        snapshot_ticks: Lists the ticks of the snapshots, rising; called if none can.

    Returns:
        By history, the tick after which its transactions do not count, because a later history continues it there.

    Raises:
        InvalidError: The stop is behind the break; the message names the last tick that can be reached. Or the replica
            holds transactions that do not count.
        UnavailableError: It moves on with the clock, and is still before the first snapshot behind the break.
    """
    found = _find_break(newest_first, position, history)
    end, began = found.end, found.began
    # A stop before the promotion means what the history held then.
    turns = {history: turn for history, turn in found.turns.items() if stop.includes(turn.transactions[0])}
    if position.history in turns:
        _refuse_beyond_turn(turns[position.history], position)
    ticks = {history: turn.parent.tick for history, turn in turns.items() if turn.parent}
    if end is None or (stop.tick is not None and stop.tick <= end):
        return ticks
    committed = (t for t in began.transactions if t.committed is not None) if began else ()
    if stop.until is not None and not any(map(stop.includes, committed)):
        return ticks
    if not is_restorable(end):
        start, behind = first_after(snapshot_ticks(), end), f"history {began.history if began else history}"
        raise _early(stop, _next_snapshot(start), not_restorable(stop, end, start, history=behind))
    raise InvalidError(
        f"the history ended at tick {end}; later ones, up to history {history}, grew with changes that"
        " only their snapshots have",
        hint=f"{REBASE} makes the replica anew; or go to --tick {end}.",
        position=position,
    )


def _refuse_beyond_turn(turn: Batch, position: Position) -> None:
    """Refuse a replica with transactions that do not count, since a later history continues at an earlier tick."""
    if turn.parent is not None and position.tick > turn.parent.tick:
        lost = position.tick - turn.parent.tick
        raise InvalidError(
            f"history {turn.history} continues at tick {turn.parent.tick}, where a copy was promoted; the replica is at"
            f" {position}, with {lost} transaction{'' if lost == 1 else 's'} that count no more",
            hint=f"{REBASE} takes them back",
            position=position,
        )


@dataclass(slots=True)
class _Break:
    """The first break after a position.

    Attributes:
        end: The last tick before it, None if there is no break.
        began: The batch behind it, None if there is none.
        turns: By history, the batch with which a later history continues it.
    """

    end: int | None = None
    began: Batch | None = None
    turns: dict[str, Batch] = field(default_factory=dict)


def _find_break(newest_first: Iterable[Batch], position: Position, history: str) -> _Break:
    found = _Break()
    later: Batch | None = None
    for batch in newest_first:
        if later is None and batch.history != history and not continues(batch, history):
            found.end = max(batch.last, position.tick)
        elif later is not None and later.history != batch.history:
            if continues(later, batch.history):
                found.turns[batch.history] = later
            elif not follows(later, batch.history):
                found.end, found.began = batch.last, later
        if batch.history == position.history:
            return found
        later = batch
    is_joined = later is not None and (follows(later, position.history) or _continues_at(later, position))
    if not position.history:
        # Without batches, only snapshots hold anything.
        is_joined = later is not None and _begins_with_nothing(later)
    if not is_joined:
        found.end, found.began = position.tick, later
    return found


def continues(batch: Batch, history: str) -> bool:
    """Say whether a history begins with a batch that continues another history, at whatever tick."""
    return batch.continues and batch.parent is not None and batch.parent.history == history


def _continues_at(batch: Batch, position: Position) -> bool:
    return batch.continues and batch.parent == Origin(position.history, position.tick)


def counting(batches: Iterable[tuple[Batch, str]], turns: Mapping[str, int]) -> Iterator[tuple[Batch, str]]:
    """Yield batches without the transactions that do not count, see `refuse_beyond_break`."""
    for batch, chain in batches:
        upto = turns.get(batch.history, batch.last)
        if batch.last <= upto:
            yield batch, chain
        elif batch.first <= upto:
            yield _until(batch, upto), chain


def _until(batch: Batch, tick: int) -> Batch:
    """Return a batch without what comes after a tick; it does not say what its tables hold then."""
    listed = Transactions.of(batch.transactions)
    transactions = listed[: listed.place(tick + 1)]
    vector = {**batch.vector, batch.history: tick}
    known = replace(batch, digests={}, undigested=frozenset(touched(transactions)), vector=vector)
    return replace(known, last=tick, transactions=transactions)


def _begins_with_nothing(batch: Batch) -> bool:
    """Say whether the first batch of a log starts from an empty database.

    A history that grew from an empty one can have begun with a snapshot that holds rows.
    """
    return batch.parent is None or batch.first == batch.parent.tick + 1


def is_whole(first: Batch, history: str) -> bool:
    """Say whether a log from its first batch on is a whole history, with no other history before it."""
    return first.history == history and _begins_with_nothing(first)


def first_batch_to_read(
    position: Position, batch_last: int, numbers: Sequence[int], snapshot_ticks: Callable[[], Sequence[int]]
) -> int:
    """Return the number of the batch to go on with, the position's own one if it is still there.

    Args:
        position: Where the replica stands.
        batch_last: Last tick of the batch of that position.
        numbers: Numbers of the batches in the farm, rising.
        snapshot_ticks: Lists the ticks of the snapshots, rising; called for the hint only.

    Raises:
        ExpiredError: What comes next was pruned.
    """
    wanted = position.batch if position.batch in numbers else position.batch + 1
    is_lost = wanted > position.batch and position.tick < batch_last
    if is_lost or (numbers and numbers[0] > wanted):
        snapshots = snapshot_ticks()
        newest = f": the newest snapshot is at tick {snapshots[-1]}" if snapshots else ""
        raise ExpiredError(
            f"the log after tick {position.tick} was pruned: batch {position.batch if is_lost else wanted} is gone",
            hint=f"{REBASE} makes the replica anew{newest}.",
            position=position,
        )
    return wanted


def is_single(position: Position, numbers: Sequence[int]) -> bool:
    """Say whether the log does not go on after a position: the batch after it was pruned."""
    return bool(numbers) and numbers[0] > position.batch + 1


def refuse_hole(position: Position, snapshot_ticks: Sequence[int], stop: Stop) -> None:
    """Refuse to go on from a single snapshot, unless the stop is right there.

    Args:
        position: That of the snapshot, after which the log was pruned.
        snapshot_ticks: Ticks of all snapshots, rising.
        stop: Where to stop.

    Raises:
        ExpiredError: What lies between the snapshot and the stop was pruned.
        UnavailableError: The stop moves on with the clock, and is still before the next snapshot.
    """
    if stop.tick == position.tick:
        return
    later = first_after(snapshot_ticks, position.tick)
    error = ExpiredError(
        f"{stop} cannot be reached: the log after the snapshot at tick {position.tick} was pruned",
        hint=f"The nearest that can be reached: --tick {position.tick}{f' and --tick {later}' if later else ''}.",
        position=position,
    )
    raise _early(stop, _next_snapshot(later), error)


def check_history(batch: Batch, position: Position) -> None:
    """Refuse a batch that does not go on where the replica stands.

    Raises:
        InvalidError: Its history began elsewhere.
    """
    if not goes_on(batch, position):
        raise InvalidError(
            f"{_begun(batch)}; the replica is at {position}",
            hint=f"The master was restored or started anew: {REBASE}",
            position=position,
        )


def refuse_break(batch: Batch, position: Position) -> None:
    """Refuse to read changes across the beginning of a history that does not go on where the one before it ended.

    Raises:
        InvalidError: It does not.
    """
    if not goes_on(batch, position):
        raise InvalidError(
            f"{_begun(batch)}: no changes lead from tick {position.tick} to it",
            hint=f"Choose ticks up to {position.tick}, or after {batch.first}; wlr changes DB --table TABLE --snapshot"
            " (snapshot=True) begins with all rows.",
            position=position,
        )


def goes_on(batch: Batch, position: Position) -> bool:
    """Say whether the changes of a batch follow those up to a position."""
    if batch.history == position.history or (not position.history and _begins_with_nothing(batch)):
        return True
    # Unless a promotion says otherwise, a tick missing between two histories means changes that are in no log.
    return _continues_at(batch, position) or (batch.first == position.tick + 1 and follows(batch, position.history))


def _begun(batch: Batch) -> str:
    grew = f"tick {batch.parent.tick} of history {batch.parent.history}" if batch.parent else "nothing"
    has_gap = batch.parent is not None and batch.first > batch.parent.tick + 1
    lost = " and what was written between the two is in no log" if has_gap else ""
    return f"batch {batch.number} begins history {batch.history}, which grew from {grew}{lost}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Where to stop: after `tick`, or before the first transaction committed later than `until`; else at the end.

    Attributes:
        is_awaited: What is not published yet is no error, and neither is a replica that is further already.
        is_moving: It moves on with the clock: what is too young now is not later.
    """

    tick: int | None = None
    until: datetime | None = None
    is_awaited: bool = False
    is_moving: bool = False

    def is_passed(self, tick: int, clock: datetime | None) -> bool:
        """Say whether nothing more can come at or before the stop, given the last tick and its commit time."""
        if self.tick is not None:
            return tick >= self.tick
        return self.until is not None and clock is not None and clock > self.until

    def includes(self, transaction: Transaction) -> bool:
        """Say whether the replica is to hold the transaction, given that it holds all before it."""
        if self.tick is not None:
            return transaction.tick <= self.tick
        return self.until is None or transaction.committed is None or transaction.committed <= self.until

    def is_before(self, batch: Batch, tick: int) -> bool:
        """Say whether the stop lies before the first transaction of a batch after `tick`."""
        if self.tick is None and self.until is None:
            return False
        following = next((transaction for transaction in batch.transactions if transaction.tick > tick), None)
        return following is not None and not self.includes(following)

    def __str__(self) -> str:
        if self.tick is not None:
            return f"tick {self.tick}"
        return "the end" if self.until is None else format_time(self.until)
