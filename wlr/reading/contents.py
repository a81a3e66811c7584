"""Decides from the log, before any data file is read, which rows make a table as of a moment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Layout
from wlr import log_reader
from wlr.reading.place import named_table
from wlr.reading.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name
    from wlr.plan.stop import Stop
    from wlr.reading.trace import TableContents


def contents_at(database: FarmDatabase, wanted: str, stop: Stop) -> tuple[Name, TableContents, int]:
    """Follow a table up to the stop.

    Args:
        database: The farm database.
        wanted: The table as a user names it.
        stop: Where to stop.

    Returns:
        The table's name as it is written there, what it holds, and the tick of the last transaction that counts.

    Raises:
        InvalidError: There is no such table then, or the stop is ahead of the farm.
        ExpiredError: The stop was pruned.
    """
    trace, tick = _followed(database, stop)
    name = named_table(wanted, trace.tables, f"at tick {tick}")
    return name, trace.tables[name], tick


def tables_at(database: FarmDatabase, stop: Stop) -> dict[Name, TableContents]:
    """Follow all tables up to the stop; raises as `contents_at` does."""
    return _followed(database, stop)[0].tables


def tick_at(database: FarmDatabase, stop: Stop) -> int:
    """Return the last tick that counts at the stop, 0 if it is before the first; raises as `contents_at` does."""
    return _followed(database, stop)[1]


def _followed(database: FarmDatabase, stop: Stop) -> tuple[Trace, int]:
    manifest = log_reader.choose_snapshot(database, stop)
    trace, tick = Trace.begin(manifest), manifest.position.tick if manifest else 0
    for step in log_reader.steps_after(database, manifest, stop):
        for action in step.actions():
            trace.follow(action, step.last)
        if applied := step.applied:
            tick = applied[-1].tick
    return trace, tick


def refuse_broken(table: Name, contents: TableContents) -> None:
    """Refuse a table with rows that a schema change altered in a way that only an engine can repeat.

    Raises:
        UnsupportedError: The table has such rows; the message names the transaction.
    """
    if contents.broken is not None:
        raise UnsupportedError(
            f"transaction {contents.broken} altered table {table} in a way that a reader cannot follow",
            hint="Take a new snapshot with wlc snapshot, read as of a tick before it, or read a Parquet replica.",
        )


def narrowed(contents: TableContents, wanted: Collection[str]) -> TableContents:
    """Leave out the columns that nobody needs.

    The sum of the weights of images that are cut to some columns is the sum of the images, cut: what is left out of all
    of them changes no row of the others.

    Args:
        contents: What the table holds.
        wanted: Names of columns. Those that identify the rows to remove are kept, too.
    """
    layout = contents.layout
    key = layout.primary_key if contents.has_key and contents.removed else ()
    kept = {*wanted, *key} or {column.name for column in layout.stored[:1]}
    places = [place for place, column in enumerate(layout.stored) if column.name in kept]
    cut = Layout(tuple(layout.stored[place] for place in places), key)
    parts = tuple(replace(part, values=_chosen(part.values, places)) for part in contents.parts)
    values = _chosen(contents.values, places)
    return replace(contents, layout=cut, values=values, parts=parts, has_key=bool(key))


def _chosen(values: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(values[place] for place in places) if values else ()
