"""Reading from an upstream: choose and claim it, keep it while it serves, leave it when it fails."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from wlc.farm.clock import utc_now
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.paths import CONFIG, PUSHES, log_path, replica_path
from wlc.farm.registry import INACTIVE, RELAY, decode_replica, register, unregister
from wlc.farm.store import MissingError
from wlc.tiers.attachment import Attachment, Membership, place_of, register_reader, unregistered_id
from wlc.tiers.choice import Exclusion, Node, Reader, choose, keepalive_interval_s, penalized, tiers_of
from wlc.tiers.same_past import prove_same_database, prove_same_past, resolved
from wlc.tiers.tier_settings import read_settings
from wlc.tiers.tree import begin_again_hint, read_tree
from wlc.tiers.upstreams import (
    ORIGIN,
    Claim,
    find_upstream,
    read_claim,
    refuse_absent,
    release_claim,
    take_claim,
    upstreams,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Config
    from wlc.farm.registry import Replica
    from wlc.tiers.attachment import Keepalive
    from wlc.tiers.choice import Choice
    from wlc.tiers.tier_settings import TierSettings
    from wlc.tiers.tree import Tree

T = TypeVar("T")

# Maximum number of upstreams that may fail, and of lost races for slots, in one round.
_ATTEMPTS = 8


def read_through(
    registry: FarmDatabase,
    me: Replica,
    attachment: Attachment,
    run: Callable[[FarmDatabase, Membership], T],
    keepalive: Keepalive | None = None,
) -> T:
    """Run a round of reading from the chosen upstream, or from the next one if it fails.

    Args:
        registry: The place with the registry of upstreams.
        me: The reader and its position.
        attachment: Its stored attachment.
        run: The round; it registers and stores the attachment that it is given.
        keepalive: That of a long-running process.

    Raises:
        ExpiredError: No upstream holds the reader's position any more.
        UnavailableError: No upstream serves at present.
        FarmError: The error of the first upstream if all failed, or an error that upstreams did not cause.
    """
    reading = _Reading(registry, me, attachment, keepalive)
    first: FarmError | None = None
    for _ in range(_ATTEMPTS):
        try:
            place = reading.attach()
        except FarmError as error:
            raise _failure(first, error) from error
        try:
            return run(place, Membership(registry, reading.attachment, keepalive))
        except FarmError as error:
            if reading.is_pinned or not _is_of_place(error, place):
                raise
            first = _failure(first, error)
            reading.leave(error)
    raise first or UnavailableError(f"no upstream of {registry.url} serves", hint=f"wlc tier show {registry.url}")


def _failure(first: FarmError | None, error: FarmError) -> FarmError:
    """Return the error of a failed round: a position has expired only if every upstream has pruned it."""
    is_open = isinstance(first, ExpiredError) and not isinstance(error, ExpiredError)
    # A waiting reader reports all reasons, the first among them.
    is_named = isinstance(first, UnavailableError) and first.message in error.message
    return error if is_open or is_named else first or error


def register_paused(
    database: FarmDatabase, me: Replica, attachment: Attachment | None, keepalive: Keepalive | None
) -> None:
    """Register a paused reader: it keeps its upstream and its slot, and chooses nothing.

    Args:
        database: The place that it was given.
        me: The reader and its position, so that pruning keeps the files that it will need.
        attachment: Its stored attachment.
        keepalive: That of a long-running process.
    """
    # The registration only informs others; a failure is harmless.
    with suppress(FarmError):
        if attachment is None:
            register_reader(database, me, None, is_paused=True)
            return
        registry = place_of(database, attachment.registry)
        if keepalive and keepalive.interval_s is None:
            keepalive.interval_s = _interval_s(attachment, read_settings(registry), registry.config())
        place = place_of(database, attachment.pinned or attachment.url or database.url)
        register_reader(place, me, Membership(registry, attachment, keepalive), is_paused=True)


def _interval_s(attachment: Attachment, settings: TierSettings, config: Config) -> float:
    """Return the keepalive interval of a long-running process."""
    return keepalive_interval_s(settings, config.beat_s, max(len(attachment.registries), 1))


def _is_of_place(error: FarmError, place: FarmDatabase) -> bool:
    """Say whether the error is the upstream's rather than the reader's or a transaction's."""
    is_there = error.path is not None and any(_is_in(error.path, url) for url in (place.url, place.logs.url))
    if isinstance(error, UnavailableError):
        return is_there
    return isinstance(error, CorruptError | ExpiredError | MissingError) and (is_there or error.path is None)


