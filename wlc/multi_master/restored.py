"""A site that was restored from a backup reconciles with its own log and with the other sites.

Before a process first publishes, it compares the database's state with the newest batch of its own log, and with the
ticks of it in other logs:

    nothing is missing                      it goes on
    its log goes on, and it has committed   it takes its own past back, and commits wait meanwhile
    nothing else since
    it has committed something else         a new history begins, which grew from the last common tick; what was
                                            published before comes back from the primary like other transactions
    others contain ticks that its log       the same: its folder was lost or rolled back, too
    does not have
    its log lacks what it has published     a new history begins where it stands if others contain all of that
    its log ends with a handover            the same: another site is the primary now, and judges what is left
    it is the primary itself                the same: its log ends with a handover to itself, and it judges with its
                                            next take what it has committed since, as it judges another site
    its log is of another past, or the      FencedError
    site has begun a later history, or what
    it has to take back was pruned

No tick is used twice: a new history begins after every tick that any site has seen.
"""

from __future__ import annotations

import logging
import shlex
import uuid
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.config import STARTED
from wlc.farm.errors import CorruptError, FencedError, GapError, InvalidError
from wlc.farm.model import Origin, SequencePosition
from wlc.farm.newest_batches import read_newest
from wlc.farm.paths import parse_snapshot_folder
from wlc.farm.store import MissingError
from wlc.farm.vectors import expanded
from wlc.masters.contract import DivergedError
from wlc.masters.fence import outdated
from wlc.multi_master.circle import SiteHistory, change_circle, find_circle, how_to_join_anew
from wlc.multi_master.circle_place import founder_of, is_member, site_database
from wlc.multi_master.handover import note_handover, succeed_oneself
from wlc.multi_master.membership import with_site

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Config, Name
    from wlc.masters.contract import Source
    from wlc.masters.master_state import MasterState
    from wlc.multi_master.circle import Circle


_log = logging.getLogger("wlc")


def reconcile_log(source: Source, database: FarmDatabase) -> None:
    """Reconcile a site with its own log; called before a process first publishes.

    A crash in between is harmless: the next call continues.

    Args:
        source: A master; the caller is `publishing`.
        database: Its place in the farm.

    Raises:
        FencedError: The log is of another past, or the file is from before the site's present history; or the primary
            has committed transactions since its restore that no site can judge.
        UnavailableError: The farm cannot be reached. Try again.
    """
    state = source.require_state()
    if source.require_site().has_settled_past or not state.is_master or source.elsewhere() is not None:
        return
    circle = find_circle(founder_of(database, state.member))
    if circle is None and state.circle is not None:
        # The farm is missing, or has lost the database.
        return
    if circle is None or not circle.is_shared or not is_member(state.member, circle):
        source.require_site().has_settled_past = True
        return
    _refuse_earlier(source, database, circle)
    _finish_history(source, database, circle)
    # In this order: a handover in between is in the own log before any other site contains it.
    known = _known_elsewhere(source, database, circle)
    lacking = _lacking(source, database, circle)
    try:
        rows = _take_back(source, database, circle)
    except DivergedError as error:
        rows = 0
        _diverge(source, database, circle, error)
    else:
        shown = "" if lacking is None else f"{database.url} was lost or rolled back"
        if known > source.require_state().tick:
            shown = f"{source} was restored from a backup, and other sites have taken ticks that its log lacks"
        if shown:
            warnings.warn(
                f"{shown}; a new history begins, and other sites return the missing transactions", stacklevel=2
            )
            _begin_history(source, database, circle, lacking)
    if rows:
        warnings.warn(
            f"{source} was restored from a backup and has taken {rows} transactions back from its own log", stacklevel=2
        )
    _go_on(source, database, circle)


def _go_on(source: Source, database: FarmDatabase, circle: Circle) -> None:
    """Record that a site agrees with its log, and take the first snapshot of its present history."""
    if source.require_state().fence is not None:
        source.remember(replace(source.require_state(), fence=None))
    source.require_site().has_settled_past = True
    if not _has_start(source, database, circle):
        source.take_snapshot(database, is_first=True)


