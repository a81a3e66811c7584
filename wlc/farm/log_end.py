"""Fencing of a former publisher: its successor creates the next batch of the log.

Publishers create batches exclusively, in the order of their numbers. So the former publisher either came first or finds
its next number taken, however long it was suspended and whatever it had read before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.errors import FencedError, UnavailableError
from wlc.farm.log import encode_batch
from wlc.farm.model import Batch, Transaction
from wlc.farm.newest_batches import read_newest
from wlc.farm.registry import this_user
from wlc.farm.seal.checksum import checksum
from wlc.farm.seal.signatures import signed_log

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Config, Origin


def final_batch(log: FarmDatabase, config: Config) -> Batch:
    """Return the batch that will fence the former publisher of a log; the caller creates it later.

    Args:
        log: A database of the farm that a new history follows.
        config: Its `wlc.config`.
    """
    newest = read_newest(log)
    ticks = log.snapshot_ticks()
    has_begun = bool(ticks) and log.read_manifest(ticks[-1]).position.history == config.history
    if newest is None or has_begun:
        return last_batch(log, newest, config.history, config.parent)
    # A history without its snapshot has published nothing.
    return last_batch(log, newest, newest[0].history, None)


def last_batch(log: FarmDatabase, newest: tuple[Batch, str] | None, history: str, parent: Origin | None) -> Batch:
    """Return the batch that ends a history, which grew from `parent`."""
    batch, chain = newest or (None, "")
    catalog, vector, clock = log.name, dict[str, int](), None
    if batch is not None and batch.history == history:
        catalog, vector, clock, parent = batch.catalog, dict(batch.vector), batch.clock, None
    elif ticks := log.snapshot_ticks():
        # A history begins with a snapshot, and has published nothing since.
        manifest = log.read_manifest(ticks[-1])
        catalog, vector, clock = manifest.catalog, dict(manifest.vector), manifest.clock
    config = log.config()
    tick = 1 + max(vector.get(history, 0), config.tick if config.history == history else 0)
    now = max(filter(None, (utc_now(), clock)))
    return Batch(
        database=log.name,
        number=batch.number + 1 if batch else 1,
        history=history,
        first=tick,
        last=tick,
        previous=chain,
        catalog=catalog,
        transactions=(Transaction(tick, this_user(), now, now),),
        vector={**vector, history: tick},
        parent=parent,
        term=batch.term if batch else None,
        own=batch.own if batch else None,
        taken=batch.taken if batch else (),
    )


def chain_after(log: FarmDatabase, batch: Batch) -> str:
    """Return the chain hash that the log file of a batch without data files will have."""
    return checksum(signed_log(encode_batch(batch), log.keys))


def end_log(log: FarmDatabase, batch: Batch, hint: str = "Run the same command again.") -> None:
    """Create the batch that fences the former publisher; repeating it changes nothing.

    The batch's number must be chosen before the caller gets the right to create it, which `wlc.config` or another
    object grants to one process at a time: then the batch never ends the log of a publisher that came after the caller.

    Args:
        log: A database of the farm.
        batch: Its number was chosen before the caller got that right.
        hint: How to begin again.

    Raises:
        UnavailableError: The former publisher came first. Begin again.
    """
    try:
        log.publish(batch, {})
    except FencedError as error:
        message = f"batch {batch.number} of {log.url} was published meanwhile"
        raise UnavailableError(message, hint=hint, path=log.url) from error
