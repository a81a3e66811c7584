"""A lease: who holds it by the store's clock, and what happens to a holder that was halted."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

import wlc
from tests.unit.tiers.test_attaching import farm
from wlc.farm.clock import format_time, utc_now
from wlc.farm.database import open_database
from wlc.farm.errors import UnavailableError
from wlc.farm.lease import Lease
from wlc.farm.store import memory
from wlc.farm.store.memory import MemoryStore
from wlc.tiers.upstreams import Push


def taken_elsewhere(store: MemoryStore, path: str, clock: timedelta = timedelta(0)) -> None:
    said = {"run": "b" * 12, "host": "elsewhere", "process": 1, "seen": format_time(utc_now() + clock)}
    store.delete(path)
    store.create(path, json.dumps(said).encode())


@pytest.mark.parametrize("hours", [-2, 0, 2])
def test_a_holder_lives_by_the_clock_of_the_store(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("memory://leases", {})
    taken_elsewhere(store, "a.lease", timedelta(hours=hours))
    with pytest.raises(UnavailableError, match="in use by process 1 on elsewhere"):
        Lease(store, "a.lease")
    assert [entry.path for entry in store.list()] == ["a.lease"]
    long_ago = utc_now() - timedelta(minutes=3)
    monkeypatch.setitem(memory._arrivals, f"{store.url}/a.lease", long_ago)
    lease = Lease(store, "a.lease")
    lease.check()
    lease.release()


def test_a_pusher_that_was_halted_creates_nothing_after_another_took_over() -> None:
    source = farm(batches=2)
    url = source.url.replace("/shop", "-edge/shop")
    wlc.push_list(url, add=Push("e", to=url))
    with wlc.Pusher(source.url, url) as pusher:
        assert [done.tick for done in pusher.push().shipped] == [2]
        place = open_database(url)
        store = place.store
        place.delete_batch(2)
        assert isinstance(store, MemoryStore)
        taken_elsewhere(store, "push.lease")
        done = pusher.push()
        assert (done.shipped, place.batch_numbers()) == ((), [1])
        assert "was taken over by process 1 on elsewhere" in done.failed[url]
        assert "in use by process 1 on elsewhere" in pusher.push().failed[url]
