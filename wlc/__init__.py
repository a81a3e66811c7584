"""Work Load Capture: the farm's format and its masters."""

from __future__ import annotations

# Some functions share their names with modules. The modules come first: imported later, they would replace the
# functions as attributes of this package.
import wlc.clock
import wlc.prune
import wlc.snapshot  # noqa: F401
from wlc.inquiry import PostgresStatus, Status, beat, clock, is_postgres, resolve, status, tables_to_change, tick
from wlc.lifecycle import connect, flush, master, repair, run, snapshot, stop, verify_source
from wlc.pruning import prune

__all__ = [
    "PostgresStatus",
    "Status",
    "beat",
    "clock",
    "connect",
    "flush",
    "is_postgres",
    "master",
    "prune",
    "repair",
    "resolve",
    "run",
    "snapshot",
    "status",
    "stop",
    "tables_to_change",
    "tick",
    "verify_source",
]
