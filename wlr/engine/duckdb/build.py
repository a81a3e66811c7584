"""A new replica file: built beside its place, and put there when it is whole."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.errors import CorruptError, InvalidError, UnavailableError, UnsupportedError
from wlc.opening import alone
from wlr import fold
from wlr.engine import MEMORY_VARIABLE, StepError
from wlr.engine.duckdb import changes, ddl, guard
from wlr.engine.duckdb import state as states
from wlr.engine.duckdb.connection import Scratch, applying, attach, using
from wlr.engine.duckdb.tables import read_tables
from wlr.engine.duckdb.target import find_state, work_folder
from wlr.engine.state import encode_all
from wlr.plan import TableChange, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import duckdb

    from wlc.model import DataFile, Ddl, Manifest, SnapshotTable
    from wlr.engine import State


def build(
    into: Path,
    state: State,
    manifest: Manifest | None,
    fetch: Callable[[DataFile], Path],
    release: Callable[[Path], None],
    *,
    folders: Sequence[Path] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Make a new replica; see `wlr.engine.build`."""
    empty = _refuse_occupied(into)
    half = into.with_name(f".{into.name}.building")
    connection = _begin(half, state.catalog)
    scratch = Scratch(work_folder(half), folders)
    try:
        with using(half):
            scratch.confine(connection)
            states.install(connection, state.catalog)
        if manifest is not None:
            _load(connection, state, manifest, fetch, release, scratch, progress)
        with using(half):
            _finish(connection, state)
        scratch.remove()
        # The file stays locked until it is in place: another run must not take it for one that a killed run left.
        with alone(into):
            _put_in_place(half, into, empty)
    except BaseException:
        scratch.remove()
        half.unlink(missing_ok=True)
        _wal(half).unlink(missing_ok=True)
        raise
    finally:
        with alone(into):
            connection.close()


def _wal(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def _refuse_occupied(into: Path) -> tuple[int, ...] | None:
    """Refuse a place that holds anything but an empty database; return what tells that one from another file."""
    if _wal(into).exists() and not (into.exists() and into.stat().st_size):
        raise InvalidError(f"{_wal(into)} belongs to a database that is not there", path=str(into))
    if find_state(into) is not None:
        raise UnavailableError(f"another process made {into} meanwhile", path=str(into))
    return _identity(into)


def _identity(into: Path) -> tuple[int, ...] | None:
    if not into.exists():
        return None
    found = into.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _begin(half: Path, catalog: str) -> duckdb.DuckDBPyConnection:
    """Start the half-made file afresh; what a killed run left of one is worth nothing."""
    with alone(half):
        if half.exists():
            # Fails with UnavailableError if another run is at it; a run killed in its first moments left no database.
            with suppress(InvalidError):
                attach(half, "found").close()
            half.unlink()
        _wal(half).unlink(missing_ok=True)
        try:
            return attach(half, catalog)
        except BaseException:
            # Nobody else has it: it was not there a moment ago. Where the disk is full, it takes the last of it.
            half.unlink(missing_ok=True)
            raise


def _load(
    connection: duckdb.DuckDBPyConnection,
    state: State,
    manifest: Manifest,
    fetch: Callable[[DataFile], Path],
    release: Callable[[Path], None],
    scratch: Scratch,
    progress: Callable[[int, int, str], None] | None,
) -> None:
    _run_schema(connection, state, manifest.schema)
    wanted = [table for table in manifest.tables if matches(table.table, state.tables)]
    total, done = sum(file.rows for table in wanted for file in table.files), 0
    for table in wanted:
        if progress:
            progress(done, total, f"loading {table.table}")
        fetched = [fetch(file) for file in table.files]
        done += _load_table(connection, state.catalog, table, [scratch.reachable(file) for file in fetched])
        for file in fetched:
            release(file)
    _run_schema(connection, state, manifest.schema_after)
    with _loading("the sequences"):
        for sequence in manifest.sequences:
            ddl.set_sequence(connection, state.catalog, sequence)


def _run_schema(connection: duckdb.DuckDBPyConnection, state: State, statements: Iterable[Ddl]) -> None:
    for statement in statements:
        if not ddl.is_run(statement, state.tables):
            continue
        try:
            with _loading(str(statement.object)):
                checked = ddl.without_outside(connection, state.catalog, statement)
                ddl.run(connection, state.catalog, checked, ())
        except UnsupportedError:
            present = read_tables(connection, state.catalog).order
            if not ddl.may_fail(statement, state.tables, present):
                raise


def _load_table(connection: duckdb.DuckDBPyConnection, catalog: str, table: SnapshotTable, files: list[str]) -> int:
    rows = sum(file.rows for file in table.files)
    if not files:
        return 0
    with _loading(f"table {table.table}"):
        described = read_tables(connection, catalog).describe(table.table, table.layout)
        source = f"({fold.rows_sql(table.layout, files)})"
        change = TableChange(table.table, (), rows, 0)
        found = changes.add(connection, changes.Net(described, change, source, 0, rows))
    if found != rows:
        raise CorruptError(f"the snapshot's table {table.table} has {found} rows, the manifest says {rows}")
    return rows


@contextmanager
def _loading(what: str) -> Iterator[None]:
    try:
        with applying(Path(what)):
            yield
    except StepError as error:
        if error.is_shortage:
            hint = f"Give it more memory: {MEMORY_VARIABLE}."
            raise UnavailableError(f"{what} of the snapshot cannot be loaded: {error.cause}", hint=hint) from error
        hint = "The snapshot was made by another version, or does not fit --tables."
        raise UnsupportedError(f"{what} of the snapshot cannot be made: {error.cause}", hint=hint) from error


def _finish(connection: duckdb.DuckDBPyConnection, state: State) -> None:
    """Write what makes the file a replica, all of it into the file itself."""
    tables = read_tables(connection, state.catalog).order
    connection.execute("BEGIN")
    states.write(connection, state.catalog, encode_all(state))
    states.write_tables(connection, state.catalog, tables)
    guard.put_on(connection, state.catalog, tables)
    connection.execute("COMMIT")
    # DuckDB writes it through to the disk. Opening the file here to do so would give up DuckDB's lock on it.
    connection.execute("CHECKPOINT")


def _put_in_place(half: Path, into: Path, empty: tuple[int, ...] | None) -> None:
    if _identity(into) != empty:
        raise UnavailableError(f"another process made {into} meanwhile", path=str(into))
    # What is there is the empty database that was looked at, if anything.
    half.replace(into)
    folder = os.open(into.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
