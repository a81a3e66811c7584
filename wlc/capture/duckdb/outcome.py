"""The outcome of a statement, kept apart from the connection that ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from wlc.dialect.sql import quote

# The result of BEGIN, COMMIT and the like: one column and no rows.
NOTHING = "SELECT NULL::BOOLEAN AS Success WHERE false"


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """The outcome of a statement, kept apart from the connection, which the capture continues to use.

    Attributes:
        count: Reported number of changed rows; None if it reported no number.
        rows: SQL that returns the rows that the user fetches.
        held: The source of the SQL, kept alive with the outcome; None if the statement returned no rows.
    """

    count: int | None
    rows: str
    held: object = None


def counted(count: int, name: str = "Count", kind: object = "BIGINT") -> StatementOutcome:
    """Outcome of a statement that returns the number of rows it changed, in a column of this name and type."""
    return StatementOutcome(count, f"SELECT {count}::{kind} AS {quote(name)}")


def submit(connection: duckdb.DuckDBPyConnection, text: str, parameters: Any) -> StatementOutcome:
    """Run a statement to its end and keep its outcome."""
    try:
        result = connection._submit(text, parameters, "rows")
    except duckdb.ResourceInUseException:
        # The program has not fetched all rows of its last statement, which `execute` ends first.
        connection.execute(NOTHING)
        result = connection._submit(text, parameters, "rows")
    returned = result.return_type
    if returned == "changed_rows":
        name, kind, *_ = result.description[0]
        counts = [int(row[0]) for row in result.fetchall()]
        if not counts:
            # CREATE TABLE IF NOT EXISTS … AS, of a table that exists.
            return StatementOutcome(None, f"SELECT NULL::{kind} AS {quote(name)} WHERE false")
        # The query of WITH changed AS (INSERT …) SELECT 1 is taken for a count, and has a type of its own.
        return counted(counts[0], name, kind)
    if returned == "nothing":
        name, kind, *_ = result.description[0]
        values = [row[0] for row in result.fetchall()]
        rows = f"unnest({values})::{kind} AS {quote(name)}" if values else f"NULL::{kind} AS {quote(name)} WHERE false"
        return StatementOutcome(None, f"SELECT {rows}")
    names = [name for name, *_ in result.description]
    held = connection._register_collection(result)
    rows = f'SELECT * FROM "{held.name}"'
    if len({name.lower() for name in names}) < len(names):
        # Names that occur twice were changed when the rows were registered.
        columns = [f"c{number}" for number in range(len(names))]
        shown = ", ".join(f"{column} AS {quote(name)}" for column, name in zip(columns, names, strict=True))
        rows = f'SELECT {shown} FROM "{held.name}" AS t({", ".join(columns)})'
    count = int(connection.execute(f'SELECT count(*) FROM "{held.name}"').fetchall()[0][0])
    return StatementOutcome(count, rows, held)
