"""The schema `wlr` of a target: keys and values of the replica's state, its tables, and whether they are locked.

Tables of it:
    state   key and value: position, clock, master, failure …; written in the transaction that it describes
    tables  every table that is replicated; all others belong to the replica's owner
    guard   a row while the replica's owner allows direct writes to replicated tables
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wlc.clock import format_time, read_time
from wlc.errors import CorruptError
from wlc.model import Name, Position, quote
from wlr.engine import State, as_failure, failure_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

FORMAT = "1"
OWNER = "owner"


def install(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the `wlr` schema."""
    schema = f"{quote(catalog)}.wlr"
    connection.execute(f"""
        CREATE SCHEMA {schema};
        CREATE TABLE {schema}.state (key VARCHAR, value VARCHAR);
        CREATE TABLE {schema}.tables (schema_name VARCHAR, table_name VARCHAR);
        CREATE TABLE {schema}.guard (allowed_by VARCHAR);
    """)


def read(connection: duckdb.DuckDBPyConnection, catalog: str, path: str) -> State:
    """Read the state.

    Raises:
        CorruptError: It is damaged, or written by a newer version.
    """
    schema = f"{quote(catalog)}.wlr"
    values = dict(connection.execute(f"SELECT key, value FROM {schema}.state").fetchall())
    unlocked = connection.execute(f"SELECT count(*) FROM {schema}.guard WHERE allowed_by = '{OWNER}'").fetchall()
    try:
        if values["format"] != FORMAT:
            raise CorruptError(f"{path} is a replica of format {values['format']}, this version reads {FORMAT}")
        return State(
            id=values["id"],
            master=values["master"],
            catalog=values["catalog"],
            tables=tuple(json.loads(values["patterns"])),
            position=Position(values["history"], int(values["tick"]), int(values["batch"]), values["chain"]),
            batch_last=int(values["batch_last"]),
            clock=read_time(values["clock"]) if values["clock"] else None,
            beat_s=float(values["beat_s"]),
            failure=as_failure(json.loads(values.get("failure") or "null")),
            accepted=frozenset(json.loads(values["accepted"])),
            is_unlocked=bool(unlocked[0][0]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptError(f"the state of replica {path} is damaged: {error}", hint="Make the replica anew.") from error


def write(connection: duckdb.DuckDBPyConnection, catalog: str, values: dict[str, str]) -> None:
    """Replace keys of the state, in the caller's transaction."""
    table = f"{quote(catalog)}.wlr.state"
    marks = ", ".join("?" for _ in values)
    connection.execute(f"DELETE FROM {table} WHERE key IN ({marks})", list(values))
    rows = ", ".join("(?, ?)" for _ in values)
    connection.execute(f"INSERT INTO {table} VALUES {rows}", [text for pair in values.items() for text in pair])


def encode(**fields: Any) -> dict[str, str]:
    """Turn fields of a State into keys and values."""
    values: dict[str, str] = {}
    for name, value in fields.items():
        match name:
            case "position":
                values.update(history=value.history, tick=str(value.tick), batch=str(value.batch), chain=value.chain)
            case "clock":
                values[name] = format_time(value) if value else ""
            case "tables":
                values["patterns"] = json.dumps(list(value))
            case "accepted":
                values[name] = json.dumps(sorted(value))
            case "failure":
                values[name] = json.dumps(failure_json(value)) if value else ""
            case _:
                values[name] = str(value)
    return values


def encode_all(state: State) -> dict[str, str]:
    """Turn a whole State into keys and values."""
    names = ("id", "master", "catalog", "tables", "position", "batch_last", "clock", "beat_s", "failure", "accepted")
    return {"format": FORMAT, **encode(**{name: getattr(state, name) for name in names})}


def read_tables(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[Name]:
    """Return the names of all replicated tables."""
    rows = connection.execute(f"SELECT schema_name, table_name FROM {quote(catalog)}.wlr.tables").fetchall()
    return {Name(*row) for row in rows}


def write_tables(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Iterable[Name]) -> None:
    """Replace the names of all replicated tables, in the caller's transaction."""
    table = f"{quote(catalog)}.wlr.tables"
    connection.execute(f"DELETE FROM {table}")
    for name in sorted(tables):
        connection.execute(f"INSERT INTO {table} VALUES (?, ?)", [name.schema, name.name])
