"""The functions of a PostgreSQL master: `wlc master` creates them, or a superuser for a role that is no superuser."""

from __future__ import annotations

import getpass
import hashlib
import os
from importlib.resources import files
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from wlc.dialect.postgres.session import FORMS
from wlc.dialect.postgres.url import without_password
from wlc.dialect.sql import literal, quote

if TYPE_CHECKING:
    from wlc.dialect.postgres.connection import Connection

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


def hint(url: str) -> str:
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
