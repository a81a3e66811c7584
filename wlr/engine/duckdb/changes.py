"""Writes net changes to a DuckDB target: removed rows of all tables first, then the added ones.

Net changes for a replica with parked rows; see `wlc.dialect.duckdb.parked_rows`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql, store_sql
from wlc.farm.errors import CorruptError
from wlc.farm.model import WEIGHT, file_column
from wlr.engine.calculator import applying
from wlr.engine.duckdb import guard
from wlr.replay.fold import net_changes, unfit_changes
from wlr.replay.plan.failure import StepError, naming
from wlr.replay.plan.step import TableChange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    import duckdb

    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.farm.model import Name
    from wlr.engine.duckdb.objects import TargetTables
    from wlr.replay.fold.net_changes import NetChange


def write(connection: duckdb.DuckDBPyConnection, tables: TargetTables, nets: list[NetChange], path: Path) -> None:
    """Apply net changes in the caller's transaction: deletes child before parent, the rest parent before child.

    Raises:
        StepError: A row to remove is missing, or a constraint does not hold.
    """
    order = {name: number for number, name in enumerate(tables.order)}
    ranked = sorted(nets, key=lambda net: order.get(net.change.table, len(order)))
    for net in ranked:
        if net.change.table not in order:
            raise unfit_changes.absent(net.change.table)
    for net in reversed(ranked):
        with _naming(net, path):
            _remove(connection, net)
    for net in ranked:
        with _naming(net, path):
            _add(connection, tables.catalog, net)


@contextmanager
def _naming(net: NetChange, path: Path) -> Iterator[None]:
    """Add the table to errors of statements about it."""
    with naming(net.change.table), applying(path):
        yield


def _remove(connection: duckdb.DuckDBPyConnection, net: NetChange) -> None:
    table, name = net.table, str(net.change.table)
    if net.change.cleared is not None:
        found = _run(connection, f"DELETE FROM {table.sql}")
        unfit_changes.refuse_other_count(net.change, found)
        if net.removed:
            raise StepError(f"{net.removed} rows were removed that were not there", table=name)
        return
    if not net.removed:
        return
    if table.key:
        found = _run(connection, fold.delete_keyed_sql(table, net.source))
    elif table.has_rowid:
        found = _run(connection, fold.delete_bag_sql(table, net.source))
    else:
        found = _remove_without_rowid(connection, net)
    if found != net.removed:
        raise unfit_changes.missing(net.change.table, net.removed - found, net.removed)


def _remove_without_rowid(connection: duckdb.DuckDBPyConnection, net: NetChange) -> int:
    left = 'temp."copies left"'
    query = fold.copies_left_sql(net.table, net.source)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {left.removeprefix('temp.')} AS {query}")
    missing = connection.execute(f"SELECT coalesce(sum(greatest(-{WEIGHT}, 0)), 0) FROM {left}").fetchall()[0][0]
    connection.execute(fold.delete_equal_sql(net.table, net.source))
    connection.execute(fold.insert_sql(net.table, left, copies=True))
    connection.execute(f"DROP TABLE {left}")
    return net.removed - int(missing)


def _add(connection: duckdb.DuckDBPyConnection, catalog: str, net: NetChange) -> None:
    if net.stays:
        with guard.off_for_update(connection, catalog, net.change.table):
            _update(connection, catalog, net)
    if net.added and (found := add(connection, net)) != net.added:
        raise CorruptError(
            f"table {net.change.table}: data files hold {found} rows to add, the log file says {net.added}"
        )


def add(connection: duckdb.DuckDBPyConnection, net: NetChange) -> int:
    """Insert the added rows of a net change, and return their number."""
    if net.table.references_itself:
        return _insert_in_generations(connection, net)
    if net.is_temporary or net.is_presumed:
        return _run(connection, fold.insert_new_sql(net.table, net.source))
    return _run(connection, fold.insert_sql(net.table, net.source))


def _update(connection: duckdb.DuckDBPyConnection, catalog: str, net: NetChange) -> None:
    found = sum(_run(connection, update) for update in fold.updates(connection, catalog, net.table, net.source))
    if found != net.stays:
        message = f"{net.stays - found} of {net.stays} rows to change are not in the replica as they were in the master"
        raise StepError(message, table=str(net.change.table))


def _insert_in_generations(connection: duckdb.DuckDBPyConnection, net: NetChange) -> int:
    """Insert rows of a table that refers to itself, first those whose referred row exists before the statement."""
    waiting = 'temp."waiting"'
    query = f"SELECT * FROM {net.source} WHERE {WEIGHT} > 0"
    if net.is_temporary and net.table.keeps_rows:
        query += f" AND NOT {fold.STAYS}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {waiting.removeprefix('temp.')} AS {query}")
    # Without `stays`: the remaining rows have none.
    table = replace(net.table, is_referenced=False)
    total = 0
    condition = fold.ready_condition(table)
    ready = f"CREATE OR REPLACE TEMP TABLE ready AS SELECT n.rowid AS r FROM {waiting} AS n WHERE {condition}"
    while _run(connection, ready):
        chosen = f"(SELECT * FROM {waiting} WHERE rowid IN (SELECT r FROM temp.ready))"
        total += _run(connection, fold.insert_sql(table, chosen, copies=not table.key))
        _run(connection, f"DELETE FROM {waiting} WHERE rowid IN (SELECT r FROM temp.ready)")
    # The remaining rows refer to missing rows; inserting them reports which.
    total += _run(connection, fold.insert_sql(table, waiting, copies=not table.key))
    connection.execute(f"DROP TABLE {waiting}; DROP TABLE temp.ready")
    return total


def _run(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    """Run a statement that answers with a number of rows."""
    return int(connection.execute(statement).fetchall()[0][0])


def parked_rows(connection: duckdb.DuckDBPyConnection, catalog: str) -> ParkedRows:
    """Return the parked rows of a replica, whose guards are off while the rows are moved."""

    @contextmanager
    def opening(names: Collection[Name]) -> Iterator[None]:
        guarded = guard.guarded(connection, catalog) & set(names)
        guard.take_off(connection, catalog, guarded)
        yield
        guard.put_back(connection, catalog, guarded)

    return ParkedRows(connection, catalog, "wlr", opening)


def referred(connection: duckdb.DuckDBPyConnection, catalog: str, nets: Sequence[NetChange]) -> dict[ForeignKey, str]:
    """Find the rows that net changes remove, or change in columns that DuckDB does not update in place."""
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
    """Return net changes that also add the parked rows: the result is the same."""
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
