"""The published rows of a master's tables: those of its newest snapshot plus the images of the log after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import quote
from wlc.farm.log_columns import Transactions
from wlc.farm.model import WEIGHT, Clear, Ddl, Position, file_column
from wlc.farm.schema_fold import created_table, touched_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Layout, Name


def published_rows(database: FarmDatabase, tables: Mapping[Name, Layout]) -> dict[Name, str]:
    """Return a query for the negated images of each table's published rows: `w` and the columns of an image table.

    A table is left out if the log after the newest snapshot alters or clears it: its images do not simply add up.

    Args:
        database: The place in the farm; nothing may be journalled after its last tick.
        tables: Wanted tables with their present layouts.
    """
    found, last = _in_snapshot(database, tables)
    seen = set(found)
    for number in database.batch_numbers(last.batch):
        batch, _ = database.read_batch(number)
        if batch.last > last.tick:
            _follow_schema(found, seen, batch, tables)
            for file in batch.files:
                if file.table in found:
                    found[file.table].append(_images(file.layout, database.fetch(file), WEIGHT))
    return {name: " UNION ALL ".join(parts) for name, parts in found.items()}


def _in_snapshot(database: FarmDatabase, tables: Mapping[Name, Layout]) -> tuple[dict[Name, list[str]], Position]:
    if not (ticks := database.snapshot_ticks()):
        return {}, Position("", 0)
    manifest = database.read_manifest(ticks[-1])
    found = {
        each.table: [_images(each.layout, database.fetch_snapshot(manifest, file), "1") for file in each.files]
        for each in manifest.tables
        if tables.get(each.table) == each.layout
    }
    return found, manifest.position


def _follow_schema(found: dict[Name, list[str]], seen: set[Name], batch: Batch, tables: Mapping[Name, Layout]) -> None:
    """Begin with tables that a batch creates, and leave out tables that it alters or clears."""
    for *_, record in Transactions.of(batch.transactions).records():
        if isinstance(record, Clear):
            found.pop(record.table, None)
        elif isinstance(record, Ddl):
            created = created_table(record)
            for name in touched_tables(record):
                found.pop(name, None)
                if name == created and name not in seen and record.layout == tables.get(name):
                    found[name] = []
                seen.add(name)


def _images(layout: Layout, file: Path, weight: str) -> str:
    names = [quote(file_column(column.name)) for column in layout.stored]
    columns = "".join(f", {name} AS c{number}" for number, name in enumerate(names))
    # Other weights mark rows that were only read.
    return f"SELECT -{weight} AS w{columns} FROM {rows_of(file)} WHERE abs({weight}) = 1"
