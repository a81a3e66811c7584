"""One operation on one small farm, run with a fault, recovered, and compared with what a sound run leaves."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb

import wlc
import wlr
from tests.fault.breaker import Breaker, Died, abandon_masters, breakable_clock, breakable_database, breakable_store
from tests.lake import lake_contents, surplus
from tests.open_lake import check_open, check_readable
from tests.oracle import Contents, contents, file_contents, replayed
from wlc.capture.duckdb.home import Home
from wlc.farm.clock import utc_now
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FarmError, ReplayError
from wlc.farm.paths import CONFIG
from wlc.farm.store import memory
from wlr.engine.parquet.folder import LEASE, POINTER

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from tests.fault.breaker import Fault

NAME = "sales"


@dataclass
class World:
    """A folder with database files, and a farm.

    Attributes:
        farm: URL or path of the farm; the same in every trial, because a master remembers it.
        states: What the database contained after each of its commits, in order.
    """

    folder: Path
    farm: str
    states: list[Contents] = field(default_factory=list)

    @property
    def source(self) -> Path:
        return self.folder / f"{NAME}.duckdb"

    @property
    def replica(self) -> Path:
        return self.folder / "replica.duckdb"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def url(self) -> str:
        return f"{self.farm}/{NAME}"

    def open(self) -> FarmDatabase:
        return open_database(self.url)

    def note(self, connection: Any) -> None:
        """Remember what the database contains now."""
        self.states.append(contents(connection, NAME))


@dataclass(frozen=True)
class Operation:
    """What is broken, and how its user goes on after it.

    Attributes:
        prepare: Makes the world that the operation starts from.
        run: The operation, a command or a program.
        again: What the user does after a failure; must lead to where an undisturbed run leads.
        meanwhile: What another process does while a call takes long; looks at the farm if omitted.
        is_sound: False where the replica was changed by hand, so that `again` says what it must hold.
        check: What must be so afterwards, besides what holds always.
    """

    name: str
    prepare: Callable[[World], None]
    run: Callable[[World], None]
    again: Callable[[World], None]
    check: Callable[[World], None] = lambda world: None
    meanwhile: Callable[[World], None] | None = None
    is_sound: bool = True


class Bench:
    """Runs an operation as often as there are faults, each time from the same start."""

    def __init__(self, operation: Operation, base: Path, farm: str = "memory://farm") -> None:
        self.operation, self.base, self.farm = operation, base, farm
        self._trials = 0
        with _one_home():
            self._start(operation, base, farm)

    def _start(self, operation: Operation, base: Path, farm: str) -> None:
        start = World(base / "start", farm)
        start.folder.mkdir(parents=True)
        _empty(farm)
        operation.prepare(start)
        self.start, self._objects = start, self._save()
        sound = self._world()
        self.states = start.states
        before = len(start.states)
        with suppress(ReplayError) if not operation.is_sound else nullcontext():
            operation.run(sound)
        # A run that commits notes its states in the sound run only.
        self.states = start.states + sound.states[before:]
        if operation.is_sound:
            _verify(sound, self.states)

    def _save(self) -> dict[str, bytes] | None:
        if self.farm.startswith("memory:"):
            return {key: data for key, data in memory._objects.items() if key.startswith(f"{self.farm}/")}
        saved = self.base / "farm start"
        if self._local.exists():
            shutil.copytree(self._local, saved)
        return None

    @property
    def _local(self) -> Path:
        return type(self.base)(self.farm)

    def _world(self) -> World:
        """A copy of the start."""
        self._trials += 1
        folder = self.base / f"trial {self._trials}"
        shutil.copytree(self.start.folder, folder)
        _empty(self.farm)
        if self._objects is not None:
            memory._objects.update(self._objects)
        elif (self.base / "farm start").exists():
            shutil.copytree(self.base / "farm start", self._local)
        return World(folder, self.farm, list(self.start.states))

    def calls(self, *, store: bool = True) -> list[str]:
        """The calls of the operation that can be broken."""
        with _one_home():
            world = self._world()
            breaker = Breaker(world.folder, self.base / f"image {self._trials}", None, lambda: look_on(world))
            self._broken(world, breaker, store=store)
            shutil.rmtree(world.folder)
            return list(breaker.calls)

    def run(self, fault: Fault, *, store: bool = True) -> Breaker:
        """Run the operation once with a fault at a call of the store, or of the database, and check what it leaves."""
        with _one_home():
            return self._run(fault, store=store)

    def _run(self, fault: Fault, *, store: bool) -> Breaker:
        world = self._world()
        breaker = Breaker(
            world.folder,
            self.base / f"image {self._trials}",
            fault,
            lambda: (self.operation.meanwhile or look_on)(world),
        )
        try:
            try:
                self._broken(world, breaker, store=store)
                if breaker.is_dead:
                    abandon_masters()
                    _forget_lease(breaker.image / "lake")
                    shutil.rmtree(world.folder)
                    world = World(breaker.image, self.farm, world.states)
                _verify_halfway(world, self.states, is_sound=self.operation.is_sound)
                self.operation.again(world)
                breaker.deliver_late()
                _verify(world, self.states)
                self.operation.check(world)
            finally:
                abandon_masters()
        except BaseException as error:
            error.add_note(f"{self.operation.name}: {breaker.broken}")
            raise
        shutil.rmtree(world.folder)
        return breaker

    def _broken(self, world: World, breaker: Breaker, *, store: bool) -> None:
        with ExitStack() as stack:
            stack.enter_context(breakable_clock(breaker.clock))
            stack.enter_context(breakable_store(breaker, breaks=store))
            if not store:
                stack.enter_context(breakable_database(breaker))
            try:
                self.operation.run(world)
            except Died:
                assert breaker.is_dead
            except FarmError:
                # Never another error for what the farm did.
                assert breaker.fault is not None or not self.operation.is_sound
            except duckdb.Error:
                assert not store
        if not breaker.is_dead:
            # The process lives on; whatever it still has open, it gives up as a program that ends does.
            abandon_masters()


def _one_home() -> AbstractContextManager[object]:
    """Let the copies of a world stand for one place: a copy of a master would publish nothing."""
    return patch("wlc.capture.duckdb.shared.home_at", lambda _: Home("host", "boot", "/world", 1, 1))


def _forget_lease(lake: Path) -> None:
    """The process that holds the lease is dead, though its number is ours."""
    if (lake / LEASE).exists():
        said = json.loads((lake / LEASE).read_text())
        (lake / LEASE).write_text(json.dumps({**said, "process": 2**22 + 1}))


def _empty(farm: str) -> None:
    if farm.startswith("memory:"):
        # Other tests of this process keep farms of their own there.
        for key in [key for key in memory._objects if key.startswith(f"{farm}/")]:
            del memory._objects[key]
    else:
        shutil.rmtree(farm, ignore_errors=True)


def _verify_halfway(world: World, states: list[Contents], *, is_sound: bool) -> None:
    """Whatever a fault left: the farm is a prefix, and so is the replica."""
    check_log(world.open())
    state = farm_contents(world)
    assert state is None or state in states, f"the farm holds what never was: {state}"
    if world.replica.exists() and is_sound:
        check_replica(world, states)
    if (world.lake / POINTER).exists():
        held = lake_contents(world.lake)
        assert held in states, f"the Parquet replica holds what never was: {held}"
        assert held == farm_contents(world, wlr.tick(world.lake))
        check_readable(world.lake)
    check_told(world)


def check_told(world: World) -> None:
    """Everybody says how he is, whatever happened."""
    if world.open().store.exists(CONFIG):
        assert wlc.status(NAME, farm=world.farm).state in ("active", "stopped")
    for replica in (world.replica, world.lake):
        if replica.exists() and (replica.is_file() or (replica / POINTER).exists()):
            assert wlr.status(replica).tick == wlr.tick(replica)


def look_on(world: World) -> None:
    """A reader comes by at any moment: what it is given is a prefix of what the master has committed."""
    database = world.open()
    if database.store.exists(CONFIG) and (database.snapshot_ticks() or database.batch_numbers()):
        check_log(database)
        wlr.replicate(NAME, farm=world.farm, into=(other := world.folder.parent / "other.duckdb"), register=False)
        held, expected = file_contents(other), farm_contents(world, wlr.tick(other))
        other.unlink()
        assert held == expected


def check_replica(world: World, states: list[Contents]) -> None:
    """A replica holds exactly what the master had at the tick it claims."""
    held = file_contents(world.replica)
    assert held in states, f"the replica holds what never was: {held}"
    assert held == farm_contents(world, wlr.tick(world.replica))


def _verify(world: World, states: list[Contents]) -> None:
    """After recovery: nothing lost, nothing twice, and both replicas, the old and a new one, catch up."""
    last = check_log(world.open())
    present = file_contents(world.source)
    assert present in states, f"the master holds what never was: {present}"
    assert farm_contents(world) == present
    config = world.open().config()
    numbers = world.open().batch_numbers()
    assert config.tick >= last
    assert config.batches == (numbers[-1] + 1 if numbers else 1)
    if world.replica.exists():
        wlr.replicate(into=world.replica)
        assert file_contents(world.replica) == present
    if (world.lake / POINTER).exists():
        wlr.replicate(into=world.lake, engine="local")
        assert lake_contents(world.lake) == present
        assert surplus(world.lake) == []
        if wlr.status(world.lake).open_tables:
            check_open(world.lake)
    assert wlc.status(world.source).tick == config.tick
    check_times(world)


def check_times(world: World) -> None:
    """Every commit time still leads to the last transaction of that time."""
    numbers = world.open().batch_numbers()
    batches = [world.open().read_batch(number)[0] for number in (numbers[:1] + numbers[-1:])]
    for transaction in (batch.transactions[-1] for batch in batches if batch.transactions[-1].committed):
        assert transaction.committed is not None
        if transaction.committed > utc_now():
            continue
        rehearsed = wlr.replicate(
            NAME,
            farm=world.farm,
            into=world.folder / "never made",
            engine="local",
            until=transaction.committed,
            dry_run=True,
        )
        assert rehearsed.tick >= transaction.tick


def check_log(database: FarmDatabase) -> int:
    """The chain is whole, and no tick was used twice; returns the last tick."""
    last, previous = 0, None
    times: list[datetime] = []
    for number in database.batch_numbers():
        batch, previous = database.read_batch(number, previous)
        ticks = [transaction.tick for transaction in batch.transactions]
        assert ticks == sorted(set(ticks))
        times += [transaction.committed for transaction in batch.transactions if transaction.committed]
        assert times == sorted(times), "commit times fall, so that no time tells where to stop"
        assert ticks[0] > last
        last = ticks[-1]
        for file in batch.files:
            database.release(database.fetch(file))
    return last


def farm_contents(world: World, tick: int | None = None, *, newest: bool = False) -> Contents | None:
    """What the farm says the database contained; None where it says nothing yet.

    Args:
        newest: Begin with the newest snapshot instead of the first.
    """
    database = world.open()
    if not database.snapshot_ticks() and not database.batch_numbers():
        return None
    return _published(world.url, tick, newest, _digest(database))


@functools.lru_cache(maxsize=1024)
def _published(url: str, tick: int | None, newest: bool, digest: str) -> Contents:
    replay = replayed(url, tick)
    if newest:
        ticks = replay.db.snapshot_ticks()
        replay.db.snapshot_ticks = lambda: ticks[-1:]  # type: ignore[method-assign]
    with replay as (connection, catalog):
        return contents(connection, catalog)


def _digest(database: FarmDatabase) -> str:
    """A digest of all that the oracle reads, which most trials have in common."""
    found = hashlib.sha256()
    for number in database.batch_numbers():
        found.update(database.read_batch(number)[1].encode())
    for tick in database.snapshot_ticks():
        found.update(repr(database.read_manifest(tick)).encode())
    return found.hexdigest()
