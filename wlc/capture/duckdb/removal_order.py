"""Which rows must be removed by a later transaction than those that refer to them.

DuckDB asks an index of the referring rows whether a row may be removed. A row leaves that index when the transaction
that removes or changes it is committed, and not before. So a row and those that refer to it cannot go in one
transaction: those that refer to others go first.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import fold
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql
from wlc.farm.errors import InvalidError
from wlc.farm.model import WEIGHT, file_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import Name


@dataclass(frozen=True, slots=True)
class Removal:
    """Images of a table whose rows go: those of `source`, a temporary table, that have a negative weight."""

    table: TargetTable
    source: str


@dataclass(frozen=True, slots=True)
class RemovalOrder:
    """Removals of transactions to come, in their order, given the foreign keys between the tables of a database.

    Attributes:
        later: For each of these transactions what it removes; empty if all rows can go at once.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: str
    keys: Sequence[ForeignKey]
    later: list[list[Removal]]

    def refuse_references(self, source: str) -> None:
        """Refuse to remove rows that rows will refer to which stay, once all else of the change has been written.

        Args:
            source: What the master is called in commands.

        Raises:
            InvalidError: There are such rows.
        """
        parts: dict[Name, list[Removal]] = {}
        for removals in self.later:
            for each in removals:
                parts.setdefault(each.table.name, []).append(each)
        for key in self.keys:
            if key.parent not in parts:
                continue
            parent, child = parts[key.parent], parts.get(key.table)
            rows = f"{quote(self.catalog)}.{key.table.sql}"
            there = f"(SELECT count(*) FROM {rows} AS c WHERE {_refers(key, parent[0].table)})"
            going = "0"
            if child:
                refers = _refers(key, parent[0].table, child[0].table)
                going = f"(SELECT coalesce(-sum(c.{WEIGHT}), 0) FROM {_union(child)} AS c WHERE {refers})"
            query = f"SELECT 1 FROM {_union(parent)} AS p WHERE {there} > {going} LIMIT 1"
            if self.connection.execute(query).fetchall():
                listing = f"wlc log {shlex.quote(source)} --table {shlex.quote(str(key.table))}"
                raise InvalidError(
                    f"the rows of {key.parent} cannot be written: rows of {key.table} refer to them by a foreign key",
                    hint=f"{listing} lists the transactions that made these rows: undo them first, or change the rows",
                )


def order(connection: duckdb.DuckDBPyConnection, catalog: str, removals: Sequence[Removal]) -> RemovalOrder:
    """Move what must go later from the sources of removals to tables of its own.

    Args:
        connection: In a transaction that has written nothing yet.
        catalog: The database.
        removals: Of one table each; their sources may hold other images, too, and are made anew.
    """
    keys = duckdb_catalog.references(connection, catalog)
    waiting: dict[Name, Removal] = {}
    for place, each in enumerate(removals):
        referred = " OR ".join(
            f"EXISTS (SELECT 1 FROM {quote(catalog)}.{key.table.sql} AS c WHERE {_refers(key, each.table)})"
            for key in keys
            if key.parent == each.table.name
        )
        if not referred:
            continue
        goes = f"p.{WEIGHT} < 0" + (f" AND NOT p.{fold.STAYS}" if each.table.keeps_rows else "")
        found = f'temp."wlc waiting 0 {place}"'
        if _make(connection, found, f"SELECT p.* FROM {each.source} AS p WHERE {goes} AND ({referred})"):
            waiting[each.table.name] = Removal(each.table, found)
            _make(connection, each.source, f"SELECT p.* FROM {each.source} AS p WHERE NOT ({goes} AND ({referred}))")
    later: list[list[Removal]] = []
    while waiting:
        ready, waiting = _next(connection, keys, waiting, len(later) + 1)
        assert ready, "DuckDB lets no rows refer to each other in a circle"
        later.append(ready)
    return RemovalOrder(connection, catalog, keys, later)


def _next(
    connection: duckdb.DuckDBPyConnection, keys: Sequence[ForeignKey], waiting: Mapping[Name, Removal], number: int
) -> tuple[list[Removal], dict[Name, Removal]]:
    """Divide rows that wait into those that none of them refers to, and the others."""
    ready, left = [], {}
    for place, (name, each) in enumerate(waiting.items()):
        referred = " OR ".join(
            f"EXISTS (SELECT 1 FROM {waiting[key.table].source} AS c"
            f" WHERE {_refers(key, each.table, waiting[key.table].table)})"
            for key in keys
            if key.parent == name and key.table in waiting
        )
        first, rest = f'temp."wlc later {number} {place}"', f'temp."wlc waiting {number} {place}"'
        if _make(connection, first, f"SELECT p.* FROM {each.source} AS p WHERE NOT ({referred or 'false'})"):
            ready.append(Removal(each.table, first))
        if _make(connection, rest, f"SELECT p.* FROM {each.source} AS p WHERE {referred or 'false'}"):
            left[name] = Removal(each.table, rest)
    return ready, left


def _refers(key: ForeignKey, parent: TargetTable, child: TargetTable | None = None) -> str:
    """Say of `c`, an image of the child or else a row of it, that it refers to the image `p` of the parent."""
    pairs = zip(key.columns, key.referred, strict=True)
    return " AND ".join(
        f"{_loaded(child, column, 'c') if child else f'c.{quote(column)}'} = {_loaded(parent, referred, 'p')}"
        for column, referred in pairs
    )


def _loaded(table: TargetTable, name: str, alias: str) -> str:
    column = next(column for column in table.layout.stored if column.name == name)
    return load_sql(column, f"{alias}.{quote(file_column(name))}")


def _union(removals: Sequence[Removal]) -> str:
    return f"({' UNION ALL '.join(f'SELECT * FROM {each.source}' for each in removals)})"


def _make(connection: duckdb.DuckDBPyConnection, name: str, query: str) -> bool:
    """Make a temporary table, and say whether it has rows."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS {query}")
    return bool(connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall())
