"""What `wlc.connect` refuses, or shows differently, on purpose; each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CATALOG = (
    r"(SHOW|DESC|DESCRIBE) ALL|SHOW (TABLES|SCHEMAS|DATABASES)|information_schema\.|pg_catalog\.|pg_\w+|duckdb_\w+\("
    r"|database_size|storage_info"
)


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
        "a view that reads files stops replicas until it is accepted; see docs/limits.md", "lies outside the database"
    ),
    Refusal("values of the type cannot be written exactly; see docs/types.md", r"cannot be replicated exactly"),
    Refusal("the master would be written without capture; see docs/limits.md", r"cannot be detached or replaced"),
    Refusal("replicas have only the master's database; see docs/limits.md", r"another (attached )?database"),
    Refusal("DuckDB counts from memory that it has not set", "", r"CREATE (UNIQUE )?INDEX IF NOT EXISTS"),
    Refusal("wlc.connect looks for Python objects in all frames", "", r"duckdb_settings|python_scan_all_frames"),
    Refusal("the master's file has the schema wlc, which these list", "", _CATALOG),
)

# Files of the suite that differ, each with what differs.
FILES: dict[str, str] = {
    "catalog/dependencies/rename_view_referenced_by_table_macro.test": "a macro over a renamed view stops replicas",
    "types/geo/geometry_crs.test": "an error spells a type as DuckDB looked it up first",
    "catalog/test_set_schema.test": "the LINE in the error of a missing table shows a query of the capture",
    "catalog/function/test_recursive_macro_no_dependency.test": "a macro that calls a dropped one stops replicas",
}


def documented(statement: str, error: str) -> Refusal | None:
    """Return the documented refusal that a difference belongs to."""
    for refusal in REFUSALS:
        fits_error = bool(refusal.error) == bool(error) and re.search(refusal.error, error, re.DOTALL)
        if fits_error and re.search(refusal.statement, statement, re.IGNORECASE | re.DOTALL):
            return refusal
    return None
