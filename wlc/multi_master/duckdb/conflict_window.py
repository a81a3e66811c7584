"""The conflict window: the primary's changes by row, under names that other sites know.

Every line of the primary's log on a row has a name: the origin of a transaction taken from another site, otherwise the
primary's history and tick. A change of another site is concurrent to a line if the past of the change does not contain
that name. The window is derived from the log and the journal after it, in a temporary table:

    key      number of the table and its key, see `key_sql`; that of the table alone where it was cleared
    history  }
    tick     } name of the line
    committed  when the transaction was first committed, microseconds

In a star, changes are lines only in tables with an epoch rule; a refresh is one in every table: see `verdicts`. A
refresh by a former primary is journalled as a change where it was taken, so all its changes are lines.

The window can be derived again at any time. The steps of a round share one window: changes since the previous step are
added.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal, unpublished
from wlc.capture.duckdb.images import exact_sql
from wlc.capture.duckdb.journal import JournalledReads, JournalledRefresh, JournalledRows
from wlc.dialect import types
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types.syntax import parse
from wlc.farm.errors import ExpiredError, GapError
from wlc.farm.model import Clear, FileRecord, Name, RowsRead, RowsRefreshed, file_column
from wlc.farm.store import MissingError
from wlc.farm.vectors import NO_LINEAGE, contains
from wlc.masters.contract import database_of
from wlc.multi_master.anchors import has_seen
from wlc.multi_master.circle import EPOCH, EPOCH_TRANS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import duckdb

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Column, Layout, Origin
    from wlc.farm.vectors import Lineage, Vector
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.circle import Circle


WINDOW = 'temp."wlc window"'
# A table of the journal's schema with the columns of the window.
INHERITED = "inherited"
_COLUMNS = "key UHUGEINT, history VARCHAR, tick BIGINT, committed BIGINT"
_NAMES = 'temp."wlc names"'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def key_sql(name: Name, columns: Sequence[Column], values: Sequence[str]) -> str:
    """Return the expression that hashes a row's table and key.

    A collision of two keys would at worst reject a change needlessly.

    Args:
        name: The table.
        columns: Those of the key; none for the table as a whole.
        values: SQL that yields their stored values.
    """
    parts = [literal(f"{len(name.schema)}:{name.schema}{len(name.name)}:{name.name}")]
    for column, value in zip(columns, values, strict=True):
        text = f"CAST({_without_signed_zero(column, value)} AS VARCHAR)"
        parts += [f"CAST(length({text}) AS VARCHAR)", "':'", text]
    return f"md5_number({' || '.join(parts)})"


def _without_signed_zero(column: Column, value: str) -> str:
    return f"({value} + 0)" if parse(types.storage_type(column.type)).row.is_float else value


def key_columns(layout: Layout) -> list[Column]:
    """Return the stored columns of the primary key."""
    return [layout.stored[place] for place in layout.key_places]


def key_value(column: Column, value: str) -> str:
    """Return a key column's value as the index compares it: without collation, so that 'A' and 'a' differ."""
    return f'({value} COLLATE "binary")' if column.type == "VARCHAR" else value


def others_sql(layout: Layout, added: Collection[str], names: Sequence[str]) -> str:
    """Return the values of all columns that are neither added nor in the key as one SQL value.

    Args:
        layout: The table's columns.
        added: Which are added.
        names: SQL of each stored column.
    """
    left_out = {*added, *layout.primary_key}
    columns = zip(layout.stored, names, strict=True)
    values = [exact_sql(column.type, name) for column, name in columns if column.name not in left_out]
    return f"row({', '.join(['1', *values])})"


def has_written(others: str) -> str:
    """SQL condition: a group of images of one row and transaction has written its other columns."""
    is_said = "bool_or(_weight NOT IN (-1, 1))"
    return f"(min(_weight) = max(_weight) OR {is_said} OR count(DISTINCT {others}) > 1)"


