"""A new replica in a PostgreSQL database: one transaction builds it, so it exists only when it is complete."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError, UnavailableError
from wlr.engine.calculator import applying as folding
from wlr.engine.contract import NewReplica, loading
from wlr.engine.postgres import replica_connection as connections
from wlr.engine.postgres import wlr_schema as states
from wlr.engine.postgres import write
from wlr.engine.postgres.access import Access
from wlr.engine.postgres.catalog import MAIN, Names, PostgresCatalog, distinguishing, refuse_own, refuse_schema
from wlr.engine.postgres.ddl import EXTENSION, SchemaChange, missing_extensions, text_of, warn_of_missing
from wlr.engine.postgres.duckdb_folding import Workshop
from wlr.engine.postgres.replica_connection import Address, applying, using
from wlr.engine.postgres.shown_catalog import shown, shown_after
from wlr.engine.replica_state import encode
from wlr.replay.ddl.claims import Claims
from wlr.replay.fold import unfit_changes
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.model import Ddl, Manifest, Name, SnapshotTable
    from wlr.engine.place import Place
    from wlr.engine.postgres.translate import PostgresStatement
    from wlr.engine.replica_state import ReplicaState

_TABLE = "r"


def build(place: Place, new: NewReplica) -> None:
    """Make a new replica; see `wlr.engine.contract.Target.build`."""
    state, manifest = new.state, new.manifest
    address = Address.of(place)
    names = _names(manifest, address)
    refuse_own(names.main, address.shown)
    with closing(connections.connect(address)) as connection:
        connections.take_alone(connection, address)
        with using(address):
            if states.find(connection, address) is not None:
                message = f"another process made a replica in {address.shown} meanwhile"
                raise UnavailableError(message, path=address.shown)
            connections.refuse_without_privileges(connection, address)
            if manifest is not None:
                _refuse_what_is_in_the_way(connection, state, manifest, names, address)
                _refuse_missing_extensions(connection, state, manifest, address)
        workshop = Workshop(connections.identity(connection), new.folders)
        with closing(workshop):
            _Builder(connection, address, state, names, workshop).build(new)


def _refuse_what_is_in_the_way(
    connection: Connection, state: ReplicaState, manifest: Manifest, names: Names, address: Address
) -> None:
    wanted = [names.place(table.table) for table in manifest.tables if matches(table.table, state.tables)]
    if found := states.in_the_way(connection, wanted):
        listed = ", ".join(map(str, found[:5])) + (" …" if len(found) > 5 else "")
        message = f"{address.shown} has {listed} already"
        hint = "Drop or rename them, give another ?schema=, or replicate into another database."
        raise InvalidError(message, hint=hint, path=address.shown)


def _refuse_missing_extensions(
    connection: Connection, state: ReplicaState, manifest: Manifest, address: Address
) -> None:
    missing = missing_extensions(connection, manifest.schema)
    # The tables that a replica of some tables has may not need them.
    if missing and not state.tables:
        message = f"{address.shown} lacks extensions of the master: {', '.join(missing)}"
        statements = " ".join(f"{EXTENSION} {quote(name)};" for name in missing)
        raise InvalidError(message, hint=f"as a superuser, in that database: {statements}", path=address.shown)


def _names(manifest: Manifest | None, address: Address) -> Names:
    """Choose the schema for the master's `main`; a PostgreSQL master has no such schema."""
    said = next((ddl for ddl in manifest.schema if text_of(ddl) is not None), None) if manifest else None
    if said is None:
        return Names(address.schema or "public")
    if address.schema is not None:
        refuse_schema(said, address.shown)
    return Names(MAIN)