def _lacking(source: Source, database: FarmDatabase, circle: Circle) -> int | None:
    """Return the last tick that other sites contain of a site whose folder lacks published ticks, None if it has all.

    A rolled-back folder may hold another batch under a lost number: one that ends the history.

    Raises:
        FencedError: Another site cannot get what the folder lacks.
    """
    state = source.require_state()
    newest = read_newest(database)
    # The newest batch is never pruned.
    number, chain = (newest[0].number, newest[1]) if newest else (0, "")
    if number > state.batch or (number, chain) == (state.batch, state.chain):
        return None
    is_primary = state.member.name == circle.primary
    elsewhere = _ticks_elsewhere(source, database, circle)
    # Sites of a mesh pass on taken transactions. Secondaries of a star get all of them from the primary alone.
    is_only_way = is_primary and not circle.is_mesh
    needed, known = (state.tick, min(elsewhere)) if is_only_way else (state.member.own, max(elsewhere, default=0))
    if known >= needed:
        return min(state.tick, known)
    file, founder = shlex.quote(str(source)), founder_of(database, state.member)
    again = how_to_join_anew(founder.url, state.member.name, file)
    hint = f"{again}, after which only the former file has the lost transactions"
    if is_primary:
        hint = (
            f"copy {file} aside, restore a backup that is no newer than the folder, and run wlc flush {file}; then "
            "write the rows that only the copy holds again"
        )
    raise FencedError(
        f"{database.url} was lost or rolled back: it lacks ticks up to {needed} that {source} has published,"
        f" and another site contains only those up to {known}",
        hint=f"put the folder back; or {hint}",
        path=database.url,
    )


def _has_start(source: Source, database: FarmDatabase, circle: Circle) -> bool:
    """Say whether the farm has a snapshot of the present history; a crash may have prevented it.

    Replicas of an earlier history need it to continue.
    """
    state = source.require_state()
    if len(circle.site(state.member.name).histories) < 2:
        return True
    newest = parse_snapshot_folder(database.config().snapshot)
    return newest is not None and database.read_manifest(newest).position.history == state.history


def _diverge(source: Source, database: FarmDatabase, circle: Circle, error: DivergedError) -> None:
    """Begin a history with the commits since the restore, which differ from the log."""
    site = source.require_state().member
    comes = "comes back"
    if circle.primary == site.name:
        _refuse_unjudgeable(source, error)
        if not circle.is_mesh:
            circle = succeed_oneself(founder_of(database, site), site.name)
            comes += f" with wlc site take {shlex.quote(str(source))}, which judges its later commits"
    warnings.warn(f"{error.message}; a new history begins, and what it had published {comes}", stacklevel=3)
    source.require_site().pass_sequences(_given_out(source, database))
    _begin_history(source, database, circle)


def _refuse_earlier(source: Source, database: FarmDatabase, circle: Circle) -> None:
    """Refuse a file from before the present history of its site: it does not know which commits it made since.

    Raises:
        FencedError: It is one.
    """
    state = source.require_state()
    name = state.member.name
    if state.history in [each.history for each in circle.site(name).histories[:-1]]:
        raise _left_behind(source, database, circle, f"is older than the present history of site {name}")


def _left_behind(source: Source, database: FarmDatabase, circle: Circle, why: str) -> FencedError:
    """Build the error for a backup that cannot continue as its site."""
    site = source.require_state().member
    founder = founder_of(database, site)
    hint = how_to_join_anew(founder.url, site.name, shlex.quote(str(source)))
    if site.name == circle.primary:
        other = next(each.name for each in circle.sites if each.name != site.name)
        succeeded = f"wlc site role {shlex.quote(founder.url)} {other} primary --lost {site.name}"
        hint = f"let another site be the primary: {succeeded}; wlc site take there; then {hint}"
    return FencedError(f"{source} was restored from a backup that {why}", hint=hint, path=str(source))


def _refuse_unjudgeable(source: Source, error: DivergedError) -> None:
    """Refuse a restored primary with commits that only a primary may make.

    Raises:
        FencedError: It has such commits.
    """
    if (what := source.require_site().what_only_a_primary_writes()) is not None:
        raise FencedError(
            f"{error.message}, and cannot judge them as another site's: it {what}",
            hint="all other sites depend on its log: copy the file aside, restore the backup again and run wlc flush,"
            " which takes the log back; then write the rows that only the copy holds again",
            path=error.path,
        ) from error


def _take_back(source: Source, database: FarmDatabase, circle: Circle) -> int:
    """Take the part of the own log that the database lacks; commits wait until all of it is taken."""
    rows = 0
    with source.without_commits():
        while (found := _next_own(source, database, circle)) is not None:
            batch, chain = found
            if batch.handover is not None:
                step_down(source, database, batch, chain)
                break
            rows += source.require_site().take_back(batch, chain, database.fetch)
    return rows


