"""The replication slot of a PostgreSQL master, and places in the server's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.capture.postgres.setup import read_state
from wlc.capture.postgres.state import decode

if TYPE_CHECKING:
    from wlc.capture.postgres.state import SlotState

_RETAINED_WARNING_BYTES = 1 << 30
# Reads no table that anybody locks.
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
        status: "reserved" while all is well; "lost" once the server has removed its log.
        confirmed: Up to where the server's log was published, as a number.
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
    # Another publisher may have moved it since, which remembers how far before it does.
    if slot.confirmed > read_lsn(state.lsn) and slot.confirmed > read_lsn(decode(read_state(connection)).lsn):
        return f"{name} was moved by somebody else"
    found = connection.execute("SELECT FROM pg_publication WHERE pubname = %s", [state.publication]).fetchone()
    if found is None:
        return f"publication {state.publication} is gone"
    unpublished = connection.execute(_UNPUBLISHED, [state.publication]).fetchone()
    return f"table {unpublished[0]} has left the publication {state.publication}" if unpublished else None


def retention_warning(connection: Any, state: SlotState, name: str, source: str) -> str | None:
    """Say that the server keeps much of its log for a publisher that does not run, None if it does not."""
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
