"""What capture creates in a PostgreSQL master: the `wlc` schema, a publication, a slot and event triggers.

Tables of the schema:
    state      key and value: which farm, history and batch the database has reached, and where in the server's log
    tables     every captured table as the event triggers last described it, and what its replica identity was before
    published  every captured table as the last published batch leaves it, and how many rows it has
    sequences  every captured sequence and its last published value
    pending    what the event triggers tell one another within a transaction; empty outside
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import psycopg

from wlc.capture.postgres.described import DescribedTable
from wlc.dialect.postgres.url import without_password
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.dialect.postgres.connection import Connection

OLDEST = 14
_STATE = "CREATE TABLE IF NOT EXISTS wlc.state (key text PRIMARY KEY, value text NOT NULL)"
_TABLES = """
    CREATE TABLE wlc.tables (oid oid PRIMARY KEY, description jsonb NOT NULL, identity text);
    CREATE TABLE wlc.published (oid oid PRIMARY KEY, description jsonb NOT NULL, rows bigint NOT NULL);
    CREATE TABLE wlc.sequences (oid oid PRIMARY KEY, schema text NOT NULL, name text NOT NULL, value bigint);
    CREATE TABLE wlc.pending (what text NOT NULL, oid oid)
"""
_TRIGGERS = {"on_ddl": "ddl_command_end", "on_drop": "sql_drop", "on_rewrite": "table_rewrite"}
_CAPTURED = "SELECT c.oid FROM pg_class c WHERE wlc.is_captured(c.oid) ORDER BY c.oid"
_BYPASSED = """
    SELECT format('%s.%s', n.nspname, c.relname),
        CASE WHEN t.oid IS NULL THEN 'was created' WHEN c.relkind = 'r' AND c.relreplident <> 'f'
        THEN 'has another replica identity' WHEN wlc.plain(wlc.describe(c.oid)) <> wlc.plain(t.description)
        THEN 'was altered' WHEN c.relkind = 'r' AND p.prrelid IS NULL THEN 'left the publication' END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN wlc.tables t ON t.oid = c.oid
    LEFT JOIN pg_publication_rel p ON p.prrelid = c.oid AND p.prpubid = (SELECT b.oid FROM pg_publication b
        JOIN wlc.state s ON s.key = 'publication' AND s.value = b.pubname)
    WHERE wlc.is_captured(c.oid)
    UNION ALL SELECT format('%s.%s', description->>'schema', description->>'name'), 'was dropped' FROM wlc.tables t
    WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.oid)
