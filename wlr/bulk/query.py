"""The SQL of a read: rows of a table as of a moment, or its changes, as Spark is to get them.

As of a moment, a table is its snapshot plus the net change of the log. Rows of the snapshot that the net change removes
are left out where the snapshot is read, which any number of tasks can do side by side; what the net change adds comes
from a task of its own. Where equal rows can be there twice, reading a snapshot leaves out all copies of what the net
change removes, and that task brings back those that stay.

Everything here builds text and touches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.model import WEIGHT, Column, file_column, literal, quote
from wlc.types import load_sql, store_sql
from wlr.bulk.types import spark_sql
from wlr.fold import same_stored_sql, sum_sql

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.model import Layout
    from wlr.bulk.trace import Contents

# Columns of a change feed that are not the table's, and their types.
FEED = (("_tick", "BIGINT"), (WEIGHT, "TINYINT"), ("_committed", "TIMESTAMP WITH TIME ZONE"), ("_user", "VARCHAR"))
# Arrow table in the connection: tick, committed and user of the transactions of a feed.
TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of a snapshot's file by their number in it, `first` included and `end` not."""

    path: str
    first: int
    end: int


def snapshot_sql(contents: Contents, slices: Sequence[Slice], local: Mapping[str, str]) -> str:
    """Select the rows of a snapshot that are still there, all copies of removed ones left out, as stored."""
    base = _base(contents, slices, local)
    if not contents.removed:
        return base
    if contents.has_key:
        keys = (quote(file_column(name)) for name in contents.layout.primary_key)
        match = " AND ".join(f"b.{key} IS NOT DISTINCT FROM g.{key}" for key in keys)
    else:
        match = same_stored_sql(contents.layout, "b", "g")
    gone = f"(SELECT * FROM {_net(contents, local)} WHERE {WEIGHT} < 0)"
    return f"SELECT b.* FROM ({base}) AS b ANTI JOIN {gone} AS g ON {match}"


def net_sql(contents: Contents, local: Mapping[str, str], bucket: int = 0, buckets: int = 1) -> str:
    """Select what `snapshot_sql` leaves to be said: rows that were added, and copies that stay; one bucket of them."""
    columns = ", ".join(_columns(contents.layout))
    net = _net(contents, local, bucket, buckets)
    slices = [Slice(file.path, 0, file.rows) for file in contents.files]
    copies = f"(SELECT * FROM {net} WHERE {WEIGHT} > 0)"
    if slices and contents.removed and not contents.has_key:
        copies = f"({_kept(contents, net, _base(contents, slices, local))})"
    if contents.layout.primary_key:
        return f"SELECT {columns} FROM {copies}"
    # An image is there as many times as its weight says.
    listed = ", ".join(f"n.{column}" for column in _columns(contents.layout))
    return f"SELECT {listed} FROM {copies} AS n, range(n.{WEIGHT}) AS copy(_tick)"


def log_sql(contents: Contents, places: Sequence[int], local: Mapping[str, str]) -> str:
    """Select all images of some parts of the log, which is what a table holds if nothing was ever removed."""
    return f"SELECT {', '.join(_columns(contents.layout))} FROM ({_raw(contents, local, places)})"


def rows_sql(contents: Contents, local: Mapping[str, str]) -> str:
    """Select all rows that the table holds, as stored."""
    slices = [Slice(file.path, 0, file.rows) for file in contents.files]
    selects = [snapshot_sql(contents, slices, local)] if slices else []
    selects += [net_sql(contents, local)] if contents.parts else []
    return " UNION ALL ".join(f"({select})" for select in selects) or _nothing(contents.layout)


def output_sql(layout: Layout, wanted: Sequence[str], stored: str, conditions: Sequence[str] = ()) -> str:
    """Select wanted columns of stored rows as Spark is to get them."""
    by_name = {column.name: column for column in layout.stored}
    values = (f"{spark_sql(by_name[name], quote(file_column(name)))} AS {quote(name)}" for name in wanted)
    return _where(f"SELECT {', '.join(values)} FROM ({stored})", conditions)


def feed_sql(layout: Layout, old: Layout, wanted: Sequence[str], images: str, conditions: Sequence[str] = ()) -> str:
    """Select wanted columns of a change feed.

    Args:
        layout: Of the table at the end of the feed; `old` is that of the images.
        old: Columns that it lacks are NULL, those that it has under another type are cast, exactly or not at all.
        wanted: Names of columns in the feed.
        images: Select images as stored, with `_tick` and `_weight`.
        conditions: On the columns of the feed.
    """
    values = {file_column(column.name): _mapped(column, old) for column in layout.stored}
    values |= {
        "_tick": "i._tick",
        WEIGHT: f"i.{WEIGHT}",
        "_committed": "CAST(t.committed AS TIMESTAMPTZ)",
        "_user": "t.user_name",
    }
    selected = ", ".join(f"{values[name]} AS {quote(name)}" for name in wanted)
    return _where(f"SELECT {selected} FROM ({images}) AS i JOIN {TRANSACTIONS} AS t ON i._tick = t.tick", conditions)


