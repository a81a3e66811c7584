"""Rounds that go on for ever: a pause until there may be news between two, and longer ones after failures."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Protocol, TypeVar

from wlc.farm.errors import UnavailableError
from wlc.farm.log_watch import News
from wlc.farm.retry import PAUSE_LEAST_S, longer
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

# What cannot be reached now comes back: a server that restarts, a disk that is not mounted.
AWAY = (UnavailableError, MissingError)

_Done = TypeVar("_Done")
_Part = TypeVar("_Part", covariant=True)


class Failed(Protocol[_Part]):
    """Hears of every round that failed and is tried again."""

    def __call__(self, error: Exception, *, is_new: bool) -> _Part | None:
        """Note a failure, and return what the round did nevertheless, if anything; raise to end the rounds.

        Args:
            error: Why the round failed.
            is_new: The round before it did not fail with the same message.
        """


def rounds(
    do_round: Callable[[], _Done],
    beat_s: Callable[[], float],
    failed: Failed[_Done],
    *,
    reads: Callable[[], str] = str,
    passing: tuple[type[Exception], ...] = AWAY,
    pause: Callable[[Exception, float], float] = lambda _, wait_s: longer(wait_s),
    is_stopped: threading.Event | None = None,
) -> Iterator[_Done]:
    """Do a round at once, then one after every pause, and yield what each did; the first is a round as any other.

    Args:
        do_round: One round; it finishes what it has begun.
        beat_s: Longest time between two rounds, seconds; asked after a round that did not fail.
        failed: Told of every round that is tried again.
        reads: URL of the database's folder that the rounds read: if it is local, a new log file begins a round at once.
        passing: After these errors a round is tried again; others are raised.
        pause: From an error and the last pause after a failure (0 for the first one), the next such pause.
        is_stopped: Set it to end after the round at hand, or at once during a pause.
    """
    told, retry_s, is_first = "", 0.0, True
    with closing(News(reads, is_stopped)) as news:
        while True:
            try:
                if retry_s:
                    news.sleep(retry_s)
                elif not is_first:
                    news.wait(max(beat_s(), PAUSE_LEAST_S))
                if is_stopped is not None and is_stopped.is_set():
                    return
                done = do_round()
            except passing as error:
                retry_s = pause(error, retry_s)
                part = failed(error, is_new=str(error) != told)
                told = str(error)
                if part is not None:
                    yield part
            else:
                told, retry_s, is_first = "", 0.0, False
                yield done
