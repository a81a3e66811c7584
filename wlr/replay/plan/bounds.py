"""Decides, before anything is changed, where a replay can start and stop, and refuses impossible ones.

The stop of a replay: a tick, a time, or the end of the log.
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


# Remedy for a replica from which the log does not continue; `wlr.replay.request` adds the replica.
REBASE = "wlr replicate --rebase"


@dataclass(frozen=True, slots=True)
class Reach:
    """The snapshots and batches of the farm.

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
        ExpiredError: Everything at or before the stop was pruned; the message names reachable ticks.
        UnavailableError: The stop moves with the clock, and is still before everything that is left.
    """
    refuse_ahead(reach.tick, stop)
    for tick, clock in reversed(reach.snapshots):
        is_early = stop.until is None or (clock is not None and clock <= stop.until)
        if is_early and (stop.tick is None or tick <= stop.tick):
            return tick
    # A log that begins with a snapshot does not begin empty.
    has_start = bool(reach.snapshots) and reach.snapshots[0][0] == 0
    if not has_start and (reach.first_batch == 1 or (reach.first_batch is None and not reach.snapshots)):
        return None
    if not reach.snapshots:
        raise ExpiredError("the first log files were pruned and there is no snapshot", hint="wlc snapshot SOURCE")
    oldest, clock = reach.snapshots[0]
    at = f"the oldest snapshot, tick {oldest}{f' at {format_time(clock)}' if clock else ''}"
    error = ExpiredError(
        f"{stop} is before {at}",
        hint=f"The nearest reachable is --tick {oldest}; the newest is --tick {reach.tick}.",
    )
    raise _early(stop, at, error)


def _early(stop: Stop, first: str, error: FarmError) -> FarmError:
    """Return the error for a time before all reachable ones: a time that moves with the clock becomes reachable.

    Args:
        stop: The stop.
        first: The first reachable moment after it, or empty; the same text in every round, to be reported once.
        error: The error for a fixed time.
    """
    if not (stop.is_moving and first):
        return error
    hint = "Run it again later, or with a shorter --delay."
    return UnavailableError(f"nothing is old enough yet; the first will be {first}", hint=hint)


def _next_snapshot(tick: int | None) -> str:
    return "" if tick is None else f"the next snapshot, tick {tick}"


def refuse_ahead(end: int, stop: Stop) -> None:
    """Refuse an unpublished tick.

    Raises:
        InvalidError: It is not published; the message names the last one.
    """
    if stop.tick is not None and stop.tick > end and not stop.is_awaited:
        raise InvalidError(
            f"tick {stop.tick} is not published: the farm's last one is {end}",
            hint=f"Use --tick {end}, or wait with --follow; wlc flush SOURCE publishes committed transactions.",
        )


def refuse_behind(position: Position, clock: datetime | None, stop: Stop) -> None:
    """Refuse a stop that the replica has passed.

    Raises:
        UnavailableError: It passed the stop a moment ago: try again.
    """
    if is_behind(position, clock, stop):
        at = f", which is at tick {position.tick}{f' of {format_time(clock)}' if clock else ''}"
        raise UnavailableError(
            f"{stop} is before the replica{at}", hint="Another process rolled it forward: run it again."
        )


def refuse_lost_position(position: Position, end: int, last: int) -> None:
    """Refuse a log that ends before its reader's position: its master was restored from a backup.

    Args:
        position: The reader's position.
        end: Last tick of the farm; a restored farm can be beyond the reader's tick again, in fewer batches.
        last: Number of the farm's last batch.

    Raises:
        CorruptError: It ends before.
    """
    if position.tick > end or position.batch > last:
        at, here = (f"tick {end}", "") if position.tick > end else (f"batch {last}", f" in batch {position.batch}")
        raise CorruptError(
            f"the farm ends at {at}, its reader is at {position}{here} already",
            hint=f"The master was restored from a backup: {REBASE}",
            position=position,
        )


def is_behind(position: Position, clock: datetime | None, stop: Stop) -> bool:
    """Return whether a replica has passed a stop."""
    if stop.tick is not None:
        return stop.tick < position.tick
    return stop.until is not None and clock is not None and stop.until < clock


def refuse_idle(patterns: Sequence[str], tables: Collection[Name], choosing: str = "--tables") -> None:
    """Refuse patterns that match no table.

    Args:
        patterns: Patterns that choose tables or leave them out.
        tables: All tables.
        choosing: The option that chooses tables, for the message.

    Raises:
        InvalidError: A pattern matches none; the hint lists the tables.
    """
    for pattern in idle(patterns, tables):
        text = pattern.removeprefix(IGNORED)
        option = choosing if text == pattern else "--ignore"
        raise InvalidError(f"no table matches {option} {text!r}", hint=tables_meant(text, tables))


def refuse_before_first(first: Batch, stop: Stop) -> None:
    """Refuse a time before the first transaction of a log that begins empty.

    Raises:
        InvalidError: The time is before it; the replica would be empty.
        UnavailableError: The time moves with the clock, and is still before it.
    """
    committed = next((t.committed for t in first.transactions if t.committed is not None), None)
    if stop.until is not None and committed is not None and stop.until < committed:
        error = InvalidError(
            f"{stop} is before the first transaction, which was committed at {format_time(committed)}",
            hint=f"--until {format_time(committed)}; an empty replica: --tick 0",
        )
        raise _early(stop, f"the first transaction, committed at {format_time(committed)}", error)


def follows(batch: Batch, history: str) -> bool:
    """Return whether the first batch of a history starts at the next tick after another history's last one."""
    return batch.parent == Origin(history, batch.first - 1)


