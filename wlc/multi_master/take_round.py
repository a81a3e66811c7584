"""A round of taking: what a site lacks of the logs that it reads, site by site.

A successor takes over: it reads its own log as the former primary would have, and judges what that one has not.

Who still has what was pruned of a log that a site reads; looked up after a take has failed, for its error.
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
    from wlc.multi_master.circle import Circle, CircleSite, Reign
    from wlc.multi_master.circle_place import SiteState
    from wlc.multi_master.site_step import ConflictCounter, RejectionCount, RejectionMark


def take_over(source: Source, database: FarmDatabase, circle: Circle) -> None:
    """Let a site that contains all of the former primaries' logs lead the present term; nobody commits meanwhile.

    Args:
        source: The successor, which has not judged itself yet.
        database: Its place in the farm.
        circle: In which it is the primary.

    Raises:
        FencedError: Its log has transactions that it lost and no primary has taken. Make another site the primary.
    """
    with source.publishing(), source.without_commits():
        publish(source, database)
        state = source.require_state()
        if state.site is None or state.circle != circle:
            # Another site has become the primary meanwhile.
            return
        founder = founder_of(database, state.site)
        ended = tuple(
            EndedLog(site_database(founder, reign.folder), reign.history, reign.last, reign.batch)
            for reign in circle.reigns
            if reign.is_effective
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
            # The same, and nothing has been published since that would have met it.
            return
        _refuse_lost(source, own, circle, founder)
        source.require_site().take_over(Succession(own, dict(last.vector), ended), database.fetch)


def _refuse_lost(source: Source, own: SiteStep, circle: Circle, founder: FarmDatabase) -> None:
    """Refuse to judge own transactions that the database does not hold: others would take them, and it would not.

    Raises:
        FencedError: It was restored from a backup, and the former primary had not taken what it had published before.
    """
    state = source.require_state()
    held = expanded({**state.member.contained, state.history: state.tick}, circle.lineage())
    lost = [each for each in own.transactions if each.origin.tick > held.get(each.origin.history, 0)]
    if not lost:
        return
    name, former = state.member.name, next(reign.site for reign in reversed(circle.reigns) if reign.is_effective)
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
    """Join steps: a transaction may depend on any that is rejected before it."""
    none = SiteStep(site, (), {}, {}, None, is_primary=False)
    return replace(SiteStep.joined([none, *steps]), contained={}, proof=None, is_alone=False, parts=())


@dataclass(frozen=True, slots=True)
class Cover:
    """Who has what was pruned.

    Attributes:
        told: What the message says of it.
        hint: The command that uses it; None if that is the hint of the error.
    """

    told: str
    hint: str | None = None


def name_cover(error: ExpiredError, look: Callable[[], Cover | None]) -> None:
    """Let an error also say who has what was pruned, if somebody has."""
    # The farm may be out of reach by now, or other logs damaged: nothing that fails here may hide the error.
    with suppress(Exception):
        if (found := look()) is not None:
            error.message = f"{error.message}; {found.told}"
            error.args, error.hint = (error.message,), found.hint or error.hint


def site_that_covers(lacking: SiteLog, others: Iterable[SiteLog], file: str) -> Cover | None:
    """Say which other site of a mesh has what was pruned of a log.

    Args:
        lacking: The log.
        others: Those that the reader reads, this one among them.
        file: The reader's.
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
    """Name the snapshot with which a site begins that is made anew."""
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
    """What was taken from one site, or would be.

    Attributes:
        transactions: How many that were not contained before; `rows`: row images in them that were not rejected.
        tick: Last tick of its log that was read, 0 if it has published nothing.
        after: Where that began: for each history of which there were transactions, the last tick contained before.
        rejected: How many transactions were rejected here as a whole, or would be.
        own_rejected: How many rows of this site's own transactions that site has told that it rejected.
        in_conflict: Which rows were rejected here, or would be, by table and cause; at a secondary, which own rows
            gave way.
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
    """Take what other sites published, once.

    What waits here is published before and after it, so that others can take it.

    Args:
        source: Path of the master's database.
        site: Read only this site's log; all that this site reads if omitted.
        dry_run: Only say what would be taken, and what of it would be rejected: the round runs on a copy of the file,
            which is then deleted. Nothing is published, and the copy needs as much disk space as the file.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Returns:
        What was taken from each site, by name; empty while there is no other one.

    Raises:
        InvalidError: The database is not one of several sites, or the site named is not read by it.
        ExpiredError: What is missing was pruned. Make the site anew.
        FencedError: Another site's log belongs to another past.
        UnavailableError: No space is left for the copy, or the farm cannot be reached.

    Examples:
        >>> [(taken.site, taken.transactions) for taken in wlc.take("rome.duckdb")]
        [('oslo', 1)]
    """
    with opened_master(source, storage_options) as (found, database):
        return take_into(found, database, site=site, dry_run=dry_run)


def what_to_take_as(source: str | os.PathLike[str]) -> str:
    """Return the name of the site that a database is.

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
    """Take what other sites published into an open master; see `take`."""
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
        # What contradicts a circle that has changed meanwhile is judged by the present one.
        if site is not None or not _has_changed(source, database, circle):
            raise
        done = list(error.done)
    return done + take_into(source, database, dry_run=dry_run)


