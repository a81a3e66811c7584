"""Work Load Replay: replicas, rolled forward from a farm."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(("accept", "beat", "clock", "lock", "replicate", "status", "tick", "unlock"), "wlr.replica"),
    **dict.fromkeys(("files", "prune"), "wlr.lake"),
    **dict.fromkeys(("repair", "verify"), "wlr.compare"),
    "snapshot_from_log": "wlr.rolled",
    "verify_farm": "wlr.audit",
    "drill": "wlr.drills",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - It is a list of names.


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wlr' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
