"""Tells systemd how the service is, through the socket that it names in NOTIFY_SOCKET (`man sd_notify`)."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


class Notifier:
    """Sends states to systemd; does nothing where nobody listens."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is one in the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment)

    def send(self, *states: str) -> None:
        """Send states such as READY; that nobody can be reached is no reason to stop."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(1.0)
                sender.sendto("\n".join(states).encode(), self._address)
        except OSError:
            return

    def reloading(self) -> None:
        """Say that the file is read again; READY ends that."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return how often systemd must hear of us, half of what it allows; None if it does not watch this process."""
    try:
        wanted = int(environment.get("WATCHDOG_USEC", "0")) / 2_000_000
        pid = int(environment.get("WATCHDOG_PID", os.getpid()))
    except ValueError:
        return None
    return wanted if wanted > 0 and pid == os.getpid() else None
