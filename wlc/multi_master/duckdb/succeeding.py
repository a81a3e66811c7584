"""A site takes over as the primary: before it judges other sites, it judges its own unjudged transactions.

Its rows are those of the former primary, overwritten by transactions that the former primary has not read. So each row
that such a transaction changed is compared with the former primary's row, and judged by the former primary's log.
Rejected rows are set back in an own transaction, and refreshed at the other sites: these may already contain the
conflicting change, and skip it when they read this site's log.

The transaction is journalled even if nothing was rejected: with it, the log says that the term has begun.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalEntry
from wlc.capture.duckdb.open_transaction import user
from wlc.capture.duckdb.taken_tables import SeenTable
from wlc.dialect.sql import quote
from wlc.farm.clock import utc_now
from wlc.farm.errors import ReplayError
from wlc.farm.vectors import expanded
from wlc.masters.master_state import changes
from wlc.multi_master.duckdb import conflict_window, judging, lines, own_past, parking, rejected_rows
from wlc.multi_master.duckdb.judging import Judged
from wlc.multi_master.duckdb.rejected_rows import Detection
from wlc.multi_master.duckdb.take_step import records_of
from wlc.multi_master.duckdb.unjudged_rows import UnjudgedRows, relation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.farm.model import Name, TableFile
    from wlc.farm.vectors import Lineage, Vector
    from wlc.multi_master.duckdb.lines import LinesTable
    from wlc.multi_master.site_step import Succession


# Maximum number of misfitting transactions that are searched one by one.
_MISFITS = 5


class _Fits(Exception):  # noqa: N818
    """Ends a successful trial, so that it is rolled back."""


def take_over(shared: Shared, succession: Succession, fetch: Callable[[TableFile], Path]) -> None:
    """Lead the present term; see `wlc.masters.contract.SiteSource.take_over`. The caller holds the commit lock.

    An own transaction that violates a constraint without the rejected ones is rejected, too.
    """
    misfits: set[int] = set()
    while True:
        try:
            _take_over(shared, succession, fetch, misfits)
        except duckdb.ConstraintException as error:
            found = _next_misfits(shared, succession, fetch, misfits)
            if not found:
                raise ReplayError(
                    f"{shared.path} cannot take over as the primary: its unjudged transactions cannot be set back: "
                    f"{str(error).splitlines()[0]}",
                    hint="delete the rows that refer to the one named, then: wlc site take SOURCE",
                ) from error
            misfits |= found
        else:
            return


def _next_misfits(
    shared: Shared, succession: Succession, fetch: Callable[[TableFile], Path], misfits: set[int]
) -> set[int]:
    """Return the first own transaction that violates a constraint; after several of these, all that follow.

    Returns:
        Their lines; empty if the remaining transactions violate constraints without them, too.
    """

    def fits(so_many: int) -> bool:
        try:
            _take_over(shared, succession, fetch, misfits | set(rest[so_many:]), is_trial=True)
        except _Fits:
            return True
        except duckdb.ConstraintException:
            return False
        raise AssertionError("a trial ends with an error")

    rest = [each.line for each in succession.own.transactions if each.line not in misfits]
    if not rest or not fits(0):
        return set()
    low, high = 0, len(rest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {rest[low]} if len(misfits) < _MISFITS else set(rest[low:])


def _take_over(
    shared: Shared,
    succession: Succession,
    fetch: Callable[[TableFile], Path],
    misfits: set[int],
    *,
    is_trial: bool = False,
) -> None:
    parking.with_parked(shared, lambda: _lead(shared, succession, fetch, misfits, is_trial=is_trial))


def _lead(
    shared: Shared,
    succession: Succession,
    fetch: Callable[[TableFile], Path],
    misfits: set[int],
    *,
    is_trial: bool = False,
) -> None:
    state = shared.require_state()
    site = state.member
    present: Mapping[Name, TakenTable] = {}
    order: Mapping[Name, int] = {}
    made: list[LinesTable] = []
    with shared.root.cursor() as connection, own_past.transaction(connection, shared):
        judged = Judged()
        if succession.own.transactions:
            present, order = parking.present(connection, shared)
            judged = _judge(connection, shared, succession, present, fetch, misfits)
            names = {record.table for record in judged.refresh}
            ranked = sorted(names, key=lambda name: order[name])
            made = [_set_back(connection, present[name], number) for number, name in enumerate(ranked)]
        first, time = shared.new_ticks(1 + bool(judged.refresh)), shared.commit_time()
        for table in made:
            lines.journal_images(connection, table, first - 1)
        parking.write(connection, shared, made, order)
        if is_trial:
            raise _Fits
        judging.move_refresh(connection, shared.catalog, judged, first + 1)
        change = tuple(record for table in made for record in _records(connection, table, first))
        entries = [JournalEntry(first, user(), time, time, change, after=shared.last_tick or None)]
        if judged.refresh:
            entries.append(JournalEntry(first + 1, user(), time, time, judged.refresh))
        journal.add_entries(connection, shared.catalog, entries)
        for other in site.known_circle.sites if judged.refresh else ():
            if other.name != site.name:
                rejected_rows.note_conflict(connection, shared.catalog, other.name, first + 1)
        lines.drop(connection, made)
        leading = replace(state, site=replace(site, led=site.known_circle.term))
        journal.write_state(connection, shared.catalog, changes(shared.state, leading))
    touched = [table.table.name for table in made]
    shared.committed(shared.last_tick, shared.commit_time(), touched, touched)


def _judge(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    succession: Succession,
    present: Mapping[Name, TakenTable],
    fetch: Callable[[TableFile], Path],
    misfits: set[int],
) -> Judged:
    """Judge own transactions as the former primary would have, and report and journal rejections."""
    state = shared.require_state()
    site = state.member
    lineage = site.known_circle.lineage()
    found = lines.load(connection, succession.own, present, fetch, with_reads=True)
    former = [
        _as_former(connection, shared, table, succession.judged, lineage, number)
        for number, table in enumerate(found)
        if table.key
    ]

    def cover(known: Vector, lineage: Lineage) -> None:
        conflict_window.create(connection)
        for log in succession.ended:
            if (after := known.get(log.history, 0)) < log.last:
                conflict_window.add_log(
                    connection,
                    log.database,
                    after_tick=after,
                    last_batch=log.batch,
                    known=known,
                    lineage=lineage,
                    circle=site.known_circle,
                )

    where = Detection(shared.catalog, site.name, site.name, utc_now())
    judged = judging.judge_by_rules(
        connection, where, succession.own, former, site.known_circle, cover, lambda _: True, misfits
    )
    lines.drop(connection, found)
    return judged


def _as_former(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    table: LinesTable,
    judged: Vector,
    lineage: Lineage,
    number: int,
) -> LinesTable:
    """Return a step's table over the former primary's rows for its keys."""
    UnjudgedRows(connection, shared, expanded(judged, lineage), lineage).load(table.table)
    unjudged = relation_of(table.table)
    here, name = table.table, f'temp."wlc former {number}"'
    touched = f"SELECT {table.keys} FROM {table.lines}"
    touched += f" UNION SELECT {table.keys} FROM {table.reads}" if table.reads else ""
    stored = [quote(column.name) for column in here.layout.stored]
    values = ", ".join(table.value(place, "u") for place in range(len(stored)))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS SELECT {', '.join(stored)} FROM {here.sql} AS t"
        f" WHERE EXISTS (FROM ({touched}) AS k WHERE {table.same_key('k')})"
        f" AND NOT EXISTS (FROM {unjudged} AS u WHERE {table.same_key('u')})"
    )
    connection.execute(
        f"INSERT INTO {name} SELECT {values} FROM {unjudged} AS u SEMI JOIN ({touched}) AS k USING ({table.keys})"
        " WHERE u.had"
    )
    return replace(table, place=replace(table.place, table=SeenTable.of(here, name)))


def _set_back(connection: duckdb.DuckDBPyConnection, place: TakenTable, number: int) -> LinesTable:
    """Return the effect of a refresh on a table's rows here, as one line."""
    made = lines.created(connection, place, number)
    images, columns = place.table.images, ", ".join(place.table.columns)
    connection.execute(
        f"INSERT INTO {made.lines} SELECT 1, CASE WHEN _weight = {journal.REFRESHED} THEN 1 ELSE -1 END, {columns}"
        f" FROM {images} WHERE _tick = {judging.REFRESH_TICK}"
    )
    connection.execute(
        f"DELETE FROM {made.lines} AS l WHERE (l._weight > 0 AND EXISTS (FROM {place.table.sql} AS t WHERE"
        f" {made.same_image('l')})) OR (l._weight < 0 AND NOT EXISTS (FROM {place.table.sql} AS t WHERE"
        f" {made.same_key('l')}))"
    )
    return made


def _records(connection: duckdb.DuckDBPyConnection, table: LinesTable, tick: int) -> Iterator[journal.JournalRecord]:
    query = f"SELECT _weight, count(*) FROM {table.table.images} WHERE _tick = {tick} GROUP BY ALL"
    yield from records_of(table.table, dict(connection.execute(query).fetchall()))
