"""Taking a step of another site into a DuckDB master: rows, journal and position in one transaction.

Users continue to write meanwhile. A take that conflicts with their changes is rolled back and retried; after several
attempts it blocks their commits until it is done, so that it cannot starve.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import journal, taken_tables
from wlc.capture.duckdb.analysis import UnknownEffect, analyse
from wlc.capture.duckdb.images import conflict
from wlc.capture.duckdb.journal import JournalEntry, JournalledImages, JournalledReads, JournalledRefresh
from wlc.capture.duckdb.open_transaction import TakenEntry, user
from wlc.capture.duckdb.session import CaptureSession
from wlc.dialect.duckdb import permitted_ddl, settings
from wlc.dialect.sql import quote
from wlc.farm.clock import utc_now
from wlc.farm.errors import CorruptError, ReplayError, UnsupportedError
from wlc.farm.model import Change, Clear, Ddl, RowRejected, RowsRefreshed
from wlc.masters.contract import database_of
from wlc.masters.master_state import changes
from wlc.multi_master.circle_place import founder_of, without_site_that_lies
from wlc.multi_master.duckdb import judging, lines, parking, rejected_rows, unjudged_rows
from wlc.multi_master.duckdb.conflict_window import KeptWindow
from wlc.multi_master.duckdb.rejected_rows import Detection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from wlc.capture.duckdb.journal import CapturedTable, JournalRecord
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.farm.model import Name, TableFile
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.duckdb.judging import Judged
    from wlc.multi_master.duckdb.lines import LinesTable
    from wlc.multi_master.site_step import SiteStep


# Attempts beside users' commits; the next attempt blocks commits.
_ATTEMPTS_BESIDE = 2


@dataclass(slots=True)
class Taking:
    """State shared by the steps of a round.

    Attributes:
        connection: Takes steps of rows, and has the window.
        rows: Number of row images taken.
    """

    shared: Shared
    connection: duckdb.DuckDBPyConnection
    fetch: Callable[[TableFile], Path]
    window: KeptWindow
    transactions: int = 0
    rows: int = 0


def take_beside_users(its: Taking, step: SiteStep, *, is_refused: bool = False) -> None:
    """Take a step, or reject it if it violates a constraint and the primary may reject it by a rule."""
    _refuse_unknown_records(its.shared, step)
    attempt = _take_alone if step.is_alone else partial(_take_lines, is_refused=is_refused)
    for number in range(_ATTEMPTS_BESIDE + 1):
        is_last = number == _ATTEMPTS_BESIDE
        waiting: AbstractContextManager[object] = its.shared.commit_lock if is_last else nullcontext()
        try:
            with waiting:
                its.rows += attempt(its, step)
                its.transactions += len(step.transactions)
                return
        except duckdb.TransactionException:
            if is_last:
                raise


def remembered(shared: Shared, step: SiteStep) -> MasterState:
    """Return what the database remembers after a step."""
    state = shared.require_state()
    return replace(state, site=state.member.having_taken(step.contained, step.proof))


def _refuse_unknown_records(shared: Shared, step: SiteStep) -> None:
    if shared.is_in_mesh:
        # Every site reports a row that was removed elsewhere and is missing as absent.
        return
    for each in step.transactions:
        refreshes = (record for record in each.transaction.records if isinstance(record, RowsRefreshed))
        if not step.is_primary and not all(record.kept for record in refreshes):
            state = shared.require_state()
            raise CorruptError(
                f"site {step.site} has published a refresh, and is not the primary",
                hint=without_site_that_lies(founder_of(database_of(state), state.member).url, step.site),
            )


# Steps of rows -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Attempt:
    """One attempt to take a step of rows.

    Attributes:
        first: Tick in front of the step's; that of line n is n more. Behind them are those of the refresh.
        began_after: Number of commits before it began.
    """

    shared: Shared
    connection: duckdb.DuckDBPyConnection
    step: SiteStep
    first: int
    began_after: int
    tables: list[LinesTable]
    judged: Judged

    @property
    def last(self) -> int:
        return self.last_taken + bool(self.judged.announcements)

    @property
    def last_taken(self) -> int:
        return self.first + self.step.transactions[-1].line


def _take_lines(its: Taking, step: SiteStep, *, is_refused: bool = False) -> int:
    shared, connection, covered = its.shared, its.connection, its.window.covered
    with shared.commit_lock:
        began_after = shared.commits
        connection.execute("BEGIN")
        shared.take_snapshot(connection)
    try:
        present, order = parking.present(connection, shared)
        circle = shared.require_state().circle
        found = lines.load(connection, step, present, its.fetch, with_reads=not step.is_primary, circle=circle)
        _refuse_keyless(shared, step, found)
        found = unjudged_rows.keep(connection, shared, step, found)
        judged = judging.judge_step(connection, shared, step, found, its.window, is_refused=is_refused)
        taken_tables.refuse_triggers(connection, shared.catalog, (table.table.name for table in found))
        first = shared.new_ticks(step.transactions[-1].line + 1 + bool(judged.announcements))
        attempt = _Attempt(shared, connection, step, first, began_after, found, judged)
        for table in found:
            lines.journal_images(connection, table, first, is_primary=not step.is_primary)
            lines.journal_reads(connection, table, first)
            unjudged_rows.journal_kept(connection, table, first)
        _count_overwritten(attempt)
        _write_own_rejected(attempt, present)
        rows = sum(table.count(connection) for table in found)
        parking.write(connection, shared, found, order)
        lines.drop(connection, found)
        _commit(attempt)
    except BaseException:
        its.window.covered = covered
        connection.execute("ROLLBACK")
        raise
    return rows


def _count_overwritten(attempt: _Attempt) -> None:
    """Count, at a secondary, differing rows that other sites' changes replace."""
    shared, connection = attempt.shared, attempt.connection
    state = shared.require_state()
    # A site that never writes loses no rows.
    if attempt.step.is_primary and (state.member.own or shared.last_tick > state.tick):
        rows = sum(rejected_rows.count_overwritten(connection, table, attempt.first) for table in attempt.tables)
        if rows:
            rejected_rows.prepare(connection, shared.catalog)
            rejected_rows.count(connection, shared.catalog, state.member.name, {("", "overwritten"): rows})


