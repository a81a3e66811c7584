"""Work Load Capture: the farm's format and its masters."""

from __future__ import annotations

# Some functions share their names with modules. The modules come first: imported later, they would replace the
# functions as attributes of this package.
import wlc.clock
import wlc.prune
import wlc.snapshot  # noqa: F401
from wlc.lifecycle import (
    Status,
    beat,
    clock,
    connect,
    flush,
    master,
    repair,
    resolve,
    snapshot,
    status,
    stop,
    tick,
)
from wlc.pruning import prune

__all__ = [
    "Status",
    "beat",
    "clock",
    "connect",
    "flush",
    "master",
    "prune",
    "repair",
    "resolve",
    "snapshot",
    "status",
    "stop",
    "tick",
]
