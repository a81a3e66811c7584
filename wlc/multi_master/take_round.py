"""A round of taking: the missing parts of the logs that a site reads, site by site.

A successor takes over: it reads its own log as the former primary would have, and judges its unjudged transactions.

Sources for the pruned part of a log, looked up for the error of a failed take.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.errors import ExpiredError, FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople, duration
from wlc.farm.model import Position
from wlc.farm.newest_batches import read_newest
from wlc.farm.paths import log_path
from wlc.farm.registry import SITE, Replica, register, this_host, this_user
from wlc.farm.vectors import contains, expanded, merged
from wlc.masters.lookup import opened_master
from wlc.masters.publish import publish
from wlc.multi_master.circle import NONE, how_to_join_anew, read_circle
from wlc.multi_master.circle_place import founder_of, site_database, with_circle
from wlc.multi_master.handover import note_handover
from wlc.multi_master.missing_steps import MeshLog, Published, SiteLog
from wlc.multi_master.restored import settle_copy
from wlc.multi_master.site_step import EndedLog, SiteStep, Succession

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import TableFile, Taken
    from wlc.farm.vectors import Vector
    from wlc.masters.contract import Source
    from wlc.multi_master.circle import Circle, CircleSite, FormerTerm
    from wlc.multi_master.circle_place import SiteState
    from wlc.multi_master.site_step import ConflictCounter, RejectionCount, RejectionMark


def take_over(source: Source, database: FarmDatabase, circle: Circle) -> None:
    """Begin the present term at a site that contains all former primaries' logs; commits wait meanwhile.

    Args:
        source: The successor, which has not judged itself yet.
        database: Its place in the farm.
        circle: The circle in which it is the primary.

    Raises:
        FencedError: Its log has transactions that its file lost and no primary has taken. Make another site the
            primary.
    """
    with source.publishing(), source.without_commits():
        publish(source, database)
        state = source.require_state()
        if state.site is None or state.circle != circle:
            # Another site has become the primary meanwhile.
            return
        founder = founder_of(database, state.site)
        ended = tuple(
            EndedLog(
                site_database(founder, former_term.folder), former_term.history, former_term.last, former_term.batch
            )
            for former_term in circle.former_terms
            if former_term.is_effective
        )
        last = ended[-1].database.read_batch(ended[-1].batch)[0]
        log = SiteLog(
            database,
            circle.site(state.site.name),
            last.history,
            last.last,
            {history: tick for history, tick in last.vector.items() if history != last.history},
            None,
            circle.lineage(),
            is_primary=False,
            may_change_schema=False,
        )
        own = _as_one(state.site.name, [step for step in log.steps() if step.transactions])
        newest = read_newest(database)
        if newest is not None and newest[0].handover is not None and newest[0].handover.term > circle.term:
            # The circle is the same, and no later publication could have detected a change.
            return
        _refuse_lost(source, own, circle, founder)
        source.require_site().take_over(Succession(own, dict(last.vector), ended), database.fetch)


def _refuse_lost(source: Source, own: SiteStep, circle: Circle, founder: FarmDatabase) -> None:
    """Refuse to judge own transactions that the database lacks: other sites would take them, and it would not.

    Raises:
        FencedError: It was restored from a backup, and the former primary had not taken its earlier publications.
    """
    state = source.require_state()
    held = expanded({**state.member.contained, state.history: state.tick}, circle.lineage())
    lost = [each for each in own.transactions if each.origin.tick > held.get(each.origin.history, 0)]
    if not lost:
        return
    name, former = (
        state.member.name,
        next(former_term.site for former_term in reversed(circle.former_terms) if former_term.is_effective),
    )
    others = sorted((site.name for site in circle.sites if site.name != name), key=lambda other: other != former)
    alone = f"wlc stop {shlex.quote(str(source))}, then wlc master {shlex.quote(str(source))} --name OTHER"
    raise FencedError(
        f"site {name} cannot take over as the primary: it was restored from a backup, and its log has"
        f" {len(lost)} transactions that its file lacks and site {former} has not taken",
        hint=f"let another site judge them: wlc site role {shlex.quote(founder.url)} {others[0]} primary --lost {name};"
        f" wlc site take there, then at {name}"
        if others
        else f"to publish the file by itself: {alone}",
        path=str(source),
    )


def _as_one(site: str, steps: list[SiteStep]) -> SiteStep:
    """Join steps: a transaction may depend on any transaction rejected before it."""
    none = SiteStep(site, (), {}, {}, None, is_primary=False)
    return replace(SiteStep.joined([none, *steps]), contained={}, proof=None, is_alone=False, parts=())


@dataclass(frozen=True, slots=True)
class Cover:
    """A source for the pruned part of a log.

    Attributes:
        message: Its description for the error.
        hint: The command that uses it; None to keep the error's hint.
    """

    message: str
    hint: str | None = None


def name_cover(error: ExpiredError, look: Callable[[], Cover | None]) -> None:
    """Add the source of the pruned part to an error, if there is one."""
    # The farm may be unreachable by now, or other logs damaged: a failure here must not hide the error.
    with suppress(Exception):
        if (found := look()) is not None:
            error.message = f"{error.message}; {found.message}"
            error.args, error.hint = (error.message,), found.hint or error.hint


def site_that_covers(lacking: SiteLog, others: Iterable[SiteLog], file: str) -> Cover | None:
    """Return another site of a mesh that has the pruned part of a log.

    Args:
        lacking: The log.
        others: The logs that the reader reads, this one among them.
        file: The reader's file.
    """
    wanted = lacking.pruned()
    if contains(lacking.mine, wanted, lacking.lineage):
        return None
    for other in others:
        # Another log may be damaged, too.
        with suppress(Exception):
            held = merged(lacking.mine, other.readable(), lacking.lineage)
            if other.site.name != lacking.site.name and contains(held, wanted, lacking.lineage):
                name = other.site.name
                return Cover(f"site {name} has it", f"wlc site take {shlex.quote(file)} --from {name}")
    return None


def snapshot_that_covers(founder: FarmDatabase, circle: Circle, now: datetime) -> Cover | None:
    """Name the snapshot with which a rebuilt site begins."""
    primary = circle.site(circle.primary)
    log = site_database(founder, primary.folder)
    ticks = log.snapshot_ticks()
    if not ticks:
        return None
    clock = log.read_manifest(ticks[-1]).clock
    age = duration(max(now - clock, timedelta(0)))
    return Cover(f"the newest snapshot of site {primary.name} is of tick {ticks[-1]}, {age} old")


@dataclass(frozen=True, slots=True)
class TakenFrom(ForPeople):
    """The part taken from one site, or to take for a dry run.

    Attributes:
        transactions: Number of transactions that were not contained before; `rows`: row images in them that were not
            rejected.
        tick: Last tick read in its log, 0 if it has published nothing.
        after: The start: by history of these transactions, the last tick contained before.
        rejected: Number of transactions wholly rejected here.
        own_rejected: Number of rows of this site's own transactions that the other site has reported as rejected.
        in_conflict: Rows rejected here, by table and cause; at a secondary, evicted own rows.
    """

    site: str
    transactions: int
    rows: int
    tick: int
    is_dry_run: bool = False
    after: Mapping[str, int] = field(default_factory=dict)
    rejected: int = 0
    own_rejected: int = 0
    in_conflict: tuple[RejectionCount, ...] = ()


def take(
    source: str | os.PathLike[str],
    *,
    site: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[TakenFrom]:
    """Take the other sites' published transactions, once.

    Pending transactions are published before and after, so that other sites can take them.

    Args:
        source: Path of the master's database.
        site: Read only this site's log; all that this site reads if omitted.
        dry_run: Only report the transactions that would be taken or rejected: the round runs on a copy of the file,
            which is then deleted. Nothing is published, and the copy needs as much disk space as the file.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Returns:
        The part taken from each site, by name; empty without other sites.

    Raises:
        InvalidError: The database is not one of several sites, or it does not read the named site.
        ExpiredError: The missing part was pruned. Rebuild the site.
        FencedError: Another site's log belongs to another past.
        UnavailableError: No space is left for the copy, or the farm cannot be reached.

    Examples:
        >>> [(taken.site, taken.transactions) for taken in wlc.take("rome.duckdb")]
        [('oslo', 1)]
    """
    with opened_master(source, storage_options) as (found, database):
        return take_into(found, database, site=site, dry_run=dry_run)


def what_to_take_as(source: str | os.PathLike[str]) -> str:
    """Return the site name of a database.

    Raises:
        InvalidError: It is not one of several sites.
    """
    with opened_master(source, None) as (found, _):
        return _site(found).name


def _site(source: Source) -> SiteState:
    source.require_site()
    state = source.require_state()
    if state.site is None:
        raise InvalidError(
            f"{source} is the only master of {state.name}, and no site",
            hint=f"wlc master {source} --site NAME makes it the first of several",
            path=str(source),
        )
    return state.site


def take_into(
    source: Source, database: FarmDatabase, *, site: str | None = None, dry_run: bool = False
) -> list[TakenFrom]:
    """Take the other sites' transactions into an open master; see `take`."""
    circle = with_circle(_site(source), database).circle
    if circle is None:
        return []
    try:
        if dry_run:
            return _rehearse(source, database, circle, site)
        with source.publishing():
            _remember_circle(source, circle)
            _publish(source, database)
        return _round(source, database, site, is_rehearsal=False)
    except FarmError as error:
        # If the circle changed during the round, retry with the current circle.
        if site is not None or not _has_changed(source, database, circle):
            raise
        done = list(error.done)
    return done + take_into(source, database, dry_run=dry_run)