"""


def read_state(connection: Connection) -> dict[str, str]:
    """Return what the database remembers of itself as a master; empty if it has never been one."""
    if connection.execute("SELECT to_regclass('wlc.state')").fetchone() == (None,):
        return {}
    return dict(connection.execute("SELECT key, value FROM wlc.state").fetchall())


def place(connection: Connection) -> str:
    """Return what distinguishes this database from its copies: its server and its number there."""
    query = "SELECT system_identifier || '.' || d.oid FROM pg_control_system(), pg_database d WHERE datname = %s"
    return str(_one(connection, query, [connection.info.dbname])[0])


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
    where = without_password(url)
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
    (senders,) = _one(connection, "SELECT count(*) FROM pg_stat_replication")
    if senders >= int(settings["max_wal_senders"]):
        raise UnsupportedError(
            f"{where} has {senders} of {settings['max_wal_senders']} senders of its log in use; a snapshot needs one",
            hint=f"run ALTER SYSTEM SET max_wal_senders = {senders + 4}; and restart the server",
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
    """List the tables whose replica identity must become FULL."""
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


def install(connection: Connection, publication: str, values: Mapping[str, str]) -> None:
    """Create everything but the slot, in place of what an earlier or failed attempt left.

    Tables get another replica identity one by one, because each change waits for the table's writers. A transaction
    that holds the lock of one table and waits for another would end in a deadlock with them.

    Args:
        connection: Of a superuser.
        publication: Its name.
        values: What to remember; `tables`, the regular expression of table names, is among it.
    """
    script = files("wlc.capture.postgres").joinpath("functions.sql").read_text(encoding="utf-8")
    remove(connection)
    with connection.transaction():
        connection.execute("CREATE SCHEMA IF NOT EXISTS wlc")
        connection.execute(_STATE)
        connection.execute("TRUNCATE wlc.state")
        write_state(connection, values)
        connection.execute(_TABLES)
        connection.execute(script)
        for (oid,) in connection.execute(_CAPTURED).fetchall():
            connection.execute("SELECT wlc.note(%s)", [oid])
    for table, _ in _identities(connection):
        connection.execute(f"ALTER TABLE ONLY {table} REPLICA IDENTITY FULL")
    with connection.transaction():
        connection.execute(
            f"CREATE PUBLICATION {quote(publication)} WITH (publish = 'insert, update, delete, truncate')"
        )
        # Meanwhile others may have altered, created and dropped tables.
        connection.execute("DELETE FROM wlc.tables t WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.oid)")
        connection.execute("UPDATE wlc.tables SET description = wlc.describe(oid)")
        for (oid,) in connection.execute(_CAPTURED).fetchall():
            connection.execute("SELECT wlc.adopt(%s)", [oid])
        for function, event in _TRIGGERS.items():
            trigger = f"wlc_{function}"
            connection.execute(f"CREATE EVENT TRIGGER {trigger} ON {event} EXECUTE FUNCTION wlc.{function}()")
            connection.execute(f"ALTER EVENT TRIGGER {trigger} ENABLE ALWAYS")


def _identities(connection: Connection) -> list[tuple[str, str]]:
    """Return the tables that had another replica identity than FULL, and SQL for it."""
    return connection.execute(
        "SELECT t.oid::regclass::text, t.identity FROM wlc.tables t JOIN pg_class c USING (oid)"
        " WHERE t.identity <> 'FULL' AND c.relkind = 'r'"
    ).fetchall()


def remove(connection: Connection) -> None:
    """Remove everything but what the database remembers. Restore replica identities, one by one as in `install`."""
    for function in _TRIGGERS:
        connection.execute(f"DROP EVENT TRIGGER IF EXISTS wlc_{function}")
    publication = read_state(connection).get("publication")
    if publication is not None:
        connection.execute(f"DROP PUBLICATION IF EXISTS {quote(publication)}")
    if connection.execute("SELECT to_regclass('wlc.tables')").fetchone() != (None,):
        for table, identity in _identities(connection):
            try:
                connection.execute(f"ALTER TABLE ONLY {table} REPLICA IDENTITY {identity}")
            except psycopg.errors.UndefinedObject:
                # Somebody dropped its index.
                connection.execute(f"ALTER TABLE ONLY {table} REPLICA IDENTITY DEFAULT")
        connection.execute("DROP TABLE IF EXISTS wlc.tables, wlc.published, wlc.sequences, wlc.pending")
    functions = "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace"
    for (function,) in connection.execute(f"{functions} WHERE nspname = 'wlc'").fetchall():
        connection.execute(f"DROP FUNCTION IF EXISTS {function} CASCADE")


def drop_slot(connection: Connection, slot: str) -> None:
    """Drop the slot, if it exists. This may be a copy of another database, whose slot stays."""
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        f" WHERE slot_name = {literal(slot)} AND database = current_database()"
    )


def bypassed(connection: Connection) -> dict[str, str]:
    """Return the tables that are not captured correctly, and the event triggers that do not fire, with the reason."""
    found = {table: problem for table, problem in connection.execute(_BYPASSED).fetchall() if problem}
    enabled = connection.execute("SELECT evtname FROM pg_event_trigger WHERE evtenabled = 'A'").fetchall()
    triggers = {f"wlc_{function}" for function in _TRIGGERS}
    return found | dict.fromkeys(sorted(triggers - {name for (name,) in enabled}), "does not fire")


def descriptions(connection: Connection) -> dict[int, DescribedTable]:
    """Describe every captured table as the caller's transaction sees it."""
    rows = connection.execute(
        "SELECT c.oid::bigint, wlc.describe(c.oid) FROM pg_class c WHERE wlc.is_captured(c.oid)"
    ).fetchall()
    return {oid: DescribedTable.read(description) for oid, description in rows}


def write_published(connection: Connection, tables: Mapping[int, tuple[DescribedTable, int] | None]) -> None:
    """Note the tables as the last published batch leaves them; None for one that was dropped."""
    with connection.cursor() as cursor:
        cursor.executemany("DELETE FROM wlc.published WHERE oid = %s", [[oid] for oid in tables])
        cursor.executemany(
            "INSERT INTO wlc.published VALUES (%s, %s, %s)",
            [[oid, found[0].json(), found[1]] for oid, found in tables.items() if found],
        )


def _one(connection: Connection, query: str, parameters: list[Any] | None = None) -> tuple[Any, ...]:
    found = connection.execute(query, parameters).fetchone()
    assert found is not None
    return tuple(found)