def _write_own_rejected(attempt: _Attempt, present: Mapping[Name, TakenTable]) -> None:
    """Write, at a secondary, the rows of its own transactions that the primary reports as rejected."""
    shared, step = attempt.shared, attempt.step
    if rejected := own_rejected(shared, step):
        tables = {name: each.table for name, each in present.items()}
        where = Detection(shared.catalog, step.site, shared.require_state().member.name, utc_now())
        rejected_rows.write_reported(attempt.connection, where, rejected, tables)


def own_rejected(shared: Shared, step: SiteStep) -> list[tuple[datetime, RowRejected]]:
    """Return the own rows that the step's site rejected, with the time."""
    site = shared.require_state().member
    if not step.is_primary or site.circle is None:
        return []
    own = {each.history for each in site.circle.site(site.name).histories}
    return [
        (each.transaction.committed, record)
        for each in step.transactions
        for record in each.transaction.records
        if isinstance(record, RowRejected) and record.history in own and each.transaction.committed
    ]


def _refuse_keyless(shared: Shared, step: SiteStep, tables: Sequence[LinesTable]) -> None:
    """Refuse rows that only the primary may write; in a mesh, any site may pass them on, with their author."""
    if shared.is_in_mesh:
        return
    for name in (table.table.name for table in tables if not table.key):
        if not step.is_primary:
            raise CorruptError(
                f"site {step.site} has published rows of {name}, which has no primary key: only the primary may"
                " write it",
                hint=f"if it had a key when they were written: ALTER TABLE {name.sql} ADD PRIMARY KEY (…), then take",
            )


