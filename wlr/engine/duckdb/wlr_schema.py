"""The schema `wlr` of a target: keys and values of the replica's state, its tables, and whether they are locked.

Tables of it:
    state   key and value: position, clock, master, failure …; written in the transaction that it describes
    tables  every replicated table; all others belong to the replica's owner
    guard   has a row while the replica's owner allows direct writes
    parked … temporarily, rows that refer to other rows; see `wlc.dialect.duckdb.parked_rows`
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.opening import alone, wal_of
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError
from wlc.farm.model import Name
from wlr.engine.calculator import using
from wlr.engine.duckdb.replica_file import attach, detach, has_table
from wlr.engine.replica_state import OWNER, decode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from wlr.engine.duckdb.objects import Contents
    from wlr.engine.replica_state import ReplicaState


_PROBE = "wlr_target"
# Cached contents of files that this process has closed: opening one takes 25 ms, and blocks other processes.
_closed: dict[Path, tuple[tuple[int, ...], ReplicaState, Contents]] = {}
_OBJECTS = """
    SELECT count(*) FROM (SELECT table_name FROM duckdb_tables() WHERE database_name = $1 UNION ALL
    SELECT view_name FROM duckdb_views() WHERE database_name = $1 AND NOT internal)
"""


def install(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the `wlr` schema."""
    schema = f"{quote(catalog)}.wlr"
    connection.execute(f"""
        CREATE SCHEMA {schema};
        CREATE TABLE {schema}.state (key VARCHAR, value VARCHAR);
        CREATE TABLE {schema}.tables (schema_name VARCHAR, table_name VARCHAR);
        CREATE TABLE {schema}.guard (allowed_by VARCHAR);
    """)


def note_closed(into: Path, state: ReplicaState, contents: Contents) -> None:
    """Cache the contents of a file that was just closed; it is read again only after a change."""
    if signature := _signature(into):
        _closed[into] = signature, state, contents


def known_contents(into: Path, catalog: str) -> Contents | None:
    """Return the contents of a file if this process has closed it and no process has written to it since.

    Reading a database's catalog first takes as long as a small step. Modification times distinguish two versions of a
    file, because opening it takes longer than their resolution.

    Args:
        into: The file.
        catalog: Its catalog name; the replica may have switched to a database with another name.
    """
    closed = _closed.get(into)
    if closed is None or closed[0] != _signature(into) or closed[2].tables.catalog != catalog:
        return None
    return closed[2]


def _signature(into: Path) -> tuple[int, ...] | None:
    if wal_of(into).exists():
        return None
    found = into.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def find_state(into: Path, *, adopts: bool = False) -> ReplicaState | None:
    """Read a replica's state, as `look` does."""
    state, connection = look(into, adopts=adopts)
    if connection is not None:
        connection.close()
    return state


def look(into: Path, *, adopts: bool = False) -> tuple[ReplicaState | None, duckdb.DuckDBPyConnection | None]:
    """Read a replica's state; None if the file does not exist, or is an empty database.

    Opening the file later reads the state again: the file may have changed since.

    Args:
        into: The file.
        adopts: An owner's database counts as empty, unless it is a master.

    Returns:
        The state, and a connection for opening the file, if one was made; it does not keep the file open.

    Raises:
        InvalidError: The file is something else.
        UnavailableError: It is in use.
    """
    if not into.parent.is_dir():
        raise InvalidError(
            f"there is no folder {into.parent}", hint=f"mkdir -p {shlex.quote(str(into.parent))}", path=str(into)
        )
    if not into.exists() or (into.is_file() and into.stat().st_size == 0):
        return None, None
    if not into.is_file():
        raise InvalidError(f"{into} is a folder, not a DuckDB file", path=str(into))
    closed = _closed.get(into)
    if closed and closed[0] == _signature(into):
        return closed[1], None
    # A process that opens the file for writing waits for this read, and does not fail because of it.
    with alone(into):
        connection = attach(into, _PROBE, read_only=True)
        try:
            with using(into):
                state = _read_or_refuse(connection, into, adopts=adopts)
                detach(connection, _PROBE)
        except BaseException:
            connection.close()
            raise
    return state, connection


def _read_or_refuse(connection: duckdb.DuckDBPyConnection, into: Path, *, adopts: bool) -> ReplicaState | None:
    # Checking first whether the table exists takes as long as opening the file.
    try:
        return read(connection, _PROBE, str(into))
    except duckdb.CatalogException:
        if has_table(connection, _PROBE, "wlr", "state"):
            raise
    if connection.execute(_OBJECTS, [_PROBE]).fetchall()[0][0]:
        hint = "Replicate into a file that does not exist yet, or with --adopt beside its tables."
        if has_table(connection, _PROBE, "wlc", "state"):
            hint = f"wlc status {shlex.quote(str(into))}; a replica needs a file of its own"
            raise InvalidError(f"{into} is a master, not a replica", hint=hint, path=str(into))
        if adopts:
            return None
        raise InvalidError(f"{into} is a DuckDB database, but not a replica", hint=hint, path=str(into))
    return None


def read(connection: duckdb.DuckDBPyConnection, catalog: str, path: str) -> ReplicaState:
    """Read the state.

    Raises:
        CorruptError: It is damaged, or written by a newer version.
    """
    schema = f"{quote(catalog)}.wlr"
    values = dict(connection.execute(f"SELECT key, value FROM {schema}.state").fetchall())
    unlocked = connection.execute(f"SELECT count(*) FROM {schema}.guard WHERE allowed_by = '{OWNER}'").fetchall()
    return decode(values, path, is_unlocked=bool(unlocked[0][0]))


def write(connection: duckdb.DuckDBPyConnection, catalog: str, values: dict[str, str]) -> None:
    """Replace keys of the state, in the caller's transaction."""
    table = f"{quote(catalog)}.wlr.state"
    if not values:
        return
    marks = ", ".join("?" for _ in values)
    connection.execute(f"DELETE FROM {table} WHERE key IN ({marks})", list(values))
    rows = ", ".join("(?, ?)" for _ in values)
    connection.execute(f"INSERT INTO {table} VALUES {rows}", [text for pair in values.items() for text in pair])


def read_tables(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[Name]:
    """Return the names of all replicated tables."""
    rows = connection.execute(f"SELECT schema_name, table_name FROM {quote(catalog)}.wlr.tables").fetchall()
    return {Name(*row) for row in rows}


def write_tables(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Iterable[Name]) -> None:
    """Replace the names of all replicated tables, in the caller's transaction."""
    table, wanted = f"{quote(catalog)}.wlr.tables", set(tables)
    noted = read_tables(connection, catalog)
    for sql, names in (
        (f"DELETE FROM {table} WHERE schema_name = ? AND table_name = ?", noted - wanted),
        (f"INSERT INTO {table} VALUES (?, ?)", wanted - noted),
    ):
        for name in sorted(names):
            connection.execute(sql, [name.schema, name.name])
