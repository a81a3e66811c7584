"""Rejected rows for users: `wlc.exceptions`, a typed view of it for each table, and `wlc.counters`.

Neither is captured or replicated: every site has its own. `wlc.exceptions` has one layout for all tables, with keys and
row images as JSON: whole numbers, strings and truth values unchanged, all other values as DuckDB's text of the stored
value. The view of a table has its types, and the column names of MySQL NDB Cluster's exceptions tables.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb.images import exact_sql
from wlc.dialect.duckdb.row_images import json_object_sql
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, storage_type
from wlc.farm.clock import format_time, utc_now
from wlc.farm.model import Name, RowRejected
from wlc.multi_master.duckdb import rejection
from wlc.multi_master.duckdb.conflict_window import key_columns
from wlc.multi_master.duckdb.rejection import IMAGES, KEYS, PRESENT
from wlc.multi_master.duckdb.verdicts import DELETE_ROW, REJECTED, UPDATE_ROW, WRITE_ROW
from wlc.multi_master.site_step import ConflictCounter, RejectedRow, RejectionCount, RejectionMark, Rejections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.farm.model import Column, Origin
    from wlc.multi_master.duckdb.lines import LinesTable
    from wlc.multi_master.duckdb.verdicts import StepTable


_log = logging.getLogger("wlc")
# Per site: our tick after its last rejection, our last tick that it is known to contain, and the last one at which it
# contained all refreshes after its rejections.
LAST_CONFLICT, CONTAINED, LAST_STABLE = "last_conflict_tick", "contained_tick", "last_stable_tick"
_COLUMNS = (
    "site VARCHAR, source VARCHAR, source_tick BIGINT, count BIGINT, source_history VARCHAR, schema_name VARCHAR,"
    " table_name VARCHAR, key JSON, op_type VARCHAR, cause VARCHAR, pg_type VARCHAR, old JSON, new JSON, local JSON,"
    " origin_history VARCHAR, origin_tick BIGINT, detected TIMESTAMP WITH TIME ZONE, dependent BOOLEAN"
    ", resubmitted TIMESTAMP WITH TIME ZONE"
)
# Maximum number of a table's rejected rows that a refresh lists, because a log file is read as a whole.
LISTED_MOST = 10_000
_WRITTEN = ", ".join(column.split()[0] for column in _COLUMNS.split(", ")[:-1])


@dataclass(frozen=True, slots=True)
class Detection:
    """Place and time of rejections.

    Attributes:
        site: The site that rejects them.
        source: The site whose log has them.
        detected: The present time.
        authors: By history, the site that first committed its transactions, if it is not the source.
    """

    catalog: str
    site: str
    source: str
    detected: datetime
    authors: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The journal's schema as SQL text."""
        return f"{quote(self.catalog)}.wlc"


