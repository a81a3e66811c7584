"""Commands that repeat a round on a beat until a signal ends them: `--follow`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wlc.farm.errors import UnavailableError

from .command import explain
from .interruption import go_on_until_interrupted, has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .output import Report

# How often --follow looks at most, whatever the beat.
_LEAST_WAIT_S = 0.2


def follow_on(do_round: Callable[[], Report], beat_s: Callable[[], float]) -> Iterator[Report]:
    """Go on after the first round until SIGINT or SIGTERM; what cannot be reached now is tried again on the beat."""
    go_on_until_interrupted()
    while True:
        try:
            time.sleep(max(beat_s(), _LEAST_WAIT_S))
            yield do_round()
        except UnavailableError as error:
            if has_ended(error):
                return
            # The farm comes back, and the next round goes on where this one stands.
            explain(error)
