"""Which tables a replica holds, by patterns of their names."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from wlc.farm.seal.checksum import checksum

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.farm.model import Name


# Begins the patterns of tables that a replica leaves out.
IGNORED = "!"
# All tables match it. A replica of these is one of chosen tables, nevertheless.
ANY = "*"


def matches(name: Name, patterns: Collection[str]) -> bool:
    """Say whether a table is replicated.

    Patterns match `schema.table` or `table`. One that begins with `!` leaves tables out; of the others, if there are
    any, one has to match.
    """
    wanted, ignored = _parted(patterns)
    return not _any_matches(ignored, name) and (not wanted or _any_matches(wanted, name))


def _parted(patterns: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the patterns of tables that are wanted, and of those that are left out."""
    wanted = [pattern for pattern in patterns if not pattern.startswith(IGNORED)]
    return wanted, [pattern.removeprefix(IGNORED) for pattern in patterns if pattern.startswith(IGNORED)]


def _any_matches(patterns: Collection[str], name: Name) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in (str(name), name.name))


def listed(tables: Collection[str] | None, ignore: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the patterns of what a replica holds, None if nothing was said about it."""
    if tables is None and ignore is None:
        return None
    return (*(tables or ()), *(IGNORED + pattern for pattern in ignore or ()))


def idle(patterns: Collection[str], tables: Collection[Name]) -> list[str]:
    """Return the patterns that match none of the tables, whether they choose tables or leave them out."""
    return [p for p in patterns if not any(_any_matches((p.removeprefix(IGNORED),), name) for name in tables)]


def exactly(name: Name) -> str:
    """Return the pattern that one table matches, however the case of its letters is written."""
    text = "".join(f"[{c.lower()}{c.upper()}]" if c.isascii() and c.isalpha() else glob.escape(c) for c in str(name))
    return f"?{text[1:]}" if text.startswith(IGNORED) else text


def hash_of(patterns: Collection[str]) -> str:
    """Return what tells one choice of tables from another one, whatever their order; "" for all tables."""
    text = "\n".join(sorted(set(patterns)))
    return checksum(text.encode()) if text else ""


def described(patterns: Collection[str]) -> str:
    """Say in words what a replica holds."""
    wanted, ignored = _parted(patterns)
    held = f"tables {', '.join(wanted)}" if wanted not in ([], [ANY]) else "all tables"
    return f"{held} but {', '.join(ignored)}" if ignored else held
