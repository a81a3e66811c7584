"""DuckDB beside a PostgreSQL replica: it folds changes, and writes rows as PostgreSQL's COPY reads them.

It never sees the replica. Rows go from data files through DuckDB into a file, and from there in blocks to the server.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.errors import UnavailableError
from wlc.model import literal, quote
from wlr.engine.duckdb.connection import Scratch, connect_free_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wlr.engine.postgres.connection import Connection

_BLOCK_BYTES = 1 << 20


class Workshop:
    """A DuckDB database in memory and the folder for what does not fit into it.

    Args:
        identity: Of the database; nobody else works on it at the same time.
        folders: Folders with data files.
    """

    def __init__(self, identity: str, folders: Sequence[Path]) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"wlr-{identity}"
        try:
            # Rows of the replica pass through it.
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            hint = "Set TMPDIR to a folder with room."
            raise UnavailableError(f"{self.folder} cannot be made: {error}", hint=hint) from error
        self.scratch = Scratch(self.folder / "work", folders)
        self.duckdb = connect_free_of("main")
        self.scratch.confine(self.duckdb)
        # Zoned times are written as text, and PostgreSQL is told that they are UTC by the text itself.
        self.duckdb.execute("SET TimeZone = 'UTC'")

    def close(self) -> None:
        """Remove all of it."""
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
        file = self.scratch.folder / "rows.csv"
        force = f", FORCE_QUOTE ({', '.join(map(quote, quoted))})" if quoted else ""
        self.duckdb.execute(f"COPY ({query}) TO {literal(str(file))} (FORMAT csv, HEADER false, NULLSTR ''{force})")
        with connection.cursor() as cursor:
            with cursor.copy(into.encode()) as copy, file.open("rb") as rows:
                while block := rows.read(_BLOCK_BYTES):
                    copy.write(block)
            file.unlink()
            return cursor.rowcount
