"""A new replica file: built beside its place, and moved there when it is whole.

A replica inside a file with objects of its owner: made, rebuilt and removed in one transaction each.

Such a file is never replaced: the owner's objects stay in place, and a killed run leaves the file unchanged.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.opening import alone, wal_of
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlc.farm.store.local import synchronize
from wlr.engine.calculator import Scratch, applying, using
from wlr.engine.contract import NewReplica, loading
from wlr.engine.duckdb import changes, guard, objects
from wlr.engine.duckdb import wlr_schema as states
from wlr.engine.duckdb.objects import TargetTables, read_tables
from wlr.engine.duckdb.replica_file import attach, has_table, watched_opens, work_folder
from wlr.engine.duckdb.storage_version import of_adopted, storable
from wlr.engine.duckdb.wlr_schema import find_state
from wlr.engine.replica_state import encode
from wlr.replay.ddl import left_out, running
from wlr.replay.ddl.claims import Claims, shown
from wlr.replay.fold.net_changes import NetChange
from wlr.replay.plan.step import TableChange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from wlc.farm.model import Ddl, Manifest, Name, SnapshotTable
    from wlr.engine.replica_state import ReplicaState


_HINT = "The snapshot was made by another version, or does not fit --tables."


def build(into: Path, new: NewReplica, *, replaces: bool = False, is_read: bool = False) -> None:
    """Make a new replica; see `wlr.engine.contract.Target.build`, or `rebuild` if it replaces another one.

    Args:
        into: The file.
        new: Its contents.
        replaces: It replaces a replica.
        is_read: Other processes may be reading that replica; they keep the file that they have opened.
    """
    state = new.state
    empty = _refuse_own_tables(into, is_read=is_read) if replaces else _refuse_occupied(into)
    half = into.with_name(f".{into.name}.building")
    connection = _begin(half, state)
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
        # The file stays locked until it is in place: another run must not mistake it for the file of a killed run.
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
    """Refuse a place unless it is free or an empty database; return the identity of that file."""
    if wal_of(into).exists() and not (into.exists() and into.stat().st_size):
        raise InvalidError(f"{wal_of(into)} belongs to a database that does not exist", path=str(into))
    if find_state(into) is not None:
        raise UnavailableError(f"another process made {into}", path=str(into))
    return _identity(into)


def _refuse_own_tables(into: Path, *, is_read: bool) -> tuple[int, ...] | None:
    """Refuse to replace a replica with tables of its owner; return the identity of the file."""
    state = find_state(into)
    if state is not None:
        # Opening it for writing excludes other processes; closing it removes the write-ahead log, which would stay.
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


def owned(into: Path, catalog: str, statements: Iterable[Ddl]) -> list[str]:
    """Return the objects of a replica's file that belong to its owner, for a message; see `objects.owned`."""
    connection = attach(into, catalog, read_only=True)
    try:
        with using(into):
            return objects.owned(connection, catalog, states.read_tables(connection, catalog), statements)
    finally:
        connection.close()


@contextmanager
def _unwritten(into: Path, catalog: str, *, is_read: bool) -> Iterator[None]:
    """Exclude writers from a file while it is replaced: a write-ahead log would stay beside the new file.

    If it `is_read`, other processes may have it open for reading, but not for writing.

    It may have another catalog name than the new file, which does not matter here.
    """
    if wal_of(into).exists():
        raise UnavailableError(f"another process wrote to {into}", hint="Run it again.", path=str(into))
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


def _begin(half: Path, state: ReplicaState) -> duckdb.DuckDBPyConnection:
    """Start a new file; remove an unfinished one of a killed run."""
    with alone(half):
        if half.exists():
            # This fails with UnavailableError if another run builds it. A run killed early leaves no database.
            with suppress(InvalidError):
                attach(half, "found").close()
            half.unlink()
        wal_of(half).unlink(missing_ok=True)
        try:
            return attach(half, state.catalog, storage_version=state.storage_version)
        except BaseException:
            # No other process has it open: it did not exist a moment ago. On a full disk, it would use up the rest.
            half.unlink(missing_ok=True)
            raise


def load(connection: duckdb.DuckDBPyConnection, new: NewReplica, manifest: Manifest, scratch: Scratch) -> None:
    """Load a snapshot into a database."""
    state = new.state
    with using(Path(state.catalog)):
        before = shown(connection, state.catalog)
    ran = _run_schema(connection, state, manifest.schema)
    with using(Path(state.catalog)):
        # Read once: with many tables, reading the catalog takes longer than loading a table.
        tables = read_tables(connection, state.catalog)
    new.load(
        lambda table, files: _load_table(connection, tables, table, [scratch.reachable(file) for file in files]),
        connection,
    )
    ran += _run_schema(connection, state, manifest.schema_after)
    with _loading("the schema"):
        Claims(before, state.tables).refuse_contradiction(ran, shown(connection, state.catalog))
    with _loading("the sequences"):
        for sequence in manifest.sequences:
            running.set_sequence(connection, state.catalog, sequence)


def _run_schema(connection: duckdb.DuckDBPyConnection, state: ReplicaState, statements: Iterable[Ddl]) -> list[Ddl]:
    """Run statements, and return those that apply to the replica."""
    ran = []
    for statement in statements:
        if not left_out.is_run(statement, state.tables):
            continue
        try:
            with _loading(str(statement.object)):
                checked = running.without_outside(connection, state.catalog, statement)
                with storable(connection, state, statement):
                    running.run(connection, state.catalog, checked)
            ran.append(statement)
        except UnsupportedError as error:
            present = read_tables(connection, state.catalog).order
            if not left_out.may_fail(statement, state.tables, present):
                if unmet := left_out.unmet_reference(statement, state.tables):
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
    """Write the replica's schema `wlr`, checkpointed into the file itself."""
    connection.execute("BEGIN")
    mark_as_replica(connection, state, read_tables(connection, state.catalog).order)
    connection.execute("COMMIT")
    # DuckDB syncs it to disk. Opening the file here for a sync would release DuckDB's lock on it.
    connection.execute("CHECKPOINT")


