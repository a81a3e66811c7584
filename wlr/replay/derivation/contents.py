"""The content of a derived database's batches: filtered transactions with their ticks, times and origins.

Row images of a derived database: filtered in DuckDB, and summed per transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.digest_sql import numbered_sql, sum_images
from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal, quote
from wlc.farm.database import describe_file
from wlc.farm.digest import EMPTY, MODULUS, plus
from wlc.farm.errors import ReplayError
from wlc.farm.model import (
    WEIGHT,
    Change,
    Clear,
    CreatedObject,
    DbObject,
    Ddl,
    Name,
    Origin,
    TableFile,
    Transaction,
    file_column,
)
from wlc.farm.paths import data_path
from wlc.farm.schema_fold import table_names
from wlc.farm.typed_names import MAIN
from wlr.engine.replica_state import ReplicaState
from wlr.replay.ddl.left_out import is_run
from wlr.replay.filters import schema
from wlr.replay.filters.filtered_steps import FilteredSteps
from wlr.replay.filters.images import chosen_images
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.step import Fold, Read, TableChange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import duckdb

    from wlc.farm.model import Digest, Layout, Record
    from wlr.replay.derivation.settings import ChosenTables
    from wlr.replay.moved_tables import EnteringTable
    from wlr.replay.plan.row_filters import TableFilter
    from wlr.replay.plan.step import Step


# Restores a table as of a point within a step's one transaction, given its names before and after.
RestorePart = Callable[["Step", Transaction, Name, Name], "EnteringTable | None"]


@dataclass(frozen=True, slots=True)
class DerivedPart:
    """The part of a step that a derived database publishes.

    Attributes:
        transactions: Those with changes that pass.
        files: Their data files in the derived batch.
        local: The local file of each path.
        digests: Digests of all tables afterwards.
    """

    transactions: tuple[Transaction, ...]
    files: tuple[TableFile, ...]
    local: Mapping[str, Path]
    digests: Mapping[Name, Digest]


@dataclass(slots=True)
class _Run:
    """The changes of a step in one data file."""

    table: Name
    first: int
    last: int
    added: int = 0
    removed: int = 0


@dataclass(slots=True)
class StepContent:
    """Makes the content of a derived batch from a step of the source's log.

    Attributes:
        name: Name of the derived database.
        number: Number of its batch.
        choice: The filters.
        digests: Digests of all its tables.
        connection: Filters, see `wlr.replay.filters.images.masking`.
        work: Folder for data files.
        fetch: Returns the local copy of a data file of the source.
    """

    name: str
    number: int
    choice: ChosenTables
    digests: dict[Name, Digest]
    connection: duckdb.DuckDBPyConnection
    work: Path
    fetch: Callable[[TableFile], Path]
    _files: list[TableFile] = field(default_factory=list)
    _local: dict[str, Path] = field(default_factory=dict)

    def of(self, step: Step, restore: RestorePart) -> DerivedPart:
        """Return the part of a step that passes.

        Raises:
            ReplayError: A transaction changes a table so that its filter does not fit any more.
        """
        is_schema = any(type(record) is Ddl for record in step.transactions[0].records)
        made = tuple(self._altered(step, restore) if is_schema else self._changed(step))
        return DerivedPart(made, tuple(self._files), self._local, dict(self.digests))

    def _transaction(self, step: Step, original: Transaction, records: list[Record]) -> Transaction:
        # The user and the number of concurrent transactions are not disclosed.
        return Transaction(
            original.tick, self.name, original.started, original.committed, tuple(records), origin_of(step, original)
        )

    def _add_file(self, file: Path, table: Name, rows: int, layout: Layout) -> str:
        path = data_path(self.name, self.number, len(self._files))
        self._files.append(TableFile(describe_file(file, path, rows), table, layout))
        self._local[path] = file
        return path

    # Rows

    def _changed(self, step: Step) -> Iterator[Transaction]:
        runs: dict[str, _Run] = {}
        for transaction in step.applied:
            for record in transaction.records:
                if type(record) is Change and self.choice.of(record.table):
                    run = runs.setdefault(record.path, _Run(record.table, transaction.tick, transaction.tick))
                    run.last = transaction.tick
                    run.added += record.added
                    run.removed += record.removed
        passed: dict[str, tuple[str, PassedFile]] = {}
        for path, run in runs.items():
            if (found := self._passing(step.files[path], run)) is not None:
                passed[path] = found
        for transaction in step.applied:
            records = list(self._records(transaction, passed))
            if records:
                yield self._transaction(step, transaction, records)

    def _passing(self, file: TableFile, run: _Run) -> tuple[str, PassedFile] | None:
        chosen, local = self.choice.of(run.table), self.fetch(file)
        assert chosen is not None
        images = fold.RowImages((str(local),), run.first, run.last)
        change = TableChange(run.table, (Read(file, run.first, run.last),), run.added, run.removed)
        refuse_other_images(self.connection, change, [images])
        into = self.work / f"passed {self.number} {len(self._files)}.parquet"
        found = write_passing(self.connection, chosen, file.layout, images, into)
        return (self._add_file(into, run.table, found.rows, found.layout), found) if found.rows else None

    def _records(self, transaction: Transaction, passed: Mapping[str, tuple[str, PassedFile]]) -> Iterator[Record]:
        for record in transaction.records:
            if type(record) is Change and record.path in passed:
                path, file = passed[record.path]
                if (found := file.by_tick.get(transaction.tick)) is not None:
                    held = self.digests.get(record.table, EMPTY)
                    self.digests[record.table] = plus(held, found.added - found.removed, found.total)
                    yield Change(record.table, path, found.added, found.removed)
            elif type(record) is Clear and self.choice.of(record.table):
                if held_rows := self.digests.get(record.table, EMPTY).rows:
                    yield Clear(record.table, held_rows)
                self.digests[record.table] = EMPTY

    # Schema

    def _altered(self, step: Step, restore: RestorePart) -> Iterator[Transaction]:
        (original,) = step.transactions
        concerned = tuple(self._concerned(original.records))
        if original.committed is None or not concerned:
            return
        run = FilteredSteps(
            ReplicaState("", "", "", digests=dict(self.digests), filters=self.choice),
            lambda: self.connection,
            self.work,
            self.fetch,
            lambda ddl, old, new: restore(step, _until(original, ddl), old, new),
        )
        try:
            whole = run.filtered(replace(step, transactions=(replace(original, records=concerned),)))
        except StepError as error:
            message = f"transaction {original.tick} cannot be derived: {error.cause}"
            raise ReplayError(message, hint=error.remedy) from error
        records: list[Record] = []
        for action in whole.actions():
            records += self._folded(action, run.local) if isinstance(action, Fold) else self._ddl(action)
        if records:
            yield self._transaction(step, original, records)

    def _concerned(self, records: tuple[Record, ...]) -> Iterator[Record]:
        """Return the records of chosen tables; a table that a rename takes out of the choice is dropped."""
        for record in records:
            if isinstance(record, Change | Clear):
                if self.choice.of(record.table):
                    yield record
            elif isinstance(record, Ddl):
                yield from self._concerned_ddl(record)

    def _concerned_ddl(self, ddl: Ddl) -> Iterator[Ddl]:
        # Records for PostgreSQL alone are followed by their equivalents for other engines.
        for table in table_names(ddl) if is_run(ddl, ()) else ():
            is_chosen = table.after is not None and self.choice.of(table.after) is not None
            if table.before is not None and self.choice.of(table.before) and not is_chosen:
                yield schema.dropped(table.before)
            elif is_chosen and (table.is_created or schema.altered(ddl)):
                yield ddl

    def _ddl(self, ddl: Ddl) -> Iterator[Record]:
        """Yield the statements for a statement that creates or drops a table; no other kinds arrive here."""
        for table in table_names(ddl):
            if table.after is not None:
                self.digests[table.after] = EMPTY
                yield from schema_of(table.after)
                yield ddl
            elif table.before in self.digests:
                del self.digests[table.before]
                yield ddl

    def _folded(self, action: Fold, local: Mapping[str, Path]) -> Iterator[Record]:
        for change in action.changes:
            held = self.digests.get(change.table, EMPTY)
            if change.cleared:
                yield Clear(change.table, change.cleared)
            if change.cleared is not None:
                held = EMPTY
            for read in change.reads:
                file, layout = local[read.file.file.path], read.file.layout
                path = self._add_file(file, change.table, read.file.file.rows, layout)
                total = sum_images(self.connection, layout, rows_of(file))
                held = plus(held, change.added - change.removed, total)
                yield Change(change.table, path, change.added, change.removed)
            self.digests[change.table] = held


def origin_of(step: Step, transaction: Transaction) -> Origin:
    """Return where a transaction was first committed: in the source, or in another site of it."""
    if transaction.origin is not None:
        return transaction.origin
    history = next(mark.history for mark in step.marks if mark.last >= transaction.tick)
    return Origin(history, transaction.tick)


def schema_of(table: Name) -> Iterator[Ddl]:
    """Yield the statement that creates a table's schema unless it exists."""
    if table.schema != MAIN:
        made = Name(table.schema, table.schema)
        does = (CreatedObject(DbObject("SCHEMA", made)),)
        yield Ddl("CREATE SCHEMA", made, f"CREATE SCHEMA IF NOT EXISTS {quote(table.schema)}", does=does)


