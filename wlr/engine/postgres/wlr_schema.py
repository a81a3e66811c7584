"""The schema `wlr` of a replica: its state, its tables, and the guard against direct writes.

Its tables:
    state   key and value: position, clock, master, failure …; written in the transaction that it describes
    tables  every replicated table; other tables belong to the database's owner
    guard   has a row while the replica's owner allows direct writes

Every replicated table has a trigger that fails a statement unless `wlr.guard` has a row. It does not fire for replay,
which runs with the role of a replica. A view over the table prevents DROP TABLE. DROP SCHEMA wlr CASCADE drops the
function and with it the triggers.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from wlc.dialect.sql import literal
from wlc.farm.errors import InvalidError
from wlc.farm.model import Name
from wlr.engine.contract import no_replica
from wlr.engine.postgres.replica_connection import Address, connect, fetch, run, using
from wlr.engine.replica_state import OWNER, decode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from wlc.dialect.postgres.server_connection import Connection
    from wlr.engine.place import Place
    from wlr.engine.replica_state import ReplicaState


GUARD = "wlr_guard"
# Key of the state with the schema that takes the tables of the master's `main`.
SCHEMA = "schema"
_OWNED = "SELECT to_regclass('wlr.state') IS NOT NULL, EXISTS (SELECT FROM pg_namespace WHERE nspname = 'wlr')"
# It reads wlr.guard with the owner's privileges: a role without privileges on schema wlr must see this message, too.
_GUARD_CHECK = """
    CREATE FUNCTION wlr.guard_check() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM wlr.guard) THEN
            RAISE EXCEPTION 'table %.% belongs to a replica and is read-only; to allow writes: %',
                TG_TABLE_SCHEMA, TG_TABLE_NAME, 'wlr replica unlock REPLICA';
        END IF;
        RETURN NULL;
    END $$
"""
_UNGUARDED = f"""
    SELECT schema_name, table_name FROM wlr.tables AS r
    JOIN pg_namespace AS n ON n.nspname = r.schema_name
    JOIN pg_class AS c ON c.relname = r.table_name AND c.relnamespace = n.oid
    WHERE NOT EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = c.oid AND g.tgname = {literal(GUARD)})
"""
_UNKEPT = """
    SELECT c.oid, schema_name, table_name FROM wlr.tables AS r
    JOIN pg_namespace AS n ON n.nspname = r.schema_name
    JOIN pg_class AS c ON c.relname = r.table_name AND c.relnamespace = n.oid
    WHERE to_regclass(format('wlr.%I', format('table %s is replicated', c.oid))) IS NULL
"""


def _keeper(number: int) -> str:
    """Return the name of the view that prevents a replicated table from being dropped without CASCADE."""
    return f'wlr."table {number} is replicated"'


def let_go(connection: Connection, tables: Iterable[Name]) -> None:
    """Allow statements to drop tables until `write_tables`, in the caller's transaction."""
    for name in tables:
        for (number,) in fetch(connection, "SELECT to_regclass(%s)::oid", [name.sql]):
            if number is not None:
                run(connection, f"DROP VIEW IF EXISTS {_keeper(number)}")


def install(connection: Connection) -> None:
    """Create the `wlr` schema."""
    for statement in (
        "CREATE SCHEMA wlr",
        "CREATE TABLE wlr.state (key text PRIMARY KEY, value text NOT NULL)",
        "CREATE TABLE wlr.tables (schema_name text, table_name text, PRIMARY KEY (schema_name, table_name))",
        "CREATE TABLE wlr.guard (allowed_by text)",
        _GUARD_CHECK,
    ):
        run(connection, statement)


def find(connection: Connection, address: Address) -> tuple[ReplicaState, str] | None:
    """Read the state and the schema for `main`; None if the database is no replica.

    Raises:
        CorruptError: The state is damaged, or a newer version wrote it.
        InvalidError: The schema `wlr` belongs to another program.
    """
    is_replica, is_taken = fetch(connection, _OWNED)[0]
    if not is_replica:
        if is_taken:
            message = f"{address.shown} has a schema wlr that is not a replica's"
            raise InvalidError(message, hint="Rename it, or replicate into another database.", path=address.shown)
        return None
    values = dict(fetch(connection, "SELECT key, value FROM wlr.state"))
    is_unlocked = fetch(connection, f"SELECT count(*) FROM wlr.guard WHERE allowed_by = {literal(OWNER)}")[0][0] > 0
    return decode(values, address.shown, is_unlocked=is_unlocked), values.get(SCHEMA, "public")


def read(connection: Connection, address: Address) -> tuple[ReplicaState, str]:
    """Read the state and the schema for `main`; raises as `find` does.

    Raises:
        InvalidError: The database is no replica.
    """
    found = find(connection, address)
    if found is None:
        raise no_replica(address.shown)
    return found


def find_state(place: Place) -> ReplicaState | None:
    """Read a replica's state; None if the database is no replica.

    Raises:
        InvalidError: There is no such database, or its schema `wlr` belongs to another program.
        UnavailableError: The server cannot be reached.
        CorruptError: The state is damaged, or a newer version wrote it.
    """
    address = Address.of(place)
    with closing(connect(address)) as connection, using(address):
        found = find(connection, address)
        return None if found is None else found[0]


def write(connection: Connection, values: Mapping[str, str]) -> None:
    """Replace keys of the state, in the caller's transaction."""
    if not values:
        return
    rows = ", ".join(f"({literal(key)}, {literal(value)})" for key, value in values.items())
    run(
        connection,
        f"INSERT INTO wlr.state VALUES {rows} ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )


def read_tables(connection: Connection) -> set[Name]:
    """Return the names of all replicated tables in this database."""
    return {Name(*row) for row in fetch(connection, "SELECT schema_name, table_name FROM wlr.tables")}


def write_tables(connection: Connection, tables: Iterable[Name]) -> None:
    """Replace the names of all replicated tables and guard the new ones, in the caller's transaction."""
    run(connection, "DELETE FROM wlr.tables")
    rows = ", ".join(f"({literal(name.schema)}, {literal(name.name)})" for name in sorted(tables))
    if rows:
        run(connection, f"INSERT INTO wlr.tables VALUES {rows}")
    for number, schema, table in fetch(connection, _UNKEPT):
        run(connection, f"CREATE VIEW {_keeper(number)} AS SELECT 1 AS one FROM ONLY {Name(schema, table).sql}")
    for row in fetch(connection, _UNGUARDED):
        run(
            connection,
            f"CREATE TRIGGER {GUARD} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {Name(*row).sql}"
            " FOR EACH STATEMENT EXECUTE FUNCTION wlr.guard_check()",
        )


def set_unlocked(connection: Connection, is_unlocked: bool) -> None:
    """Allow direct writes to replicated tables, or refuse them again."""
    with connection.transaction():
        run(connection, "DELETE FROM wlr.guard")
        if is_unlocked:
            run(connection, f"INSERT INTO wlr.guard VALUES ({literal(OWNER)})")


def in_the_way(connection: Connection, tables: Collection[Name]) -> list[Name]:
    """Return the names that are taken by a table, view or the like of this database."""
    found = fetch(
        connection,
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = ANY(%s)",
        [sorted({name.schema for name in tables})],
    )
    return sorted({Name(*row) for row in found} & set(tables))
