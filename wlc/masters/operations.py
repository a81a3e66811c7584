"""Operations on a master: begin, publish, take a snapshot, verify, repair and stop."""

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
from wlc.masters.contract import StuckError, database_of
from wlc.masters.due_snapshots import try_take_due
from wlc.masters.fence import own, repair_config
from wlc.masters.lookup import opened_master
from wlc.masters.master_state import Wish
from wlc.masters.promotion import divert
from wlc.masters.publish import publish
from wlc.masters.running import publish_and_repair
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
        beat_s: Longest wait of a committed transaction, seconds; 0 publishes each at once. If omitted, that of an
            earlier history, or 300.
        tables: Patterns of the tables to replicate, only for PostgreSQL; all if omitted.
        moved: The database takes the place of the master of which it is a copy, or that it was before it was moved. A
            DuckDB master continues, in the given farm if the farm was moved, too; a PostgreSQL master begins a new
            history. Without `moved`, a copy becomes a separate master.
        create: Create an empty DuckDB database at the path unless it exists.
        site: Name of the database as the first of several sites; a running master can become one, too.
        mesh: Each site reads all others, instead of all reading only the primary; must be set before another site
            joins.
        storage_options: Options of the farm's file system; secrets among them are not remembered.
        progress: Called with tables of the first snapshot copied, tables in all, and what is being done.

    Raises:
        InvalidError: There is no such database, the name or beat is invalid, or it is a master already.
        UnsupportedError: The store ignores preconditions, or a column cannot be replicated.

    Examples:
        >>> wlc.master("stock.duckdb", create=True, beat_s=60).state
        'active'
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


def flush(
    source: str | os.PathLike[str], *, repair: bool = False, storage_options: Mapping[str, Any] | None = None
) -> Flushed:
    """Publish pending transactions now, and take a snapshot if the database's policy requires one.

    Args:
        source: Path or URL of the master.
        repair: First publish what another program wrote to a DuckDB file without capture.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Raises:
        FencedError: The farm's database is another master's.
        UnavailableError: The farm cannot be reached.

    Examples:
        >>> wlc.flush("sales.duckdb").tick
        3
    """
    with opened_master(source, storage_options) as (found, database):
        if repair:
            found.publish_bypassed(database)
        flushed = publish_and_repair(found, database)
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
    """Take a new snapshot at the current tick; pending transactions are published first.

    Args:
        source: Path or URL of the master.
        storage_options: As for `flush`.
        progress: Called with tables copied, tables in total, and the current activity.

    Raises:
        UnsupportedError: Changes bypassed the capture, so no tick describes the database.

    Examples:
        >>> wlc.snapshot("sales.duckdb").position.tick
        3
    """
    with opened_master(source, storage_options) as (found, database):
        return found.take_snapshot(database, is_first=False, progress=progress)


def stop(
    source: str | os.PathLike[str],
    *,
    rest_to: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MasterStatus:
    """Publish pending transactions and end the history; later writes are not captured.

    A copy that was fenced off, or whose farm is gone, is stopped without touching the farm: its unpublished
    transactions stay only in the copy, unless `rest_to` is given.

    Args:
        source: Path or URL of the master.
        rest_to: URL of a farm for what a master that was fenced off has not published: the log from its last batch on,
            and a snapshot. `wlr.replicate` reads it.
        storage_options: As for `flush`; with `rest_to`, options of that farm's file system, too.

    Raises:
        InvalidError: Other sites read its log; or `rest_to` is given, and the master is not fenced off.

    Examples:
        >>> wlc.stop("sales.duckdb").state
        'stopped'
    """
    if rest_to is not None:
        with opened_master(source, storage_options) as (found, database):
            divert(found, database, rest_to, storage_options)
            found.take_snapshot(database_of(found.require_state(), storage_options), is_first=False)
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
        # A crash interrupted the stop before the database stored it.
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
    """Publish pending transactions; return why they can never be published, "" on success."""
    try:
        publish(source, database)
    except StuckError as error:
        return error.message
    repair_config(database, source.require_state())
    return ""


def check_repair(source: str | os.PathLike[str]) -> None:
    """Refuse a master that `repair` cannot repair.

    Raises:
        InvalidError: It cannot; the hint names the remedy.
    """
    adapters.module_of(source).check_repair(os.fspath(source))


def repair(
    source: str | os.PathLike[str],
    *,
    published: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None = None,
) -> Flushed:
    """Publish uncaptured changes: the difference between the database and its published state.

    Args:
        source: Path of the master's database.
        published: A replica of the farm database at its last tick, made by `wlr.replicate`; None if the log cannot be
            applied. Then tables that differ from the log are published with all their rows, and a snapshot is taken:
            replicas behind it must be rebuilt.
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

    Rows that already have the wanted values are skipped. DuckDB needs several transactions to remove a row and the rows
    that refer to it.

    Args:
        source: Path of the master.
        changes: The wanted changes, one per table.
        force: Also replace rows that differ from the expected ones.
        dry_run: Write nothing.
        storage_options: As for `flush`.

    Raises:
        ChangedSinceError: Rows differ from the expected ones. Nothing was written.
        UnsupportedError: The kind of source cannot do this, or a table was altered.
        InvalidError: The wanted rows violate a constraint.
        UnavailableError: Only some of several transactions are committed. Repeat the call.
    """
    with opened_master(source, storage_options) as (found, database):
        done = found.compensate(changes, force=force, dry_run=dry_run)
        if done.tick is not None:
            with found.publishing():
                publish(found, database)
        return done


@dataclass(frozen=True, slots=True)
class SourceCheck(ForPeople):
    """Result of comparing a master's table with the captured state.

    Attributes:
        outcome: "same"; "differs": rows were written without the capture; "unknown": the captured state is unknown.
        rows: Number of rows in the table, None if it does not exist.
        expected: Expected number of rows, None if unknown.
        hint: Commands for the outcome "differs", None otherwise.
    """

    table: str
    outcome: str
    rows: int | None
    expected: int | None
    hint: str | None = None


def verify_source(
    source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> list[SourceCheck]:
    """Read every row of a master, and compare its tables with the captured state.

    It finds uncaptured writes even if equal numbers of rows were removed and added. A PostgreSQL master is published
    first, up to the moment of the comparison.

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
