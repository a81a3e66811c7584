"""A PostgreSQL master published on the beat, until somebody says that it is enough."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wlc.capture.postgres.master import opened_master
from wlc.errors import UnavailableError
from wlc.ownership import Flushed, settle
from wlc.store import MissingError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from typing import Any

# Where nothing else says how often to look.
_LEAST_WAIT_S = 0.2
_MOST_WAIT_S = 60.0

_log = logging.getLogger("wlc")


def run(
    url: str,
    storage_options: Mapping[str, Any] | None,
    is_stopped: threading.Event,
    tell: Callable[[Flushed], None] | None = None,
) -> Flushed:
    """Publish on the beat until the event is set; the batch that is being published is finished then.

    Where the server or the farm cannot be reached, it is tried again after a while.

    Returns:
        What all rounds published.
    """
    total = Flushed(0, 0, 0, 0)
    wait_s = 0.0
    while not is_stopped.wait(wait_s):
        try:
            with opened_master(url, storage_options) as (source, database):
                is_first = True
                while not is_stopped.wait(0 if is_first else wait_s):
                    with source.publishing():
                        flushed = source.publish(database)
                        settle(source.state, database)
                    if is_first:
                        source.warn_bypassed()
                    is_first = False
                    total = Flushed(
                        total.batches + flushed.batches,
                        total.transactions + flushed.transactions,
                        total.rows + flushed.rows,
                        flushed.tick,
                    )
                    if tell and flushed.batches:
                        tell(flushed)
                    wait_s = max(database.config().beat_s, _LEAST_WAIT_S)
        except (UnavailableError, MissingError) as error:
            # A farm that is not there may be a disk that is not mounted.
            wait_s = min(max(wait_s * 2, 1.0), _MOST_WAIT_S)
            _log.warning("%s; trying again in %.0f s", error, wait_s)
    return total
