"""`wlc tier ship`: a relay has the same bytes, can be read in the farm's stead, and is never half a copy."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.oracle import file_contents
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, ExpiredError, GapError, InvalidError, UnavailableError
from wlc.farm.registry import RELAY, replicas
from wlc.farm.seal import keys
from wlc.farm.store.encrypted import MAGIC
from wlc.farm.store.memory import MemoryStore
from wlc.tiers import copying
from wlc.tiers.copying import RunLimit

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Shop:
    """A master `shop`, its farm and a place for a relay."""

    folder: Path
    farm: str
    relay: str

    @property
    def source(self) -> Path:
        return self.folder / "shop.duckdb"

    def write(self, *statements: str) -> None:
        with wlc.connect(self.source) as connection:
            for statement in statements:
                connection.execute(statement)

    def ship(self, **options: object) -> wlc.Shipped:
        return wlc.ship("shop", farm=self.farm, to=self.relay, **options)  # type: ignore[arg-type]

    def objects(self, farm: str) -> dict[str, bytes]:
        """All that a copy must have, with its bytes."""
        store = open_database("shop", farm).store.raw
        return {
            entry.path: store.read(entry.path)
            for entry in store.list()
            if not entry.path.startswith(("replicas/", "upstreams/", "health.json"))
        }


_numbers = iter(range(10**6))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    number = next(_numbers)
    made = Shop(tmp_path, f"memory://farm{number}", f"memory://relay{number}")
    wlc.master(made.source, farm=made.farm, beat_s=3600, create=True)
    made.write("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", "INSERT INTO t SELECT i, i FROM range(50) r(i)")
    return made


@pytest.mark.slow
def test_a_relay_has_the_same_bytes_and_serves_in_the_farms_stead(shop: Shop, tmp_path: Path):
    first = shop.ship()
    assert (first.batches, first.snapshots, first.tick, first.is_verified) == (1, 0, 2, True)
    wlr.replicate("shop", farm=shop.relay, into=(copy := tmp_path / "copy.duckdb"))
    shop.write("UPDATE t SET v = 'new' WHERE id < 5")
    wlc.snapshot(shop.source)
    shop.write("DELETE FROM t WHERE id = 7", "ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 1")
    second = shop.ship()
    assert (second.batches, second.snapshots) == (2, 1)
    assert shop.objects(shop.relay) == shop.objects(shop.farm)
    assert wlr.replicate(into=copy).tick == second.tick == wlc.tick("shop", farm=shop.farm)
    wlr.replicate("shop", farm=shop.farm, into=(other := tmp_path / "other.duckdb"))
    assert file_contents(copy) == file_contents(other)
    assert wlr.verify_farm("shop", farm=shop.relay, full=True).problems == ()
    # A relay of the relay is a relay.
    wlc.ship("shop", farm=shop.relay, to=(below := shop.relay + "below"))
    assert shop.objects(below) == shop.objects(shop.farm)


REQUESTS = ("read", "read_versioned", "list", "exists", "create", "replace")
_methods = {name: getattr(MemoryStore, name) for name in REQUESTS}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the requests that are made, without those that the store in memory makes of itself."""
    made: list[str] = []
    is_inside = False

    def counting(name: str) -> Callable[..., object]:
        def counted(self: MemoryStore, *arguments: object, **options: object) -> object:
            nonlocal is_inside
            if is_inside:
                return _methods[name](self, *arguments, **options)
            made.append(name)
            is_inside = True
            try:
                return _methods[name](self, *arguments, **options)
            finally:
                is_inside = False

        return counted

    for name in REQUESTS:
        monkeypatch.setattr(MemoryStore, name, counting(name))
    return made


