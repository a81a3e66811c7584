"""Sequences of a PostgreSQL master: they know no transactions, so that their values are told with the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.capture.postgres import ddl
from wlc.model import Name, SequencePosition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import psycopg

    from wlc.model import Record

    Connection = psycopg.Connection[Any]
    Sequences = Mapping[int, tuple[Name, int | None]]


def read_sequences(connection: Connection) -> Sequences:
    """Return every sequence that is replicated and the last value it gave out; sequences know no transactions."""
    rows = connection.execute(
        "SELECT c.oid::bigint, n.nspname, c.relname, s.last_value FROM pg_sequences s JOIN pg_namespace n"
        " ON n.nspname = s.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.sequencename"
        " WHERE NOT wlc.is_system(n.nspname) AND c.relpersistence = 'p'"
    ).fetchall()
    return {oid: (Name(schema, name), value) for oid, schema, name, value in rows}


def moved_sequences(connection: Connection) -> Sequences:
    """Return those that have gone on since they were published last."""
    published = dict(connection.execute("SELECT oid::bigint, value FROM wlc.sequences").fetchall())
    found = read_sequences(connection)
    return {oid: (name, value) for oid, (name, value) in found.items() if published.get(oid) != value}


def records(connection: Connection, moved: Sequences) -> Iterator[Record]:
    """Yield what a batch says of sequences that have gone on.

    One whose name was not published is made under it: tables take theirs along, and nothing else says so.
    """
    rows = connection.execute("SELECT oid::bigint, schema, name FROM wlc.sequences").fetchall()
    published = {oid: Name(schema, name) for oid, schema, name in rows}
    for oid, (name, _) in moved.items():
        if published.get(oid) != name:
            found = connection.execute("SELECT wlc.definition('pg_class'::regclass, %s, 'CREATE SEQUENCE')", [oid])
            yield from ddl.renamed_sequence(published.get(oid), name, found.fetchall()[0][0])
    yield from (SequencePosition(name, value) for name, value in moved.values() if value is not None)


def write_sequences(connection: Connection, found: Sequences) -> None:
    """Note sequences that are published and their values."""
    with connection.cursor() as cursor:
        rows = [[oid, name.schema, name.name, value] for oid, (name, value) in found.items()]
        cursor.executemany(
            "INSERT INTO wlc.sequences VALUES (%s, %s, %s, %s) ON CONFLICT (oid) DO UPDATE"
            " SET schema = EXCLUDED.schema, name = EXCLUDED.name, value = EXCLUDED.value",
            rows,
        )
