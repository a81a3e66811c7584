"""A farm written by hand: batches of transactions whose records a test spells out, without a master."""

from __future__ import annotations

import tempfile
import weakref
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tests.schema_changes import TableChanges
from tests.scratch import attached, empty_database, give_back, scratch
from wlc.dialect.sql import quote
from wlc.dialect.types import store_sql
from wlc.farm import paths
from wlc.farm.database import FarmDatabase, describe_file, open_database
from wlc.farm.model import (
    Batch,
    Change,
    Clear,
    Config,
    Ddl,
    Layout,
    Name,
    Origin,
    Record,
    RenamedObject,
    SequencePosition,
    TableFile,
    Transaction,
    file_column,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

START = datetime(2026, 1, 1, tzinfo=UTC)


def time_of(tick: int) -> datetime:
    """Transactions are committed a second apart."""
    return START + timedelta(seconds=tick)


@dataclass(frozen=True)
class Rows:
    """Row images of one table; every row is the SQL text of its values, as in "1, 'x'", or "FROM" and a query."""

    table: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass
class HandmadeFarm:
    """Publishes transactions given as lists of: SQL text (DDL), Rows, Clear, SequencePosition; None is a rollback."""

    folder: Path | str
    catalog: str = "sales"
    history: str = "h1"
    tick: int = 0
    batch: int = 0
    chain: str = ""
    parent: Origin | None = None
    layouts: dict[Name, Layout] = field(default_factory=dict)
    name: str = "sales"
    continues: bool = False

    def __post_init__(self) -> None:
        self.db: FarmDatabase = open_database(f"{self.folder}/{self.name}")
        self._schema, self.hand = empty_database()
        weakref.finalize(self, give_back, self._schema, self.hand)
        self._changes = TableChanges(self._schema, self.hand)
        self.db.create_config(self._config())

    @property
    def url(self) -> str:
        return self.db.url

    def _config(self) -> Config:
        time = time_of(self.tick) if self.tick else None
        return Config("", paths.LOGS, 1, self.batch + 1, 300.0, time, self.name, self.history, self.tick, self.parent)

    def publish(self, *transactions: Sequence[object] | None) -> None:
        """Publish one batch."""
        self.batch += 1
        first = self.tick + 1
        with tempfile.TemporaryDirectory() as folder:
            files = _Files(self.name, Path(folder), self.batch)
            made = tuple(self._transaction(records, files) for records in transactions)
            batch = Batch(
                self.name,
                self.batch,
                self.history,
                first,
                self.tick,
                self.chain,
                self.catalog,
                made,
                files.listed(),
                {self.history: self.tick},
                self.parent,
                continues=self.continues,
            )
            self.chain = self.db.publish(batch, files.local())
        self.db.change_config(lambda _: self._config())
        self.parent, self.continues = None, False

    def take_back(self, chain: str, tick: int) -> None:
        """Remove the last batch; before it, the farm had this chain hash and tick."""
        for entry in self.db.logs.list(paths.log_path(self.db.name, self.batch)):
            self.db.logs.delete(entry.path)
        self.batch, self.tick, self.chain = self.batch - 1, tick, chain
        self.db.change_config(lambda _: self._config())

    def _transaction(self, records: Sequence[object] | None, files: _Files) -> Transaction:
        self.tick += 1
        at = time_of(self.tick)
        if records is None:
            return Transaction(self.tick, "ann", at, None)
        made = tuple(self._record(record, files) for record in records)
        return Transaction(self.tick, "ann", at, at, made)

    def _record(self, record: object, files: _Files) -> Record:
        if isinstance(record, str):
            return self.ddl(record)
        if isinstance(record, Rows):
            name = _name(record.table)
            return files.add(self.tick, name, self.layouts[name], record)
        assert isinstance(record, Clear | SequencePosition | Ddl)
        if isinstance(record, Ddl) and record.layout is not None:
            # A statement of a master of another engine, which the schema here would refuse.
            self.layouts[record.object] = record.layout
        return record

    def ddl(self, statement: str) -> Ddl:
        """Return the record of a statement that the master runs now."""
        does = self._changes.run(statement)
        self.layouts = dict(self._changes.layouts)
        about = next((effect for effect in does if effect.object.kind == "TABLE"), None)
        name = about.to if isinstance(about, RenamedObject) else about.object.name if about else Name("main", "x")
        kind = " ".join(statement.split()[:2]).upper()
        return Ddl(kind, name, statement, layout=self.layouts.get(name), does=does)


@dataclass
class _Files:
    """The data files of a batch: one for each table and layout, in the order of their first use."""

    name: str
    folder: Path
    batch: int
    rows: dict[tuple[Name, Layout], list[str]] = field(default_factory=dict)

    def add(self, tick: int, name: Name, layout: Layout, rows: Rows) -> Change:
        images = self.rows.setdefault((name, layout), [])
        counts = []
        for weight, listed in ((1, rows.added), (-1, rows.removed)):
            selected = [f"SELECT {tick}, {weight}, {f'* {row}' if row.startswith('FROM ') else row}" for row in listed]
            counts.append(_count(selected))
            images += selected
        path = paths.data_path(self.name, self.batch, list(self.rows).index((name, layout)))
        return Change(name, path, *counts)

    def listed(self) -> tuple[TableFile, ...]:
        made = []
        for number, ((name, layout), images) in enumerate(self.rows.items()):
            path = paths.data_path(self.name, self.batch, number)
            _write(self.folder / f"{number}.parquet", layout, images)
            file = describe_file(self.folder / f"{number}.parquet", path, _count(images))
            made.append(TableFile(file, name, layout))
        return tuple(made)

    def local(self) -> dict[str, Path]:
        return {
            paths.data_path(self.name, self.batch, number): self.folder / f"{number}.parquet"
            for number in range(len(self.rows))
        }


def _write(target: Path, layout: Layout, images: list[str]) -> None:
    declared = "".join(f", c{number} {column.type}" for number, column in enumerate(layout.stored))
    stored = "".join(
        f", {store_sql(column, f'c{number}')} AS {quote(file_column(column.name))}"
        for number, column in enumerate(layout.stored)
    )
    with scratch() as connection:
        connection.execute(f"CREATE TEMP TABLE images (_tick BIGINT, _weight TINYINT{declared})")
        if images:
            connection.execute("INSERT INTO images " + " UNION ALL ".join(images))
        connection.execute(
            f"COPY (SELECT _tick, _weight{stored} FROM images ORDER BY _tick) TO '{target}' (FORMAT parquet)"
        )


def _count(selected: list[str]) -> int:
    if not any(" FROM " in image for image in selected):
        return len(selected)
    with scratch() as connection:
        return sum(len(connection.execute(f"SELECT 1 FROM ({image})").fetchall()) for image in selected)


def _name(text: str) -> Name:
    schema, _, name = text.rpartition(".")
    return Name(schema or "main", name)


def secret_folder(folder: Path) -> Path:
    """Make a folder with a file that no statement from the farm may read, and where none may leave anything."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_text("a\n1\n")
    return outside


def rows_of(path: Path, query: str) -> list[tuple[object, ...]]:
    """Run a query on a replica, as its reader would."""
    with attached(path) as connection:
        return connection.execute(query).fetchall()
