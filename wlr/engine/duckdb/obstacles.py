"""What in a DuckDB replica itself keeps a sound transaction from being applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.statements import GUARD
from wlc.farm.model import Ddl
from wlr.engine.duckdb.objects import OWNERS
from wlr.plan.failure import Obstacle, in_the_way, lost
from wlr.plan.step import tables_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb

    from wlc.farm.model import Name
    from wlr.engine.duckdb.tables import TargetTables
    from wlr.plan.failure import StepError
    from wlr.plan.step import Step


def find(
    connection: duckdb.DuckDBPyConnection,
    tables: TargetTables,
    replicated: Collection[Name],
    step: Step,
    error: StepError,
) -> Obstacle | None:
    """Find what kept a step from being applied; see `wlr.engine.contract.OpenReplica.obstacle`."""
    if gone := sorted(set(replicated) - set(tables.order)):
        return lost(gone[0])
    held = {name.folded for name in replicated}
    records = step.transactions[0].records
    for record in records:
        if isinstance(record, Ddl) and record.kind.startswith("CREATE ") and error.table == str(record.object):
            is_own = record.object.folded not in held
            has_own = record.object.folded in {name.folded for name in tables.order}
            if is_own and (has_own or "already exists" in error.cause or OWNERS in error.cause):
                return in_the_way(f"{record.kind.removeprefix('CREATE ').lower()} {record.object}")
    changed = tables_of(records)
    if error.is_reference:
        for child, parents in tables.parents.items():
            if child.folded not in held and parents & set(changed):
                text = f"table {child} belongs to the replica's owner, and refers to rows that the transaction removes"
                return Obstacle(text, f"Remove these rows of {child}, or its foreign key, and replicate again.")
    return _trigger(connection, tables.catalog, changed)


def _trigger(connection: duckdb.DuckDBPyConnection, catalog: str, changed: Collection[Name]) -> Obstacle | None:
    """Find a trigger of the owner's: those of the master are never created here."""
    query = (
        "SELECT trigger_name, schema_name, table_name FROM duckdb_triggers() WHERE database_name = ?"
        " AND NOT starts_with(trigger_name, ?)"
    )
    for trigger, *table in connection.execute(query, [catalog, GUARD]).fetchall():
        if any([name.schema, name.name] == table for name in changed):
            text = f"trigger {trigger} on replicated table {'.'.join(table)} belongs to the replica's owner"
            return Obstacle(text, f"Drop trigger {trigger}, and replicate again.")
    return None