def create(connection: duckdb.DuckDBPyConnection) -> None:
    """Begin an empty window."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {bare(WINDOW)} ({_COLUMNS})")


def create_if_missing(connection: duckdb.DuckDBPyConnection) -> None:
    """Begin an empty window, unless there is one."""
    connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {bare(WINDOW)} ({_COLUMNS})")


@dataclass(frozen=True, slots=True)
class Covered:
    """The content of a window: the lines up to a tick that a vector does not contain, and maybe more.

    Attributes:
        history: The primary's history.
        floor: The vector.
        batch: The last batch published by then.
        tick: The tick.
        circle: The circle that determined the lines.
    """

    history: str
    floor: Vector
    batch: int
    tick: int
    circle: Circle | None


@dataclass(frozen=True, slots=True)
class WantedWindow:
    """The purpose of a window.

    Attributes:
        state: The primary's state.
        known: The vector that all authors of the step contained.
        lineage: Restores histories that vectors leave out.
        anew: The command that rebuilds the site whose changes are judged.
    """

    state: MasterState
    known: Vector
    lineage: Lineage
    anew: str


@dataclass(slots=True)
class KeptWindow:
    """The window of a round, on the connection that takes its steps.

    Attributes:
        covered: Its content; None before it is derived. The caller resets it after a rollback, because the table is
            rolled back, too.
    """

    covered: Covered | None = None

    def cover(self, connection: duckdb.DuckDBPyConnection, catalog: str, wanted: WantedWindow) -> None:
        """Extend the window to judge a step, or derive it anew if authors of the step had seen less than earlier ones.

        Args:
            connection: In the transaction of the step; no process publishes meanwhile.
            catalog: The primary's database.
            wanted: The purpose.

        Raises:
            ExpiredError: The log does not reach back to the site's vector.
        """
        at, state = self.covered, wanted.state
        decided = (state.history, state.circle)
        if at is None or (at.history, at.circle) != decided or not contains(wanted.known, at.floor, wanted.lineage):
            create(connection)
            _add_inherited(connection, catalog, wanted)
            at = Covered(state.history, wanted.known, 0, 0, state.circle)
        if state.batch > at.batch:
            add_log(
                connection,
                database_of(state),
                after_tick=max(at.tick, at.floor.get(state.history, 0)),
                after_batch=at.batch,
                last_batch=state.batch,
                known=at.floor,
                lineage=wanted.lineage,
                anew=wanted.anew,
                circle=state.circle,
            )
        last = add_journal(connection, catalog, state.history, after=at.tick, circle=state.circle)
        self.covered = Covered(state.history, at.floor, state.batch, max(state.tick, last), state.circle)


def added_columns(circle: Circle | None, table: Name) -> Collection[str]:
    """Return the columns of a table whose changes are added; changes of other columns replace the value."""
    return circle.added_columns(table) if circle is not None else ()


def _add_inherited(connection: duckdb.DuckDBPyConnection, catalog: str, wanted: WantedWindow) -> None:
    """Add the history that the site inherited when it joined a mesh: its own log begins later."""
    site = wanted.state.site
    if site is None or site.floor is None:
        return
    if not contains(wanted.known, site.floor, wanted.lineage):
        raise ExpiredError(
            f"which changes are newer cannot be said: what site {site.name} inherited when it joined does not"
            " reach back to what their authors had seen",
            hint=wanted.anew or None,
        )
    connection.execute(f"INSERT INTO {WINDOW} SELECT * FROM {quote(catalog)}.wlc.{INHERITED}")


def add_log(
    connection: duckdb.DuckDBPyConnection,
    database: FarmDatabase,
    *,
    after_tick: int,
    after_batch: int = 0,
    last_batch: int,
    known: Vector,
    lineage: Lineage = NO_LINEAGE,
    anew: str = "",
    circle: Circle | None = None,
) -> None:
    """Add the lines of the primary's log after a tick.

    Args:
        connection: A connection that may read the files.
        database: The primary's folder.
        after_tick: The tick; all authors contain the transactions up to it.
        after_batch: The window already holds this batch and earlier ones.
        last_batch: The last batch to read, 0 for none.
        known: The vector that all authors contain: a primary that only takes has no own ticks to compare.
        lineage: Restores histories that vectors leave out.
        anew: The command that rebuilds the site whose changes are judged.
        circle: Determines the tables whose changes are lines, and the added columns: a change of only added columns
            does not write the row. Without a circle, all changes are lines, and no column is added.

    Raises:
        ExpiredError: The log does not reach back to the tick: a part of it was pruned.
    """
    number = last_batch
    while number > after_batch:
        try:
            batch = database.read_batch(number)[0]
        except (MissingError, GapError) as error:
            raise ExpiredError(
                f"which changes are concurrent cannot be said: the log of {database.name} begins with batch"
                f" {number + 1}, and a site has not seen what was published before",
                hint=anew or None,
                path=database.url,
            ) from error
        if batch.last <= after_tick:
            return
        if has_seen(known, batch, lineage):
            return
        add_batch(connection, batch, database, circle)
        if batch.first <= after_tick + 1:
            return
        number -= 1


def add_batch(
    connection: duckdb.DuckDBPyConnection, batch: Batch, database: FarmDatabase, circle: Circle | None
) -> None:
    """Add one batch of the primary's log; see `add_log`."""
    named = [(each.tick, each.origin, each.committed) for each in batch.transactions]
    _name_ticks(connection, batch.history, named)
    found = _Lines(_are_lines(circle))
    for each in batch.transactions:
        for record in each.records:
            if isinstance(record, FileRecord | Clear):
                found.note(record, each.tick, each.origin.history if each.origin else batch.history)
    for file in batch.files:
        if file.layout.primary_key and (among := found.among(file.file.path)):
            columns = key_columns(file.layout)
            values = [f"i.{quote(file_column(column.name))}" for column in columns]
            key = key_sql(file.table, columns, values)
            local = database.fetch(file)
            try:
                names = [f"i.{quote(file_column(column.name))}" for column in file.layout.stored]
                written = _written(file.layout, added_columns(circle, file.table), names)
                _add(connection, f"SELECT _tick, {key} AS key FROM {rows_of(local)} AS i WHERE {among} {written}")
            finally:
                database.release(local)
    _add_clears(connection, found.clears)


