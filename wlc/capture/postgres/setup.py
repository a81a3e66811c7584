"""What a PostgreSQL master has inside it: the `wlc` schema, a publication, a slot and event triggers.

Tables of the schema:
    state      key and value: which farm, history and batch the database has reached, and where in the server's log
    tables     every captured table as the event triggers last described it, and what its replica identity was before
    published  every captured table as the last published batch leaves it, and how many rows it has
    sequences  every captured sequence and its last published value
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from wlc.capture.postgres.connection import shown
from wlc.errors import UnsupportedError
from wlc.model import Name, literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    Connection = psycopg.Connection[Any]

OLDEST = 14
_STATE = "CREATE TABLE IF NOT EXISTS wlc.state (key text PRIMARY KEY, value text NOT NULL)"
_TABLES = """
    CREATE TABLE wlc.tables (oid oid PRIMARY KEY, description jsonb NOT NULL, identity text);
    CREATE TABLE wlc.published (oid oid PRIMARY KEY, description jsonb NOT NULL, rows bigint NOT NULL);
    CREATE TABLE wlc.sequences (oid oid PRIMARY KEY, schema text NOT NULL, name text NOT NULL, value bigint)
"""
_TRIGGERS = {"on_ddl": "ddl_command_end", "on_drop": "sql_drop", "on_rewrite": "table_rewrite"}
_CAPTURED = "SELECT c.oid FROM pg_class c WHERE wlc.is_captured(c.oid) ORDER BY c.oid"
# How to say again what a table's replica identity was.
_IDENTITY = """
    SELECT CASE relreplident WHEN 'd' THEN 'DEFAULT' WHEN 'n' THEN 'NOTHING' WHEN 'f' THEN 'FULL' ELSE
        (SELECT 'USING INDEX ' || quote_ident(i.relname) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
         WHERE x.indrelid = c.oid AND x.indisreplident) END FROM pg_class c WHERE c.oid = %s
"""


def read_state(connection: Connection) -> dict[str, str]:
    """Return what the database remembers of itself as a master; empty if it has never been one."""
    if connection.execute("SELECT to_regclass('wlc.state')").fetchone() == (None,):
        return {}
    return dict(connection.execute("SELECT key, value FROM wlc.state").fetchall())


def write_state(connection: Connection, values: Mapping[str, str]) -> None:
    """Store keys and values, in the caller's transaction if there is one."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO wlc.state VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value",
            list(values.items()),
        )


