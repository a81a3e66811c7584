"""Journal uncaptured changes: the difference between the master and its published state."""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import digests, journal, known_objects, unpublished
from wlc.capture.duckdb.home import Doubt
from wlc.capture.duckdb.images import bag_difference_sql, insert_difference_sql
from wlc.capture.duckdb.journal import CapturedTable, JournalEntry, JournalledImages
from wlc.capture.duckdb.published_rows import published_rows
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import snapshot
from wlc.dialect.duckdb.digest_sql import sum_images
from wlc.dialect.duckdb.schema import schema_statements
from wlc.dialect.sql import literal, quote
from wlc.farm import digest
from wlc.farm.errors import InvalidError
from wlc.farm.json_records import record_of
from wlc.farm.model import Clear, CreatedObject, DbObject, Ddl, DroppedObject, Layout, Position, SequencePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wlc.capture.duckdb.journal import JournalRecord
    from wlc.capture.duckdb.known_objects import ChangedObject
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.uncaptured import Bypassed
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name

_PUBLISHED = '"wlc published"'


def journal_difference(shared: Shared, published: Path | None) -> int:
    """Journal one transaction that turns the published state into the present one.

    A table that was created, dropped or altered is recorded as dropped and created with all its rows. For any other
    table, only differing rows are recorded, or, if the published state is unknown, all rows of a table that differs
    from the log.

    Args:
        shared: The master.
        published: DuckDB file with the state at the last published tick; nothing may be journalled after it. None if
            the log cannot be applied.

    Returns:
        Number of records; 0 where the two are the same.

    Raises:
        InvalidError: It is no replica at that tick. Later publications would be journalled again.
        UnsupportedError: The log cannot be applied, and other sites have taken from it.
    """
    if published is None and shared.site is not None:
        shared.site.refuse_whole_tables(shared.path)
    with _attached(shared, published) as connection:

        def differences() -> list[JournalRecord]:
            if published is not None:
                _refuse_other_tick(connection, shared, published)
            return _differences(connection, shared, None if published else _contradicted(connection, shared))

        return _journal(connection, shared, differences)


def journal_found(shared: Shared, database: FarmDatabase, found: Bypassed) -> int:
    """Journal one transaction with uncaptured changes.

    Rows are compared with the newest snapshot and the log after it. A table whose rows these do not give is recorded
    with all its rows.

    Args:
        shared: The master; nothing may be journalled.
        database: Its place in the farm.
        found: The changes.

    Returns:
        Number of records.

    Raises:
        UnsupportedError: All rows of a table must be recorded, and other sites have taken from the log.
    """
    with shared.root.cursor() as connection:
        tables = duckdb_catalog.tables(connection, shared.catalog)
        before = published_rows(database, {name: tables[name] for name in found.tables if name in tables})

        def differences() -> list[JournalRecord]:
            counts = digests.rows_of(digests.read(connection, shared.catalog))
            contradicted = {name: count if name in found.tables else None for name, count in counts.items()}
            return _differences(connection, shared, contradicted, before)

        return _journal(connection, shared, differences)


def _journal(
    connection: duckdb.DuckDBPyConnection, shared: Shared, differences: Callable[[], list[JournalRecord]]
) -> int:
    with shared.commit_lock:
        connection.execute("BEGIN")
        try:
            records = differences()
            if records:
                _refuse_forbidden(connection, shared, records)
                tick, now = shared.new_tick(), shared.commit_time()
                for record in records:
                    if isinstance(record, JournalledImages):
                        images = journal.images_sql(shared.catalog, record.layout)
                        connection.execute(f"UPDATE {images} SET _tick = {tick} WHERE _tick = 0")
                entry = JournalEntry(tick, "wlc farm repair", started=now, committed=now, records=tuple(records))
                journal.add_entry(connection, shared.catalog, entry)
                known_objects.renew(connection, shared.catalog)
            with shared.changing_schema():
                connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        if records:
            shared.committed(tick, now)
        shared.doubt = Doubt()
    return len(records)


