"""The lines of a step: the row images of another site's transactions, as temporary tables of the master.

A line table has the columns `_line`, the place of the transaction in the step, `_weight`, and `c0` … in storage types,
as the table's image table. For a table with a primary key a line holds at most one image of each weight for a key.

The journal holds the rows removed here, not those removed at the other site: a line's image of weight -1 is the row
just before the line, which another transaction may have changed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.capture.duckdb.images import any_sql, exact_sql
from wlc.capture.duckdb.journal import ABSENT, READ, READ_EXCLUSIVELY, CapturedTable
from wlc.dialect.duckdb.catalog import replaced_columns
from wlc.dialect.duckdb.file_columns import reading, refuse_missing_values, refuse_other_columns, required
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql, storage_type, store_sql
from wlc.farm.errors import CorruptError, ReplayError, UnsupportedError
from wlc.farm.model import WEIGHT, Change, RowsRead, RowsRefreshed, file_column
from wlc.multi_master.duckdb.conflict_window import added_columns, key_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.farm.model import Column, Layout, Name, TableFile
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.site_step import SiteStep


_TICKS = "wlc line ticks"


@dataclass(frozen=True, slots=True)
class LinesTable:
    """The lines of a step for one table.

    Attributes:
        lines: Temporary table with the images.
        reads: The same for rows that were only read; None without any.
        kept: The primary's values of rows that keep their own values here, see `unjudged_rows`; None without any.
    """

    place: TakenTable
    lines: str
    reads: str | None = None
    kept: str | None = None

    @property
    def table(self) -> CapturedTable:
        """The table of the master."""
        return self.place.table

    @property
    def bare(self) -> str:
        """The name of the temporary table without its schema."""
        return self.lines.removeprefix("temp.")

    @property
    def key(self) -> tuple[str, ...]:
        """Columns of the primary key in the line table; empty if there is none."""
        return tuple(f"c{place}" for place in self.table.layout.key_places)

    @property
    def keys(self) -> str:
        """The same as a list of SQL."""
        return ", ".join(self.key)

    def value(self, place: int, alias: str) -> str:
        """A column of an image in the type of the table."""
        return load_sql(self.table.layout.stored[place], f"{alias}.c{place}")

    def same_key(self, alias: str) -> str:
        """Join the table `t` with images by key, in the key's own types, so that the index applies."""
        places = self.table.layout.key_places
        columns = ((self.table.layout.stored[place], self.value(place, alias)) for place in places)
        return " AND ".join(f"{key_value(column, f't.{quote(column.name)}')} = {value}" for column, value in columns)

    def same_image(self, alias: str) -> str:
        """Join the table `t` with images by all columns; equal is identical."""
        tests = []
        for place, column in enumerate(self.table.layout.stored):
            here, there = store_sql(column, f"t.{quote(column.name)}"), f"{alias}.c{place}"
            tests.append(f"{exact_sql(column.type, here)} IS NOT DISTINCT FROM {exact_sql(column.type, there)}")
        return " AND ".join(tests) or "true"

    def count(self, connection: duckdb.DuckDBPyConnection, condition: str = "true") -> int:
        """Count lines that meet a condition."""
        query = f"SELECT count(*) FROM {self.lines} WHERE {condition}"
        return int(connection.execute(query).fetchall()[0][0])


