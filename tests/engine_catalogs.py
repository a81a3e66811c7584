"""DuckDB's catalogs as they were when somebody last read what is new in them, to be compared with those of today.

`python -m tests.engine_catalogs` writes them anew, after each difference has been judged: does a function vary, does a
setting change what a statement means, does a type need a row in the table of types, may a method write rows?
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
from duckdb import _relation

from wlc.dialect.duckdb import engine

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).parent / "engine_catalogs.txt"


def present() -> Iterator[str]:
    """Yield a line for each overload, setting, type and method of the DuckDB that runs."""
    for name, overloads in sorted(engine.functions().items()):
        for each in overloads:
            # Table functions have all their options as parameters; which of them there are says nothing about rows.
            parameters = ", ".join(each.parameters) if each.kind in ("scalar", "aggregate", "window", "macro") else ""
            more = f", {each.varargs} ..." if each.varargs else ""
            said = each.stability or " ".join(each.definition.split())
            yield f"{each.kind} {name}({parameters}{more}) {each.returned}: {said}".rstrip(": ")
    with duckdb.connect() as connection:
        for row in connection.execute(
            "SELECT 'setting', name, input_type FROM duckdb_settings(include_all := true)"
            " UNION ALL SELECT 'type', type_name, logical_type FROM duckdb_types() WHERE internal"
        ).fetchall():
            yield " ".join(row)
    for kind, names in (("method", dir(duckdb.DuckDBPyConnection)), ("relation method", _relation.CONNECTION_METHODS)):
        for name in (each for each in names if not each.startswith("__")):
            yield f"{kind} {name}"


def understood() -> list[str]:
    """Return the lines of the file."""
    return [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


if __name__ == "__main__":
    head = f"# DuckDB {duckdb.__version__}: what was understood of its catalogs; tests/engine_catalogs.py writes this file."
    FILE.write_text("\n".join([head, *sorted(set(present()))]) + "\n", encoding="utf-8")
