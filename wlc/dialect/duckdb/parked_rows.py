"""Rows that refer to others are set aside for a moment, so that those can be changed.

DuckDB changes an indexed column, or a list, of a row by removing the row and adding another one. It refuses that while
a row refers to it, and does not remove two rows of which one refers to the other in one transaction, although both
would fit in the end. So all rows that refer to such a row, and all that refer to these, are parked: they go into tables
of dbfarm's own schema, those to which none refers first, in transactions that are committed. The transaction that makes
the change adds them again, or what they become. If that fails, or the process dies, they are brought back as they were.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.farm.model import Layout

_PARKED = "parked"
_LEVEL = quote("level of parked rows")


@dataclass(frozen=True, slots=True)
class ParkedRows:
    """The parked rows of one database.

    Attributes:
        connection: In no transaction where a method says that it commits; nobody else commits meanwhile.
        schema: dbfarm's own, whose table `state`, of keys and values, says which tables have parked rows.
        opening: Lets tables be written to in the transaction.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: str
    schema: str
    opening: Callable[[Collection[Name]], AbstractContextManager[object]] = lambda _: nullcontext()

    def tables(self) -> tuple[Name, ...]:
        """Return the tables that have parked rows."""
        query = f"SELECT value FROM {self._state} WHERE key = {literal(_PARKED)}"
        found = self.connection.execute(query).fetchall()
        return tuple(Name(*each) for (value,) in found for each in json.loads(value))

    def rows(self, place: int) -> str:
        """Return where the parked rows are of one of `tables`, by its place among them."""
        return f"{quote(self.catalog)}.{self.schema}.{quote(f'{_PARKED} {place}')}"

    def park(self, moved: Mapping[ForeignKey, str]) -> tuple[Name, ...]:
        """Park all rows that refer to some, in transactions that are committed.

        Args:
            moved: For foreign keys a query for the values `r0` … to which no row must refer.

        Returns:
            The tables that have parked rows now. Rows of a table whose own column hides DuckDB's `rowid` are not
            parked, nor are those that they refer to.
        """
        keys = duckdb_catalog.references(self.connection, self.catalog)
        layouts = duckdb_catalog.tables(self.connection, self.catalog)
        parked: list[Name] = []
        level = 0
        while True:
            level += 1
            with self._transaction():
                leaves = self._leaves(keys, moved)
                if not leaves or any(_hides_rowid(layouts[name]) for name in leaves):
                    return tuple(parked)
                with self.opening(leaves):
                    for name, rowids in leaves.items():
                        self._move(name, layouts[name], rowids, parked, level)
                self._note(parked)

    def forget(self, parked: Sequence[Name]) -> None:
        """Drop what is parked, in the caller's transaction, which has added what becomes of it."""
        for place in range(len(parked)):
            self.connection.execute(f"DROP TABLE {self.rows(place)}")
        self._note(())

    def bring_back(self) -> tuple[Name, ...]:
        """Bring all rows back as they were, in a transaction that is committed; return the tables that had parked rows.

        Raises:
            duckdb.Error: They do not fit any more: somebody has changed the database with DuckDB alone.
        """
        if not (parked := self.tables()):
            return ()
        with self._transaction():
            with self.opening(parked):
                for place, level in self._levels(len(parked)):
                    columns = self._columns(place)
                    self.connection.execute(
                        f"INSERT INTO {quote(self.catalog)}.{parked[place].sql} ({columns})"
                        f" SELECT {columns} FROM {self.rows(place)} WHERE {_LEVEL} = {level}"
                    )
            self.forget(parked)
        return parked

    def rescue(self, path: str) -> None:
        """Bring rows back that a process had not when it died.

        Raises:
            UnavailableError: They do not fit any more.
        """
        try:
            self.bring_back()
        except duckdb.Error as error:
            tables = ", ".join(f"those of {name} into {self.rows(place)}" for place, name in enumerate(self.tables()))
            raise UnavailableError(
                f"{path}: a process that was killed had moved rows, {tables}, and they cannot go back:"
                f" {str(error).splitlines()[0]}",
                hint="with DuckDB's own shell, undo what was written to the file without dbfarm since, then try again",
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

    # What to park ----------------------------------------------------------------------------------------------------

    def _leaves(self, keys: Sequence[ForeignKey], moved: Mapping[ForeignKey, str]) -> dict[Name, str]:
        """Find the rows to park to which none refers: for each table a temporary table with their row ids `r`."""
        waiting = self._waiting(keys, moved)
        leaves = {}
        for number, (name, rowids) in enumerate(waiting.items()):
            referred = [
                f"SELECT p.rowid {self._referring(key)} WHERE c.rowid IN (FROM {waiting[key.table]})"
                f"{' AND c.rowid <> p.rowid' if key.table == name else ''}"
                for key in keys
                if key.parent == name and key.table in waiting
            ]
            found = f'temp."wlc leaves {number}"'
            if self._make(found, " EXCEPT ".join([f"FROM {rowids}", *referred])):
                leaves[name] = found
        return leaves

    def _waiting(self, keys: Sequence[ForeignKey], moved: Mapping[ForeignKey, str]) -> dict[Name, str]:
        """Find all rows to park, as `_leaves` does."""
        children = sorted({key.table for key in keys})
        waiting: dict[Name, str] = {}
        counts: dict[Name, int] = {}
        before: dict[Name, int] | None = None
        while counts != before:
            before = dict(counts)
            for number, name in enumerate(children):
                found = [self._direct(key, query) for key, query in moved.items() if key.table == name] + [
                    f"SELECT c.rowid AS r {self._referring(key)} WHERE p.rowid IN (FROM {waiting[key.parent]})"
                    for key in keys
                    if key.table == name and key.parent in waiting
                ]
                if found and (count := self._make(made := f'temp."wlc waiting {number}"', " UNION ".join(found))):
                    waiting[name], counts[name] = made, count
        return waiting

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

    # Moving them -----------------------------------------------------------------------------------------------------

    def _move(self, name: Name, layout: Layout, rowids: str, parked: list[Name], level: int) -> None:
        columns = ", ".join(quote(column.name) for column in layout.stored)
        rows = f"FROM {self._sql(name)} WHERE rowid IN (FROM {rowids})"
        query = f"SELECT {level} AS {_LEVEL}, {columns} {rows}"
        if name in parked:
            self.connection.execute(f"INSERT INTO {self.rows(parked.index(name))} {query}")
        else:
            self.connection.execute(f"CREATE TABLE {self.rows(len(parked))} AS {query}")
            parked.append(name)
        self.connection.execute(f"DELETE {rows}")

    def _levels(self, count: int) -> list[tuple[int, int]]:
        """Return places and levels so that rows come back before those that refer to them."""
        each = (f"SELECT {place} AS place, {_LEVEL} AS level FROM {self.rows(place)}" for place in range(count))
        query = f"SELECT DISTINCT place, level FROM ({' UNION ALL '.join(each)}) ORDER BY level DESC, place"
        return self.connection.execute(query).fetchall()

    def _columns(self, place: int) -> str:
        found = self.connection.execute(f"SELECT * EXCLUDE ({_LEVEL}) FROM {self.rows(place)} LIMIT 0").description
        return ", ".join(quote(column[0]) for column in found or ())


def _hides_rowid(layout: Layout) -> bool:
    return any(column.name.lower() == "rowid" for column in layout.columns)
