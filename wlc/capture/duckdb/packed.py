"""Large change sets: the journal holds their future data file, in pieces, instead of row images.

Rows that a transaction only adds are not compared with other rows before they are published. So DuckDB writes them as
Parquet once, before the commit, and publishing extracts the file. The pieces are rows of the master's own database,
written in the user's own transaction: they are committed, copied, restored and deleted with the other rows. Why:
docs/decisions/0003-journal-in-image-tables.md.
"""

from __future__ import annotations

import glob
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalledImages
from wlc.dialect.duckdb import digest_sql
from wlc.dialect.duckdb.opening import wal_of
from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError
from wlc.farm.model import WEIGHT, file_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.capture.duckdb.journal import CapturedTable, JournalEntry
    from wlc.farm.model import Layout

# Minimum number of rows: each such transaction gets a separate data file, which does not pay off for small ones.
ROWS = 200_000
# DuckDB holds the pieces of a transaction in memory during the commit.
_MOST_BYTES = 256 << 20
_SHARE_OF_MEMORY = 8
_PIECE_BYTES = 4 << 20
_FILE = "images.parquet"


@dataclass(slots=True)
class Packing:
    """The packing of one transaction's large change sets.

    Attributes:
        database: The master's file. Its disk must have room for the transaction anyway.
        work: The only folder where DuckDB may write files, if its user has cut it off from others.
        packed_bytes: Bytes that the transaction has packed so far.
    """

    database: Path
    work: Path | None
    packed_bytes: int = 0

    def pack(
        self, connection: duckdb.DuckDBPyConnection, table: CapturedTable, tick: int, where: str
    ) -> tuple[int, int] | None:
        """Journal the rows of a table for which `where` holds, as images of added rows.

        Returns:
            Their number and the size of the file; None if files cannot be written here, or the file is too large to
            commit. Then nothing was done.
        """
        with _scratch(connection, self) as folder:
            if folder is None:
                return None
            file = folder / _FILE
            stored = ", ".join(
                f"{value} AS {quote(file_column(column.name))}"
                for value, column in zip(table.values, table.layout.stored, strict=True)
            )
            images = f"SELECT CAST({tick} AS BIGINT) AS _tick, CAST(1 AS TINYINT) AS {WEIGHT}, {stored}"
            copied = f"COPY ({images} FROM {table.sql} WHERE {where}) TO {literal(str(file))} ({KEPT})"
            rows = int(connection.execute(copied).fetchall()[0][0])
            size = file.stat().st_size
            if self.packed_bytes + size > _room(connection):
                return None
            self.packed_bytes += size
            with file.open("rb") as content:
                number = 0
                while piece := content.read(_PIECE_BYTES):
                    connection.execute(
                        f"INSERT INTO {_pieces(table.catalog)} VALUES (?, ?, ?, ?)", [tick, table.id, number, piece]
                    )
                    number += 1
            return rows, size


@contextmanager
def _scratch(connection: duckdb.DuckDBPyConnection, packing: Packing) -> Iterator[Path | None]:
    """Provide a temporary folder for one file; None if DuckDB cannot or must not write files."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix(packing.database), dir=packing.work or packing.database.parent))
    except OSError:
        yield None
        return
    try:
        yield folder if _can_write(connection, folder / _FILE) else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _can_write(connection: duckdb.DuckDBPyConnection, file: Path) -> bool:
    """Try on a separate connection: an error of DuckDB would end the user's transaction."""
    try:
        with connection.cursor() as other:
            other.execute(f"COPY (SELECT 1) TO {literal(str(file))} ({KEPT})")
    except duckdb.Error:
        return False
    # DuckDB writes a file that exists already under another name first.
    file.unlink()
    return True


