"""A new replica file: built beside its place, and put there when it is whole."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.opening import alone, wal_of
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlc.farm.store.local import synchronize
from wlr.ddl import relevance, running
from wlr.ddl.claims import Claims
from wlr.ddl.shown_catalog import shown
from wlr.engine.calculator import Scratch, applying, using
from wlr.engine.contract import NewReplica, loading
from wlr.engine.duckdb import changes, guard
from wlr.engine.duckdb import state as states
from wlr.engine.duckdb.connection import attach, work_folder
from wlr.engine.duckdb.file_opens import watched_opens
from wlr.engine.duckdb.state import find_state
from wlr.engine.duckdb.tables import TargetTables, read_tables
from wlr.engine.state import encode
from wlr.fold.net_changes import NetChange
from wlr.plan.step import TableChange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    import duckdb

    from wlc.farm.model import Ddl, Manifest, Name, SnapshotTable
    from wlr.engine.state import ReplicaState


_HINT = "The snapshot was made by another version, or does not fit --tables."


def build(into: Path, new: NewReplica, *, replaces: bool = False, is_read: bool = False) -> None:
    """Make a new replica; see `wlr.engine.contract.Target.build`, or `rebuild` where it replaces another one.

    Args:
        into: The file.
        new: What it is made of.
        replaces: It takes the place of a replica.
        is_read: Others may read that one meanwhile; they keep what they have opened.
    """
    state = new.state
    empty = _refuse_own_tables(into, is_read=is_read) if replaces else _refuse_occupied(into)
    half = into.with_name(f".{into.name}.building")
    connection = _begin(half, state.catalog)
    scratch = Scratch(work_folder(half), new.folders)
    try:
        with using(half):
            scratch.confine(connection)
            states.install(connection, state.catalog)
        if new.manifest is not None:
            load(connection, new, new.manifest, scratch)
        with using(half):
            _finish(connection, state)
        scratch.remove()
        # The file stays locked until it is in place: another run must not take it for one that a killed run left.
        with alone(into), _unwritten(into, state.catalog, is_read=is_read) if replaces else nullcontext():
            _put_in_place(half, into, empty)
    except BaseException:
        scratch.remove()
        half.unlink(missing_ok=True)
        wal_of(half).unlink(missing_ok=True)
        raise
    finally:
        with alone(into):
            connection.close()


def _refuse_occupied(into: Path) -> tuple[int, ...] | None:
    """Refuse a place that holds anything but an empty database; return what tells that one from another file."""
    if wal_of(into).exists() and not (into.exists() and into.stat().st_size):
        raise InvalidError(f"{wal_of(into)} belongs to a database that is not there", path=str(into))
    if find_state(into) is not None:
        raise UnavailableError(f"another process made {into} meanwhile", path=str(into))
    return _identity(into)


def _refuse_own_tables(into: Path, *, is_read: bool) -> tuple[int, ...] | None:
    """Refuse to replace a replica that holds more than what is replicated; return what tells it from another file."""
    state = find_state(into)
    if state is not None:
        # Opened for writing, nobody else has it; closed, it has no write-ahead log that would outlive it.
        connection = attach(into, state.catalog, read_only=is_read)
        try:
            with using(into):
                replicated = states.read_tables(connection, state.catalog)
                own = [name for name in read_tables(connection, state.catalog).order if name not in replicated]
        finally:
            connection.close()
        if own:
            raise InvalidError(
                f"{into} has tables of its owner, which would be lost: {', '.join(map(str, own[:5]))}",
                hint="Move them to another file, or replicate into a new one.",
                path=str(into),
            )
    return _identity(into)


@contextmanager
def _unwritten(into: Path, catalog: str, *, is_read: bool) -> Iterator[None]:
    """Keep others from opening a file while it is replaced: its write-ahead log would stay beside the new file.

    If it `is_read`, others may have it open for reading, and nobody for writing.

    It may be under another name than the new file's database, which does not matter here.
    """
    if wal_of(into).exists():
        raise UnavailableError(f"{into} was written to meanwhile", hint="Run it again.", path=str(into))
    connection = attach(into, catalog, read_only=is_read) if into.exists() else None
    try:
        with watched_opens(into) if is_read else nullcontext(lambda: None) as await_quiet:
            await_quiet()
            yield
    finally:
        if connection is not None:
            connection.close()


def _identity(into: Path) -> tuple[int, ...] | None:
    if not into.exists():
        return None
    found = into.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _begin(half: Path, catalog: str) -> duckdb.DuckDBPyConnection:
    """Start a new file; remove an unfinished one that a killed run left."""
    with alone(half):
        if half.exists():
            # This fails with UnavailableError if another run builds it. A run killed early left no database.
            with suppress(InvalidError):
                attach(half, "found").close()
            half.unlink()
        wal_of(half).unlink(missing_ok=True)
        try:
            return attach(half, catalog)
        except BaseException:
            # Nobody else has it: it was not there a moment ago. Where the disk is full, it takes the last of it.
            half.unlink(missing_ok=True)
            raise


def load(connection: duckdb.DuckDBPyConnection, new: NewReplica, manifest: Manifest, scratch: Scratch) -> None:
    """Load a snapshot into a database."""
    state = new.state
    with using(Path(state.catalog)):
        before = shown(connection, state.catalog)
    ran = _run_schema(connection, state, manifest.schema)
    with using(Path(state.catalog)):
        # Once for all: with many tables, the catalog takes longer to read than a table to load.
        tables = read_tables(connection, state.catalog)
    new.load(lambda table, files: _load_table(connection, tables, table, [scratch.reachable(file) for file in files]))
    ran += _run_schema(connection, state, manifest.schema_after)
    with _loading("the schema"):
        Claims(before, state.tables).refuse_contradiction(ran, shown(connection, state.catalog))
    with _loading("the sequences"):
        for sequence in manifest.sequences:
            running.set_sequence(connection, state.catalog, sequence)


def _run_schema(connection: duckdb.DuckDBPyConnection, state: ReplicaState, statements: Iterable[Ddl]) -> list[Ddl]:
    """Run statements, and return those that the replica has."""
    ran = []
    for statement in statements:
        if not relevance.is_run(statement, state.tables):
            continue
        try:
            with _loading(str(statement.object)):
                checked = running.without_outside(connection, state.catalog, statement)
                running.run(connection, state.catalog, checked)
            ran.append(statement)
        except UnsupportedError as error:
            present = read_tables(connection, state.catalog).order
            if not relevance.may_fail(statement, state.tables, present):
                if unmet := relevance.unmet_reference(statement, state.tables):
                    raise unmet from error
                raise
    return ran


def _load_table(
    connection: duckdb.DuckDBPyConnection, tables: TargetTables, table: SnapshotTable, files: list[str]
) -> int:
    if not files:
        return 0
    with _loading(f"table {table.table}"):
        described = tables.describe(table.table, table.layout)
        source = f"({fold.rows_sql(table.layout, files)})"
        rows = sum(file.rows for file in table.files)
        change = TableChange(table.table, (), rows, 0)
        return changes.add(connection, NetChange(described, change, source, 0, rows))


@contextmanager
def _loading(what: str) -> Iterator[None]:
    with loading(what, _HINT), applying(Path(what)):
        yield


def _finish(connection: duckdb.DuckDBPyConnection, state: ReplicaState) -> None:
    """Write what makes the file a replica, all of it into the file itself."""
    connection.execute("BEGIN")
    mark_as_replica(connection, state, read_tables(connection, state.catalog).order)
    connection.execute("COMMIT")
    # DuckDB writes it through to the disk. Opening the file here to do so would give up DuckDB's lock on it.
    connection.execute("CHECKPOINT")


def mark_as_replica(connection: duckdb.DuckDBPyConnection, state: ReplicaState, tables: Collection[Name]) -> None:
    """Write what makes a database a replica that holds these tables, in the caller's transaction."""
    states.write(connection, state.catalog, encode(state))
    states.write_tables(connection, state.catalog, tables)
    guard.put_on(connection, state.catalog, tables)


def _put_in_place(half: Path, into: Path, empty: tuple[int, ...] | None) -> None:
    if _identity(into) != empty:
        raise UnavailableError(f"another process made {into} meanwhile", path=str(into))
    # The place holds nothing, or the empty database that was checked.
    half.replace(into)
    synchronize(into.parent)