class _Builder:
    def __init__(
        self, connection: Connection, address: Address, state: ReplicaState, names: Names, workshop: Workshop
    ) -> None:
        self.connection = connection
        self.address = address
        self.state = state
        self.names = names
        self.workshop = workshop
        self.left_out: dict[str, str] = {}
        self.schema = SchemaChange(
            connection, address, names, state.catalog, state.tables, (), self.left_out, gives=state.access
        )

    def build(self, new: NewReplica) -> None:
        """Make all of it in one transaction."""
        with using(self.address), self.connection.transaction():
            connections.as_replica(self.connection)
            before, own = PostgresCatalog(self.connection).tables, distinguishing(self.connection, ())
            has_generated = self.names.main != MAIN
            shown_before = shown(self.connection, has_generated=has_generated)
            claims = Claims(shown_before, self.state.tables, place=self.names.place)
            states.install(self.connection)
            if self.names.main != MAIN:
                connections.run(self.connection, f"CREATE SCHEMA IF NOT EXISTS {quote(self.names.main)}")
            if new.manifest is not None:
                made = self._load(new, new.manifest, before)
                with self._loading("the schema"):
                    after = shown_after(self.connection, shown_before, has_generated=has_generated)
                    claims.refuse_contradiction(made, after, self.schema.made_anew)
                    self.schema.try_again()
                    unfit_changes.refuse_change_of_own(
                        own, distinguishing(self.connection, ()), "a statement of the snapshot"
                    )
            states.write(
                self.connection, {**encode(replace(self.state, left_out=self.left_out)), states.SCHEMA: self.names.main}
            )
            states.write_tables(self.connection, PostgresCatalog(self.connection).tables - before)
        warn_of_missing(self.left_out, {})

    def _load(self, new: NewReplica, manifest: Manifest, before: Collection[Name]) -> list[Ddl]:
        """Load a snapshot, and return its statements that are meant for this replica."""
        held_back: list[PostgresStatement] = []
        made = []
        # Functions come before the tables that they read, for defaults and checks call functions.
        connections.run(self.connection, "SET LOCAL check_function_bodies = off")
        for ddl in manifest.schema:
            with self._loading(str(ddl.object)):
                if ddl.kind.endswith("VIEW") and text_of(ddl) is not None:
                    # A table has a column of the type that its rows are.
                    self._note_tables(before)
                made += [ddl] if self.schema.run(ddl, holds_back=held_back) else []
        connections.run(self.connection, "SET LOCAL check_function_bodies = on")
        kinds = PostgresCatalog(self.connection).kinds

        def load_table(table: SnapshotTable, files: list[Path]) -> int:
            with self._loading(f"table {table.table}"):
                is_ordinary = kinds.get(self.names.place(table.table)) == _TABLE
                return self._load_table(table, files, freezes=is_ordinary)

        new.load(load_table)
        with self._loading("the schema"):
            for statement in held_back:
                self.schema.execute(statement)
        self._note_tables(before)
        for ddl in manifest.schema_after:
            with self._loading(str(ddl.object)):
                made += [ddl] if self.schema.run(ddl) else []
        with self._loading("the sequences"):
            for sequence in manifest.sequences:
                self.schema.set_sequence(sequence)
        return made

    def _note_tables(self, before: Collection[Name]) -> None:
        """Let views be judged by the tables that there are now."""
        made = PostgresCatalog(self.connection).tables.difference(before)
        self.schema.access = Access(self.connection, self.address, made, self.left_out, gives=self.state.access)

    def _load_table(self, table: SnapshotTable, files: list[Path], *, freezes: bool) -> int:
        if not files:
            return 0
        described = self.names.describe(table.table, table.layout)
        source = fold.rows_sql(table.layout, [self.workshop.scratch.reachable(file) for file in files])
        query = f"{{}} FROM ({source}) AS n{{}}"
        with folding(self.workshop.folder):
            rows = sum(file.rows for file in table.files)
            return write.add(self.connection, self.workshop, described, query, rows, is_folded=False, freezes=freezes)

    @contextmanager
    def _loading(self, what: str) -> Iterator[None]:
        hint = "Leave the table out with --tables, or change it in the master."
        with loading(what, hint), applying(self.address):
            yield
