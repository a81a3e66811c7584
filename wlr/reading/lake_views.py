"""Views of a Parquet replica's tables in a DuckDB file, with the declared types, for any tool that opens the file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql
from wlc.farm.clock import parse_tick
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Name
from wlr.engine.adapters import target_at
from wlr.engine.calculator import connect_free_of, reading, using
from wlr.engine.contract import Lake
from wlr.reading import query

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import duckdb

    from wlc.farm.model import Layout


_CATALOG = "wlr_attached"
# Our views, with their lake and tick.
_NOTES = "wlr_views.attached"


@dataclass(frozen=True, slots=True)
class Attached(ForPeople):
    """The views of a Parquet replica in a DuckDB file.

    Attributes:
        tick: Tick of the tables in the views.
        views: Their names, in order.
    """

    tick: int
    views: tuple[str, ...]


def attach(
    lake: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    tick: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Attached:
    """Make a view of each table of a Parquet replica in a DuckDB file, replacing those of an earlier call.

    The views read the replica's immutable files of one tick: they do not change when the replica is rolled forward,
    until that tick is pruned. Call it again for newer rows.

    Args:
        lake: The Parquet replica, in a local folder.
        into: The DuckDB file, created if missing. Its other content stays.
        tick: As of this tick, which must still be readable; the current one if omitted.
        storage_options: Options of the replica's file system.

    Raises:
        InvalidError: There is no such replica; or the file is a replica or a master, or has another object with the
            name of a view.
        ExpiredError: The tick was pruned.
        UnavailableError: The file is in use.
        UnsupportedError: The replica is not in a local folder.

    Examples:
        >>> wlr.attach("lake", "views.duckdb").views
        ('main.orders',)
    """
    target, file = target_at(lake, storage_options), Path(into)
    own = Lake.required(
        target, "wlr lake attach", "DuckDB itself opens other replicas: ATTACH 'copy.duckdb' (READ_ONLY)"
    )
    stored = own.stored_tables(parse_tick(tick))
    selects = {
        name: _select(layout, own.files(name.sql, stored.tick)) for name, layout in sorted(stored.layouts.items())
    }
    if not file.absolute().parent.is_dir():
        raise InvalidError(f"there is no folder {file.parent}", hint=f"mkdir -p {shlex.quote(str(file.parent))}")
    connection = connect_free_of(_CATALOG)
    try:
        with using(file):
            connection.execute(f"ATTACH {literal(str(file))} AS {_CATALOG}")
            connection.execute(f"USE {_CATALOG}.main")
        _refuse_other_owner(connection, file)
        with using(file), reading(f"files of {target}"):
            connection.execute("BEGIN")
            _drop_old(connection)
            for name, select in selects.items():
                _refuse_taken(connection, name, file)
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(name.schema)}")
                connection.execute(f"CREATE VIEW {name.sql} AS {select}")
                row = ", ".join(map(literal, (str(lake), name.schema, name.name)))
                connection.execute(f"INSERT INTO {_NOTES} VALUES ({stored.tick}, {row})")
            connection.execute("COMMIT")
    finally:
        connection.close()
    return Attached(stored.tick, tuple(map(str, selects)))


def _select(layout: Layout, files: list[str]) -> str:
    if remote := next((url for url in files if "://" in url), None):
        raise UnsupportedError(
            f"{remote} is not in a local folder: DuckDB would have to keep its keys",
            hint="wlr.read reads a table in a bucket; wlr lake files lists the URLs for DuckDB's httpfs",
        )
    local = (Path(file).absolute() for file in files)
    rows = f"SELECT * FROM {rows_of(*local)}" if files else query.nothing_sql(layout)
    return query.output_sql(layout, [column.name for column in layout.stored], rows, load_sql)


def _refuse_other_owner(connection: duckdb.DuckDBPyConnection, file: Path) -> None:
    for schema, what in (("wlr", "a replica"), ("wlc", "a master")):
        if _has_table(connection, Name(schema, "state")):
            message = f"{file} is {what}, and its tables must not be mixed with views of another replica"
            raise InvalidError(message, hint="Name a file that does not exist yet.", path=str(file))


def _has_table(connection: duckdb.DuckDBPyConnection, name: Name) -> bool:
    query = "SELECT count(*) FROM duckdb_tables() WHERE (database_name, schema_name, table_name) = ($1, $2, $3)"
    return bool(connection.execute(query, [_CATALOG, name.schema, name.name]).fetchall()[0][0])


def _drop_old(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE SCHEMA IF NOT EXISTS wlr_views")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {_NOTES} (tick BIGINT, lake VARCHAR, schema_name VARCHAR, view_name VARCHAR)"
    )
    for row in connection.execute(f"SELECT schema_name, view_name FROM {_NOTES}").fetchall():
        name = Name(*row)
        if not _has_table(connection, name):
            connection.execute(f"DROP VIEW IF EXISTS {name.sql}")
    connection.execute(f"DELETE FROM {_NOTES}")


def _refuse_taken(connection: duckdb.DuckDBPyConnection, name: Name, file: Path) -> None:
    found = connection.execute(
        "SELECT count(*) FROM (SELECT schema_name AS s, view_name AS n FROM duckdb_views() WHERE database_name = $1"
        " AND NOT internal UNION ALL SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1)"
        " WHERE lower(s) = lower($2) AND lower(n) = lower($3)",
        [_CATALOG, name.schema, name.name],
    ).fetchall()
    if found[0][0]:
        message = f"{file} has a table or view {name} of its own"
        raise InvalidError(message, hint="Rename it, or name a file that does not exist yet.", path=str(file))
