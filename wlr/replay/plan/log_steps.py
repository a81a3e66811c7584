"""Cuts the log after a position into steps, without applying anything."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wlc.farm.digest import touched
from wlc.farm.log_columns import Transactions
from wlc.farm.model import Ddl, Name, Position, TableFile
from wlr.replay.plan import bounds
from wlr.replay.plan.common_position import Contained, of_footer
from wlr.replay.plan.step import Mark, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.farm.model import Batch, Digest
    from wlr.replay.plan.bounds import Stop


@dataclass(frozen=True, slots=True)
class Limits:
    """The size limits of a step.

    A step's net change is kept on disk or in memory and applied in one transaction of the replica. More rows fold
    better; fewer have to be applied again when a step fails and is cut in halves.
    """

    rows: int = 5_000_000
    transactions: int = 250_000
    files: int = 256


LIMITS = Limits()
# Number of transactions that are added up at first to find how many fit.
_PROBED = 64
_NOTHING = Transactions()


@dataclass(slots=True)
class _Run:
    """Transactions gathered for the next step."""

    catalog: str
    limits: Limits
    parts: list[Transactions] = field(default_factory=list)
    files: dict[str, TableFile] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    rows: int = 0
    digests: dict[Name, Digest | None] = field(default_factory=dict)
    undigested: frozenset[Name] = frozenset()
    last_known: int = 0
    footer: Contained | None = None
    count: int = 0

    def is_full(self, more: Transactions = _NOTHING) -> bool:
        most, changes = self.limits, more.changes
        return (
            self.rows + sum(change.rows for change in changes) >= most.rows
            or self.count + len(more) >= most.transactions
            or len(self.files) + len({change.path for change in changes} - self.files.keys()) >= most.files
        )

    def fitting(self, more: Transactions) -> int:
        """Return how many transactions fit; the last one may exceed the limit."""
        # The rest of a batch can be many times larger than a step: do not add it up again for every step.
        most = _PROBED
        while most < len(more) and not self.is_full(more[:most]):
            most *= 2
        if most >= len(more) and not self.is_full(more):
            return len(more)
        return bisect_left(range(1, min(most, len(more))), True, key=lambda count: self.is_full(more[:count])) + 1

    def add(self, more: Transactions, batch: Batch, chain: str, files: dict[str, TableFile]) -> None:
        changes = more.changes
        self.parts.append(more)
        self.marks[batch.number] = Mark(more[-1].tick, batch.history, batch.number, chain, batch.last)
        self.files.update((change.path, files[change.path]) for change in changes)
        self.rows += sum(change.rows for change in changes)
        self.count += len(more)

    def end(self, batch: Batch) -> None:
        """Note the digests of a batch, once all of its transactions are added."""
        self.digests.update(dict.fromkeys(touched(batch.transactions)))
        self.digests.update(batch.digests)
        self.undigested = (self.undigested | batch.undigested) - batch.digests.keys()
        self.last_known = batch.last
        self.footer = of_footer(batch)

    def close(self, skipped: frozenset[int]) -> Step:
        transactions = Transactions(*self.parts)
        ticks = range(transactions[0].tick, transactions[-1].tick + 1)
        marks = tuple(self.marks.values())
        # Digests hold at the end of a batch only: tables of later transactions have none.
        later = touched(transactions.after(self.last_known))
        digests = {name: digest for name, digest in self.digests.items() if name not in later}
        chosen = frozenset(tick for tick in skipped if tick in ticks)
        return Step(transactions, self.files, marks, self.catalog, chosen, digests, self.undigested, footer=self.footer)


def cut(
    batches: Iterable[tuple[Batch, str]],
    position: Position,
    stop: Stop,
    *,
    limits: Limits = LIMITS,
    skipped: frozenset[int] = frozenset(),
    alone: int | None = None,
) -> Iterator[Step]:
    """Cut the log after a position into steps.

    A transaction with DDL is a step of its own, because engines can do less in one transaction after a schema change.
    So are a skipped transaction, and the one that failed before, because others must not be rolled back with it.

    Args:
        batches: Batches and their chain hashes in order, from the one of `position` on.
        position: The replica's position.
        stop: The stop.
        limits: How much a step may hold.
        skipped: Ticks of accepted transactions.
        alone: Tick of the transaction that failed before.

    Raises:
        InvalidError: A batch belongs to a history that grew from another position.
    """
    run = _Run("", limits)
    for batch, chain, transactions, is_last in _wanted(batches, position, stop):
        if run.parts and batch.continues:
            # Files are read by ranges of ticks, and between the two histories can be ticks that do not count.
            yield run.close(skipped)
            run = _Run(batch.catalog, limits)
        files = {file.file.path: file for file in batch.files}
        for part, is_alone in transactions.parted(
            _alone(transactions, skipped if alone is None else skipped | {alone})
        ):
            rest = part
            while rest:
                if run.parts and (is_alone or run.is_full() or run.catalog != batch.catalog):
                    yield run.close(skipped)
                    run = _Run(batch.catalog, limits)
                run.catalog = batch.catalog
                count = run.fitting(rest)
                run.add(rest[:count], batch, chain, files)
                if rest[count - 1].tick == batch.last:
                    run.end(batch)
                rest = rest[count:]
            if is_alone:
                yield run.close(skipped)
                run = _Run(batch.catalog, limits)
        if is_last:
            break
    if run.parts:
        yield run.close(skipped)


def _wanted(
    batches: Iterable[tuple[Batch, str]], position: Position, stop: Stop
) -> Iterator[tuple[Batch, str, Transactions, bool]]:
    """Yield each batch's transactions between position and stop, and whether the batch is the last one needed."""
    for batch, chain in batches:
        # The chain hash identifies the position's own batch. It can belong to the history before: a new history begins
        # with a snapshot whose position is in the last batch of the old one.
        is_own = batch.number == position.batch
        after = Transactions.of(batch.transactions).after(position.tick)
        end = _end(after, stop)
        is_between = stop.tick is not None and stop.tick > position.tick and batch.history != position.history
        if after and end == 0 and not is_own and not is_between:
            # The stop is before this batch, so its history does not matter.
            return
        if not is_own:
            bounds.check_history(batch, position)
        is_last = end < len(after) or (stop.tick is not None and batch.last >= stop.tick)
        yield batch, chain, after[:end], is_last
        history = position.history if is_own and position.history else batch.history
        position = Position(history, max(batch.last, position.tick), batch.number, chain)


def _end(transactions: Transactions, stop: Stop) -> int:
    """Return the number of transactions before or at the stop."""
    if stop.tick is not None:
        return transactions.place(stop.tick + 1)
    if stop.until is None:
        return len(transactions)
    return next((n for n, t in enumerate(transactions) if not stop.includes(t)), len(transactions))


def _alone(transactions: Transactions, chosen: frozenset[int]) -> frozenset[int]:
    """Return the ticks of transactions that must be separate steps."""
    return chosen.union(t.tick for t in transactions.objects if any(isinstance(record, Ddl) for record in t.records))