@dataclass(slots=True)
class _Lines:
    """Transactions with lines, by file or image table of a log or journal.

    Attributes:
        are_lines: See `_are_lines`.
        clears: Ticks at which tables were cleared.
    """

    are_lines: Callable[[Name, str], bool]
    clears: list[tuple[int, Name]] = field(default_factory=list)
    _ticks: dict[str, list[int]] = field(default_factory=dict)
    _left_out: set[str] = field(default_factory=set)

    def note(self, record: FileRecord | JournalledRows | Clear, tick: int, history: str) -> None:
        """Note the record of a transaction that was first committed in a history."""
        counts = self._counts(record, history)
        if isinstance(record, Clear):
            self.clears += [(tick, record.table)] if counts else []
            return
        place = record.path if isinstance(record, FileRecord) else str(record.layout)
        if counts:
            self._ticks.setdefault(place, []).append(tick)
        else:
            self._left_out.add(place)

    def among(self, place: str) -> str:
        """SQL condition: an image in a file belongs to a line; empty if none does."""
        if place not in self._left_out:
            return "true" if place in self._ticks else ""
        ticks = self._ticks.get(place)
        return f"_tick IN (SELECT unnest({ticks}::BIGINT[]))" if ticks else ""

    @property
    def places(self) -> list[str]:
        """Where there are any."""
        return list(self._ticks)

    def _counts(self, record: FileRecord | JournalledRows | Clear, history: str) -> bool:
        # Rows read with the intention to write must not be changed concurrently.
        if isinstance(record, RowsRead | JournalledReads) and not record.exclusive:
            return False
        return isinstance(record, RowsRefreshed | JournalledRefresh) or self.are_lines(record.table, history)