def _has_changed(source: Source, database: FarmDatabase, circle: Circle) -> bool:
    with suppress(UnavailableError):
        return with_circle(_site(source), database).circle != circle
    return False


def _rehearse(source: Source, database: FarmDatabase, circle: Circle, only: str | None) -> list[TakenFrom]:
    """Rehearse a round on a copy, unless there is nothing to take."""
    # An error of a log is reported together with the part taken before it.
    with suppress(FarmError):
        known = replace(_site(source), circle=circle)
        found = [reading.idle() for reading in _all_readings(source, database, known, only)]
        if None not in found:
            return [each for each in found if each is not None]
    with source.require_site().rehearsal() as copy:
        _remember_circle(copy, circle)
        settle_copy(copy, database, circle)
        return _round(copy, database, only, is_rehearsal=True)


def _round(source: Source, database: FarmDatabase, site: str | None, *, is_rehearsal: bool) -> list[TakenFrom]:
    known = _site(source)
    if known.known_circle.is_mesh:
        return _take_in_mesh(source, database, known, site, is_rehearsal=is_rehearsal)
    readings: list[_Reading] = []
    errors: list[FarmError] = []
    is_over = False
    try:
        for reading in _readings(source, database, known, site, is_rehearsal=is_rehearsal):
            readings.append(reading)
            try:
                is_over = reading.read_on()
            except FarmError as error:
                reading.name_cover(error)
                # The primary's log is read before all others, and a site that may have another past does not publish.
                if reading.is_primary or isinstance(error, FencedError):
                    raise
                errors.append(error)
            if is_over:
                break
    except FarmError as error:
        raise _combined(readings, [error, *errors]) from error.__cause__
    done = _ended(source, database, readings, errors, is_rehearsal=is_rehearsal)
    # A named site is read in its role at the start; a new primary is for the next round.
    return done + take_into(source, database) if is_over and site is None else done


