"""A Parquet replica as its readers see it: rebuilt from manifest and files as a DuckDB database, and checked meanwhile.

What is rebuilt is compared with the master as any DuckDB replica is: schema, rows and sequences.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import duckdb

import wlr
from tests.oracle import contents
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, storage_type
from wlc.farm.model import Ddl, file_column
from wlr.engine.adapters import locate
from wlr.engine.parquet.folder import LakeFolder, LakeTable, Version, decode_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.oracle import Contents


def folder_of(into: Path | str) -> LakeFolder:
    """The folder of a Parquet replica."""
    return LakeFolder(locate(into).url)


def version_of(into: Path | str, tick: int | None = None) -> Version:
    """What the manifest of a tick, or of now, says."""
    folder = folder_of(into)
    found = folder.find()
    assert found is not None, f"no replica {into}"
    current = folder.read_current(found[0])
    if tick is None or tick == current.position.tick:
        return current
    return next(folder.read_version(path) for number, path in folder.manifests(tick) if number == tick)


def lake_contents(into: Path | str, tick: int | None = None) -> Contents:
    """Every row of every table as text, with its multiplicity, at a tick or now."""
    with rebuilt(into, tick) as (connection, catalog):
        return contents(connection, catalog)


def to_duckdb(into: Path | str, target: Path, tick: int | None = None) -> Path:
    """Make a DuckDB file of a Parquet replica, with which it can be compared like any other."""
    target.unlink(missing_ok=True)
    with rebuilt(into, tick, str(target)):
        return target


def any_file(into: Path) -> Path:
    """A DuckDB file with what a replica of either kind contains."""
    return to_duckdb(into, into.with_name(f"{into.name}.rebuilt.duckdb")) if locate(into).engine == "parquet" else into


@contextmanager
def rebuilt(
    into: Path | str, tick: int | None = None, file: str = ":memory:"
) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """A database with all that a Parquet replica contains at a tick, and its name."""
    version, folder = version_of(into, tick), folder_of(into)
    with duckdb.connect() as connection:
        if version.catalog.lower() == "memory":
            connection.execute("ATTACH ':memory:' AS scratch; USE scratch; DETACH memory")
        connection.execute(f"ATTACH {literal(file)} AS {quote(version.catalog)}")
        for ddl in version.schema:
            _run(connection, version.catalog, ddl)
        # Children wait for the parents that their rows refer to.
        waiting = list(version.tables)
        while waiting:
            left = [table for table in waiting if not _load(connection, folder, into, table, tick)]
            assert len(left) < len(waiting), f"rows of {left[0].table} do not fit"
            waiting = left
        for ddl in version.schema_after:
            _run(connection, version.catalog, ddl)
        for sequence in version.sequences:
            name = literal(f"{quote(version.catalog)}.{sequence.sequence.sql}")
            connection.execute(f"SELECT setval({name}, {sequence.value})")
        yield connection, version.catalog


def _run(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    connection.execute(f"USE {quote(catalog)}.{quote(ddl.search_path[0])}")
    connection.execute(ddl.statement)
    connection.execute(f"USE {quote(catalog)}.main")


def _load(
    connection: duckdb.DuckDBPyConnection, folder: LakeFolder, into: Path | str, table: LakeTable, tick: int | None
) -> bool:
    """Insert the rows of a table; says False if others have to come first."""
    paths = [f"{folder.url}/{part.file.path}" for part in table.parts]
    assert wlr.files(into, str(table.table), tick=tick) == paths
    files = [folder.store.fetch(part.file.path) for part in table.parts]
    check_ranges(connection, table, [str(file) for file in files])
    if not files:
        return True
    names = ", ".join(quote(column.name) for column in table.layout.stored)
    values = ", ".join(load_sql(column, quote(file_column(column.name))) for column in table.layout.stored)
    insert = f"INSERT INTO {table.table.sql} ({names}) SELECT {values} FROM {_read(map(str, files))}"
    try:
        connection.execute(insert)
    except duckdb.ConstraintException as error:
        assert "foreign key" in str(error).lower(), error
        return _load_one_by_one(connection, table, insert)
    finally:
        for file in files:
            folder.store.release(file)
    return True


def _load_one_by_one(connection: duckdb.DuckDBPyConnection, table: LakeTable, insert: str) -> bool:
    """Insert rows that refer to others of their table, which DuckDB takes after those only."""
    waiting = list(range(table.rows))
    while waiting:
        left = []
        for row in waiting:
            try:
                connection.execute(f"{insert} LIMIT 1 OFFSET {row}")
            except duckdb.ConstraintException:
                left.append(row)
        if len(left) == len(waiting):
            # They wait for rows of another table.
            connection.execute(f"DELETE FROM {table.table.sql}")
            return False
        waiting = left
    return True


def check_ranges(connection: duckdb.DuckDBPyConnection, table: LakeTable, files: list[str]) -> None:
    """Check that files hold as many rows as the manifest says, and that their keys lie in ranges that do not overlap."""
    by_name = {column.name: column for column in table.layout.columns}
    key = [by_name[name] for name in table.layout.primary_key]
    row = f"row({', '.join(quote(file_column(column.name)) for column in key)})" if key else "0"
    connection.execute("SET TimeZone = 'UTC'")
    bounds = []
    for part, file in zip(table.parts, files, strict=True):
        lows, highs = ([literal(text) for text in texts] for texts in (part.low, part.high))
        assert len(lows) == len(highs) == len(key)
        low, high = (
            f"row({', '.join(f'CAST({t} AS {storage_type(c.type)})' for t, c in zip(texts, key, strict=True))})"
            if key
            else "0"
            for texts in (lows, highs)
        )
        query = f"SELECT count(*), bool_and({row} BETWEEN {low} AND {high}) FROM {_read([file])}"
        assert connection.execute(query).fetchall() == [(part.file.rows, True)], part.file.path
        assert part.file.rows > 0, "no file is empty"
        bounds.append((low, high))
    for (_, high), (low, _) in pairwise(bounds) if key else ():
        assert connection.execute(f"SELECT {high} < {low}").fetchall() == [(True,)], f"{table.table}: {high}, {low}"


def surplus(into: Path | str) -> list[str]:
    """Files of a replica that no manifest names, manifests of later ticks, and folders of runs that died."""
    folder, current = folder_of(into), version_of(into)
    entries = [entry.path for entry in folder.store.list()]
    listed = [path for _, path in folder.manifests(current.position.tick)]
    named = {
        part.file.path
        for path in listed
        for table in decode_version(folder.store.read(path), path).tables
        for part in table.parts
    }
    left = [path for path in entries if path not in {*named, *listed, "wlr.pointer", "wlr.open"}]
    left = [path for path in left if "/_delta_log/" not in path]
    place = locate(into)
    if "://" not in place.url:
        left += [str(path) for path in place.path.rglob(".*") if path.name != ".wlc.lock"]
    return left


def _read(files: object) -> str:
    return f"read_parquet([{', '.join(map(literal, files))}], hive_partitioning = false)"  # type: ignore[call-overload]
