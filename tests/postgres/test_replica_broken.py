"""Every exchange of a PostgreSQL replica with its server is broken, in every way it can break.

Samples are chosen by DBFARM_SEED, which every test prints; `DBFARM_FAULTS=all` breaks every single one.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg
import pytest

import wlc
import wlr
from tests.fault import operations
from tests.fault.breaker import DIES_AFTER, DIES_BEFORE, FAILS, LOSES_ANSWER, Died, Fault
from tests.fault.processes import seed
from tests.fault.test_engine import breaking
from tests.fault.trial import NAME, World
from tests.pieces import each
from tests.postgres.cluster import execute
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.sound import assert_same
from wlc.farm.errors import FarmError, ReplayError
from wlr.engine.adapters import target_at
from wlr.engine.calculator import connect_free_of
from wlr.engine.postgres import duckdb_folding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.postgres.cluster import Cluster
    from tests.postgres.held import Held

pytestmark = pytest.mark.slow

HOWS = (DIES_BEFORE, DIES_AFTER, FAILS, LOSES_ANSWER)


class Exchanges:
    """Counts what connections send and wait for, and breaks one exchange.

    Args:
        administrator: Ends other connections; its own exchanges do not count.
    """

    def __init__(self, administrator: psycopg.Connection[Any], fault: Fault | None) -> None:
        self.administrator, self.fault = administrator, fault
        self.calls: list[str] = []
        self.is_dead = False

    @property
    def broken(self) -> str:
        """The exchange that was broken, for messages."""
        at = self.fault.at if self.fault else -1
        return f"{self.fault.how} {at}, {self.calls[at]}" if self.fault and at < len(self.calls) else "nothing broken"

    def exchange(self, connection: Any, waited: Any, effect: Callable[[], Any]) -> Any:
        """Let an exchange take effect, or not."""
        if connection is self.administrator:
            return effect()
        if self.is_dead:
            raise Died("a statement after death")
        number = len(self.calls)
        self.calls.append(f"{waited.__qualname__} {str(waited.gi_frame.f_locals.get('query', ''))[:80]}")
        if self.fault is None or self.fault.at != number:
            return effect()
        how = self.fault.how
        if how in (DIES_AFTER, LOSES_ANSWER):
            effect()
        if how in (DIES_BEFORE, DIES_AFTER):
            connection.pgconn.finish()
            self.is_dead = True
            raise Died(self.broken)
        self.administrator.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.pgconn.backend_pid])
        if how == FAILS:
            return effect()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


@contextmanager
def breakable(exchanges: Exchanges) -> Iterator[None]:
    wait = psycopg.Connection.wait

    def breakable_wait(self: Any, waited: Any, *args: Any, **options: Any) -> Any:
        return exchanges.exchange(self, waited, lambda: wait(self, waited, *args, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "wait", breakable_wait)
        yield


class Bench:
    """A farm, and databases that are replicas of it as often as there are faults."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.world, self.cluster = world, cluster
        operations._waiting(world)
        self.middle = wlc.tick(world.url)
        wlc.flush(world.source)
        self.end = wlc.tick(world.url)
        self._numbers = itertools.count()

    @functools.cache  # noqa: B019
    def held(self, tick: int) -> Held:
        """What the master held at a tick."""
        file = self.world.folder / f"at {tick}.duckdb"
        wlr.replicate(NAME, farm=self.world.farm, into=file, tick=tick, register=False)
        return held_by_duckdb(file)

    def replicate(self, url: str, **target: Any) -> None:
        wlr.replicate(NAME, farm=self.world.farm, into=url, **target)

    def copy(self, url: str) -> str:
        name = f"trial{next(self._numbers)}"
        self.cluster.execute(f"CREATE DATABASE {name} TEMPLATE {url.rpartition('/')[2]}")
        return self.cluster.url(name)

    def drop(self, url: str) -> None:
        self.cluster.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def expect_prefix(self, url: str) -> int:
        """The replica holds what the master held at the tick that it claims; returns that, -1 for no replica."""
        state = target_at(url).find_state()
        if state is None:
            assert held_by_postgres(url) == {}
            return -1
        assert held_by_postgres(url) == self.held(state.position.tick), f"at tick {state.position.tick}"
        return state.position.tick

    def expect_end(self, url: str) -> None:
        assert self.expect_prefix(url) == self.end
        assert_same(url)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Bench:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "files").mkdir()
    return Bench(World(folder / "files", str(folder / "farm")), cluster)


@dataclass(frozen=True)
class Operation:
    """What is broken, and how its user goes on; see `tests.fault.trial.Operation`."""

    name: str
    prepare: Callable[[Bench, str], None]
    run: Callable[[Bench, str], None]
    again: Callable[[Bench, str], None]