def refuse_beyond_break(
    newest_first: Iterable[Batch],
    position: Position,
    history: str,
    stop: Stop,
    is_restorable: Callable[[int], bool] = lambda _: True,
    snapshot_ticks: Callable[[], Sequence[int]] = tuple,
) -> Mapping[str, int]:
    """Refuse to pass a tick after which a later history began with changes that are in no log.

    Args:
        newest_first: All batches; read back to the replica's own history.
        position: The replica's position.
        history: The farm's current history.
        stop: The stop of the replay.
        is_restorable: Returns whether a replica can be made at the stop, given the last tick before the break.
        snapshot_ticks: Lists the ticks of the snapshots, rising; called if none can be made.

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
    forks = {history: fork for history, fork in found.forks.items() if stop.includes(fork.transactions[0])}
    if position.history in forks:
        _refuse_beyond_fork(forks[position.history], position)
    ticks = {history: fork.parent.tick for history, fork in forks.items() if fork.parent}
    if end is None or (stop.tick is not None and stop.tick <= end):
        return ticks
    committed = (t for t in began.transactions if t.committed is not None) if began else ()
    if stop.until is not None and not any(map(stop.includes, committed)):
        return ticks
    if not is_restorable(end):
        start, behind = first_after(snapshot_ticks(), end), f"history {began.history if began else history}"
        raise _early(stop, _next_snapshot(start), not_restorable(stop, end, start, history=behind))
    raise InvalidError(
        f"the history ended at tick {end}; later ones, up to history {history}, have changes that"
        " only their snapshots have",
        hint=f"{REBASE} rebuilds the replica; or go to --tick {end}.",
        position=position,
    )


def _refuse_beyond_fork(fork: Batch, position: Position) -> None:
    """Refuse a replica with transactions that do not count, since a later history continues at an earlier tick."""
    if fork.parent is not None and position.tick > fork.parent.tick:
        lost = position.tick - fork.parent.tick
        raise InvalidError(
            f"history {fork.history} continues at tick {fork.parent.tick}, where a copy was promoted; the replica is at"
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
        forks: By history, the batch with which a later history continues it.
    """

    end: int | None = None
    began: Batch | None = None
    forks: dict[str, Batch] = field(default_factory=dict)


def _find_break(newest_first: Iterable[Batch], position: Position, history: str) -> _Break:
    found = _Break()
    later: Batch | None = None
    for batch in newest_first:
        if later is None and batch.history != history and not continues(batch, history):
            found.end = max(batch.last, position.tick)
        elif later is not None and later.history != batch.history:
            if continues(later, batch.history):
                found.forks[batch.history] = later
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


def counting(batches: Iterable[tuple[Batch, str]], forks: Mapping[str, int]) -> Iterator[tuple[Batch, str]]:
    """Yield batches without the transactions that do not count, see `refuse_beyond_break`."""
    for batch, chain in batches:
        upto = forks.get(batch.history, batch.last)
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
    """Return whether the first batch of a log starts from an empty database.

    A history that grew from an empty one may have begun with a snapshot with rows.
    """
    return batch.parent is None or batch.first == batch.parent.tick + 1


def is_whole(first: Batch, history: str) -> bool:
    """Return whether a log from its first batch on is a whole history without a predecessor."""
    return first.history == history and _begins_with_nothing(first)


