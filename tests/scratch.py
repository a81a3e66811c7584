"""One DuckDB instance for what tests look up and write by the way: to start another one takes longer than most of that."""

from __future__ import annotations

import functools
import itertools
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator


_numbers = itertools.count(1)


@functools.cache
def _instance(_of: str) -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@contextmanager
def scratch() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own; its temporary tables and settings end with it."""
    with _instance("scratch").cursor() as connection:
        yield connection


def empty_database() -> tuple[duckdb.DuckDBPyConnection, str]:
    """A connection that stands in an empty database in memory, and the database's name; for `give_back` at the end.

    Connections of `scratch` do not list its tables.
    """
    name = f"hand_{next(_numbers)}"
    connection = _instance("empty databases").cursor()
    connection.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
    return connection, name


def give_back(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Remove a database of `empty_database`."""
    connection.execute(f"USE memory; DETACH {name}")
    connection.close()


@contextmanager
def attached(path: Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that stands in a database file, which it only reads; the database is called as DuckDB calls it.

    Only `memory` gets another name, which is taken: views of such a file that name it cannot be read.
    """
    alias = " AS memory_file" if Path(path).stem == "memory" else ""
    with scratch() as connection:
        connection.execute(f"ATTACH {literal(str(path))}{alias} (READ_ONLY)")
        query = "SELECT database_name FROM duckdb_databases() WHERE path = ?"
        name = quote(connection.execute(query, [os.path.realpath(path)]).fetchall()[0][0])
        connection.execute(f"USE {name}")
        try:
            yield connection
        finally:
            connection.execute(f"USE memory; DETACH {name}")