def prepare(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the tables unless they exist."""
    schema = f"{quote(catalog)}.wlc"
    connection.execute(f"CREATE TABLE IF NOT EXISTS {schema}.exceptions ({_COLUMNS})")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {schema}.counters (site VARCHAR, rule VARCHAR, name VARCHAR, value BIGINT)"
    )


# Writing -------------------------------------------------------------------------------------------------------------


def write(
    connection: duckdb.DuckDBPyConnection,
    where: Detection,
    seen: Sequence[tuple[int, Origin]],
    place: int,
    step: StepTable,
) -> list[RowRejected]:
    """Write the collected rejected rows of one table, before the step is applied.

    Returns:
        The records for their authors, by transaction, at most `LISTED_MOST`.
    """
    table = step.table
    rejection.find_present(connection, step, rejection.before_sql(place))
    listed = [
        (line, origin.history, origin.tick, where.authors.get(origin.history, where.source)) for line, origin in seen
    ]
    origins = (
        "SELECT unnest($1::BIGINT[]) AS line, unnest($2::VARCHAR[]) AS history, unnest($3::BIGINT[]) AS tick,"
        " unnest($4::VARCHAR[]) AS author"
    )
    inserted = connection.execute(
        f"""
        INSERT INTO {where.schema}.exceptions ({_WRITTEN})
        WITH origins AS ({origins})
        SELECT {literal(where.site)}, o.author, o.tick, r.number, o.history,
            {literal(table.name.schema)}, {literal(table.name.name)}, {json_sql(table, key_columns(table.layout), "k")},
            r.op, r.cause, {_POSTGRES_TYPE}, {_image(step, "b")}, {_image(step, "a")}, {_image(step, "p")},
            o.history, o.tick, CAST({literal(format_time(where.detected))} AS TIMESTAMP WITH TIME ZONE),
            r.is_dependent
        FROM {REJECTED} AS r JOIN origins AS o ON o.line = r.line JOIN {KEYS} AS k ON k.key = r.key
        LEFT JOIN {IMAGES} AS b
            ON b.key = r.key AND b.line = r.line AND b._weight = CASE WHEN r.is_read THEN 0 ELSE -1 END
        LEFT JOIN {IMAGES} AS a ON a.key = r.key AND a.line = r.line AND a._weight = 1 AND NOT r.is_read
        LEFT JOIN {PRESENT} AS p ON p.key = r.key AND p.line = r.line
        WHERE r.place = {place}
        """,
        [list(column) for column in zip(*listed, strict=True)],
    ).fetchall()
    _create_view(connection, where.catalog, table)
    return _last(connection, where, table.name, int(inserted[0][0]))


def _last(connection: duckdb.DuckDBPyConnection, where: Detection, table: Name, count: int) -> list[RowRejected]:
    """Return the rows written last, all of one table, in the form of the log."""
    columns = "origin_history, origin_tick, count, key, op_type, cause, pg_type, old, new, local, dependent"
    rows = connection.execute(
        f"SELECT {columns} FROM (SELECT rowid, * FROM {where.schema}.exceptions ORDER BY rowid DESC LIMIT {count})"
        f" ORDER BY origin_tick, count LIMIT {LISTED_MOST}"
    ).fetchall()
    reported = [_listed_row(table, *row) for row in rows]
    return reported if count == len(reported) else [*reported[:-1], replace(reported[-1], more=count - len(reported))]


def _listed_row(table: Name, history: str, tick: int, number: int, key: str, *rest: Any) -> RowRejected:
    op, cause, pg_type, *images, dependent = rest
    old, new, local = (None if text is None else json.loads(text) for text in images)
    return RowRejected(table, history, tick, number, json.loads(key), op, cause, pg_type, old, new, local, dependent)


def write_reported(
    connection: duckdb.DuckDBPyConnection,
    where: Detection,
    reported: Sequence[tuple[datetime, RowRejected]],
    present: Mapping[Name, CapturedTable],
) -> None:
    """Write this site's rows that the primary rejected, except rows that this site has set back itself.

    Args:
        connection: In the transaction that takes the primary's.
        where: The primary is the site, and this one the source.
        reported: The rows, with the time of the rejection.
        present: The existing tables.
    """
    prepare(connection, where.catalog)
    if more := sum(row.more for _, row in reported):
        _log.warning("site %s rejected %s more rows than its log lists: wlc site exceptions there", where.site, more)
    rows = [
        (
            *(row.history, row.tick, row.count, row.table.schema, row.table.name, row.op_type, row.cause, row.pg_type),
            *(None if image is None else _json(image) for image in (row.key, row.old, row.new, row.local)),
            *(format_time(detected), row.dependent),
        )
        for detected, row in reported
    ]
    types = ("VARCHAR", "BIGINT", "BIGINT", *["VARCHAR"] * 10, "BOOLEAN")
    columns = ", ".join(f"unnest(${number}::{type_}[]) AS c{number}" for number, type_ in enumerate(types, start=1))
    exceptions = f"{where.schema}.exceptions"
    connection.execute(
        f"INSERT INTO {exceptions} ({_WRITTEN}) SELECT {literal(where.site)}, {literal(where.source)}, c2,"
        # Rows of the same transaction that this site has set back already exist, with their own numbers.
        f" c3 + (SELECT count(*) FROM {exceptions} WHERE source_tick = c2 AND source = {literal(where.source)}),"
        " c1, c4, c5, c9, c6, c7, c8, c10, c11, c12, c1, c2, CAST(c13 AS TIMESTAMP WITH TIME ZONE), c14"
        f" FROM (SELECT {columns}) AS reported"
        f" ANTI JOIN (SELECT * FROM {exceptions} WHERE site = {literal(where.source)}) AS own"
        f" ON own.origin_tick = c2 AND own.schema_name = c4 AND own.table_name = c5 AND own.key = c9",
        [list(column) for column in zip(*rows, strict=True)],
    )
    for table in {row.table for _, row in reported} & present.keys():
        _create_view(connection, where.catalog, present[table])


def _json(image: Mapping[str, Any]) -> str:
    """Write an image as DuckDB does."""
    return json.dumps(image, separators=(",", ":"), ensure_ascii=False)


def write_evicted(connection: duckdb.DuckDBPyConnection, where: Detection, history: str, table: LinesTable) -> None:
    """Write the rows of a table that a secondary is about to set back.

    Args:
        connection: In the transaction that sets them back.
        where: The secondary is the site, and the source.
        history: Its own history.
        table: Lines with the former rows, and `tick`, the last own transaction that changed them.
    """
    here = table.table
    connection.execute(
        f"""
        INSERT INTO {where.schema}.exceptions ({_WRITTEN})
        WITH new AS (SELECT {here.named_values} FROM {here.sql} AS t SEMI JOIN {table.lines} AS l
            ON {table.same_key("l")})
        SELECT {literal(where.site)}, {literal(where.source)}, e.tick,
            row_number() OVER (PARTITION BY e.tick ORDER BY {", ".join(f"e.{key}" for key in table.key)})
                + (SELECT count(*) FROM {where.schema}.exceptions AS x WHERE x.source_tick = e.tick
                    AND x.source = {literal(where.source)}), {literal(history)},
            {literal(here.name.schema)}, {literal(here.name.name)}, {json_sql(here, key_columns(here.layout), "e")},
            CASE WHEN e._weight < 0 THEN {literal(WRITE_ROW)} WHEN n.is_there THEN {literal(UPDATE_ROW)}
                ELSE {literal(DELETE_ROW)} END, 'constraint', NULL,
            CASE WHEN e._weight > 0 THEN {json_sql(here, here.layout.stored, "e")} END,
            CASE WHEN n.is_there THEN {json_sql(here, here.layout.stored, "n")} END,
            CASE WHEN e._weight > 0 THEN {json_sql(here, here.layout.stored, "e")} END,
            {literal(history)}, e.tick, CAST({literal(format_time(where.detected))} AS TIMESTAMP WITH TIME ZONE), false
        FROM {table.lines} AS e LEFT JOIN (SELECT *, true AS is_there FROM new) AS n
            ON {" AND ".join(f"n.{key} = e.{key}" for key in table.key)}
        """
    )
    _create_view(connection, where.catalog, here)


_POSTGRES_TYPE = (
    f"CASE WHEN r.op = {literal(WRITE_ROW)} AND NOT r.is_absent THEN 'insert_exists'"
    f" WHEN r.op = {literal(UPDATE_ROW)} AND r.is_absent AND r.direct THEN 'update_deleted'"
    f" WHEN r.op = {literal(UPDATE_ROW)} AND r.is_absent THEN 'update_missing'"
    f" WHEN r.op = {literal(UPDATE_ROW)} THEN 'update_origin_differs'"
    f" WHEN r.op = {literal(DELETE_ROW)} AND r.is_absent THEN 'delete_missing'"
    f" WHEN r.op = {literal(DELETE_ROW)} THEN 'delete_origin_differs' END"
)


def _image(step: StepTable, alias: str) -> str:
    return f"CASE WHEN {alias}.key IS NOT NULL THEN {json_sql(step.table, step.table.layout.stored, alias)} END"


def json_sql(table: CapturedTable, columns: Sequence[Column], alias: str) -> str:
    """Return the expression that writes columns of a row image as JSON."""
    names = dict(zip(table.layout.stored, table.columns, strict=True))
    return json_object_sql((column, f"{alias}.{names[column]}") for column in columns)


def _create_view(connection: duckdb.DuckDBPyConnection, catalog: str, table: CapturedTable) -> None:
    """Create the typed view of a table's exceptions."""
    name = table.name.name if table.name.schema == "main" else str(table.name)
    keys = [f"{_typed(column, 'key')} AS {quote(column.name)}" for column in key_columns(table.layout)]
    values = [
        f"{_typed(column, image)} AS {quote(column.name + suffix)}"
        for column in table.layout.stored
        for image, suffix in (("old", "$OLD"), ("new", "$NEW"))
    ]
    listed = [
        "site AS server_id",
        "source AS master_server_id",
        "source_tick AS master_epoch",
        'count AS "count"',
        *keys,
        *values,
        "op_type",
        "cause AS cft_cause",
        "origin_history || ':' || origin_tick AS orig_transid",
        "detected",
    ]
    connection.execute(
        f"CREATE OR REPLACE VIEW {quote(catalog)}.wlc.{quote(name + '$EX')} AS SELECT {', '.join(listed)}"
        f" FROM {quote(catalog)}.wlc.exceptions WHERE schema_name = {literal(table.name.schema)}"
        f" AND table_name = {literal(table.name.name)}"
    )


def _typed(column: Column, image: str) -> str:
    path = literal('$."' + column.name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return load_sql(column, f"CAST(json_extract_string({image}, {path}) AS {storage_type(column.type)})")


# Counting ------------------------------------------------------------------------------------------------------------


def count_overwritten(connection: duckdb.DuckDBPyConnection, found: LinesTable, before: int) -> int:
    """Count rows that lines replace although they equal neither the author's old nor new images.

    Args:
        connection: In the transaction of the step.
        found: The lines of a table, whose images are journalled.
        before: Tick before the first line.
    """
    if not found.key:
        return 0
    columns = zip(found.table.layout.stored, found.table.columns, strict=True)
    same = (f"{exact_sql(c.type, f'l.{n}')} IS NOT DISTINCT FROM {exact_sql(c.type, f'j.{n}')}" for c, n in columns)
    first = f"SELECT {before} + min(_line) AS _tick, {found.keys} FROM {found.lines} GROUP BY {found.keys}"
    query = (
        f"SELECT count(*) FROM (FROM {found.table.images} JOIN ({first}) USING (_tick, {found.keys})) AS j"
        f" WHERE j._weight = -1 AND NOT EXISTS (SELECT 1 FROM {found.lines} AS l"
        f" WHERE {before} + l._line = j._tick AND {' AND '.join(same)})"
    )
    return int(connection.execute(query).fetchall()[0][0])


def count(connection: duckdb.DuckDBPyConnection, catalog: str, site: str, rises: Mapping[tuple[str, str], int]) -> None:
    """Increase counters of a site's changes."""
    table = f"{quote(catalog)}.wlc.counters"
    for (rule, name), rise in rises.items():
        which = [site, rule, name]
        found = connection.execute(
            f"UPDATE {table} SET value = value + {rise} WHERE (site, rule, name) = (?, ?, ?)", which
        ).fetchall()
        if not found[0][0]:
            connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, {rise})", which)


def note_conflict(connection: duckdb.DuckDBPyConnection, catalog: str, site: str, tick: int) -> None:
    """Store the last tick at which a transaction of a site was rejected."""
    _set(connection, catalog, site, LAST_CONFLICT, tick)


def last_conflict(connection: duckdb.DuckDBPyConnection, catalog: str) -> int:
    """Return our tick after the last rejection, of any site; 0 before the first rejection."""
    if not _exists(connection, catalog):
        return 0
    return max((each.value for each in counters(connection, catalog) if each.name == LAST_CONFLICT), default=0)


def note_contained(connection: duckdb.DuckDBPyConnection, catalog: str, site: str, tick: int) -> None:
    """Store the tick up to which a site contains our history, if there was ever a rejection."""
    if not _exists(connection, catalog):
        return
    known = {each.name: each.value for each in counters(connection, catalog) if each.site == site}
    if known.get(CONTAINED) == tick:
        return
    connection.execute("BEGIN")
    _set(connection, catalog, site, CONTAINED, tick)
    if tick >= known.get(LAST_CONFLICT, tick + 1):
        _set(connection, catalog, site, LAST_STABLE, tick)
    connection.execute("COMMIT")


def _set(connection: duckdb.DuckDBPyConnection, catalog: str, site: str, name: str, value: int) -> None:
    table, which = f"{quote(catalog)}.wlc.counters", [site, "", name]
    connection.execute(f"DELETE FROM {table} WHERE (site, rule, name) = (?, ?, ?)", which)
    connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, {value})", which)


