"""Copy a farm database to a relay, which serves replicas as the original does."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc.farm.attachment import attachment_object, place_of
from wlc.farm.byte_count import parse_rate
from wlc.farm.clock import parse_age, utc_now
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.keep_policy import change_policy
from wlc.farm.model import Position
from wlc.farm.same_past import is_same_place
from wlc.farm.store import MissingError, join_url, open_store
from wlc.masters.lookup import resolve
from wlc.tiers.attaching import read_through
from wlc.tiers.attachment_options import attachment_of, detach
from wlc.tiers.copied_ahead import refuse_unreadable
from wlc.tiers.offer import Offer, as_reader, relay_id
from wlc.tiers.rate import RateLimit
from wlc.tiers.relay_round import Shipped, Shipping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from wlc.farm.attachment import Attachment, Keepalive, Membership
    from wlc.farm.registry import Replica


def ship(
    db: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    delay: timedelta | str | None = None,
    rate: float | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    registers: bool = True,
    upstream: Sequence[str] | str | None = None,
    class_name: str | None = None,
    registry: Sequence[str] | str | None = None,
    fanout: int | None = None,
    keep: timedelta | str | None = None,
    keepalive: Keepalive | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Shipped:
    """Copy what a farm database has and a relay lacks: snapshots and batches, byte for byte.

    Signatures, encryption and the chain of log files stay valid, so that a replica may change between the two places.
    Everything is verified on the way. Without its key an encrypted farm is copied, too, and only sizes are compared.

    Args:
        db: Name in the farm, URL of the database's folder (another relay's, too), or a source that knows its farm.
        to: URL or path of the relay's farm. The database gets a folder of its name there.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        delay: Leave out what was committed less than this before now; as text, for example `1h` or `2 days`.
        rate: Bytes per second on average, no limit if omitted; as text, for example `500k` or `10M`.
        storage_options: Options of the farm's file system.
        target_options: Options of the relay's file system.
        registers: Make the relay known where it reads, so that `wlc prune` there waits for it, and as an upstream.
        upstream: Where to read: "auto" chooses among the places registered at `db`, the URL of the database's folder in
            one place pins it, several URLs are chosen from. Give it every time.
        class_name: Class of the relay, such as `prod`: it serves readers of this class and of lower ones.
        registry: URLs of the database's folder in places whose registries are told; the first decides. Likewise.
        fanout: How many may read from the relay; the registry's number if omitted.
        keep: What `prune` keeps in the relay, as `retention` sets it; as text, for example `30d`.
        keepalive: Of a program that follows: says between rounds that the relay is there.
        progress: Called with batches done, batches in all, and what is being done.

    Raises:
        InvalidError: There is no such database, or an argument cannot be read.
        ExpiredError: The log was pruned behind the relay's position, or while it was copied.
        GapError: A batch of the farm is missing. The relay keeps what it has.
        CorruptError: A file is damaged, or the farm and its relay have different pasts. Nothing of it was copied.
        UnavailableError: A place cannot be reached, or nothing of the database is old enough: try again.
    """
    age, kept = (parse_age(each) if isinstance(each, str) else each for each in (delay, keep))
    limit = RateLimit(parse_rate(rate) if isinstance(rate, str) else rate)
    source, to = resolve(db, farm, storage_options=storage_options), os.fspath(to)
    target = _relay_of(source, to, target_options)
    latest = utc_now() - age if age is not None else None
    offer = Offer(class_name, fanout, age.total_seconds() if age is not None else 0.0)
    attachment = _attachment(source, target, to, upstream, class_name, registry)

    def run(place: FarmDatabase, membership: Membership | None = None) -> Shipped:
        if membership is not None and membership.attachment != attachment:
            attachment_object(target).change(lambda _: membership.attachment)
        done = Shipping(place, target, latest, limit, progress, offer, membership).run(registers=registers)
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
    """Return what a relay is to remember of where it reads, and give up what it claimed in a registry it leaves."""
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
        # Without the key, the bytes are compared when they are copied.
        with suppress(FarmError):
            chain = relay.read_batch(last)[1]
    return Position(config.history, config.tick, last, chain)


def _reached(relay: FarmDatabase, source: FarmDatabase) -> Position | None:
    """Return how far the first copy of a relay has come: what it lacks must be where it reads."""
    last = max(relay.batch_numbers(), default=0)
    if last == 0:
        return None
    try:
        batch, chain = relay.read_batch(last)
    except FarmError:
        # Without the key, only the number is known.
        return Position(source.config().history, 0, last)
    return Position(batch.history, batch.last, last, chain)