def _commit(attempt: _Attempt) -> None:
    """Assign the final ticks, journal the transactions and commit, under the commit lock."""
    shared, connection = attempt.shared, attempt.connection
    with shared.commit_lock:
        for table in attempt.tables:
            if shared.last_changes.has_changed_since(table.table.name, attempt.began_after):
                raise conflict(table.table.name)
        _settle_ticks(attempt)
        time = shared.commit_time()
        _add_entries(attempt, time)
        if attempt.judged.has_conflicts:
            rejected_rows.note_conflict(connection, shared.catalog, attempt.step.site, attempt.last)
        state = remembered(shared, attempt.step)
        journal.write_state(connection, shared.catalog, changes(shared.state, state))
        connection.execute("COMMIT")
        shared.state = state
        touched = [table.table.name for table in attempt.tables]
        shared.committed(attempt.last, time, touched, touched)


def _settle_ticks(attempt: _Attempt) -> None:
    """Move the ticks of the step after those committed meanwhile."""
    shared, old, last = attempt.shared, attempt.first, attempt.last
    judging.move_refresh(attempt.connection, shared.catalog, attempt.judged, last)
    if old > shared.last_tick:
        return
    attempt.first = shared.new_ticks(last - old + 1)
    for table in attempt.tables:
        moved = f"_tick = _tick + {attempt.first - old} WHERE _tick BETWEEN {old} AND {last}"
        attempt.connection.execute(f"UPDATE {table.table.images} SET {moved}")


def _add_entries(attempt: _Attempt, committed: datetime) -> None:
    """Journal every transaction under its origin, even without changes here."""
    records = _records(attempt)
    entries = []
    for each in attempt.step.transactions:
        tick, its = attempt.first + each.line, each.transaction
        is_last = each is attempt.step.transactions[-1]
        started, proof = min(its.started, committed), attempt.step.proof if is_last else None
        entry = JournalEntry(tick, its.user, started, committed, tuple(records.get(tick, ())), each.origin, None, proof)
        entries.append(entry)
    if attempt.judged.announcements:
        entries.append(JournalEntry(attempt.last, user(), committed, committed, attempt.judged.announcements))
    journal.add_entries(attempt.connection, attempt.shared.catalog, entries)