def _room(connection: duckdb.DuckDBPyConnection) -> int:
    """Bytes that a transaction may pack."""
    limit = connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))").fetchall()[0][0]
    return min(_MOST_BYTES, int(limit) // _SHARE_OF_MEMORY)


def sweep(database: Path) -> None:
    """Remove files of a crashed process beside a database; the caller has exclusive use of the database."""
    # A file to pack, and a copy of the database.
    names = (_FILE, f"tmp_{_FILE}", database.name, wal_of(database).name)
    for folder in database.parent.glob(f"{glob.escape(prefix(database))}*"):
        with suppress(OSError):
            shutil.rmtree(folder / f"{database.name}.tmp", ignore_errors=True)
            for name in names:
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def prefix(database: Path) -> str:
    """Return the prefix of temporary folders beside a database."""
    return f".{database.name}.wlc-"


def _pieces(catalog: str) -> str:
    return f"{quote(catalog)}.wlc.packed"


def create(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the table of the pieces, if there is none."""
    # Parquet files are already compressed.
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {_pieces(catalog)}"
        " (tick BIGINT, layout INTEGER, number INTEGER, piece BLOB USING COMPRESSION uncompressed)"
    )


def layouts(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[int]:
    """The layouts with packed images."""
    return {number for (number,) in connection.execute(f"SELECT DISTINCT layout FROM {_pieces(catalog)}").fetchall()}


def forget(connection: duckdb.DuckDBPyConnection, catalog: str, last: int) -> None:
    """Delete the packed images of transactions up to a tick, in the caller's transaction."""
    connection.execute(f"DELETE FROM {_pieces(catalog)} WHERE tick <= {last}")


# Reading -------------------------------------------------------------------------------------------------------------


def file_name(layout: int, tick: int) -> str:
    """Name of the images of one layout that one transaction has packed."""
    return f"{layout}@{tick}"


def layout_of(name: str) -> int:
    """The layout in a name of `file_name`."""
    return int(name.partition("@")[0])


@dataclass(slots=True)
class PackedFile:
    """A data file that was taken out of the journal."""

    path: Path
    _sums: tuple[int, int] | None = None

    def sums(self, connection: duckdb.DuckDBPyConnection, layout: Layout) -> tuple[int, int]:
        """Digest of its images, and their sum by DuckDB's own hash; the file is read for that once."""
        if self._sums is None:
            self._sums = digest_sql.sum_added(connection, layout, rows_of(self.path))
        return self._sums


def extract(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    entries: Iterable[JournalEntry],
    folder: Path,
    files: dict[str, PackedFile],
) -> None:
    """Write the packed images of transactions to files.

    Args:
        connection: The connection.
        catalog: The master's database.
        entries: The transactions.
        folder: The target folder.
        files: Files written before, by `file_name`; new ones are added.

    Raises:
        UnavailableError: DuckDB shows other pieces than were journalled.
    """
    for entry in entries:
        for record in entry.records:
            if isinstance(record, JournalledImages) and record.packed:
                name = file_name(record.layout, entry.tick)
                if name not in files:
                    path = folder / f"{name}.parquet"
                    _extract(connection, catalog, entry.tick, record, path)
                    files[name] = PackedFile(path)


def _extract(
    connection: duckdb.DuckDBPyConnection, catalog: str, tick: int, record: JournalledImages, target: Path
) -> None:
    wanted = f"tick = {tick} AND layout = {record.layout}"
    written, number = 0, 0
    with target.open("wb") as file:
        while pieces := connection.execute(
            f"SELECT piece FROM {_pieces(catalog)} WHERE {wanted} AND number = {number}"
        ).fetchall():
            written += sum(file.write(piece) for (piece,) in pieces)
            number += 1
    if written != record.packed or count(connection, target) != record.added:
        raise UnavailableError(
            f"of {record.packed} journalled bytes of table {record.table} at tick {tick} DuckDB shows {written}",
            hint="close all connections to the database and run wlc flush; report this",
        )


def count(connection: duckdb.DuckDBPyConnection, file: Path) -> int:
    """Number of images in a file."""
    counted = connection.execute(f"SELECT num_rows FROM parquet_file_metadata({literal(str(file))})").fetchall()
    return int(counted[0][0])


def unpack(
    connection: duckdb.DuckDBPyConnection, catalog: str, entries: Iterable[JournalEntry], work: Path | None
) -> None:
    """Turn packed images into rows of the image tables, for readers that compare them; in the caller's transaction.

    Args:
        connection: The connection.
        catalog: The master's database.
        entries: All journalled transactions.
        work: Folder for files; a temporary one if None.
    """
    packed = [entry for entry in entries if any(getattr(record, "packed", 0) for record in entry.records)]
    if not packed:
        return
    with tempfile.TemporaryDirectory(prefix="wlc-", dir=work) as folder:
        files = dict[str, PackedFile]()
        extract(connection, catalog, packed, Path(folder), files)
        for number in {layout_of(name) for name in files}:
            paths = [file.path for name, file in files.items() if layout_of(name) == number]
            _insert(connection, journal.images_sql(catalog, number), paths)
    for entry in packed:
        records = tuple(replace(r, packed=0) if isinstance(r, JournalledImages) else r for r in entry.records)
        connection.execute(f"DELETE FROM {quote(catalog)}.wlc.entries WHERE tick = {entry.tick}")
        journal.add_entry(connection, catalog, replace(entry, records=records))
    forget(connection, catalog, packed[-1].tick)


def _insert(connection: duckdb.DuckDBPyConnection, images: str, files: Iterable[Path]) -> None:
    """Put files into an image table, which is sorted by tick."""
    parts = (f"SELECT _tick, {WEIGHT}, NULL, NULL, * EXCLUDE (_tick, {WEIGHT}) FROM {rows_of(f)}" for f in files)
    connection.execute(f'CREATE TEMP TABLE "wlc unpacked" AS {" UNION ALL ".join([f"FROM {images}", *parts])}')
    connection.execute(f"DELETE FROM {images}")
    connection.execute(f'INSERT INTO {images} FROM temp."wlc unpacked" ORDER BY _tick')
    connection.execute('DROP TABLE temp."wlc unpacked"')