def _has_changed(source: Source, database: FarmDatabase, circle: Circle) -> bool:
    with suppress(UnavailableError):
        return with_circle(_site(source), database).circle != circle
    return False


def _rehearse(source: Source, database: FarmDatabase, circle: Circle, only: str | None) -> list[TakenFrom]:
    """Say what a round would do: let it run on a copy, unless it would do nothing."""
    # What is wrong with a log is reported with what is taken before it.
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
                # What a primary's log says comes before all others', and nobody publishes who may be another past.
                if reading.is_primary or isinstance(error, FencedError):
                    raise
                errors.append(error)
            if is_over:
                break
    except FarmError as error:
        raise _told(readings, [error, *errors]) from error.__cause__
    done = _ended(source, database, readings, errors, is_rehearsal=is_rehearsal)
    # A site that was named is read as it was then; what another primary has is for the next round.
    return done + take_into(source, database) if is_over and site is None else done


def _ended(
    source: Source, database: FarmDatabase, readings: list[_Reading], errors: list[FarmError], *, is_rehearsal: bool
) -> list[TakenFrom]:
    """End a round: publish what was taken, say how far the logs were read, and raise the first error, if any."""
    if not is_rehearsal:
        with source.publishing():
            publish(source, database)
        # Only what this site has published by then says up to where the others may prune.
        for reading in readings:
            reading.register()
    if errors:
        raise _told(readings, errors) from errors[0].__cause__
    return _done(readings)


def _done(readings: list[_Reading]) -> list[TakenFrom]:
    return [reading.done for reading in readings if reading.done is not None]


def _told(readings: list[_Reading], errors: list[FarmError]) -> FarmError:
    """Return the first error, which says what was taken nevertheless, and what else failed."""
    first, *others = errors
    first.done = tuple(_done(readings))
    for other in others:
        first.add_note(str(other))
    return first


