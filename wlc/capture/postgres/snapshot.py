"""Snapshots of a PostgreSQL master: every table at one place in the server's log, while other sessions write.

Sequences of a PostgreSQL master. They are not transactional, so a batch holds their values at its end.

Tables of a PostgreSQL master as of a moment, copied into data files.
"""

from __future__ import annotations

import re
import secrets
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from wlc.capture.postgres import access, alterations, digests, objects, setup
from wlc.capture.postgres.effects import carried_back
from wlc.capture.postgres.master_connection import ArrowReader, connect, talking
from wlc.capture.postgres.objects import CATALOG_OF_TABLES, in_order, needs
from wlc.capture.postgres.row_store import MEMORY_VARIABLE, memory_limit, row_group_rows
from wlc.capture.postgres.types import always_fits, duckdb_type
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.duckdb.snapshot import report_copied
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import store_sql
from wlc.farm import paths
from wlc.farm.addresses import without_password
from wlc.farm.database import describe_file
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.model import Column, DataFile, Ddl, Layout, Manifest, Name, SequencePosition, SnapshotTable, file_column

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from wlc.capture.postgres.described import DescribedTable
    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Digest, Record
    from wlc.masters.master_state import Reached

    Sequences = Mapping[int, tuple[Name, int | None]]


def read_sequences(connection: Connection) -> Sequences:
    """Return every replicated sequence and the last value that it gave out."""
    rows = connection.execute(
        "SELECT c.oid::bigint, n.nspname, c.relname, s.last_value FROM pg_sequences s JOIN pg_namespace n"
        " ON n.nspname = s.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.sequencename"
        " WHERE NOT wlc.is_system(n.nspname) AND c.relpersistence = 'p'"
    ).fetchall()
    return {oid: (Name(schema, name), value) for oid, schema, name, value in rows}


def moved_sequences(connection: Connection, logged: Mapping[int, Name | None]) -> Sequences:
    """Return the sequences that moved since they were published, under their names in the log.

    Args:
        connection: To the master.
        logged: Changes in the log since then: names of created or altered sequences, None for dropped ones.
    """
    rows = connection.execute("SELECT oid::bigint, schema, name, value FROM wlc.sequences").fetchall()
    names: dict[int, Name | None] = {oid: Name(schema, name) for oid, schema, name, _ in rows}
    values = {oid: value for oid, _, _, value in rows}
    names.update(logged)
    return {
        oid: (name, value)
        for oid, (_, value) in read_sequences(connection).items()
        if (name := names.get(oid)) is not None and (oid in logged or values.get(oid) != value)
    }


def records(moved: Sequences) -> Iterator[Record]:
    """Yield the records of a batch about sequences that moved."""
    yield from (SequencePosition(name, value) for name, value in moved.values() if value is not None)


def write_sequences(connection: Connection, found: Sequences) -> None:
    """Note published sequences and their values."""
    with connection.cursor() as cursor:
        rows = [[oid, name.schema, name.name, value] for oid, (name, value) in found.items()]
        cursor.executemany(
            "INSERT INTO wlc.sequences VALUES (%s, %s, %s, %s) ON CONFLICT (oid) DO UPDATE"
            " SET schema = EXCLUDED.schema, name = EXCLUDED.name, value = EXCLUDED.value",
            rows,
        )


_READERS = 2
# Columns of these types come as they are; all others as text.
_AS_THEY_ARE = {"boolean", "smallint", "integer", "bigint", "real", "double precision", "text"}
# A cast to text gives these the form that the log has. Others may lose blanks at the end or get a netmask.
_CAST_IS_SAME = re.compile(r"(numeric|character varying|bytea|date|uuid|jsonb?|interval|time|timestamp|oid)\b.*")

# The layout that the file of a table has, and the file; none if the table is empty.
Copied = list[tuple[Layout, tuple[DataFile, ...]]]


