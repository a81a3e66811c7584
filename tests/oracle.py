"""The simplest model of a replica: every transaction by itself, every row by itself, in order.

It shares the format with the product and nothing else: no plan, no folding, no engine.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb

from tests.scratch import attached
from wlc.dialect import types
from wlc.dialect.duckdb.catalog import tables
from wlc.dialect.sql import literal, quote
from wlc.farm.database import open_database
from wlc.farm.model import Change, Clear, Ddl, SequencePosition, file_column

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Layout, Name

Contents = dict[str, Counter[tuple[str | None, ...]]]


def contents(connection: Any, catalog: str) -> Contents:
    """Every row of every user table as text, with its multiplicity."""
    found: Contents = {}
    for name, layout in tables(connection, catalog).items():
        columns = ", ".join(f"CAST({quote(column.name)} AS VARCHAR)" for column in layout.columns)
        rows = connection.execute(f"SELECT {columns} FROM {quote(catalog)}.{name.sql}").fetchall()
        found[str(name)] = Counter(rows)
    return found


def file_contents(path: Path) -> Contents:
    """The contents of a database file that nobody has open."""
    with attached(path) as connection:
        return contents(connection, connection.execute("SELECT current_database()").fetchall()[0][0])


def published(url: str, tick: int | None = None) -> Contents:
    """What the farm says the database contained at a tick: the first snapshot and everything after it."""
    with replayed(url, tick) as (connection, catalog):
        return contents(connection, catalog)


class replayed:  # noqa: N801 -- reads as a function in a with statement
    """A scratch database in memory, rolled forward one row at a time."""

    def __init__(self, url: str, tick: int | None = None) -> None:
        self.db: FarmDatabase = open_database(url)
        self.tick = tick
        self.connection = duckdb.connect()

    def __enter__(self) -> tuple[duckdb.DuckDBPyConnection, str]:
        catalog = self._load()
        self._roll_forward()
        return self.connection, catalog

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def _load(self) -> str:
        ticks = self.db.snapshot_ticks()
        self.after = 0
        if not ticks:
            batch, _ = self.db.read_batch(1)
            self._attach(batch.catalog)
            return batch.catalog
        # A prune that died may have left a snapshot whose log is gone already.
        manifests, numbers = map(self.db.read_manifest, ticks), self.db.batch_numbers()
        joined = (found for found in manifests if numbers and found.position.batch + 1 >= numbers[0])
        manifest = next(joined, None) or self.db.read_manifest(ticks[-1])
        self.after = manifest.position.tick
        self._attach(manifest.catalog)
        for ddl in manifest.schema:
            self._run(ddl)
        for table in manifest.tables:
            for file in table.files:
                path = self.db.fetch_snapshot(manifest, file)
                self._insert(table.table, table.layout, f"read_parquet({literal(str(path))})")
        for ddl in manifest.schema_after:
            self._run(ddl)
        return manifest.catalog

    def _attach(self, catalog: str) -> None:
        self.connection.execute(f"ATTACH ':memory:' AS {quote(catalog)}; USE {quote(catalog)}")

    def _run(self, ddl: Ddl) -> None:
        paths = ",".join(f"{quote(self._catalog())}.{quote(schema)}" for schema in ddl.search_path)
        self.connection.execute(f"SET search_path = {literal(paths)}")
        for name, value in ddl.settings:
            self.connection.execute(f"SET {name} = {literal(value)}")
        self.connection.execute(ddl.statement)
        for name, _ in ddl.settings:
            self.connection.execute(f"RESET {name}")
        self.connection.execute(f"USE {quote(self._catalog())}.main")

    def _catalog(self) -> str:
        return self.connection.execute("SELECT current_database()").fetchall()[0][0]

    def _insert(self, name: Name, layout: Layout, source: str) -> None:
        names = ", ".join(quote(column.name) for column in layout.stored)
        values = ", ".join(types.load_sql(column, quote(file_column(column.name))) for column in layout.stored)
        self.connection.execute(f"INSERT INTO {name.sql} ({names}) SELECT {values} FROM {source}")

    def _roll_forward(self) -> None:
        previous = None
        for number in self.db.batch_numbers():
            batch, previous = self.db.read_batch(number, previous)
            files = {file.file.path: file for file in batch.files}
            for transaction in batch.transactions:
                if transaction.tick <= self.after or (self.tick is not None and transaction.tick > self.tick):
                    continue
                for record in transaction.records:
                    match record:
                        case Ddl():
                            self._run(record)
                        case Clear():
                            self.connection.execute(f"DELETE FROM {record.table.sql}")
                        case Change():
                            self._change(record, transaction.tick, files[record.path])
                        case SequencePosition():
                            name = literal(f"{quote(record.sequence.schema)}.{quote(record.sequence.name)}")
                            self.connection.execute(f"SELECT setval({name}, {record.value})")

    def _change(self, record: Change, tick: int, file: Any) -> None:
        layout = file.layout
        path = literal(str(self.db.fetch(file)))
        rows = f"(SELECT * FROM read_parquet({path}) WHERE _tick = {tick} AND _weight = %d)"
        weights = self.connection.execute(
            f"SELECT count(*) FILTER (_weight > 0), count(*) FILTER (_weight < 0) FROM read_parquet({path})"
            f" WHERE _tick = {tick}"
        ).fetchall()[0]
        assert weights == (record.added, record.removed), (record, weights)
        stored = [column for column in layout.stored]
        same = " AND ".join(
            f"CAST(t.{quote(c.name)} AS VARCHAR) IS NOT DISTINCT FROM"
            f" CAST({types.load_sql(c, 'n.' + quote(file_column(c.name)))} AS VARCHAR)"
            for c in stored
        )
        count = record.removed
        # A fresh number for every row on both sides pairs equal rows one to one.
        text_t = ", ".join(f"CAST({quote(c.name)} AS VARCHAR)" for c in stored)
        text_n = ", ".join(f"CAST({types.load_sql(c, quote(file_column(c.name)))} AS VARCHAR)" for c in stored)
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE gone AS SELECT t.rowid AS r FROM"
            f" (SELECT *, rowid, row_number() OVER (PARTITION BY {text_t}) AS twin FROM {record.table.sql}) t,"
            f" (SELECT *, row_number() OVER (PARTITION BY {text_n}) AS twin FROM {rows % -1}) n"
            f" WHERE t.twin = n.twin AND {same}"
        )
        found = self.connection.execute("SELECT count(*) FROM gone").fetchall()[0][0]
        assert found == count, f"tick {tick} removes {count} rows of {record.table}, {found} are there"
        if count:
            self.connection.execute(f"DELETE FROM {record.table.sql} WHERE rowid IN (SELECT r FROM gone)")
        self._insert(record.table, layout, rows % 1)