@contextmanager
def _attached(shared: Shared, published: Path | None) -> Iterator[duckdb.DuckDBPyConnection]:
    with shared.root.cursor() as connection:
        if published is None:
            yield connection
            return
        connection.execute(f"ATTACH {literal(str(published))} AS {_PUBLISHED} (READ_ONLY)")
        try:
            yield connection
        finally:
            connection.execute(f"DETACH {_PUBLISHED}")


def _contradicted(connection: duckdb.DuckDBPyConnection, shared: Shared) -> dict[Name, int | None]:
    """Return the tables' numbers of rows by the log; None for tables that agree, or may agree, with the log."""
    expected = unpublished.expected_digests(connection, shared.catalog)
    differing = digest.differing(snapshot.digests(connection, shared.catalog), expected)
    counts = digests.rows_of(digests.read(connection, shared.catalog))
    return {name: counts[name] if name in differing else None for name in counts}


def _refuse_other_tick(connection: duckdb.DuckDBPyConnection, shared: Shared, published: Path) -> None:
    try:
        (text,) = connection.execute(f"SELECT value FROM {_PUBLISHED}.wlr.state WHERE key = 'position'").fetchall()[0]
        position = record_of(Position).read(json.loads(text))
    except (duckdb.CatalogException, IndexError, KeyError, ValueError) as error:
        raise InvalidError(f"{published} is no replica", hint="wlc farm repair SOURCE makes one itself") from error
    state = shared.require_state()
    if (position.history, position.tick) != (state.history, state.tick):
        raise InvalidError(
            f"{published} is at tick {position.tick}, and {shared.path} is published up to {state.tick}",
            hint=f"wlr replicate {shlex.quote(shared.path)} --into {shlex.quote(str(published))}",
            path=str(published),
        )


def _refuse_forbidden(connection: duckdb.DuckDBPyConnection, shared: Shared, records: Sequence[JournalRecord]) -> None:
    """Refuse changes that only another site may make."""
    if (site := shared.site) is None:
        return
    layouts = journal.read_layouts(connection, shared.catalog)
    written = [
        CapturedTable(r.layout, shared.catalog, *layouts[r.layout]) for r in records if isinstance(r, JournalledImages)
    ]
    site.refuse_difference(records, duckdb_catalog.tables(connection, shared.catalog), written)


def _differences(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    contradicted: Mapping[Name, int | None] | None,
    published: Mapping[Name, str] | None = None,
) -> list[JournalRecord]:
    """Return what turns the published state into the present one.

    Args:
        connection: In a transaction.
        shared: The master.
        contradicted: Numbers of rows by the log, None for tables to leave as they are; None compares all tables with
            the attached published state.
        published: Queries for the negated published rows of contradicted tables, see `published_rows`.
    """
    present = duckdb_catalog.tables(connection, shared.catalog)
    known = {
        name: (number, layout) for number, (name, layout) in journal.read_layouts(connection, shared.catalog).items()
    }
    if contradicted is None:
        before = duckdb_catalog.tables(connection, _PUBLISHED.strip('"'))
    else:
        # The journal forgets the layout of a table that is gone.
        before = {name: known[name][1] if name in known else Layout(()) for name in contradicted}
    replaced = {name for name in {*before, *present} if before.get(name) != present.get(name)}
    objects = known_objects.changed(connection, shared.catalog)
    records = [*_dropped(objects, before.keys() & replaced)]
    created, created_last = _created(connection, shared, objects, {n: present[n] for n in replaced if n in present})
    records += created
    for name, layout in present.items():
        if name in replaced:
            continue
        number, known_layout = known.get(name, (0, None))
        if known_layout != layout:
            number = shared.new_layout()
            journal.add_layout(connection, CapturedTable(number, shared.catalog, name, layout))
        table = CapturedTable(number, shared.catalog, name, layout)
        if contradicted is None:
            before_sql = f"SELECT -1 AS w, {table.named_values} FROM {_PUBLISHED}.{name.sql}"
            records += _difference(connection, table, before_sql)
        elif (rows := contradicted[name]) is not None:
            records += _rows_or_all(connection, shared, table, rows, (published or {}).get(name))
    return records + created_last


