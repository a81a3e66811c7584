"""The jobs of every item of `dbfarm.toml`: one round of each, by the functions that commands call."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import wlc
import wlr
from wlc.farm.clock import format_age
from wlc.farm.config import BEAT_S
from wlc.farm.errors import InvalidError
from wlc.farm.health import read_health
from wlc.farm.store import join_url
from wlc.tiers.listing import entry_of
from wlr.care.findings import check_audit, check_drill, check_verified
from wlr.care.replica_settings import place_read
from wlr.care.replica_status import lag
from wlr.service.job_states import Done, Observed, WorkStanding
from wlr.service.settings import (
    DatabaseItem,
    DatabasePlace,
    DerivedItem,
    FeedItem,
    MasterItem,
    RelayItem,
    ReplicaItem,
    SiteItem,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from wlr.service.settings import ListedFarm, ServiceSettings

FOLLOW, PUBLISH, TAKE, POLICY, SNAPSHOT, PRUNE, VERIFY, DRILL = (
    "follow publish take policy snapshot prune verify drill".split()
)


class Turn(Protocol):
    """The caller's services for a round."""

    is_stopped: threading.Event

    def progress(self, done: int, total: int, what: str = "") -> None:
        """Raise if the service stops; called where a round can end safely."""

    def note(self, outcome: Done | Exception) -> None:
        """Record a part of an unfinished round: its result, or the cause of a retry."""


def _observe_nothing(_: WorkStanding) -> Observed:
    return Observed()


@dataclass(frozen=True, slots=True)
class Work:
    """A recurring job.

    Attributes:
        item: Section of the file, such as `replicas.copy`.
        name: `follow`, `publish`, `take`, `policy`, `snapshot`, `prune`, `verify` or `drill`.
        given: Its settings. Two jobs are equal if their settings are.
        do_round: Does one round and returns its result.
        every: Its interval; None if it sets its own pause.
        beat_s: Longest time between two rounds, seconds, without an interval.
        reads: URL of the folder in which a new log file starts a round at once.
        observe: Measures the lag and such, between rounds.
        is_once: It ends after its first success.
        is_heavy: It takes long and much memory: only one such job runs at a time.
        follows: Jobs of the same item that go first: one without a schedule must have succeeded since the start of the
            service, and one with a schedule must not be due, unless it fails.
        keepalive: Reports between rounds that a reader runs.
    """

    item: str
    name: str
    given: object
    do_round: Callable[[Turn], Done] = field(compare=False)
    every: timedelta | None = field(default=None, compare=False)
    beat_s: Callable[[], float] = field(default=lambda: BEAT_S, compare=False)
    reads: Callable[[], str] = field(default=str, compare=False)
    observe: Callable[[WorkStanding], Observed] = field(default=_observe_nothing, compare=False)
    is_once: bool = False
    is_heavy: bool = False
    follows: tuple[str, ...] = ()
    keepalive: wlc.Keepalive | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The item and the job."""
        return self.item, self.name


def observe_reader(
    url: Callable[[], str], options: Mapping[str, Any] | None, into: str, standing: WorkStanding
) -> Observed:
    """Look at how far a replica, feed or relay is behind the farm, whether or not its rounds go well.

    Args:
        url: Folder of the database in the farm.
        options: Options of the farm's file system.
        into: Where the replica is.
        standing: Where it stands.
    """
    free = _free_bytes(into)
    if standing.tick is None:
        return Observed(free_bytes=free)
    lag_s, lag_transactions = lag(url(), standing.tick, standing.clock, options)
    return Observed(lag_s, lag_transactions, free_bytes=free)


def observe_master(source: str, options: Mapping[str, Any] | None, _: WorkStanding) -> Observed:
    """Look at what a master has not published, and what its server keeps for that."""
    found = wlc.status(source, storage_options=options)
    free = _free_bytes(found.farm)
    return Observed(None, None, found.unpublished, found.retained_bytes, free, found.tick)


def observe_site(source: str, _: WorkStanding) -> Observed:
    """Look at the disk of a site's file; only a round opens the file."""
    return Observed(free_bytes=_free_bytes(source))