def load(
    connection: duckdb.DuckDBPyConnection,
    step: SiteStep,
    tables: Mapping[Name, TakenTable],
    fetch: Callable[[TableFile], Path],
    *,
    with_reads: bool = False,
    may_cancel: bool = False,
    circle: Circle | None = None,
) -> list[LinesTable]:
    """Load the images of a step, and check them against its log.

    Args:
        connection: In the transaction of the step.
        step: The step; none of its transactions changes the schema.
        tables: The master's tables.
        fetch: Returns a local file with the content of a data file.
        with_reads: Load the rows that the transactions have only read, too.
        may_cancel: Images may cancel out, as in transactions that a secondary has taken; see `journal_images`.
        circle: Names the added columns of each table; none without a circle.

    Raises:
        CorruptError: A data file differs from its entry in the log.
        UnsupportedError: There is no such table here, or it has other columns.
    """
    ticks = [each.transaction.tick for each in step.transactions]
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {quote(_TICKS)} AS"
        " SELECT unnest(?::BIGINT[]) AS tick, unnest(?::BIGINT[]) AS line",
        [ticks, [each.line for each in step.transactions]],
    )
    listed = _listed(step, with_reads=with_reads)
    if not step.is_primary and not (circle is not None and circle.is_mesh):
        may_cancel = may_cancel or any(each.transaction.origin for each in step.transactions)
    files: dict[Name, list[TableFile]] = {}
    for path in (*listed.counts, *listed.refreshed, *listed.read):
        files.setdefault(step.files[path].table, []).append(step.files[path])
    found = []
    for number, (name, of_table) in enumerate(sorted(files.items())):
        has_reads = bool(added_columns(circle, name)) or any(file.file.path in listed.read for file in of_table)
        if name not in tables:
            if all(file.file.path in listed.read for file in of_table):
                continue
            raise UnsupportedError(
                f"site {step.site} publishes rows of {name}, which is no table here",
                hint="if the table was renamed or dropped, rename it back or create it again with the same columns;"
                " take, then rename or drop it again",
            )
        loaded = created(connection, tables[name], number, has_reads=has_reads)
        for file in of_table:
            path = file.file.path
            if path in listed.refreshed:
                _load_refresh(connection, loaded, file, fetch(file), absent=listed.refreshed[path])
            elif path in listed.read:
                _load_reads(connection, loaded, file, fetch(file), *listed.read[path])
            else:
                _load_file(connection, loaded, file, fetch(file), listed.counts[path], (ticks[0], ticks[-1]))
        _fold(connection, loaded, step.site, may_cancel=may_cancel)
        found.append(loaded)
    return found


@dataclass(frozen=True, slots=True)
class _Listed:
    """The data file entries of a step's transactions, by path.

    Attributes:
        counts: Rows added and removed.
        refreshed: Whether the rows are absent at the primary.
        read: Rows that were only read, and whether with the intention to write.
    """

    counts: dict[str, tuple[int, int]]
    refreshed: dict[str, bool]
    read: dict[str, tuple[int, bool]]


def _listed(step: SiteStep, *, with_reads: bool) -> _Listed:
    found = _Listed({}, {}, {})
    for record in (r for each in step.transactions for r in each.transaction.records):
        match record:
            case Change(_, path, added, removed):
                before = found.counts.get(path, (0, 0))
                found.counts[path] = added + before[0], removed + before[1]
            case RowsRefreshed(kept=False):
                found.refreshed[record.path] = record.absent
            case RowsRead(_, path, rows, exclusive) if with_reads:
                found.read[path] = rows + found.read.get(path, (0, False))[0], exclusive
    return found


def created(
    connection: duckdb.DuckDBPyConnection, place: TakenTable, number: int | str, *, has_reads: bool = False
) -> LinesTable:
    """Create the empty temporary tables of a table's lines."""
    reads = f'temp."wlc reads {number}"' if has_reads else None
    found = LinesTable(place, f'temp."wlc lines {number}"', reads)
    columns = "".join(
        f", {name} {storage_type(column.type)}"
        for name, column in zip(place.table.columns, place.table.layout.stored, strict=True)
    )
    connection.execute(f"DROP TABLE IF EXISTS {found.lines}")
    connection.execute(f"CREATE TEMP TABLE {found.bare} (_line BIGINT, _weight TINYINT{columns})")
    if reads is not None:
        bare = reads.removeprefix("temp.")
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {bare} (_line BIGINT, exclusive BOOLEAN{columns})")
    return found