def nothing(bench: Bench, url: str) -> None:
    """An empty database."""


def to_the_end(bench: Bench, url: str) -> None:
    bench.expect_prefix(url)
    bench.replicate(url)
    bench.expect_end(url)


def be_behind(bench: Bench, url: str) -> None:
    bench.replicate(url, tick=bench.middle)


def to_a_tick(bench: Bench, url: str) -> None:
    bench.replicate(url, tick=bench.middle - 1)


def from_a_tick(bench: Bench, url: str) -> None:
    assert bench.expect_prefix(url) < bench.middle, "further than it was told to go"
    bench.replicate(url)
    bench.expect_end(url)


def spoil(bench: Bench, url: str) -> None:
    """A row is missing that nothing will change."""
    bench.replicate(url, tick=bench.middle)
    wlr.unlock(url)
    execute(url, "DELETE FROM visit WHERE place = 1", "DELETE FROM place WHERE id = 1")
    wlr.lock(url)
    assert {table.table for table in wlr.verify(url).differing} == {"main.place"}


def repair(bench: Bench, url: str) -> None:
    wlr.repair(url, ["place"])


def repair_again(bench: Bench, url: str) -> None:
    """Each row is there once, however often it was asked for."""
    assert wlr.tick(url) == bench.middle
    repair(bench, url)
    to_the_end(bench, url)


def fail(bench: Bench, url: str) -> None:
    """The replica lacks rows that the next transaction removes, so that it fails."""
    bench.replicate(url, tick=bench.middle)
    wlr.unlock(url)
    execute(url, "DELETE FROM visit")
    wlr.lock(url)
    with pytest.raises(ReplayError):
        bench.replicate(url)
    assert failed_tick(url) == bench.middle + 1


def failed_tick(url: str) -> int | None:
    failure = wlr.status(url).failure
    return failure.tick if failure else None


def accept(bench: Bench, url: str) -> None:
    wlr.accept(url)


def accept_again(bench: Bench, url: str) -> None:
    """What was accepted is skipped, once; what it left out comes back by a repair."""
    if failed_tick(url) is not None:
        accept(bench, url)
    assert wlr.status(url).accepted == (bench.middle + 1,)
    assert wlr.tick(url) == bench.middle


OPERATIONS = (
    Operation("first replication", nothing, lambda bench, url: bench.replicate(url), to_the_end),
    Operation("replication", be_behind, lambda bench, url: bench.replicate(url), to_the_end),
    Operation("replication to a tick", nothing, to_a_tick, from_a_tick),
    Operation("repair", spoil, repair, repair_again),
    Operation("accept", fail, accept, accept_again),
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_exchange_with_the_server_breaks(operation: Operation, bench: Bench) -> None:
    start = bench.cluster.create_database()
    operation.prepare(bench, start)
    administrator = psycopg.connect(bench.cluster.url(), autocommit=True)

    def run(fault: Fault | None) -> list[str]:
        url, exchanges = bench.copy(start), Exchanges(administrator, fault)
        try:
            with breakable(exchanges):
                if fault is None:
                    operation.run(bench, url)
                else:
                    # Never another error for what the server did.
                    with suppress(Died, FarmError):
                        operation.run(bench, url)
            operation.again(bench, url)
        except BaseException as error:
            error.add_note(f"{operation.name}: {exchanges.broken}")
            raise
        bench.drop(url)
        return exchanges.calls

    calls = run(None)
    faults = [Fault(how, at) for how in HOWS for at in range(len(calls))]
    wanted = os.environ.get("DBFARM_FAULTS", "3")
    chosen = faults if wanted == "all" else random.Random(seed()).sample(faults, min(int(wanted), len(faults)))
    for fault in each(chosen):
        run(fault)
    administrator.close()
    print(f"{operation.name}: {len(calls)} exchanges, {len(chosen)} of {len(faults)} faults")


def test_an_error_of_duckdb_beside_the_server_is_a_failure_of_the_transaction(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    wlc.master(source, farm=str(tmp_path / "farm"))
    wlr.replicate(source, into=database_url)
    with wlc.connect(source) as connection:
        for value in (1, 2, 3):
            connection.execute(f"INSERT INTO t VALUES ({value})")
    wlc.flush(source)
    with monkeypatch.context() as patch:
        patch.setattr(duckdb_folding, "connect_free_of", breaking(connect_free_of))
        with pytest.raises(ReplayError, match="transaction 2.*INTERNAL Error"):
            wlr.replicate(into=database_url)
    assert (wlr.tick(database_url), wlr.accept(database_url).tick) == (1, 2)
    wlr.replicate(into=database_url)
    assert execute(database_url, "TABLE t ORDER BY i") == [(1,), (3,)]
