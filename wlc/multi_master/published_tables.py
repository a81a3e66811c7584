"""The tables that a database has published, and why the rows of one cannot be decided each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.model import Check, Ddl, Reference, Unique
from wlc.farm.schema_fold import SchemaFold

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.schema_fold import FoldedTable


def constraint_beside_key(tables: SchemaFold, table: FoldedTable) -> str | None:
    """Return a constraint that could not be kept if each row were decided by itself, None without one."""
    if any(isinstance(found, Unique) for found in table.constraints):
        return "a UNIQUE constraint"
    if any(isinstance(found, Reference) for found in table.constraints) or any(tables.references_to(table.name)):
        return "a FOREIGN KEY"
    return "a UNIQUE index" if any(i.of == table.name and i.unique for i in tables.indexes.values()) else None


def has_check(table: FoldedTable) -> bool:
    """Say whether a table has a CHECK constraint."""
    return any(isinstance(found, Check) for found in table.constraints)


def published_tables(database: FarmDatabase) -> SchemaFold:
    """Return the tables of a database, as far as they are published.

    Raises:
        CorruptError: A log file or a snapshot contradicts itself.
    """
    found = SchemaFold()
    ticks = database.snapshot_ticks()
    manifest = database.read_manifest(ticks[-1]) if ticks else None
    for ddl in (*manifest.schema, *manifest.schema_after) if manifest else ():
        found.apply(ddl)
    for number in database.batch_numbers(after=manifest.position.batch if manifest else 0):
        for each in database.read_batch(number)[0].transactions:
            for record in each.records:
                if isinstance(record, Ddl):
                    found.apply(record)
    return found
