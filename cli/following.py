"""Commands that repeat a round on a beat until a signal ends them: `--follow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.rounds import rounds

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
    for report in rounds(do_round, beat_s, _tell, reads=reads, is_done=is_done):
        if report is not None:
            yield report


def _tell(error: Exception, *, is_new: bool) -> None:
    if has_ended(error):
        raise error
    # The farm comes back, and the next round goes on where this one stands.
    if is_new:
        explain(error)
