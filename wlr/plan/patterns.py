"""Which tables a replica holds, by patterns of their names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.farm.model import Name


def matches(name: Name, patterns: Collection[str]) -> bool:
    """Say whether a table is replicated: there are no patterns, or one matches `schema.table` or `table`."""
    return not patterns or any(fnmatchcase(text, p) for p in patterns for text in (str(name), name.name))
