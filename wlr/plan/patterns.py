"""Which tables a replica holds, by patterns of their names."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.farm.model import Name


def matches(name: Name, patterns: Collection[str]) -> bool:
    """Say whether a table is replicated: there are no patterns, or one matches `schema.table` or `table`."""
    return not patterns or any(fnmatchcase(text, p) for p in patterns for text in (str(name), name.name))


def exactly(name: Name) -> str:
    """Return the pattern that one table matches, however the case of its letters is written."""
    return "".join(f"[{c.lower()}{c.upper()}]" if c.isascii() and c.isalpha() else glob.escape(c) for c in str(name))
