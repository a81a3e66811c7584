"""Files for readers with an older DuckDB: their storage versions, and what these cannot hold.

DuckDB writes such a file if it is made with the option STORAGE_VERSION, and keeps the version when it is opened again.
It refuses some newer types, and writes others, which make the file unreadable for the readers that it was made for.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.types import parse
from wlc.farm.errors import InvalidError
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from wlc.farm.model import Ddl
    from wlr.engine.replica_state import ReplicaState

_VIEW_COLUMNS = """
    SELECT column_name FROM duckdb_columns() JOIN duckdb_views() USING (database_name, schema_name)
    WHERE table_name = view_name AND database_name = ? AND contains(data_type, ?) ORDER BY ALL
"""


def check(into: Path, version: str, present: ReplicaState | None) -> None:
    """Check a storage version that the user typed.

    Args:
        into: The replica's file.
        version: The version.
        present: The state of the existing replica; None without one.

    Raises:
        InvalidError: There is no such version, or the replica has another one.
    """
    anew = f"make another replica: wlr replicate DB --into NEW.duckdb --storage-version {version}"
    if version not in engine.STORAGE_VERSIONS:
        known = " or ".join(engine.STORAGE_VERSIONS)
        raise InvalidError(f"storage version {version} is invalid", hint=f"--storage-version {known}")
    if present is not None and present.storage_version != version:
        kept = present.storage_version or "of DuckDB's newest files"
        raise InvalidError(
            f"{into} has the storage version {kept}, and a file keeps its version", hint=anew, path=str(into)
        )


def of_adopted(connection: duckdb.DuckDBPyConnection, into: Path, state: ReplicaState) -> ReplicaState:
    """Return the state of a new replica with the storage version of its owner's file.

    Raises:
        InvalidError: The owner's file has another version than the user typed, or one without support.
    """
    found = engine.storage_version(connection, state.catalog)
    version = "" if found == engine.NEWEST_STORAGE_VERSION else found
    if version == state.storage_version or (version in engine.STORAGE_VERSIONS and not state.storage_version):
        return replace(state, storage_version=version)
    raise InvalidError(
        f"{into} has the storage version {found}, which --adopt keeps",
        hint="replicate into a file of its own: wlr replicate DB --into NEW.duckdb",
        path=str(into),
    )


@contextmanager
def storable(connection: duckdb.DuckDBPyConnection, state: ReplicaState, statement: Ddl) -> Iterator[None]:
    """Run a schema statement if the storage version of the replica's file can hold what it makes.

    Raises:
        StepError: It cannot; the error names the table and the column.
    """
    if not state.storage_version:
        yield
        return
    lacking = engine.STORAGE_VERSIONS[state.storage_version]
    for column in statement.layout.columns if statement.layout else ():
        if parse(column.type).holds(lambda row: row.name in lacking):
            raise _unfit(f"column {column.name} of table {statement.object} has type {column.type}", state, statement)
    if any(not each.is_string and each.name.upper() == engine.UNREADABLE_TYPE for each in tokens(statement.statement)):
        raise _unfit(f"{statement.kind} {statement.object} names type {engine.UNREADABLE_TYPE}", state, statement)
    yield
    for (column,) in connection.execute(_VIEW_COLUMNS, [state.catalog, engine.UNREADABLE_TYPE]).fetchall():
        raise _unfit(f"column {column} of view {statement.object} has type {engine.UNREADABLE_TYPE}", state, statement)


def _unfit(what: str, state: ReplicaState, statement: Ddl) -> StepError:
    return StepError(
        f"{what}, which storage version {state.storage_version} cannot hold",
        table=str(statement.object),
        remedy="make another replica, without --storage-version or the table: wlr replicate DB --into NEW.duckdb"
        f" --ignore {shlex.quote(str(statement.object))}",
    )
