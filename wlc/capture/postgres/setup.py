"""The capture's objects in a PostgreSQL master: the `wlc` schema, a publication, a slot and event triggers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg

from wlc.capture.postgres import rights
from wlc.capture.postgres.access import DescribedAccess
from wlc.capture.postgres.described import DescribedObject, DescribedTable
from wlc.capture.postgres.rights import CAPTURABLE
from wlc.dialect.sql import literal
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.capture.postgres.objects import Thing
    from wlc.dialect.postgres.server_connection import Connection

_PROBLEM = "problem"
_TRIGGERS = frozenset({"wlc_on_ddl", "wlc_on_drop", "wlc_on_rewrite"})
_BYPASSED = """
    SELECT format('%s.%s', n.nspname, c.relname),
        CASE WHEN t.oid IS NULL THEN 'was created' WHEN c.relkind = 'r' AND c.relreplident <> 'f'
        THEN 'has another replica identity' WHEN wlc.plain(wlc.describe(c.oid)) <> wlc.plain(t.description)
        THEN 'was altered' WHEN c.relkind = 'r' AND p.prrelid IS NULL THEN 'left the publication' END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN wlc.tables t ON t.oid = c.oid
    LEFT JOIN pg_publication_rel p ON p.prrelid = c.oid AND p.prpubid = (SELECT b.oid FROM pg_publication b
        JOIN wlc.state s ON s.key = 'publication' AND s.value = b.pubname)
    WHERE c.relkind IN ('r', 'p') AND wlc.is_captured(c.oid)
    UNION ALL SELECT format('%s.%s', description->>'schema', description->>'name'), 'was dropped' FROM wlc.tables t
    WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.oid)
"""
# A session that waits for such a lock blocks later ones, too.
_LOCKED = """
    SELECT DISTINCT format('%s.%s', n.nspname, c.relname) FROM pg_locks l
    JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE l.mode = 'AccessExclusiveLock' AND wlc.is_captured(c.oid)
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 1
"""
NOT_CHECKED = "not checked: locked"


def read_state(connection: Connection) -> dict[str, str]:
    """Return the database's stored state as a master; empty if it has never been one."""
    if connection.execute("SELECT to_regclass('wlc.state')").fetchone() == (None,):
        return {}
    return dict(connection.execute("SELECT key, value FROM wlc.state").fetchall())


def place(connection: Connection) -> str:
    """Return the identity of this database among its copies: its server and its number there."""
    query = "SELECT system_identifier || '.' || d.oid FROM pg_control_system(), pg_database d WHERE datname = %s"
    return str(_one(connection, query, [connection.info.dbname])[0])


def write_state(connection: Connection, values: Mapping[str, str]) -> None:
    """Store keys and values, in the caller's transaction if there is one."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO wlc.state VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value",
            list(values.items()),
        )


def remember_problem(connection: Connection, problem: str | None) -> None:
    """Store why publishing is impossible, for `wlc status`; None: it is possible."""
    if problem is not None:
        write_state(connection, {_PROBLEM: problem})
    else:
        connection.execute("DELETE FROM wlc.state WHERE key = %s", [_PROBLEM])


def problem(connection: Connection) -> str | None:
    """Return why nothing can be published, None if it can."""
    return read_state(connection).get(_PROBLEM)


def needing_identity(connection: Connection, patterns: Sequence[str]) -> list[Name]:
    """List the tables whose replica identity must become FULL."""
    rows = connection.execute(
        f"SELECT n.nspname, c.relname {CAPTURABLE} AND c.relkind = 'r' AND c.relreplident <> 'f' ORDER BY 1, 2",
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


def install(connection: Connection, values: Mapping[str, str]) -> None:
    """Create everything but the slot, replacing objects of an earlier or failed attempt.

    Tables get another replica identity one by one, because each change waits for the table's writers. A transaction
    that holds the lock of one table and waits for another would end in a deadlock with them.

    Args:
        connection: Of a role that has the rights, or of one for which a superuser prepared the database.
        values: The state to store, with `publication`, its name, and `tables`, the regular expression of table names.
    """
    remove(connection)
    with connection.transaction():
        if not rights.is_prepared(connection):
            connection.execute(rights.script())
        connection.execute("DELETE FROM wlc.state")
        write_state(connection, values)
        connection.execute("SELECT wlc.note_all()")
    for oid in _with_other_identity(connection):
        connection.execute("SELECT wlc.make_full(%s)", [oid])
    connection.execute("SELECT wlc.start()")


def _with_other_identity(connection: Connection) -> list[int]:
    """Return the noted tables that had another replica identity than FULL."""
    query = "SELECT oid::bigint FROM wlc.tables WHERE identity <> 'FULL'"
    return [oid for (oid,) in connection.execute(query).fetchall()]


def remove(connection: Connection) -> None:
    """Remove everything but the stored state, and the objects that a superuser prepared for a role.

    Replica identities are restored one by one, as in `install`.
    """
    if connection.execute("SELECT to_regprocedure('wlc.finish()')").fetchone() == (None,):
        return
    connection.execute("SELECT wlc.finish()")
    # Unpublished changes are after the end of the history.
    remember_problem(connection, None)
    for oid in _with_other_identity(connection):
        connection.execute("SELECT wlc.restore(%s)", [oid])
    if not rights.is_prepared(connection):
        connection.execute(rights.REMOVE)


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
    return found | dict.fromkeys(sorted(_TRIGGERS - {name for (name,) in enabled}), "does not fire")


def bypassed_now(connection: Connection) -> dict[str, str]:
    """Return the result of `bypassed`, or the tables locked by other sessions if it would take longer than a second."""
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            return bypassed(connection)
    except psycopg.errors.LockNotAvailable:
        # The locks were released just now.
        locked = [name for (name,) in connection.execute(_LOCKED).fetchall()] or ["tables"]
        return dict.fromkeys(locked, NOT_CHECKED)


def descriptions(connection: Connection) -> dict[int, DescribedTable]:
    """Describe every captured table as the caller's transaction sees it."""
    rows = connection.execute(
        "SELECT c.oid::bigint, wlc.describe(c.oid) FROM pg_class c"
        " WHERE c.relkind IN ('r', 'p') AND wlc.is_captured(c.oid)"
    ).fetchall()
    return {oid: DescribedTable.read(description) for oid, description in rows}


def objects(connection: Connection, first: int, last: int) -> dict[Thing, DescribedObject]:
    """Describe the objects that are not tables and that a replica needs, kind by kind.

    Args:
        connection: Its transaction decides what is described.
        first: 1 for types, 2 for sequences, 3 for functions, 4 for indexes, 5 for views.
        last: The same; inclusive.
    """
    query = "SELECT class, object, wlc.describe_object(class, object) FROM wlc.all_objects(%s, %s)"
    found = connection.execute(query, [first, last]).fetchall()
    return {(class_, oid): DescribedObject(**description) for class_, oid, description in found if description}


def described_access(connection: Connection) -> list[DescribedAccess]:
    """Describe privileges and row security, as the caller's transaction sees them; schemas come first."""
    found = connection.execute("SELECT description FROM wlc.all_access() WHERE description IS NOT NULL").fetchall()
    return [DescribedAccess.read(description) for (description,) in found]


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


def shown_place(place: str) -> str:
    """Format a result of `place`."""
    server, _, number = place.rpartition(".")
    return f"{number} of server {server}"


def listed_problems(found: Mapping[str, str]) -> str:
    """Return what `bypassed` gave, as a sentence."""
    return "not captured: " + ", ".join(f"{table} {problem}" for table, problem in found.items())