def _load_file(
    connection: duckdb.DuckDBPyConnection,
    into: LinesTable,
    file: TableFile,
    local: Path,
    expected: tuple[int, int],
    ticks: tuple[int, int],
) -> None:
    paths = {str(local): file.file.path}
    refuse_other_columns(connection, file.layout, paths, is_images=True)
    refuse_missing_values(connection, required(file.layout), paths)
    values = ", ".join(projected(into.table, file.layout))
    with reading(file.file.path):
        connection.execute(
            f"INSERT INTO {into.lines} SELECT m.line, f.{WEIGHT}{', ' if values else ''}{values}"
            f" FROM {rows_of(local)} AS f JOIN {quote(_TICKS)} AS m ON m.tick = f._tick"
            f" WHERE f._tick BETWEEN {ticks[0]} AND {ticks[1]}"
        )
        found = connection.execute(
            f"SELECT count(*) FILTER (f.{WEIGHT} = 1), count(*) FILTER (f.{WEIGHT} = -1), count(*)"
            f" FROM {rows_of(local)} AS f JOIN {quote(_TICKS)} AS m ON m.tick = f._tick"
        ).fetchall()[0]
    if found != (*expected, sum(expected)):
        message = f"{file.file.path} has {found[0]} rows of weight 1 and {found[1]} of weight -1 among {found[2]}"
        raise CorruptError(f"{message}, the log file says {expected[0]} and {expected[1]}", path=file.file.path)


def _load_refresh(
    connection: duckdb.DuckDBPyConnection, into: LinesTable, file: TableFile, local: Path, *, absent: bool
) -> None:
    """Load the primary's values of rows: they replace or remove the rows here unconditionally."""
    refuse_other_columns(connection, file.layout, {str(local): file.file.path}, is_images=True)
    values = ", ".join(projected(into.table, file.layout))
    with reading(file.file.path):
        connection.execute(
            f"INSERT INTO {into.lines} SELECT m.line, {-1 if absent else 1}, {values}"
            f" FROM {rows_of(local)} AS f JOIN {quote(_TICKS)} AS m ON m.tick = f._tick"
        )


def _load_reads(
    connection: duckdb.DuckDBPyConnection,
    into: LinesTable,
    file: TableFile,
    local: Path,
    expected: int,
    exclusive: bool,
) -> None:
    """Load rows that transactions have read."""
    refuse_other_columns(connection, file.layout, {str(local): file.file.path}, is_images=True)
    values = ", ".join(projected(into.table, file.layout))
    with reading(file.file.path):
        found = connection.execute(
            f"INSERT INTO {into.reads} SELECT m.line, {exclusive}, {values}"
            f" FROM {rows_of(local)} AS f JOIN {quote(_TICKS)} AS m ON m.tick = f._tick"
        ).fetchall()[0][0]
    if found != expected:
        raise CorruptError(f"{file.file.path} has {found} rows read, the log file says {expected}", path=file.file.path)


def projected(table: CapturedTable, layout: Layout) -> list[str]:
    """Return a file's values for the columns of the table here, matched by name."""
    there = {column.name: column for column in layout.stored}
    extra = there.keys() - {column.name for column in table.layout.stored}
    if extra:
        raise UnsupportedError(
            f"table {table.name} has no column {sorted(extra)[0]} here, and another site has published values of it"
        )
    return [_value(table, column, there.get(column.name)) for column in table.layout.stored]


def _value(table: CapturedTable, column: Column, there: Column | None) -> str:
    if there is None:
        default = "NULL" if column.default is None else f"CAST(({column.default}) AS {column.type})"
        return store_sql(column, default)
    if there.type != column.type:
        raise UnsupportedError(
            f"column {column.name} of table {table.name} is {column.type} here, and another site has published"
            f" {there.type}"
        )
    return f"f.{quote(file_column(column.name))}"