def observe_database(url: Callable[[], str], options: Mapping[str, Any] | None, _: WorkStanding) -> Observed:
    """Look at a database of a farm."""
    place = url()
    entry = entry_of(place, place.rpartition("/")[2], options=options)
    return Observed(free_bytes=_free_bytes(place), tick=entry.tick, entry=entry)


def _free_bytes(place: str) -> int | None:
    """Return the free space of the disk that holds a local path; None for anything else."""
    if "://" in place:
        return None
    folder = next((each for each in (Path(place), *Path(place).absolute().parents) if each.is_dir()), None)
    return shutil.disk_usage(folder).free if folder else None


def works_of(settings: ServiceSettings) -> list[Work]:
    """Return all jobs of a file, in its order."""
    found = []
    for name, item in settings.items.items():
        place = settings.farm_of(item.farm)
        found += _MAKERS[type(item)](name, item, place, settings)
    return found


def facts_of(done: Any) -> Mapping[str, object]:
    """Return the fields of a result except absent, false and empty ones."""
    return {name: value for name, value in asdict(done).items() if name == "tick" or value}


def _filters(item: ReplicaItem | DerivedItem) -> wlr.RowFilters | None:
    return wlr.row_filters(item.where, item.columns, item.mask, item.mask_key)


# Replicas.


def _of_replica(name: str, item: ReplicaItem, farm: ListedFarm | None, _: ServiceSettings) -> list[Work]:
    place, given = DatabasePlace.of(item.database, farm), (item, farm)
    keepalive = wlc.Keepalive()

    def follow(turn: Turn) -> Done:
        done = wlr.replicate(
            place.database,
            into=item.into,
            filters=_filters(item),
            register=item.register,
            keepalive=keepalive,
            progress=turn.progress,
            **place.where,
            **item.options,
        )
        facts = facts_of(done) if done.transactions or done.snapshot is not None else {}
        return Done(done.tick, done.clock, done.transactions, done.rows, done.bytes, facts)

    def reads() -> str:
        try:
            return place_read(item.into, storage_options=place.options)
        except InvalidError:
            # The replica does not exist yet.
            return place.url()

    def verify(turn: Turn) -> Done:
        found = wlr.verify(item.into, storage_options=place.options, progress=turn.progress)
        check_verified(found, item.into)
        return Done(facts={"tick": found.tick, "tables": len(found.tables)})

    def prune(_: Turn) -> Done:
        gone = wlr.prune(item.into, storage_options=place.options)
        return Done(facts=facts_of(gone))

    works = [
        Work(
            *(name, FOLLOW, given, follow),
            beat_s=lambda: wlr.beat(item.into, storage_options=place.options),
            reads=reads,
            observe=partial(observe_reader, place.url, place.options, item.into),
            keepalive=keepalive,
        )
    ]
    if item.verify_every:
        works.append(Work(name, VERIFY, given, verify, item.verify_every, is_heavy=True, follows=(FOLLOW,)))
    if item.prune_every:
        works.append(Work(name, PRUNE, given, prune, item.prune_every, follows=(FOLLOW,)))
    return works


# Feeds and relays.


def _of_feed(name: str, item: FeedItem, farm: ListedFarm | None, _: ServiceSettings) -> list[Work]:
    place = DatabasePlace.of(item.database, farm)
    keepalive = wlc.Keepalive()

    def follow(turn: Turn) -> Done:
        done = wlr.feed(
            place.database,
            to=item.to,
            tables=item.tables or None,
            output_options=dict(item.output_options),
            keepalive=keepalive,
            progress=turn.progress,
            **place.where,
            **item.options,
        )
        facts = facts_of(done) if done.records or done.dropped else {}
        return Done(done.tick, done.clock, 0, done.records, done.bytes, facts)

    observe = partial(observe_reader, place.url, place.options, item.to)
    return [
        Work(
            *(name, FOLLOW, (item, farm), follow),
            beat_s=place.beat_s,
            reads=place.url,
            observe=observe,
            keepalive=keepalive,
        )
    ]


