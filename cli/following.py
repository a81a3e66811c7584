"""Commands that do one round, or with `--follow` rounds until a signal ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wlc.farm.errors import FarmError
from wlc.farm.rounds import rounds

from .command import explain
from .interruption import go_on_until_interrupted, has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .output import Report

_Done = TypeVar("_Done")


def in_rounds(
    do_round: Callable[[], _Done],
    shown: Callable[[_Done], Report | None],
    *,
    follow: bool,
    has_news: Callable[[_Done], object],
    beat_s: Callable[[_Done], float],
    reads: Callable[[_Done], str] = lambda _: "",
    is_over: Callable[[_Done], object] = lambda _: False,
) -> Iterator[Report]:
    """Do one round, or with `follow` rounds until SIGINT or SIGTERM, or until `is_over`.

    If a place is unreachable or missing, such as an unmounted disk, the failure is reported once and the round is
    retried after 1 s, 2 s, … at most 60 s.

    Args:
        do_round: One round.
        shown: Makes the report of a round: of the first that succeeds, and of later ones with news.
        follow: Go on after the first.
        has_news: Returns whether a round did anything.
        beat_s: Longest time until the next round, seconds, given the last one that succeeded.
        reads: URL of the database's folder that the rounds read: if it is local, a new log file begins a round at once.
        is_over: Returns whether a round was the last one.
    """
    done: _Done
    is_first = True
    try:
        if follow:
            go_on_until_interrupted()
        found = rounds(do_round, lambda: beat_s(done), _tell, reads=lambda: reads(done)) if follow else [do_round()]
        for done in found:
            if (is_first or has_news(done)) and (report := shown(done)) is not None:
                yield report
            is_first = False
            if is_over(done):
                return
    except FarmError as error:
        if error.done and (report := shown(_done(error))) is not None:
            yield report
        raise


def _tell(error: Exception, *, is_new: bool) -> Any:
    """Report a failure, and return the part of the round that succeeded."""
    if has_ended(error):
        raise error
    # The next round resumes here when the farm is back.
    if is_new:
        explain(error)
    return _done(error) if isinstance(error, FarmError) and error.done else None


def _done(error: FarmError) -> Any:
    return list(error.done)