def _next_own(source: Source, database: FarmDatabase, circle: Circle) -> tuple[Batch, str] | None:
    """Return the batch of the own log after the last one in the database's state, and its hash.

    Raises:
        FencedError: It was pruned, or is of another past.
    """
    state = source.require_state()
    try:
        batch, chain = database.read_batch(state.batch + 1, is_own=True)
    except GapError as error:
        why = f"ends at batch {state.batch} of {database.url}: batch {state.batch + 1}, which it lacks, was pruned"
        raise _left_behind(source, database, circle, why) from error
    except MissingError:
        return None
    if batch.history != state.history or batch.previous != state.chain:
        raise outdated(database, state, batch.number)
    return batch, chain


def _given_out(source: Source, database: FarmDatabase) -> dict[Name, int]:
    """Return the last values of sequences in the part of the own log that is not taken back."""
    given: dict[Name, int] = {}
    for number in database.batch_numbers(after=source.require_state().batch):
        try:
            batch, _ = database.read_batch(number, is_own=True)
        except CorruptError as error:
            _log.warning("sequences of %s were not advanced past those in its log: %s", source, error)
            break
        records = (record for each in batch.transactions for record in each.records)
        given.update({each.sequence: each.value for each in records if isinstance(each, SequencePosition)})
    return given


def settle_copy(copy: Source, database: FarmDatabase, circle: Circle) -> None:
    """Reconcile a copy of a site with its own log as `reconcile_log` does, without a change of the farm.

    Raises:
        FencedError: As there.
        InvalidError: The site has to begin a new history.
    """
    _refuse_earlier(copy, database, circle)
    known = _known_elsewhere(copy, database, circle)
    while (found := _next_own(copy, database, circle)) is not None:
        batch, chain = found
        if batch.handover is not None:
            raise _begins(copy, "another site has become the primary")
        try:
            copy.require_site().take_back(batch, chain, database.fetch)
        except DivergedError as error:
            raise _begins(copy, "it has committed transactions since it was restored from a backup") from error
    if known > copy.require_state().tick:
        raise _begins(copy, "other sites have taken ticks that its log lacks")


def _begins(source: Source, why: str) -> InvalidError:
    file = shlex.quote(str(source))
    return InvalidError(
        f"{source} begins a new history when it publishes next, since {why}: a dry run cannot show the result",
        hint=f"wlc flush {file} begins it; then wlc site take {file} --dry-run",
        path=str(source),
    )


def step_down(source: Source, database: FarmDatabase, batch: Batch, chain: str) -> None:
    """Continue as a secondary after a handover: begin a new history with the pending transactions.

    The successor judges them.

    Unpublished transactions that were taken and judged here are undone: the successor takes and judges them again.

    Args:
        source: The former primary, which has published everything before the handover; the caller is `publishing`.
        database: Its place in the farm.
        batch: The handover.
        chain: Its hash.
    """
    state = source.require_state()
    circle = note_handover(founder_of(database, state.member), database, batch)
    source.require_site().has_settled_past = False
    source.require_site().step_down(
        replace(
            state,
            history=uuid.uuid4().hex[:16],
            batch=batch.number,
            chain=chain,
            tick=batch.last + 1,
            parent=Origin(state.history, batch.last),
            clock=max(time for time in (utc_now(), batch.clock, state.clock) if time),
            vector=dict(batch.vector),
            fence=None,
            site=replace(state.member, circle=circle, contained={**state.member.contained, state.history: batch.last}),
        )
    )
    _finish_history(source, database, circle)


def _known_elsewhere(source: Source, database: FarmDatabase, circle: Circle) -> int:
    """Return the last tick of the own history that another site's log contains."""
    return max(_ticks_elsewhere(source, database, circle), default=0)


def _ticks_elsewhere(source: Source, database: FarmDatabase, circle: Circle) -> list[int]:
    """Return the last ticks of the own history in the logs of the sites that this one reads or serves."""
    state = source.require_state()
    founder = founder_of(database, state.member)
    known = []
    for other in circle.sites:
        meets = circle.is_mesh or circle.primary in (other.name, state.member.name)
        if other.name != state.member.name and meets:
            try:
                newest = read_newest(site_database(founder, other.folder))
                known.append(expanded(newest[0].vector, circle.lineage()).get(state.history, 0) if newest else 0)
            except CorruptError as error:
                # Taking from that site reports the error; it must not prevent this site from publishing.
                _log.warning("%s was not compared with site %s: %s", source, other.name, error)
                known.append(0)
    return known


