"""Replicas and farms that prove themselves: every scenario can end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wlr

if TYPE_CHECKING:
    from pathlib import Path


def assert_same(*replicas: Path | str, may_be_unknown: bool = False) -> None:
    """Read every row of replicas, and see whether their tables hold what the master's log says."""
    allowed = {"same", "unknown"} if may_be_unknown else {"same"}
    for replica in replicas:
        found = wlr.verify(str(replica))
        assert {table.outcome for table in found.tables} <= allowed, (replica, found)


def assert_sound(farm: Path | str) -> None:
    """Read every file of a farm's database, and see whether it is what it says."""
    found = wlr.verify_farm(str(farm), full=True)
    assert found.problems == (), found
