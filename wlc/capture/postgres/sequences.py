"""Sequences of a PostgreSQL master. They are not transactional, so a batch holds their values at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.model import Name, SequencePosition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wlc.dialect.postgres.connection import Connection
    from wlc.farm.model import Record

    Sequences = Mapping[int, tuple[Name, int | None]]


def read_sequences(connection: Connection) -> Sequences:
    """Return every replicated sequence and the last value that it gave out."""
    rows = connection.execute(
        "SELECT c.oid::bigint, n.nspname, c.relname, s.last_value FROM pg_sequences s JOIN pg_namespace n"
        " ON n.nspname = s.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.sequencename"
        " WHERE NOT wlc.is_system(n.nspname) AND c.relpersistence = 'p'"
    ).fetchall()
    return {oid: (Name(schema, name), value) for oid, schema, name, value in rows}


def moved_sequences(connection: Connection, told: Mapping[int, Name | None]) -> Sequences:
    """Return the sequences that moved since they were published, under the names that the log gives them.

    Args:
        connection: To the master.
        told: What the log says since then: names of sequences that were made or altered, None of those dropped.
    """
    rows = connection.execute("SELECT oid::bigint, schema, name, value FROM wlc.sequences").fetchall()
    names: dict[int, Name | None] = {oid: Name(schema, name) for oid, schema, name, _ in rows}
    values = {oid: value for oid, _, _, value in rows}
    names.update(told)
    return {
        oid: (name, value)
        for oid, (_, value) in read_sequences(connection).items()
        if (name := names.get(oid)) is not None and (oid in told or values.get(oid) != value)
    }


def records(moved: Sequences) -> Iterator[Record]:
    """Yield the records of a batch about sequences that moved."""
    yield from (SequencePosition(name, value) for name, value in moved.values() if value is not None)


def write_sequences(connection: Connection, found: Sequences) -> None:
    """Note published sequences and their values."""
    with connection.cursor() as cursor:
        rows = [[oid, name.schema, name.name, value] for oid, (name, value) in found.items()]
        cursor.executemany(
            "INSERT INTO wlc.sequences VALUES (%s, %s, %s, %s) ON CONFLICT (oid) DO UPDATE"
            " SET schema = EXCLUDED.schema, name = EXCLUDED.name, value = EXCLUDED.value",
            rows,
        )
