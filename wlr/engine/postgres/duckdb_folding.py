"""DuckDB beside a PostgreSQL replica: it folds changes, and writes rows as PostgreSQL's COPY reads them.

It never sees the replica. Rows pass from data files through DuckDB into a pipe, and from there in blocks to the server.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError
from wlc.farm.read_ahead import one_ahead
from wlr.engine.calculator import Scratch, connect_free_of
from wlr.engine.postgres import binary_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from wlc.dialect.postgres.connection import Connection

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 1 << 14


def work_folder(identity: str) -> Path:
    """Return the folder that the workshop for a database has for temporary files."""
    return Path(tempfile.gettempdir()).resolve() / f"wlr-{identity}" / "work"


class Workshop:
    """A DuckDB database in memory and the folder for what does not fit into it.

    Args:
        identity: Identifies the database; no other run works on it at the same time.
        folders: Folders with data files.
    """

    def __init__(self, identity: str, folders: Sequence[Path]) -> None:
        work = work_folder(identity)
        self.folder = work.parent
        try:
            # Rows of the replica pass through it.
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            hint = "Set TMPDIR to a folder with room."
            raise UnavailableError(f"{self.folder} cannot be made: {error}", hint=hint) from error
        self.scratch = Scratch(work, folders)
        self.duckdb = connect_free_of("main")
        self.scratch.confine(self.duckdb)
        # Zoned times are written as text that names their zone, UTC.
        self.duckdb.execute("SET TimeZone = 'UTC'")

    def close(self) -> None:
        """Remove the database and the folder."""
        self.duckdb.close()
        self.scratch.remove()
        with suppress(OSError):
            self.folder.rmdir()

    def bring(self, connection: Connection, query: str, quoted: Collection[str], into: str) -> int:
        """Copy the rows of a DuckDB query into a PostgreSQL table, and return how many there are.

        Args:
            connection: In a transaction.
            query: Its columns are what COPY reads.
            quoted: Columns of the query that may be empty, which is not NULL.
            into: A table with a list of columns, and options of COPY, as SQL text.
        """
        force = f", FORCE_QUOTE ({', '.join(map(quote, quoted))})" if quoted else ""
        with connection.cursor() as cursor:
            options = f"(FORMAT csv, HEADER false, NULLSTR ''{force})"
            with self._written(query, options) as rows, cursor.copy(into.encode()) as copy:
                while block := rows.read(_BLOCK_BYTES):
                    copy.write(block)
            return cursor.rowcount

    def bring_bytes(self, connection: Connection, query: str, into: str) -> int:
        """Copy rows that are made as bytes into a PostgreSQL table, and return how many there are.

        Args:
            connection: In a transaction.
            query: Its column has the bytes of each row.
            into: As for `bring`.
        """
        # Rows of one block may have more than 2 GiB.
        self.duckdb.execute("SET arrow_large_buffer_size = true")
        reader = self.duckdb.sql(query).to_arrow_reader(_BLOCK_ROWS)
        with connection.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            try:
                with (
                    cursor.copy(into.encode()) as copy,
                    closing(one_ahead(pool, reader)) as blocks,
                ):
                    copy.write(binary_rows.BEGIN)
                    for block in blocks:
                        copy.write(_content(block.column(0)))
                    copy.write(binary_rows.END)
            except BaseException:
                self.duckdb.interrupt()
                raise
            return cursor.rowcount

    @contextmanager
    def _written(self, query: str, options: str) -> Iterator[BinaryIO]:
        """Open the output of COPY for a query while it is written, so that the server reads it at the same time."""
        pipe = self.scratch.folder / "rows.csv"
        os.mkfifo(pipe, 0o600)
        # A reader finds the end of a pipe once nobody has it open for writing. We have it open until all is written.
        rows = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
        held = os.open(pipe, os.O_WRONLY)
        os.set_blocking(rows.fileno(), True)

        def write() -> None:
            try:
                self.duckdb.execute(f"COPY ({query}) TO {literal(str(pipe))} {options}")
            finally:
                os.close(held)

        with ThreadPoolExecutor(1) as pool, rows:
            writing = pool.submit(write)
            try:
                yield rows
            except BaseException:
                self.duckdb.interrupt()
                raise
            finally:
                # The writer waits until its output is read.
                while rows.read(_BLOCK_BYTES):
                    pass
                pipe.unlink()
            writing.result()


def _content(rows: pa.Array) -> memoryview:
    """Return the bytes of all rows, which lie side by side."""
    _, offsets, data = rows.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[rows.offset] : ends[rows.offset + len(rows)]]
