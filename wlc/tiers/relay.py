"""Copy a farm database to a relay, which serves replicas as the original does.

One round of copying a farm database byte for byte to another farm, a relay.

Objects are created in the order in which a master publishes them: data files, then the log file or the manifest. So a
relay that was killed holds whole batches and snapshots only, and the next run copies what is missing between them, too.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from wlc.farm import paths
from wlc.farm.clock import parse_age, utc_now
from wlc.farm.config import first_config, with_batch, with_snapshot
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, GapError, InvalidError, UnavailableError
from wlc.farm.human_form import Doing, ForPeople, Progress, parse_rate
from wlc.farm.keeping import change_policy
from wlc.farm.model import Position
from wlc.farm.parameters import takes
from wlc.farm.store import AlreadyExistsError, MissingError, join_url, open_store
from wlc.masters.lookup import resolve
from wlc.tiers.attaching import read_through
from wlc.tiers.attachment import attachment_object, attachment_of, detach, place_of, register_reader
from wlc.tiers.copying import CopiedSnapshot, Found, RateLimit, Unpublished, refuse_unreadable
from wlc.tiers.options import RelayOptions
from wlc.tiers.same_past import is_same_place
from wlc.tiers.tree import Offer, as_reader, begin_again_hint, is_offered, offer_place, relay_id
from wlc.tiers.upstreams import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.model import Config
    from wlc.farm.registry import Replica
    from wlc.tiers.attachment import Attachment, Keepalive, Membership
    from wlc.tiers.copying import CopiedBatch


# Longest interval of updates of the relay's `wlc.config`.
_NOTE_EVERY = 32
# A run that was suspended for this long checks its last created objects again.
_HALTED_S = 1.0


@dataclass(frozen=True, slots=True)
class Shipped(ForPeople):
    """The result of one round, and the relay's position.

    Attributes:
        url: The relay's folder of the database.
        tick: Last tick that the relay holds.
        batches: Batches copied in this round; `snapshots`, `files` and `bytes` likewise.
        is_verified: False if the farm is encrypted and there is no key: only sizes were compared. None if nothing was
            copied.
    """

    url: str
    tick: int
    batches: int
    snapshots: int
    files: int
    bytes: int
    is_verified: bool | None


class Shipping:
    """One round of copying; `now` is the relay's future `wlc.config`."""

    def __init__(
        self,
        source: FarmDatabase,
        target: FarmDatabase,
        latest: datetime | None,
        limit: RateLimit,
        progress: Progress | None,
        offer: Offer,
        membership: Membership | None = None,
    ) -> None:
        # Called before an object becomes visible to readers; raises to end the round.
        self.before_each: Callable[[], None] = lambda: None
        self._offer = offer
        self._membership = membership
        self._first: int | None = None
        self._source = source
        self._target = target
        self._latest = latest
        self._progress = progress
        self._batches = self._snapshots = self._files = self._bytes = 0
        self._unpublished = Unpublished(source, target, latest, limit, progress)
        self._is_new = self._has_start = self._is_settled = False
        self._now = first_config(source.name)
        # The first batch of the relay's log, and the next batch to copy at the time of the listing.
        self._begin = self._held_before = 1
        # Positions of snapshots, and chain hashes of batches, by batch number.
        self._positions: dict[int, Position] = {}
        self._chains: dict[int, str] = {}

    def run(self, *, registers: bool, serves: bool = True) -> Shipped:
        """Copy the missing objects; safe to repeat at any point of an earlier run.

        Args:
            registers: Register the relay with its upstream.
            serves: Register it as an upstream, too.
        """
        wanted = self._source.config()
        try:
            self._now = self._target.config()
        except MissingError:
            self._is_new = True
            self._target.store.raw.probe()
        is_level = self._is_level(wanted)
        if not is_level:
            if registers and self._is_new:
                refuse_unreadable(self._source, self._latest)
                # Nothing may be pruned during the first copy.
                self._register(None)
                if serves:
                    self._serve(is_new=True)
            self._copy(wanted)
        if registers:
            last = self._now.batches - 1
            position = Position(self._now.history, self._now.tick, last, self._chains.get(last, ""))
            self._register(position, is_level=is_level)
            if serves:
                self._serve(is_new=not is_level or self._offer.is_explicit)
        counts = self._batches, self._snapshots, self._files, self._bytes
        return Shipped(self._target.url, self._now.tick, *counts, None if is_level else self._unpublished.is_verified)

    def _is_level(self, wanted: Config) -> bool:
        """Say whether there is nothing to copy, with a constant number of requests."""
        if self._is_new or self._now != replace(wanted, logs=self._now.logs):
            return False
        return not self._source.logs.exists(paths.log_path(self._source.name, wanted.batches))

    # The two places --------------------------------------------------------------------------------------------------

    def _copy(self, wanted: Config) -> None:
        # List the relay first, whose content comes from the farm, and batches before snapshots, which follow their
        # batch.
        held, held_ticks = frozenset(self._target.batch_numbers()), self._target.snapshot_ticks()
        ticks = self._source.snapshot_ticks()
        found = Found(ticks, self._source.batch_numbers(), held, held_ticks)
        self._first = self._begin = found.begin
        self._held_before = self._now.batches
        if held_ticks:
            # A killed run may not have updated the configuration.
            self._now = replace(self._now, snapshot=max(self._now.snapshot, paths.snapshot_folder(held_ticks[-1])))
        self._refuse_other_past(wanted, found)
        self._refuse_gap(found)
        self._copy_in_order(found)
        self._complete_config(wanted, found)

    def _refuse_other_past(self, wanted: Config, found: Found) -> None:
        """Check that the relay's newest batch and snapshot are the farm's."""
        if found.held:
            last = max(found.held)
            if not found.numbers or last > found.numbers[-1]:
                if self._is_relay_behind(found):
                    raise UnavailableError(
                        f"{self._source.url} ends with batch {found.numbers[-1]}, the relay goes on to batch {last}",
                        hint=f"wlc tier show {self._source.url}",
                        path=self._source.url,
                    )
                raise self._other_past(f"ends at tick {wanted.tick}, and the relay goes on to batch {last}")
            if last in found.numbers and not self._is_same(last):
                raise self._other_past(f"has another batch {last} than the relay")
        elif found.held_ticks:
            tick = found.held_ticks[-1]
            path = paths.manifest_path(tick)
            ours = self._target.store.raw.read(path)
            if tick in found.ticks and ours != self._source.store.raw.read(path):
                raise self._other_past(f"has another snapshot {tick} than the relay")
            if not self._unpublished.is_sealed(ours):
                manifest = self._source.decoded_manifest(tick, self._source.store.opened(path, ours))
                self._positions[manifest.position.batch] = manifest.position
                self._now = with_snapshot(self._now, manifest)

    def _is_relay_behind(self, found: Found) -> bool:
        """Say whether the source is another relay that is only behind; if the origin lacks the batch, it is lost."""
        if self._membership is None or self._membership.attachment.upstream == ORIGIN or not found.numbers:
            return False
        newest = found.numbers[-1]
        return newest in found.held and self._is_same(newest)

    def _is_same(self, number: int) -> bool:
        path = paths.log_path(self._source.name, number)
        return self._target.logs.raw.read(path) == self._source.logs.raw.read(path)

    def _refuse_gap(self, found: Found) -> None:
        """Refuse to leave out a batch: the relay's log would have a hole."""
        missing = found.missing
        for number in range(found.begin, missing[-1] if missing else 0):
            if number in found.held or number in found.numbers:
                continue
            if number < found.numbers[0]:
                raise ExpiredError(
                    f"batch {number} of {self._source.url} was pruned before the relay had copied it",
                    hint=begin_again_hint(self._target.url),
                    path=self._source.url,
                )
            raise GapError(
                f"batch {number} of {self._source.url} is missing, and the relay does not have it",
                hint="Put it back, and keep the relay: it may hold the only copy of what is before.",
                path=self._source.url,
            )

    def _other_past(self, difference: str) -> CorruptError:
        return CorruptError(
            f"{self._source.url} {difference}: it was restored or made anew, or the relay belongs to another one",
            hint=f"Keep the right one. If that is the farm, delete {self._target.url} and ship again.",
            path=self._source.url,
        )

    # Copying ---------------------------------------------------------------------------------------------------------

    def _copy_in_order(self, found: Found) -> None:
        total = len(found.missing)
        self._has_start = bool(found.held_ticks) or found.begin == 1
        with closing(self._unpublished.in_order(found, self._now.batches)) as ahead:
            is_noted = True
            for copied in ahead:
                if not is_noted:
                    self._note()
                    is_noted = True
                if isinstance(copied, CopiedSnapshot):
                    self._create_snapshot(copied)
                    # The final update writes the configuration, too.
                    is_noted = False
                    continue
                if copied.is_too_young:
                    return
                self._refuse_unconnected(copied)
                if copied.number not in found.held:
                    self._create_batch(copied, total)
                self._follow(copied)

    def _refuse_unconnected(self, copied: CopiedBatch) -> None:
        """Refuse a batch that does not follow the end of the relay's log or snapshot."""
        batch, number = copied.batch, copied.number
        if batch is None:
            return
        position = self._positions.get(number - 1)
        follows = batch.history if batch.parent is None else batch.parent.history
        is_connected = (
            self._chains.get(number - 1, batch.previous) == batch.previous
            and (position is None or position.chain in ("", batch.previous))
            and (position is None or position.history in (batch.history, follows))
            and (number not in self._positions or self._positions[number].chain in ("", copied.chain))
        )
        if not is_connected:
            raise self._other_past(f"has a batch {number} that does not follow what the relay holds")

    def _create_batch(self, copied: CopiedBatch, total: int) -> None:
        number = copied.number
        path = paths.log_path(self._source.name, number)
        asked = time.time()
        self.before_each()
        if not self._reaches(number):
            raise self._overtaken(f"{self._unpublished.logs.target.url}/{path}")
        self._is_settled = False
        self._unpublished.logs.create(path, copied.staged)
        if time.time() - asked > _HALTED_S and not (self._reaches(number) and self._has_files(copied)):
            self._target.delete_batch(number)
            raise self._overtaken(f"{self._unpublished.logs.target.url}/{path}")
        self._count(copied.sizes, copied.data)
        self._batches += 1
        if self._progress:
            self._progress(self._batches, total, Doing(f"copying batch {copied.number}", bytes=self._bytes))

    def _overtaken(self, where: str) -> UnavailableError:
        """Build the error for an object that other runs copied and pruned in the relay while this run was suspended."""
        message = f"{where} was copied by another run and pruned meanwhile"
        return UnavailableError(message, hint="Run it again: it goes on behind that.", path=where)

    def _reaches(self, number: int) -> bool:
        """Say whether the relay's log still reaches a batch: this run may have been suspended, and the relay pruned."""
        logs, name = self._target.logs.raw, self._source.name
        if number > self._begin:
            return any(logs.exists(paths.log_path(name, number + by)) for by in (-1, 1))
        try:
            return self._target.config().batches <= max(number, self._held_before) or logs.exists(
                paths.log_path(name, number + 1)
            )
        except MissingError:
            return True

    def _has_files(self, copied: CopiedBatch) -> bool:
        held = {entry.path for entry in self._target.logs.raw.list(paths.data_folder(self._source.name, copied.number))}
        if copied.batch is None:
            return len(held) >= len(copied.sizes)
        return held.issuperset(file.file.path for file in copied.batch.files)

    def _follow(self, copied: CopiedBatch) -> None:
        """Record a batch of the relay."""
        batch, number = copied.batch, copied.number
        self._chains[number] = copied.chain
        if batch is None:
            self._now = replace(self._now, batches=max(number + 1, self._now.batches))
        elif number >= self._now.batches or (number + 1 == self._now.batches and batch.history == self._now.history):
            self._now = with_batch(self._now, batch)
        if number % _NOTE_EVERY == 0:
            self._note()

    def _count(self, sizes: Sequence[int], data: bytes) -> None:
        self._files += len(sizes)
        self._bytes += sum(sizes) + len(data)

    # Snapshots -------------------------------------------------------------------------------------------------------

    def _create_snapshot(self, copied: CopiedSnapshot) -> None:
        snapshot = copied.snapshot
        folder, path = paths.snapshot_folder(snapshot.tick) + "/", paths.manifest_path(snapshot.tick)
        if snapshot.manifest is None:
            self._now = replace(self._now, snapshot=folder.rstrip("/"))
        else:
            position = snapshot.manifest.position
            if position.chain and self._chains.get(position.batch, position.chain) != position.chain:
                raise self._other_past(f"has a snapshot {snapshot.tick} of another batch {position.batch}")
            self._positions[position.batch] = position
            self._now = with_snapshot(self._now, snapshot.manifest)
        # Pruning may have deleted files while this run was suspended.
        held = {entry.path for entry in self._target.store.raw.list(folder)}
        if len(held) < len(copied.sizes) or not held.issuperset(copied.paths):
            raise self._overtaken(f"{self._target.url}/{path}")
        self._make_logs_durable()
        self.before_each()
        self._unpublished.store.create(path, copied.staged)
        self._unpublished.store.target.raw.make_durable(path)
        self._count(copied.sizes, snapshot.data)
        self._snapshots += 1
        self._has_start = True

    # Visible to readers ----------------------------------------------------------------------------------------------

    def _note(self, *, is_final: bool = False) -> None:
        """Update the relay's `wlc.config` to its content.

        A new relay gets one once readers can begin with its content. Without a key, only the farm's own configuration
        describes the final content.
        """
        if not is_final and not (self._unpublished.is_verified and self._has_start):
            return
        self._make_logs_durable()
        if self._is_new:
            self._is_new = False
            try:
                self._target.create_config(self._now)
                return
            except AlreadyExistsError:
                pass  # Another run is copying into the same relay.
        self._now = self._target.change_config(self._merged)

    def _make_logs_durable(self) -> None:
        """Make log files durable before any document names them, including those of an earlier run."""
        if not self._is_settled:
            self._target.logs.raw.make_durable(paths.log_path(self._source.name, 1))
            self._is_settled = True

    def _merged(self, present: Config) -> Config:
        """Return the configuration that is ahead, with the newest snapshot of both: two runs may copy concurrently."""
        ahead = present if present.batches > self._now.batches else self._now
        return replace(ahead, snapshot=max(present.snapshot, self._now.snapshot))

    def _complete_config(self, wanted: Config, found: Found) -> None:
        """Copy the fields of `wlc.config` alone, once the copy is complete: beat, state and the history's parent."""
        has_nothing = self._now.batches == 1 and not self._now.snapshot
        if self._is_new and (found.numbers or found.ticks) and (has_nothing or not self._has_start):
            if self._latest is None:
                message = f"{self._source.url} begins with batch {found.begin} and has no snapshot"
                raise ExpiredError(message, hint="wlc snapshot SOURCE", path=self._source.url)
            raise UnavailableError(
                f"nothing of {self._source.url} is old enough to be copied yet",
                hint="Run it again later, or with a shorter --delay.",
                path=self._source.url,
            )
        is_level = (self._now.batches, self._now.tick) == (
            wanted.batches,
            wanted.tick,
        ) or not self._unpublished.is_verified
        known = wanted if is_level else replace(self._now, beat_s=wanted.beat_s)
        self._now = replace(known, logs=self._now.logs, snapshot=self._now.snapshot)
        self._note(is_final=True)

    def _register(self, position: Position | None, *, is_level: bool = False) -> None:
        reader = as_reader(self._target, position, self._now.write, self._offer.delay_s)
        register_reader(self._source, reader, self._membership, is_level=is_level)

    def _serve(self, *, is_new: bool) -> None:
        """Register as an upstream if the registration changed or was deleted."""
        has_start = (self._now.batches > 1 or bool(self._now.snapshot)) and not self._is_new
        for registry in self._membership.registries() if self._membership else [self._source]:
            # An unreachable registry keeps the last registration; do not create a directory that is only unmounted.
            with suppress(UnavailableError) if registry.url != self._source.url else nullcontext():
                if (is_new or not is_offered(registry, self._target)) and registry.store.exists(paths.CONFIG):
                    offer_place(registry, self._target, self._offer, self._first, has_start=has_start)