def _fold(connection: duckdb.DuckDBPyConnection, loaded: LinesTable, site: str, *, may_cancel: bool) -> None:
    """Sum the images of a key within a line; equal ones cancel out."""
    if not loaded.key:
        return
    twice = f"SELECT 1 FROM {loaded.lines} GROUP BY _line, _weight, {loaded.keys} HAVING count(*) > 1 LIMIT 1"
    if not may_cancel and not connection.execute(twice).fetchall():
        return
    stored = list(zip(loaded.table.layout.stored, loaded.table.columns, strict=True))
    kept = ", ".join(f"{any_sql(column.type, name)} AS {name}" for column, name in stored)
    exact = ", ".join(exact_sql(column.type, name) for column, name in stored)
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {loaded.bare} AS SELECT _line, sum(_weight)::TINYINT AS _weight, {kept}"
        f" FROM {loaded.lines} GROUP BY _line, {exact} HAVING sum(_weight) <> 0"
    )
    if connection.execute(twice).fetchall():
        raise CorruptError(f"a transaction of site {site} has two rows with one key in table {loaded.table.name}")


# Journalling ---------------------------------------------------------------------------------------------------------


def journal_images(
    connection: duckdb.DuckDBPyConnection, found: LinesTable, before: int, *, is_primary: bool = False
) -> None:
    """Write the effects of lines on a table into its image table, under tick `before` + line, before they are applied.

    For a removed row that is missing here, the primary reports to the other sites that it is absent. Any other site
    writes images that cancel out: only the primary reads them, and only as an echo.
    """
    images, columns = found.table.images, "".join(f", l.{name}" for name in found.table.columns)

    def write(query: str) -> None:
        connection.execute(f"INSERT INTO {images} {query}")

    write(f"SELECT {before} + l._line, 1, NULL, NULL{columns} FROM {found.lines} AS l WHERE l._weight = 1")
    if not found.key:
        write(f"SELECT {before} + l._line, -1, NULL, NULL{columns} FROM {found.lines} AS l WHERE l._weight = -1")
        return
    keys = found.keys
    # The row after an earlier line of the step.
    write(
        f"SELECT {before} + k.next, -1, NULL, NULL{columns} FROM {found.lines} AS l JOIN (SELECT *, lead(_line) OVER"
        f" (PARTITION BY {keys} ORDER BY _line) AS next FROM (SELECT DISTINCT _line, {keys} FROM {found.lines})) AS k"
        f" USING (_line, {keys}) WHERE l._weight = 1 AND k.next IS NOT NULL"
    )
    # The row in the table before the step.
    values = ", ".join(found.table.values)
    first = f"(SELECT min(_line) AS line, {keys} FROM {found.lines} GROUP BY {keys})"
    write(
        f"SELECT {before} + line, -1, NULL, NULL, {values} FROM"
        f" (SELECT t.*, n.line FROM {found.table.sql} AS t JOIN {first} AS n ON {found.same_key('n')})"
    )
    if found.count(connection, "_weight = -1"):
        # A row that was removed elsewhere and is missing here: readers of this log must know its key.
        same = " AND ".join(f"l.{key} = j.{key}" for key in found.key)
        only_key = [name if name in found.key else "NULL" for name in found.table.columns]
        absent = f"{before} + l._line, {ABSENT}, NULL, NULL, {', '.join(only_key)} FROM {found.lines} AS l"
        cancelling = f"{before} + l._line, w, NULL, NULL{columns} FROM {found.lines} AS l, unnest([-1, 1]) AS u(w)"
        write(
            f"SELECT {absent if is_primary else cancelling}"
            f" WHERE l._weight = -1 AND NOT EXISTS (SELECT 1 FROM {images} AS j"
            f" WHERE j._tick = {before} + l._line AND {same})"
        )


