"""Sequences of a PostgreSQL master. They are not transactional, so a batch holds their values at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.postgres import ddl
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


def moved_sequences(connection: Connection) -> Sequences:
    """Return the sequences that moved since they were published."""
    published = dict(connection.execute("SELECT oid::bigint, value FROM wlc.sequences").fetchall())
    found = read_sequences(connection)
    return {oid: (name, value) for oid, (name, value) in found.items() if published.get(oid) != value}


def records(connection: Connection, moved: Sequences) -> Iterator[Record]:
    """Yield the records of a batch about sequences that moved.

    A sequence whose name was not published is created under it: a renamed table takes its sequence along, and no event
    trigger reports that.
    """
    rows = connection.execute("SELECT oid::bigint, schema, name FROM wlc.sequences").fetchall()
    published = {oid: Name(schema, name) for oid, schema, name in rows}
    for oid, (name, _) in moved.items():
        if published.get(oid) != name:
            found = connection.execute("SELECT wlc.definition('pg_class'::regclass, %s, 'CREATE SEQUENCE')", [oid])
            yield from ddl.renamed_sequence(published.get(oid), name, found.fetchall()[0][0])
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