def _of_relay(name: str, item: RelayItem, farm: ListedFarm | None, settings: ServiceSettings) -> list[Work]:
    place, to = DatabasePlace.of(item.database, farm), settings.farms.get(item.to)
    given = (item, farm, to)
    target, target_options = (to.url, to.options or None) if to else (item.to, None)
    # Only a reader that chooses its upstream needs a keepalive.
    keepalive = wlc.Keepalive() if item.options.get("upstream") or item.options.get("registry") else None

    def follow(turn: Turn) -> Done:
        done = wlc.ship(
            place.database,
            to=target,
            target_options=target_options,
            register=item.register,
            keepalive=keepalive,
            progress=turn.progress,
            **place.where,
            **item.options,
        )
        clock = wlc.clock(done.url, storage_options=target_options)
        return Done(done.tick, clock, 0, 0, done.bytes, facts_of(done) if done.bytes else {})

    def prune(_: Turn) -> Done:
        return _pruned(wlc.prune(copy(), needs_policy=True, storage_options=target_options))

    def copy() -> str:
        return wlc.resolve(place.found().name, target, storage_options=target_options).url

    works = [
        Work(
            *(name, FOLLOW, given, follow),
            # The relay holds the beat, and can be read while the farm is unreachable.
            beat_s=lambda: wlc.beat(copy(), storage_options=target_options),
            reads=place.url,
            observe=partial(observe_reader, place.url, place.options, target),
            keepalive=keepalive,
        )
    ]
    if item.prune_every:
        works.append(Work(name, PRUNE, given, prune, item.prune_every, follows=(FOLLOW,)))
    return works


def _of_derived(name: str, item: DerivedItem, farm: ListedFarm | None, settings: ServiceSettings) -> list[Work]:
    place, to = DatabasePlace.of(item.database, farm), settings.farms[item.to]
    target = join_url(to.url, item.name)

    def follow(turn: Turn) -> Done:
        done = wlr.derive(
            place.database,
            target,
            filters=_filters(item),
            tables=item.tables or None,
            target_options=to.options or None,
            progress=turn.progress,
            **place.where,
        )
        facts = facts_of(done) if done.batches else {}
        return Done(done.tick, done.clock, done.transactions, done.rows, 0, facts)

    observe = partial(observe_reader, place.url, place.options, target)
    return [Work(name, FOLLOW, (item, farm, to), follow, beat_s=place.beat_s, reads=place.url, observe=observe)]


# Masters and databases.


def _of_master(name: str, item: MasterItem, farm: ListedFarm | None, _: ServiceSettings) -> list[Work]:
    options = (farm.options if farm else None) or None

    def publish(turn: Turn) -> Done:
        def each(outcome: Any) -> None:
            turn.note(outcome if isinstance(outcome, Exception) else _published(outcome))

        wlc.run(item.source, is_stopped=turn.is_stopped, each=each, storage_options=options)
        return Done()

    observe = partial(observe_master, item.source, options)
    # A round ends only with the service, or with an error.
    return [Work(name, PUBLISH, (item, farm), publish, beat_s=lambda: 0.0, observe=observe)]


def _published(flushed: wlc.Flushed) -> Done:
    facts = facts_of(flushed) if flushed.batches else {}
    return Done(flushed.tick, None, flushed.transactions, flushed.rows, 0, facts)


def _of_site(name: str, item: SiteItem, farm: ListedFarm | None, _: ServiceSettings) -> list[Work]:
    options = (farm.options if farm else None) or None

    def take(_: Turn) -> Done:
        done = wlc.take(item.source, storage_options=options)
        transactions, rows = sum(each.transactions for each in done), sum(each.rows for each in done)
        rejected = sum(each.own_rejected + sum(count.rows for count in each.in_conflict) for each in done)
        facts = {"transactions": transactions, "rejected_rows": rejected} if transactions else {}
        return Done(None, None, transactions, rows, 0, facts, rejected)

    def beat_s() -> float:
        return wlc.beat(item.source, storage_options=options)

    observe = partial(observe_site, item.source)
    return [Work(name, TAKE, (item, farm), take, beat_s=beat_s, observe=observe)]


