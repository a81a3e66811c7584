"""The kernel: rewrite one base file with the net changes of its rows. Both executors run it, in process or in tasks.

Files of a Parquet replica hold columns in their storage types (see `wlc.dialect.types`), as data files do. So images
are compared as stored, and no value is converted.

A table with a primary key is a sequence of files whose key ranges do not overlap, like the leaves of a B-tree: the key
of a change determines its file. A table without a key is a bag: added rows go to its end. Rows to remove are searched
in every file (`find_copies`), before deciding how many copies each file loses.

Every function works on local files, without the farm or the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.digest_sql import sum_images
from wlc.dialect.duckdb.parquet_sql import PASSING, rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import storage_type
from wlc.farm.model import WEIGHT, file_column
from wlr.replay.fold import unfit_changes
from wlr.replay.fold.parquet_file import write_file
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from wlc.dialect.duckdb.fold import RowImages, TargetTable

# Ten of DuckDB's row groups: small enough to rewrite in half a second, large enough that a lake has few of them.
ROWS_PER_FILE = 10 * 122_880
_PART = fold.NUMBER

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A local Parquet file with rows of one table.

    Attributes:
        low: Lower bound of its keys, as the texts of its columns; `high`: upper bound. Empty without a key.
    """

    path: Path
    rows: int
    low: Key = ()
    high: Key = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of merging a base file.

    Attributes:
        pieces: The files that replace it, or follow it if it stays, in key order.
        keeps_base: The file stays as it is.
        removed: Rows that the net change removed; `added`: rows that it added.
        total: Sum of the hashes of its images times their weights, modulo 2^64; see `wlc.farm.digest`.
    """

    pieces: tuple[Piece, ...]
    keeps_base: bool
    removed: int
    added: int
    total: int = 0


# Routing -------------------------------------------------------------------------------------------------------------


def route(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    sources: Sequence[RowImages],
    lows: Sequence[Key],
    folder: Path,
) -> dict[int, list[Path]]:
    """Write row images into one folder per base file.

    Args:
        connection: From `connect`.
        table: The table; all images of a bag go to number 0.
        sources: Local data files of the farm and the ticks that count in them.
        lows: Smallest key of every base file in order; keys below the first belong to the first. May be empty.
        folder: Folder to create.

    Returns:
        The files of changes by number of the base file.
    """
    number = _number_of(table, lows) if table.key else "0"
    raw = fold.raw_sql(table.layout, sources)
    query = f"SELECT {_columns(table, 'r')}, r.{WEIGHT}, {number} AS {_PART} FROM ({raw}) AS r"
    return _partition(connection, query, folder)


def _number_of(table: TargetTable, lows: Sequence[Key], first: int = 0) -> str:
    """Find the range of the key of `r` by binary search; an ASOF join would sort all images."""
    if len(lows) < 2:
        return str(first)
    half = len(lows) // 2
    below, above = _number_of(table, lows[:half], first), _number_of(table, lows[half:], first + half)
    return f"CASE WHEN {_key(table, 'r')} < {_key_of(table, lows[half])} THEN {below} ELSE {above} END"


def _partition(connection: duckdb.DuckDBPyConnection, query: str, folder: Path) -> dict[int, list[Path]]:
    connection.execute(f"COPY ({query}) TO {literal(str(folder))} ({PASSING}, PARTITION_BY ({_PART}))")
    return {int(found.name.partition("=")[2]): sorted(found.iterdir()) for found in folder.iterdir()}


def route_evenly(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, sources: Sequence[RowImages], buckets: int, folder: Path
) -> dict[int, list[Path]]:
    """Write row images into one folder per bucket; equal keys, or equal images without a key, share a bucket."""
    told_by = ", ".join(_names(table)) if table.key else _columns(table)
    query = (
        f"SELECT {_columns(table)}, {WEIGHT}, hash({told_by}) % {buckets} AS {_PART}"
        f" FROM ({fold.raw_sql(table.layout, sources)})"
    )
    return _partition(connection, query, folder)


def fold_all(connection: duckdb.DuckDBPyConnection, table: TargetTable, changes: Sequence[Path], into: Path) -> None:
    """Write the net change of images for an SQL target; the images include all those of their keys."""
    query = fold.net_sql(table, f"SELECT * FROM {rows_of(*changes)}")
    connection.execute(f"COPY ({query}) TO {literal(str(into))} ({PASSING})")


# Merging -------------------------------------------------------------------------------------------------------------


def merge(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    base: Piece | None,
    changes: Sequence[Path],
    folder: Path,
    *,
    rows_per_file: int = ROWS_PER_FILE,
) -> Merged:
    """Rewrite a base file with the net change of its rows.

    Args:
        connection: From `connect`.
        table: The table.
        base: The file; None to write only new files.
        changes: Files with row images and weights of this file, in any order.
        folder: Existing folder for new files.
        rows_per_file: A file with more than twice as many rows is split.

    Raises:
        StepError: A row to remove differs from the master's or is missing, or a key to add exists already.
    """
    raw = f"SELECT * FROM {rows_of(*changes)}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE net AS {fold.sum_sql(table.layout, raw)}")
    removed, added = _counts(connection)
    rows = base.rows if base else 0
    if not removed and not added:
        return Merged((), True, 0, 0)
    if removed > rows:
        raise unfit_changes.missing(table.name, removed - rows, removed)
    total = sum_images(connection, table.layout, "temp.net")
    if table.key:
        low, high = _merge_keys(connection, table, base)
        if base and not removed and rows >= rows_per_file // 2 and _is_above(connection, table, base):
            pieces = _write(connection, table, _added(table), added, folder, rows_per_file)
            return Merged(pieces, True, 0, added, total)
    else:
        low = high = ()
    kept, added_rows = f"{_kept(table, base, removed)} UNION ALL " if base else "", _added(table)
    expected = rows - removed + added
    if base is None or expected > 2 * rows_per_file:
        pieces = _write(connection, table, kept + added_rows, expected, folder, rows_per_file)
    else:
        # Folding leaves rows in no order. Sorted by key, files are smaller, and readers can skip row groups.
        pieces = _write_one(connection, table, f"{kept}({added_rows}{_order(table)})", expected, folder, low, high)
    if (found := sum(piece.rows for piece in pieces)) != expected:
        raise unfit_changes.missing(table.name, found - expected, removed)
    return Merged(pieces, False, removed, added, total)


def split(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    files: Sequence[Path],
    folder: Path,
    *,
    rows_per_file: int = ROWS_PER_FILE,
) -> tuple[Piece, ...]:
    """Cut all rows of a table into files, in key order if it has a key, else in stored order."""
    query = f"SELECT {_columns(table)} FROM {rows_of(*files)}"
    rows = int(connection.execute(f"SELECT count(*) FROM {rows_of(*files)}").fetchall()[0][0])
    return _write(connection, table, query, rows, folder, rows_per_file)


@dataclass(frozen=True, slots=True)
class BagNet:
    """The net change of a bag: a file of numbered images to remove, and a file of images to add."""

    removed_file: Path
    added_file: Path
    removed: int
    added: int


def net_of_bag(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, changes: Sequence[Path], folder: Path
) -> BagNet:
    """Fold the changes of a bag; write the images to remove and the images to add to two files."""
    raw = f"SELECT * FROM {rows_of(*changes)}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE net AS {fold.sum_sql(table.layout, raw)}")
    net = BagNet(folder / "removed.parquet", folder / "added.parquet", *_counts(connection))
    number = f"row_number() OVER () AS {_PART}"
    for file, sign, more in ((net.removed_file, "<", f", {number}"), (net.added_file, ">", "")):
        query = f"SELECT *{more} FROM temp.net WHERE {WEIGHT} {sign} 0"
        connection.execute(f"COPY ({query}) TO {literal(str(file))} ({PASSING})")
    return net


def find_copies(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, base: Path, removed: Path, into: Path
) -> None:
    """Write how many copies a file has of each numbered image to remove: columns `number`, `copies`."""
    query = f"SELECT n.{_PART} AS number, count(*) AS copies FROM {rows_of(base)} AS t JOIN {rows_of(removed)} AS n"
    connection.execute(f"COPY ({query} ON {_same(table)} GROUP BY 1) TO {literal(str(into))} ({PASSING})")


def share_out(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, net: BagNet, found: Sequence[Path], folder: Path
) -> dict[int, Path]:
    """Decide how many copies of each image each file loses: the first files lose all they have.

    Args:
        connection: From `connect`.
        table: The bag.
        net: Its net change.
        found: Output of `find_copies` for every file, in order.
        folder: Folder for the changes of each file.

    Returns:
        The changes by number of the file that loses rows.

    Raises:
        StepError: All of them together have too few copies.
    """
    counted = " UNION ALL ".join(
        f"SELECT {number} AS part, number, copies FROM {rows_of(file)}" for number, file in enumerate(found)
    )
    before = "coalesce(sum(f.copies) OVER (PARTITION BY f.number ORDER BY f.part ROWS BETWEEN UNBOUNDED PRECEDING AND"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE shares AS SELECT {_columns(table, 'n')}, f.part AS {_PART}, -least(f.copies,"
        f" greatest(0, -n.{WEIGHT} - {before} 1 PRECEDING), 0))) AS {WEIGHT} FROM ({counted}) AS f"
        f" JOIN {rows_of(net.removed_file)} AS n ON f.number = n.{_PART}"
    )
    taken = connection.execute(f"SELECT coalesce(sum(-{WEIGHT}), 0) FROM temp.shares").fetchall()[0][0]
    if taken != net.removed:
        raise unfit_changes.missing(table.name, net.removed - int(taken), net.removed)
    parts = connection.execute(f"SELECT DISTINCT {_PART} FROM temp.shares WHERE {WEIGHT} < 0 ORDER BY 1").fetchall()
    shares = {int(part): folder / f"share {part}.parquet" for (part,) in parts}
    for part, file in shares.items():
        query = f"SELECT * EXCLUDE ({_PART}) FROM temp.shares WHERE {WEIGHT} < 0 AND {_PART} = {part}"
        connection.execute(f"COPY ({query}) TO {literal(str(file))} ({PASSING})")
    return shares


def _counts(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    found = connection.execute(
        f"SELECT coalesce(sum(-{WEIGHT}) FILTER ({WEIGHT} < 0), 0),"
        f" coalesce(sum({WEIGHT}) FILTER ({WEIGHT} > 0), 0) FROM temp.net"
    ).fetchall()[0]
    return int(found[0]), int(found[1])


def _merge_keys(connection: duckdb.DuckDBPyConnection, table: TargetTable, base: Piece | None) -> tuple[Key, Key]:
    """Gather the changed keys, each once, and return the key range of the file afterwards."""
    # A key may lose a row, gain one, or both: weights of -1, of 1, or of 0 from two rows.
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE keys AS SELECT {', '.join(_names(table))}, sum({WEIGHT}) AS {WEIGHT},"
        f" sum(abs({WEIGHT})) AS {_PART} FROM temp.net GROUP BY ALL"
    )
    twice = connection.execute(
        f"SELECT {_shown(table, 'k')} FROM temp.keys AS k WHERE abs({WEIGHT}) + {_PART} <> 2 ORDER BY ALL LIMIT 1"
    ).fetchall()
    if twice:
        raise StepError("the log changes a key twice at once", table=str(table.name), key=twice[0][0])
    bounds = "".join(f" UNION ALL SELECT {_key_of(table, bound)}" for bound in ((base.low, base.high) if base else ()))
    added = f"SELECT {_key(table, 'n')} AS k FROM temp.net AS n WHERE n.{WEIGHT} > 0"
    return _range(connection, table, added + bounds)


def _range(connection: duckdb.DuckDBPyConnection, table: TargetTable, keys: str) -> tuple[Key, Key]:
    """Return the smallest and the greatest `k` of a query, as texts that cast back exactly."""
    places = range(1, len(table.key) + 1)
    values = [f"struct_extract({end}, {place})" for end in "ab" for place in places] if len(places) > 1 else ["a", "b"]
    texts = ", ".join(f"CAST({value} AS VARCHAR)" for value in values)
    query = f"SELECT {texts} FROM (SELECT min(k) AS a, max(k) AS b FROM ({keys}))"
    found = tuple(connection.execute(query).fetchall()[0])
    return ((), ()) if found[0] is None else (found[: len(table.key)], found[len(table.key) :])


def _is_above(connection: duckdb.DuckDBPyConnection, table: TargetTable, base: Piece) -> bool:
    """Return whether every row to add has a larger key than the last row of the file."""
    found = connection.execute(
        f"SELECT min({_key(table, 'n')}) > {_key_of(table, base.high)} FROM temp.net AS n"
    ).fetchall()
    return bool(found[0][0])


def _kept(table: TargetTable, base: Piece, removed: int) -> str:
    """Select the rows of the base file that stay, including rows to remove that differ from their images."""
    columns = _columns(table, "t")
    if table.key:
        by_key = " AND ".join(f"t.{name} = n.{name}" for name in _names(table))
        message = literal(f"a row to add to {table.name} exists in the replica already: ")
        goes = f"CASE WHEN n.{_PART} THEN {_same(table)} ELSE error({message} || {_shown(table, 't')}) END"
        changed = (
            f"SELECT {_columns(table)}, true AS {_PART} FROM temp.net WHERE {WEIGHT} < 0 UNION ALL BY NAME"
            f" SELECT {', '.join(_names(table))}, false AS {_PART} FROM temp.keys WHERE {WEIGHT} > 0"
        )
        rows = f"{rows_of(base.path)} AS t ANTI JOIN ({changed}) AS n ON {by_key} AND {goes}"
        return f"SELECT {columns} FROM {rows}"
    if not removed:
        return f"SELECT {columns} FROM {rows_of(base.path)} AS t"
    gone = f"(SELECT *, row_number() OVER () AS {_PART} FROM temp.net WHERE {WEIGHT} < 0) AS n"
    others = f"SELECT {columns} FROM {rows_of(base.path)} AS t ANTI JOIN {gone} ON {_same(table)}"
    copies = (
        f"SELECT {columns}, row_number() OVER (PARTITION BY n.{_PART}) AS {_PART}, -n.{WEIGHT} AS {WEIGHT}"
        f" FROM {rows_of(base.path)} AS t JOIN {gone} ON {_same(table)}"
    )
    return f"{others} UNION ALL SELECT {_columns(table)} FROM ({copies}) WHERE {_PART} > {WEIGHT}"


def _added(table: TargetTable) -> str:
    columns = _columns(table, "n")
    once = f"SELECT {columns} FROM temp.net AS n WHERE n.{WEIGHT} > 0"
    if table.key:
        return once
    return f"{once} UNION ALL SELECT {columns} FROM temp.net AS n, range(1, n.{WEIGHT}) WHERE n.{WEIGHT} > 1"


# Writing -------------------------------------------------------------------------------------------------------------


def _write_one(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    query: str,
    expected: int,
    folder: Path,
    low: Key,
    high: Key,
) -> tuple[Piece, ...]:
    path = folder / "0.parquet"
    if not expected:
        # Rows that are left should have been removed.
        found = int(connection.execute(f"SELECT count(*) FROM ({query})").fetchall()[0][0])
        return (Piece(path, found),) if found else ()
    rows = write_file(connection, table.layout, query, path, expected)
    return (Piece(path, rows, low, high),)


def _write(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    query: str,
    expected: int,
    folder: Path,
    rows_per_file: int,
) -> tuple[Piece, ...]:
    """Write rows into as many files as they need, sorted by key."""
    if not expected:
        return ()
    # COPY into several files distributes row groups in any order, so ranges would overlap. A table keeps the order.
    connection.execute(f"CREATE OR REPLACE TEMP TABLE sorted AS FROM ({query}){_order(table)}")
    pieces = []
    for number, first in enumerate(range(0, expected, rows_per_file)):
        path = folder / f"{number}.parquet"
        last = first + rows_per_file - 1 if first + rows_per_file < expected else 2**62
        rows_of = f"SELECT * FROM temp.sorted WHERE rowid BETWEEN {first} AND {last}"
        rows = write_file(connection, table.layout, rows_of, path, min(rows_per_file, expected - first))
        pieces.append(_piece(connection, table, path, rows))
    connection.execute("DROP TABLE temp.sorted")
    _check_order(connection, table, pieces)
    return tuple(pieces)


def _piece(connection: duckdb.DuckDBPyConnection, table: TargetTable, path: Path, rows: int) -> Piece:
    if not table.key:
        return Piece(path, rows)
    low, high = _range(connection, table, f"SELECT {_key(table, 't')} AS k FROM {rows_of(path)} AS t")
    return Piece(path, rows, low, high)


def _check_order(connection: duckdb.DuckDBPyConnection, table: TargetTable, pieces: Sequence[Piece]) -> None:
    """Check that no two files overlap: everything else here relies on it."""
    if table.key and len(pieces) > 1:
        tests = (f"{_key_of(table, one.high)} < {_key_of(table, other.low)}" for one, other in pairwise(pieces))
        assert connection.execute(f"SELECT {' AND '.join(tests)}").fetchall()[0][0], f"{table.name}: files overlap"


# Parts of statements -------------------------------------------------------------------------------------------------


def _columns(table: TargetTable, alias: str = "") -> str:
    """The stored columns, with an alias where another relation may have a column of the same name."""
    prefix = f"{alias}." if alias else ""
    return ", ".join(prefix + quote(file_column(column.name)) for column in table.layout.stored)


def _names(table: TargetTable) -> list[str]:
    return [quote(file_column(column.name)) for column in table.key]


def _order(table: TargetTable) -> str:
    return f" ORDER BY {', '.join(_names(table))}" if table.key else ""


def _key(table: TargetTable, alias: str) -> str:
    """The key as one value that compares like the key; a single column stays bare, which is faster."""
    return _whole([f"{alias}.{name}" for name in _names(table)])


def _key_of(table: TargetTable, key: Key) -> str:
    """A key given as texts, as `_key` gives it."""
    texts = zip(table.key, key, strict=True)
    return _whole([f"CAST({literal(text)} AS {storage_type(column.type)})" for column, text in texts])


def _whole(values: Sequence[str]) -> str:
    return f"row({', '.join(values)})" if len(values) > 1 else values[0]


def _shown(table: TargetTable, alias: str) -> str:
    return " || ', ' || ".join(
        f"{literal(column.name + ' = ')} || CAST({alias}.{name} AS VARCHAR)"
        for column, name in zip(table.key, _names(table), strict=True)
    )


def _same(table: TargetTable) -> str:
    return fold.same_stored_sql(table.layout, "t", "n")
