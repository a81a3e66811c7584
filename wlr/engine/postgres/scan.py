"""The rows of a PostgreSQL replica, as images in storage types: COPY writes them, DuckDB reads them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wlc.errors import UnsupportedError
from wlc.farm import open_database
from wlc.model import Ddl, Layout, file_column, literal, quote
from wlc.postgres_text import read_text_sql
from wlc.types import parse, store_sql
from wlr.engine.parquet.connection import connect as connect_duckdb
from wlr.engine.postgres import connection as connections
from wlr.engine.postgres import state as states
from wlr.engine.postgres.connection import Address, using
from wlr.engine.postgres.names import Names
from wlr.engine.postgres.types import postgres_type
from wlr.engine.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import duckdb

    from wlc.farm import FarmDatabase
    from wlc.model import Column, Name, Position
    from wlc.types import Type
    from wlr.engine.place import Place
    from wlr.engine.postgres.connection import Connection

_LONGEST_ROW = 1 << 30


@contextmanager
def scanned(place: Place, work: Path, storage_options: Mapping[str, Any] | None) -> Iterator[Scan]:
    """Open a replica for reading; raises as `wlr.engine.scanned` does."""
    address = Address.of(place)
    connection = connections.connect(address)
    local = connect_duckdb(work)
    try:
        with using(address):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found = states.find(connection, address)
            state, schema = found or (states.required(None, address), "")
            names, replicated = Names(schema), states.read_tables(connection)
        database = open_database(state.master, storage_options=storage_options)
        layouts = {
            name: layout
            for name, layout in _layouts(database, state.position).items()
            if names.place(name) in replicated
        }

        @contextmanager
        def images(name: Name) -> Iterator[str]:
            file = work / "rows.csv"
            with using(address):
                _write(connection, names.place(name), layouts[name], file)
            try:
                yield _select(local, layouts[name], file)
            finally:
                file.unlink()

        yield Scan(local, state, layouts, images)
    finally:
        local.close()
        connection.close()


def _layouts(database: FarmDatabase, position: Position) -> dict[Name, Layout]:
    """What columns the master's tables had at a position: PostgreSQL's own types do not say which they come from."""
    ticks = [tick for tick in database.snapshot_ticks() if tick <= position.tick]
    manifest = database.read_manifest(ticks[-1]) if ticks else None
    layouts = {table.table: table.layout for table in manifest.tables} if manifest else {}
    first, after = (manifest.position.batch, manifest.position.tick) if manifest else (1, 0)
    for number in database.batch_numbers():
        if first <= number <= position.batch:
            for transaction in database.read_batch(number)[0].transactions:
                if after < transaction.tick <= position.tick:
                    for record in transaction.records:
                        if isinstance(record, Ddl) and record.layout is not None:
                            layouts[record.object] = record.layout
    return layouts


def _write(connection: Connection, table: Name, layout: Layout, file: Path) -> None:
    columns = ", ".join(quote(column.name) for column in layout.stored)
    copy_out = f"COPY (SELECT {columns} FROM ONLY {table.sql}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
    with connection.cursor() as cursor, cursor.copy(copy_out.encode()) as rows, file.open("wb") as written:
        for block in rows:
            written.write(block)


def _select(local: duckdb.DuckDBPyConnection, layout: Layout, file: Path) -> str:
    """Select the rows of a file as images.

    Raises:
        UnsupportedError: A column cannot be read back as what it is in the master.
    """
    texts = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(len(layout.stored)))
    options = "header = false, delim = ',', quote = '\"', escape = '\"', nullstr = '', allow_quoted_nulls = false"
    source = (
        f"read_csv({literal(str(file))}, columns = {{{texts}}}, {options}, auto_detect = false,"
        f" max_line_size = {_LONGEST_ROW})"
    )
    values = [_value(column, f"c{index}") for index, column in enumerate(layout.stored)]
    lost = " OR ".join(f"(c{index} IS NOT NULL AND {value} IS NULL)" for index, value in enumerate(values))
    if lost and local.execute(f"SELECT 1 FROM {source} WHERE {lost} LIMIT 1").fetchall():
        raise UnsupportedError("values cannot be read back as the types that they have in the master")
    columns = (
        f"{store_sql(column, value)} AS {quote(file_column(column.name))}"
        for column, value in zip(layout.stored, values, strict=True)
    )
    return f"SELECT {', '.join(columns)} FROM {source}"


def _has_lost_kind(parsed: Type) -> bool:
    """Say whether the text of a value does not tell which type it had in the master."""
    return parsed.kind in ("UNION", "VARIANT") or any(_has_lost_kind(member) for _, member in parsed.fields)


def _value(column: Column, text: str) -> str:
    """Read the text that PostgreSQL writes for a value of a DuckDB type."""
    parsed = parse(column.type)
    if _has_lost_kind(parsed):
        message = f"column {quote(column.name)} has type {column.type}, which cannot be told from PostgreSQL's text"
        raise UnsupportedError(message)
    if parsed.kind in ("BLOB", "GEOMETRY"):
        return f"TRY_CAST(unhex(substr({text}, 3)) AS {parsed.text})"
    if parsed.kind in ("LIST", "ARRAY") and postgres_type(column.type).endswith("[]"):
        return f"TRY_CAST({read_text_sql(parsed.fields[0][1].text + '[]', text)} AS {parsed.text})"
    if postgres_type(column.type) == "json" and parsed.kind != "JSON":
        return f"TRY_CAST(CAST({text} AS JSON) AS {parsed.text})"
    return read_text_sql(parsed.text, text)