def journal_reads(connection: duckdb.DuckDBPyConnection, found: LinesTable, before: int) -> None:
    """Write the rows that transactions have read into the image table: other transactions may conflict with them."""
    if found.reads is None:
        return
    columns = "".join(f", l.{name}" for name in found.table.columns)
    weight = f"CASE WHEN l.exclusive THEN {READ_EXCLUSIVELY} ELSE {READ} END"
    if connection.execute(f"SELECT 1 FROM {found.reads} LIMIT 1").fetchall():
        connection.execute(
            f"INSERT INTO {found.table.images} SELECT {before} + l._line, {weight}, NULL, NULL{columns}"
            f" FROM {found.reads} AS l"
        )


# Applying ------------------------------------------------------------------------------------------------------------


def remove(connection: duckdb.DuckDBPyConnection, found: LinesTable) -> None:
    """Remove the rows that lines replace or remove.

    Raises:
        ReplayError: A row of a table without a key is missing.
    """
    if not found.key:
        _remove_from_bag(connection, found)
        return
    gone = f"SELECT DISTINCT {found.keys} FROM {found.lines}"
    if found.place.is_referenced:
        gone = f"{gone} EXCEPT SELECT {found.keys} FROM ({last_sql(found)})"
    connection.execute(f"DELETE FROM {found.table.sql} AS t USING ({gone}) AS n WHERE {found.same_key('n')}")


def _remove_from_bag(connection: duckdb.DuckDBPyConnection, found: LinesTable) -> None:
    net = net_of_bag(found)
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {quote(_TICKS + ' gone')} AS"
        f" SELECT *, row_number() OVER () AS _number FROM ({net}) WHERE w < 0"
    )
    wanted = connection.execute(f"SELECT coalesce(-sum(w), 0) FROM temp.{quote(_TICKS + ' gone')}").fetchall()[0][0]
    if not wanted:
        return
    done = connection.execute(
        f"DELETE FROM {found.table.sql} WHERE rowid IN (SELECT r FROM (SELECT t.rowid AS r, n.w,"
        f" row_number() OVER (PARTITION BY n._number) AS copy FROM {found.table.sql} AS t"
        f" JOIN temp.{quote(_TICKS + ' gone')} AS n ON {found.same_image('n')}) WHERE copy <= -w)"
    ).fetchall()[0][0]
    if done != wanted:
        raise ReplayError(
            f"{wanted - done} of {wanted} rows to remove from {found.table.name} are not there; the table has no"
            " primary key"
        )


def net_of_bag(found: LinesTable) -> str:
    """Select the rows that lines remove (weight `w` below 0) and add, for a table without a key."""
    stored = list(zip(found.table.layout.stored, found.table.columns, strict=True))
    kept = "".join(f", {any_sql(column.type, name)} AS {name}" for column, name in stored)
    exact = ", ".join(exact_sql(column.type, name) for column, name in stored)
    return f"SELECT sum(_weight)::BIGINT AS w{kept} FROM {found.lines} GROUP BY {exact} HAVING sum(_weight) <> 0"


def add(connection: duckdb.DuckDBPyConnection, found: LinesTable) -> None:
    """Add the rows that lines leave."""
    names = ", ".join(quote(column.name) for column in found.table.layout.stored)
    values = ", ".join(found.value(place, "n") for place in range(len(found.table.layout.stored)))
    into = f"INSERT INTO {found.table.sql} ({names})"
    if not found.key:
        connection.execute(f"{into} SELECT {values} FROM ({net_of_bag(found)}) AS n, range(n.w) WHERE n.w > 0")
        return
    last = last_sql(found)
    if found.place.is_referenced:
        _update(connection, found, last)
        last = f"SELECT * FROM ({last}) AS n WHERE NOT EXISTS (FROM {found.table.sql} AS t WHERE {found.same_key('n')})"
    if found.place.references_itself:
        _add_in_generations(connection, found, f"{into} SELECT {values}", last)
    else:
        connection.execute(f"{into} SELECT {values} FROM ({last}) AS n ORDER BY {found.keys}")


