"""Compares tables between two ticks by the net change of the log between them, without a replica."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import fold
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql
from wlc.farm import digest
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import WEIGHT, file_column
from wlr.engine.calculator import connect
from wlr.reading.change_feed import ChangeFeed, batches_of
from wlr.reading.place import named_table, opened, stop_at
from wlr.reading.table import kept
from wlr.reading.trace import tables_at, tick_at
from wlr.replay import log_reader
from wlr.replay.plan.bounds import Stop

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from datetime import date

    import duckdb

    from wlc.farm.model import Layout, Name
    from wlr.reading.trace import TableContents

_CHANGE = "_change"


@dataclass(frozen=True, slots=True)
class TableDifference(ForPeople):
    """How many rows of a table differ between two ticks.

    Attributes:
        added: Rows only at the second tick; of a table without a primary key, copies of rows.
        removed: Rows only at the first tick.
        changed: Rows with the same primary key and other values; None for a table without one.
    """

    table: str
    added: int
    removed: int
    changed: int | None


def diff(
    place: str | os.PathLike[str],
    first: int | str | date,
    last: int | str | date,
    *,
    table: str | None = None,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[TableDifference]:
    """Count the rows in which tables differ between two ticks or times.

    It reads only the log between the ticks, and the rows of tables that were cleared or dropped in between.

    Args:
        place: Name in the farm, URL of the database's folder, path of the master; or a replica, whose farm is read.
        first: The tick or time to compare with.
        last: The other one; an earlier one shows the effect of going back.
        table: `schema.table`, or `table` in schema main; all tables if omitted.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.

    Returns:
        The tables that differ, by name; the named one in any case.

    Raises:
        InvalidError: There is no such place or table, a tick is ahead of the farm, or no changes lead between them.
        ExpiredError: The log between the ticks was pruned.
        UnsupportedError: A table was renamed in between.

    Examples:
        >>> wlr.diff("sales", 2, 3)
        [TableDifference(table='main.orders', added=0, removed=0, changed=1)]
    """
    database = _farm_of(place, farm, storage_options)
    begin, end = _ticks(database, first, last)
    low, high = sorted((begin, end))
    before, after = (tables_at(database, Stop(tick=tick)) for tick in (low, high))
    if table is not None:
        wanted = [named_table(table, {**before, **after}, f"at tick {low} or {high}")]
    else:
        wanted = sorted(_touched(database, low, high) & {*before, *after})
    found = []
    for name in wanted:
        if name in after:
            with tempfile.TemporaryDirectory(prefix="wlr-diff-") as work, connect(Path(work)) as connection:
                _net(connection, ChangeFeed(database, name, after[name].layout, low + 1, high))
                added, removed, changed = _counts(connection, after[name].layout)
        else:
            added, removed, changed = 0, _rows_held(before[name]), 0 if before[name].layout.primary_key else None
        if begin > end:
            added, removed = removed, added
        if table is not None or added or removed or changed:
            found.append(TableDifference(str(name), added, removed, changed))
    return found


def differing_rows(
    place: str | os.PathLike[str],
    first: int | str | date,
    last: int | str | date,
    table: str,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> duckdb.DuckDBPyRelation:
    """Read the rows in which a table differs between two ticks; arguments and errors are those of `diff`.

    Returns:
        A relation with the table's columns as declared at the later tick, and `_change` before them: "added",
        "removed", or, of rows with the same primary key, "changed from" and "changed to". It is in key order, of a
        table without a key in no order.

    Examples:
        >>> wlr.differing_rows("sales", 2, 3, "orders").fetchall()
        [('changed from', 2, 'ink'), ('changed to', 2, 'blue ink')]
    """
    database = _farm_of(place, farm, storage_options)
    begin, end = _ticks(database, first, last)
    low, high = sorted((begin, end))
    after = tables_at(database, Stop(tick=high))
    name = named_table(table, after, f"at tick {high}")
    layout = after[name].layout
    work = Path(tempfile.mkdtemp(prefix="wlr-diff-"))
    with ExitStack() as needs:
        needs.callback(shutil.rmtree, work, ignore_errors=True)
        connection = connect(work)
        _net(connection, ChangeFeed(database, name, layout, low + 1, high))
        return kept(connection, needs.pop_all(), _rows_sql(layout, "<" if begin <= end else ">"))


def _farm_of(
    place: str | os.PathLike[str], farm: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> FarmDatabase:
    found = opened(place, farm, storage_options)
    if isinstance(found, FarmDatabase):
        return found
    return open_database(found.read_state().master, storage_options=storage_options)


def _ticks(database: FarmDatabase, first: int | str | date, last: int | str | date) -> list[int]:
    """Return the ticks of two moments; refuse ticks that the farm does not have."""
    end = log_reader.last_tick(database, database.batch_numbers())
    stops = [stop_at(first, "first"), stop_at(last, "last")]
    ticks = [tick_at(database, stop) if stop.tick is None else stop.tick for stop in stops]
    for tick in ticks:
        if tick > end:
            message = f"tick {tick} is not published: the farm's last one is {end}"
            raise InvalidError(message, hint=f"--tick {min(ticks[0], end)}:{end}")
    return ticks


def _touched(database: FarmDatabase, low: int, high: int) -> set[Name]:
    """Return the tables that transactions after a tick, up to another one, changed, created or dropped."""
    batches = (batch for batch, _ in batches_of(database, low + 1, high))
    return digest.touched(t for batch in batches for t in batch.transactions if low < t.tick <= high)


def _rows_held(contents: TableContents) -> int:
    return sum(file.rows for file in contents.files) + contents.added - contents.removed


def _net(connection: duckdb.DuckDBPyConnection, feed: ChangeFeed) -> None:
    """Make a temporary table of the images that do not cancel out."""
    with feed.images() as images:
        net = fold.sum_sql(feed.layout, images)
        connection.execute(f"CREATE TEMP TABLE net AS {_with_twins(feed.layout, net)}")


def _with_twins(layout: Layout, net: str) -> str:
    """Mark each image with whether an image of the other sign has the same key."""
    keys = ", ".join(quote(file_column(column)) for column in layout.primary_key)
    if not keys:
        return f"SELECT *, false AS {fold.STAYS} FROM ({net})"
    stays = f"min({WEIGHT}) OVER k < 0 AND max({WEIGHT}) OVER k > 0"
    return f"SELECT *, {stays} AS {fold.STAYS} FROM ({net}) WINDOW k AS (PARTITION BY {keys})"


def _counts(connection: duckdb.DuckDBPyConnection, layout: Layout) -> tuple[int, int, int | None]:
    sums = (
        f"coalesce(sum(abs({WEIGHT})) FILTER ({WEIGHT} {sign} 0 AND {stays} {fold.STAYS}), 0)"
        for sign, stays in ((">", "NOT"), ("<", "NOT"), (">", ""))
    )
    added, removed, changed = connection.execute(f"SELECT {', '.join(sums)} FROM temp.net").fetchall()[0]
    return int(added), int(removed), int(changed) if layout.primary_key else None


def _rows_sql(layout: Layout, removed: str) -> str:
    """Select the rows of the net change; `removed` compares the weights of rows of the first tick with 0."""
    is_removed = f"n.{WEIGHT} {removed} 0"
    change = (
        f"CASE WHEN n.{fold.STAYS} AND {is_removed} THEN 'changed from' WHEN n.{fold.STAYS} THEN 'changed to'"
        f" WHEN {is_removed} THEN 'removed' ELSE 'added' END"
    )
    values = [f"{load_sql(c, f'n.{quote(file_column(c.name))}')} AS {quote(c.name)}" for c in layout.stored]
    keys = [f"n.{quote(file_column(name))}" for name in layout.primary_key]
    order = f" ORDER BY {', '.join([*keys, change])}" if keys else ""
    copies = f"range(abs(n.{WEIGHT})) AS copy(number)"
    return f"SELECT {change} AS {_CHANGE}, {', '.join(values)} FROM temp.net AS n, {copies}{order}"