def _dropped(objects: Sequence[ChangedObject], tables: Collection[Name]) -> list[JournalRecord]:
    """Return the statements that drop tables and other objects; a table's indexes are dropped with it."""
    known = [each for each in objects if each.is_known and each.of not in tables]
    users = [_drop(each.object, each.of) for each in known if each.object.kind in ("INDEX", "VIEW")]
    used = [_drop(each.object) for each in known if each.object.kind not in ("INDEX", "VIEW")]
    return [*users, *(_drop(DbObject("TABLE", name)) for name in sorted(tables)), *used]


def _created(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    objects: Iterable[ChangedObject],
    tables: Mapping[Name, Layout],
) -> tuple[list[JournalRecord], list[JournalRecord]]:
    """Return the records that create objects, and tables with all their rows; and those for after all rows."""
    added = {each.object for each in objects if each.is_present}
    first, last = schema_statements(connection, shared.catalog)
    records: list[JournalRecord] = []
    for ddl in first:
        if ddl.kind == "CREATE TABLE" and ddl.object in tables:
            table = CapturedTable(shared.new_layout(), shared.catalog, ddl.object, tables[ddl.object])
            journal.add_layout(connection, table)
            records += [ddl, *_difference(connection, table, None)]
        elif added & {effect.object for effect in ddl.does if isinstance(effect, CreatedObject)}:
            records.append(ddl)
    wanted = [
        ddl
        for ddl in last
        if any(isinstance(e, CreatedObject) and (e.object in added or e.of in tables) for e in ddl.does)
    ]
    sequences = {each.name for each in added if each.kind == "SEQUENCE"}
    positions = duckdb_catalog.sequences(connection, shared.catalog) if sequences else {}
    return records, [
        *wanted,
        *(SequencePosition(name, value) for name, value in positions.items() if name in sequences),
    ]


def _drop(dropped: DbObject, of: Name | None = None) -> Ddl:
    name = dropped.name
    shown = quote(name.name) if dropped.kind == "SCHEMA" else name.sql
    statement = f"DROP {dropped.kind} {shown}{' CASCADE' if dropped.kind == 'TABLE' else ''}"
    return Ddl(f"DROP {dropped.kind}", name, statement, (name.schema,), does=(DroppedObject(dropped, of),))


def _rows_or_all(
    connection: duckdb.DuckDBPyConnection, shared: Shared, table: CapturedTable, rows: int, published: str | None
) -> list[JournalRecord]:
    """Return the differing rows of a table if its published rows are known, else all its rows."""
    if published is not None:
        records = _difference(connection, table, published)
        if _explains(connection, shared, table):
            return records
        connection.execute(f"DELETE FROM {table.images} WHERE _tick = 0")
    if shared.site is not None:
        shared.site.refuse_whole_tables(shared.path)
    return [Clear(table.name, rows), *_difference(connection, table, None)]


def _explains(connection: duckdb.DuckDBPyConnection, shared: Shared, table: CapturedTable) -> bool:
    """Whether the images under tick 0 lead from the captured digest to the present one."""
    expected = unpublished.expected_digests(connection, shared.catalog).get(table.name)
    if expected is None:
        return False
    held = snapshot.digests(connection, shared.catalog, [table.name])[table.name]
    names = dict(zip((column.name for column in table.layout.stored), table.columns, strict=True))
    total = sum_images(connection, table.layout, f"{table.images} WHERE _tick = 0", lambda column: names[column.name])
    return (held.sum - expected.sum - total) % digest.MODULUS == 0


def _difference(connection: duckdb.DuckDBPyConnection, table: CapturedTable, before: str | None) -> list[JournalRecord]:
    """Images, under tick 0, of rows with different numbers of copies on the two sides."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE wlc_repair AS {bag_difference_sql(table, before)}")
    removed, added = (
        int(connection.execute(insert_difference_sql(table, "FROM wlc_repair", weight, 0, None)).fetchall()[0][0])
        for weight in (-1, 1)
    )
    connection.execute("DROP TABLE wlc_repair")
    if not removed and not added:
        return []
    return [JournalledImages(table.name, table.id, added, removed)]
