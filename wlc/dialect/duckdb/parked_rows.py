"""Rows with foreign keys are parked temporarily, so that the rows they refer to can be changed.

DuckDB updates an indexed column or a list by removing the row and adding another one. It refuses that while another row
refers to the row. Nor does it remove a row and a row that refers to it in one transaction, although the result would be
consistent. So all rows that refer to such a row, directly or indirectly, are parked: committed transactions move them
into tables of dbfarm's own schema, unreferenced rows first. The transaction that makes the change adds them again,
unchanged or with new values. If it fails, or the process dies, they are restored unchanged.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb.permitted_ddl import GUARD
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.farm.model import Layout

_PARKED = "parked"
# A chain of rows that refer to each other is parked row by row, one transaction per row.
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class ParkedRows:
    """The parked rows of one database.

    Attributes:
        connection: Outside a transaction when a committing method is called; no other connection commits meanwhile.
        schema: dbfarm's own schema; its key-value table `state` lists the tables with parked rows.
        opening: Makes tables writable in the transaction.
        is_known: Says whether a table's rows may be parked.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: str
    schema: str
    opening: Callable[[Collection[Name]], AbstractContextManager[object]] = lambda _: nullcontext()
    is_known: Callable[[Name], bool] = lambda _: True

    def tables(self) -> tuple[Name, ...]:
        """Return the tables that have parked rows."""
        query = f"SELECT value FROM {self._state} WHERE key = {literal(_PARKED)}"
        found = self.connection.execute(query).fetchall()
        return tuple(Name(*each) for (value,) in found for each in json.loads(value))

    def relation(self, place: int) -> str:
        """Return the table with the parked rows of one of `tables`, given its index."""
        return f"{quote(self.catalog)}.{self.schema}.{quote(f'{_PARKED} {place}')}"

    def rows(self, place: int, layout: Layout) -> str:
        """Select the parked rows of one of `tables`, given its index, with the columns of its layout."""
        columns = ", ".join(f"c{n} AS {quote(column.name)}" for n, column in enumerate(layout.stored))
        return f"SELECT {columns} FROM {self.relation(place)}"

    def park(self, referred: Mapping[ForeignKey, str]) -> tuple[Name, ...]:
        """Park all rows that refer to given rows; commits transactions.

        Args:
            referred: By foreign key, a query for the values `r0` … to which no row may refer.

        Returns:
            The tables that have parked rows now. No rows are parked if that would run triggers or might fail: an
            unknown table, a column that hides DuckDB's `rowid`, or a chain that is too long.
        """
        keys = duckdb_catalog.references(self.connection, self.catalog)
        layouts = duckdb_catalog.tables(self.connection, self.catalog)
        with self._transaction():
            waiting = self._waiting(keys, referred)
            if waiting is None or not all(self._can_park(name, layouts[name]) for name in waiting):
                return ()
        parked: list[Name] = []
        for level in range(_DEEPEST):
            with self._transaction():
                leaves = self._leaves(keys, referred)
                if not leaves:
                    break
                with self.opening(leaves):
                    for name, rowids in leaves.items():
                        self._park(name, layouts[name], rowids, parked, level)
                self._note(parked)
        return tuple(parked)

    def forget(self, parked: Sequence[Name]) -> None:
        """Drop the parked rows in the caller's transaction, which has added them again."""
        for place in range(len(parked)):
            self.connection.execute(f"DROP TABLE {self.relation(place)}")
        self._note(())

    def bring_back(self) -> tuple[Name, ...]:
        """Restore all rows unchanged and commit; return the tables that had parked rows.

        Raises:
            duckdb.Error: The rows no longer fit: another program has changed the database with DuckDB alone.
        """
        if not (parked := self.tables()):
            return ()
        with self._transaction():
            layouts = duckdb_catalog.tables(self.connection, self.catalog)
            with self.opening(parked):
                for place, level in self._levels(len(parked)):
                    name = parked[place]
                    columns = ", ".join(quote(column.name) for column in layouts[name].stored)
                    rows = f"{self.rows(place, layouts[name])} WHERE level = {level}"
                    self.connection.execute(f"INSERT INTO {self._sql(name)} ({columns}) {rows}")
            self.forget(parked)
        return parked

    def refuse(self, path: str, hint: str) -> None:
        """Refuse to read a database with parked rows.

        Raises:
            UnavailableError: Some rows are parked.
        """
        if parked := self.tables():
            raise UnavailableError(
                f"{path}: rows of {', '.join(map(str, parked))} were moved aside by a process that was killed",
                hint=f"they go back when the file is opened for writing: {hint}",
                path=path,
            )

    def rescue(self, path: str) -> tuple[Name, ...]:
        """Restore rows that a killed process has left parked.

        Raises:
            UnavailableError: The rows no longer fit.
        """
        try:
            return self.bring_back()
        except duckdb.Error as error:
            tables = ", ".join(
                f"those of {name} into {self.relation(place)}" for place, name in enumerate(self.tables())
            )
            raise UnavailableError(
                f"{path}: rows were moved aside, {tables}, and cannot go back: {str(error).splitlines()[0]}",
                hint="free disk space if there is none left; with DuckDB's own shell, undo later changes to the file "
                "that were made without dbfarm; then try again",
                path=path,
            ) from error

    @property
    def _state(self) -> str:
        return f"{quote(self.catalog)}.{self.schema}.state"

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.Error):
                self.connection.execute("ROLLBACK")
            raise

    def _note(self, parked: Sequence[Name]) -> None:
        self.connection.execute(f"DELETE FROM {self._state} WHERE key = {literal(_PARKED)}")
        if parked:
            value = json.dumps([[name.schema, name.name] for name in parked])
            self.connection.execute(f"INSERT INTO {self._state} VALUES ({literal(_PARKED)}, {literal(value)})")

    # Rows to park ----------------------------------------------------------------------------------------------------

    def _can_park(self, name: Name, layout: Layout) -> bool:
        query = (
            "SELECT 1 FROM duckdb_triggers() WHERE database_name = ? AND schema_name = ? AND table_name = ?"
            f" AND NOT starts_with(trigger_name, {literal(GUARD)})"
        )
        if any(column.name.lower() == "rowid" for column in layout.columns) or not self.is_known(name):
            return False
        return not self.connection.execute(query, [self.catalog, name.schema, name.name]).fetchall()

    def _leaves(self, keys: Sequence[ForeignKey], referred: Mapping[ForeignKey, str]) -> dict[Name, str]:
        """Find the unreferenced rows to park: for each table a temporary table with their row ids `r`."""
        waiting = self._waiting(keys, referred) or {}
        leaves = {}
        for number, (name, rowids) in enumerate(waiting.items()):
            others = [
                f"SELECT p.rowid {self._referring(key)} WHERE c.rowid IN (FROM {waiting[key.table]})"
                for key in keys
                if key.parent == name and key.table in waiting
            ]
            found = f'temp."wlc leaves {number}"'
            if self._make(found, " EXCEPT ".join([f"FROM {rowids}", *others])):
                leaves[name] = found
        return leaves

    def _waiting(self, keys: Sequence[ForeignKey], referred: Mapping[ForeignKey, str]) -> dict[Name, str] | None:
        """Find all rows to park, as `_leaves` does; None if a chain of references is too long."""
        children = sorted({key.table for key in keys})
        waiting: dict[Name, str] = {}
        fresh: dict[Name, str] = {}
        for depth in range(_DEEPEST):
            grown = {}
            for number, name in enumerate(children):
                found = [self._direct(key, query) for key, query in referred.items() if key.table == name and not depth]
                found += [
                    f"SELECT c.rowid AS r {self._referring(key)} WHERE p.rowid IN (FROM {fresh[key.parent]})"
                    for key in keys
                    if key.table == name and key.parent in fresh
                ]
                known = f" EXCEPT FROM {waiting[name]}" if name in waiting else ""
                made = f'temp."wlc fresh {depth % 2} {number}"'
                if found and self._make(made, f"({' UNION '.join(found)}){known}"):
                    grown[name] = made
            if not grown:
                return waiting
            for name, made in grown.items():
                if name in waiting:
                    self.connection.execute(f"INSERT INTO {waiting[name]} FROM {made}")
                else:
                    waiting[name] = f'temp."wlc to park {len(waiting)}"'
                    self._make(waiting[name], f"FROM {made}")
            fresh = grown
        return None

    def _direct(self, key: ForeignKey, query: str) -> str:
        same = " AND ".join(f"c.{quote(column)} = m.r{place}" for place, column in enumerate(key.columns))
        return f"SELECT c.rowid AS r FROM {self._sql(key.table)} AS c SEMI JOIN ({query}) AS m ON {same}"

    def _referring(self, key: ForeignKey) -> str:
        pairs = zip(key.columns, key.referred, strict=True)
        same = " AND ".join(f"c.{quote(column)} = p.{quote(referred)}" for column, referred in pairs)
        return f"FROM {self._sql(key.table)} AS c JOIN {self._sql(key.parent)} AS p ON {same}"

    def _make(self, table: str, query: str) -> int:
        bare = table.removeprefix("temp.")
        return int(self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {bare} AS {query}").fetchall()[0][0])

    def _sql(self, name: Name) -> str:
        return f"{quote(self.catalog)}.{name.sql}"

    # Parking them ----------------------------------------------------------------------------------------------------

    def _park(self, name: Name, layout: Layout, rowids: str, parked: list[Name], level: int) -> None:
        columns = "".join(f", {quote(column.name)} AS c{n}" for n, column in enumerate(layout.stored))
        rows = f"FROM {self._sql(name)} WHERE rowid IN (FROM {rowids})"
        query = f"SELECT {level} AS level{columns} {rows}"
        if name in parked:
            self.connection.execute(f"INSERT INTO {self.relation(parked.index(name))} {query}")
        else:
            self.connection.execute(f"CREATE TABLE {self.relation(len(parked))} AS {query}")
            parked.append(name)
        self.connection.execute(f"DELETE {rows}")

    def _levels(self, count: int) -> list[tuple[int, int]]:
        """Return indexes of tables with levels, so that rows are restored before the rows that refer to them."""
        each = (f"SELECT {place} AS place, level FROM {self.relation(place)}" for place in range(count))
        query = f"SELECT DISTINCT place, level FROM ({' UNION ALL '.join(each)}) ORDER BY level DESC, place"
        return self.connection.execute(query).fetchall()
