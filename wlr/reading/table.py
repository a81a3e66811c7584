"""Read a table as of a moment as a relation of DuckDB, from a farm or a replica, without making a replica."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import ExpiredError, InvalidError
from wlr.engine.calculator import connect, reading
from wlr.engine.contract import Lake
from wlr.reading import query
from wlr.reading.condition import checked_condition, chosen_columns
from wlr.reading.place import LocalCopies, named_table, opened, stop_of
from wlr.reading.trace import contents_at, narrowed, refuse_broken

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import date

    import duckdb

    from wlc.farm.model import Layout, Name
    from wlr.engine.contract import Target
    from wlr.reading.condition import Condition
    from wlr.replay.plan.bounds import Stop

_KEEPER = "dbfarm_keeps"


def read(
    place: str | os.PathLike[str],
    table: str,
    *,
    tick: int | str | None = None,
    until: str | date | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: bool = True,
) -> duckdb.DuckDBPyRelation:
    """Read a table as of a moment.

    From a farm, the rows come from the newest suitable snapshot and the log after it; from a Parquet replica, from its
    files. Each use of the relation reads only the columns and row groups that it needs. From a DuckDB or PostgreSQL
    replica, the matching rows are copied first, so that the replica can roll forward meanwhile.

    Args:
        place: Name in the farm, URL of the database's folder, path of the master; or a replica.
        table: `schema.table`, or `table` in schema main.
        tick: As of this transaction; the last one if omitted. A replica has only its own ticks.
        until: As of this time, as for `wlr.replicate`; of a farm only.
        columns: Names of columns, in the wanted order; all stored ones if omitted.
        where: One expression over the columns of a row, in DuckDB's SQL, whose result does not depend on the time.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the file system.
        verify: Compare every file with its checksum, which reads all of it. Without it, only the needed parts of a
            local file are read.

    Returns:
        A relation with columns as declared, on a separate connection in time zone UTC; rows are in no order. It has no
        generated columns, which are not stored.

    Raises:
        InvalidError: There is no such place, table or column; or `where` is not such an expression; or the moment is
            ahead of the place.
        ExpiredError: The moment was pruned.
        UnsupportedError: A schema change cannot be followed; read it from a replica.
        CorruptError: A file is damaged.
        UnavailableError: The place is unreachable, or in use.

    Examples:
        >>> wlr.read("sales", "orders", tick=2, where="id = 2").fetchall()
        [(2, 'ink')]
    """
    stop = stop_of(tick, until)
    found = opened(place, farm, storage_options)
    request = _Request(table, stop, columns, where, verify)
    try:
        if isinstance(found, FarmDatabase):
            return request.of_farm(found)
        return request.of_replica(found, storage_options)
    except (ExpiredError, InvalidError) as error:
        # Hints of the log reader are for the command line.
        if error.hint and not error.hint.startswith("wlr "):
            error.hint = error.hint.replace("Use --tick ", "Use tick=").replace("--tick ", "tick=")
        raise
    finally:
        request.close()


class _Request:
    """A read, from its arguments to the relation."""

    def __init__(
        self, table: str, stop: Stop, columns: Sequence[str] | None, where: str | None, is_checked: bool
    ) -> None:
        self._table = table
        self._stop = stop
        self._columns = columns
        self._where = where
        self._is_checked = is_checked
        self._work = Path(tempfile.mkdtemp(prefix="wlr-read-"))
        # Resources of the relation.
        self._needs: ExitStack | None = ExitStack()
        self._needs.callback(shutil.rmtree, self._work, ignore_errors=True)
        self._connection = connect(self._work)

    def close(self) -> None:
        """Release the resources that no relation owns."""
        if self._needs is not None:
            self._connection.close()
            self._needs.close()

    def of_farm(self, database: FarmDatabase) -> duckdb.DuckDBPyRelation:
        name, contents, _ = contents_at(database, self._table, self._stop)
        refuse_broken(name, contents)
        wanted, condition = self._chosen(name, contents.layout)
        needed = narrowed(contents, {*wanted, *(condition.columns if condition else ())})
        if condition is not None:
            needed = replace(needed, condition=condition.sql, called=name.name)
        copies = LocalCopies(database, is_checked=self._is_checked)
        assert self._needs is not None
        self._needs.callback(copies.release)
        copies.fetch_snapshot(needed.snapshot, needed.files)
        copies.fetch_log(part.read.file for part in needed.parts)
        return self._relation(name, needed.layout, query.rows_sql(needed, copies.local), wanted, condition)

    def of_replica(self, target: Target, storage_options: Mapping[str, Any] | None) -> duckdb.DuckDBPyRelation:
        if self._stop.until is not None:
            master = target.read_state().master
            message = f"{target} is a replica, which is read as of a tick and not of a time"
            raise InvalidError(message, hint=f"Read the farm: wlr.read({master!r}, {self._table!r}, until=…)")
        if (lake := Lake.of(target)) is None:
            return self._of_rows(target, storage_options)
        stored = lake.stored_tables(self._stop.tick)
        name = named_table(self._table, stored.layouts, f"in {target} at tick {stored.tick}")
        layout = stored.layouts[name]
        wanted, condition = self._chosen(name, layout)
        assert self._needs is not None
        files = self._needs.enter_context(stored.files(name, self._is_checked))
        rows = f"SELECT * FROM {rows_of(*files)}" if files else query.nothing_sql(layout)
        return self._relation(name, layout, rows, wanted, condition)

    def _of_rows(self, target: Target, storage_options: Mapping[str, Any] | None) -> duckdb.DuckDBPyRelation:
        """Copy the rows to a database of the connection, which keeps their types."""
        file = self._work / "rows.duckdb"
        with target.scanned(self._work, storage_options) as scan:
            present = scan.state.position.tick
            if self._stop.tick not in (None, present):
                master = scan.state.master
                message = f"{target} is at tick {present}, not at {self._stop.tick}, and keeps no other ticks"
                hint = f"Read the farm: wlr.read({master!r}, {self._table!r}, tick={self._stop.tick})"
                raise InvalidError(message, hint=hint)
            name = named_table(self._table, scan.layouts, f"in {target}")
            layout = scan.layouts[name]
            wanted, condition = self._chosen(name, layout)
            with scan.images(name) as images, reading(f"rows of {name} in {target}"):
                scan.connection.execute(f"ATTACH {literal(str(file))} AS copied (STORAGE_VERSION 'latest')")
                rows = _rows_sql(name, layout, images, wanted, condition)
                scan.connection.execute(f"CREATE TABLE copied.main.rows AS {rows}")
                scan.connection.execute("DETACH copied")
        self._connection.execute(f"ATTACH {literal(str(file))} AS copied (READ_ONLY)")
        return self._kept("SELECT * FROM copied.main.rows")

    def _chosen(self, name: Name, layout: Layout) -> tuple[list[str], Condition | None]:
        wanted = chosen_columns(self._columns, name, layout)
        if self._where is None:
            return wanted, None
        return wanted, checked_condition(self._connection, self._where, name, layout)

    def _relation(
        self, name: Name, layout: Layout, stored: str, wanted: Sequence[str], condition: Condition | None
    ) -> duckdb.DuckDBPyRelation:
        with reading(f"files of {name}"):
            return self._kept(_rows_sql(name, layout, stored, wanted, condition))

    def _kept(self, sql: str) -> duckdb.DuckDBPyRelation:
        assert self._needs is not None
        relation = kept(self._connection, self._needs, sql)
        self._needs = None
        return relation


def kept(connection: duckdb.DuckDBPyConnection, needs: ExitStack, sql: str) -> duckdb.DuckDBPyRelation:
    """Make a relation that owns `needs`, which are closed with it.

    A relation keeps the database of its connection alive, and the database keeps its functions.
    """
    keeper = _Keeper()
    connection.create_function(_KEEPER, keeper.answer, [], "BOOLEAN")
    relation = connection.sql(sql)
    weakref.finalize(keeper, needs.close)
    return relation


class _Keeper:
    """Lives as long as the relation: a function of the relation's connection refers to it."""

    def answer(self) -> bool:
        """Return a constant; it is never called."""
        return True


def _rows_sql(name: Name, layout: Layout, stored: str, wanted: Sequence[str], condition: Condition | None) -> str:
    """Select wanted columns, as declared, of stored rows that fulfil a condition."""
    needed = {*wanted, *(condition.columns if condition else ())}
    columns = [column.name for column in layout.stored if column.name in needed]
    listed = ", ".join(map(quote, wanted))
    where = f" WHERE {condition.sql}" if condition else ""
    if not columns:
        # Only the number of rows matters.
        columns = [layout.stored[0].name]
    return f"SELECT {listed} FROM ({query.output_sql(layout, columns, stored, load_sql)}) AS {quote(name.name)}{where}"
