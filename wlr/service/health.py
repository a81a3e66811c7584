"""Shows the state of the service: metrics in a file, a listener, a heartbeat.

Reports the state of the service: runs a command when a job fails, and requests a URL while no job fails.

Reports the state of the service to systemd, through the socket in NOTIFY_SOCKET (`man sd_notify`).
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.errors import FarmError
from wlr.service.job_states import class_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlr.service.http_server import Listener, Pages
    from wlr.service.job_states import Board, WorkStanding
    from wlr.service.metrics import Exposition
    from wlr.service.settings import ServiceOptions


log = logging.getLogger("wlr.service")

_WRITE_EVERY_S = 15.0
_LOOK_EVERY_S = 1.0


class Attendant:
    """Writes metrics, listens, and sends heartbeats, in parallel: one that hangs does not stop the others.

    Args:
        options: The settings.
        board: The states of all jobs.
        pages: Pages of the databases, served beside the metrics.

    Raises:
        InvalidError: The address cannot be bound, or a package is missing.
    """

    def __init__(self, options: ServiceOptions, board: Board, pages: Pages | None = None) -> None:
        self._board = board
        self._options = options
        self._pages = pages
        self._is_closed = threading.Event()
        self._exposition: Exposition | None = None
        self._listener: Listener | None = None
        self._threads = [
            threading.Thread(target=self._write_on, name="metrics", daemon=True),
            threading.Thread(target=self._beat_on, name="heartbeat", daemon=True),
        ]
        self.change(options)

    def start(self) -> None:
        """Start writing and sending."""
        for thread in self._threads:
            thread.start()

    def change(self, options: ServiceOptions) -> None:
        """Use other options; raises as the constructor does, and then keeps the former ones."""
        if options.listen or options.metrics:
            # Only metrics need the package.
            from wlr.service.metrics import Exposition

            self._exposition = self._exposition or Exposition(self._board)
        if self._listener is None or options.listen != self._options.listen:
            before, self._listener = self._listener, self._listening(options)
            if before:
                before.close()
        self._options = options

    def _listening(self, options: ServiceOptions) -> Listener | None:
        if not options.listen or self._exposition is None:
            return None
        from wlr.service.http_server import Listener

        return Listener(options.listen, self._board, self._exposition, self._pages)

    def close(self) -> None:
        """End, and write the metrics once more."""
        self._is_closed.set()
        if self._listener:
            self._listener.close()
        self._write("")

    @property
    def port(self) -> int | None:
        """The address of the listener."""
        return self._listener.port if self._listener else None

    def _write_on(self) -> None:
        reported = ""
        while not self._is_closed.is_set():
            reported = self._write(reported)
            self._is_closed.wait(_WRITE_EVERY_S)

    def _write(self, reported: str) -> str:
        """Write the file of metrics, and log a repeated failure once."""
        if not (self._options.metrics and self._exposition):
            return ""
        try:
            self._exposition.write(Path(self._options.metrics))
        except OSError as error:
            if str(error) != reported:
                log.warning("metrics cannot be written: %s", error)
            return str(error)
        return ""

    def _beat_on(self) -> None:
        reported, last = "", float("-inf")
        while not self._is_closed.wait(_LOOK_EVERY_S):
            options = self._options
            is_due = time.monotonic() - last >= options.heartbeat_every.total_seconds()
            if not (options.heartbeat_url and is_due) or self._board.failing():
                continue
            last, why = time.monotonic(), send_heartbeat(options.heartbeat_url)
            if why and why != reported:
                log.warning("the heartbeat cannot be sent: %s", why)
            reported = why


# Variables that the command gets from the service's environment, which may hold credentials.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "TMPDIR")
_HEARTBEAT_LIMIT_S = 10.0


def failure_environment(standing: WorkStanding, error: Exception, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command: a few of the service's variables, and the failure."""
    hint = error.hint if isinstance(error, FarmError) else None
    return {
        **{name: environment[name] for name in _PASSED_ON if name in environment},
        "DBFARM_ITEM": standing.item,
        "DBFARM_WORK": standing.work,
        "DBFARM_CLASS": class_of(error),
        "DBFARM_MESSAGE": str(error).replace("\0", ""),
        "DBFARM_HINT": (hint or "").replace("\0", ""),
    }


def run_on_failure(options: ServiceOptions, standing: WorkStanding, error: Exception) -> None:
    """Run the owner's command with a time limit; only log its failure."""
    limit_s = options.on_failure_limit.total_seconds()
    try:
        done = subprocess.run(  # noqa: S603 - the owner's own command, without a shell
            options.on_failure,
            env=failure_environment(standing, error, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        log.warning("on_failure took more than %g s and was ended", limit_s)
    except (OSError, ValueError) as problem:
        log.warning("on_failure cannot be run: %s", problem)
    else:
        if done.returncode:
            log.warning("on_failure ended with %d", done.returncode)


def send_heartbeat(url: str) -> str:
    """Request a URL; return the cause of a failure, or "". The URL, often a secret, is never shown."""
    try:
        with urllib.request.urlopen(url, timeout=_HEARTBEAT_LIMIT_S) as answer:  # noqa: S310 - the file allows http(s)
            answer.read(1)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        return type(reason if isinstance(reason, Exception) else error).__name__
    return ""


READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


class Notifier:
    """Sends states to systemd; does nothing without its socket."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is in the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment)

    def send(self, *states: str) -> None:
        """Send states such as READY; ignore an unreachable socket."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(1.0)
                sender.sendto("\n".join(states).encode(), self._address)
        except OSError:
            return

    def reloading(self) -> None:
        """Report that the file is read again, until READY."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return the interval of watchdog messages, half of systemd's limit; None if it does not watch this process."""
    try:
        wanted = int(environment.get("WATCHDOG_USEC", "0")) / 2_000_000
        pid = int(environment.get("WATCHDOG_PID", os.getpid()))
    except ValueError:
        return None
    return wanted if wanted > 0 and pid == os.getpid() else None