def check(connection: Connection, url: str) -> None:
    """Refuse a server or a role that cannot do what a master needs.

    Raises:
        UnsupportedError: The message says what is missing, the hint what to run.
    """
    settings = dict(
        connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'max_replication_slots',"
            " 'max_wal_senders', 'server_encoding', 'server_version_num')"
        ).fetchall()
    )
    where = shown(url)
    version = int(settings["server_version_num"]) // 10_000
    if version < OLDEST:
        raise UnsupportedError(f"{where} is PostgreSQL {version}; {OLDEST} and later can be masters", path=where)
    if settings["server_encoding"] != "UTF8":
        encoding = settings["server_encoding"]
        raise UnsupportedError(f"{where} has encoding {encoding}; only UTF8 can be replicated", path=where)
    if settings["wal_level"] != "logical":
        raise UnsupportedError(
            f"{where} runs with wal_level={settings['wal_level']}",
            hint="run ALTER SYSTEM SET wal_level = logical; and restart the server",
            path=where,
        )
    (is_super,) = _one(connection, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    if not is_super:
        (role,) = _one(connection, "SELECT current_user")
        raise UnsupportedError(
            f"{where}: role {role} may not create event triggers",
            hint=f"run ALTER ROLE {quote(role)} SUPERUSER; as a superuser, or name one in the URL",
            path=where,
        )
    (used,) = _one(connection, "SELECT count(*) FROM pg_replication_slots")
    # A snapshot needs one more for a moment.
    if used + 1 >= int(settings["max_replication_slots"]):
        most = int(settings["max_replication_slots"])
        raise UnsupportedError(
            f"{where} has {used} of {most} replication slots in use; one and a free one are needed",
            hint=f"run ALTER SYSTEM SET max_replication_slots = {most + 4}; and restart the server",
            path=where,
        )


def needing_identity(connection: Connection, patterns: Sequence[str]) -> list[Name]:
    """List the tables whose replica identity has to become FULL."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.relreplident <> 'f' AND n.nspname !~ '^pg_'"
        " AND n.nspname NOT IN ('information_schema', 'wlc', 'wlr')"
        " AND (n.nspname || '.' || c.relname ~ %(p)s OR c.relname ~ %(p)s) ORDER BY 1, 2",
        {"p": pattern(patterns)},
    ).fetchall()
    return [Name(*row) for row in rows]


def pattern(patterns: Sequence[str]) -> str:
    """Turn patterns as `wlr replicate --tables` takes them into a regular expression for the server."""
    if not patterns:
        return "."
    parts = []
    for text in patterns:
        escaped = re.sub(r"[\\.+(){}|^$]", r"\\\g<0>", text)
        parts.append(escaped.replace("*", ".*").replace("?", "."))
    return f"^({'|'.join(parts)})$"


def install(connection: Connection, state: Mapping[str, str]) -> None:
    """Make everything but the slot, in one transaction.

    Args:
        connection: Of a superuser.
        state: What to remember; `publication` and `tables`, the regular expression of table names, among it.
    """
    script = files("wlc.capture.postgres").joinpath("functions.sql").read_text(encoding="utf-8")
    with connection.transaction():
        connection.execute("CREATE SCHEMA IF NOT EXISTS wlc")
        _remove(connection)
        connection.execute(_STATE)
        connection.execute("TRUNCATE wlc.state")
        write_state(connection, state)
        connection.execute(_TABLES)
        connection.execute(script)
        connection.execute(
            f"CREATE PUBLICATION {quote(state['publication'])} WITH (publish = 'insert, update, delete, truncate')"
        )
        for (oid,) in connection.execute(_CAPTURED).fetchall():
            (before,) = _one(connection, _IDENTITY, [oid])
            connection.execute("SELECT wlc.adopt(%s)", [oid])
            connection.execute("UPDATE wlc.tables SET identity = %s WHERE oid = %s", [before, oid])
        for function, event in _TRIGGERS.items():
            trigger = f"wlc_{function}"
            connection.execute(f"CREATE EVENT TRIGGER {trigger} ON {event} EXECUTE FUNCTION wlc.{function}()")
            connection.execute(f"ALTER EVENT TRIGGER {trigger} ENABLE ALWAYS")


def remove(connection: Connection) -> None:
    """Take away everything but what the database remembers, in one transaction; replica identities go back."""
    with connection.transaction():
        _remove(connection)


def _remove(connection: Connection) -> None:
    for function in _TRIGGERS:
        connection.execute(f"DROP EVENT TRIGGER IF EXISTS wlc_{function}")
    state = read_state(connection)
    if "publication" in state:
        connection.execute(f"DROP PUBLICATION IF EXISTS {quote(state['publication'])}")
    if connection.execute("SELECT to_regclass('wlc.tables')").fetchone() != (None,):
        rows = connection.execute(
            "SELECT t.oid::regclass::text, t.identity FROM wlc.tables t JOIN pg_class c USING (oid)"
            " WHERE t.identity <> 'FULL' AND c.relkind = 'r'"
        ).fetchall()
        for table, identity in rows:
            connection.execute(f"ALTER TABLE ONLY {table} REPLICA IDENTITY {identity}")
        connection.execute("DROP TABLE wlc.tables, wlc.published, wlc.sequences")
    for (function,) in connection.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'wlc'::regnamespace"
    ).fetchall():
        connection.execute(f"DROP FUNCTION IF EXISTS {function} CASCADE")


def drop_slot(connection: Connection, slot: str) -> None:
    """Drop the slot, if it is there."""
    connection.execute(
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {literal(slot)}"
    )


def descriptions(connection: Connection) -> dict[int, dict[str, Any]]:
    """Describe every captured table as the caller's transaction sees it."""
    rows = connection.execute(
        "SELECT c.oid::bigint, wlc.describe(c.oid) FROM pg_class c WHERE wlc.is_captured(c.oid)"
    ).fetchall()
    return dict(rows)


def sequences(connection: Connection) -> dict[int, tuple[Name, int | None]]:
    """Return every sequence that is replicated and the last value it gave out; sequences know no transactions."""
    rows = connection.execute(
        "SELECT c.oid::bigint, n.nspname, c.relname, s.last_value FROM pg_sequences s JOIN pg_namespace n"
        " ON n.nspname = s.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.sequencename"
        " WHERE NOT wlc.is_system(n.nspname) AND c.relpersistence = 'p'"
    ).fetchall()
    return {oid: (Name(schema, name), value) for oid, schema, name, value in rows}


def write_published(connection: Connection, tables: Mapping[int, tuple[dict[str, Any], int] | None]) -> None:
    """Note how tables are after what was published; None for one that is gone."""
    with connection.cursor() as cursor:
        cursor.executemany("DELETE FROM wlc.published WHERE oid = %s", [[oid] for oid in tables])
        cursor.executemany(
            "INSERT INTO wlc.published VALUES (%s, %s, %s)",
            [[oid, json.dumps(found[0]), found[1]] for oid, found in tables.items() if found],
        )


def write_sequences(connection: Connection, found: Mapping[int, tuple[Name, int | None]]) -> None:
    """Note all sequences that are published and their values."""
    connection.execute("DELETE FROM wlc.sequences")
    with connection.cursor() as cursor:
        rows = [[oid, name.schema, name.name, value] for oid, (name, value) in found.items()]
        cursor.executemany("INSERT INTO wlc.sequences VALUES (%s, %s, %s, %s)", rows)


def _one(connection: Connection, query: str, parameters: list[Any] | None = None) -> tuple[Any, ...]:
    found = connection.execute(query, parameters).fetchone()
    assert found is not None
    return tuple(found)
