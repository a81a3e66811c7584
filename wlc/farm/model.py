"""Values of the domain: changes of transactions, content of batches, positions of replicas.

Everything here is immutable and free of I/O. Times are aware `datetime`s in UTC with microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, ClassVar

# Classes defined in separate files are imported from here, too.
from wlc.farm.ddl_fields import AlteredObject as AlteredObject
from wlc.farm.ddl_fields import Check as Check
from wlc.farm.ddl_fields import ColumnStep as ColumnStep
from wlc.farm.ddl_fields import CreatedObject as CreatedObject
from wlc.farm.ddl_fields import DbObject as DbObject
from wlc.farm.ddl_fields import DdlEffect as DdlEffect
from wlc.farm.ddl_fields import DroppedObject as DroppedObject
from wlc.farm.ddl_fields import Reference as Reference
from wlc.farm.ddl_fields import RenamedObject as RenamedObject
from wlc.farm.ddl_fields import TableConstraint as TableConstraint
from wlc.farm.ddl_fields import Unique as Unique
from wlc.farm.ddl_fields import WrittenEffect
from wlc.farm.json_fields import FORMAT_VERSION as FORMAT_VERSION
from wlc.farm.json_fields import (
    DatabaseName,
    FieldError,
    Filled,
    FilledText,
    History,
    Inline,
    Int64,
    JsonForm,
    JsonKey,
    Later,
    Omitted,
    RelativePath,
    Sha256,
    Sha256OrEmpty,
    Site,
    Tick,
    TickFrom0,
    Ticks,
    as_object,
    short,
)
from wlc.farm.json_records import form_of, record_of
from wlc.farm.names import Digest as Digest
from wlc.farm.names import Digests, ObjectName, TableName
from wlc.farm.names import Name as Name
from wlc.farm.paths import parse_snapshot_data_path

# In data files: 1 for a row that was added, -1 for one that was removed.
WEIGHT = "_weight"
_TAKEN = re.compile(r"_+(tick|weight)", re.IGNORECASE)
# Names and values of a session's settings, sorted by name.
Settings = tuple[tuple[str, str], ...]


def _as_settings(value: object) -> Settings:
    found: Mapping[str, str] = form_of(Mapping[str, str]).read(value)
    return tuple(sorted(found.items()))


WrittenSettings = Annotated[Settings, JsonForm(_as_settings, dict)]


def file_column(name: str) -> str:
    """Name of a table's column in data files, where `_tick` and `_weight` are taken: `_tick` becomes `__tick`."""
    return "_" + name if _TAKEN.fullmatch(name) else name


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the source declares it; `type`, `default` and `generated` are source SQL text."""

    name: FilledText
    type: str
    nullable: bool = True
    default: str | None = None
    generated: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns and primary key of a table at one moment; generated columns are listed and not stored."""

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """Why this layout is invalid, None if it is valid."""
        names = [column.name for column in self.columns]
        if names and len(set(names)) == len(names) and set(self.primary_key) <= set(names):
            return None
        return f"{short(names)} with key {short(self.primary_key)} is not the layout of a table"

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns whose values data files carry, in declared order."""
        return tuple(column for column in self.columns if column.generated is None)

    @property
    def key_places(self) -> tuple[int, ...]:
        """Places of the key columns among the stored ones; renaming a column does not change them."""
        names = [column.name for column in self.stored]
        return tuple(names.index(name) for name in self.primary_key)

    def is_required(self, column: Column) -> bool:
        """Say whether a column is NOT NULL or part of the key, so that every row has a value."""
        return not column.nullable or column.name in self.primary_key

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the stored columns: data files of layouts with the same shape are read alike."""
        return tuple((column.name, column.type) for column in self.stored)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a transaction was first committed, or where a history branched off.

    `committed` is the time of that commit, None where it is not known.
    """

    history: History
    tick: Tick
    committed: Omitted[datetime | None] = None


@dataclass(frozen=True, slots=True)
class _GrownFrom:
    """The history and tick that another history grew from; the parent may have no commits."""

    history: History
    tick: TickFrom0


def as_parent(value: object) -> Origin:
    """Return the history and tick that another history grew from."""
    found: _GrownFrom = record_of(_GrownFrom).read(value)
    return Origin(found.history, found.tick)


Parent = Annotated[Origin, JsonForm(as_parent, record_of(_GrownFrom).write)]


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a copy: `tick` of `history`, in batch number `batch`, whose log file has the hash `chain`.

    The start of an empty history is tick 0, batch 0, chain "".
    """

    history: History
    tick: TickFrom0
    batch: TickFrom0 = 0
    chain: Sha256OrEmpty = ""

    def __str__(self) -> str:
        return f"tick {self.tick} of history {self.history}"


