"""Journal what bypassed the capture: the difference between the master and its published state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from wlc import catalog as duckdb_catalog
from wlc.capture.duckdb import journal
from wlc.capture.duckdb.images import any_sql, exact_sql
from wlc.capture.duckdb.journal import Table
from wlc.clock import format_time
from wlc.errors import InvalidError
from wlc.fields import ddl_json, name_json
from wlc.model import Ddl, literal, quote
from wlc.schema import schema_statements

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.capture.duckdb.shared import Shared

_PUBLISHED = '"wlc published"'


def journal_difference(shared: Shared, published: Path) -> int:
    """Journal one transaction that turns the published state into the present one.

    Tables that were created, dropped or altered are recorded as dropped and created with all their rows; of all others
    only the rows that differ.

    Args:
        shared: The master.
        published: DuckDB file with the state at the last published tick; nothing may be journalled after it.

    Returns:
        Number of records; 0 where the two are the same.

    Raises:
        InvalidError: It is no replica at that tick. What was published since would be journalled once more.
    """
    with shared.root.cursor() as connection, shared.commit_lock:
        connection.execute(f"ATTACH {literal(str(published))} AS {_PUBLISHED} (READ_ONLY)")
        connection.execute("BEGIN")
        try:
            _refuse_other_tick(connection, shared, published)
            records = _differences(connection, shared)
            if records:
                tick, now = shared.new_tick(), shared.commit_time()
                entry = {"user": "wlc repair", "started": format_time(now), "committed": format_time(now)}
                for record in records:
                    if "change" in record:
                        images = f"{quote(shared.catalog)}.wlc.j{record['change']['id']}"
                        connection.execute(f"UPDATE {images} SET _tick = {tick} WHERE _tick = 0")
                journal.add_entry(connection, shared.catalog, tick, {**entry, "records": records})
            with shared.changing_schema():
                connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        finally:
            connection.execute(f"DETACH {_PUBLISHED}")
        if records:
            shared.committed(tick, now)
    return len(records)


def _refuse_other_tick(connection: duckdb.DuckDBPyConnection, shared: Shared, published: Path) -> None:
    try:
        found = dict(connection.execute(f"SELECT key, value FROM {_PUBLISHED}.wlr.state").fetchall())
    except duckdb.CatalogException as error:
        raise InvalidError(f"{published} is no replica", hint="wlc repair SOURCE makes one itself") from error
    position = found.get("history"), found.get("tick")
    if position != (shared.state["history"], shared.state["tick"]):
        raise InvalidError(
            f"{published} is at tick {found.get('tick')}, and {shared.path} is published up to {shared.state['tick']}",
            hint=f"wlr replicate {shared.path} --into {published}",
            path=str(published),
        )


def _differences(connection: duckdb.DuckDBPyConnection, shared: Shared) -> list[dict[str, Any]]:
    present = duckdb_catalog.tables(connection, shared.catalog)
    before = duckdb_catalog.tables(connection, _PUBLISHED.strip('"'))
    known = {
        name: (number, layout) for number, (name, layout) in journal.read_layouts(connection, shared.catalog).items()
    }
    records: list[dict[str, Any]] = []
    statements = {
        ddl.object: ddl for ddl in schema_statements(connection, shared.catalog)[0] if ddl.kind == "CREATE TABLE"
    }
    for name in before:
        if present.get(name) != before[name]:
            ddl = Ddl("DROP TABLE", name, f"DROP TABLE {name.sql} CASCADE", name.schema)
            records.append({"ddl": ddl_json(ddl), "dropped": [name_json(name)]})
    for name, layout in present.items():
        if before.get(name) != layout:
            table = Table(shared.new_layout(), shared.catalog, name, layout)
            journal.add_layout(connection, table)
            records.append({"ddl": ddl_json(statements[name]), "created": [name_json(name)]})
            records += _difference(connection, table, None)
            continue
        number, known_layout = known.get(name, (0, None))
        if known_layout != layout:
            number = shared.new_layout()
            journal.add_layout(connection, Table(number, shared.catalog, name, layout))
        records += _difference(connection, Table(number, shared.catalog, name, layout), f"{_PUBLISHED}.{name.sql}")
    return records


def _difference(connection: duckdb.DuckDBPyConnection, table: Table, published: str | None) -> list[dict[str, Any]]:
    """Images, under tick 0, of the rows that one side has more often than the other."""
    values = ", ".join(f"{value} AS {name}" for value, name in zip(table.values, table.columns, strict=True))
    # Equal means identical: 0.0 is not -0.0, and texts are compared as bytes whatever their collation is.
    exact = ", ".join(
        exact_sql(column.type, name) for column, name in zip(table.layout.stored, table.columns, strict=True)
    )
    before = f" UNION ALL SELECT -1 AS w, {values} FROM {published}" if published else ""
    columns = ", ".join(
        f"{any_sql(column.type, name)} AS {name}"
        for column, name in zip(table.layout.stored, table.columns, strict=True)
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE wlc_repair AS SELECT sum(w)::BIGINT AS w, {columns}"
        f" FROM (SELECT 1 AS w, {values} FROM {table.sql}{before}) GROUP BY {exact} HAVING sum(w) <> 0"
    )
    listed = ", ".join(table.columns)
    counts = []
    for weight in (-1, 1):
        rows = connection.execute(
            f"INSERT INTO {table.images} SELECT 0, {weight}, NULL, NULL, {listed}"
            f" FROM (SELECT *, unnest(range(abs(w))) FROM wlc_repair WHERE sign(w) = {weight})"
        ).fetchall()
        counts.append(int(rows[0][0]))
    connection.execute("DROP TABLE wlc_repair")
    removed, added = counts
    if not removed and not added:
        return []
    change = {"id": table.id, "images": table.images, "table": name_json(table.name)}
    return [{"change": {**change, "added": added, "removed": removed}}]
