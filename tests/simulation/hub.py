"""Virtual time on one thread: every process is a greenlet, and one that waits lets the next one run.

The product's code runs as it is. What it asks the machine for (the time, pauses, random numbers, threads, the name of
the host) is answered by the hub, so that a run is the same each time it is begun with the same seed.
"""

from __future__ import annotations

import concurrent.futures
import random
import secrets
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import greenlet
import pytest

from wlc.farm.clock import utc_now
from wlc.farm.registry import this_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BEGIN = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Died(BaseException):
    """A process is killed: nothing of it runs any more, but for what Python itself cleans up."""


@dataclass(eq=False)
class Process:
    """Somebody who runs, waits, and may be killed.

    Attributes:
        skew_s: How far its machine's clock is ahead of the true time.
        threads: What it has begun besides itself, which ends with it.
        requests: How many of each kind it has made of stores; `bytes`: what they carried.
    """

    name: str
    greenlet: Any = None
    skew_s: float = 0.0
    threads: list[Process] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    is_over: bool = False


@dataclass
class Hub:
    """Runs processes in the order of virtual time.

    Attributes:
        now_s: Since the beginning.
        random: Everything that is left to chance comes from here.
        running: The process that runs; None for who watches.
    """

    seed: int
    now_s: float = 0.0
    running: Process | None = None
    random: random.Random = field(init=False)
    _waiting: list[tuple[float, int, Process]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=count)
    _main: Any = field(default_factory=greenlet.getcurrent)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def spawn(self, name: str, run: Callable[[], None], skew_s: float = 0.0) -> Process:
        """Begin a process now."""
        process = Process(name, skew_s=skew_s)
        process.greenlet = greenlet.greenlet(lambda: self._run(process, run), self._main)
        self._wait(process, 0.0)
        return process

    def _run(self, process: Process, run: Callable[[], None]) -> None:
        try:
            run()
        except Died:
            pass
        finally:
            process.is_over = True

    def kill(self, process: Process) -> None:
        """End a process where it waits."""
        for thread in process.threads:
            self.kill(thread)
        if not process.is_over and process is not self.running:
            before, self.running = self.running, process
            process.is_over = True
            if process.greenlet:  # Otherwise it has not begun.
                process.greenlet.throw(Died)
            self.running = before

    def thread(self, target: Callable[[], None]) -> None:
        """Begin a thread of the process that runs."""
        process = self.running
        assert process is not None
        process.threads.append(self.spawn(process.name, target, process.skew_s))

    def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        process = self.running
        if process is None:
            return
        if process.is_over:
            raise Died
        self._wait(process, seconds)
        self._main.switch()

    def _wait(self, process: Process, seconds: float) -> None:
        heappush(self._waiting, (self.now_s + seconds, next(self._number), process))

    def run_until(self, end_s: float) -> None:
        """Run everybody up to a time; what a process raises comes from here."""
        while self._waiting and self._waiting[0][0] <= end_s:
            self.now_s, _, process = heappop(self._waiting)
            if not process.is_over:
                self.running = process
                try:
                    process.greenlet.switch()
                finally:
                    self.running = None
        self.now_s = end_s

    def clock(self) -> datetime:
        """The time that the machine of the running process shows."""
        skew_s = self.running.skew_s if self.running else 0.0
        return BEGIN + timedelta(seconds=round(self.now_s + skew_s, 6))

    @contextmanager
    def machine(self) -> Iterator[None]:
        """Answer what the product asks the machine for."""
        named = random.Random(self.seed + 1)
        stands_in = {
            id(time): SimpleNamespace(
                **{
                    **vars(time),
                    "sleep": self.sleep,
                    "monotonic": lambda: self.now_s,
                    "perf_counter": lambda: self.now_s,
                }
            ),
            id(random): SimpleNamespace(
                **{**vars(random), "Random": lambda seed=None: random.Random(named.random() if seed is None else seed)}
            ),
            id(secrets): SimpleNamespace(**{**vars(secrets), "token_hex": lambda count: named.randbytes(count).hex()}),
            id(uuid): SimpleNamespace(**{**vars(uuid), "uuid4": lambda: uuid.UUID(bytes=named.randbytes(16))}),
            id(threading): SimpleNamespace(
                **{**vars(threading), "Event": lambda: Flag(self), "Thread": lambda **how: Thread(self, how["target"])}
            ),
            id(ThreadPoolExecutor): AtOnce,
            id(utc_now): self.clock,
            id(this_host): lambda: self.running.name if self.running else "nobody",
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(concurrent.futures, "ThreadPoolExecutor", AtOnce)
            for module in [found for name, found in sys.modules.items() if name.startswith("wlc.")]:
                for name, value in list(vars(module).items()):
                    if id(value) in stands_in:
                        patch.setattr(module, name, stands_in[id(value)])
            yield


@dataclass
class Thread:
    """A thread of a process, which is a process of the hub."""

    hub: Hub
    target: Callable[[], None]

    def start(self) -> None:
        self.hub.thread(self.target)

    def join(self, timeout: float | None = None) -> None:
        """Threads here end with their process."""


@dataclass
class Flag:
    """An event that threads wait for in virtual time."""

    hub: Hub
    is_raised: bool = False

    def set(self) -> None:
        self.is_raised = True

    def is_set(self) -> bool:
        return self.is_raised

    def wait(self, timeout: float) -> bool:
        # What is left of a sum of floats may be too little to move the clock.
        self.hub.sleep(max(timeout, 0.001))
        return self.is_raised


class AtOnce:
    """A pool of threads that has none: what is submitted is done at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shutdown(self, **_: object) -> None:
        pass

    def submit(self, do: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(do(*given, **named))
        except Exception as error:
            done.set_exception(error)
        return done

    def map(self, do: Callable[..., Any], *given: Iterable[Any]) -> Iterator[Any]:
        return iter([do(*each) for each in zip(*given, strict=False)])