def _ended(
    source: Source, database: FarmDatabase, readings: list[_Reading], errors: list[FarmError], *, is_rehearsal: bool
) -> list[TakenFrom]:
    """End a round: publish the taken transactions, register the positions in the logs, and raise the first error."""
    if not is_rehearsal:
        with source.publishing():
            publish(source, database)
        # Only published positions allow the other sites to prune.
        for reading in readings:
            reading.register()
    if errors:
        raise _combined(readings, errors) from errors[0].__cause__
    return _done(readings)


def _done(readings: list[_Reading]) -> list[TakenFrom]:
    return [reading.done for reading in readings if reading.done is not None]


def _combined(readings: list[_Reading], errors: list[FarmError]) -> FarmError:
    """Return the first error, with the completed part and the further errors."""
    first, *others = errors
    first.done = tuple(_done(readings))
    for other in others:
        first.add_note(str(other))
    return first


def _take_in_mesh(
    source: Source, database: FarmDatabase, known: SiteState, only: str | None, *, is_rehearsal: bool
) -> list[TakenFrom]:
    """Take from every other site. An unreadable log does not prevent reading the others.

    A log may depend on another one that is read later; such a log is read once more.
    """
    if known.floor is not None and not is_rehearsal:
        _disinherit(source, database)
    wanted = list(_all_in_mesh(source, database, known, only, is_rehearsal=is_rehearsal))
    errors: dict[str, FarmError] = {}
    for reading in (*wanted, *wanted):
        is_again = reading.other.name in errors
        if reading.done is not None or (is_again and not isinstance(errors[reading.other.name], ExpiredError)):
            continue
        try:
            reading.read_on()
        except FarmError as error:
            errors[reading.other.name] = error
        else:
            errors.pop(reading.other.name, None)
    for reading in wanted:
        if reading.other.name in errors:
            reading.name_cover(errors[reading.other.name])
    return _ended(source, database, wanted, list(errors.values()), is_rehearsal=is_rehearsal)


