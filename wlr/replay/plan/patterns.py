"""Selects the tables of a replica by patterns of their names."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from wlc.farm.seal.checksum import checksum

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.farm.model import Name


# Prefix of patterns of tables to leave out.
IGNORED = "!"
# Matches all tables. A replica with this pattern still counts as one of chosen tables.
ANY = "*"


def matches(name: Name, patterns: Collection[str]) -> bool:
    """Return whether a table is replicated.

    Patterns match `schema.table` or `table`. A pattern that begins with `!` leaves tables out; if there are others, one
    of them must match.
    """
    wanted, ignored = _parted(patterns)
    return not _any_matches(ignored, name) and (not wanted or _any_matches(wanted, name))


def _parted(patterns: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the patterns of wanted tables, and of tables to leave out."""
    wanted = [pattern for pattern in patterns if not pattern.startswith(IGNORED)]
    return wanted, [pattern.removeprefix(IGNORED) for pattern in patterns if pattern.startswith(IGNORED)]


def _any_matches(patterns: Collection[str], name: Name) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in (str(name), name.name))


def listed(tables: Collection[str] | None, ignore: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the patterns of a replica's tables, None if neither option was given."""
    if tables is None and ignore is None:
        return None
    return (*(tables or ()), *(IGNORED + pattern for pattern in ignore or ()))


def idle(patterns: Collection[str], tables: Collection[Name]) -> list[str]:
    """Return the patterns that match none of the tables, of both kinds."""
    return [p for p in patterns if not any(_any_matches((p.removeprefix(IGNORED),), name) for name in tables)]


def exactly(name: Name) -> str:
    """Return the pattern that one table matches, case-insensitively."""
    text = "".join(f"[{c.lower()}{c.upper()}]" if c.isascii() and c.isalpha() else glob.escape(c) for c in str(name))
    return f"?{text[1:]}" if text.startswith(IGNORED) else text


def hash_of(patterns: Collection[str]) -> str:
    """Return the key of a choice of tables, regardless of order; "" for all tables."""
    text = "\n".join(sorted(set(patterns)))
    return checksum(text.encode()) if text else ""


def described(patterns: Collection[str]) -> str:
    """Describe a replica's tables in words."""
    wanted, ignored = _parted(patterns)
    held = f"tables {', '.join(wanted)}" if wanted not in ([], [ANY]) else "all tables"
    return f"{held} but {', '.join(ignored)}" if ignored else held
