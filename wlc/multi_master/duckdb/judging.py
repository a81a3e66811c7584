"""Judging a step of another site at the primary, before it is applied."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.farm.clock import utc_now
from wlc.farm.model import Change
from wlc.farm.vectors import expanded
from wlc.masters.contract import database_of
from wlc.multi_master.circle import EPOCH, EPOCH_TRANS, NONE, OWNER, PASS, how_to_join_anew
from wlc.multi_master.circle_place import founder_of, without_site_that_lies
from wlc.multi_master.duckdb import added_rows, conflict_window, mesh_verdicts, rejected_rows, rejection, verdicts
from wlc.multi_master.duckdb.conflict_window import WantedWindow
from wlc.multi_master.duckdb.rejected_rows import Detection
from wlc.multi_master.duckdb.verdicts import Seen
from wlc.multi_master.membership import author_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.journal import JournalledRefresh, JournalRecord
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Name, Origin, RowRejected
    from wlc.farm.vectors import Lineage, Vector
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.duckdb.conflict_window import KeptWindow
    from wlc.multi_master.duckdb.verdicts import StepTable
    from wlc.multi_master.site_step import SiteStep


# The transaction of a refresh is journalled under this tick until the step has ticks.
REFRESH_TICK = -2
# Causes of a rejection.
CONSTRAINT, NOT_THE_OWNER = "constraint", "owner"


@dataclass(frozen=True, slots=True)
class Judged:
    """The consequences of a verdict.

    Attributes:
        lines: Numbers of wholly rejected transactions.
        refresh: Records of an own transaction after the step, with images journalled under `REFRESH_TICK`.
        rejected: Records of the same transaction, for the authors of rejected rows.
        has_conflicts: Whether anything was rejected, or refreshed.
    """

    lines: frozenset[int] = frozenset()
    refresh: tuple[JournalledRefresh, ...] = ()
    rejected: tuple[RowRejected, ...] = ()
    has_conflicts: bool = False

    @property
    def announcements(self) -> tuple[JournalRecord, ...]:
        """The records of that transaction; without any, there is none."""
        return (*self.refresh, *self.rejected)


def judge(
    connection: duckdb.DuckDBPyConnection,
    where: Detection,
    seen: Sequence[Seen],
    tables: Sequence[StepTable],
    rules: Mapping[Name, str],
    refused: Mapping[int, str] | None = None,
    *,
    foreign: Collection[str] | None = None,
) -> Judged:
    """Delete rejected rows from a step, report and count them, and journal the refresh.

    Args:
        connection: In the transaction of the step, with a window of the primary's log.
        where: The judging site and the author's site.
        seen: The step's transactions.
        tables: Its tables.
        rules: Rules by table.
        refused: Transactions that are rejected in any case, with the cause.
        foreign: See `verdicts.judge`.
    """
    found = verdicts.judge(connection, seen, tables, rules, refused, foreign=foreign)
    if found.is_empty:
        return Judged()
    refresh: list[JournalledRefresh] = []
    rejected: list[RowRejected] = []
    origins = [(each.line, each.origin) for each in seen]
    for place, step, reported in _reported(connection, where, origins, tables, has_missed=found.has_missed):
        refresh += rejection.journal_refresh(connection, place, step, REFRESH_TICK)
        rejected += reported
    rejection.remove(connection, tables)
    rows = sum(record.rows for record in refresh)
    counts = {**found.counts, ("", "refreshed"): rows} if rows else found.counts
    rejected_rows.count(connection, where.catalog, where.source, counts)
    # A site that judges itself has them already.
    others = tuple(rejected) if where.source != where.site else ()
    return Judged(found.lines, tuple(refresh), others, has_conflicts=True)


def _reported(
    connection: duckdb.DuckDBPyConnection,
    where: Detection,
    origins: Sequence[tuple[int, Origin]],
    tables: Sequence[StepTable],
    *,
    has_missed: bool = False,
) -> Iterator[tuple[int, StepTable, list[RowRejected]]]:
    """Write the exceptions; yield each table with rows to report, with its place, while these are collected."""
    rejected_rows.prepare(connection, where.catalog)
    for place, step in enumerate(tables):
        if not step.table.layout.primary_key:
            continue
        is_rejected = rejection.collect(connection, place, step)
        rejected = rejected_rows.write(connection, where, origins, place, step) if is_rejected else []
        if (has_missed and rejection.add_missed(connection, place, step)) or is_rejected:
            yield place, step, rejected


def judge_in_mesh(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    step: SiteStep,
    tables: Sequence[StepTable],
    kept: KeptWindow,
) -> None:
    """Delete rows from a step that this site of a mesh rejects by its tables' rules; report and count them.

    Args:
        connection: In the transaction of the step.
        shared: The database.
        step: The step.
        tables: Its tables.
        kept: The window of the round on this connection.

    Raises:
        ExpiredError: The log does not reach back to an author's vector.
    """
    state = shared.require_state()
    site, circle = state.member, state.member.known_circle
    founder = founder_of(database_of(state), site).url
    added_rows.refuse_removals(
        connection, circle, step.transactions, tables, without_site_that_lies(founder, step.site)
    )
    if not any(table.table.layout.primary_key for table in tables):
        return
    rules = {table.table.name: rule for table in tables if (rule := circle.rule_of(table.table.name)) is not None}
    if any(mesh_verdicts.needs_window(table, rules) for table in tables):
        known = expanded(step.transactions[0].past, circle.lineage())
        anew = how_to_join_anew(founder, site.name)
        kept.cover(connection, shared.catalog, WantedWindow(state, known, circle.lineage(), anew))
    found = mesh_verdicts.judge(connection, step.transactions, tables, rules)
    added = {place: add for place, table in enumerate(tables) if (add := circle.added_columns(table.table.name))}
    if not found.is_empty:
        _report(connection, shared, step, tables, found)
        rejection.remove(connection, tables, kept=added)
    for place, columns in added.items():
        mesh_verdicts.merge(connection, place, tables[place], columns)


def _report(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    step: SiteStep,
    tables: Sequence[StepTable],
    found: verdicts.Verdicts,
) -> None:
    """Report and count the rows that a site of a mesh rejects."""
    site = shared.require_state().member
    circle = site.known_circle
    origins = [(each.line, each.origin) for each in step.transactions]
    authors = {each.history: author_of(circle, each.history) or step.site for _, each in origins}
    where = Detection(shared.catalog, site.name, step.site, utc_now(), authors)
    list(_reported(connection, where, origins, tables))
    rejected_rows.count(connection, shared.catalog, step.site, found.counts)


def move_refresh(connection: duckdb.DuckDBPyConnection, catalog: str, judged: Judged, tick: int) -> None:
    """Give the images of a refresh the tick of its transaction."""
    for record in judged.refresh:
        images = journal.images_sql(catalog, record.layout)
        connection.execute(f"UPDATE {images} SET _tick = {tick} WHERE _tick = {REFRESH_TICK}")


# Steps to take -------------------------------------------------------------------------------------------------------


def judge_step(
    connection: duckdb.DuckDBPyConnection,
    shared: Shared,
    step: SiteStep,
    tables: Sequence[StepTable],
    kept: KeptWindow,
    *,
    is_refused: bool = False,
) -> Judged:
    """Judge a step in a mesh, or at the primary if a table of the step has a rule; see `judge`.

    A site that wrote another site's table did so before it knew the rule, or against it.

    Args:
        connection: In the transaction of the step.
        shared: The database.
        step: The step.
        tables: Its tables.
        kept: The window of the round.
        is_refused: Its transactions violate a constraint here, and are rejected in any case.

    Raises:
        ExpiredError: The log does not reach back to the site's vector.
    """
    state = shared.require_state()
    site = state.site
    if shared.is_in_mesh:
        judge_in_mesh(connection, shared, step, tables, kept)
        return Judged()
    if site is None or site.circle is None or not site.is_leading or step.is_primary:
        return Judged()
    if site.circle.site(step.site).role in (NONE, PASS):
        return Judged()

    circle = site.circle

    def may_miss(known: Vector) -> bool:
        needed = {each.history: each.last for each in circle.former_terms if each.is_effective}
        needed[state.history] = rejected_rows.last_conflict(connection, shared.catalog)
        contained = expanded(site.contained, circle.lineage())
        # The site's own past, which it gets back from this log.
        needed |= {each.history: contained.get(each.history, 0) for each in circle.site(step.site).histories[:-1]}
        return any(known.get(history, 0) < tick for history, tick in needed.items())

    def cover(known: Vector, lineage: Lineage) -> None:
        anew = how_to_join_anew(founder_of(database_of(state), site).url, step.site)
        kept.cover(connection, shared.catalog, WantedWindow(state, known, lineage, anew))

    where = Detection(shared.catalog, site.name, step.site, utc_now())
    misfits = {each.line for each in step.transactions} if is_refused else ()
    return judge_by_rules(connection, where, step, tables, circle, cover, may_miss, misfits)


def judge_by_rules(
    connection: duckdb.DuckDBPyConnection,
    where: Detection,
    step: SiteStep,
    tables: Sequence[StepTable],
    circle: Circle,
    cover: Callable[[Vector, Lineage], None],
    may_miss: Callable[[Vector], bool],
    misfits: Collection[int] = (),
) -> Judged:
    """Judge a step by the rules of its tables; see `judge`.

    Args:
        connection: In the transaction of the step.
        where: The judging site and the author's site.
        step: The step.
        tables: Its tables.
        circle: The circle with the rules.
        cover: Makes the window that the step needs, given the vector that all its authors contained.
        may_miss: Says, given the same vector, whether tables without a rule have changes that the authors have not
            seen.
        misfits: Transactions that violate a constraint.
    """
    found = {step.table.name: circle.rule_of(step.table.name) for step in tables}
    rules = {name: rule.rule for name, rule in found.items() if rule and rule.rule in (EPOCH, EPOCH_TRANS)}
    owned = [name for name, rule in found.items() if rule and rule.rule == OWNER and rule.site != step.site]
    refused = dict.fromkeys(_lines_of(connection, tables, owned), NOT_THE_OWNER)
    lineage = circle.lineage()
    # A site's vector never falls.
    is_behind = may_miss(expanded(step.transactions[0].past, lineage))
    # Even without a rule, it may violate the constraint only because of earlier rejections.
    if is_behind or any(found.values()):
        refused = dict.fromkeys(misfits, CONSTRAINT) | refused
    if not rules and not refused and not is_behind:
        return Judged()
    seen = [
        Seen(
            each.line,
            each.origin,
            expanded(each.past, lineage),
            None if each.reads_past is None else expanded(each.reads_past, lineage),
        )
        for each in step.transactions
    ]
    conflict_window.create_if_missing(connection)
    if rules or is_behind:
        cover(verdicts.contained_by_all(seen), lineage)
    # Former terms belong to ended histories.
    foreign = circle.former_histories(but=where.source) - {former_term.history for former_term in circle.former_terms}
    return judge(connection, where, seen, tables, rules, refused, foreign=foreign if is_behind else None)


def _lines_of(connection: duckdb.DuckDBPyConnection, tables: Sequence[StepTable], names: Sequence[Name]) -> list[int]:
    """Return the transactions of a step that change one of those tables."""
    return [
        line
        for table in tables
        if table.table.name in names
        for (line,) in connection.execute(f"SELECT DISTINCT _line FROM {table.lines}").fetchall()
    ]


def how_to_fit(shared: Shared, step: SiteStep, said: str) -> str:
    """Return the hint for a step that violates a constraint, given DuckDB's error, and must not be rejected."""
    if "still referenced" in said:
        return "copy the rows here that refer to that key, delete them, take, and write them again"
    if "does not exist in the referenced table" in said:
        return (
            f"write the row here that it refers to, or let site {step.site} delete the one that refers; then take again"
        )
    again, state = "change the conflicting row, then take again", shared.require_state()
    if state.site is None or state.circle is None or step.is_primary or state.circle.is_mesh:
        return again
    records = (record for each in step.transactions for record in each.transaction.records)
    files = (step.files[record.path] for record in records if isinstance(record, Change))
    keyed = (each.table for each in files if each.layout.primary_key)
    founder = founder_of(database_of(state), state.site).url
    command = shlex.join(["wlc", "site", "rule", founder, str(min(keyed, default="TABLE")), "epoch"])
    return f"{again}; or let the primary reject such transactions: {command}"