def _until(transaction: Transaction, ddl: Ddl) -> Transaction:
    """Return the part of a transaction up to one of its statements."""
    at = next(number for number, record in enumerate(transaction.records) if record is ddl)
    return replace(transaction, records=transaction.records[: at + 1])


@dataclass(frozen=True, slots=True)
class Passed:
    """The part of one transaction's changes to a table that passes.

    Attributes:
        total: Sum of the hashes of its images, each times its weight; see `wlc.farm.digest`.
    """

    added: int
    removed: int
    total: int


@dataclass(frozen=True, slots=True)
class PassedFile:
    """A filtered data file: its sums by tick, and the layout of its rows."""

    layout: Layout
    by_tick: dict[int, Passed]

    @property
    def rows(self) -> int:
        """Number of row images in it."""
        return sum(passed.added + passed.removed for passed in self.by_tick.values())


def write_passing(
    connection: duckdb.DuckDBPyConnection, chosen: TableFilter, layout: Layout, images: fold.RowImages, into: Path
) -> PassedFile:
    """Write the images of a data file that pass, each under its tick.

    A transaction that changed only hidden or masked values has no images left: images that cancel out would reveal
    the change.

    Args:
        connection: Filters, see `wlr.replay.filters.images.masking`.
        chosen: The table's filter.
        layout: Layout of the images.
        images: Their files and ticks.
        into: The file to write.
    """
    columns = fold.stored_columns(layout)
    raw = (
        f"SELECT {', '.join(columns)}, {WEIGHT}, _tick FROM {rows_of(*images.files)}"
        f" WHERE _tick BETWEEN {images.first} AND {images.last}"
    )
    passing = chosen_images(connection, chosen, layout, raw, keeps_ticks=True)
    own = passing.layout
    with passing.reading():
        query = _netted(own, passing.sql) if chosen.columns or chosen.masks else passing.sql
        stored = ", ".join(fold.stored_columns(own))
        connection.execute(
            f"COPY (SELECT _tick, {WEIGHT}, {stored} FROM ({query}) ORDER BY _tick) TO {literal(str(into))} ({KEPT})"
        )
        numbered = numbered_sql(own, rows_of(into), tick="_tick", w=WEIGHT)
        counts = "count(*) FILTER (w > 0), count(*) FILTER (w < 0)"
        query = f"SELECT tick, {counts}, sum(CAST(h AS HUGEINT) * w) FROM {numbered} GROUP BY tick"
        found = connection.execute(query).fetchall()
    return PassedFile(
        own, {tick: Passed(added, removed, int(total) % MODULUS) for tick, added, removed, total in found}
    )


def _netted(layout: Layout, images: str) -> str:
    """Select images without those that cancel out within one transaction."""
    columns = [quote(file_column(column.name)) for column in layout.stored]
    distinctions = (fold.distinguishing_sql(c, quote(file_column(c.name))) for c in layout.stored)
    summed = (
        f'SELECT _tick, {", ".join(columns)}, CAST(sum({WEIGHT}) AS BIGINT) AS "dbfarm sum" FROM ({images})'
        f" GROUP BY {', '.join(['_tick', *columns, *filter(None, distinctions)])} HAVING sum({WEIGHT}) <> 0"
    )
    return (
        f'SELECT _tick, CAST(sign("dbfarm sum") AS TINYINT) AS {WEIGHT}, {", ".join(columns)}'
        f' FROM ({summed}), range(abs("dbfarm sum"))'
    )
