"""What is done with a master: it begins, is published, copied, verified, repaired and stopped."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.config import STOPPED
from wlc.farm.digest import DIFFERS, compared
from wlc.farm.errors import FencedError, GapError, InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.store import MissingError
from wlc.masters import adapters
from wlc.masters.claim import claim
from wlc.masters.contract import StuckError
from wlc.masters.due_snapshots import try_take_due
from wlc.masters.fence import own, settle
from wlc.masters.lookup import opened_master
from wlc.masters.master_state import Wish
from wlc.masters.publish import publish
from wlc.masters.running import publish_and_settle
from wlc.masters.signs import note_flushed
from wlc.masters.status import status_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Manifest
    from wlc.masters.compensation import Compensated, WantedChange
    from wlc.masters.contract import Source
    from wlc.masters.publish import Flushed
    from wlc.masters.status import MasterStatus


def master(
    source: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    name: str | None = None,
    logs: str | os.PathLike[str] | None = None,
    beat_s: float | None = None,
    tables: Sequence[str] = (),
    moved: bool = False,
    create: bool = False,
    site: str | None = None,
    mesh: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> MasterStatus:
    """Make a database a master: its farm folder, `wlc.config`, and a snapshot unless it is empty.

    Args:
        source: Path of an existing DuckDB database, or URL of a PostgreSQL database.
        farm: URL of the farm; WLC_FARM or `dbfarm` beside the source if omitted.
        name: Name in the farm; the file's stem, or the database's name, if omitted.
        logs: URL of another place for the log files.
        beat_s: Longest wait of a committed transaction, seconds; 0 publishes each at once. If omitted, what an earlier
            history had, or 300.
        tables: Patterns of the tables to replicate, of PostgreSQL only; all if there are none.
        moved: The database takes the place of the master of which it is a copy, or which it was before it was moved. A
            DuckDB master goes on where it was, in the farm given if that was moved, too; a PostgreSQL master begins a
            new history. Without it, a copy becomes a master of its own.
        create: Make an empty DuckDB database at the path unless there is one.
        site: Name of the first of several sites, which the database becomes; a master that runs becomes it, too.
        mesh: Each site reads all others, instead of all reading only the primary; to be said before another one joins.
        storage_options: Options of the farm's file system; secrets among them are not remembered.
        progress: Called with tables of the first snapshot copied, tables in all, and what is being done.

    Raises:
        InvalidError: No such database, a bad name or beat, or it is a master already.
        UnsupportedError: The store ignores preconditions, or a column cannot be replicated.

    Examples:
        >>> wlc.master("stock.duckdb", create=True, beat_s=60).state
        'started'
    """
    if mesh and site is None:
        raise InvalidError(
            "a mesh consists of sites, and this one has no name", hint=f"wlc master {source} --site NAME --mesh"
        )
    with adapters.creating(source) if create else nullcontext(), adapters.opened(source, tables) as found:
        wish = Wish(
            farm=os.fspath(farm) if farm else None,
            name=name,
            logs=os.fspath(logs) if logs is not None else None,
            beat_s=beat_s,
            is_moved=moved,
            storage_options=storage_options or {},
            progress=progress,
        )
        if site is not None or (found.state is not None and found.state.site is not None):
            database = found.require_site().claim(wish, site, is_mesh=mesh)
        else:
            database = claim(found, wish)
        return status_of(database, found.details())


def flush(source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Flushed:
    """Publish what waits, now, and take a snapshot if the policy of the database wants one.

    Args:
        source: Path or URL of the master.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Raises:
        FencedError: The farm's database is another master's.
        UnavailableError: The farm cannot be reached.

    Examples:
        >>> wlc.flush("sales.duckdb").tick
        3
    """
    with opened_master(source, storage_options) as (found, database):
        flushed = publish_and_settle(found, database)
        note_flushed(found, database)
        found.warn_bypassed()
        try_take_due(found, database)
        return flushed


def snapshot(
    source: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Take a new snapshot at the current tick; what waits is published first.

    Args:
        source: Path or URL of the master.
        storage_options: As for `flush`.
        progress: Called with tables copied, tables in all, and what is being done.

    Raises:
        UnsupportedError: Something bypassed the capture, so that no tick describes the database.

    Examples:
        >>> wlc.snapshot("sales.duckdb").position.tick
        3
    """
    with opened_master(source, storage_options) as (found, database):
        return found.take_snapshot(database, is_first=False, progress=progress)


