"""Ctrl-C and SIGTERM end every command, also one in the background, whose shell sets SIGINT to be ignored."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
# The signals that this command received. The signal causes the error that follows, of any class: DuckDB, for example,
# reports an interrupted query as a RuntimeError.
_received: list[signal.Signals] = []
# Whether a signal is the regular end of the command.
_is_regular_end = threading.Event()
_is_reported = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where the main thread is when SIGINT or SIGTERM arrives."""
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread only.
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()
        _is_regular_end.clear()
        _is_reported.clear()


def _interrupt(number: int, _: object) -> NoReturn:
    _received.append(signal.Signals(number))
    raise KeyboardInterrupt


def received(error: BaseException) -> signal.Signals | None:
    """Return the signal that caused an error, None if there was none."""
    if _received:
        return _received[0]
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def note_reported() -> None:
    """Note that the signal was reported to the user."""
    _is_reported.set()


def is_silent() -> bool:
    """Return whether a signal ended the command without a report, as happens while typer reads the arguments."""
    return bool(_received) and not _is_reported.is_set() and not _is_regular_end.is_set()


def go_on_until_interrupted() -> None:
    """Declare that a signal is the regular end of the command: its exit code is 0 then."""
    _is_regular_end.set()


def has_ended(error: BaseException) -> bool:
    """Return whether an error is the regular end of a command that runs until a signal."""
    return _is_regular_end.is_set() and received(error) is not None


def stop_on_signal() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set, instead of interrupting the command."""
    is_stopped = threading.Event()
    for number in _NUMBERS:
        signal.signal(number, lambda *_: is_stopped.set())
    return is_stopped
