"""Requirements on a server and a role before a PostgreSQL database can become a master.

The functions of a PostgreSQL master: `wlc master` creates them, or a superuser for a role that is no superuser.
"""

from __future__ import annotations

import getpass
import hashlib
import os
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from wlc.dialect.postgres.server_connection import FORMS, first_line
from wlc.dialect.sql import literal, quote
from wlc.farm.addresses import without_password
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.dialect.postgres.server_connection import Connection


_PREPARED = "dbfarm: prepared by wlc master --print-sql, version"
_SCRIPTS = ("tables.sql", "functions.sql", "access.sql", "start_finish.sql")
# Event triggers run in sessions of users.
_EVENTS = ("on_ddl", "on_drop", "on_rewrite")
_HEAD = """\
-- Prepares a database for `wlc master {url}`: run it once, in that database, as a superuser.
-- Afterwards the role {role} needs no superuser to publish it, to stop, and to begin again.
-- To take everything back, after `wlc stop` (leave out what the role had before):
--   DROP SCHEMA wlc CASCADE; REVOKE pg_read_all_data FROM {role}; ALTER ROLE {role} NOREPLICATION NOBYPASSRLS;
\\set ON_ERROR_STOP on
BEGIN;
SET LOCAL client_min_messages = warning;
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger WHERE evtname LIKE 'wlc\\_on\\_%') THEN
        RAISE EXCEPTION 'the database is a master' USING HINT = 'end its history first: wlc stop';
    END IF;
END $$;
"""
# Removes the functions and every table but the state.
REMOVE = """
DROP TABLE IF EXISTS wlc.tables, wlc.published, wlc.sequences, wlc.objects, wlc.access, wlc.pending;
DO $$ DECLARE function text; BEGIN
    FOR function IN SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
            WHERE nspname = 'wlc' LOOP
        EXECUTE 'DROP FUNCTION IF EXISTS ' || function || ' CASCADE';
    END LOOP;
END $$;
"""


def script() -> str:
    """Return the statements that create tables and functions, in place of earlier ones."""
    pinned = (
        f"ALTER FUNCTION wlc.{event}() SET {name} = {literal(value)};\n"
        for event in _EVENTS
        for name, value in FORMS.items()
    )
    return REMOVE + "".join((*map(_text, _SCRIPTS), *pinned))


def for_role(url: str) -> str:
    """Return a script of psql for a superuser, after which the role of a URL can make its database a master."""
    shown = without_password(url)
    role = quote(str(conninfo_to_dict(url).get("user") or os.environ.get("PGUSER") or getpass.getuser()))
    head = _HEAD.format(url=shown, role=role)
    return head + script() + _text("grants.sql").format(role=role, comment=literal(f"{_PREPARED} {_version()}"))


def is_prepared(connection: Connection) -> bool:
    """Say whether a superuser prepared the database for a role, so that the functions stay for it."""
    return _prepared(connection) is not None


def is_current(connection: Connection) -> bool:
    """Say whether the functions of a prepared database are those of this version."""
    return _prepared(connection) == _version()


def preparation_hint(url: str) -> str:
    """Return what to do for a role that lacks rights."""
    shown = without_password(url)
    return f"wlc master '{shown}' --print-sql > prepare.sql; then a superuser runs psql -f prepare.sql in that database"


def _prepared(connection: Connection) -> str | None:
    query = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'wlc'"
    found = connection.execute(query).fetchone()
    comment = (found[0] if found else None) or ""
    return comment.rpartition(" ")[2] if comment.startswith(_PREPARED) else None


def _version() -> str:
    return hashlib.sha256((script() + _text("grants.sql")).encode()).hexdigest()[:16]


def _text(name: str) -> str:
    return files("wlc.capture.postgres").joinpath(name).read_text(encoding="utf-8")


OLDEST = 14
# Relations of the user that a pattern of names captures.
CAPTURABLE = """
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relpersistence = 'p' AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'wlc', 'wlr')
    AND (n.nspname || '.' || c.relname ~ %(p)s OR c.relname ~ %(p)s)
"""
_NAME = "format('%%s.%%s', n.nspname, c.relname)"
# Some services let other roles than superusers create event triggers. Only an attempt shows that.
_ATTEMPTS = """
    CREATE SCHEMA wlc_attempt;
    CREATE FUNCTION wlc_attempt.run() RETURNS event_trigger LANGUAGE plpgsql SET session_replication_role = replica
        AS 'BEGIN END';
    CREATE EVENT TRIGGER wlc_attempt ON ddl_command_end EXECUTE FUNCTION wlc_attempt.run();
    CREATE PUBLICATION wlc_attempt
"""


