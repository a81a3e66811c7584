"""Work Load Capture: the farm's format and its masters."""

from __future__ import annotations

from wlc.farm.errors import (
    CorruptError,
    ExpiredError,
    FarmError,
    FencedError,
    GapError,
    InvalidError,
    ReplayError,
    UnavailableError,
    UnsupportedError,
)
from wlc.farm.model import Manifest
from wlc.farm.version import __version__
from wlc.masters.adapters import connect
from wlc.masters.lookup import resolve
from wlc.masters.operations import (
    SourceCheck,
    check_repair,
    flush,
    master,
    repair,
    snapshot,
    stop,
    verify_source,
)
from wlc.masters.prune import prune
from wlc.masters.publish import Flushed
from wlc.masters.retention import Retention
from wlc.masters.running import run
from wlc.masters.status import MasterStatus, beat, clock, preparation, status, tables_to_change, tick
from wlc.tiers.ship import Shipped, ship

__all__ = [
    "CorruptError",
    "ExpiredError",
    "FarmError",
    "FencedError",
    "Flushed",
    "GapError",
    "InvalidError",
    "Manifest",
    "MasterStatus",
    "ReplayError",
    "Retention",
    "Shipped",
    "SourceCheck",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "beat",
    "check_repair",
    "clock",
    "connect",
    "flush",
    "master",
    "preparation",
    "prune",
    "repair",
    "resolve",
    "run",
    "ship",
    "snapshot",
    "status",
    "stop",
    "tables_to_change",
    "tick",
    "verify_source",
]