@takes(RelayOptions)
def ship(
    db: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    register: bool = True,
    keepalive: Keepalive | None = None,
    progress: Progress | None = None,
    **options: Unpack[RelayOptions],
) -> Shipped:
    """Copy the snapshots and batches of a farm database that a relay lacks, byte for byte.

    Signatures, encryption and the chain of log files stay valid, so a replica may switch between the two places. Every
    object is verified during the copy. An encrypted farm is copied even without its key; then only sizes are compared.

    Args:
        db: Name in the farm, URL of the database's folder (another relay's, too), or a source that knows its farm.
        to: URL or path of the relay's farm. The database gets a folder of its name there.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        storage_options: Options of the farm's file system.
        target_options: Options of the relay's file system.
        register: Register the relay with its upstream, so that `wlc prune` there waits for it, and as an upstream
            itself.
        keepalive: That of a program that follows: renews the registration between rounds.
        progress: Called with batches done, batches in total, and the current activity.

    Raises:
        InvalidError: There is no such database, or an argument is malformed.
        ExpiredError: The log was pruned behind the relay's position, or while it was copied.
        GapError: A batch of the farm is missing. The relay keeps what it has.
        CorruptError: A file is damaged, or the farm and its relay have different pasts. Nothing of it was copied.
        UnavailableError: A place cannot be reached, or no transaction is old enough: try again.

    Examples:
        >>> wlc.ship("sales", to="relay").tick
        3
    """
    age, kept = parse_age(options.get("delay")), parse_age(options.get("keep"))
    rate = options.get("rate")
    limit = RateLimit(None if rate is None else parse_rate(rate))
    source, to = resolve(db, farm, storage_options=storage_options), os.fspath(to)
    target = _relay_of(source, to, target_options)
    latest = utc_now() - age if age is not None else None
    class_name = options.get("class_name")
    offer = Offer(class_name, options.get("fanout"), age.total_seconds() if age is not None else 0.0)
    attachment = _attachment(source, target, to, options.get("upstream"), class_name, options.get("registry"))

    def run(place: FarmDatabase, membership: Membership | None = None) -> Shipped:
        if membership is not None and membership.attachment != attachment:
            attachment_object(target).change(lambda _: membership.attachment)
        done = Shipping(place, target, latest, limit, progress, offer, membership).run(registers=register)
        if kept is not None:
            change_policy(target, lambda policy: replace(policy, keep=kept))
        return done

    if attachment is None:
        return run(source)
    me = _reader(target, source, offer)
    if me.position is None:
        refuse_unreadable(source, latest)
    return read_through(place_of(source, attachment.registry), me, attachment, run, keepalive)


