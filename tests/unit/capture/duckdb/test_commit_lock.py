"""The commit lock: held alone or shared, and whoever waits to have it alone is next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from wlc.capture.duckdb.commit_lock import CommitLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

WAIT_S = 30


class Holder:
    """A thread that takes the lock, and gives it up when it is told to."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.has_it, self.may_go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=[lock])
        self.thread.start()

    def _run(self, lock: AbstractContextManager[object]) -> None:
        with lock:
            self.has_it.set()
            self.may_go.wait(WAIT_S)

    def end(self) -> None:
        self.may_go.set()
        self.thread.join(WAIT_S)


@pytest.fixture
def lock() -> CommitLock:
    return CommitLock()


@pytest.fixture
def hold(lock: CommitLock) -> Iterator[Callable[[str], Holder]]:
    holders: list[Holder] = []

    def start(name: str) -> Holder:
        holders.append(Holder(lock if name == "alone" else lock.shared))
        return holders[-1]

    yield start
    for holder in holders:
        holder.end()


def wait_until(lock: CommitLock, waiting: int) -> None:
    """Wait until so many threads wait to hold the lock alone."""
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        if lock._waiting == waiting:
            return
        pause.wait(0.01)
    raise AssertionError(f"{lock._waiting} threads wait instead of {waiting}")


def test_several_share_it_and_one_holds_it_alone(lock: CommitLock, hold: Callable[[str], Holder]) -> None:
    first, second = hold("shared"), hold("shared")
    assert first.has_it.wait(WAIT_S)
    assert second.has_it.wait(WAIT_S)
    alone = hold("alone")
    wait_until(lock, 1)
    first.end()
    assert not alone.has_it.is_set()
    second.end()
    assert alone.has_it.wait(WAIT_S)
    third = hold("shared")
    assert not third.has_it.wait(0.05)
    alone.end()
    assert third.has_it.wait(WAIT_S)


def test_nobody_shares_it_before_one_who_waits(lock: CommitLock, hold: Callable[[str], Holder]) -> None:
    first = hold("shared")
    assert first.has_it.wait(WAIT_S)
    alone = hold("alone")
    wait_until(lock, 1)
    late = hold("shared")
    wait_until(lock, 2)
    assert not late.has_it.is_set()
    first.end()
    # Either is alone with it now, whichever came first.
    held = [holder for holder in (alone, late) if holder.has_it.wait(0.2)]
    assert len(held) == 1
    held[0].end()
    assert alone.has_it.wait(WAIT_S)
    alone.end()
    assert late.has_it.wait(WAIT_S)


def test_who_holds_it_alone_may_take_it_again(lock: CommitLock) -> None:
    with lock, lock, lock.shared:
        pass
    with lock.shared, lock.turn:
        pass
    assert not lock._sharing


def test_who_shares_it_cannot_have_it_alone(lock: CommitLock, hold: Callable[[str], Holder]) -> None:
    with lock.shared:
        with pytest.raises(AssertionError, match="a committing thread"), lock:
            pass
        with pytest.raises(AssertionError, match="a committing thread"), lock.shared:
            pass
    assert hold("alone").has_it.wait(WAIT_S)


def test_an_error_gives_it_up(lock: CommitLock, hold: Callable[[str], Holder]) -> None:
    for held in (lock, lock.shared):
        with pytest.raises(ValueError, match="no"), held:
            raise ValueError("no")
    assert hold("alone").has_it.wait(WAIT_S)
