"""Work Load Replay: replicas, rolled forward from a farm."""

from __future__ import annotations

from typing import Any

__all__ = ["accept", "beat", "clock", "lock", "replicate", "status", "tick", "unlock"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'wlr' has no attribute {name!r}")
    from wlr import replica

    found = getattr(replica, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
