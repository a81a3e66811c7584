"""Writing lines with parked rows: if DuckDB refuses a valid change, the referring rows are parked meanwhile.

See `wlc.dialect.duckdb.parked_rows`. The writer of lines reads its tables as if no rows were parked; parked rows return
as a line before all others, so that each row gets the result of the lines, or stays unchanged.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import duckdb

from wlc.capture.duckdb import taken_tables
from wlc.capture.duckdb.images import exact_sql
from wlc.capture.duckdb.taken_tables import SeenTable
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql, store_sql
from wlc.multi_master.duckdb import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.farm.model import Name
    from wlc.multi_master.duckdb.lines import LinesTable


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Referred:
    """Referenced values of rows that must not be referenced while lines are written.

    Attributes:
        values: Values of columns `r0` … in the types of the key's table.
        rows: The rows in storage types.
    """

    key: ForeignKey
    values: str
    rows: pa.Table


class _Looked(Exception):  # noqa: N818
    """Ends an attempt that only collects the referenced values."""

    def __init__(self, referred: Sequence[_Referred]) -> None:
        self.referred = referred


def with_parked(shared: Shared, attempt: Callable[[], Result]) -> Result:
    """Run an attempt to write lines; if DuckDB refuses because of references, park the referring rows and repeat.

    Args:
        shared: The database; no process publishes meanwhile.
        attempt: Writes lines by `write` in a transaction, commits it or raises an error, and can be repeated.

    Raises:
        duckdb.ConstraintException: It violates a constraint. UnavailableError: It failed, and so did restoring the
        parked rows: the database cannot be used before that.
    """
    try:
        return attempt()
    except duckdb.ConstraintException as error:
        if "still referenced" not in str(error):
            raise
        with shared.commit_lock, shared.root.cursor() as connection:
            try:
                shared.parked = None
                try:
                    return attempt()
                except _Looked as looked:
                    found = looked.referred
                parked = shared.parked_rows(connection)
                shared.is_stranded = True
                shared.parked = parked.park(_registered(connection, found))
                if not shared.parked:
                    raise
                shared.committed(shared.last_tick, shared.commit_time(), shared.parked, shared.parked)
                with suppress(duckdb.ConstraintException):
                    result = attempt()
                    shared.committed(shared.last_tick, shared.commit_time(), shared.parked, shared.parked)
                    return result
                # The first error names the conflict.
                raise
            finally:
                shared.parked = ()
                shared.rescue()


def _registered(connection: duckdb.DuckDBPyConnection, referred: Sequence[_Referred]) -> dict[ForeignKey, str]:
    found = {}
    for number, each in enumerate(referred):
        connection.register(f"wlc referred {number}", each.rows)
        found[each.key] = f"SELECT {each.values} FROM {quote(f'wlc referred {number}')}"
    return found


def present(
    connection: duckdb.DuckDBPyConnection, shared: Shared
) -> tuple[Mapping[Name, TakenTable], Mapping[Name, int]]:
    """Return the tables as `taken_tables.tables` does, including their parked rows."""
    found, order = taken_tables.tables(connection, shared.catalog)
    parked = shared.parked_rows(connection)
    for place, name in enumerate(shared.parked or ()):
        table = found[name].table
        columns = ", ".join(quote(column.name) for column in table.layout.stored)
        both = f"(SELECT {columns} FROM {table.sql} UNION ALL {parked.rows(place, table.layout)})"
        found[name] = replace(found[name], table=SeenTable.of(table, both))
    return found, order


def write(
    connection: duckdb.DuckDBPyConnection, shared: Shared, tables: Sequence[LinesTable], order: Mapping[Name, int]
) -> None:
    """Write lines: first remove rows, children before parents, then add rows, parents before children.

    Args:
        connection: In a transaction.
        shared: The database.
        tables: The lines.
        order: Order of tables, each after those it refers to.

    Raises:
        duckdb.ConstraintException: They violate a constraint.
    """
    if shared.parked is None:
        raise _Looked(_referred(connection, shared.catalog, tables))
    written, made = _on_parked(connection, shared, tables) if shared.parked else (tables, ())
    ranked = sorted(written, key=lambda table: order[table.table.name])
    for table in reversed(ranked):
        lines.remove(connection, table)
    for table in ranked:
        lines.add(connection, table)
    if shared.parked:
        lines.drop(connection, made)
        shared.parked_rows(connection).forget(shared.parked)


def _on_parked(
    connection: duckdb.DuckDBPyConnection, shared: Shared, tables: Sequence[LinesTable]
) -> tuple[list[LinesTable], list[LinesTable]]:
    """Return lines for tables without their parked rows, which line -1 adds, and the temporary tables made for that."""
    assert shared.parked
    bare, _ = taken_tables.tables(connection, shared.catalog)
    found = {table.table.name: replace(table, place=bare[table.table.name]) for table in tables}
    parked, made = shared.parked_rows(connection), []
    for place, name in enumerate(shared.parked):
        if name not in found:
            found[name] = lines.created(connection, bare[name], f"of parked rows {place}")
            made.append(found[name])
        table = found[name].table
        connection.execute(
            f"INSERT INTO {found[name].lines} (_line, _weight, {', '.join(table.columns)})"
            f" SELECT -1, 1, {', '.join(table.values)} FROM ({parked.rows(place, table.layout)})"
        )
    return list(found.values()), made


def _referred(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Sequence[LinesTable]) -> list[_Referred]:
    """Find rows that lines remove, or change in columns that DuckDB replaces; none if parking is futile."""
    found, by_name = [], {table.table.name: table for table in tables}
    for key in duckdb_catalog.references(connection, catalog):
        if (table := by_name.get(key.parent)) is None:
            continue
        columns = {column.name: (place, column) for place, column in enumerate(table.table.layout.stored)}
        referred = [columns[name] for name in key.referred]
        stored = ", ".join(f"{store_sql(c, f't.{quote(c.name)}')} AS r{n}" for n, (_, c) in enumerate(referred))
        query = f"SELECT DISTINCT {stored} FROM {table.table.sql} AS t WHERE {_is_moved(connection, table)}"
        values = ", ".join(f"{load_sql(column, f'r{n}')} AS r{n}" for n, (_, column) in enumerate(referred))
        if table.key:
            left = ", ".join(table.value(place, "n") for place, _ in referred)
            gone = f"SELECT {values} FROM ({query}) EXCEPT SELECT {left} FROM ({lines.last_sql(table)}) AS n"
            if _is_kept(connection, key, catalog, by_name.get(key.table), gone):
                return []
        found.append(_Referred(key, values, connection.sql(query).to_arrow_table()))
    return found


def _is_kept(
    connection: duckdb.DuckDBPyConnection, key: ForeignKey, catalog: str, child: LinesTable | None, gone: str
) -> bool:
    """Say whether rows unchanged by the lines refer to values that the lines remove."""
    if child is not None and not child.key:
        return False
    same = " AND ".join(f"t.{quote(column)} = g.r{n}" for n, column in enumerate(key.columns))
    stays = f" WHERE NOT EXISTS (FROM {child.lines} AS l WHERE {child.same_key('l')})" if child is not None else ""
    query = f"SELECT 1 FROM {quote(catalog)}.{key.table.sql} AS t SEMI JOIN ({gone}) AS g ON {same}{stays} LIMIT 1"
    return bool(connection.execute(query).fetchall())


def _is_moved(connection: duckdb.DuckDBPyConnection, found: LinesTable) -> str:
    table = found.table
    if not found.key:
        return f"EXISTS (FROM ({lines.net_of_bag(found)}) AS n WHERE n.w < 0 AND {found.same_image('n')})"
    replaced = duckdb_catalog.replaced_columns(connection, table.catalog, table.name, table.layout)
    stays = [found.same_key("n")]
    for place, column in enumerate(table.layout.stored):
        if column.name in replaced:
            here, there = store_sql(column, f"t.{quote(column.name)}"), f"n.c{place}"
            stays.append(f"{exact_sql(column.type, here)} IS NOT DISTINCT FROM {exact_sql(column.type, there)}")
    return (
        f"EXISTS (FROM {found.lines} AS l WHERE {found.same_key('l')})"
        f" AND NOT EXISTS (FROM ({lines.last_sql(found)}) AS n WHERE {' AND '.join(stays)})"
    )