def copy_tables(
    url: str, snapshot: str, tables: list[DescribedTable], folder: Path, progress: Progress | None = None
) -> Copied:
    """Copy tables into data files.

    Args:
        url: The master.
        snapshot: Name of an exported snapshot of the server, which decides what the copies hold.
        tables: The tables to copy; none is partitioned.
        folder: For the files.
        progress: Called with tables copied, tables in all, and what is being done.

    Returns:
        What the copies are, in the order of the tables.
    """
    with ExitStack() as stack, ThreadPoolExecutor(_READERS) as pool:
        free: SimpleQueue[_Copier] = SimpleQueue()
        for number, _ in enumerate(tables[:_READERS]):
            free.put(stack.enter_context(_Copier(url, snapshot, folder, folder / f"memory-{number}")))

        def copy(number: int, table: DescribedTable) -> tuple[Layout, tuple[DataFile, ...]]:
            copier = free.get()
            try:
                return copier.copy(number, table)
            finally:
                free.put(copier)

        copied: Copied = []
        for table, one in zip(tables, pool.map(copy, range(len(tables)), tables), strict=True):
            copied.append(one)
            files = [file for _, found in copied for file in found]
            report_copied(progress, files, len(copied), len(tables), table.qualified)
        return copied


class _Copier:
    """Copies one table after another over a connection.

    Args:
        url: The master.
        snapshot: Name of an exported snapshot of the server.
        folder: For the files.
        memory: Folder for what does not fit into memory.
    """

    def __init__(self, url: str, snapshot: str, folder: Path, memory: Path) -> None:
        self._snapshot = snapshot
        self._folder = folder
        self._stack = ExitStack()
        self._reader = self._stack.enter_context(ArrowReader(url))
        self._connection = self._stack.enter_context(engine.connect(config={"python_enable_replacements": "false"}))
        self._connection.execute(f"SET memory_limit = {literal(memory_limit())}; SET TimeZone = 'UTC'; SET threads = 1")
        self._connection.execute(f"SET temp_directory = {literal(str(memory))}")
        self._connection.execute("SET arrow_large_buffer_size = true")

    def __enter__(self) -> _Copier:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def copy(self, number: int, table: DescribedTable) -> tuple[Layout, tuple[DataFile, ...]]:
        """Copy a table into the data file with a number."""
        layout = table.layout
        path = paths.snapshot_data_path(number)
        target = self._folder / path
        bases = {column.name: column.base for column in table.columns}
        columns = list(layout.stored)
        while True:
            misfit = self._write(table.qualified, [(c, bases[c.name]) for c in columns], target)
            if isinstance(misfit, int):
                break
            # A value of this column does not fit its type: the file holds the column as text.
            columns = [replace(c, type="VARCHAR") if c.name == misfit else c for c in columns]
        layout = Layout(tuple(columns), layout.primary_key)
        return layout, (describe_file(target, path, misfit),) if misfit else ()

    def _write(self, name: Name, columns: list[tuple[Column, str]], target: Path) -> int | str:
        """Write the rows of a table; returns how many, or the name of a column with a value that does not fit."""
        asked, stored = [], []
        for index, (column, base) in enumerate(columns):
            raw = base in _AS_THEY_ARE and column.type == duckdb_type(base)
            asked.append(f"{quote(column.name) if raw else _as_logged(column.name, base)} AS c{index}")
            value = f"c{index}" if raw else _checked(column, f"c{index}", index)
            stored.append(f"{store_sql(column, value)} AS {quote(file_column(column.name))}")
        self._reader.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._reader.run(f"SET TRANSACTION SNAPSHOT {literal(self._snapshot)}")
        blocks = self._reader.blocks(f"SELECT {', '.join(asked) or 'NULL AS c0'} FROM ONLY {name.sql}")
        try:
            first = next(blocks, None)
            if first is None:
                return 0
            self._connection.register(
                "rows_of_table", pa.RecordBatchReader.from_batches(first.schema, _chained(first, blocks))
            )
            group = f"ROW_GROUP_SIZE {row_group_rows(first.nbytes / max(first.num_rows, 1))}"
            options = f"{KEPT}, {group}"
            sql = f"COPY (SELECT {', '.join(stored)} FROM rows_of_table) TO {literal(str(target))} ({options})"
            ((rows,),) = self._connection.execute(sql).fetchall()
        except duckdb.InvalidInputException as error:
            for index, (column, _) in enumerate(columns):
                if f"misfit {index}." in str(error):
                    return str(column.name)
            raise
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            hint = f"free disk space, or give more memory: {MEMORY_VARIABLE}"
            raise UnavailableError(f"table {name} could not be copied: {error}", hint=hint) from error
        finally:
            self._connection.unregister("rows_of_table")
            blocks.close()
            # Locks on tables are not held longer than it takes to copy them.
            self._reader.end()
        return int(rows)


