"""The rows of a PostgreSQL replica as images in storage types: COPY writes them, DuckDB reads them."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import parse, store_sql
from wlc.farm.database import open_database
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Ddl, Layout, file_column
from wlr.engine.calculator import connect as connect_duckdb
from wlr.engine.contract import Scan
from wlr.engine.postgres import replica_connection as connections
from wlr.engine.postgres import wlr_schema as states
from wlr.engine.postgres.catalog import Names, PostgresCatalog
from wlr.engine.postgres.expressions import postgres_type
from wlr.engine.postgres.replica_connection import Address, using
from wlr.replay import log_reader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    import duckdb

    from wlc.dialect.postgres.server_connection import Connection
    from wlc.dialect.types import ColumnType
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Column, Name, Position
    from wlr.engine.place import Place

_LONGEST_ROW = 1 << 30
_NAME_MAX = 63


@contextmanager
def scanned(place: Place, work: Path, storage_options: Mapping[str, Any] | None) -> Iterator[Scan]:
    """Open a replica for reading; see `wlr.engine.contract.Target.scanned`."""
    address = Address.of(place)
    with closing(connections.connect(address)) as connection, closing(connect_duckdb(work)) as local:
        with using(address):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            state, schema = states.read(connection, address)
            names, replicated = Names(schema), states.read_tables(connection)
            found = PostgresCatalog(connection).columns
        database = open_database(state.master, storage_options=storage_options)
        known = _layouts(database, state.position, state.accepted)
        layouts = {
            name: _present(layout, found.get(names.place(name), ()))
            for name, layout in state.filters.projected(known).items()
            if names.place(name) in replicated and names.place(name) in found
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


def _present(layout: Layout, columns: Collection[str]) -> Layout:
    """Return a layout without dropped columns of a table."""
    # PostgreSQL cuts longer names.
    kept = (c for c in layout.columns if c.name in columns or len(c.name.encode()) > _NAME_MAX)
    return replace(layout, columns=tuple(kept))


def _layouts(database: FarmDatabase, position: Position, accepted: Collection[int]) -> dict[Name, Layout]:
    """Read the original columns of tables from the farm: PostgreSQL's types do not show them.

    Changes of accepted transactions do not count.
    """
    manifest = log_reader.newest_snapshot(database, position.tick)
    layouts = {table.table: table.layout for table in manifest.tables} if manifest else {}
    first, after = (manifest.position.batch, manifest.position.tick) if manifest else (1, 0)
    for number in database.batch_numbers():
        if first <= number <= position.batch:
            for transaction in database.read_batch(number)[0].transactions:
                if after < transaction.tick <= position.tick and transaction.tick not in accepted:
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
        UnsupportedError: The values of a column cannot be read back as the master's type.
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
        raise UnsupportedError("values cannot be read back as the types of the master")
    columns = (
        f"{store_sql(column, value)} AS {quote(file_column(column.name))}"
        for column, value in zip(layout.stored, values, strict=True)
    )
    return f"SELECT {', '.join(columns)} FROM {source}"


def _has_lost_kind(parsed: ColumnType) -> bool:
    """Return whether the text of a value hides its type in the master."""
    return parsed.holds(lambda row: row.name in ("UNION", "VARIANT"))


def _value(column: Column, text: str) -> str:
    """Parse PostgreSQL's text of a value of a DuckDB type."""
    parsed = parse(column.type)
    if _has_lost_kind(parsed):
        message = f"column {quote(column.name)} has type {column.type}, which PostgreSQL's text does not show"
        raise UnsupportedError(message)
    if parsed.kind in ("LIST", "ARRAY") and postgres_type(column.type).endswith("[]"):
        return f"TRY_CAST({read_text_sql(parsed.fields[0][1].text + '[]', text)} AS {parsed.text})"
    if postgres_type(column.type) == "json" and parsed.kind != "JSON":
        return f"TRY_CAST(CAST({text} AS JSON) AS {parsed.text})"
    return read_text_sql(parsed.text, text)
