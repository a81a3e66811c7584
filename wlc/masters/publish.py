"""The one way to publish, for every source: data files, the log file, then the source's state and `wlc.config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.errors import FencedError, GapError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Batch
from wlc.farm.store import MissingError
from wlc.masters.fence import advance_config, fence, outdated, present_config, remembering_fence

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import BatchContent, Source
    from wlc.masters.master_state import MasterState


@dataclass(frozen=True, slots=True)
class Flushed(ForPeople):
    """The result of publishing; `tick` is the last published tick afterwards."""

    batches: int
    transactions: int
    rows: int
    tick: int

    def __add__(self, later: Flushed) -> Flushed:
        """Return what this flush and a later one published."""
        return Flushed(
            self.batches + later.batches,
            self.transactions + later.transactions,
            self.rows + later.rows,
            later.tick,
        )


def publish(source: Source, database: FarmDatabase, upto: str | None = None) -> Flushed:
    """Publish every pending transaction: one batch for all of them, or one for each if the beat is 0.

    A crash at any point is harmless. A batch exists with its log file or not at all; the source deletes only
    transactions that a log file holds.

    Args:
        source: A master; the caller is `publishing`.
        database: Its place in the farm.
        upto: A place in the source's own log; the present end of commits if omitted.

    Raises:
        FencedError: The farm's database is another master's. Nothing was published.
        GapError: Changes are lost, so the history ends.
        UnavailableError: The source or the farm cannot be reached. Try again.
    """
    source.refuse_gap()
    if (site := source.present_site) is not None:
        site.reconcile_log(database)
    last_place = source.last_place() if upto is None else upto
    flushed = Flushed(0, 0, 0, source.require_state().tick)
    with remembering_fence(source, database):
        while not source.is_idle() and (batch := _publish_batch(source, database, last_place)):
            rows = sum(file.file.rows for file in batch.files)
            flushed += Flushed(1, len(batch.transactions), rows, batch.last)
    return flushed


def _publish_batch(source: Source, database: FarmDatabase, upto: str) -> Batch | None:
    """Publish the next batch; None if no transaction is pending."""
    site = source.present_site
    state = source.require_state() if site is None else site.follow_circle(database)
    config = present_config(database, state)
    fence(database, config, state)
    source.beat_s = config.beat_s
    present = _present_batch(database, state)
    if present is None and site is not None and state.has_ended:
        site.reconcile_end(database)
        return _publish_batch(source, database, upto)
    if present is None:
        with source.gather(upto, is_each=config.beat_s == 0) as gathered:
            if gathered is None:
                return None
            content = gathered.write()
            batch = _batch(state, content)
            try:
                chain = database.publish(batch, content.local)
            except FencedError:
                present = _present_batch(database, state)
                if present is None:
                    raise
            else:
                gathered.note(batch, chain)
    if present is not None:
        batch, chain = present
        if batch.handover is not None and site is not None:
            site.follow_handover(database, batch, chain)
            return _publish_batch(source, database, upto)
        # It holds as many transactions as the beat of that time required.
        with source.gather_again(batch) as gathered:
            if gathered is None or not gathered.matches(batch):
                raise outdated(database, state, batch.number)
            gathered.note(batch, chain)
    advance_config(database, batch)
    return batch


def _batch(state: MasterState, content: BatchContent) -> Batch:
    last = content.transactions[-1].tick
    batch = Batch(
        database=state.name,
        number=state.batch + 1,
        history=state.history,
        first=content.transactions[0].tick,
        last=last,
        previous=state.chain,
        catalog=content.catalog,
        transactions=content.transactions,
        files=content.files,
        vector={**state.vector, state.history: last},
        parent=state.parent,
        digests=content.digests,
        undigested=content.undigested,
        lsn=content.lsn,
    )
    return state.site.with_site_state(batch, content.taken) if state.site else batch


def _present_batch(database: FarmDatabase, state: MasterState) -> tuple[Batch, str] | None:
    """Return this master's published batch whose answer was lost, by a crash or an error.

    Raises:
        FencedError: The batch is another master's.
    """
    number = state.batch + 1
    try:
        batch, chain = database.read_batch(number, is_own=True)
    except MissingError:
        return None
    except GapError as error:
        raise outdated(database, state, number) from error
    if batch.history != state.history or batch.previous != state.chain:
        raise outdated(database, state, number)
    return batch, chain
