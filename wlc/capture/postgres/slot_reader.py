"""Looks into the slot of a master, and what one look leaves for the next: a connection and a database in memory.

Making these takes longer than to read and to publish a small transaction.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.capture.postgres.connection import ArrowReader
from wlc.capture.postgres.gathering import gathered
from wlc.capture.postgres.row_store import RowDatabase
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.capture.postgres.gathering import Gathering, PublishedTable
    from wlc.capture.postgres.state import SlotState


class SlotReader:
    """Looks into slots; used by one thread, until it is closed.

    Args:
        url: The master.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows = RowDatabase()
        self._reader: ArrowReader | None = None

    @contextmanager
    def gathered(
        self, state: SlotState, tables: dict[int, PublishedTable], upto: str, most: int | None
    ) -> Iterator[Gathering]:
        """Gather what a slot holds, from its beginning on; nothing is given up there.

        Args:
            state: Of the slot.
            tables: Every captured table as the last batch left it, by oid; they are changed.
            upto: Place in the server's log behind which nothing is read but the rest of a transaction.
            most: So many messages are read, and the rest of a transaction; None: all.

        Raises:
            UnsupportedError: What the slot holds cannot be published.
            UnavailableError: The server cannot be reached, or there is not enough memory or disk space.
        """
        slot, publication = literal(state.slot), literal(f'"{state.publication}"')
        limits = f"{literal(upto)}::pg_lsn, {'NULL' if most is None else most}"
        options = f"'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'"
        query = f"SELECT data FROM pg_logical_slot_peek_binary_changes({slot}, {limits}, {options})"
        try:
            with (
                tempfile.TemporaryDirectory(prefix="wlc-") as folder,
                gathered(Path(folder), tables, state.prefix, self._rows) as gathering,
            ):
                reader = self._opened()
                gathering.read(reader.blocks(query))
                # An open transaction would keep the server from cleaning up.
                reader.end()
                yield gathering
        except BaseException:
            # An answer that was read in part, or an error of DuckDB, must not reach the next look.
            self.close()
            raise

    def _opened(self) -> ArrowReader:
        if self._reader is None:
            self._reader = ArrowReader(self._url)
        return self._reader

    def close(self) -> None:
        """Give up the connection and the memory; another look makes them anew."""
        reader, self._reader = self._reader, None
        try:
            if reader is not None:
                reader.close()
        finally:
            self._rows.close()
