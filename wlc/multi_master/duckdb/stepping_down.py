"""A former primary continues as a secondary, with transactions that were unpublished when its history ended.

Own transactions are published in the new history, and the successor judges them. No site has seen the transactions that
it took and judged since its last batch, so they are undone: their rows are set back, own transactions are applied again
without them, and the successor's judgement of them arrives later.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import journal, unpublished
from wlc.capture.duckdb.images import any_sql, exact_sql
from wlc.capture.duckdb.journal import JournalledImages, JournalledReads, JournalledRefresh
from wlc.dialect.sql import quote
from wlc.farm.errors import FencedError
from wlc.farm.model import Clear, Ddl, RowRejected
from wlc.masters.contract import database_of
from wlc.masters.master_state import changes
from wlc.multi_master.circle import how_to_join_anew
from wlc.multi_master.circle_place import founder_of
from wlc.multi_master.duckdb import lines, own_past, parking
from wlc.multi_master.duckdb.take_step import records_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.capture.duckdb.journal import JournalEntry
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.capture.duckdb.unpublished import Pending
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.duckdb.lines import LinesTable


_TICKS = "wlc own ticks"


def step_down(shared: Shared, state: MasterState) -> None:
    """Begin the history of a secondary; see `wlc.masters.contract.SiteSource.step_down`."""
    with shared.publish_lock, shared.commit_lock:
        waiting = _waiting(shared)
        _refuse_what_only_a_primary_writes(shared, waiting, state)
        if any(_is_void(entry) for entry in waiting.transactions):
            # Transactions that were taken and not published are no longer contained.
            contained = {history: tick for history, tick in state.vector.items() if history != state.history}
            site = replace(state.member, contained=contained, proofs=state.member.published)
            _rebuild(shared, waiting.transactions, replace(state, site=site))
        else:
            own_past.renew(shared, state)


# Records that report verdicts to other sites.
_VERDICTS = (JournalledRefresh, RowRejected)


def _waiting(shared: Shared) -> Pending:
    with shared.reading() as connection:
        return unpublished.pending(connection, shared.catalog, most=2**62)


def what_only_a_primary_writes(shared: Shared) -> str | None:
    """Describe journalled changes that only a primary may publish; see `wlc.masters.contract.SiteSource`."""
    return _what_only_a_primary_writes(_waiting(shared))


def _anew(shared: Shared, state: MasterState) -> str:
    founder = founder_of(database_of(state), state.member)
    return how_to_join_anew(founder.url, state.member.name, shlex.quote(shared.path))


def _is_void(entry: JournalEntry) -> bool:
    return entry.origin is not None or any(isinstance(record, _VERDICTS) for record in entry.records)


def _is_kept(entry: JournalEntry) -> bool:
    """Say whether a transaction is the site's own, rather than one that only reports verdicts."""
    return entry.origin is None and not (
        entry.records and all(isinstance(record, _VERDICTS) for record in entry.records)
    )


def _refuse_what_only_a_primary_writes(shared: Shared, waiting: Pending, state: MasterState) -> None:
    what = _what_only_a_primary_writes(waiting)
    if what is not None:
        circle = state.member.circle
        raise FencedError(
            f"{shared.path} is no primary any more, and has an unpublished transaction that only a primary may "
            f"publish: it {what}",
            hint=f"write that again at {circle.primary if circle else 'the primary'}; {_anew(shared, state)}",
            path=shared.path,
        )


def _what_only_a_primary_writes(waiting: Pending) -> str | None:
    for record in (record for entry in waiting.transactions if _is_kept(entry) for record in entry.records):
        if isinstance(record, Ddl):
            return f"changes the schema: {record.statement}"
        if isinstance(record, Clear):
            return f"empties {record.table}"
        if isinstance(record, JournalledImages) and not waiting.layouts[record.layout][1].primary_key:
            return f"changes rows of {record.table}, which has no primary key"
    return None


def _rebuild(shared: Shared, entries: Sequence[JournalEntry], state: MasterState) -> None:
    """Rebase the own journalled transactions onto the published state, in one transaction."""
    try:
        parking.with_parked(shared, lambda: _put(shared, entries, state))
    except duckdb.ConstraintException as error:
        raise FencedError(
            f"{shared.path} is no primary any more, and its unpublished transactions do not apply to its published "
            "state:"
            f" {str(error).splitlines()[0]}",
            hint=f"copy the file aside; {_anew(shared, state)}, and write the rows that only the copy holds again",
            path=shared.path,
        ) from error


