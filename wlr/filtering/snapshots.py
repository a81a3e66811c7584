"""A snapshot as a replica of chosen rows loads it: filtered files beside those of the farm."""

from __future__ import annotations

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
from wlc.farm.model import Ddl, SnapshotTable
from wlc.farm.schema_fold import created_table
from wlr.filtering import schema
from wlr.filtering.images import chosen_images, key_of, masking, refuse_unfit
from wlr.plan.step import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import duckdb

    from wlc.farm.model import DataFile, Digest, Name
    from wlr.engine.contract import NewReplica
    from wlr.plan.row_filters import RowFilters, TableFilter


@contextmanager
def filtered(new: NewReplica, work: Path) -> Iterator[NewReplica]:
    """Give what a replica of chosen rows is made of, given what one of all rows would be; it is there until the end.

    Raises:
        InvalidError: A filter does not fit its table, or another table needs what it leaves out.
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

    def statements(self, told: Sequence[Ddl]) -> Iterator[Ddl]:
        """Return the statements that make the schema."""
        for ddl in told:
            schema.refuse_references(ddl, self.filters)
            made = created_table(ddl)
            if made and (chosen := self.filters.of(made)) and ddl.layout is not None:
                yield schema.created(made, chosen.projected(ddl.layout))
            elif schema.filtered_subject(ddl, self.filters) is None and not self._is_altered(ddl):
                yield ddl

    def _is_altered(self, ddl: Ddl) -> bool:
        names = schema.altered(ddl)
        return names is not None and self.filters.of(names[0]) is not None