def _begin_history(source: Source, database: FarmDatabase, circle: Circle, reached: int | None = None) -> None:
    """Begin a history that grew from the database's last tick, after all ticks that any site has seen.

    Args:
        source: A site.
        database: Its place in the farm.
        circle: The farm's present circle.
        reached: The last tick that other sites must contain, if not all; later ticks were taken from other sites.
    """
    state = source.require_state()
    reached = state.tick if reached is None else reached
    begun = replace(
        state,
        history=uuid.uuid4().hex[:16],
        parent=Origin(state.history, reached),
        tick=max(state.tick, _known_elsewhere(source, database, circle)),
        vector={**state.vector, state.history: reached},
        site=replace(state.member, contained={**state.member.contained, state.history: reached}),
    )
    circle = _start_behind(source, database, circle, begun, read_newest(database))
    _finish_history(source, database, circle)


def _start_behind(
    source: Source, database: FarmDatabase, circle: Circle, state: MasterState, newest: tuple[Batch, str] | None
) -> Circle:
    """Begin a history in the database, after the newest batch of its log; return the circle.

    Args:
        source: A site.
        database: Its place in the farm.
        circle: The circle that was read.
        state: The new state; its tick is the last one of the former history that any site has seen.
        newest: The batch, and its chain hash; None if the log is empty.
    """
    assert state.parent is not None
    batch, chain = newest or (None, "")
    if batch is not None and batch.handover is not None:
        circle = note_handover(founder_of(database, state.member), database, batch)
    # Undo unpublished judgements of a former primary.
    start = source.require_site().step_down if circle.has_ended(state.parent.history) else source.require_site().renew
    times = (utc_now(), batch.clock if batch else None, state.clock)
    start(
        replace(
            state,
            batch=batch.number if batch else 0,
            chain=chain,
            tick=max(state.tick, batch.last if batch else 0) + 1,
            clock=max(time for time in times if time),
            fence=None,
        )
    )
    return circle


def _came_first(database: FarmDatabase, state: MasterState) -> tuple[Batch, str] | None:
    """Return the newest batch if it is of another history and occupies the place of the new one; else None.

    A handover, or a program that opened the file before its restore, can create it until all processes know the
    history.
    """
    newest = read_newest(database)
    if newest is None or newest[0].number <= state.batch or newest[0].history == state.history:
        return None
    return newest


def _finish_history(source: Source, database: FarmDatabase, circle: Circle) -> None:
    """Announce a begun history to the farm, unless it is known; its snapshot also publishes pending transactions.

    Before its first batch, it moves after any batch that came first into its log.
    """
    state = source.require_state()
    known = circle.site(state.member.name).history
    if state.parent is None or known not in (state.history, state.parent.history):
        return
    if (first := _came_first(database, state)) is not None:
        source.require_site().pass_sequences(_given_out(source, database))
        circle = _start_behind(source, database, circle, state, first)
    elif state.history == known:
        return
    _announce(source, database)
    source.require_site().has_settled_past = True
    try:
        source.take_snapshot(database, is_first=True)
    except FencedError:
        if _came_first(database, source.require_state()) is None:
            raise
        _finish_history(source, database, circle)


def _announce(source: Source, database: FarmDatabase) -> None:
    """Name the begun history in `wlc.config` and the circle; can be repeated."""
    state = source.require_state()
    assert state.parent is not None
    name, former, history = state.member.name, state.parent.history, SiteHistory(state.history, state.parent)

    def take_over(config: Config) -> Config:
        if config.history not in (former, state.history):
            raise FencedError(
                f"farm database {config.name} is at history {config.history}, and this site at {state.history}",
                hint="run exactly one master",
                path=database.url,
            )
        return replace(state.config(), state=STARTED, snapshot=config.snapshot)

    try:
        database.change_config(take_over)
    except MissingError:
        database.create_config(replace(state.config(), state=STARTED))
    changed = change_circle(
        founder_of(database, state.member), lambda present: with_site(present, name, history, utc_now())
    )
    source.remember(replace(state, site=replace(state.member, circle=changed)))
