"""A new replica in a PostgreSQL database: built in one transaction, so that there is none until all of it is there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from wlc.errors import CorruptError, InvalidError, UnavailableError, UnsupportedError
from wlc.model import quote
from wlr import fold
from wlr.engine import MEMORY_VARIABLE, StepError, fit
from wlr.engine.duckdb.connection import applying as folding
from wlr.engine.postgres import connection as connections
from wlr.engine.postgres import state as states
from wlr.engine.postgres import write
from wlr.engine.postgres.catalog import Catalog, told_apart
from wlr.engine.postgres.connection import Address, applying, using
from wlr.engine.postgres.ddl import SchemaChange, text_of
from wlr.engine.postgres.names import MAIN, Names, refuse_own
from wlr.engine.postgres.target import refuse_schema
from wlr.engine.postgres.workshop import Workshop
from wlr.engine.state import encode_all
from wlr.plan import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wlc.model import DataFile, Manifest, SnapshotTable
    from wlr.engine import State
    from wlr.engine.place import Place
    from wlr.engine.postgres.connection import Connection
    from wlr.engine.postgres.translate import Statement

_TABLE = "r"


def build(
    place: Place,
    state: State,
    manifest: Manifest | None,
    fetch: Callable[[DataFile], Path],
    release: Callable[[Path], None],
    *,
    folders: Sequence[Path] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Make a new replica; see `wlr.engine.build`."""
    address = Address.of(place)
    names = _names(manifest, address)
    refuse_own(names.main, address.shown)
    connection = connections.connect(address)
    try:
        connections.take_alone(connection, address)
        with using(address):
            if states.find(connection, address) is not None:
                message = f"another process made a replica in {address.shown} meanwhile"
                raise UnavailableError(message, path=address.shown)
            connections.refuse_without_privileges(connection, address)
            if manifest is not None:
                _refuse_what_is_in_the_way(connection, state, manifest, names, address)
        builder = _Builder(connection, address, state, names, Workshop(connections.identity(connection), folders))
        try:
            builder.build(manifest, fetch, release, progress)
        finally:
            builder.workshop.close()
    finally:
        connection.close()


def _refuse_what_is_in_the_way(
    connection: Connection, state: State, manifest: Manifest, names: Names, address: Address
) -> None:
    wanted = [names.place(table.table) for table in manifest.tables if matches(table.table, state.tables)]
    if found := states.in_the_way(connection, wanted):
        listed = ", ".join(map(str, found[:5])) + (" …" if len(found) > 5 else "")
        message = f"{address.shown} has {listed} already"
        hint = "Drop or rename them, give another ?schema=, or replicate into another database."
        raise InvalidError(message, hint=hint, path=address.shown)


def _names(manifest: Manifest | None, address: Address) -> Names:
    """Choose the schema for the master's `main`; a master that is PostgreSQL has none that is special."""
    said = next((ddl for ddl in manifest.schema if text_of(ddl) is not None), None) if manifest else None
    if said is None:
        return Names(address.schema or "public")
    if address.schema is not None:
        refuse_schema(said, address)
    return Names(MAIN)


class _Builder:
    def __init__(
        self, connection: Connection, address: Address, state: State, names: Names, workshop: Workshop
    ) -> None:
        self.connection = connection
        self.address = address
        self.state = state
        self.names = names
        self.workshop = workshop
        self.schema = SchemaChange(connection, address, names, state.catalog, state.tables, ())

    def build(
        self,
        manifest: Manifest | None,
        fetch: Callable[[DataFile], Path],
        release: Callable[[Path], None],
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        """Make all of it in one transaction."""
        with using(self.address), self.connection.transaction():
            connections.as_replica(self.connection)
            before, own = Catalog(self.connection).tables, told_apart(self.connection, ())
            states.install(self.connection)
            if self.names.main != MAIN:
                connections.run(self.connection, f"CREATE SCHEMA IF NOT EXISTS {quote(self.names.main)}")
            if manifest is not None:
                self._load(manifest, fetch, release, progress)
                with self._loading("the schema"):
                    fit.refuse_change_of_own(own, told_apart(self.connection, ()), "a statement of the snapshot")
            states.write(self.connection, {**encode_all(self.state), states.SCHEMA: self.names.main})
            states.write_tables(self.connection, Catalog(self.connection).tables - before)

    def _load(
        self,
        manifest: Manifest,
        fetch: Callable[[DataFile], Path],
        release: Callable[[Path], None],
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        held_back: list[Statement] = []
        for ddl in manifest.schema:
            with self._loading(str(ddl.object)):
                self.schema.run(ddl, holds_back=held_back)
        wanted = [table for table in manifest.tables if matches(table.table, self.state.tables)]
        kinds = Catalog(self.connection).kinds
        total, done = sum(file.rows for table in wanted for file in table.files), 0
        for table in wanted:
            if progress:
                progress(done, total, f"loading {table.table}")
            fetched = [fetch(file) for file in table.files]
            with self._loading(f"table {table.table}"):
                done += self._load_table(table, fetched, freezes=kinds.get(self.names.place(table.table)) == _TABLE)
            for file in fetched:
                release(file)
        with self._loading("the schema"):
            for statement in held_back:
                self.schema.execute(statement)
        for ddl in manifest.schema_after:
            with self._loading(str(ddl.object)):
                self.schema.run(ddl)
        with self._loading("the sequences"):
            for sequence in manifest.sequences:
                self.schema.set_sequence(sequence)

    def _load_table(self, table: SnapshotTable, files: list[Path], *, freezes: bool) -> int:
        rows = sum(file.rows for file in table.files)
        if not files:
            return 0
        described = self.names.describe(table.table, table.layout)
        source = fold.rows_sql(table.layout, [self.workshop.scratch.reachable(file) for file in files])
        query = f"{{}} FROM ({source}) AS n{{}}"
        with folding(self.workshop.folder):
            found = write.add(self.connection, self.workshop, described, query, is_folded=False, freezes=freezes)
        if found != rows:
            raise CorruptError(f"the snapshot's table {table.table} has {found} rows, the manifest says {rows}")
        return rows

    @contextmanager
    def _loading(self, what: str) -> Iterator[None]:
        try:
            with applying(self.address):
                yield
        except StepError as error:
            if error.is_shortage:
                hint = f"Give it more memory: {MEMORY_VARIABLE}."
                raise UnavailableError(f"{what} of the snapshot cannot be loaded: {error.cause}", hint=hint) from error
            hint = "Leave the table out with --tables, or change it in the master."
            raise UnsupportedError(f"{what} of the snapshot cannot be made: {error.cause}", hint=hint) from error
