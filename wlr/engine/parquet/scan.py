"""The rows of a Parquet replica, as images in storage types."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import quote
from wlc.dialect.types import storage_type
from wlc.farm.model import file_column
from wlr.engine.calculator import connect
from wlr.engine.contract import Scan
from wlr.engine.parquet.folder import with_version
from wlr.engine.table_files import fetched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.model import Name
    from wlr.engine.parquet.folder import LakeFolder, LakeTable


@contextmanager
def scanned(folder: LakeFolder, work: Path) -> Iterator[Scan]:
    """Open a replica for reading; raises as `wlr.engine.scanned` does."""
    pointer, _ = folder.require()
    version = folder.read_current(pointer)
    tables = {table.table: table for table in version.tables}
    connection = connect(work)

    @contextmanager
    def images(name: Name) -> Iterator[str]:
        with ExitStack() as stack:
            files = [stack.enter_context(fetched(folder.store, part)).path for part in tables[name].parts]
            yield _select(tables[name], files)

    try:
        yield Scan(
            connection,
            with_version(pointer.state, version),
            {name: table.layout for name, table in tables.items()},
            images,
        )
    finally:
        connection.close()


def _select(table: LakeTable, files: list[Path]) -> str:
    if not files:
        columns = (f"CAST(NULL AS {storage_type(c.type)}) AS {quote(file_column(c.name))}" for c in table.layout.stored)
        return f"SELECT {', '.join(columns)} WHERE false"
    columns = (quote(file_column(column.name)) for column in table.layout.stored)
    return f"SELECT {', '.join(columns)} FROM {rows_of(*files)}"
