"""Fill places of a lower tier that may not read the upper one: this process only opens connections outwards."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople, parse_rate
from wlc.farm.lease import Lease
from wlc.farm.registry import INACTIVE, known_replicas
from wlc.masters.lookup import resolve
from wlc.tiers.choice import Node, Reader, is_class_enough
from wlc.tiers.copying import RateLimit
from wlc.tiers.relay import Shipping
from wlc.tiers.same_past import is_same_place
from wlc.tiers.tier_settings import read_settings
from wlc.tiers.tree import Offer
from wlc.tiers.upstreams import ORIGIN, Push, add_push, find_upstream, pushes, remove_push

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.errors import CorruptError
    from wlc.farm.registry import Replica
    from wlc.farm.store import StoredObject
    from wlc.tiers.relay import Shipped
    from wlc.tiers.tier_settings import TierSettings

# Places filled concurrently; each waits for a disk or a network, and one that hangs does not delay the others.
_AT_ONCE = 8
_LEASE = "push.lease"


@dataclass(frozen=True, slots=True)
class Pushed(ForPeople):
    """The result of one round.

    Attributes:
        shipped: Result by place.
        failed: Reason by place or entry that could not be filled.
    """

    shipped: tuple[Shipped, ...]
    failed: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """Bytes copied to all places."""
        return sum(done.bytes for done in self.shipped)


class Pusher:
    """Fills every place in a registry's push list; use it as a context, because it holds leases.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm: the database to push.
        registry: URL of the database's folder with the list; both tiers must reach it.
        class_name: Class of `db`: readers of a higher class are not served.
        farm: URL of the farm, for a bare name.
        rate: Total bytes per second; as text, for example `10M`.
        storage_options: Options of the farm's file system.
        target_options: Options of the file systems of the registry and of the places.

    Examples:
        >>> with wlc.Pusher("sales", "edge/sales") as pusher:
        ...     [place.tick for place in pusher.push().shipped]
        [3]
    """

    def __init__(
        self,
        db: str | os.PathLike[str],
        registry: str,
        *,
        class_name: str = "",
        farm: str | None = None,
        rate: float | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        target_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = resolve(db, farm, storage_options=storage_options)
        self._registry = open_database(registry, storage_options=target_options)
        if self._registry.name != self._source.name:
            message = f"{registry} is of database {self._registry.name}, not of {self._source.name}"
            raise InvalidError(message, hint=f"Give the folder {self._source.name} in the other farm.", path=registry)
        self._class_name = class_name
        self._limit = RateLimit(None if rate is None else parse_rate(rate))
        self._leases: dict[str, Lease] = {}
        self._read: dict[str, tuple[StoredObject, Replica | CorruptError]] = {}
        self._listed: tuple[float, tuple[str, ...], Mapping[str, str]] | None = None

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *_: object) -> None:
        for lease in self._leases.values():
            lease.release()

    @property
    def settings(self) -> TierSettings:
        """Settings of the registry: how often to push, and to read the list."""
        return read_settings(self._registry)

    def push(self) -> Pushed:
        """Copy the source's state to every place; a place that cannot be filled does not delay the others.

        Raises:
            InvalidError: The source was taken out of service, or there is no such database.
            UnavailableError: The source or the registry cannot be reached.
        """
        self._source.config()
        origin = find_upstream(self._source, ORIGIN)
        if origin is not None and origin.state == INACTIVE:
            hint = f"wlc tier upstream {self._source.url} {ORIGIN} --active"
            raise InvalidError(f"{self._source.url} is inactive, so it pushes nothing", hint=hint)
        targets, failed = self._targets()
        for url in [url for url in self._leases if url not in targets]:
            self._leases.pop(url).release()
        shipped: list[Shipped] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for url, done in zip(targets, pool.map(self._fill, targets), strict=True):
                if isinstance(done, FarmError):
                    failed[url] = done.message
                else:
                    shipped.append(done)
        return Pushed(tuple(shipped), failed)

    def _targets(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the URLs of the places to fill, from the cached list."""
        now, settings = time.monotonic(), self.settings
        if self._listed is None or now - self._listed[0] >= settings.push_list_s:
            entries, wrong = pushes(self._registry)
            urls = {entry.to for entry in entries if entry.to}
            if any(not entry.to for entry in entries):
                me = Node("pusher", class_name=self._class_name)
                known, damaged = known_replicas(self._registry, self._read)
                wrong += damaged
                urls |= {
                    replica.place
                    for replica in known
                    if any(entry.matches(replica) for entry in entries)
                    and is_class_enough(me, Reader(replica.id, class_name=replica.class_name), settings)
                }
            self._listed = now, tuple(sorted(urls)), {error.path or "": error.message for error in wrong}
        return self._listed[1], dict(self._listed[2])

    def _fill(self, url: str) -> Shipped | FarmError:
        try:
            target = open_database(url, storage_options=self._registry.storage_options)
            if target.name != self._source.name:
                return InvalidError(f"{url} is not a folder of database {self._source.name}")
            if is_same_place(target, self._source):
                return InvalidError(f"{url} is what is pushed")
            if url not in self._leases:
                self._leases[url] = Lease(target.store.raw, _LEASE)
            else:
                self._check_lease(url)
            # Each place needs separate objects: they are not thread-safe.
            source = open_database(self._source.url, storage_options=self._source.storage_options)
            offer = Offer(None, None, 0.0)
            shipping = Shipping(source, target, None, self._limit, None, offer)
            shipping.before_each = lambda: self._check_lease(url)
            return shipping.run(registers=True, serves=False)
        except FarmError as error:
            return error

    def _check_lease(self, url: str) -> None:
        """Stop if another pusher has taken the place over; the next round requests the lease again."""
        lease = self._leases.get(url)
        if lease is None:
            raise UnavailableError(f"{url} was taken over by another run", path=url)
        try:
            lease.check()
        except UnavailableError:
            self._leases.pop(url, lease).release()
            raise


def push_list(
    registry: str,
    *,
    add: Push | None = None,
    remove: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Push]:
    """Return the entries of a registry after adding or removing one.

    Raises:
        InvalidError: The id to add exists, the id to remove does not; the entry is empty; or there is no such place.

    Examples:
        >>> [entry.id for entry in wlc.push_list("edge/sales")]
        ['edge']
    """
    database = open_database(registry, storage_options=storage_options)
    if add is not None:
        if add.to:
            place = open_database(add.to, storage_options=storage_options)
            if place.name != database.name:
                message = f"{add.to} is a place of database {place.name}, not of {database.name}"
                raise InvalidError(message, hint=f"Give the database's folder, such as URL/{database.name}.")
            add = replace(add, to=place.url)
        add_push(database, add)
    if remove is not None:
        remove_push(database, remove)
    found, wrong = pushes(database)
    if add is None and remove is None:
        if wrong:
            raise wrong[0]
        if not found:
            database.config()  # A missing place has no list.
    return found
