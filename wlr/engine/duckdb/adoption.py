"""A replica inside a file that holds things of its owner's: made, made anew and removed in one transaction each.

Nothing is built beside the file and put in its place: what the owner has there stays where it is, byte for byte, and a
run that is killed leaves the file as it was.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.opening import alone
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError, UnavailableError
from wlr.ddl import relevance
from wlr.engine.calculator import Scratch, using
from wlr.engine.duckdb import guard, objects
from wlr.engine.duckdb import state as states
from wlr.engine.duckdb.build import load, mark_as_replica
from wlr.engine.duckdb.connection import attach, has_table, work_folder
from wlr.engine.duckdb.tables import read_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from wlc.farm.model import Ddl
    from wlr.engine.contract import NewReplica

_PROBE = "wlr_target"
_HAS_SCHEMA = "SELECT count(*) FROM duckdb_schemas() WHERE database_name = ? AND schema_name = 'wlr'"


def refuse_taken(into: Path, statements: Iterable[Ddl], patterns: tuple[str, ...]) -> None:
    """Refuse to make a replica that would have something with the name of what the owner has.

    Args:
        into: The file.
        statements: Of the snapshot, and of the log after it.
        patterns: Of the tables that the replica will have.

    Raises:
        InvalidError: A name is taken; several are named at once. Nothing was written.
    """
    connection = attach(into, _PROBE, read_only=True)
    try:
        with using(into):
            wanted = (each for each in statements if relevance.is_run(each, patterns))
            taken = objects.taken(connection, _PROBE, wanted)
            if connection.execute(_HAS_SCHEMA, [_PROBE]).fetchall()[0][0]:
                taken.append("schema wlr")
    finally:
        connection.close()
    if taken:
        raise InvalidError(
            f"{into} has things of its owner with names that the replica needs: {', '.join(taken[:5])}",
            hint="Rename them, leave tables out with --ignore, or replicate into a file that does not exist yet.",
            path=str(into),
        )


def is_adopted(into: Path) -> bool:
    """Say whether the replica in a file shares it with things of an owner's."""
    if not into.exists():
        return False
    connection = attach(into, _PROBE, read_only=True)
    try:
        with using(into):
            return objects.noted(connection, _PROBE) is not None
    finally:
        connection.close()


def adopt(into: Path, new: NewReplica) -> None:
    """Make a replica inside a file, beside what its owner has there; all or nothing."""
    with _changing(into, new.state.catalog, new) as (connection, scratch):
        if has_table(connection, new.state.catalog, "wlr", "state"):
            raise UnavailableError(f"another process made {into} meanwhile", path=str(into))
        _fill(connection, new, scratch)


def make_anew(into: Path, new: NewReplica) -> None:
    """Make an adopted replica anew; all or nothing. What the owner has stays."""
    with _changing(into, new.state.catalog, new) as (connection, scratch):
        _empty(into, connection, new.state.catalog)
        _fill(connection, new, scratch)


def remove(into: Path, catalog: str) -> None:
    """Remove an adopted replica from its file; all or nothing. What the owner has stays."""
    with _changing(into, catalog) as (connection, _):
        _empty(into, connection, catalog)


@contextmanager
def _changing(
    into: Path, catalog: str, new: NewReplica | None = None
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Scratch]]:
    """Open the file for one transaction, which nobody else can open meanwhile."""
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
        # A transaction that was not committed is rolled back by this.
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
    """Drop all that replication has made."""
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
            f"{into} has things of its owner that depend on the replica: {str(error).splitlines()[0]}",
            hint=f"duckdb {shlex.quote(str(into))}, and drop what depends on it; then again",
            path=str(into),
        ) from error
    connection.execute(f"DROP SCHEMA {quote(catalog)}.wlr CASCADE")
