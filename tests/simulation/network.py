"""Places that hold farms, and a network to them: requests take time, get lost, or do not come through for a while."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import wlc.farm.database
import wlc.tiers.relay
from wlc.farm.errors import UnavailableError
from wlc.farm.store import memory
from wlc.farm.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.simulation.hub import Hub
    from wlc.farm.store.contract import StoredObjects


@dataclass
class Network:
    """Between processes and places.

    Attributes:
        latency_s: Longest time of a request.
        loss: Part of the requests that get lost, half of them on the way back.
        cut: (process, place) that do not meet at present.
        journal: Hash of all requests so far.
    """

    hub: Hub
    latency_s: float = 0.1
    loss: float = 0.0
    cut: set[tuple[str, str]] = field(default_factory=set)
    _objects: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _journal: Any = field(default_factory=hashlib.sha256)

    @property
    def journal(self) -> str:
        return str(self._journal.hexdigest())

    def erase(self, place: str) -> None:
        """Delete everything that a place holds, as its owner does, who has the key to the room."""
        self._objects[place].clear()

    def store(self, url: str, options: object = None) -> SimulatedStore:
        """Open the store at a URL such as `memory://oslo/sales`."""
        place = url.removeprefix("memory://").partition("/")[0]
        return SimulatedStore(self, place, url, self._objects.setdefault(place, {}))

    def request(self, store: SimulatedStore, name: str, path: str, do: Callable[[], Any], sent: int = 0) -> Any:
        """Make a request of the running process."""
        hub, process = self.hub, self.hub.running
        if process is None:
            return do()
        process.requests[name] += 1
        process.bytes += sent
        self._journal.update(f"{hub.now_s:.6f} {process.name} {name} {store.url}/{path}\n".encode())
        where = f"{store.url}/{path}"
        way_s = hub.random.uniform(0, self.latency_s / 2)
        fate = hub.random.random()
        hub.sleep(way_s)
        if (process.name, store.place_name) in self.cut or fate < self.loss / 2:
            hub.sleep(self.latency_s)
            raise UnavailableError(f"{where} does not answer", path=where)
        try:
            found = do()
        finally:
            hub.sleep(way_s)
        if fate < self.loss:
            raise UnavailableError(f"the answer of {where} was lost", path=where)
        process.bytes += len(found) if isinstance(found, bytes) else 0
        return found

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let the product open these places."""
        arrived = dict(memory._arrivals)
        with pytest.MonkeyPatch.context() as patch:
            for module in (wlc.farm.database, wlc.tiers.relay):
                patch.setattr(module, "open_store", self.store)
            yield
        memory._arrivals.clear()
        memory._arrivals.update(arrived)


class SimulatedStore(MemoryStore):
    """A store at a place, to which every request goes through the network."""

    def __init__(self, network: Network, place: str, url: str, objects: dict[str, bytes]) -> None:
        super().__init__(url, objects)
        self.network, self.place_name = network, place

    def read(self, path: str) -> bytes:
        return bytes(self._request("read", path, lambda: MemoryStore.read(self, path)))

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.read(path)
        return data, hashlib.sha256(data).hexdigest()

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        found: StoredObjects = self._request(
            "list", prefix, lambda: MemoryStore.list(self, prefix, recursive=recursive, after=after)
        )
        return found

    def exists(self, path: str) -> bool:
        return bool(self._request("exists", path, lambda: MemoryStore.exists(self, path)))

    def create(self, path: str, data: bytes | Path) -> None:
        content = data if isinstance(data, bytes) else data.read_bytes()
        self._request("create", path, lambda: MemoryStore.create(self, path, content), len(content))

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        return str(self._request("replace", path, lambda: MemoryStore.replace(self, path, data, version), len(data)))

    def delete(self, path: str) -> None:
        self._request("delete", path, lambda: MemoryStore.delete(self, path))

    def _request(self, name: str, path: str, do: Callable[[], Any], sent: int = 0) -> Any:
        return self.network.request(self, name, path, do, sent)
