"""Filters snapshots and steps for a replica of chosen rows.

A snapshot gets filtered files beside those of the farm.

A step gets filtered files, and rebuilds tables after schema changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.digest_sql import sum_rows
from wlc.dialect.duckdb.file_columns import refuse_other_rows
from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal
from wlc.farm.database import describe_file
from wlc.farm.digest import EMPTY
from wlc.farm.errors import InvalidError
from wlc.farm.model import Ddl, Digest, Name, SnapshotTable, TableFile
from wlc.farm.schema_fold import created_table, table_names
from wlr.replay.ddl.left_out import schema_move
from wlr.replay.filters import schema
from wlr.replay.filters.images import chosen_images, key_of, masking, refuse_unfit, write_images
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.fold.net_changes import sources
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.step import LOCAL, Fold, Read, TableChange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb

    from wlc.farm.model import DataFile, Layout
    from wlr.engine.contract import NewReplica
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.moved_tables import EnteringTable
    from wlr.replay.plan.row_filters import RowFilters, TableFilter
    from wlr.replay.plan.step import Action, Step


@contextmanager
def filtered(new: NewReplica, work: Path) -> Iterator[NewReplica]:
    """Filter the contents of a new replica; the filtered files exist until the context ends.

    Raises:
        InvalidError: A filter does not fit its table, or leaves out rows that another table refers to.
        CorruptError: A file of the snapshot is damaged.
    """
    filters, manifest = new.state.filters, new.manifest
    if not filters or manifest is None:
        yield new
        return
    with masking(key_of(filters), work) as connection:
        run = _Snapshot(connection, filters, work, new.fetch, new.release)
        tables = tuple(run.table(table) for table in manifest.tables)
        schemas = (tuple(run.statements(part)) for part in (manifest.schema, manifest.schema_after))
        before, after = schemas
    digests = {**new.state.digests, **run.digests}
    yield replace(
        new,
        manifest=replace(manifest, tables=tables, schema=before, schema_after=after),
        state=replace(new.state, digests=digests),
        fetch=lambda file: run.local.get(file.path) or new.fetch(file),
        release=lambda path: None if path in run.written else new.release(path),
    )


@dataclass(slots=True)
class _Snapshot:
    connection: duckdb.DuckDBPyConnection
    filters: RowFilters
    work: Path
    fetch: Callable[[DataFile], Path]
    release: Callable[[Path], None]
    local: dict[str, Path] = field(default_factory=dict)
    digests: dict[Name, Digest] = field(default_factory=dict)

    @property
    def written(self) -> set[Path]:
        return set(self.local.values())

    def table(self, table: SnapshotTable) -> SnapshotTable:
        """Write the rows of a table that pass its filter."""
        chosen = self.filters.of(table.table)
        if chosen is None:
            return table
        refuse_unfit(self.connection, chosen, table.layout)
        own = chosen.projected(table.layout)
        files = tuple(file for part in table.files if (file := self._file(table, chosen, part)).rows)
        self.digests[table.table] = self._digest(replace(table, layout=own, files=files))
        return SnapshotTable(table.table, own, files)

    def _file(self, table: SnapshotTable, chosen: TableFilter, part: DataFile) -> DataFile:
        fetched = self.fetch(part)
        into, path = self.work / f"{len(self.local)}.parquet", f"{LOCAL}filtered/{len(self.local)}.parquet"
        try:
            refuse_other_rows(self.connection, table, {str(fetched): part.path})
            raw = fold.rows_sql(table.layout, [str(fetched)])
            images = chosen_images(self.connection, chosen, table.layout, raw)
            columns = ", ".join(fold.stored_columns(images.layout))
            with images.reading():
                copy = f"COPY (SELECT {columns} FROM ({images.sql})) TO {literal(str(into))} ({KEPT})"
                rows = int(self.connection.execute(copy).fetchall()[0][0])
        finally:
            self.release(fetched)
        self.local[path] = into
        return describe_file(into, path, rows)

    def _digest(self, table: SnapshotTable) -> Digest:
        if not table.files:
            return EMPTY
        local = (self.local[file.path] for file in table.files)
        return sum_rows(self.connection, table.layout, rows_of(*local))

    def statements(self, recorded: Sequence[Ddl]) -> Iterator[Ddl]:
        """Return the statements that make the schema."""
        for ddl in recorded:
            schema.refuse_references(ddl, self.filters)
            made = created_table(ddl)
            if made and (chosen := self.filters.of(made)) and ddl.layout is not None:
                yield schema.created(made, chosen.projected(ddl.layout))
            elif schema.filtered_subject(ddl, self.filters) is None and not self._is_altered(ddl):
                yield ddl

    def _is_altered(self, ddl: Ddl) -> bool:
        names = schema.altered(ddl)
        return names is not None and self.filters.of(names[0]) is not None


# Restores a table from the farm as of a schema change, given its names before and after; None for a view.
Restore = Callable[[Ddl, Name, Name], "EnteringTable | None"]


@dataclass(slots=True)
class FilteredSteps:
    """Filters steps of a replica.

    Attributes:
        state: The replica's state before the step.
        connect: Opens the filtering connection, see `wlr.replay.filters.images.masking`; called once at most.
        work: Folder for the filtered files.
        fetch: Returns the local copy of a data file.
        restore: Restores a table.
        local: Filtered files by their paths in the step.
    """

    state: ReplicaState
    connect: Callable[[], duckdb.DuckDBPyConnection]
    work: Path
    fetch: Callable[[TableFile], Path]
    restore: Restore
    local: dict[str, Path] = field(default_factory=dict)
    _rows: dict[Name, int] = field(default_factory=dict)
    _connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, opened for the first change of a filtered table: many steps change none."""
        self._connection = self._connection or self.connect()
        return self._connection

    def filtered(self, step: Step) -> Step:
        """Return the filtered step.

        Raises:
            StepError: The step changes a table so that its filter does not fit any more.
        """
        given: list[Action] = []
        actions = step.actions()
        try:
            for number, action in enumerate(actions):
                if isinstance(action, Fold):
                    given += self._fold(action)
                else:
                    given += self._ddl(action, actions[number + 1 : number + 2], step.last)
        except InvalidError as error:
            # Only another filter can fit it; skipping earlier transactions does not help.
            raise StepError(error.message, remedy=error.hint) from error
        digests = {name: digest for name, digest in step.digests.items() if self._of(name) is None}
        return replace(step, given=tuple(given), digests=digests)

    def _of(self, table: Name) -> TableFilter | None:
        return self.state.filters.of(table)

    # Rows

    def _fold(self, action: Fold) -> Iterator[Fold]:
        changes = []
        for change in action.changes:
            chosen = self._of(change.table)
            mine = self._changed(change, chosen) if chosen else change
            if mine.reads or mine.cleared is not None:
                changes.append(mine)
        if changes or action.sequences:
            yield replace(action, changes=tuple(changes))

    def _changed(self, change: TableChange, chosen: TableFilter) -> TableChange:
        cleared = None if change.cleared is None else self._count(change.table)
        mine = TableChange(change.table, (), 0, 0, cleared)
        if change.reads:
            found = sources(change, lambda read: str(self.fetch(read.file)))
            refuse_other_images(self.connection, change, found)
            layout = change.reads[-1].file.layout
            last = change.reads[-1].last
            mine = self._read(change.table, chosen, layout, fold.raw_sql(layout, found), last, cleared)
        known = 0 if cleared is not None else self._known(change.table)
        if known is not None:
            self._rows[change.table] = known + mine.added - mine.removed
        return mine

    def _read(
        self, table: Name, chosen: TableFilter, layout: Layout, raw: str, tick: int, cleared: int | None = None
    ) -> TableChange:
        """Write the passing images as a file, and return the change of the replica's table."""
        images = chosen_images(self.connection, chosen, layout, raw)
        into = self.work / f"{len(self.local)}.parquet"
        added, removed = write_images(self.connection, images, into, tick)
        if not added and not removed:
            return TableChange(table, (), 0, 0, cleared)
        path = f"{LOCAL}filtered/{into.name}"
        self.local[path] = into
        file = TableFile(describe_file(into, path, added + removed), table, images.layout)
        return TableChange(table, (Read(file, tick, tick),), added, removed, cleared)

    def _known(self, table: Name) -> int | None:
        held = self.state.digests.get(table)
        return self._rows.get(table, held.rows if isinstance(held, Digest) else None)

    def _count(self, table: Name) -> int:
        """Return the number of rows in the replica's table, which is not in the log."""
        known = self._known(table)
        if known is None:
            cause = "all rows were removed, but the replica's number of rows is unknown: a transaction was accepted"
            raise StepError(cause, table=str(table))
        return known

    # Schema

    def _ddl(self, ddl: Ddl, following: tuple[Action, ...], tick: int) -> Iterator[Action]:
        schema.refuse_references(ddl, self.state.filters)
        tables = table_names(ddl)
        made = next((table for table in tables if table.is_created), None)
        if made is not None and made.after is not None:
            yield self._created(ddl, made.after, replaces=made.before is not None) if self._of(made.after) else ddl
        elif move := schema_move(ddl):
            # A DROP TABLE and a CREATE TABLE follow.
            self._refuse_leaving(*move)
            if not any(map(self._of, move)):
                yield ddl
        elif names := schema.altered(ddl):
            yield from self._altered(ddl, *names, following, tick)
        elif schema.filtered_subject(ddl, self.state.filters) is None:
            yield ddl

    def _created(self, ddl: Ddl, table: Name, *, replaces: bool) -> Ddl:
        chosen = self._of(table)
        assert chosen is not None
        assert ddl.layout is not None
        refuse_unfit(self.connection, chosen, ddl.layout)
        self._rows[table] = 0
        return schema.created(table, chosen.projected(ddl.layout), replaces=replaces)

    def _altered(self, ddl: Ddl, old: Name, new: Name, following: tuple[Action, ...], tick: int) -> Iterator[Action]:
        self._refuse_leaving(old, new)
        chosen = self._of(new)
        if chosen is None:
            yield ddl
            return
        if ddl.layout is None or (old.folded == new.folded and not schema.concerns(ddl, chosen)):
            return
        # After a change of type, the log may repeat all rows.
        folds = [action for action in following if isinstance(action, Fold)]
        is_emptied = any(
            change.cleared is not None and change.table.folded == new.folded
            for fold in folds
            for change in fold.changes
        )
        name = ddl.object if ddl.object.folded == new.folded else new
        if old.folded != new.folded:
            yield schema.dropped(old)
        yield self._created(ddl, name, replaces=old.folded == new.folded)
        entering = None if is_emptied else self.restore(ddl, old, new)
        if entering is not None and entering.file is not None:
            layout = entering.file.layout
            raw = fold.rows_sql(layout, [str(entering.local)])
            change = self._read(name, chosen, layout, raw, tick)
            self._rows[name] = change.added
            if change.reads:
                yield Fold((change,))

    def _refuse_leaving(self, old: Name, new: Name) -> None:
        """Refuse a rename that would bypass a filter: filters belong to names."""
        if self._of(old) is not None and self._of(new) is None:
            raise InvalidError(
                f"table {old} becomes {new}, which has no filter",
                hint=f"Replicate into another place with a filter for {new} too, such as --where '{new}: …'",
            )