def _as_logged(column: str, base: str) -> str:
    """Return SQL for the text form that a value has in the log."""
    name = quote(column)
    if _CAST_IS_SAME.fullmatch(base):
        return f"{name}::text"
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN format('%s', {name}) END"


def _checked(column: Column, text: str, index: int) -> str:
    """Return SQL that reads a text form, and fails if it does not fit."""
    value = read_text_sql(column.type, text)
    if always_fits(column.type):
        return value
    return f"CASE WHEN {text} IS NOT NULL AND {value} IS NULL THEN error('misfit {index}.') ELSE {value} END"


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


# Moments to try before other publishers are locked out until the next one.
MOMENTS = 3
# As many numbers transactions have in the server's log, before they begin anew.
_NUMBERS = 1 << 32
# Extensions that hold what objects outside of them are made with. Functions in other languages are left out.
_EXTENSIONS = """
    SELECT DISTINCT e.extname FROM pg_depend d
    LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid AND t.typlen = -1
    JOIN pg_depend m ON m.classid = d.refclassid AND m.deptype = 'e'
        AND m.objid = coalesce(nullif(t.typelem, 0), d.refobjid)
    JOIN pg_extension e ON m.refclassid = 'pg_extension'::regclass AND e.oid = m.refobjid
    WHERE d.deptype IN ('n', 'a') AND e.extname <> 'plpgsql' AND d.classid IN ('pg_class'::regclass,
        'pg_type'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_rewrite'::regclass)
        AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = d.classid AND x.objid = d.objid AND x.deptype = 'e')
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in the server's log, and the name under which other connections see the commits before it."""

    lsn: str
    name: str


@contextmanager
def exported(url: str, slot: str, *, is_temporary: bool) -> Iterator[Moment]:
    """Create a slot, and hold the moment after which it receives all commits.

    Waits for the transactions that are open at the time.

    Args:
        url: The master.
        slot: Name of the slot.
        is_temporary: The slot is dropped when the moment ends.
    """
    with connect(url, replication=True) as connection, talking(url):
        kind = "TEMPORARY " if is_temporary else ""
        command = f"CREATE_REPLICATION_SLOT {quote(slot)} {kind}LOGICAL pgoutput EXPORT_SNAPSHOT"
        # The replication protocol allows simple queries only.
        result = connection.pgconn.exec_(command.encode())
        if result.status != 2:  # PGRES_TUPLES_OK
            message = result.error_message.decode().strip()
            where = without_password(url)
            raise UnavailableError(f"{where}: {message}", hint="try again", path=where)
        values = [result.get_value(0, column) or b"" for column in range(4)]
        yield Moment(values[1].decode(), values[2].decode())