def _are_lines(circle: Circle | None) -> Callable[[Name, str], bool]:
    """Return the predicate: changes of a table by transactions first committed in a history are lines."""
    if circle is None or circle.is_mesh:
        return lambda _table, _history: True
    compared = {rule.table.folded for rule in circle.rules if rule.rule in (EPOCH, EPOCH_TRANS)}
    former = circle.former_histories() | {former_term.history for former_term in circle.former_terms}
    return lambda table, history: table.folded in compared or history in former


def _written(layout: Layout, added: Collection[str], names: Sequence[str]) -> str:
    """Group the images of a table by transaction and row, and keep groups that have written the row."""
    if not added:
        return "GROUP BY ALL"
    return f"GROUP BY ALL HAVING {has_written(others_sql(layout, added, names))}"


def add_journal(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    history: str,
    *,
    after: int,
    circle: Circle | None = None,
) -> int:
    """Add the primary's unpublished commits after a tick, as the connection's transaction sees them.

    See `add_log` for the circle.

    Returns:
        The last journalled tick, `after` if there is none after it.
    """
    waiting = unpublished.pending(connection, catalog, sys.maxsize, after=after)
    _name_ticks(connection, history, [(each.tick, each.origin, each.committed) for each in waiting.transactions])
    found = _Lines(_are_lines(circle))
    for each in waiting.transactions:
        for record in each.records:
            if isinstance(record, JournalledRows | Clear):
                found.note(record, each.tick, each.origin.history if each.origin else history)
    for number in sorted(map(int, found.places)):
        name, layout = waiting.layouts[number]
        if layout.primary_key:
            key = key_sql(name, key_columns(layout), [f"c{place}" for place in layout.key_places])
            images = journal.images_sql(catalog, number)
            wanted = f"_weight <> {journal.READ} AND _tick > {after} AND {found.among(str(number))}"
            names = [f"c{place}" for place in range(len(layout.stored))]
            written = _written(layout, added_columns(circle, name), names)
            _add(connection, f"SELECT _tick, {key} AS key FROM {images} WHERE {wanted} {written}")
    _add_clears(connection, found.clears)
    return waiting.logged[-1].tick if waiting.logged else after


def _name_ticks(
    connection: duckdb.DuckDBPyConnection,
    history: str,
    transactions: Sequence[tuple[int, Origin | None, datetime | None]],
) -> None:
    """Record the names of transactions' lines, and their first commit times."""
    ticks = [tick for tick, _, _ in transactions]
    histories = [origin.history if origin else history for _, origin, _ in transactions]
    named = [origin.tick if origin else tick for tick, origin, _ in transactions]
    times = [microseconds((origin and origin.committed) or committed) for _, origin, committed in transactions]
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {bare(_NAMES)} AS SELECT unnest($1::BIGINT[]) AS _tick,"
        " unnest($2::VARCHAR[]) AS history, unnest($3::BIGINT[]) AS tick, unnest($4::BIGINT[]) AS committed",
        [ticks, histories, named, times],
    )


def microseconds(time: datetime | None) -> int | None:
    """Return a time as DuckDB counts it, None for None."""
    return None if time is None else (time - _EPOCH) // timedelta(microseconds=1)


def _add(connection: duckdb.DuckDBPyConnection, lines: str) -> None:
    connection.execute(
        f"INSERT INTO {WINDOW} SELECT l.key, n.history, n.tick, n.committed"
        f" FROM ({lines}) AS l JOIN {_NAMES} AS n USING (_tick)"
    )


def _add_clears(connection: duckdb.DuckDBPyConnection, clears: Sequence[tuple[int, Name]]) -> None:
    for tick, table in clears:
        _add(connection, f"SELECT CAST({tick} AS BIGINT) AS _tick, {key_sql(table, (), ())} AS key")


def bare(table: str) -> str:
    """Return the name of a temporary table without its schema, as it is created."""
    return table.removeprefix("temp.")