def images_sql(layout: Layout, path: str, first: int, last: int) -> str:
    """Select the images of a data file whose tick is from `first` to `last`, as stored."""
    columns = ", ".join(["_tick", WEIGHT, *_columns(layout)])
    return f"SELECT {columns} FROM {_parquet(path)} WHERE _tick BETWEEN {first} AND {last}"


def removed_sql(contents: Contents, local: Mapping[str, str], tick: int) -> str:
    """Select all rows of a table as images that a transaction removed."""
    rows = rows_sql(contents, local)
    return f"SELECT *, CAST({tick} AS BIGINT) AS _tick, CAST(-1 AS TINYINT) AS {WEIGHT} FROM ({rows})"


# Parts of statements -------------------------------------------------------------------------------------------------


def _columns(layout: Layout) -> list[str]:
    return [quote(file_column(column.name)) for column in layout.stored]


def _parquet(path: str, extra: str = "") -> str:
    return f"read_parquet([{literal(path)}], hive_partitioning = false{extra})"


def _selected(contents: Contents, values: Sequence[str]) -> str:
    return ", ".join(f"{value} AS {name}" for value, name in zip(values, _columns(contents.layout), strict=True))


def _base(contents: Contents, slices: Sequence[Slice], local: Mapping[str, str]) -> str:
    selected = _selected(contents, contents.values)
    return " UNION ALL ".join(
        f"SELECT {selected} FROM {_parquet(local[part.path], ', file_row_number = true')}"
        f" WHERE file_row_number >= {part.first} AND file_row_number < {part.end}"
        for part in slices
    )


def _raw(contents: Contents, local: Mapping[str, str], places: Sequence[int] | None = None) -> str:
    parts = contents.parts if places is None else [contents.parts[place] for place in places]
    return " UNION ALL ".join(
        f"SELECT {_selected(contents, part.values)}, {WEIGHT} FROM {_parquet(local[part.read.file.file.path])}"
        f" WHERE _tick BETWEEN {part.read.first} AND {part.read.last}"
        for part in parts
    )


def _net(contents: Contents, local: Mapping[str, str], bucket: int = 0, buckets: int = 1) -> str:
    raw = _raw(contents, local)
    if buckets > 1:
        raw = f"SELECT * FROM ({raw}) WHERE hash({', '.join(_columns(contents.layout))}) % {buckets} = {bucket}"
    return f"({sum_sql(contents.layout, raw)})"


def _kept(contents: Contents, net: str, base: str) -> str:
    """Select images with the number of copies that are there in the end."""
    columns = ", ".join(_columns(contents.layout))
    gone = f"(SELECT *, row_number() OVER () AS _tick FROM {net} WHERE {WEIGHT} < 0)"
    listed = ", ".join(f"g.{column}" for column in _columns(contents.layout))
    left = (
        f"SELECT {listed}, g.{WEIGHT} + count(b.there) AS {WEIGHT} FROM {gone} AS g"
        f" LEFT JOIN (SELECT *, true AS there FROM ({base})) AS b"
        f" ON {same_stored_sql(contents.layout, 'b', 'g')} GROUP BY {listed}, g._tick, g.{WEIGHT}"
    )
    refusal = literal("the log removes rows that the snapshot does not have, copies too many: ")
    checked = f"CASE WHEN {WEIGHT} < 0 THEN error({refusal} || {WEIGHT}) ELSE {WEIGHT} END"
    stays = f"SELECT {columns}, {checked} AS {WEIGHT} FROM ({left})"
    return f"SELECT * FROM {net} WHERE {WEIGHT} > 0 UNION ALL SELECT * FROM ({stays}) WHERE {WEIGHT} <> 0"


def _mapped(column: Column, old: Layout) -> str:
    """Return the SQL of a feed's column, given the layout of the images."""
    there = next((c for c in old.stored if c.name.lower() == column.name.lower()), None)
    if there is None:
        return spark_sql(column, store_sql(column, f"CAST(NULL AS {column.type})"))
    stored = f"i.{quote(file_column(there.name))}"
    if there.type == column.type:
        return spark_sql(column, stored)
    value = load_sql(there, stored)
    cast = f"TRY_CAST({value} AS {column.type})"
    says = literal(f"column {column.name} was {there.type}, and has a value that {column.type} cannot hold: ")
    is_same = f"CAST({cast} AS {there.type}) IS NOT DISTINCT FROM {value}"
    exact = f"CASE WHEN {is_same} THEN {cast} ELSE error({says} || CAST({value} AS VARCHAR)) END"
    return spark_sql(column, store_sql(column, exact))


def _nothing(layout: Layout) -> str:
    values = (store_sql(c, f"CAST(NULL AS {c.type})") + f" AS {quote(file_column(c.name))}" for c in layout.stored)
    return f"SELECT {', '.join(values)} WHERE false"


def _where(select: str, conditions: Sequence[str]) -> str:
    return f"SELECT * FROM ({select}) WHERE {' AND '.join(conditions)}" if conditions else select
