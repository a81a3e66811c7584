"""What a published PostgreSQL database refuses, or shows differently, on purpose; each with its reason."""

from __future__ import annotations

import re

# Patterns of errors that only the published database reports.
REFUSED: dict[str, str] = {
    "cannot be replicated: it has no columns": "DuckDB has no table without a column; see docs/postgresql.md",
    "because it is part of a publication": "PostgreSQL refuses SET UNLOGGED of a published table; see docs/postgresql.md",
    "needs its REPLICA IDENTITY FULL": "old images of rows come from the server's log; see docs/postgresql.md",
    "differ in upper and lower case only": "DuckDB does not tell upper case from lower case; see docs/postgresql.md",
    "cannot follow its new name": "a schema with tables keeps its name; see docs/postgresql.md",
    "its rows could not be written once more": "a trigger or rule leaves rows unchanged; see docs/postgresql.md",
    "can be replicated from a transaction with READ COMMITTED": "rows that an older snapshot does not see would be missing",
    "with the names of what they refer to": "the text of regclass changes in rows that nobody writes; see docs/types.md",
}
# Patterns of lines that show what a master has: a publication, replica identities, the schema wlc.
SHOWN: dict[str, str] = {
    r'^\+Publications:|^\+ +"dbfarm_x"|^\+Replica Identity: FULL': "the table is published",
    r"wlc[._]|dbfarm": "the schema wlc, its functions and event triggers are listed",
}
# Patterns of errors of replicas.
STOPS: dict[str, str] = {
    r"has a value that does not fit \w+\[\]": "DuckDB has no arrays of several dimensions; see docs/types.md",
    r"has a value that does not fit TIMESTAMP( WITH TIME ZONE)?: 2942(4[7-9]|[5-7]\d)-": (
        "DuckDB has no timestamp after the year 294246; see docs/types.md"
    ),
    r"has a value that does not fit DECIMAL\(\d+,\d+\): NaN": "DuckDB has no NaN in DECIMAL; see docs/types.md",
}


def documented(lines: list[str]) -> str | None:
    """Return why the outcome of a statement may differ.

    Args:
        lines: What differs: "-" and what the unpublished database prints, "+" and what the published one prints.
    """
    for pattern, reason in REFUSED.items():
        if any(line.startswith("+") and re.search(pattern, line) for line in lines):
            return reason
    reasons = [next((reason for pattern, reason in SHOWN.items() if re.search(pattern, line)), None) for line in lines]
    return reasons[0] if reasons and all(reasons) else None


def documented_stop(error: str) -> str | None:
    """Return why a replica may stop."""
    return next((reason for pattern, reason in STOPS.items() if re.search(pattern, error)), None)


# Files in which other statements differ, each with what differs.
FILES: dict[str, str] = {
    "alter_table": "statements about tables without columns, and locks on tables of the schema wlc",
    "create_am": "statements of a transaction with a table without columns",
    "create_index": "the index that was a table's replica identity",
    "event_trigger": "event triggers of the user's own see what capture does; a table would lose its last column",
    "fast_default": "statements of a transaction with a table without columns",
    "identity": "statements about a table that could not be SET UNLOGGED",
    "inherit": "statements about a table without columns",
    "namespace": "statements about a schema that could not be renamed",
    "opr_sanity": "the functions of the schema wlc are among those of the database that are listed",
    "partition_info": "statements about tables without columns",
    "privileges": "statements about a table without columns",
    "publication": "what depends on replica identities, FULL for all tables; dbfarm's own publication is listed",
    "replica_identity": "what is shown of replica identities that were refused",
    "stats": "statements about tables without columns",
    "type_sanity": "statements about a table of all types, regclass among them",
    "vacuum": "statements of a transaction with a table without columns",
}
# Files behind which replicas do not hold what the master holds, or the master does not publish. What is open is a defect:
# it leaves this list when it is mended.
STOPPED: dict[str, dict[str, str]] = {}