def _take_in_mesh(
    source: Source, database: FarmDatabase, known: SiteState, only: str | None, *, is_rehearsal: bool
) -> list[TakenFrom]:
    """Take from every other site. A log that cannot be read keeps nobody from reading the others.

    What one log presupposes can be in another one that is read later, so that such a log is read once more.
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
    """Forget what the site inherited when it joined, once the beginning of its own log is pruned."""
    if database.logs.exists(log_path(database.name, 1)):
        return
    # Nobody is judged meanwhile.
    with source.publishing():
        state = source.require_state()
        if state.site is not None and state.batch:
            # In this order: who dies in between does both again, before anybody is judged.
            source.require_site().disinherit()
            source.remember(replace(state, site=replace(state.site, floor=None)))


def _publish(source: Source, database: FarmDatabase) -> None:
    """Publish what waits; a former primary whose history a handover has ended begins its next one."""
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
    """Yield the logs to read: to their ends those of former primaries, then those that the site reads by its role.

    In between a successor begins to lead. A rehearsal ends there: what it rejects of its own is not known yet.
    """
    circle, name = site.known_circle, site.name
    wanted = _read_by(circle, name, only)
    for reign in circle.reigns if circle.site(name).role != NONE else ():
        # One's own, too: a primary that was restored from a backup may go on behind an earlier tick of it.
        if reign.is_effective and _contained(source, circle).get(reign.history, 0) < reign.last:
            yield _Reading(source, database, circle, circle.reigning(reign), is_rehearsal, reign=reign)
    if circle.primary == name and not site.is_leading:
        if is_rehearsal:
            return
        take_over(source, database, circle)
        if not _site(source).is_leading:
            # Another site has become the primary meanwhile: what only a primary reads is not for this one.
            return
    yield from (_Reading(source, database, circle, other, is_rehearsal) for other in wanted)


def _contained(source: Source, circle: Circle) -> Vector:
    """Return what a site contains of each history."""
    state = source.require_state()
    return expanded({**state.member.contained, state.history: state.tick}, circle.lineage())


def _remember_circle(source: Source, circle: Circle) -> None:
    """Remember the circle if it has changed: its rules hold from now on."""
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
    """Data files of a log, downloaded for one step at a time: a round may be longer than the disk is large."""

    database: FarmDatabase
    files: list[Path] = field(default_factory=list)

    def fetch(self, file: TableFile) -> Path:
        self.files.append(self.database.fetch(file))
        return self.files[-1]

    def released_after(self, steps: Iterable[SiteStep]) -> Iterator[SiteStep]:
        """Yield steps, and give up the files of each once the next one is asked for."""
        for step in steps:
            yield step
            while self.files:
                self.database.release(self.files.pop())


@dataclass(slots=True)
class _Reading:
    """One site's log in one round.

    Attributes:
        is_rehearsal: The source is a copy, and the farm stays as it is.
        after: For each history that it brings, the last tick contained before.
    """

    source: Source
    database: FarmDatabase
    circle: Circle
    other: CircleSite
    is_rehearsal: bool
    reign: Reign | None = None
    published: Published | None = None
    read: tuple[FarmDatabase, Taken] | None = None
    done: TakenFrom | None = None
    after: dict[str, int] = field(default_factory=dict)

    @property
    def is_primary(self) -> bool:
        if self.circle.is_mesh:
            return False
        return self.reign is not None or self.other.name == self.circle.primary

    def idle(self) -> TakenFrom | None:
        """Return what is taken if the log has nothing new; None if it has."""
        log = self._log()
        return None if any(step.transactions for step in log.steps()) else self._told(log, 0, 0)

    def read_on(self) -> bool:
        """Take what is new in the log; returns whether it is the primary's and a handover ends it."""
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
        """Let the error with which the reading ended say who still has what was pruned, if that is why."""
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
        return self._told(log, taken.transactions, taken.rows)

    def _noted(self, steps: Iterable[SiteStep]) -> Iterator[SiteStep]:
        """Yield steps, and note of each history where what they bring begins."""
        for step in steps:
            for each in step.transactions:
                if (history := each.origin.history) not in self.after:
                    self.after[history] = _contained(self.source, self.circle).get(history, 0)
            yield step

    def _told(self, log: SiteLog, transactions: int, rows: int) -> TakenFrom:
        tick = log.proof.tick if log.proof else 0
        return TakenFrom(self.other.name, transactions, rows, tick, self.is_rehearsal, dict(self.after))

    def _judged(self, done: TakenFrom, before: RejectionMark) -> TakenFrom:
        """Add what was rejected meanwhile."""
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
            # Vectors say all that they contain. One without an entry for a site that left may never have met it.
            self.circle.lineage(),
            self.is_primary,
            self.is_primary or self.other.name == self.circle.ddl,
            how_to_join_anew(founder.url, anew, file),
            lambda: read_circle(founder).lineage(),
            self.circle.term if self.is_primary and self.reign is None else None,
            self.reign.batch if self.reign else None,
            mesh=MeshLog(self.circle, self.other.name, utc_now(), self.published.last) if self.published else None,
        )

    def register(self) -> None:
        """Register in the other site's folder how far its log was read: pruning keeps the rest."""
        state = self.source.require_state()
        # Who takes its own past back needs nothing to be kept for that.
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