def _add_in_generations(connection: duckdb.DuckDBPyConnection, found: LinesTable, insert: str, last: str) -> None:
    """Add rows of a table that refers to itself, in generations: the referenced row must exist before the statement."""
    waiting = 'temp."wlc waiting"'
    places = {column.name: place for place, column in enumerate(found.table.layout.stored)}
    conditions = []
    for columns, referred in found.place.references_itself:
        pairs = [(found.value(places[one], "n"), quote(other)) for one, other in zip(columns, referred, strict=True)]
        is_none = " OR ".join(f"{value} IS NULL" for value, _ in pairs)
        is_there = " AND ".join(f"p.{other} = {value}" for value, other in pairs)
        conditions.append(f"({is_none} OR EXISTS (FROM {found.table.sql} AS p WHERE {is_there}))")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {waiting.removeprefix('temp.')} AS {last}")
    ready, conditions_met = 'temp."wlc ready"', " AND ".join(conditions)
    chosen = f"CREATE OR REPLACE TEMP TABLE {ready.removeprefix('temp.')} AS SELECT n.rowid AS r FROM {waiting} AS n"
    while connection.execute(f"{chosen} WHERE {conditions_met}").fetchall()[0][0]:
        connection.execute(f"{insert} FROM {waiting} AS n WHERE n.rowid IN (SELECT r FROM {ready})")
        connection.execute(f"DELETE FROM {waiting} WHERE rowid IN (SELECT r FROM {ready})")
    # The remaining rows refer to missing rows; inserting them reports which.
    connection.execute(f"{insert} FROM {waiting} AS n")
    connection.execute(f"DROP TABLE {waiting}; DROP TABLE {ready}")


def last_sql(found: LinesTable) -> str:
    """Select the rows after the step: for each key the result of its last line."""
    last = f"SELECT max(_line) AS _line, {found.keys} FROM {found.lines} GROUP BY {found.keys}"
    return f"SELECT l.* FROM {found.lines} AS l JOIN ({last}) USING (_line, {found.keys}) WHERE l._weight = 1"


def _update(connection: duckdb.DuckDBPyConnection, found: LinesTable, last: str) -> None:
    """Update referenced rows in place, and only the columns that differ.

    Setting all columns would make DuckDB replace the row. One statement sets them, because unique values may move among
    rows.
    """
    table = found.table
    joined = f"FROM {table.sql} AS t JOIN ({last}) AS n ON {found.same_key('n')}"
    differs = {}
    for place in (place for place in range(len(table.columns)) if place not in table.layout.key_places):
        column = table.layout.stored[place]
        here = exact_sql(column.type, store_sql(column, f"t.{quote(column.name)}"))
        condition = f"{here} IS DISTINCT FROM {exact_sql(column.type, f'n.c{place}')}"
        if connection.execute(f"SELECT 1 {joined} WHERE {condition} LIMIT 1").fetchall():
            differs[place] = condition
    moving: frozenset[int] = frozenset()
    if len(differs) > 1:
        replaced = replaced_columns(connection, table.catalog, table.name, table.layout)
        moving = frozenset(place for place in differs if table.layout.stored[place].name in replaced)
    for places in [*([place] for place in differs if place not in moving), *([sorted(moving)] if moving else ())]:
        values = ", ".join(f"{quote(table.layout.stored[place].name)} = {found.value(place, 'n')}" for place in places)
        connection.execute(
            f"UPDATE {table.sql} AS t SET {values} FROM ({last}) AS n"
            f" WHERE {found.same_key('n')} AND ({' OR '.join(differs[place] for place in places)})"
        )


def drop(connection: duckdb.DuckDBPyConnection, tables: Sequence[LinesTable]) -> None:
    """Drop the temporary tables of a step."""
    for found in tables:
        for table in filter(None, (found.lines, found.reads, found.kept)):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
