"""Entry points of the programs: Ctrl-C and SIGTERM end them with one sentence, also while they load."""

from __future__ import annotations

import os
import signal


def wlc() -> None:
    """Run the command line of `wlc` and exit."""
    _end_at_once_on_signal()
    from .wlc import main

    main()


def wlr() -> None:
    """Run the command line of `wlr` and exit."""
    _end_at_once_on_signal()
    from .wlr import main

    main()


def _end_at_once_on_signal() -> None:
    # Nothing has begun yet. A running command installs its own handlers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    os.write(2, f"error: interrupted{by}\n".encode())
    os._exit(128 + number)
