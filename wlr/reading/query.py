"""The SQL of a read: rows of a table as of a moment, or its changes, as a reader gets them.

As of a moment, a table is its snapshot plus the net change of the log. A read of the snapshot, or of a slice, leaves
out the rows that the net change removes. The added rows are read separately. A table without a key can hold several
copies of a row: a read leaves out all copies of a removed row, and adds the copies that stay.

Folding uses `wlc.dialect.duckdb.fold`, as in replay. This module only builds text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, storage_type
from wlc.farm.model import WEIGHT, file_column
from wlr.reading.trace import mapped_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wlc.farm.model import Column, Layout
    from wlr.reading.trace import FeedTransaction, TableContents

    # Makes a reader's value of a column from the SQL of its stored value: `load_sql`, for a reader of declared types.
    Loads = Callable[[Column, str], str]

_FEED_NAME = re.compile(r"_+(tick|weight|change_type|committed|user)", re.IGNORECASE)
# Columns of every change feed besides the table's, and their types.
FEED = (("_tick", "BIGINT"), (WEIGHT, "TINYINT"), ("_committed", "TIMESTAMP WITH TIME ZONE"), ("_user", "VARCHAR"))
# A column of change feeds for readers without weights, with the values of Delta's change data feed.
CHANGE_TYPE = "_change_type"
# Arrow table in the connection: tick, committed and user of the transactions of a feed.
TRANSACTIONS = "transactions"
_NET = quote("dbfarm net")


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Rows of a snapshot's file by their number in it, `first` included and `end` not."""

    path: str
    first: int
    end: int


def snapshot_sql(contents: TableContents, slices: Sequence[FileSlice], local: Mapping[str, str]) -> str:
    """Select the remaining rows of a snapshot, as stored; leave out all copies of removed rows."""
    base = _base(contents, slices, local)
    return _left_sql(contents, base, _net(contents, local)) if contents.removed else base


def _left_sql(contents: TableContents, base: str, net: str) -> str:
    if contents.has_key:
        # A key is never NULL.
        keys = (quote(file_column(name)) for name in contents.layout.primary_key)
        match = " AND ".join(f"t.{key} = n.{key}" for key in keys)
    else:
        match = fold.same_stored_sql(contents.layout, "t", "n")
    return f"SELECT t.* FROM ({base}) AS t ANTI JOIN (SELECT * FROM {net} WHERE {WEIGHT} < 0) AS n ON {match}"


def net_sql(contents: TableContents, local: Mapping[str, str], bucket: int = 0, buckets: int = 1) -> str:
    """Select one bucket of the rows that `snapshot_sql` leaves out: added rows, and copies that stay."""
    return _added_sql(contents, local, _net(contents, local, bucket, buckets))


def _added_sql(contents: TableContents, local: Mapping[str, str], net: str) -> str:
    columns = fold.stored_columns(contents.layout)
    copies = f"SELECT * FROM {net} WHERE {WEIGHT} > 0"
    if contents.files and contents.removed and not contents.has_key:
        base = _whole_base(contents, local)
        left = fold.stored_copies_left_sql(contents.layout, net, f"({base})")
        refusal = literal("the log removes rows that the snapshot does not have, copies too many: ")
        checked = f"CASE WHEN {WEIGHT} < 0 THEN error({refusal} || {WEIGHT}) ELSE {WEIGHT} END AS {WEIGHT}"
        stays = f"SELECT {', '.join(columns)}, {checked} FROM ({left})"
        copies += f" UNION ALL SELECT * FROM ({stays}) WHERE {WEIGHT} <> 0"
    if contents.layout.primary_key:
        return f"SELECT {', '.join(columns)} FROM ({copies})"
    # An image has as many copies as its weight.
    listed = ", ".join(f"n.{column}" for column in columns)
    return f"SELECT {listed} FROM ({copies}) AS n, range(n.{WEIGHT}) AS copy(_tick)"


