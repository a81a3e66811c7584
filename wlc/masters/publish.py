"""The one way to publish, whatever the source: data files, the log file, then the source and `wlc.config` follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.errors import FencedError, GapError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Batch
from wlc.farm.store import MissingError
from wlc.farm.vectors import normal
from wlc.masters.circle_place import with_circle
from wlc.masters.fence import advance_config, fence, outdated, present_config, remembering_fence
from wlc.masters.restored import settle_past, step_down
from wlc.masters.state import newest_proofs

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import BatchContent, Source
    from wlc.masters.state import MasterState, SiteState


@dataclass(frozen=True, slots=True)
class Flushed(ForPeople):
    """What was published; `tick` is the last published one afterwards."""

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
    """Publish every transaction that waits: one batch for all of them, or one for each where the beat is 0.

    Dying anywhere in between is harmless. A batch exists with its log file or not at all; the source forgets only what
    a log file holds.

    Args:
        source: A master; the caller is `publishing`.
        database: Its place in the farm.
        upto: A place in the source's own log; everything that is committed now, if omitted.

    Raises:
        FencedError: The farm's database is another master's. Nothing was published.
        GapError: Changes are lost, and the history ends.
        UnavailableError: The source or the farm cannot be reached. Try again.
    """
    source.refuse_gap()
    if not source.has_settled_past:
        settle_past(source, database)
    last_place = source.last_place() if upto is None else upto
    flushed = Flushed(0, 0, 0, source.require_state().tick)
    with remembering_fence(source, database):
        while not source.is_idle() and (batch := _publish_batch(source, database, last_place)):
            rows = sum(file.file.rows for file in batch.files)
            flushed += Flushed(1, len(batch.transactions), rows, batch.last)
    return flushed


def _publish_batch(source: Source, database: FarmDatabase, upto: str) -> Batch | None:
    """Publish the next batch; None if nothing waits."""
    state = _with_circle(source, database)
    config = present_config(database, state)
    fence(config, state)
    source.beat_s = config.beat_s
    present = _present_batch(database, state)
    if present is None and _has_ended(state):
        _settle_end(source, database)
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
        if batch.handover is not None:
            step_down(source, database, batch, chain)
            return _publish_batch(source, database, upto)
        # It holds as many transactions as the beat of that time wanted.
        with source.gather_again(batch) as gathered:
            if gathered is None or not gathered.matches(batch):
                raise outdated(database, state, batch.number)
            gathered.note(batch, chain)
    advance_config(database, batch)
    return batch


def _has_ended(state: MasterState) -> bool:
    """Say whether a handover ended the history."""
    return state.circle is not None and state.circle.has_ended(state.history)


def _settle_end(source: Source, database: FarmDatabase) -> None:
    """Begin a history behind a handover that stands elsewhere in the log: its folder was rolled back meanwhile.

    Raises:
        FencedError: The log does not hold the handover.
    """
    source.has_settled_past = False
    settle_past(source, database)
    if _has_ended(state := source.require_state()):
        raise FencedError(
            f"a handover ended history {state.history} of {database.name}, and {database.url} does not hold it",
            hint="put the folder back",
            path=database.url,
        )


def _with_circle(source: Source, database: FarmDatabase) -> MasterState:
    """Let a source that is one of several sites remember the circle as it is now, and return what it remembers."""
    state = source.require_state()
    if state.site is not None and (site := with_circle(state.site, database)) != state.site:
        # The rule was judged by what is published. What waits here may have changed the tables since.
        source.refuse_rules(site)
        source.remember(replace(state, site=site))
        return source.require_state()
    return state


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
    return _of_site(batch, state.site, content) if state.site and state.circle else batch


def _of_site(batch: Batch, site: SiteState, content: BatchContent) -> Batch:
    """Say what a batch contains of the histories of other sites, as of its last transaction."""
    assert site.circle is not None
    vector, own = dict(batch.vector), site.own
    for transaction in content.transactions:
        if (origin := transaction.origin) is not None:
            vector[origin.history] = max(vector.get(origin.history, 0), origin.tick)
        elif transaction.records:
            own = transaction.tick
    taken = newest_proofs(site.published, content.taken)
    # Histories of sites that left go, once all of them is contained.
    vector = {**normal(vector, site.circle.lineage()), batch.history: batch.last}
    return replace(batch, vector=vector, own=own or None, taken=taken, term=site.log_term)


def _present_batch(database: FarmDatabase, state: MasterState) -> tuple[Batch, str] | None:
    """Return our own batch after which we died or lost the answer.

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