def _disinherit(source: Source, database: FarmDatabase) -> None:
    """Delete the history that the site inherited when it joined, once the beginning of its own log is pruned."""
    if database.logs.exists(log_path(database.name, 1)):
        return
    # No transaction is judged meanwhile.
    with source.publishing():
        state = source.require_state()
        if state.site is not None and state.batch:
            # In this order: after a crash in between, both are repeated before any transaction is judged.
            source.require_site().disinherit()
            source.remember(replace(state, site=replace(state.site, floor=None)))


def _publish(source: Source, database: FarmDatabase) -> None:
    """Publish pending transactions; a former primary whose history a handover has ended begins its next one."""
    state = source.require_state()
    if state.circle is not None and state.circle.has_ended(state.history):
        source.require_site().has_settled_past = False
    publish(source, database)


def _all_in_mesh(
    source: Source, database: FarmDatabase, site: SiteState, only: str | None, *, is_rehearsal: bool
) -> Iterator[_Reading]:
    circle = site.known_circle
    published = Published(founder_of(database, site), circle)
    for other in _read_by(circle, site.name, only):
        yield _Reading(source, database, circle, other, is_rehearsal, published=published)


def _all_readings(source: Source, database: FarmDatabase, site: SiteState, only: str | None) -> Iterator[_Reading]:
    """Yield the logs that a rehearsal reads."""
    readings = _all_in_mesh if site.known_circle.is_mesh else _readings
    return readings(source, database, site, only, is_rehearsal=True)