def log_sql(contents: TableContents, local: Mapping[str, str]) -> str:
    """Select all images of the log, which are the table's rows if none was ever removed."""
    return f"SELECT {', '.join(fold.stored_columns(contents.layout))} FROM ({_raw(contents, local)})"


def rows_sql(contents: TableContents, local: Mapping[str, str]) -> str:
    """Select all rows of a table, as stored."""
    base = [_whole_base(contents, local)] if contents.files else []
    if not contents.parts:
        return base[0] if base else nothing_sql(contents.layout)
    if not contents.removed:
        return _united([*base, log_sql(contents, local)])
    # The net change is folded once for both parts.
    left = [_left_sql(contents, rows, _NET) for rows in base]
    both = _united([*left, _added_sql(contents, local, _NET)])
    return f"WITH {_NET} AS MATERIALIZED {_net(contents, local)} {both}"


def _united(selects: Sequence[str]) -> str:
    return " UNION ALL ".join(f"({select})" for select in selects)


def nothing_sql(layout: Layout) -> str:
    """Select no rows, with the columns of stored ones."""
    columns = (f"CAST(NULL AS {storage_type(c.type)}) AS {quote(file_column(c.name))}" for c in layout.stored)
    return f"SELECT {', '.join(columns)} WHERE false"


def output_sql(layout: Layout, wanted: Sequence[str], stored: str, loads: Loads, conditions: Sequence[str] = ()) -> str:
    """Select wanted columns of stored rows as the reader's values."""
    by_name = {column.name: column for column in layout.stored}
    values = (f"{loads(by_name[name], quote(file_column(name)))} AS {quote(name)}" for name in wanted)
    return _where(f"SELECT {', '.join(values)} FROM ({stored})", conditions)


def feed_sql(
    layout: Layout,
    old: Layout,
    wanted: Sequence[str],
    images: str,
    loads: Loads,
    conditions: Sequence[str] = (),
    *,
    has_updates: bool = True,
) -> str:
    """Select wanted columns of a change feed.

    Args:
        layout: Layout of the table at the end of the feed.
        old: Layout of the images. Columns that it lacks are NULL; columns of another type are cast exactly, or fail.
        wanted: Names of columns in the feed.
        images: A query that selects images as stored, with `_tick` and `_weight`.
        loads: Makes the reader's values.
        conditions: Conditions on the columns of the feed.
        has_updates: A removed and an added image may belong to one row.
    """
    mapped = mapped_values(layout, old, [f"i.{column}" for column in fold.stored_columns(old)])
    columns = zip(layout.stored, mapped, strict=True)
    values = {feed_column(column.name): loads(column, value) for column, value in columns}
    values |= {
        "_tick": "i._tick",
        WEIGHT: f"i.{WEIGHT}",
        "_committed": "CAST(t.committed AS TIMESTAMPTZ)",
        "_user": "t.user_name",
        CHANGE_TYPE: _change_type_sql(old.primary_key if has_updates else ()),
    }
    selected = ", ".join(f"{values[name]} AS {quote(name)}" for name in wanted)
    return _where(f"SELECT {selected} FROM ({images}) AS i JOIN {TRANSACTIONS} AS t ON i._tick = t.tick", conditions)


def images_sql(layout: Layout, path: str, first: int, last: int) -> str:
    """Select the images of a data file whose tick is from `first` to `last`, as stored."""
    columns = ", ".join(["_tick", WEIGHT, *fold.stored_columns(layout)])
    return f"SELECT {columns} FROM {rows_of(path)} WHERE _tick BETWEEN {first} AND {last}"


def held_sql(rows: str, tick: int, weight: int) -> str:
    """Select rows of a table as images of one weight, of the transaction at a tick."""
    return f"SELECT *, CAST({tick} AS BIGINT) AS _tick, CAST({weight} AS TINYINT) AS {WEIGHT} FROM ({rows})"