def _put(shared: Shared, entries: Sequence[JournalEntry], state: MasterState) -> None:
    kept = [entry for entry in entries if _is_kept(entry)]
    with shared.root.cursor() as connection, own_past.transaction(connection, shared):
        present, order = parking.present(connection, shared)
        _number(connection, kept)
        numbers = {record.layout for entry in entries for record in entry.records if hasattr(record, "layout")}
        found = [
            _as_lines(connection, place, number)
            for number, place in enumerate(sorted(present.values(), key=lambda place: order[place.table.name]))
            if place.table.id in numbers
        ]
        connection.execute(f"DELETE FROM {quote(shared.catalog)}.wlc.entries")
        for table in found:
            lines.journal_images(connection, table, state.tick)
            # Line 0 restores the published state; it is not journalled.
            connection.execute(f"DELETE FROM {table.table.images} WHERE _tick = {state.tick}")
            lines.journal_reads(connection, table, state.tick)
        parking.write(connection, shared, found, order)
        _add_entries(connection, shared, _renumbered(kept, shared.require_state().tick, state.tick), found)
        lines.drop(connection, found)
        journal.write_state(connection, shared.catalog, changes(shared.state, state))
    touched = [table.table.name for table in found]
    shared.committed(shared.last_tick, shared.commit_time(), touched, touched)


def _number(connection: duckdb.DuckDBPyConnection, kept: Sequence[JournalEntry]) -> None:
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {quote(_TICKS)} AS"
        " SELECT unnest(?::BIGINT[]) AS tick, unnest(?::BIGINT[]) AS line",
        [[entry.tick for entry in kept], list(range(1, len(kept) + 1))],
    )


def _as_lines(connection: duckdb.DuckDBPyConnection, place: TakenTable, number: int) -> LinesTable:
    """Move journalled rows of a table into lines: line 0 sets them back, later lines are own transactions."""
    made = lines.created(connection, place, number, has_reads=True)
    images, columns = place.table.images, ", ".join(place.table.columns)
    stored = list(zip(place.table.layout.stored, place.table.columns, strict=True))
    # Images that cancel out represent a row that was removed elsewhere and was missing here.
    changed = (
        f"SELECT _tick, sum(_weight)::TINYINT AS _weight,"
        f" {', '.join(f'{any_sql(column.type, name)} AS {name}' for column, name in stored)} FROM {images}"
        f" WHERE abs(_weight) = 1 GROUP BY _tick, {', '.join(exact_sql(column.type, name) for column, name in stored)}"
        " HAVING sum(_weight) <> 0"
    )
    # The first image of each row: its original state, or its absence.
    connection.execute(
        f"INSERT INTO {made.lines} SELECT 0, -_weight, {columns} FROM ({changed})"
        f" QUALIFY row_number() OVER (PARTITION BY {made.keys} ORDER BY _tick, _weight) = 1"
    )
    connection.execute(
        f"INSERT INTO {made.lines} SELECT n.line, _weight, {columns} FROM ({changed}) AS i"
        f" JOIN {quote(_TICKS)} AS n ON n.tick = i._tick"
    )
    connection.execute(
        f"INSERT INTO {made.reads} SELECT n.line, _weight = {journal.READ_EXCLUSIVELY}, {columns} FROM {images} AS i"
        f" JOIN {quote(_TICKS)} AS n ON n.tick = i._tick WHERE _weight IN ({journal.READ}, {journal.READ_EXCLUSIVELY})"
    )
    connection.execute(f"DELETE FROM {images}")
    return made


def _renumbered(kept: Sequence[JournalEntry], published: int, before: int) -> list[JournalEntry]:
    """Renumber transactions after another tick, and adjust what each had seen when it began.

    Args:
        kept: The transactions.
        published: Last tick that was published before them.
        before: The tick that they follow.
    """
    ticks = [entry.tick for entry in kept]
    return [
        replace(
            entry,
            tick=before + line,
            after=entry.after if (entry.after or 0) <= published else before + bisect_right(ticks, entry.after or 0),
        )
        for line, entry in enumerate(kept, start=1)
    ]


def _add_entries(
    connection: duckdb.DuckDBPyConnection, shared: Shared, entries: Sequence[JournalEntry], found: Sequence[LinesTable]
) -> None:
    """Journal the own transactions in the new history, with their present changes."""
    by_tick: dict[int, list[journal.JournalRecord]] = {}
    for table in found:
        counted: dict[int, dict[int, int]] = {}
        query = f"SELECT _tick, _weight, count(*) FROM {table.table.images} GROUP BY ALL ORDER BY ALL"
        for tick, weight, rows in connection.execute(query).fetchall():
            counted.setdefault(tick, {})[weight] = rows
        for tick, rows in counted.items():
            by_tick.setdefault(tick, []).extend(records_of(table.table, rows))
    images = (JournalledImages, JournalledReads, JournalledRefresh)
    for entry in entries:
        rest = [record for record in entry.records if not isinstance(record, images)]
        records = (*by_tick.get(entry.tick, ()), *rest)
        journal.add_entry(connection, shared.catalog, replace(entry, records=records))