def _is_in(path: str, url: str) -> bool:
    return path == url or path.startswith(f"{url}/")


class _Reading:
    """One reader; `attachment` is the one to be stored."""

    def __init__(
        self, registry: FarmDatabase, me: Replica, attachment: Attachment, keepalive: Keepalive | None
    ) -> None:
        self._registry = registry
        self._me = me
        self._keepalive = keepalive
        self.attachment = attachment
        # Upstreams that have pruned the reader's position, and the errors of upstreams left in this round.
        self._too_new: set[str] = set()
        self._left: dict[str, Exclusion] = {}

    @property
    def is_pinned(self) -> bool:
        return bool(self.attachment.pinned)

    def attach(self) -> FarmDatabase:
        """Return the upstream, claimed and with the reader's past."""
        if self.is_pinned:
            return self._pinned()
        try:
            if self.attachment.upstream and self._holds():
                return self._place(self.attachment.url)
            return self._choose()
        except (UnavailableError, MissingError, CorruptError) as error:
            # If the registry is unreachable or damaged, the last choice holds.
            is_registry = error.path is not None and _is_in(error.path, self._registry.url)
            if not (is_registry and self.attachment.upstream):
                raise
            return self._place(self.attachment.url)

    def leave(self, failure: FarmError) -> None:
        """Avoid the upstream for a while, and free its slot."""
        name, settings = self.attachment.upstream, None
        self._left[name] = Exclusion(failure.message)
        if isinstance(failure, ExpiredError):
            self._too_new.add(name)
        with suppress(FarmError):
            settings = read_settings(self._registry)
            self._release()
        if settings is not None:
            penalties = penalized(self.attachment.penalties, name, utc_now(), settings)
            self.attachment = replace(self.attachment, penalties=penalties)
        self.attachment = replace(self.attachment, upstream="", slot=None)

    def _place(self, url: str) -> FarmDatabase:
        return place_of(self._registry, url)

    def _pinned(self) -> FarmDatabase:
        place = self._place(self.attachment.pinned)
        if place.url != self.attachment.url or not self.attachment.upstream:
            name = ORIGIN
            if place.url != self._registry.url:
                name = unregistered_id(place.url)
                with suppress(FarmError):
                    places = upstreams(self._registry)
                    name = next((u.id for u in places if resolved(u.url) == resolved(place.url)), name)
            taken = replace(self.attachment, upstream=name, url=place.url, slot=None, chosen=utc_now())
            with suppress(FarmError):
                # Register with an empty place, too: an operator or pusher may then fill it.
                self._announce(taken)
            try:
                self._prove_position(place)
                self._prove_database(place)
            except MissingError as error:
                raise MissingError(
                    f"{place.url} holds nothing yet", hint=self._filling(place), path=place.url
                ) from error
            before = self.attachment
            try:
                self._move(taken, place)
            except FarmError:
                self._restore(before, place)
                raise
            if before.slot is not None:
                with suppress(FarmError):
                    release_claim(self._registry, Claim(before.upstream, before.slot, self._me.id))
        if self._keepalive and self._keepalive.interval_s is None:
            with suppress(FarmError):
                settings = read_settings(self._registry)
                self._keepalive.interval_s = _interval_s(self.attachment, settings, self._registry.config())
        return place

    def _filling(self, place: FarmDatabase) -> str:
        """Return the command that fills a place with the reader's database."""
        to, is_pushed, has_data = place.url.rpartition("/")[0], False, False
        with suppress(FarmError):
            is_pushed = bool(self._registry.store.list(PUSHES))
            has_data = self._registry.store.exists(CONFIG)
        if is_pushed:
            command = f"wlc tier ship DB --pushes {shlex.quote(self._registry.url)}"
            return f"its pusher has not come yet; where the data comes from: {command}"
        db = shlex.quote(self._registry.url) if has_data else "DB"
        return f"to fill it: wlc tier ship {db} --to {shlex.quote(to)}"

    def _holds(self) -> bool:
        """Say whether the last choice holds: it is not due again, its slot is held, and its upstream is in service."""
        config = self._registry.config()  # None: the registry is unreachable.
        settings, last = read_settings(self._registry), self.attachment
        if self._keepalive:
            self._keepalive.interval_s = _interval_s(self.attachment, settings, config)
        now = utc_now()
        if last.chosen is None or not timedelta(0) <= now - last.chosen < timedelta(seconds=settings.rechoose_s):
            return False
        upstream = find_upstream(self._registry, last.upstream)
        if (upstream is None and last.upstream != ORIGIN) or (upstream is not None and upstream.state == INACTIVE):
            return False
        if last.slot is None:
            return True
        fanout = settings.fanout_of(last.upstream, upstream.fanout if upstream is not None else None)
        claim = read_claim(self._registry, last.upstream, last.slot)
        return last.slot < fanout and claim is not None and claim.holder == self._me.id

    # Choosing --------------------------------------------------------------------------------------------------------

    def _choose(self) -> FarmDatabase:
        reasons: dict[str, Exclusion] = {}
        for _ in range(_ATTEMPTS):
            tree = self._registered_tree()
            # Exclude upstreams that have pruned the reader's position; the others remain candidates, with or without
            # free slots.
            choice = self._choice(tree, but=self._too_new & reasons.keys())
            self._too_new |= {name for name, why in choice.rejected.items() if why.is_expired}
            if not choice.candidates:
                raise self._nothing({**choice.rejected, **reasons})
            for name in self._in_order(choice, tree):
                slot = None
                if not choice.is_over_fanout:
                    slot = self._claimed(tree, name)
                    if slot is None:
                        continue  # Another reader was faster.
                place = self._place(self._url(tree, name))
                taken = replace(self.attachment, upstream=name, url=place.url, slot=slot, chosen=utc_now())
                before = self.attachment
                try:
                    if place.url != self._registry.url:
                        prove_same_database(place, self._registry)
                    self._prove_position(place)
                    self._move(taken, place)
                except FarmError as error:
                    reasons[name] = Exclusion(error.message)
                    self._pass_over(before, taken, place, error)
                    continue
                self._release_others(tree)
                return place
        # An upstream without free slot may hold files that the others have pruned.
        raise self._nothing({**choice.rejected, **reasons})

    def _registered_tree(self) -> Tree:
        """Register before reading: pruning waits from now on, and the registration yields the store's time."""
        config = self._registry.config()  # Do not create an unmounted directory.
        settings = read_settings(self._registry)
        above = self.attachment.upstream
        interval_s = None
        if self._keepalive:
            interval_s = self._keepalive.interval_s = _interval_s(self.attachment, settings, config)
        now = replace(
            self._me,
            seen=utc_now(),
            upstream="" if above == ORIGIN else above,
            class_name=self.attachment.class_name,
            interval_s=interval_s,
        )
        register(self._registry, now)
        return read_tree(self._registry)

    def _choice(self, tree: Tree, but: Collection[str]) -> Choice:
        nodes, among = tree.nodes(), self.attachment.among
        if among:
            by_url = {self._url(tree, node.id): node for node in nodes}
            # An unregistered place serves, too; nothing is known about it.
            nodes = [by_url.get(url) or Node(unregistered_id(url)) for url in among]
        position = self._me.position
        batch, chain = (position.batch, position.chain) if position else (None, "")
        reader = Reader(self._me.id, batch, chain, self.attachment.class_name, self._me.delay_s)
        children = tree.children(but=self._me.id)
        nodes = [node for node in nodes if node.id not in but]
        return choose(nodes, children, reader, self.attachment.penalties, utc_now(), tree.settings)

    def _url(self, tree: Tree, name: str) -> str:
        unknown = {unregistered_id(url): url for url in self.attachment.among}
        return tree.url(name, unknown.get(name, self._registry.url))

    def _in_order(self, choice: Choice, tree: Tree) -> tuple[str, ...]:
        """Return the candidates, the present upstream first unless another one is nearer to the origin."""
        names, present = choice.candidates, self.attachment.upstream
        tiers = tiers_of(tree.nodes())
        if present in names and tiers.get(present) == tiers.get(names[0]):
            return (present, *(name for name in names if name != present))
        return names

    def _claimed(self, tree: Tree, name: str) -> int | None:
        """Claim a free slot of an upstream and return it; None if there is none."""
        held = {claim.slot: claim for claim in tree.claims if claim.upstream == name}
        fanout = tree.fanout(name)
        if own := [slot for slot, claim in held.items() if claim.holder == self._me.id and slot < fanout]:
            return own[0]
        for slot in range(fanout):
            present = held.get(slot)
            if present is not None and tree.is_live(present):
                continue
            if take_claim(self._registry, name, slot, self._me.id, present.holder if present is not None else None):
                return slot
        return None

    def _prove_database(self, place: FarmDatabase) -> None:
        """Refuse a pinned place of another past; skip the check if the registry is unreachable or damaged."""
        if place.url == self._registry.url:
            return
        try:
            prove_same_database(place, self._registry)
        except FarmError as error:
            if error.path == place.url:
                raise

    def _prove_position(self, place: FarmDatabase) -> None:
        """Check that a place continues from the reader's position; the present upstream is not checked again."""
        position = self._me.position
        if position is None or place.url == self.attachment.url:
            place.config()
        elif position.chain or self._me.kind != RELAY:
            prove_same_past(place, position)
        elif not any(place.logs.exists(log_path(place.name, position.batch + more)) for more in (0, 1)):
            # A relay without a key compares bytes while copying.
            message = f"{place.url} does not hold batch {position.batch}, nor the one after it"
            raise ExpiredError(message, path=place.url, position=position)

    def _move(self, taken: Attachment, place: FarmDatabase) -> None:
        """Register with the new upstream, and unregister from the old one if nothing was pruned meanwhile."""
        before = self.attachment
        if place.url != self._registry.url:
            register(place, replace(self._me, seen=utc_now()))
        with suppress(UnavailableError, MissingError, CorruptError):
            self._announce(taken)
        self._prove_position(place)
        self._refuse_circle(taken.upstream)
        self.attachment = taken
        if before.url and before.url not in (taken.url, self._registry.url):
            with suppress(FarmError):
                unregister(self._place(before.url), self._me.id)

    def _pass_over(self, before: Attachment, taken: Attachment, place: FarmDatabase, failure: FarmError) -> None:
        """Avoid an upstream that was claimed, and stay where the reader is registered."""
        self.attachment = taken
        self.leave(failure)
        known = replace(before, penalties=self.attachment.penalties)
        self.attachment = replace(known, upstream="", slot=None) if before.upstream == taken.upstream else known
        self._restore(self.attachment, place)

    def _restore(self, before: Attachment, place: FarmDatabase) -> None:
        """Restore the former registration, and unregister from an upstream that is not read."""
        with suppress(FarmError):
            self._announce(before)
        if place.url not in (before.url, self._registry.url):
            with suppress(FarmError):
                unregister(place, self._me.id)

    def _announce(self, taken: Attachment) -> None:
        refuse_absent(self._registry)
        above = "" if taken.upstream == ORIGIN else taken.upstream
        known = replace(self._me, seen=utc_now(), upstream=above, place=taken.pinned, class_name=taken.class_name)
        register(self._registry, known)

    def _refuse_circle(self, name: str) -> None:
        """Refuse an upstream that now reads from the reader: if two choose each other, both notice."""
        seen: set[str] = set()
        while name not in (ORIGIN, "") and name not in seen:
            seen.add(name)
            if name == self._me.id:
                raise InvalidError(
                    f"{self._me.target} cannot read from a place that reads from it",
                    hint=f"wlc tier show {self._registry.url}",
                )
            try:
                data = self._registry.store.read(replica_path(name))
                name = decode_replica(data, replica_path(name)).upstream
            except (MissingError, CorruptError):
                return

    def _release(self) -> None:
        if self.attachment.slot is not None:
            claim = Claim(self.attachment.upstream, self.attachment.slot, self._me.id)
            release_claim(self._registry, claim)

    def _release_others(self, tree: Tree) -> None:
        kept = self.attachment.upstream, self.attachment.slot
        for claim in tree.claims:
            if claim.holder == self._me.id and (claim.upstream, claim.slot) != kept:
                with suppress(FarmError):
                    release_claim(self._registry, claim)

    def _nothing(self, reasons: dict[str, Exclusion]) -> FarmError:
        why = {**reasons, **{name: left for name, left in self._left.items() if name in reasons}}
        listed = "; ".join(f"{name}: {why[name].why}" for name in sorted(why))
        position = self._me.position
        may_hold = [name for name in reasons.keys() - self._too_new if not reasons[name].is_lasting]
        if position and self._too_new & reasons.keys() and not may_hold:
            replicate = f"Make the replica anew: wlr replicate {self._registry.url} --into ANOTHER"
            return ExpiredError(
                f"no upstream of {self._registry.url} holds batch {position.batch} of {self._me.target} ({listed})",
                hint=begin_again_hint(self._me.target) if self._me.kind == RELAY else replicate,
                path=self._registry.url,
                position=position,
            )
        return UnavailableError(
            f"no upstream of {self._registry.url} serves {self._me.target} now ({listed})",
            hint=f"wlc tier show {self._registry.url}",
        )