def _relay_of(source: FarmDatabase, to: str, options: Mapping[str, Any] | None) -> FarmDatabase:
    relay = FarmDatabase(source.name, open_store(join_url(to, source.name), options), options)
    _refuse_itself(relay, source, to)
    return relay


def _refuse_itself(relay: FarmDatabase, place: FarmDatabase, to: str) -> None:
    if is_same_place(relay, place):
        raise InvalidError(f"{to} is the farm that {place.name} is in", hint="Give --to another farm.", path=to)


def _attachment(
    source: FarmDatabase,
    relay: FarmDatabase,
    to: str,
    upstream: Sequence[str] | str | None,
    class_name: str | None,
    registry: Sequence[str] | str | None,
) -> Attachment | None:
    """Return the attachment that a relay must store, and release its claims in a registry that it leaves."""
    if upstream is None and not registry:
        return None
    before = (attachment_object(relay).load() or (None, ""))[0]
    now = attachment_of(source, before, upstream or "auto", class_name, registry or (), source.url)
    for url in (*now.among, *now.registries) if now else ():
        _refuse_itself(relay, place_of(source, url), to)
    detach(source, before, now, relay_id(relay))
    return now


def _reader(relay: FarmDatabase, source: FarmDatabase, offer: Offer) -> Replica:
    return as_reader(relay, _position_of(relay, source), None, offer.delay_s)


def _position_of(relay: FarmDatabase, source: FarmDatabase) -> Position | None:
    try:
        config = relay.config()
    except MissingError:
        return _reached(relay, source)
    last, chain = config.batches - 1, ""
    if last > 0:
        # Without the key, bytes are compared during the copy.
        with suppress(FarmError):
            chain = relay.read_batch(last)[1]
    return Position(config.history, config.tick, last, chain)


def _reached(relay: FarmDatabase, source: FarmDatabase) -> Position | None:
    """Return the position of a relay's first copy: its upstream must hold the objects that it lacks."""
    last = max(relay.batch_numbers(), default=0)
    if last == 0:
        return None
    try:
        batch, chain = relay.read_batch(last)
    except FarmError:
        # Without the key, only the batch number is known.
        return Position(source.config().history, 0, last)
    return Position(batch.history, batch.last, last, chain)
