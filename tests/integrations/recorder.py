"""Run a program and record what a master contains after each commit: `recorder.py RECORD PROGRAM [ARGUMENTS]`;
PROGRAM is a script, or a command of the environment.

A line of RECORD has a tick and the digest of every table and view. The program runs in this process, in which
`wlc exec` captures.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

# Row order does not matter, and the digest is small.
DIGEST = "SELECT count(*), CAST(coalesce(sum(hash(t)), 0) AS VARCHAR) FROM {} t"
OWN = "('wlc', 'wlr', 'information_schema', 'pg_catalog')"


def digests(connection: Any, catalog: str) -> dict[str, list[Any]]:
    """The digest of each table and view by its name."""
    rows = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1 AND NOT temporary AND"
        f" schema_name NOT IN {OWN} UNION ALL SELECT schema_name, view_name FROM duckdb_views()"
        f" WHERE database_name = $1 AND NOT internal AND NOT temporary AND schema_name NOT IN {OWN}",
        [catalog],
    ).fetchall()
    found = {}
    for schema, name in sorted(rows):
        full = ".".join('"' + part.replace('"', '""') + '"' for part in (catalog, schema, name))
        try:
            found[f"{schema}.{name}"] = list(connection.execute(DIGEST.format(full)).fetchone())
        except Exception as error:
            found[f"{schema}.{name}"] = [type(error).__name__]
    return found


def record(file: Path) -> None:
    """Write a line after each commit of this process."""
    from wlc.capture.duckdb.shared import Shared

    committed = Shared.committed

    def call(shared: Any, tick: int, *args: Any) -> None:
        committed(shared, tick, *args)
        # Inserts of single rows share the lock: others may be committed, or not, at this moment.
        if not shared.commit_lock._sharing:
            with shared.base.cursor() as cursor, file.open("a") as lines:
                lines.write(json.dumps([tick, digests(cursor, shared.catalog)]) + "\n")

    Shared.committed = call  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    program = sys.argv[2]
    if not program.endswith(".py"):
        found = shutil.which(program, path=str(Path(sys.executable).parent))
        assert found, program
        program = found
    sys.argv = [program, *sys.argv[3:]]
    runpy.run_path(program, run_name="__main__")