def _records(attempt: _Attempt) -> dict[int, list[JournalRecord]]:
    found: dict[int, list[JournalRecord]] = {}
    for table in attempt.tables:
        counts = attempt.connection.execute(
            f"SELECT _tick, _weight, count(*) FROM {table.table.images}"
            f" WHERE _tick BETWEEN {attempt.first} AND {attempt.last} GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        by_tick: dict[int, dict[int, int]] = {}
        for tick, weight, rows in counts:
            by_tick.setdefault(tick, {})[weight] = rows
        for tick, rows in by_tick.items():
            # Later ticks belong to the refresh, which lists its own records.
            is_taken, is_kept = tick <= attempt.last_taken, table.kept is not None
            found.setdefault(tick, []).extend(records_of(table.table, rows, is_kept=is_kept) if is_taken else ())
    return found


def records_of(table: CapturedTable, rows: Mapping[int, int], *, is_kept: bool = False) -> Iterator[JournalRecord]:
    """Yield the records of one transaction for one table, given its rows by weight."""
    if 1 in rows or -1 in rows:
        yield JournalledImages(table.name, table.id, rows.get(1, 0), rows.get(-1, 0))
    for weight in (journal.READ, journal.READ_EXCLUSIVELY):
        if weight in rows:
            yield JournalledReads(table.name, table.id, rows[weight], weight == journal.READ_EXCLUSIVELY)
    for weight in (journal.REFRESHED, journal.ABSENT):
        if weight in rows:
            yield JournalledRefresh(table.name, table.id, rows[weight], weight == journal.ABSENT, is_kept)


# Steps of one transaction, through the ordinary capture --------------------------------------------------------------


def _take_alone(its: Taking, step: SiteStep) -> int:
    """Take a transaction that changes the schema or clears a table by running it here."""
    (each,) = step.transactions
    shared = its.shared
    with shared.root.cursor() as raw:

        def note(entry: JournalEntry) -> None:
            taken = replace(entry, user=each.transaction.user, origin=each.origin, proof=step.proof, after=None)
            journal.add_entry(raw, shared.catalog, taken)
            state = remembered(shared, step)
            journal.write_state(raw, shared.catalog, changes(shared.state, state))

        rows = run_alone(raw, shared, step, its.fetch, TakenEntry(each.origin, note))
        shared.load()
    return rows


def run_alone(
    raw: duckdb.DuckDBPyConnection,
    shared: Shared,
    step: SiteStep,
    fetch: Callable[[TableFile], Path],
    taking: TakenEntry,
) -> int:
    """Run a transaction that changes the schema or clears a table, and journal it under its origin."""
    (each,) = step.transactions
    rows = 0
    session = CaptureSession(raw, shared)
    session.begin("BEGIN TRANSACTION", explicit=False)
    try:
        with session.captured() as transaction:
            transaction.started = min(each.transaction.started, transaction.started)
            transaction.taking = taking
            transaction.look()
            for record in each.transaction.records:
                match record:
                    case Ddl():
                        _run_schema_change(raw, session, shared.catalog, record, step.site)
                    case Clear():
                        _run(session, f"DELETE FROM {quote(shared.catalog)}.{record.table.sql}")
                    case Change():
                        only = replace(each.transaction, records=(record,))
                        part = replace(step, transactions=(replace(each, transaction=only),))
                        rows += _run_change(raw, session, shared, part, fetch)
        session.commit("COMMIT")
    except BaseException:
        if session.transaction is not None:
            session.rollback("ROLLBACK")
        raise
    return rows


def _run(session: CaptureSession, text: str) -> None:
    session.run(analyse(text, text.split()[0]), text, None)


def _run_schema_change(
    raw: duckdb.DuckDBPyConnection, session: CaptureSession, catalog: str, ddl: Ddl, site: str
) -> None:
    if ddl.kind.endswith(" TRIGGER"):
        # The site publishes its triggers' effects as rows; a trigger here would repeat them.
        return
    if ddl.dialect != "duckdb" or not settings.is_allowed(ddl.settings):
        raise UnsupportedError(f"site {site} has published a schema change that cannot be run here: {ddl.statement}")
    try:
        permitted_ddl.refuse_oversized(ddl.statement)
        permitted_ddl.refuse_hostile(raw, catalog, ddl.statement)
    except permitted_ddl.StatementError as error:
        raise ReplayError(f"site {site} has published a schema change that is refused: {error}") from error
    raw.execute(settings.search_path_sql(catalog, ddl.search_path))
    session.tables.forget_names()
    with settings.applied(raw, ddl.settings):
        kind = raw.extract_statements(ddl.statement)[0].type.name
        session.run(session.effect(ddl.statement, kind), ddl.statement, None)
    raw.execute(f"USE {quote(catalog)}.main")
    session.tables.forget_names()


def _run_change(
    raw: duckdb.DuckDBPyConnection,
    session: CaptureSession,
    shared: Shared,
    step: SiteStep,
    fetch: Callable[[TableFile], Path],
) -> int:
    present, _ = taken_tables.tables(raw, shared.catalog)
    found = lines.load(raw, step, present, fetch, circle=shared.require_state().circle)
    _refuse_keyless(shared, step, found)
    if shared.is_in_mesh:
        judging.judge_in_mesh(raw, shared, step, found, KeptWindow())
    taken_tables.refuse_triggers(raw, shared.catalog, (table.table.name for table in found))
    for table in found:
        effect = UnknownEffect(frozenset({table.table.name.name.lower()}))

        def call(table: LinesTable = table) -> None:
            lines.remove(raw, table)
            lines.add(raw, table)

        session.write(effect, call)
    rows = sum(table.count(raw) for table in found)
    lines.drop(raw, found)
    return rows
