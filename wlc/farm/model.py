"""Values of the domain: what a transaction changed, what a batch holds, where a replica stands.

Everything here is immutable and free of I/O. Times are aware `datetime`s in UTC with microseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

FORMAT_VERSION = 1
# In data files: 1 for a row that was added, -1 for one that was removed.
WEIGHT = "_weight"
_TAKEN = re.compile(r"_+(tick|weight)", re.IGNORECASE)
# Names and values of a session's settings, in the order of the names.
Settings = tuple[tuple[str, str], ...]


def file_column(name: str) -> str:
    """Name of a table's column in data files, where `_tick` and `_weight` are taken: `_tick` becomes `__tick`."""
    return "_" + name if _TAKEN.fullmatch(name) else name


@dataclass(frozen=True, order=True, slots=True)
class Name:
    """A schema-qualified name of a table, sequence, view or other object of one database."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        """The name as SQL text, both parts quoted."""
        schema, name = (part.replace('"', '""') for part in (self.schema, self.name))
        return f'"{schema}"."{name}"'

    @property
    def folded(self) -> tuple[bytes, bytes]:
        """The name as DuckDB compares it: ASCII letters in lower case."""
        return self.schema.encode().lower(), self.name.encode().lower()


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the source declares it; `type`, `default` and `generated` are source SQL text."""

    name: str
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
    def stored(self) -> tuple[Column, ...]:
        """The columns whose values data files carry, in declared order."""
        return tuple(column for column in self.columns if column.generated is None)

    @property
    def key_places(self) -> tuple[int, ...]:
        """Places of the key columns among the stored ones; renaming a column does not change them."""
        names = [column.name for column in self.stored]
        return tuple(names.index(name) for name in self.primary_key)

    def is_required(self, column: Column) -> bool:
        """Say whether every row has a value in a column: it is NOT NULL or part of the key."""
        return not column.nullable or column.name in self.primary_key

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the stored columns: files of layouts of the same shape are read the same way."""
        return tuple((column.name, column.type) for column in self.stored)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a transaction was first committed, or what a history grew from.

    `committed` is the time of that commit, None where it is not known.
    """

    history: str
    tick: int
    committed: datetime | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a copy has come: `tick` of `history`, inside batch number `batch` whose log file hashes to `chain`.

    The start of a history that nothing was published to is tick 0, batch 0, chain "".
    """

    history: str
    tick: int
    batch: int = 0
    chain: str = ""

    def __str__(self) -> str:
        return f"tick {self.tick} of history {self.history}"


@dataclass(frozen=True, slots=True)
class Digest:
    """What a table holds: how many rows, and the sum of their numbers modulo 2^64 (see `wlc.farm.digest`)."""

    rows: int
    sum: int


@dataclass(frozen=True, order=True, slots=True)
class DbObject:
    """An object of a database: its kind as it follows CREATE, such as `TABLE`, and its name.

    The name of a schema is both parts of its own `name`. `arguments` are the types by which a routine is told apart
    from others of its name; None for everything else.
    """

    kind: str
    name: Name
    arguments: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Unique:
    """A UNIQUE constraint."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint: the columns that it names, and its expression in the master's SQL."""

    columns: tuple[str, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: `columns` refer to the columns `keys` of the table `to`."""

    columns: tuple[str, ...]
    to: Name
    keys: tuple[str, ...]


TableConstraint = Unique | Check | Reference
# Names of a column before and after a statement: None where there is none; the same name if it was redefined.
ColumnStep = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class CreatedObject:
    """A statement created an object.

    Attributes:
        replaces: It took the place of one of the same kind and name.
        of: The table or domain that it belongs to.
        unique: Of a unique index its columns, None for an expression.
        columns: Of a table whose layout is not that of the statement.
        key: Of such a table the columns of the primary key.
        constraints: Of a table, all but the primary key and NOT NULL.
        parents: Tables that a table is a partition of or inherits from.
    """

    object: DbObject
    replaces: bool = False
    of: Name | None = None
    unique: tuple[str | None, ...] = ()
    columns: tuple[ColumnStep, ...] = ()
    key: tuple[str, ...] | None = None
    constraints: tuple[TableConstraint, ...] = ()
    parents: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class DroppedObject:
    """A statement dropped an object, and with it all that belongs to it; `of` is the table that it belonged to."""

    object: DbObject
    of: Name | None = None


@dataclass(frozen=True, slots=True)
class RenamedObject:
    """A statement gave an object, and with it all that belongs to it, another schema or name."""

    object: DbObject
    to: Name
    of: Name | None = None


@dataclass(frozen=True, slots=True)
class AlteredObject:
    """A statement changed an object in place; without any attribute, in a way that concerns no rows.

    Attributes:
        of: The table that it belongs to.
        columns: Columns of a table that were added behind the others, dropped, renamed or redefined; of a view and of
            a composite type those that were renamed.
        key: The primary key afterwards, None if it is the same but for names.
        constraints: All constraints afterwards, None if they are the same but for names.
        parents: All parents afterwards, None if they are the same.
        values: Values of an enum that were added, dropped or renamed.
    """

    object: DbObject
    of: Name | None = None
    columns: tuple[ColumnStep, ...] = ()
    key: tuple[str, ...] | None = None
    constraints: tuple[TableConstraint, ...] | None = None
    parents: tuple[Name, ...] | None = None
    values: tuple[ColumnStep, ...] = ()


DdlEffect = CreatedObject | DroppedObject | RenamedObject | AlteredObject


@dataclass(frozen=True, slots=True)
class Ddl:
    """One statement that changed the schema.

    `search_path` lists the schemas in which unqualified names are looked up; `layout` is that of the table after the
    statement, None for anything but a table that exists afterwards. Where the master is no DuckDB, `original` is the
    statement in its own dialect; a change that DuckDB has nothing like has that dialect itself and no `original`.
    `digest` is what an altered table holds afterwards, None where it is not known. `settings` are those of the
    statement's session that change what it means. `does` is all that the statement did, in this order.
    """

    kind: str
    object: Name
    statement: str
    search_path: tuple[str, ...] = ("main",)
    dialect: str = "duckdb"
    layout: Layout | None = None
    original: str | None = None
    digest: Digest | None = None
    settings: Settings = ()
    does: tuple[DdlEffect, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Rows of one table that a transaction added and removed; they are in data file `path` under its tick."""

    table: Name
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

    table: Name
    removed: int


@dataclass(frozen=True, slots=True)
class SequencePosition:
    """The last value a sequence gave out when the transaction committed."""

    sequence: Name
    value: int


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of a table that a transaction read; their images are in data file `path` with weight 0.

    `exclusive` says that it read them as a writer would, `SELECT ... FOR UPDATE`.
    """

    table: Name
    path: str
    rows: int
    exclusive: bool


@dataclass(frozen=True, slots=True)
class RowsRefreshed:
    """What rows of a table are at the primary site; their images are in data file `path` with weight 0.

    `absent` says that the primary has no rows with these keys; their images hold the key columns only. `kept` says that
    the rows stay as they are at the secondary that notes this in its log: its own transactions have changed them since.
    """

    table: Name
    path: str
    rows: int
    absent: bool
    kept: bool = False


# Records with rows in a data file.
FileRecord = Change | RowsRead | RowsRefreshed
Record = Ddl | Change | Clear | SequencePosition | RowsRead | RowsRefreshed


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction in commit order; `records` are in the order in which they took effect.

    `committed` is None for a transaction that was rolled back: it has no records and is kept for the DBA. `xid` is the
    number that the source gave it, where sources number transactions. `after` is the last tick of this log that was
    committed when the transaction began, None where the source does not say.
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

    to: str
    term: int


@dataclass(frozen=True, slots=True)
class Taken:
    """How far the log of another site was read: up to `tick` of `history`, in its batch with the chain hash `chain`.

    `filters` is the hash of what was left out on the way (see `wlr.plan.patterns.hash_of`), "" where that is nothing.
    """

    site: str
    history: str
    tick: int
    batch: int
    chain: str
    filters: str = ""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a batch or a snapshot; `path` is relative to the log file's or the manifest's folder."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a batch with what is needed to read it: its table and the layout its rows have."""

    file: DataFile
    table: Name
    layout: Layout


@dataclass(frozen=True, slots=True)
class Batch:
    """One immutable log file: consecutive transactions of one history.

    Attributes:
        previous: SHA-256 of the log file before this one, "" for the first.
        catalog: Name of the master's database inside its engine; DDL text may qualify names with it.
        parent: The (history, tick) this history grew from; only where a new history follows an old one.
        transactions: In commit order; see `wlc.farm.log_columns` for how a long log file gives them.
        files: Every data file of the batch, in the order of their numbers.
        vector: Per history the last tick contained after this batch.
        digests: What the tables that the batch changed hold after it, those that are known.
        undigested: Tables that the batch changed and of which the master does not know what they hold.
        lsn: Where in its own log a PostgreSQL master stands after the batch, such as `0/16B3748`.
        term: Term of the circle of sites that the batch was written in.
        own: Last tick up to `last` that has records and no origin.
        handover: To whom the primary's role went; only in the last batch of its history.
        taken: The newest position read in each other site's log.
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

    @property
    def clock(self) -> datetime | None:
        """Commit time of the last transaction that was committed, None if none was."""
        return next((t.committed for t in reversed(self.transactions) if t.committed), None)


@dataclass(frozen=True, slots=True)
class Config:
    """What `wlc.config` says: MonetDB's keys first, then ours.

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
    """One table of a snapshot; its rows are the union of `files` and may be none."""

    table: Name
    layout: Layout
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A full copy of a database at one position.

    Attributes:
        position: The copy holds all transactions up to it; the log goes on behind it.
        clock: Commit time of the transaction at `position`; before the first one, when the copy was taken.
        catalog: Name of the master's database inside its engine.
        schema: Statements in an order in which they run on an empty database, before rows are loaded.
        schema_after: Statements to run once rows are loaded (indexes and the like).
        sequences: Positions to set after loading.
        digests: What the tables hold, those that are known.
    """

    database: str
    position: Position
    clock: datetime
    catalog: str
    schema: tuple[Ddl, ...]
    schema_after: tuple[Ddl, ...]
    tables: tuple[SnapshotTable, ...]
    sequences: tuple[SequencePosition, ...] = ()
    vector: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[Name, Digest] = field(default_factory=dict)
    format: int = FORMAT_VERSION
