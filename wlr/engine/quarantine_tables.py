"""The rows of accepted transactions, which a database keeps beside its state, for all engines.

Tables of it in the schema `wlr`, for people and for `wlr replica retry`:
    quarantine        a row for each image, as JSON, and for each statement of an accepted transaction
    quarantine_files  the same images, exactly, as a Parquet file for each table
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.duckdb.row_images import json_object_sql
from wlc.dialect.sql import literal, quote
from wlc.farm.json_records import record_of
from wlc.farm.model import WEIGHT, Layout, Name, file_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_COLUMNS = "tick bigint, schema_name varchar, table_name varchar"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The skipped effect of an accepted transaction on one table.

    Attributes:
        layout: Columns of the images; None without images.
        file: Local Parquet file of the images, with tick and weight.
        statement: Its other effects, or why the images were not kept; "" for rows only.
    """

    tick: int
    table: Name
    added: int = 0
    removed: int = 0
    layout: Layout | None = None
    file: Path | None = None
    statement: str = ""


def create_sql(schema: str, blob: str) -> Iterator[str]:
    """Create the tables unless they exist; `blob` is the engine's type of bytes."""
    yield (
        f"CREATE TABLE IF NOT EXISTS {schema}.quarantine"
        f" ({_COLUMNS}, weight smallint, image varchar, statement varchar)"
    )
    yield (
        f"CREATE TABLE IF NOT EXISTS {schema}.quarantine_files"
        f" ({_COLUMNS}, added bigint, removed bigint, layout varchar, images {blob})"
    )


def shown_sql(kept: Quarantined) -> str:
    """Select the rows of the table `quarantine`, in DuckDB."""
    begin = f"SELECT {kept.tick}, {literal(kept.table.schema)}, {literal(kept.table.name)}"
    if kept.file is None or kept.layout is None:
        return f"{begin}, NULL::SMALLINT, NULL::VARCHAR, {literal(kept.statement)}"
    image = json_object_sql((column, quote(file_column(column.name))) for column in kept.layout.stored)
    return f"{begin}, CAST({WEIGHT} AS SMALLINT), CAST({image} AS VARCHAR), NULL::VARCHAR FROM {rows_of(kept.file)}"


def file_values(kept: Quarantined) -> str:
    """List the values of a row of `quarantine_files` except the last one."""
    assert kept.layout is not None
    layout = literal(json.dumps(record_of(Layout).write(kept.layout)))
    return (
        f"{kept.tick}, {literal(kept.table.schema)}, {literal(kept.table.name)}, {kept.added}, {kept.removed}, {layout}"
    )


FILES = "SELECT tick, schema_name, table_name, added, removed, layout, images FROM {}.quarantine_files ORDER BY 1, 2, 3"
STATEMENTS = (
    "SELECT tick, schema_name, table_name, statement FROM {}.quarantine WHERE statement IS NOT NULL ORDER BY 1, 2, 3"
)


def read(
    files: Iterable[tuple[int, str, str, int, int, str, bytes]],
    statements: Iterable[tuple[int, str, str, str]],
    work: Path,
) -> list[Quarantined]:
    """Return the quarantine, given the rows of `FILES` and `STATEMENTS`; files are written to a folder."""
    found = [Quarantined(tick, Name(schema, table), statement=text) for tick, schema, table, text in statements]
    for number, (tick, schema, table, added, removed, layout, images) in enumerate(files):
        local = work / f"quarantined {number}.parquet"
        local.write_bytes(images)
        decoded = record_of(Layout).read(json.loads(layout))
        found.append(Quarantined(tick, Name(schema, table), added, removed, decoded, local))
    return found


def delete_sql(schema: str, ticks: Iterable[int]) -> Iterator[str]:
    """Delete transactions from the quarantine."""
    listed = ", ".join(map(str, sorted(ticks)))
    for table in ("quarantine", "quarantine_files"):
        yield f"DELETE FROM {schema}.{table} WHERE tick IN ({listed})"
