"""The replication slot of a PostgreSQL master, and places in the server's log.

A PostgreSQL master's state beyond that of every master: its slot and the published position in it.

Readers of a master's slot, which keep a connection and a database in memory between reads.

Creating these takes longer than reading and publishing a small transaction.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.capture.postgres.gathering import gathered
from wlc.capture.postgres.master_connection import ArrowReader
from wlc.capture.postgres.row_store import RowDatabase
from wlc.capture.postgres.setup import read_state
from wlc.dialect.sql import literal
from wlc.farm.names import as_digests, digests_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wlc.capture.postgres.gathering import Gathering, PublishedTable
    from wlc.farm.model import Digest, Name


@dataclass(frozen=True, slots=True)
class SlotState:
    """The published position of a master in its server's log.

    Attributes:
        slot: Name of the replication slot.
        publication: Name of the publication.
        tables: Regular expression of the names of the captured tables.
        place: The identity of the database among its copies; see `setup.place`.
        prefix: Of the messages that the event triggers write into the server's log; a secret, because every role may
            write messages.
        lsn: Published position in the server's log; "" before the first snapshot.
        digests: Known digests of tables at the last published tick.
    """

    slot: str
    publication: str
    tables: str
    place: str
    prefix: str
    lsn: str = ""
    digests: Mapping[Name, Digest] = field(default_factory=dict)


def encode(state: SlotState) -> dict[str, str]:
    """Write a state as keys and values."""
    return {
        "slot": state.slot,
        "publication": state.publication,
        "tables": state.tables,
        "place": state.place,
        "prefix": state.prefix,
        "lsn": state.lsn,
        "digests": json.dumps(digests_json(state.digests)),
    }


def decode(values: Mapping[str, str]) -> SlotState:
    """Decode the result of `encode`; other keys are ignored."""
    texts = {key: values[key] for key in ("slot", "publication", "tables", "place", "prefix", "lsn")}
    return SlotState(**texts, digests=as_digests(json.loads(values["digests"])))


_RETAINED_WARNING_BYTES = 1 << 30
# Reads no table that sessions lock.
_UNPUBLISHED = """
    SELECT format('%%s.%%s', t.description->>'schema', t.description->>'name')
    FROM wlc.tables t JOIN pg_class c ON c.oid = t.oid AND c.relkind = 'r'
    WHERE NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
        WHERE r.prrelid = t.oid AND p.pubname = %s) ORDER BY 1 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """The replication slot as the server shows it.

    Attributes:
        retained_bytes: Size of the server's log that is kept for it.
        status: "reserved" if healthy; "lost" once the server has removed its log.
        confirmed: Published position in the server's log, as a number.
    """

    retained_bytes: int
    status: str
    confirmed: int


def find_slot(connection: Any, name: str) -> Slot | None:
    """Return the slot as the server shows it, None if this database has no slot of this name."""
    found = connection.execute(
        "SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,"
        " coalesce(wal_status, 'lost'), confirmed_flush_lsn::text FROM pg_replication_slots"
        " WHERE slot_name = %s AND database = current_database()",
        [name],
    ).fetchone()
    return None if found is None else Slot(found[0], found[1], read_lsn(found[2]))


def find_gap(connection: Any, state: SlotState) -> str | None:
    """Return why changes of a master are lost, None if they are not."""
    slot, name = find_slot(connection, state.slot), f"slot {state.slot}"
    if slot is None:
        return f"{name} is gone"
    if slot.status == "lost":
        return f"{name} was invalidated by the server (max_slot_wal_keep_size)"
    # Another publisher may have moved it since; it stores the position before it moves the slot.
    if slot.confirmed > read_lsn(state.lsn) and slot.confirmed > read_lsn(decode(read_state(connection)).lsn):
        return f"{name} was moved by another program"
    found = connection.execute("SELECT FROM pg_publication WHERE pubname = %s", [state.publication]).fetchone()
    if found is None:
        return f"publication {state.publication} is gone"
    unpublished = connection.execute(_UNPUBLISHED, [state.publication]).fetchone()
    return f"table {unpublished[0]} has left the publication {state.publication}" if unpublished else None


def retention_warning(connection: Any, state: SlotState, name: str, source: str) -> str | None:
    """Return a warning if the server retains much of its log for a publisher that does not run, else None."""
    if (slot := find_slot(connection, state.slot)) is None or slot.status == "unreserved":
        return f"slot {state.slot} is about to be given up by the server: publish with wlc flush {source}"
    if slot.retained_bytes > _RETAINED_WARNING_BYTES:
        size = slot.retained_bytes / (1 << 30)
        return f"the server keeps {size:.1f} GiB of its log for {name}: is wlc run running?"
    return None


def read_lsn(text: str) -> int:
    """Read a place in the server's log; an empty text is its beginning."""
    high, _, low = (text or "0/0").partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(lsn: int) -> str:
    """Write a place in the server's log as the server does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class SlotReader:
    """Reads slots; used by one thread, until it is closed.

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
        """Gather a slot's content from its beginning; the slot does not move.

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
            # A partly read answer, or an error of DuckDB, must not affect the next read.
            self.close()
            raise

    def _opened(self) -> ArrowReader:
        if self._reader is None:
            self._reader = ArrowReader(self._url)
        return self._reader

    def close(self) -> None:
        """Release the connection and the memory; the next read creates new ones."""
        reader, self._reader = self._reader, None
        try:
            if reader is not None:
                reader.close()
        finally:
            self._rows.close()
