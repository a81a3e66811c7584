"""Commands that repeat a round on a beat until a signal ends them: `--follow`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wlc.farm.errors import UnavailableError
from wlc.farm.retry import PAUSE_LEAST_S, longer
from wlc.farm.store import MissingError

from .command import explain
from .interruption import go_on_until_interrupted, has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .output import Report


def follow_on(do_round: Callable[[], Report | None], beat_s: Callable[[], float]) -> Iterator[Report]:
    """Go on after the first round until SIGINT or SIGTERM.

    What cannot be reached now, or is not there, is reported once and tried again after 1 s, 2 s, … at most 60 s: it may
    be a disk that is not mounted.

    Args:
        do_round: Returns what there is to say, None where nothing was new.
        beat_s: Seconds between two rounds.
    """
    go_on_until_interrupted()
    told, retry_s = "", 0.0
    while True:
        try:
            time.sleep(retry_s or max(beat_s(), PAUSE_LEAST_S))
            news = do_round()
        except (UnavailableError, MissingError) as error:
            if has_ended(error):
                return
            # The farm comes back, and the next round goes on where this one stands.
            if error.message != told:
                explain(error)
            told, retry_s = error.message, longer(retry_s)
        else:
            told, retry_s = "", 0.0
            if news is not None:
                yield news