def first_batch_to_read(
    position: Position, batch_last: int, numbers: Sequence[int], snapshot_ticks: Callable[[], Sequence[int]]
) -> int:
    """Return the number of the next batch to read, the position's own one if it still exists.

    Args:
        position: The replica's position.
        batch_last: Last tick of the batch of that position.
        numbers: Numbers of the batches in the farm, rising.
        snapshot_ticks: Lists the ticks of the snapshots, rising; called for the hint only.

    Raises:
        ExpiredError: The next batch was pruned.
    """
    wanted = position.batch if position.batch in numbers else position.batch + 1
    is_lost = wanted > position.batch and position.tick < batch_last
    if is_lost or (numbers and numbers[0] > wanted):
        snapshots = snapshot_ticks()
        newest = f": the newest snapshot is at tick {snapshots[-1]}" if snapshots else ""
        raise ExpiredError(
            f"the log after tick {position.tick} was pruned: batch {position.batch if is_lost else wanted} is gone",
            hint=f"{REBASE} rebuilds the replica{newest}.",
            position=position,
        )
    return wanted


def is_single(position: Position, numbers: Sequence[int]) -> bool:
    """Return whether the batch after a position was pruned."""
    return bool(numbers) and numbers[0] > position.batch + 1


def refuse_hole(position: Position, snapshot_ticks: Sequence[int], stop: Stop) -> None:
    """Refuse to continue from a single snapshot, unless it is the stop.

    Args:
        position: Position of the snapshot, after which the log was pruned.
        snapshot_ticks: Ticks of all snapshots, rising.
        stop: The stop.

    Raises:
        ExpiredError: The log between the snapshot and the stop was pruned.
        UnavailableError: The stop moves with the clock, and is still before the next snapshot.
    """
    if stop.tick == position.tick:
        return
    later = first_after(snapshot_ticks, position.tick)
    error = ExpiredError(
        f"{stop} cannot be reached: the log after the snapshot at tick {position.tick} was pruned",
        hint=f"The nearest reachable: --tick {position.tick}{f' and --tick {later}' if later else ''}.",
        position=position,
    )
    raise _early(stop, _next_snapshot(later), error)


def check_history(batch: Batch, position: Position) -> None:
    """Refuse a batch that does not continue from the replica's position.

    Raises:
        InvalidError: Its history grew from another position.
    """
    if not goes_on(batch, position):
        raise InvalidError(
            f"{_begun(batch)}; the replica is at {position}",
            hint=f"The master was restored or restarted: {REBASE}",
            position=position,
        )


def refuse_break(batch: Batch, position: Position) -> None:
    """Refuse to read changes across the start of a history that does not continue the one before.

    Raises:
        InvalidError: The history does not continue.
    """
    if not goes_on(batch, position):
        raise InvalidError(
            f"{_begun(batch)}: no changes lead from tick {position.tick} to it",
            hint=f"Choose ticks up to {position.tick}, or after {batch.first}; wlr rows changes DB --table TABLE"
            " --snapshot (snapshot=True) begins with all rows.",
            position=position,
        )


def goes_on(batch: Batch, position: Position) -> bool:
    """Return whether the changes of a batch follow those up to a position."""
    if batch.history == position.history or (not position.history and _begins_with_nothing(batch)):
        return True
    # Unless a promotion says otherwise, a tick missing between two histories means changes that are in no log.
    return _continues_at(batch, position) or (batch.first == position.tick + 1 and follows(batch, position.history))


def _begun(batch: Batch) -> str:
    grew = f"tick {batch.parent.tick} of history {batch.parent.history}" if batch.parent else "nothing"
    has_gap = batch.parent is not None and batch.first > batch.parent.tick + 1
    lost = " and the changes between the two are in no log" if has_gap else ""
    return f"batch {batch.number} begins history {batch.history}, which grew from {grew}{lost}"


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop: after `tick`, or before the first transaction committed later than `until`; else at the end.

    Attributes:
        is_awaited: An unpublished stop, or a replica beyond it, is no error.
        is_moving: It moves with the clock: a transaction that is too young now is due later.
    """

    tick: int | None = None
    until: datetime | None = None
    is_awaited: bool = False
    is_moving: bool = False

    def is_passed(self, tick: int, clock: datetime | None) -> bool:
        """Return whether no later transaction can be at or before the stop, given the last tick and its commit time."""
        if self.tick is not None:
            return tick >= self.tick
        return self.until is not None and clock is not None and clock > self.until

    def includes(self, transaction: Transaction) -> bool:
        """Return whether the transaction is at or before the stop, given that all before it are."""
        if self.tick is not None:
            return transaction.tick <= self.tick
        return self.until is None or transaction.committed is None or transaction.committed <= self.until

    def is_before(self, batch: Batch, tick: int) -> bool:
        """Return whether the stop is before the first transaction of a batch after `tick`."""
        if self.tick is None and self.until is None:
            return False
        following = next((transaction for transaction in batch.transactions if transaction.tick > tick), None)
        return following is not None and not self.includes(following)

    def __str__(self) -> str:
        if self.tick is not None:
            return f"tick {self.tick}"
        return "the end" if self.until is None else format_time(self.until)
