"""Net changes for a replica some of whose rows are parked; see `wlc.dialect.duckdb.parked_rows`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql, store_sql
from wlc.farm.model import WEIGHT, file_column
from wlr.engine.duckdb import guard
from wlr.engine.duckdb import state as states
from wlr.fold import net_changes
from wlr.plan.step import TableChange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import duckdb

    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.farm.model import Name
    from wlr.engine.duckdb.tables import TargetTables
    from wlr.fold.net_changes import NetChange


def parked_rows(connection: duckdb.DuckDBPyConnection, catalog: str) -> ParkedRows:
    """Return the parked rows of a replica, whose guards are off while these are moved."""

    @contextmanager
    def opening(names: Collection[Name]) -> Iterator[None]:
        guarded = states.read_tables(connection, catalog) & set(names)
        guard.take_off(connection, catalog, guarded)
        yield
        guard.put_back(connection, catalog, guarded)

    return ParkedRows(connection, catalog, "wlr", opening)


def referred(connection: duckdb.DuckDBPyConnection, catalog: str, nets: Sequence[NetChange]) -> dict[ForeignKey, str]:
    """Find what net changes remove, or change in columns that DuckDB does not change in place."""
    by_name = {net.change.table: net for net in nets if net.removed or net.stays}
    found = {}
    for key in catalogs.references(connection, catalog):
        if (net := by_name.get(key.parent)) is not None:
            columns = {column.name: column for column in net.table.layout.stored}
            values = ", ".join(
                f"{load_sql(columns[name], f'o.{quote(file_column(name))}')} AS r{place}"
                for place, name in enumerate(key.referred)
            )
            replaced = catalogs.replaced_columns(connection, catalog, net.change.table, net.table.layout)
            found[key] = f"SELECT {values} FROM ({fold.moved_sql(net.table, net.source, replaced)}) AS o"
    return found


def on_parked(
    connection: duckdb.DuckDBPyConnection, tables: TargetTables, parked: Sequence[Name], nets: Sequence[NetChange]
) -> list[NetChange]:
    """Return net changes that also add what is parked: together they lead to the same rows."""
    by_name = {net.change.table: net for net in nets}
    layouts = catalogs.tables(connection, tables.catalog)
    rows = parked_rows(connection, tables.catalog).rows
    for place, name in enumerate(parked):
        net = by_name.get(name)
        table = net.table if net is not None and net.source else tables.describe(name, layouts[name])
        values = ", ".join(
            f"{store_sql(column)} AS {quote(file_column(column.name))}" for column in table.layout.stored
        )
        raw = f"SELECT {values}, 1 AS {WEIGHT} FROM ({rows(place, layouts[name])})"
        if net is not None and net.source:
            raw += f" UNION ALL SELECT {', '.join(fold.stored_columns(table.layout))}, {WEIGHT} FROM {net.source} AS n"
        change = net.change if net is not None else TableChange(name, (), 0, 0)
        by_name[name] = net_changes.folded(connection, table, change, raw, f'temp."net on parked {place}"')
    return list(by_name.values())