def _readings(
    source: Source, database: FarmDatabase, site: SiteState, only: str | None, *, is_rehearsal: bool
) -> Iterator[_Reading]:
    """Yield the logs to read: first those of former primaries to their ends, then the logs of the site's role.

    In between, a successor takes over. A rehearsal ends there: rejections of its own transactions are not known yet.
    """
    circle, name = site.known_circle, site.name
    wanted = _read_by(circle, name, only)
    for former_term in circle.former_terms if circle.site(name).role != NONE else ():
        # The site's own ended log, too: a primary restored from a backup may continue from an earlier tick of it.
        if former_term.is_effective and _contained(source, circle).get(former_term.history, 0) < former_term.last:
            yield _Reading(
                source, database, circle, circle.former_primary(former_term), is_rehearsal, former_term=former_term
            )
    if circle.primary == name and not site.is_leading:
        if is_rehearsal:
            return
        take_over(source, database, circle)
        if not _site(source).is_leading:
            # Another site has become the primary meanwhile: this one must not read the logs that only a primary reads.
            return
    yield from (_Reading(source, database, circle, other, is_rehearsal) for other in wanted)


def _contained(source: Source, circle: Circle) -> Vector:
    """Return what a site contains of each history."""
    state = source.require_state()
    return expanded({**state.member.contained, state.history: state.tick}, circle.lineage())


def _remember_circle(source: Source, circle: Circle) -> None:
    """Store the circle if it has changed: its rules apply from now on."""
    state = source.require_state()
    if state.site is not None and state.site.circle != circle:
        source.remember(replace(state, site=replace(state.site, circle=circle)))


def _read_by(circle: Circle, name: str, only: str | None) -> tuple[CircleSite, ...]:
    found = circle.sources_of(name)
    if only is None:
        return found
    circle.site(only)
    if only not in [site.name for site in found]:
        role = circle.site(name).role
        why = "has the role none" if role == NONE else f"reads only {', '.join(each.name for each in found)}"
        raise InvalidError(f"site {name} {why}", hint="wlc site take SOURCE, without --from")
    return tuple(site for site in found if site.name == only)


@dataclass(slots=True)
class _Fetched:
    """Data files of a log, downloaded for one step at a time: a round may exceed the disk space."""

    database: FarmDatabase
    files: list[Path] = field(default_factory=list)

    def fetch(self, file: TableFile) -> Path:
        self.files.append(self.database.fetch(file))
        return self.files[-1]

    def released_after(self, steps: Iterable[SiteStep]) -> Iterator[SiteStep]:
        """Yield steps, and release the files of each when the next one is requested."""
        for step in steps:
            yield step
            while self.files:
                self.database.release(self.files.pop())