@pytest.mark.slow
def test_nothing_new_costs_the_same_requests_at_any_length_of_the_log(shop: Shop, requests: list[str]):
    shop.ship()
    costs = []
    for _ in range(2):
        requests.clear()
        found = shop.ship()
        assert (found.batches, found.files, found.bytes) == (0, 0, 0)
        costs.append(sorted(requests))
        for number in range(100, 105):
            shop.write(f"INSERT INTO t VALUES ({number + 5 * len(costs)}, 'x')")
        shop.ship()
    # Both configurations, the next log file, the relay's registration, and whether it is an upstream still.
    assert costs[0] == costs[1] == ["exists", "exists", "read_versioned", "read_versioned", "read_versioned", "replace"]


@pytest.mark.slow
def test_without_its_key_an_encrypted_farm_is_copied_unread(tmp_path: Path):
    keys.add_key(tmp_path / "farm.key", "encryption")
    secret = {"encryption_key_file": str(tmp_path / "farm.key")}
    shop = Shop(tmp_path, "memory://sealed", "memory://sealed-relay")
    wlc.master(shop.source, farm=shop.farm, beat_s=3600, create=True, storage_options=secret)
    with wlc.connect(shop.source, storage_options=secret) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    wlc.snapshot(shop.source, storage_options=secret)
    assert not shop.ship().is_verified
    with wlc.connect(shop.source, storage_options=secret) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
    assert not shop.ship().is_verified
    assert shop.objects(shop.relay) == shop.objects(shop.farm)
    for upstream in (None, "auto"):
        with pytest.raises(InvalidError, match=r"is encrypted: without the encryption key, no commit time"):
            wlc.ship("shop", farm=shop.farm, to="memory://other-relay", delay="1h", upstream=upstream)
    # What cannot be copied is not waited for by those who prune.
    assert [member.url for member in wlc.tier_tree("shop", farm=shop.farm).members] == [
        f"{shop.farm}/shop",
        f"{shop.relay}/shop",
    ]
    assert wlc.ship("shop", farm=shop.farm, to="memory://read-relay", storage_options=secret).is_verified
    for relay in (shop.relay, "memory://read-relay"):
        into = tmp_path / f"{relay.rpartition('/')[2]}.duckdb"
        assert wlr.replicate("shop", farm=relay, into=into, storage_options=secret).tick == 2
        assert file_contents(into) == file_contents(shop.source)