def _change_type_sql(key: Sequence[str]) -> str:
    """Return the SQL of an image's change type: insert, delete or update.

    A transaction updates a row by removing an image of its key and adding another one. Without a key, updates cannot be
    recognized.
    """
    if not key:
        return f"CASE WHEN i.{WEIGHT} < 0 THEN 'delete' ELSE 'insert' END"
    same_row = ", ".join(["i._tick", *(f"i.{quote(file_column(name))}" for name in key)])
    window = f"OVER (PARTITION BY {same_row})"
    both = f"min(i.{WEIGHT}) {window} < max(i.{WEIGHT}) {window}"
    return (
        f"CASE WHEN i.{WEIGHT} < 0 THEN CASE WHEN {both} THEN 'update_preimage' ELSE 'delete' END"
        f" WHEN {both} THEN 'update_postimage' ELSE 'insert' END"
    )


def feed_column(name: str) -> str:
    """Name of a table's column in a change feed, in which the names of `FEED` and `CHANGE_TYPE` are reserved."""
    return "_" + name if _FEED_NAME.fullmatch(name) else name


def transactions_table(found: Sequence[FeedTransaction]) -> pa.Table:
    """Return the Arrow table `TRANSACTIONS`."""
    return pa.table(
        {
            "tick": pa.array([one.tick for one in found], pa.int64()),
            "committed": pa.array([one.committed for one in found], pa.timestamp("us", "UTC")),
            "user_name": pa.array([one.user for one in found], pa.string()),
        }
    )


# Parts of statements -------------------------------------------------------------------------------------------------


def _whole_base(contents: TableContents, local: Mapping[str, str]) -> str:
    selected = fold.named_values_sql(contents.values, fold.stored_columns(contents.layout))
    return f"SELECT {selected} FROM {rows_of(*(local[file.path] for file in contents.files))}"


def _base(contents: TableContents, slices: Sequence[FileSlice], local: Mapping[str, str]) -> str:
    selected = fold.named_values_sql(contents.values, fold.stored_columns(contents.layout))
    return " UNION ALL ".join(
        f"SELECT {selected} FROM {rows_of(local[part.path], options='file_row_number = true')}"
        f" WHERE file_row_number >= {part.first} AND file_row_number < {part.end}"
        for part in slices
    )


def _raw(contents: TableContents, local: Mapping[str, str]) -> str:
    reads = ((part.read, part.values) for part in contents.parts)
    sources = [fold.RowImages((local[read.file.file.path],), read.first, read.last, values) for read, values in reads]
    raw = fold.raw_sql(contents.layout, sources)
    return _fulfilling_sql(contents, raw) if contents.condition else raw


def _fulfilling_sql(contents: TableContents, raw: str) -> str:
    """Select the images that fulfil a condition, before folding: equal images have the same result."""
    stored = fold.stored_columns(contents.layout)
    kept = [quote(f"dbfarm stored {number}") for number in range(len(stored))]
    declared = (f"{load_sql(c, s)} AS {quote(c.name)}" for c, s in zip(contents.layout.stored, stored, strict=True))
    both = [*declared, fold.named_values_sql(stored, kept)]
    images = f'SELECT {", ".join(both)}, {WEIGHT} AS "dbfarm weight" FROM ({raw})'
    values = ", ".join([fold.named_values_sql(kept, stored), f'"dbfarm weight" AS {WEIGHT}'])
    return f"SELECT {values} FROM ({images}) AS {quote(contents.called)} WHERE {contents.condition}"


def _net(contents: TableContents, local: Mapping[str, str], bucket: int = 0, buckets: int = 1) -> str:
    raw = _raw(contents, local)
    if buckets > 1:
        columns = ", ".join(fold.stored_columns(contents.layout))
        raw = f"SELECT * FROM ({raw}) WHERE hash({columns}) % {buckets} = {bucket}"
    return f"({fold.sum_sql(contents.layout, raw)})"


def _where(select: str, conditions: Sequence[str]) -> str:
    return f"SELECT * FROM ({select}) WHERE {' AND '.join(conditions)}" if conditions else select