@dataclass(slots=True)
class _Reading:
    """One site's log in one round.

    Attributes:
        is_rehearsal: The source is a copy, and the farm stays as it is.
        after: By history in the steps, the last tick contained before.
    """

    source: Source
    database: FarmDatabase
    circle: Circle
    other: CircleSite
    is_rehearsal: bool
    former_term: FormerTerm | None = None
    published: Published | None = None
    read: tuple[FarmDatabase, Taken] | None = None
    done: TakenFrom | None = None
    after: dict[str, int] = field(default_factory=dict)

    @property
    def is_primary(self) -> bool:
        if self.circle.is_mesh:
            return False
        return self.former_term is not None or self.other.name == self.circle.primary

    def idle(self) -> TakenFrom | None:
        """Return the empty result if the log has nothing new; None if it has."""
        log = self._log()
        return None if any(step.transactions for step in log.steps()) else self._result(log, 0, 0)

    def read_on(self) -> bool:
        """Take the new part of the log; return whether it is the primary's and a handover ends it."""
        log = self._log()
        site = self.source.require_site()
        before = site.rejection_mark()
        self.done = self._judged(self._taken(log), before)
        if self.is_rehearsal or log.ended is None:
            return False
        state = self.source.require_state()
        note_handover(founder_of(self.database, state.member), log.database, log.ended)
        return True

    def name_cover(self, error: FarmError) -> None:
        """Add the source of the pruned part to the error, if pruning is its cause."""
        if isinstance(error, ExpiredError):
            name_cover(error, self._cover)

    def _cover(self) -> Cover | None:
        state = self.source.require_state()
        found = None
        if self.circle.is_mesh:
            readings = _all_in_mesh(self.source, self.database, state.member, None, is_rehearsal=self.is_rehearsal)
            found = site_that_covers(self._log(), (each._log() for each in readings), str(self.source))
        return found or snapshot_that_covers(founder_of(self.database, state.member), self.circle, utc_now())

    def _taken(self, log: SiteLog) -> TakenFrom:
        files = _Fetched(log.database)
        site = self.source.require_site()
        taken = site.take(files.released_after(self._noted(log.steps())), files.fetch)
        if not self.is_primary and log.mesh is None:
            site.note_contained(self.other.name, log.own_contained())
        if log.proof is not None:
            self.read = log.database, log.proof
        return self._result(log, taken.transactions, taken.rows)

    def _noted(self, steps: Iterable[SiteStep]) -> Iterator[SiteStep]:
        """Yield steps, and record the start of each history in them."""
        for step in steps:
            for each in step.transactions:
                if (history := each.origin.history) not in self.after:
                    self.after[history] = _contained(self.source, self.circle).get(history, 0)
            yield step

    def _result(self, log: SiteLog, transactions: int, rows: int) -> TakenFrom:
        tick = log.proof.tick if log.proof else 0
        return TakenFrom(self.other.name, transactions, rows, tick, self.is_rehearsal, dict(self.after))

    def _judged(self, done: TakenFrom, before: RejectionMark) -> TakenFrom:
        """Add the rejections of the round."""
        if not done.transactions:
            return done
        found = self.source.require_site().rejected_since(before)
        rules = {each.table: self.circle.rule_of(each.table) for each in found.rows}
        named = (replace(each, rule=rule.rule) if (rule := rules[each.table]) else each for each in found.rows)
        return replace(done, rejected=found.transactions, in_conflict=tuple(named), own_rejected=found.own)

    def _log(self) -> SiteLog:
        state = self.source.require_state()
        founder = founder_of(self.database, state.member)
        is_mine = self.is_primary or (self.circle.is_mesh and state.member.name != self.circle.primary)
        anew, file = (state.member.name, shlex.quote(str(self.source))) if is_mine else (self.other.name, "")
        return SiteLog(
            site_database(founder, self.other.folder),
            self.other,
            state.history,
            state.tick,
            state.member.contained,
            state.member.proof_of(self.other.name),
            # Vectors list everything that they contain. A vector without an entry for a former site may never have
            # contained it.
            self.circle.lineage(),
            self.is_primary,
            self.is_primary or self.other.name == self.circle.ddl,
            how_to_join_anew(founder.url, anew, file),
            lambda: read_circle(founder).lineage(),
            self.circle.term if self.is_primary and self.former_term is None else None,
            self.former_term.batch if self.former_term else None,
            mesh=MeshLog(self.circle, self.other.name, utc_now(), self.published.last) if self.published else None,
        )

    def register(self) -> None:
        """Register the position in the other site's folder: pruning keeps the rest of its log."""
        state = self.source.require_state()
        # A site that takes its own past back needs no registration.
        if self.read is not None and state.site is not None and self.other.name != state.site.name:
            database, proof = self.read
            about = (self.other.name, state.site.name)
            counters = [each for each in self.source.require_site().conflict_counters() if each.site in about]
            register(database, as_reader(state.site, str(self.source), proof, counters))


def as_reader(site: SiteState, target: str, proof: Taken | None, counters: Iterable[ConflictCounter] = ()) -> Replica:
    """Return what a site says of itself where it reads."""
    position = Position(proof.history, proof.tick, proof.batch, proof.chain) if proof else None
    counted = {f"{each.site} {each.rule} {each.name}": each.value for each in counters}
    return Replica(site.name, target, position, None, utc_now(), this_host(), this_user(), kind=SITE, counters=counted)