def mark_as_replica(connection: duckdb.DuckDBPyConnection, state: ReplicaState, tables: Collection[Name]) -> None:
    """Write the schema `wlr` of a replica with these tables, in the caller's transaction."""
    states.write(connection, state.catalog, encode(state))
    states.write_tables(connection, state.catalog, tables)
    if not state.not_locked:
        guard.put_on(connection, state.catalog, tables)


def _put_in_place(half: Path, into: Path, empty: tuple[int, ...] | None) -> None:
    if _identity(into) != empty:
        raise UnavailableError(f"another process made {into}", path=str(into))
    # The place is free, or the checked empty database.
    half.replace(into)
    synchronize(into.parent)


_PROBE = "wlr_target"
_HAS_SCHEMA = "SELECT count(*) FROM duckdb_schemas() WHERE database_name = ? AND schema_name = 'wlr'"


def refuse_taken(into: Path, statements: Iterable[Ddl], patterns: tuple[str, ...]) -> None:
    """Refuse a replica with names of the owner's objects.

    Args:
        into: The file.
        statements: Statements of the snapshot, and of the log after it.
        patterns: Patterns of the replica's tables.

    Raises:
        InvalidError: A name is taken; several are named at once. Nothing was written.
    """
    connection = attach(into, _PROBE, read_only=True)
    try:
        with using(into):
            wanted = (each for each in statements if left_out.is_run(each, patterns))
            taken = objects.taken(connection, _PROBE, wanted)
            if connection.execute(_HAS_SCHEMA, [_PROBE]).fetchall()[0][0]:
                taken.append("schema wlr")
    finally:
        connection.close()
    if taken:
        raise InvalidError(
            f"{into} has objects of its owner with names that the replica needs: {', '.join(taken[:5])}",
            hint="Rename them, leave tables out with --ignore, or replicate into a file that does not exist yet.",
            path=str(into),
        )


def is_adopted(into: Path) -> bool:
    """Return whether the replica shares its file with objects of an owner."""
    if not into.exists():
        return False
    connection = attach(into, _PROBE, read_only=True)
    try:
        with using(into):
            return objects.noted(connection, _PROBE) is not None
    finally:
        connection.close()


def adopt(into: Path, new: NewReplica) -> None:
    """Make a replica inside a file, beside its owner's objects; all or nothing."""
    with _changing(into, new.state.catalog, new) as (connection, scratch):
        if has_table(connection, new.state.catalog, "wlr", "state"):
            raise UnavailableError(f"another process made {into}", path=str(into))
        _fill(connection, replace(new, state=of_adopted(connection, into, new.state)), scratch)


def rebuild(into: Path, new: NewReplica) -> None:
    """Rebuild an adopted replica, all or nothing. The owner's objects stay."""
    with _changing(into, new.state.catalog, new) as (connection, scratch):
        _empty(into, connection, new.state.catalog)
        _fill(connection, new, scratch)


def remove(into: Path, catalog: str) -> None:
    """Remove an adopted replica from its file, all or nothing. The owner's objects stay."""
    with _changing(into, catalog) as (connection, _):
        _empty(into, connection, catalog)


@contextmanager
def _changing(
    into: Path, catalog: str, new: NewReplica | None = None
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Scratch]]:
    """Open the file for one transaction; other processes cannot open it until then."""
    connection = attach(into, catalog)
    scratch = Scratch(work_folder(into), new.folders if new else ())
    try:
        scratch.confine(connection)
        with using(into):
            connection.execute("BEGIN")
            yield connection, scratch
            connection.execute("COMMIT")
            connection.execute(f"CHECKPOINT {quote(catalog)}")
    finally:
        # This rolls back an uncommitted transaction.
        scratch.remove()
        with alone(into):
            connection.close()


def _fill(connection: duckdb.DuckDBPyConnection, new: NewReplica, scratch: Scratch) -> None:
    catalog = new.state.catalog
    own, others = set(read_tables(connection, catalog).order), objects.present(connection, catalog)
    states.install(connection, catalog)
    objects.install(connection, catalog)
    if new.manifest is not None:
        load(connection, new, new.manifest, scratch)
    mark_as_replica(connection, new.state, set(read_tables(connection, catalog).order) - own)
    objects.note(connection, catalog, objects.present(connection, catalog).keys() - others.keys())


def _empty(into: Path, connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Drop all objects of replication."""
    made = objects.noted(connection, catalog) or ()
    replicated, order = states.read_tables(connection, catalog), read_tables(connection, catalog).order
    present = objects.present(connection, catalog)
    guard.let_go(connection, catalog, replicated)
    try:
        # Children before their parents.
        for name in reversed([name for name in order if name in replicated]):
            connection.execute(f"DROP TABLE {quote(catalog)}.{name.sql}")
        objects.drop_all(connection, [each for each in made if each in present])
    except (duckdb.DependencyException, duckdb.CatalogException) as error:
        raise InvalidError(
            f"{into} has objects of its owner that depend on the replica: {str(error).splitlines()[0]}",
            hint=f"duckdb {shlex.quote(str(into))}, and drop the dependent objects; then again",
            path=str(into),
        ) from error
    connection.execute(f"DROP SCHEMA {quote(catalog)}.wlr CASCADE")
