"""What `wlc.connect` refuses, or shows differently, on purpose; each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A difference that is documented.

    Attributes:
        reason: Why it is one.
        error: What the error of `wlc.connect` contains, a pattern; "" if it reports none.
        statement: What the statement contains, a pattern.
    """

    reason: str
    error: str = ""
    statement: str = ""


REFUSALS: tuple[Refusal, ...] = (
    Refusal("a name in the farm has one schema; see docs/limits.md", r"lies inside another schema"),
    Refusal(
        "replicas do not run what reads files; see docs/limits.md",
        r"lies outside the database|is not the farm's to call",
    ),
    Refusal("a macro may not hide what the capture calls; see docs/limits.md", r"would hide DuckDB's own"),
    Refusal(
        "a macro over something that is not there any more stops replicas; see docs/limits.md",
        r"replicas could not create a macro that depends on it",
    ),
    Refusal("values of the type cannot be written exactly; see docs/types.md", r"cannot be replicated exactly"),
    Refusal("the master would be written without capture; see docs/limits.md", r"cannot be detached or replaced"),
    Refusal("replicas have only the master's database; see docs/limits.md", r"another (attached )?database"),
    Refusal("DuckDB counts from memory that it has not set", "", r"CREATE (UNIQUE )?INDEX IF NOT EXISTS"),
    Refusal(
        "the schema wlc takes blocks of the master's file, and memory", "", r"storage_info|database_size|duckdb_memory"
    ),
    Refusal(
        "the schema wlc takes memory, which a limit of a few MB does not leave",
        r"Out of Memory Error: .*\([\d.]+ [KM]iB/[1-4]\.\d MiB used\)",
    ),
    Refusal(
        "DuckDB spells a type in an error as it was looked up first",
        r'Type "geometry" does not accept type parameters|Duplicate type parameter \w+ for type "union"'
        r'|Cannot drop internal catalog entry "integer"',
    ),
    Refusal(
        "a copy of the database has the schema wlc; see docs/limits.md", r'Table with name "counts" already exists'
    ),
)

# Files of the suite that differ, each with what differs.
FILES: dict[str, str] = {
    "export/export_external_access.test": "IMPORT of a file that settings forbid has another error, too",
    "catalog/test_set_schema.test": "the error of an UPDATE of a missing table has no LINE",
}


def documented(statement: str, error: str) -> Refusal | None:
    """Return the documented refusal that a difference belongs to."""
    for refusal in REFUSALS:
        fits_error = bool(refusal.error) == bool(error) and re.search(refusal.error, error, re.DOTALL)
        if fits_error and re.search(refusal.statement, statement, re.IGNORECASE | re.DOTALL):
            return refusal
    return None