def stop(source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> MasterStatus:
    """Publish the rest and end the history; later writes are not captured.

    A copy that was fenced off, or whose farm is gone, is stopped without touching the farm: what it has not published
    stays in it alone.

    Raises:
        InvalidError: Other sites read its log.

    Examples:
        >>> wlc.stop("sales.duckdb").state
        'stopped'
    """
    with opened_master(source, storage_options) as (found, database), found.publishing(), found.without_commits():
        try:
            _end_history(found, database)
        except (FencedError, MissingError, GapError) as error:
            warnings.warn(f"{found} publishes no more, and the farm is left as it is: {error}", stacklevel=2)
        found.uninstall()
        state = replace(found.require_state(), state=STOPPED)
        found.remember(state)
        try:
            return status_of(database, found.details())
        except MissingError:
            return status_of(database, found.details(), replace(state.config(), state=STOPPED))


def _end_history(source: Source, database: FarmDatabase) -> None:
    state = source.require_state()
    config = database.config()
    if config.history == state.history and config.state == STOPPED and source.is_idle():
        # We died before the database could note it.
        return
    if config.history == state.history and source.elsewhere() is None and (site := source.present_site) is not None:
        site.refuse_end(database)
    try:
        source.refuse_gap()
    except GapError as error:
        problem = error.message
    else:
        problem = _publish_rest(source, database)
    if problem:
        warnings.warn(f"the history ends with tick {state.tick}: {problem}", stacklevel=3)
    database.change_config(lambda config: replace(own(config, state), state=STOPPED))


def _publish_rest(source: Source, database: FarmDatabase) -> str:
    """Publish what waits; return why it can never be published, "" if it is."""
    try:
        publish(source, database)
    except StuckError as error:
        return error.message
    settle(database, source.require_state())
    return ""


def check_repair(source: str | os.PathLike[str]) -> None:
    """Refuse a master that `repair` cannot help.

    Raises:
        InvalidError: It cannot; the hint says what helps instead.
    """
    adapters.module_of(source).check_repair(os.fspath(source))


def repair(
    source: str | os.PathLike[str],
    *,
    published: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None = None,
) -> Flushed:
    """Publish what bypassed the capture: the difference between the database and its published state.

    Args:
        source: Path of the master's database.
        published: A replica of the farm database at its last tick, made by `wlr.replicate`; None if the log cannot be
            applied. Then tables that differ from the log are published with all their rows, and a snapshot is taken:
            replicas that are behind it must be made anew.
        storage_options: As for `flush`.

    Raises:
        InvalidError: The replica is at another tick: flush, replicate, and try again. Or see `check_repair`.

    Examples:
        >>> wlc.repair("sales.duckdb", published="copy.duckdb").rows
        1
    """
    check_repair(source)
    with opened_master(source, storage_options) as (found, database), found.publishing():
        publish(found, database)
        found.journal_difference(None if published is None else Path(published))
        flushed = publish(found, database)
        if published is None:
            found.take_snapshot(database, is_first=False)
        return flushed


def compensate(
    source: str | os.PathLike[str],
    changes: Sequence[WantedChange],
    *,
    force: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Compensated:
    """Make net changes as one new transaction of a master, and publish it.

    Rows that are already as they are wanted are left alone. DuckDB takes several transactions to remove a row and those
    that refer to it.

    Args:
        source: Path of the master.
        changes: What is wanted, a table each.
        force: Replace rows that are not as expected, too.
        dry_run: Write nothing.
        storage_options: As for `flush`.

    Raises:
        ChangedSinceError: Rows are not as expected. Nothing was written.
        UnsupportedError: The kind of source cannot do this, or a table was altered.
        InvalidError: The wanted rows break a constraint.
        UnavailableError: Of several transactions some are committed. Do the same again.
    """
    with opened_master(source, storage_options) as (found, database):
        done = found.compensate(changes, force=force, dry_run=dry_run)
        if done.tick is not None:
            with found.publishing():
                publish(found, database)
        return done


@dataclass(frozen=True, slots=True)
class SourceCheck(ForPeople):
    """What comparing a table of a master with what was captured gave.

    Attributes:
        outcome: "same"; "differs": rows were written without the capture; "unknown": it is not known what the table
            must hold.
        rows: How many rows the table has, None if it does not exist.
        expected: How many rows it must have, None where that is not known.
        hint: Commands that help where the outcome is "differs", None otherwise.
    """

    table: str
    outcome: str
    rows: int | None
    expected: int | None
    hint: str | None = None


def verify_source(
    source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> list[SourceCheck]:
    """Read every row of a master, and compare what its tables hold with what was captured.

    It finds what was written without the capture even where as many rows were removed as were added. A PostgreSQL
    master is published first, up to the moment of the comparison.

    Args:
        source: Path or URL of the master.
        storage_options: As for `flush`.

    Returns:
        Every table, by name.

    Examples:
        >>> [(check.table, check.outcome) for check in wlc.verify_source("sales.duckdb")]
        [('main.orders', 'same')]
    """
    with opened_master(source, storage_options) as (found, database):
        held, expected = found.verify(database)
        hint = _repair_hint(source, str(found))
    checks = []
    for name in sorted(held.keys() | expected.keys()):
        is_, must_be = held.get(name), expected.get(name)
        outcome = compared(is_, must_be)
        rows, expected_rows = is_.rows if is_ else None, must_be.rows if must_be else None
        checks.append(SourceCheck(str(name), outcome, rows, expected_rows, hint if outcome == DIFFERS else None))
    return checks


def _repair_hint(source: str | os.PathLike[str], shown: str) -> str:
    try:
        check_repair(source)
    except InvalidError as error:
        return error.hint or ""
    return f"wlc farm repair {shown}"