@contextmanager
def published(
    url: str, publishing: Callable[[], AbstractContextManager[None]], publish_to: Callable[[str], bool]
) -> Iterator[Moment]:
    """Hold a moment up to which exactly all commits are published; no process publishes meanwhile.

    It begins when the transactions that are open now have ended. Other publishers continue until then; if one of them
    gets past the moment, another moment is taken.

    Args:
        url: The master.
        publishing: Locks out other publishers.
        publish_to: Publishes up to a place in the server's log, and returns whether nothing after it is published.
    """
    for is_last in (*[False] * MOMENTS, True):
        with ExitStack() as stack:
            if is_last:
                stack.enter_context(publishing())
            moment = stack.enter_context(exported(url, f"dbfarm_s_{secrets.token_hex(8)}", is_temporary=True))
            if not is_last:
                stack.enter_context(publishing())
            if publish_to(moment.lsn):
                yield moment
                return


@dataclass(frozen=True, slots=True)
class Look:
    """A transaction's view: the transactions that it sees, and the tables' content in it.

    Attributes:
        moment: A place in the server's log after everything that it sees.
        end: Number from which on it sees no transaction.
        open: Smaller numbers of transactions that it does not see.
    """

    url: str
    moment: Moment
    end: int
    open: frozenset[int]

    def sees(self, xid: int) -> bool:
        """Say whether it sees a transaction that is in the log, whose number has 32 bits there and rolls over."""
        is_before = (xid - self.end) % _NUMBERS >= _NUMBERS // 2
        return is_before and xid not in self.open

    def digests(self, names: Collection[Name]) -> dict[Name, Digest]:
        """Return tables' digests in it; empty if another session has locked or dropped a table since."""
        try:
            return digest_tables(self.url, self.moment, names) if names else {}
        except (UnavailableError, InvalidError):
            return {}


@contextmanager
def looking(url: str) -> Iterator[Look]:
    """Hold a view of all present commits. Unlike `exported`, it does not wait for open transactions."""
    with connect(url) as connection, connect(url) as writer, talking(url):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((name, seen),) = connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchall()
        # Writing this flushes the server's log up to here, including asynchronous commits of other sessions.
        writer.execute(
            "BEGIN; SET LOCAL synchronous_commit = local; UPDATE wlc.state SET value = value WHERE key = 'lsn'; COMMIT"
        )
        ((lsn,),) = writer.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        _, end, numbers = seen.split(":")
        yield Look(url, Moment(lsn, name), int(end), frozenset(int(n) % _NUMBERS for n in numbers.split(",") if n))


def take(
    url: str,
    moment: Moment,
    database: FarmDatabase,
    reached: Reached,
    known: Mapping[Name, Digest],
    progress: Progress | None = None,
) -> tuple[Manifest, dict[int, tuple[DescribedTable, int]], Sequences]:
    """Copy every captured table and the schema as of a moment, and publish them as a snapshot.

    Args:
        url: The master.
        moment: The result of `exported`.
        database: The farm database.
        reached: The published position at the moment.
        known: The expected content of the tables according to the capture.
        progress: Called with tables copied, tables in total, and the current activity.

    Returns:
        The published manifest; every captured table and its rows, by oid; every sequence, by oid.
    """
    with connect(url) as connection, talking(url), tempfile.TemporaryDirectory(prefix="wlc-snapshot-") as folder:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT {literal(moment.name)}")
        tables = setup.descriptions(connection)
        made_before, made_after = _created(connection, tables)
        # Captured tables are in these schemas only.
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE NOT wlc.is_system(nspname)").fetchall()
        ordered = sorted(tables.values(), key=lambda table: table.oid)
        rows = [table for table in ordered if not table.is_root]
        copied = copy_tables(url, moment.name, rows, Path(folder), progress)
        sequences = read_sequences(connection)
        roots = [table for table in ordered if table.is_root]
        lowest_first = sorted(roots, key=lambda root: -alterations.depth(root, tables))
        extensions = connection.execute(_EXTENSIONS).fetchall()
        before = (
            *(objects.extension(name) for (name,) in extensions),
            *(objects.schema(schema) for (schema,) in sorted(schemas)),
            *made_before,
        )
        connected = carried_back(statement for table in ordered for statement in alterations.connect(table))
        after = (
            *(statement for statement in connected if isinstance(statement, Ddl)),
            *(alterations.partition_view(root, ordered) for root in lowest_first),
            *made_after,
            *(statement for found in setup.described_access(connection) for statement in access.changed(None, found)),
        )
        positions = (SequencePosition(name, value) for name, value in sequences.values() if value is not None)
        files = {file.path: Path(folder) / file.path for _, found in copied for file in found}
        held = digests.of_files(_as_declared(rows, copied, Path(folder)))
        digests.refuse_changed(held, known, without_password(url))
        manifest = database.publish_snapshot(
            Manifest(
                database=database.name,
                position=reached.position,
                clock=reached.clock,
                catalog=database.name,
                schema=before,
                schema_after=after,
                tables=tuple(
                    SnapshotTable(table.qualified, layout, found)
                    for table, (layout, found) in zip(rows, copied, strict=True)
                ),
                sequences=tuple(positions),
                vector=reached.vector,
                digests=held,
            ),
            files,
        )
        return manifest, {**_counts(rows, copied), **{root.oid: (root, 0) for root in roots}}, sequences