@dataclass(frozen=True, slots=True)
class Ddl:
    """One statement that changed the schema.

    `search_path` lists the schemas in which unqualified names are looked up; `layout` is the table's layout after the
    statement, None for other objects and dropped tables. If the master is not DuckDB, `original` is the statement in
    the master's dialect; a change without an equivalent in DuckDB is itself in that dialect and has no `original`.
    `digest` is an altered table's digest afterwards, None if it is unknown. `settings` are the session settings that
    affect the statement's meaning. `does` lists all effects of the statement, in order.
    """

    may_have_info: ClassVar = True
    kind: str
    object: ObjectName
    statement: str
    search_path: Filled[str] = ("main",)
    dialect: str = "duckdb"
    layout: Layout | None = None
    original: Omitted[str | None] = None
    digest: Omitted[Digest | None] = None
    settings: Omitted[WrittenSettings] = ()
    does: tuple[WrittenEffect, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Rows of one table that a transaction added and removed; data file `path` holds them under its tick."""

    may_have_info: ClassVar = True
    table: TableName
    path: str
    added: int
    removed: int

    @property
    def rows(self) -> int:
        """Row images in the data file."""
        return self.added + self.removed


@dataclass(frozen=True, slots=True)
class Clear:
    """All rows of a table were removed."""

    may_have_info: ClassVar = True
    table: TableName
    removed: int


@dataclass(frozen=True, slots=True)
class SequencePosition:
    """The last value a sequence gave out when the transaction committed."""

    may_have_info: ClassVar = True
    sequence: Annotated[TableName, JsonKey("name")]
    value: Int64


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of a table that a transaction read; their images are in data file `path` with weight 0.

    `exclusive`: it locked them as a writer, `SELECT ... FOR UPDATE`.
    """

    may_have_info: ClassVar = True
    table: TableName
    path: str
    rows: int
    exclusive: bool


@dataclass(frozen=True, slots=True)
class RowsRefreshed:
    """Rows of a table as the primary site has them; their images are in data file `path` with weight 0.

    `absent`: the primary has no rows with these keys, and the images hold only the key columns. `kept`: the secondary
    that logs this record keeps its own rows, because its own transactions have changed them since.
    """

    may_have_info: ClassVar = True
    table: TableName
    path: str
    rows: int
    absent: bool
    kept: Omitted[bool] = False


def _as_image(value: object) -> dict[str, object]:
    found = as_object(value)
    if not all(each is None or isinstance(each, str | int | float) for each in found.values()):
        raise FieldError(f"{short(value)} is not an image of a row")
    return found


RowImage = Annotated[Mapping[str, object], JsonForm(_as_image)]


@dataclass(frozen=True, slots=True)
class RowRejected:
    """A row of another site's transaction, `tick` of `history`, that the primary rejected.

    The record changes no data; `wlc.multi_master.site_step.RejectedRow` has the same fields. `more` counts rows that
    are not listed.
    """

    may_have_info: ClassVar = True
    table: TableName
    history: History
    tick: Tick
    count: Tick
    key: RowImage
    op_type: str
    cause: str
    pg_type: str | None
    old: RowImage | None
    new: RowImage | None
    local: RowImage | None
    dependent: bool
    more: Omitted[TickFrom0] = 0


# Records with rows in a data file.
FileRecord = Change | RowsRead | RowsRefreshed
Record = Ddl | Change | Clear | SequencePosition | RowsRead | RowsRefreshed | RowRejected


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction in commit order; `records` are in the order in which they took effect.

    `committed` is None for a transaction that was rolled back: it has no records and is kept for the DBA. `xid` is the
    source's transaction number, if the source has one. `after` is the last tick of this log that was committed when the
    transaction began, None if the source does not report it.
    """

    tick: int
    user: str
    started: datetime
    committed: datetime | None
    records: tuple[Record, ...] = ()
    origin: Origin | None = None
    xid: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """The end of a primary's history, written by its successor: the site `to`, primary since `term` of the circle."""

    to: Site
    term: Tick


@dataclass(frozen=True, slots=True)
class Taken:
    """The position read in another site's log: `tick` of `history`, in the batch with the chain hash `chain`.

    `filters` is the hash of the filters that apply (see `wlr.replay.plan.patterns.hash_of`), "" for none.
    """

    site: Site
    history: History
    tick: Tick
    batch: Tick
    chain: Sha256
    filters: Omitted[Sha256OrEmpty] = ""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a batch or a snapshot; `path` is relative to the log file's or the manifest's folder."""

    path: RelativePath
    rows: int
    bytes: int
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a batch with its table and the layout of its rows."""

    file: Inline[DataFile]
    table: TableName
    layout: Layout


@dataclass(frozen=True, slots=True)
class Batch:
    """One immutable log file: consecutive transactions of one history.

    Attributes:
        previous: SHA-256 of the log file before this one, "" for the first.
        catalog: Name of the master's database inside its engine; DDL text may qualify names with it.
        parent: The (history, tick) this history grew from; only where a new history follows an old one.
        transactions: In commit order; `wlc.farm.log_columns.Transactions` if they were read or captured.
        files: Every data file of the batch, in the order of their numbers.
        vector: Per history the last tick contained after this batch.
        digests: Digests of changed tables after the batch, if known.
        undigested: Changed tables whose digest the master does not know.
        lsn: WAL position of a PostgreSQL master after the batch, such as `0/16B3748`.
        term: Term of the circle of sites that the batch was written in.
        own: Last tick up to `last` that has records and no origin.
        handover: The successor in the primary's role; only in the last batch of its history.
        taken: The last position read in each other site's log.
        continues: The history continues its parent's at that tick: no row changed in between. Only a promotion says so.
    """

    database: str
    number: int
    history: str
    first: int
    last: int
    previous: str
    catalog: str
    transactions: Sequence[Transaction]
    files: tuple[TableFile, ...] = ()
    vector: Mapping[str, int] = field(default_factory=dict)
    parent: Origin | None = None
    digests: Mapping[Name, Digest] = field(default_factory=dict)
    undigested: frozenset[Name] = frozenset()
    format: int = FORMAT_VERSION
    lsn: str | None = None
    term: int | None = None
    own: int | None = None
    handover: Handover | None = None
    taken: tuple[Taken, ...] = ()
    continues: bool = False

    @property
    def clock(self) -> datetime | None:
        """Commit time of the last transaction that was committed, None if none was."""
        return next((t.committed for t in reversed(self.transactions) if t.committed), None)


@dataclass(frozen=True, slots=True)
class Config:
    """The content of `wlc.config`: MonetDB's keys first, then those of dbfarm.

    Attributes:
        snapshot: Folder of the newest snapshot relative to the database's folder, or "".
        logs: URL of the log directory.
        state: 1 started, 2 stopped.
        batches: Number that the next batch gets.
        beat_s: Longest wait of a committed transaction, seconds.
        write: Commit time of the last recorded transaction, None before the first.
        name: Name of the database in the farm.
        history: Id of the current history.
        tick: Last published tick.
        parent: The (history, tick) the current history grew from, or None.
    """

    snapshot: str
    logs: str
    state: int
    batches: int
    beat_s: float
    write: datetime | None
    name: str
    history: str
    tick: int
    parent: Origin | None = None
    format: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """One table of a snapshot; its rows are the union of `files`, which can be empty."""

    table: TableName
    layout: Layout
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A full copy of a database at one position.

    Attributes:
        position: The copy holds all transactions up to it; the log goes on behind it.
        clock: Commit time of the transaction at `position`; before the first transaction, the time of the copy.
        catalog: Name of the master's database inside its engine.
        schema: Statements to run on an empty database, in order, before rows are loaded.
        schema_after: Statements to run once rows are loaded (indexes and the like).
        sequences: Positions to set after loading.
        digests: Digests of the tables, if known.
    """

    may_have_info: ClassVar = True
    database: DatabaseName
    position: Position
    clock: datetime
    catalog: str
    schema: tuple[Ddl, ...]
    schema_after: tuple[Ddl, ...]
    tables: tuple[SnapshotTable, ...]
    sequences: tuple[SequencePosition, ...] = ()
    vector: Ticks = field(default_factory=dict)
    digests: Later[Digests] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """Why the manifest is inconsistent, None if it is consistent."""
        tables = [table.table for table in self.tables]
        paths = [file.path for table in self.tables for file in table.files]
        if len(set(tables)) != len(tables) or len(set(paths)) != len(paths):
            return "a table or a data file occurs twice"
        # Replicas keep their own tables there.
        if own := [table for table in tables if table.schema.lower() in ("wlc", "wlr")]:
            return f"table {own[0]} cannot be part of a snapshot"
        if wrong := [path for path in paths if parse_snapshot_data_path(path) is None]:
            return f"{wrong[0]!r} is not a data file of a snapshot"
        return None