# Reading -------------------------------------------------------------------------------------------------------------


def read(connection: duckdb.DuckDBPyConnection, catalog: str, since: datetime | None = None) -> list[RejectedRow]:
    """Return what was rejected, oldest first."""
    if not _exists(connection, catalog):
        return []
    where = f"detected >= CAST({literal(format_time(since))} AS TIMESTAMP WITH TIME ZONE)" if since else "true"
    rows = connection.execute(
        "SELECT site, source, source_tick, count, schema_name, table_name, key, op_type, cause, pg_type, old, new,"
        " local, origin_history, origin_tick, epoch_us(detected), dependent, epoch_us(resubmitted)"
        f" FROM {quote(catalog)}.wlc.exceptions WHERE {where} ORDER BY detected, source, source_tick, count"
    ).fetchall()
    return [_rejected_row(*row) for row in rows]


def _rejected_row(*row: Any) -> RejectedRow:
    site, source, tick, number, schema, table, key, op, cause, pg_type, *images, history, origin, time, dep, again = row
    old, new, local = (None if text is None else json.loads(text) for text in images)
    return RejectedRow(
        site,
        source,
        tick,
        number,
        Name(schema, table),
        json.loads(key),
        op,
        cause,
        pg_type,
        old,
        new,
        local,
        history,
        origin,
        _time(time),
        dep,
        None if again is None else _time(again),
    )