def check(connection: Connection, url: str, pattern: str) -> None:
    """Refuse a server or a role that does not meet the requirements of a master.

    Args:
        connection: Of the role.
        url: The database.
        pattern: Regular expression of the names of the captured tables.

    Raises:
        UnsupportedError: The message says what is missing, the hint what to run.
    """
    settings = dict(
        connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'max_replication_slots',"
            " 'max_wal_senders', 'server_encoding', 'server_version_num')"
        ).fetchall()
    )
    _check_kind(settings, without_password(url))
    _check_rights(connection, url, pattern)
    _check_publications(connection, without_password(url), pattern)
    _check_places(connection, settings, without_password(url))


def _check_kind(settings: Mapping[str, str], where: str) -> None:
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


def _check_rights(connection: Connection, url: str, pattern: str) -> None:
    where, hint = without_password(url), preparation_hint(url)
    (role,) = _one(connection, "SELECT current_user")
    if is_prepared(connection):
        (may_run,) = _one(connection, "SELECT has_function_privilege('wlc.start()', 'EXECUTE')")
        if not may_run:
            raise UnsupportedError(f"{where} is prepared for another role than {role}", hint=hint, path=where)
        if not is_current(connection):
            raise UnsupportedError(f"{where} was prepared by another version of dbfarm", hint=hint, path=where)
    else:
        try:
            with connection.transaction(force_rollback=True):
                connection.execute(_ATTEMPTS)
        except psycopg.errors.InsufficientPrivilege as error:
            message = f"{where}: role {role} may not make it a master: {first_line(error)}"
            raise UnsupportedError(message, hint=hint, path=where) from error
        if others := _named(connection, "c.relkind = 'r' AND NOT pg_has_role(c.relowner, 'USAGE')", pattern):
            raise UnsupportedError(f"{where}: role {role} does not own {others}", hint=hint, path=where)
    try:
        connection.execute("SELECT pg_replication_slot_advance('wlc_attempt', '0/1')")
    except psycopg.errors.UndefinedObject:
        # There is no such slot, and the role may use one.
        pass
    except psycopg.errors.InsufficientPrivilege as error:
        hint = f"as a superuser: ALTER ROLE {quote(role)} REPLICATION"
        raise UnsupportedError(f"{where}: role {role}: {first_line(error)}", hint=hint, path=where) from error
    if hidden := _named(connection, "c.relkind IN ('r', 'S') AND NOT has_table_privilege(c.oid, 'SELECT')", pattern):
        hint = f"as a superuser: GRANT pg_read_all_data TO {quote(role)}"
        raise UnsupportedError(f"{where}: role {role} may not read {hidden}", hint=hint, path=where)
    if secured := _named(connection, "c.relkind = 'r' AND row_security_active(c.oid)", pattern):
        hint = f"as a superuser: ALTER ROLE {quote(role)} BYPASSRLS"
        message = f"{where}: role {role} does not see all rows of {secured}, which have row security"
        raise UnsupportedError(message, hint=hint, path=where)


def _check_publications(connection: Connection, where: str, pattern: str) -> None:
    """Refuse tables whose rows could no longer be updated with REPLICA IDENTITY FULL."""
    # PostgreSQL 14 has no lists of columns.
    has_list = "p.prrelid = c.oid AND to_jsonb(p)->>'prattrs' IS NOT NULL"
    if listed := _named(connection, f"EXISTS (SELECT FROM pg_publication_rel p WHERE {has_list})", pattern):
        message = f"{where}: a publication has only some columns of {listed}; PostgreSQL would refuse every UPDATE"
        hint = "publish whole rows: ALTER PUBLICATION … SET TABLE …; or leave the table out with --tables"
        raise UnsupportedError(message, hint=hint, path=where)


def _check_places(connection: Connection, settings: Mapping[str, str], where: str) -> None:
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


def _named(connection: Connection, condition: str, pattern: str) -> str:
    """Return the captured relations for which a condition holds, as a list in words; "" if there are none."""
    query = f"SELECT {_NAME} {CAPTURABLE} AND {condition} ORDER BY 1"
    names = [name for (name,) in connection.execute(query, {"p": pattern}).fetchall()]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _one(connection: Connection, query: str) -> tuple[Any, ...]:
    found = connection.execute(query).fetchone()
    assert found is not None
    return tuple(found)
