"""The end of what a publisher can publish: whoever takes its place creates the next batch of its log.

Publishers create batches exclusively, in the order of their numbers. So the former publisher either came first, or it
finds its next number taken, however long it was halted, and whatever it had read before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import FencedError, UnavailableError
from wlc.farm.log import encode_batch
from wlc.farm.seal.checksum import checksum
from wlc.farm.seal.signatures import signed_log

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch


def chain_after(log: FarmDatabase, batch: Batch) -> str:
    """Return the chain hash that the log file of a batch without data files will have."""
    return checksum(signed_log(encode_batch(batch), log.keys))


def end_log(log: FarmDatabase, batch: Batch, hint: str = "Run the same command again.") -> None:
    """Create a batch after which the former publisher publishes nothing; doing it twice changes nothing.

    The number of the batch must be older than the caller's right to create it, which `wlc.config` or another object
    grants to one process at a time: then it never ends the log of a publisher that came after the caller.

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