def _time(microseconds: int) -> datetime:
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=rest)


def mark_resubmitted(connection: duckdb.DuckDBPyConnection, catalog: str, rows: Sequence[RejectedRow]) -> None:
    """Mark rows as resubmitted, in the caller's transaction."""
    values = ", ".join(f"({literal(row.source)}, {row.source_tick}, {row.count})" for row in rows)
    now = f"CAST({literal(format_time(utc_now()))} AS TIMESTAMP WITH TIME ZONE)"
    connection.execute(
        f"UPDATE {quote(catalog)}.wlc.exceptions SET resubmitted = {now} WHERE (source, source_tick, count)"
        f" IN (VALUES {values})"
    )


def counters(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[ConflictCounter]:
    """Return all counters, ordered by site, rule and name."""
    if not _exists(connection, catalog):
        return []
    rows = connection.execute(
        f"SELECT site, rule, name, value FROM {quote(catalog)}.wlc.counters ORDER BY ALL"
    ).fetchall()
    return [ConflictCounter(*row) for row in rows]


def mark(connection: duckdb.DuckDBPyConnection, catalog: str) -> RejectionMark:
    """Return how much has been rejected until now."""
    if not _exists(connection, catalog):
        return RejectionMark(-1, 0)
    schema = f"{quote(catalog)}.wlc"
    ((row, whole),) = connection.execute(
        f"SELECT (SELECT coalesce(max(rowid), -1) FROM {schema}.exceptions), (SELECT coalesce(sum(value), 0)"
        f" FROM {schema}.counters WHERE name IN ('rejects', 'refused'))"
    ).fetchall()
    return RejectionMark(row, int(whole))


def since(connection: duckdb.DuckDBPyConnection, catalog: str, before: RejectionMark, site: str) -> Rejections:
    """Return the rejections at `site` after a mark, ordered by table and cause."""
    now = mark(connection, catalog)
    if now == before:
        return Rejections(0, (), 0)
    rows = connection.execute(
        "SELECT site, schema_name, table_name, cause, count(DISTINCT (source_history, source_tick)), count(*)"
        f" FROM {quote(catalog)}.wlc.exceptions WHERE rowid > {before.row} GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    here = (RejectionCount(Name(schema, table), *rest) for where, schema, table, *rest in rows if where == site)
    own = sum(count for where, *_, count in rows if where != site)
    return Rejections(now.transactions - before.transactions, tuple(here), own)


def _exists(connection: duckdb.DuckDBPyConnection, catalog: str) -> bool:
    query = "SELECT 1 FROM duckdb_tables() WHERE (database_name, schema_name, table_name) = (?, 'wlc', 'exceptions')"
    return bool(connection.execute(query, [catalog]).fetchall())