def _damage_data(farm: FarmDatabase) -> str:
    path = next(entry.path for entry in farm.logs.list("shop_") if entry.path.endswith(".parquet"))
    data = farm.logs.read(path)
    farm.logs.delete(path)
    farm.logs.create(path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    return path


def test_damage_is_named_and_not_copied(shop: Shop):
    path = _damage_data(open_database("shop", shop.farm))
    with pytest.raises(CorruptError, match=rf"{path} is damaged"):
        shop.ship()
    assert shop.objects(shop.relay) == {}
    # It registered first, so that nothing is pruned while a first copy is made.
    assert [(found.kind, found.position) for found in replicas(open_database("shop", shop.farm))] == [(RELAY, None)]


def test_an_object_that_grew_is_not_read(shop: Shop):
    farm = open_database("shop", shop.farm)
    path = next(entry.path for entry in farm.logs.list("shop_") if entry.path.endswith(".parquet"))
    data = farm.logs.read(path)
    farm.logs.delete(path)
    farm.logs.create(path, data + b" ")
    with pytest.raises(CorruptError, match=rf"{path} is damaged: .* has {len(data) + 1} bytes, at most {len(data)}"):
        shop.ship()


class KilledError(Exception):
    """Stands for the end of a process."""


@pytest.mark.slow
def test_a_first_copy_that_is_killed_anywhere_is_completed(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    shop.write("INSERT INTO t VALUES (100, 'x')")
    wlc.snapshot(shop.source)
    shop.write("INSERT INTO t VALUES (101, 'x')")
    expected, create, at = shop.objects(shop.farm), copying.Copier.create, 0
    while True:
        relay, left = f"{shop.relay}-{at}", at

        def create_some(self: copying.Copier, path: str, data: bytes | Path) -> None:
            nonlocal left
            if left == 0:
                raise KilledError(path)
            left -= 1
            create(self, path, data)

        monkeypatch.setattr(copying.Copier, "create", create_some)
        try:
            wlc.ship("shop", farm=shop.farm, to=relay)
            break
        except KilledError:
            monkeypatch.setattr(copying.Copier, "create", create)
            wlc.ship("shop", farm=shop.farm, to=relay)
            assert shop.objects(relay) == expected, f"killed before object {at}"
        at += 1
    # Log files, data files, a manifest and its data file.
    assert at == len(expected) - 1


@pytest.mark.slow
def test_what_is_published_while_the_farm_is_listed_leaves_no_hole(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    shop.ship()
    url = open_database("shop", shop.farm).url
    for name in ("snapshot_ticks", "batch_numbers"):
        listing, is_done = getattr(FarmDatabase, name), False

        def listed(self: FarmDatabase, *, _listing: Callable[..., list[int]] = listing, **options: int) -> list[int]:
            nonlocal is_done
            found = _listing(self, **options)
            if not is_done and self.url == url:
                is_done = True
                shop.write("INSERT INTO t SELECT max(id) + 1, 'x' FROM t")
                wlc.snapshot(shop.source)
            return found

        shop.write("INSERT INTO t SELECT max(id) + 1, 'x' FROM t")
        with monkeypatch.context() as patch:
            patch.setattr(FarmDatabase, name, listed)
            shop.ship()
        shop.ship()
        assert shop.objects(shop.relay) == shop.objects(shop.farm)


@pytest.mark.slow
def test_runs_side_by_side_do_no_harm(shop: Shop):
    for number in range(200, 206):
        shop.write(f"INSERT INTO t VALUES ({number}, 'x')")
    wlc.snapshot(shop.source)
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(shop.ship) for _ in range(3)]:
            future.result()
    assert shop.objects(shop.relay) == shop.objects(shop.farm)


def test_a_lost_batch_is_a_gap_and_the_relay_stays(shop: Shop):
    shop.ship()
    before = shop.objects(shop.relay)
    for number in (300, 301, 302):
        shop.write(f"INSERT INTO t VALUES ({number}, 'x')")
    farm = open_database("shop", shop.farm)
    farm.logs.delete("shop_000000000003")
    with pytest.raises(GapError, match="batch 3 of .* is missing, and the relay does not have it"):
        shop.ship()
    assert shop.objects(shop.relay) == before


@pytest.mark.slow
def test_a_relay_of_a_snapshot_alone_takes_no_other_past(tmp_path: Path):
    shop = Shop(tmp_path, "memory://alone", "memory://alone-relay")
    with duckdb.connect(str(shop.source)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    wlc.master(shop.source, farm=shop.farm, beat_s=3600)
    shop.ship()
    before = shop.objects(shop.relay)
    farm = open_database("shop", shop.farm).store.raw
    for entry in farm.list():
        farm.delete(entry.path)
    (tmp_path / "shop.duckdb").unlink()
    with duckdb.connect(str(shop.source)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    wlc.master(shop.source, farm=shop.farm, beat_s=3600)
    shop.write("INSERT INTO t VALUES (2)")
    with pytest.raises(CorruptError, match="has another snapshot 0 than the relay"):
        shop.ship()
    assert shop.objects(shop.relay) == before


def test_what_is_pruned_while_it_is_copied_unread_is_no_half_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keys.add_key(tmp_path / "farm.key", "encryption")
    secret = {"encryption_key_file": str(tmp_path / "farm.key")}
    shop = Shop(tmp_path, "memory://pruned", "memory://pruned-relay")
    wlc.master(shop.source, farm=shop.farm, beat_s=3600, create=True, storage_options=secret)
    with wlc.connect(shop.source, storage_options=secret) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    farm, listing = open_database("shop", shop.farm), MemoryStore.list

    def listed(self: MemoryStore, prefix: str = "", **options: bool | str) -> object:
        if prefix == "shop_000000000001.d/":
            monkeypatch.setattr(MemoryStore, "list", listing)
            farm.delete_batch(1)
        return listing(self, prefix, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStore, "list", listed)
    with pytest.raises(ExpiredError, match="was pruned while it was copied"):
        shop.ship()
    assert not open_database("shop", shop.relay).logs.list("shop_")


def test_a_key_to_verify_with_is_never_passed_over(shop: Shop, tmp_path: Path):
    keys.add_key(tmp_path / "sign.key", "signing")
    verify = {"verify_key_file": str(tmp_path / "sign.key.pub")}
    farm = open_database("shop", shop.farm)
    farm.logs.create("shop_000000000002", MAGIC + bytes(100))
    with pytest.raises(CorruptError, match="signed"):
        shop.ship(storage_options=verify)
    farm.delete_batch(1)
    with pytest.raises(InvalidError, match="no signature can be verified"):
        shop.ship(storage_options=verify)
    assert shop.objects(shop.relay) == {}


@pytest.mark.slow
def test_another_past_is_refused_and_leaves_the_relay_alone(shop: Shop, tmp_path: Path):
    shop.ship()
    before = shop.objects(shop.relay)
    other = Shop(tmp_path / "other", shop.farm + "-other", shop.relay)
    other.folder.mkdir()
    wlc.master(other.source, farm=other.farm, beat_s=3600, create=True)
    other.write("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", "INSERT INTO t VALUES (1, 'other')")
    for _ in range(2):
        with pytest.raises(CorruptError, match="has another batch 1 than the relay"):
            other.ship()
        other.write("INSERT INTO t SELECT max(id) + 1, 'more' FROM t")
    assert shop.objects(shop.relay) == before
    with pytest.raises(InvalidError, match="is the farm that shop is in"):
        wlc.ship("shop", farm=shop.farm, to=shop.farm)


def test_a_farm_that_was_rolled_back_is_refused(shop: Shop):
    shop.ship()
    farm, config = open_database("shop", shop.farm), open_database("shop", shop.farm).config()
    shop.write("INSERT INTO t VALUES (100, 'new')")
    shop.ship()
    before = shop.objects(shop.relay)
    farm.delete_batch(2)
    farm.change_config(lambda _: config)
    with pytest.raises(CorruptError, match="ends at tick 2, and the relay goes on to batch 2"):
        shop.ship()
    assert shop.objects(shop.relay) == before


@pytest.mark.slow
def test_pruning_waits_for_the_relay_and_a_gap_is_refused(shop: Shop):
    shop.ship()
    assert [(found.kind, found.target) for found in replicas(open_database("shop", shop.farm))] == [
        (RELAY, open_database("shop", shop.relay).url)
    ]
    for number in range(100, 103):
        shop.write(f"INSERT INTO t VALUES ({number}, 'x')")
    wlc.snapshot(shop.source)
    assert wlc.prune("shop", farm=shop.farm, keep_for="0s").keep_batches == (1, 2, 3, 4)
    wlc.prune("shop", farm=shop.farm, deadline=timedelta(0), keep_for="0s")
    with pytest.raises(ExpiredError, match="batch 2 of .* was pruned before the relay had copied it"):
        shop.ship()


@pytest.mark.slow
def test_a_snapshot_waits_for_the_batch_that_it_follows(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shop.ship()
    shop.write("INSERT INTO t VALUES (100, 'x')")
    wlc.snapshot(shop.source)
    listed = FarmDatabase.batch_numbers
    with monkeypatch.context() as behind:
        behind.setattr(FarmDatabase, "batch_numbers", lambda self, after=0: [n for n in listed(self, after) if n < 2])
        assert (shop.ship().tick, open_database("shop", shop.relay).snapshot_ticks()) == (2, [])
    assert wlr.replicate("shop", farm=shop.relay, into=tmp_path / "copy.duckdb", register=False).tick == 2
    assert shop.ship().tick == 3
    assert shop.objects(shop.relay) == shop.objects(shop.farm)


def test_a_relay_keeps_what_it_was_told_to(shop: Shop, requests: list[str]):
    shop.ship(keep="30d")
    wlc.retention("shop", keep_daily=7, farm=shop.relay)
    shop.write("INSERT INTO t VALUES (100, 'x')")
    wlc.snapshot(shop.source)
    shop.ship(keep="60d")
    assert wlc.prune("shop", farm=shop.relay, keep_for="0s").delete_batches == ()
    policy = wlc.retention("shop", farm=shop.relay).policy
    assert policy is not None
    assert (policy.keep, policy.keep_daily) == (timedelta(days=60), 7)
    assert wlc.retention("shop", farm=shop.farm).policy is None
    with pytest.raises(InvalidError, match="soon"):
        shop.ship(keep="soon")
    # What stands already is not written again, and without the option nothing is asked.
    shop.ship(keep="60d")
    asked = len(requests)
    shop.ship(keep="60d")
    with_policy = requests[asked:]
    shop.ship()
    assert len(with_policy) - len(requests[asked + len(with_policy) :]) == 1
    shop.ship(keep="0s")
    assert wlc.prune("shop", farm=shop.relay, keep_for="0s").delete_batches


def test_a_delayed_relay_stays_behind(shop: Shop):
    with pytest.raises(UnavailableError, match="nothing of .* is old enough"):
        shop.ship(delay=timedelta(hours=1))
    assert shop.ship(delay=timedelta(0)).tick == 2
    shop.write("INSERT INTO t VALUES (100, 'new')")
    before = shop.objects(shop.relay)
    late = shop.ship(delay=timedelta(hours=1))
    assert (late.tick, late.files) == (2, 0)
    assert shop.objects(shop.relay) == before
    # What a killed run left of a batch that never came is replaced.
    open_database("shop", shop.relay).logs.create("shop_000000000002.d/0.parquet", b"of another past")
    assert shop.ship().tick == 3
    assert shop.objects(shop.relay) == shop.objects(shop.farm)


def test_files_on_one_disk_are_not_shared(tmp_path: Path):
    shop = Shop(tmp_path, str(tmp_path / "farm"), str(tmp_path / "relay"))
    wlc.master(shop.source, farm=shop.farm, beat_s=3600, create=True)
    shop.write("CREATE TABLE t AS SELECT range AS a FROM range(10)")
    shop.ship()
    assert shop.objects(shop.relay) == shop.objects(shop.farm)
    copies = [file for file in (tmp_path / "relay").rglob("*") if file.is_file()]
    assert all(file.stat().st_nlink == 1 for file in copies)
    assert not [file for file in copies if file.suffix == ".tmp"]


@pytest.mark.slow
def test_what_names_a_file_comes_after_the_file_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shop = Shop(tmp_path, str(tmp_path / "farm"), str(tmp_path / "relay"))
    wlc.master(shop.source, farm=shop.farm, beat_s=3600, create=True)
    for name in "abc":
        shop.write(f"CREATE TABLE {name} AS SELECT range AS i FROM range(10)")
    wlc.snapshot(shop.source)
    done: list[tuple[str, Path]] = []
    link, fsync = os.link, os.fsync

    def opened(descriptor: int) -> Path:
        return Path(f"/proc/self/fd/{descriptor}").resolve()

    def link_and_note(source: str, name: str, *, dst_dir_fd: int, **others: Any) -> None:
        folder = opened(dst_dir_fd)
        done.append(("durable" if ("synchronize", folder / source) in done else "lost", folder / name))
        link(source, name, dst_dir_fd=dst_dir_fd, **others)

    def fsync_and_note(descriptor: int) -> None:
        fsync(descriptor)
        done.append(("synchronize", opened(descriptor)))

    monkeypatch.setattr(os, "link", link_and_note)
    monkeypatch.setattr(os, "fsync", fsync_and_note)
    shop.ship(register=False)
    relay = tmp_path / "relay/shop"
    data = [file for file in relay.rglob("*.parquet") if "wlc_logs" in str(file)]
    logs, (manifest,) = sorted(relay.glob("wlc_logs/shop_*[0-9]")), relay.rglob("manifest.json")
    of_snapshot = list(manifest.parent.glob("*.parquet"))
    at = {path: number for number, (how, path) in enumerate(done) if how == "durable"}

    def is_settled(files: list[Path], before: int) -> bool:
        """Say whether the folder's names were made durable between the creation of files and a moment."""
        return all(("synchronize", file.parent) in done[at[file] : before] for file in files)

    assert len(data) == len(logs) == len(of_snapshot) == 3
    assert sorted(logs, key=at.__getitem__) == logs
    for log in logs:
        assert is_settled([file for file in data if file.parent.name == f"{log.name}.d"], at[log])
    assert is_settled([*of_snapshot, *logs], at[manifest])
    assert is_settled([manifest], at[relay / "wlc.config"])


@pytest.mark.slow
def test_files_are_copied_side_by_side(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    shop.write("CREATE TABLE u AS SELECT range AS i FROM range(10)")
    wlc.snapshot(shop.source)
    create, both = MemoryStore.create, threading.Barrier(4, timeout=20)

    def create_together(self: MemoryStore, path: str, data: bytes | Path) -> None:
        # Two of the batch with both tables, or of the snapshot, each beside those of others.
        if path.endswith(".parquet"):
            both.wait()
        create(self, path, data)

    monkeypatch.setattr(MemoryStore, "create", create_together)
    assert shop.ship(register=False).files == 4
    assert shop.objects(shop.relay) == shop.objects(shop.farm)


@pytest.mark.slow
def test_a_run_that_fails_begins_no_other_file(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    shop.write(*(f"CREATE TABLE t{number} AS SELECT 1 AS i" for number in range(12)))
    wlc.snapshot(shop.source)
    fetch, begun = MemoryStore.fetch, list[str]()

    def fetch_or_fail(self: MemoryStore, path: str, bytes_max: int | None = None) -> Path:
        begun.append(path)
        if path.startswith("shop_"):
            is_begun.wait(20)
            raise UnavailableError("no answer")
        is_begun.set()
        is_stopped.wait(20)
        return fetch(self, path, bytes_max)

    is_begun, is_stopped, stop = threading.Event(), threading.Event(), RunLimit.stop
    monkeypatch.setattr(RunLimit, "stop", lambda self: (stop(self), is_stopped.set()))
    monkeypatch.setattr(MemoryStore, "fetch", fetch_or_fail)
    with pytest.raises(UnavailableError, match="no answer"):
        shop.ship(register=False)
    # The snapshot has 13 files, and eight were on their way.
    assert 1 <= len([path for path in begun if path.startswith("snapshots/")]) <= copying.REQUESTS
    monkeypatch.undo()
    relay = open_database("shop", shop.relay)
    # What was there is checked, and neither read again nor left if it is wrong.
    there = sorted(entry.path for entry in relay.store.list("snapshots/"))
    assert there
    wrong = there[0]
    content = relay.store.read(wrong)
    relay.store.delete(wrong)
    relay.store.create(wrong, bytes(len(content)))
    spent: list[int] = []
    monkeypatch.setattr(RunLimit, "spend", lambda _, size: spent.append(size))
    shop.ship()
    assert shop.objects(shop.relay) == shop.objects(shop.farm)
    assert sum(map(bool, spent)) == 2 * 13 - len(there) + 1


def test_every_byte_of_a_data_file_counts_against_the_rate(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    wlc.snapshot(shop.source)
    shop.write("INSERT INTO t VALUES (100, 'x')")
    spent: list[int] = []
    monkeypatch.setattr(RunLimit, "spend", lambda _, size: spent.append(size))
    done = shop.ship(rate="1k")
    held = shop.objects(shop.relay)
    assert sorted(filter(None, spent)) == sorted(len(data) for path, data in held.items() if path.endswith(".parquet"))
    assert (held, done.snapshots) == (shop.objects(shop.farm), 1)


def test_a_replica_changes_the_place_that_it_reads(shop: Shop, tmp_path: Path):
    shop.ship()
    wlr.replicate("shop", farm=shop.farm, into=(copy := tmp_path / "copy.duckdb"))
    farm, relay = open_database("shop", shop.farm), open_database("shop", shop.relay)
    shop.write("INSERT INTO t VALUES (100, 'new')")
    wlr.replicate(into=copy)
    with pytest.raises(InvalidError, match="does not hold the replica's tick 3 yet"):
        wlr.switch(copy, relay.url)
    shop.ship()
    assert wlr.switch(copy, "shop", farm=shop.relay) == wlr.Switched(3, farm.url, relay.url)
    assert [found.kind for found in replicas(farm)] == [RELAY]
    assert [found.target for found in replicas(relay)] == [str(copy)]
    shop.write("DELETE FROM t")
    assert wlr.replicate(into=copy).tick == 3
    shop.ship()
    assert wlr.replicate(into=copy).tick == 4
    wlr.switch(copy, farm.url)
    assert wlr.status(copy).master == farm.url


def test_another_name_of_the_same_place_keeps_the_registration(tmp_path: Path):
    shop = Shop(tmp_path, str(tmp_path / "farm"), "")
    wlc.master(shop.source, farm=shop.farm, beat_s=3600, create=True)
    shop.write("CREATE TABLE t AS SELECT 1 AS a")
    wlr.replicate("shop", farm=shop.farm, into=(copy := tmp_path / "copy.duckdb"))
    (tmp_path / "link").symlink_to(tmp_path / "farm")
    wlr.switch(copy, "shop", farm=str(tmp_path / "link"))
    assert [found.target for found in replicas(open_database("shop", shop.farm))] == [str(copy)]


@pytest.mark.slow
def test_a_place_with_another_past_is_refused(shop: Shop, tmp_path: Path):
    wlr.replicate("shop", farm=shop.farm, into=(copy := tmp_path / "copy.duckdb"))
    other = Shop(tmp_path / "other", shop.farm + "-other", shop.relay)
    other.folder.mkdir()
    wlc.master(other.source, farm=other.farm, beat_s=3600, create=True)
    other.write("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
    with pytest.raises(CorruptError, match="has another past than the replica"):
        wlr.switch(copy, "shop", farm=other.farm)
    for number in (100, 101):
        shop.write(f"INSERT INTO t VALUES ({number}, 'new')")
    wlc.snapshot(shop.source)
    wlc.prune("shop", farm=shop.farm, deadline=timedelta(0), keep_for="0s")
    with pytest.raises(ExpiredError, match="around batch 1, where the replica stands, was pruned"):
        wlr.switch(copy, "shop", farm=shop.farm)
    assert wlr.status(copy).master == open_database("shop", shop.farm).url


def test_the_command_says_what_it_copied(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    wlc.ship("shop", farm=shop.farm, to=(farm := str(tmp_path / "farm")))
    where = ["tier", "ship", "shop", "--farm", farm, "--to", str(tmp_path / "relay")]
    assert run_app(app, "wlc", [*where, "--limit-rate", "10M"]) == 0
    assert "is_verified  true" in capsys.readouterr().out
    for option, text, hint in (("--limit-rate", "fast", "Write 500k, 10M or 1G."), ("--delay", "soon", "15m")):
        assert run_app(app, "wlc", [*where, option, text]) == 2
        assert hint in capsys.readouterr().err