def digest_tables(url: str, moment: Moment, names: Collection[Name] | None = None) -> dict[Name, Digest]:
    """Return captured tables' digests at a moment, if all their values fit their types.

    Args:
        url: The master.
        moment: The result of `exported` or `looking`.
        names: Names of tables; all if omitted. Locks of other sessions on these are not waited for.
    """
    with connect(url) as connection, talking(url), tempfile.TemporaryDirectory(prefix="wlc-verify-") as folder:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT {literal(moment.name)}")
        if names is not None:
            connection.execute("SET LOCAL lock_timeout = '1s'")
        found = [table for table in setup.descriptions(connection).values() if not table.is_root]
        rows = [table for table in found if names is None or table.qualified in names]
        if names:
            connection.execute(f"LOCK TABLE {', '.join(table.qualified.sql for table in rows)} IN ACCESS SHARE MODE")
        copied = copy_tables(url, moment.name, rows, Path(folder))
        return digests.of_files(_as_declared(rows, copied, Path(folder)))


def _counts(tables: list[DescribedTable], copied: Copied) -> dict[int, tuple[DescribedTable, int]]:
    counted = (sum(file.rows for file in found) for _, found in copied)
    return {table.oid: (table, rows) for table, rows in zip(tables, counted, strict=True)}


def _as_declared(tables: list[DescribedTable], copied: Copied, folder: Path) -> dict[Name, tuple[Layout, list[Path]]]:
    """Return layout and files of the tables whose files have the types of the table."""
    return {
        table.qualified: (layout, [folder / file.path for file in found])
        for table, (layout, found) in zip(tables, copied, strict=True)
        if layout.shape == table.layout.shape
    }


def _created(connection: Connection, tables: Mapping[int, DescribedTable]) -> tuple[list[Ddl], list[Ddl]]:
    """Return the statements that create tables and other objects: before rows are loaded, and afterwards.

    Types, sequences, functions and tables come before the rows, with what they are made with; indexes, views and what
    else is made of tables and views come afterwards.
    """
    first, last = setup.objects(connection, 1, 3), setup.objects(connection, 4, 5)
    described = {(CATALOG_OF_TABLES, oid): table for oid, table in sorted(tables.items())}
    waiting = {*first, *described}
    before: list[Ddl] = []
    after: list[Ddl] = []
    for thing in in_order([*first, *described, *last], needs(connection)):
        made = before if waiting else after
        waiting.discard(thing)
        if thing in described:
            made += alterations.create_apart(described[thing])
            continue
        found = first.get(thing) or last[thing]
        made += objects.create(found)
        if made is before and found.kind == "materialized view":
            after.append(objects.refresh(found))
    return before, after
