"""Commands that repeat a round on a beat until a signal ends them: `--follow`."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from wlc.farm.errors import UnavailableError
from wlc.farm.news import News
from wlc.farm.retry import PAUSE_LEAST_S, longer
from wlc.farm.store import MissingError

from .command import explain
from .interruption import go_on_until_interrupted, has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .output import Report


def follow_on(
    do_round: Callable[[], Report | None],
    beat_s: Callable[[], float],
    reads: Callable[[], str] = str,
    is_done: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Go on after the first round until SIGINT or SIGTERM, or until there is no more to do.

    What cannot be reached now, or is not there, is reported once and tried again after 1 s, 2 s, … at most 60 s: it may
    be a disk that is not mounted.

    Args:
        do_round: Returns what there is to say, None where nothing was new.
        beat_s: Longest time between two rounds, seconds.
        reads: URL of the database's folder that the rounds read: if it is local, a new log file begins a round at once.
        is_done: Asked before each round.
    """
    go_on_until_interrupted()
    told, retry_s = "", 0.0
    with closing(News(reads)) as news:
        while not is_done():
            try:
                if retry_s:
                    time.sleep(retry_s)
                else:
                    news.wait(max(beat_s(), PAUSE_LEAST_S))
                report = do_round()
            except (UnavailableError, MissingError) as error:
                if has_ended(error):
                    return
                # The farm comes back, and the next round goes on where this one stands.
                if error.message != told:
                    explain(error)
                told, retry_s = error.message, longer(retry_s)
            else:
                told, retry_s = "", 0.0
                if report is not None:
                    yield report
