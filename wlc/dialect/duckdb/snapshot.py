"""Snapshots: a full copy of the database at one position, as Parquet files and the statements that build its schema."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.digest_sql import sum_quickly, sum_rows
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.duckdb.schema import schema_statements
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import storage_type, store_sql
from wlc.farm import paths
from wlc.farm.database import describe_file
from wlc.farm.digest import differing
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlc.farm.human_form import Doing
from wlc.farm.model import Manifest, SequencePosition, SnapshotTable, file_column

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    import duckdb

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import DataFile, Digest, Layout, Name, Position


@dataclass(slots=True)
class Known:
    """The expected content of tables according to the capture; other tables are not checked.

    Attributes:
        quick: Sums of DuckDB's own hash of a row, see `digest_sql.sum_quickly`. They cost a tenth of a digest. DuckDB
            may change its hash in any version, so only an equal sum is conclusive: nothing changed.
        source: The master, as its user names it.
        is_news: `held` has read tables with an unknown digest or quick sum; `quick` has them now.
    """

    digests: Mapping[Name, Digest] = field(default_factory=dict)
    quick: dict[Name, int] = field(default_factory=dict)
    source: str = "SOURCE"
    is_news: bool = False

    def held(self, connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, Digest]:
        """Read every user table as the open transaction sees it, and return the digests."""
        found = {}
        for name, layout in catalogs.tables(connection, catalog).items():
            table, known = f"{quote(catalog)}.{name.sql}", self.digests.get(name)
            rows, total = sum_quickly(connection, layout, table, store_sql)
            if known is None or (known.rows, self.quick.get(name)) != (rows, total):
                known, self.is_news = sum_rows(connection, layout, table, store_sql), True
                self.quick[name] = total
            found[name] = known
        return found


def take(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    db: FarmDatabase,
    position: Position,
    clock: datetime,
    vector: Mapping[str, int],
    known: Known | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Copy every user table and the schema as the open transaction sees them, and publish them as a snapshot.

    Args:
        connection: In a transaction in which `position` was read; preferably a separate cursor after `BEGIN TRANSACTION
            READ ONLY`, so that other connections can write. The transaction stays open; roll it back.
        catalog: Name of the database inside the connection.
        db: The farm database.
        position: The last tick that the transaction sees.
        clock: Commit time of that tick, or now if there is none.
        vector: Per history the last tick contained.
        known: The expected content of the tables according to the capture.
        folder: Where to write the files before they are published; the system's temporary directory if omitted.
        progress: Called with tables copied, tables in total, and the current activity.

    Returns:
        The published manifest. Its tables are in a valid order for loading, see `catalog.load_order`.

    Raises:
        UnsupportedError: A table cannot be copied exactly, or was changed without the capture; the message names it.
        UnavailableError: The disk or the farm failed: try again.
    """
    _check_transaction(connection)
    known = known or Known()
    before, after = schema_statements(connection, catalog)
    layouts = catalogs.tables(connection, catalog)
    # All types are checked before the first large table is copied.
    for name, layout in layouts.items():
        _select(catalog, name, layout)
    with tempfile.TemporaryDirectory(prefix="wlc-snapshot-", dir=folder) as temporary:
        files: dict[str, Path] = {}
        copied: list[SnapshotTable] = []
        for name in catalogs.load_order(connection, catalog):
            report_copied(progress, [file for table in copied for file in table.files], len(copied), len(layouts), name)
            copied.append(_copy(connection, catalog, name, layouts[name], Path(temporary), files))
        held = known.held(connection, catalog)
        if changed := differing(held, known.digests):
            # The log does not produce these rows: a snapshot of them would contradict it.
            message = f"rows of {', '.join(map(str, changed))} were changed without wlc.connect"
            raise UnsupportedError(message, hint=f"wlc farm repair {shlex.quote(known.source)}")
        # Sequences are not transactional: reading them last, they are never behind the copied rows.
        sequences = catalogs.sequences(connection, catalog)
        manifest = Manifest(
            database=db.name,
            position=position,
            clock=clock,
            catalog=catalog,
            schema=before,
            schema_after=after,
            tables=tuple(copied),
            sequences=tuple(SequencePosition(name, value) for name, value in sequences.items()),
            vector=vector,
            digests=held,
        )
        return db.publish_snapshot(manifest, files)


def report_copied(progress: Progress | None, files: Collection[DataFile], done: int, total: int, name: Name) -> None:
    """Report the table of a snapshot that is copied next, and the sizes of the files so far."""
    if progress is not None:
        now = Doing(f"copying {name}", sum(file.rows for file in files), sum(file.bytes for file in files))
        progress(done, total, now)


def _check_transaction(connection: duckdb.DuckDBPyConnection) -> None:
    """Refuse a connection without a transaction: the copies of tables would be of different moments."""
    first, second = (connection.execute("SELECT txid_current()").fetchone() for _ in range(2))
    if first != second:
        raise InvalidError("A snapshot needs an open transaction", hint="BEGIN TRANSACTION READ ONLY first")


def _select(catalog: str, name: Name, layout: Layout) -> str:
    try:
        columns = [f"{store_sql(column)} AS {quote(file_column(column.name))}" for column in layout.stored]
    except UnsupportedError as error:
        raise UnsupportedError(f"Table {name}: {error.message}", hint=error.hint) from error
    return f"SELECT {', '.join(columns)} FROM {quote(catalog)}.{name.sql}"


def digests(
    connection: duckdb.DuckDBPyConnection, catalog: str, only: Collection[Name] | None = None
) -> dict[Name, Digest]:
    """Read all or some user tables as the open transaction sees them, and return their digests."""
    return {
        name: sum_rows(connection, layout, f"{quote(catalog)}.{name.sql}", store_sql)
        for name, layout in catalogs.tables(connection, catalog).items()
        if only is None or name in only
    }


def _copy(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    name: Name,
    layout: Layout,
    folder: Path,
    files: dict[str, Path],
) -> SnapshotTable:
    """Copy one table into a new file of `folder` and list it in `files`; an empty table gets none."""
    path = paths.snapshot_data_path(len(files))
    target = folder / path
    sql = f"COPY ({_select(catalog, name, layout)}) TO {literal(str(target))} ({KEPT})"
    rows = _run_copy(connection, sql, name, layout)
    described: tuple[DataFile, ...] = ()
    if rows:
        described = (describe_file(target, path, rows),)
        files[path] = target
    return SnapshotTable(name, layout, described)


def _run_copy(connection: duckdb.DuckDBPyConnection, sql: str, name: Name, layout: Layout) -> int:
    import duckdb  # Readers of the farm's format import this package without DuckDB.

    try:
        (rows,) = connection.execute(sql).fetchone() or (0,)
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        message = f"Table {name} could not be copied: {error}"
        raise UnavailableError(message, hint="free disk space or memory, then try again") from error
    except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.NotImplementedException) as error:
        suspects = [c.name for c in layout.stored if storage_type(c.type) != c.type]
        columns = f" (look at {', '.join(map(quote, suspects))})" if suspects else ""
        message = f"Table {name} holds a value that cannot be replicated exactly{columns}: {error}"
        raise UnsupportedError(message, hint="change the value, or store the column as text") from error
    return int(rows)