def _of_database(name: str, item: DatabaseItem, farm: ListedFarm | None, _: ServiceSettings) -> list[Work]:
    assert farm is not None, "the reader of the file refuses a database without a farm"
    place, given = DatabasePlace.of(item.name, farm), (item, farm)

    def snapshot(turn: Turn) -> Done:
        taken = wlr.snapshot_from_log(place.database, progress=turn.progress, **place.where)
        return Done(facts={"tick": taken.position.tick, "tables": len(taken.tables)})

    def prune(_: Turn) -> Done:
        return _pruned(wlc.prune(place.database, needs_policy=True, **place.where))

    def verify(turn: Turn) -> Done:
        audit = wlr.verify_farm(place.database, window=item.verify_window, progress=turn.progress, **place.where)
        check_audit(audit, item.name, item.verify_window)
        return Done(bytes=audit.bytes, facts={"tick": audit.tick, "files": audit.files})

    def drill(turn: Turn) -> Done:
        done = wlr.drill(place.database, folder=item.drill_folder, progress=turn.progress, **place.where)
        check_drill(done, item.name)
        return Done(facts=facts_of(done))

    observe = partial(observe_database, place.url, place.options)
    works = [Work(name, POLICY, given, partial(_apply_policy, item, place), is_once=True, observe=observe)]
    if item.snapshot_from_log_every:
        works.append(Work(name, SNAPSHOT, given, snapshot, item.snapshot_from_log_every, follows=(POLICY,)))
    if item.prune_every:
        # Pruning must use the file's policy and follow a due snapshot.
        works.append(Work(name, PRUNE, given, prune, item.prune_every, follows=(POLICY, SNAPSHOT)))
    heavy = ((VERIFY, verify, item.verify_every), (DRILL, drill, item.drill_every))
    works += [Work(name, work, given, do_round, every, is_heavy=True) for work, do_round, every in heavy if every]
    return works


def _pruned(gone: Any) -> Done:
    """Report the deleted files; a prune without deletions is no change."""
    counts = {"snapshots": len(gone.delete_snapshots), "batches": len(gone.delete_batches)}
    return Done(facts=counts if any(counts.values()) else {})


def _apply_policy(item: DatabaseItem, place: DatabasePlace, _: Turn) -> Done:
    """Store the file's retention and beat in the farm; keep settings that the file does not name."""
    found = wlc.retention(place.database, **place.where).policy or wlc.KeepPolicy()
    wanted = {
        "keep": item.keep,
        "keep_daily": item.keep_daily,
        "keep_weekly": item.keep_weekly,
        "snapshot_every": item.snapshot_every,
    }
    # A policy stores None for 0 and 0s, which disable a setting in a file.
    changed: dict[str, Any] = {
        name: value
        for name, value in wanted.items()
        if value is not None and (getattr(found, name) or type(value)()) != value
    }
    if changed:
        wlc.retention(place.database, **changed, **place.where)
    if item.beat is not None and place.beat_s() != item.beat:
        wlc.beat(place.database, item.beat, **place.where)
        changed["beat"] = item.beat
    health = read_health(place.found())
    named = {"expect_every": item.expect_every, "sign_every": item.sign_every}
    ages: dict[str, Any] = {name: age for name, age in named.items() if age not in (None, getattr(health, name))}
    if ages:
        wlc.beat(place.database, **ages, **place.where)
    return Done(facts={name: _shown(value) for name, value in (changed | ages).items()})


def _shown(value: object) -> object:
    return format_age(value) if isinstance(value, timedelta) else value


_MAKERS: Mapping[type, Callable[[str, Any, ListedFarm | None, ServiceSettings], list[Work]]] = {
    DatabaseItem: _of_database,
    MasterItem: _of_master,
    SiteItem: _of_site,
    ReplicaItem: _of_replica,
    FeedItem: _of_feed,
    RelayItem: _of_relay,
    DerivedItem: _of_derived,
}
