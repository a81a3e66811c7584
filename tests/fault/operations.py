"""The operations that are broken call by call: each a small farm, what is done to it, and how its user goes on."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.trial import NAME, Operation, check_log, check_replica, farm_contents
from tests.lake import lake_contents
from tests.oracle import file_contents
from wlc.capture.duckdb import packed
from wlc.capture.duckdb.shared import close_shared, open_shared
from wlc.farm.database import open_database
from wlc.farm.errors import ReplayError
from wlc.farm.paths import CONFIG
from wlc.farm.registry import replicas
from wlr.engine.duckdb.swapping import lock_of, spare_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tests.fault.trial import World
    from wlc.farm.database import FarmDatabase

SEED = """
    CREATE TABLE place (id INTEGER PRIMARY KEY, name VARCHAR);
    INSERT INTO place VALUES (1, 'here'), (2, 'there'), (3, 'nowhere');
    CREATE TABLE visit (place INTEGER REFERENCES place (id), note VARCHAR);
    INSERT INTO visit VALUES (1, 'a'), (1, 'a'), (2, NULL);
    CREATE SEQUENCE ids START 10;
    CREATE VIEW busy AS SELECT place, count(*) AS visits FROM visit GROUP BY place;
"""

# Each line is one transaction. Rows of `visit` have twins, so that one published twice or not at all shows.
FIRST = (
    "INSERT INTO visit VALUES (2, 'b'), (2, 'b')",
    "UPDATE place SET name = 'home' WHERE id = 3",
    "ALTER TABLE visit ADD COLUMN stars INTEGER DEFAULT 3",
    "DELETE FROM visit WHERE note = 'a'",
)
SECOND = (
    "BEGIN; CREATE TABLE tag (word VARCHAR); INSERT INTO tag VALUES ('x'), ('x'); DELETE FROM visit; COMMIT",
    "INSERT INTO place SELECT nextval('ids'), 'new' FROM range(3)",
    "BEGIN; INSERT INTO tag VALUES ('never'); ROLLBACK",
    "BEGIN; ALTER TABLE tag RENAME TO label; UPDATE label SET word = 'y'; COMMIT",
    "INSERT INTO visit VALUES (2, 'again', 5)",
)


def _create(world: World) -> None:
    with duckdb.connect(str(world.source)) as connection:
        connection.execute(SEED)
        world.note(connection)


def _become_master(world: World, beat_s: float = 300) -> None:
    _create(world)
    wlc.master(world.source, farm=world.farm, beat_s=beat_s)


def _write(world: World, statements: tuple[str, ...]) -> None:
    """Commit, without publishing: the connection is dropped as if the process were killed."""
    connection = wlc.connect(world.source)
    shared = connection._shared
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "ROWS", 3)
        for statement in statements:
            connection.execute(statement)
            world.note(connection)
    connection._finalizer.detach()
    connection._raw.close()
    if shared.publisher is not None:
        shared.publisher.stop()
    close_shared(shared)


def _flushed(world: World) -> None:
    _become_master(world)
    _write(world, FIRST)
    wlc.flush(world.source)


def _waiting(world: World) -> None:
    """A master with a published batch and a journal."""
    _flushed(world)
    _write(world, SECOND)


def _published(world: World) -> None:
    _waiting(world)
    wlc.flush(world.source)


def _with_replica(world: World) -> None:
    _flushed(world)
    wlr.replicate(NAME, farm=world.farm, into=world.replica)
    _write(world, SECOND)
    wlc.flush(world.source)


def _with_swapping_replica(world: World) -> None:
    """Twice, so that there is a spare, which is behind."""
    _flushed(world)
    for tick in (1, 2):
        wlr.replicate(NAME, farm=world.farm, into=world.replica, swap=True, tick=tick)
    _write(world, SECOND)
    wlc.flush(world.source)


def _is_not_behind(world: World) -> None:
    """What the next round would write to is level, or one round behind, and nothing else is left."""
    names = {path.name for path in world.folder.iterdir() if world.replica.name in path.name}
    beside = {spare_of(world.replica).name, lock_of(world.replica).name}
    assert names <= {world.replica.name, *beside}
    assert wlr.status(world.replica).tick == wlc.tick(NAME, farm=world.farm)


def _is_master(world: World) -> bool:
    shared = open_shared(str(world.source))
    try:
        return shared.is_master
    finally:
        close_shared(shared)


def _master(world: World) -> None:
    wlc.master(world.source, farm=world.farm)


def _master_again(world: World) -> None:
    if not _is_master(world):
        _master(world)
    _go_on(world)


def _flush(world: World) -> None:
    wlc.flush(world.source)


def _set_beat(world: World) -> None:
    wlc.beat(world.source, 60)
    wlc.flush(world.source)


def _flush_each(world: World) -> None:
    wlc.beat(world.source, 0)
    wlc.flush(world.source)


def _go_on(world: World) -> None:
    """What was going on is finished, then work goes on as if nothing had happened."""
    wlc.flush(world.source)
    with wlc.connect(world.source) as connection:
        connection.execute("INSERT INTO place VALUES (99, 'later')")
        connection.execute("DELETE FROM place WHERE id = 99")
    wlc.flush(world.source)


def _commit(world: World) -> None:
    """A program with beat 0: every commit publishes."""
    with wlc.connect(world.source) as connection:
        for statement in (*FIRST[:2], *SECOND[:3]):
            connection.execute(statement)
            world.note(connection)


def _snapshot(world: World) -> None:
    wlc.snapshot(world.source)


def _snapshot_again(world: World) -> None:
    _snapshot(world)
    _go_on(world)


def _has_snapshot(world: World) -> None:
    """The newest snapshot alone makes the same replica, without the log before it."""
    assert farm_contents(world, newest=True) == file_contents(world.source)


def _stop(world: World) -> None:
    wlc.stop(world.source)


def _stop_again(world: World) -> None:
    if _is_master(world):
        _stop(world)
    assert wlc.status(NAME, farm=world.farm).state == "stopped"


def _restarts(world: World) -> None:
    """Whatever happened, the stopped database becomes a master again."""
    _master(world)
    _go_on(world)
    _has_snapshot(world)


def _stopped(world: World) -> None:
    _waiting(world)
    _stop(world)


def _replicate(world: World) -> None:
    wlr.replicate(NAME, farm=world.farm, into=world.replica)


def _replicate_lake(world: World) -> None:
    wlr.replicate(NAME, farm=world.farm, into=world.lake, engine="local")


def _replicate_open_lake(world: World) -> None:
    wlr.replicate(NAME, farm=world.farm, into=world.lake, engine="local", open_tables="delta")


def _with_open_lake(world: World) -> None:
    _flushed(world)
    _replicate_open_lake(world)
    _write(world, SECOND)
    wlc.flush(world.source)


def _with_lake(world: World) -> None:
    _flushed(world)
    _replicate_lake(world)
    _write(world, SECOND)
    wlc.flush(world.source)


def _with_replica_behind(world: World) -> None:
    _flushed(world)
    wlr.replicate(NAME, farm=world.farm, into=world.replica, tick=2)
    _write(world, SECOND)
    wlc.flush(world.source)
    (world.folder / "time of 6").write_text(_time_of(world, 6).isoformat())


def _replicate_to_a_tick(world: World) -> None:
    """Into a replica that may or may not be there."""
    wlr.replicate(NAME, farm=world.farm, into=world.replica, tick=6)


def _replicate_to_a_time(world: World) -> None:
    wlr.replicate(NAME, farm=world.farm, into=world.replica, until=(world.folder / "time of 6").read_text())


def _time_of(world: World, tick: int) -> datetime:
    database = world.open()
    batches = (database.read_batch(number)[0] for number in database.batch_numbers())
    return next(t.committed for batch in batches for t in batch.transactions if t.tick == tick and t.committed)


def _to_the_end(world: World) -> None:
    if world.replica.exists():
        # What was rolled back right after tick 6 changes nothing.
        held = file_contents(world.replica)
        assert held == farm_contents(world, min(wlr.tick(world.replica), 6)), "further than it was told to go"
    _replicate(world)


# Without schema changes. A row and those that refer to it come together, so that no single step undoes all of it.
ROWS = (
    "INSERT INTO place VALUES (60, 'x'), (61, 'y')",
    "INSERT INTO visit VALUES (60, 'n', 1), (60, 'n', 1), (2, NULL, 2)",
    "UPDATE place SET name = 'z' WHERE id IN (3, 61)",
    "DELETE FROM visit WHERE place = 2",
)


def _ahead(world: World) -> None:
    """Both replicas are further than the tick to which they will go back."""
    _flushed(world)
    for statements in (ROWS[:2], ROWS[2:]):
        _write(world, statements)
        wlc.flush(world.source)


def _replica_ahead(world: World) -> None:
    _ahead(world)
    _replicate(world)


def _lake_ahead(world: World) -> None:
    _ahead(world)
    _replicate_lake(world)


def _open_lake_ahead(world: World) -> None:
    _ahead(world)
    _replicate_open_lake(world)


def _go_back(world: World, into: Path, tick: int) -> None:
    wlr.replicate(into=into, tick=tick, engine="local")
    assert wlr.tick(into) == tick
    assert (lake_contents(into) if into == world.lake else file_contents(into)) == farm_contents(world, tick)
    assert wlr.clock(into) == _time_of(world, tick)


def _replica_back(world: World) -> None:
    _go_back(world, world.replica, len(FIRST))


def _replica_anew(world: World) -> None:
    """To a tick before the schema change."""
    _go_back(world, world.replica, 2)


def _lake_back(world: World) -> None:
    _go_back(world, world.lake, len(FIRST))


def _lake_anew(world: World) -> None:
    _go_back(world, world.lake, 2)


def _lake_back_again(world: World) -> None:
    """Files of an earlier tick than the last one can be an old tick's: what a killed run left of them is pruned."""
    _lake_back(world)
    wlr.prune(world.lake)


def _lake_anew_again(world: World) -> None:
    _lake_anew(world)
    wlr.prune(world.lake)


def _damaged(world: World) -> None:
    """The replica lacks a row, so that the transaction in the middle of the next batch that changes it fails."""
    _with_replica(world)
    for statement in ("INSERT INTO place VALUES (50, 'x')", "UPDATE place SET name = 'y' WHERE id = 50", *LATER):
        _write(world, (statement,))
    wlc.flush(world.source)
    wlr.replicate(into=world.replica, tick=_tick_of_damage(world))
    _change_replica(world, "DELETE FROM place WHERE id = 50")


LATER = ("INSERT INTO visit VALUES (2, 'later', 1)", "DELETE FROM place WHERE id = 50")


def _tick_of_damage(world: World) -> int:
    """After this transaction, row 50 is there; the next two change and remove it."""
    return wlc.tick(NAME, farm=world.farm) - 3


def _change_replica(world: World, statement: str) -> None:
    wlr.unlock(world.replica)
    with duckdb.connect(str(world.replica)) as connection:
        connection.execute(statement)
    wlr.lock(world.replica)


def _roll_forward(world: World) -> None:
    wlr.replicate(into=world.replica)


def _put_back(world: World) -> None:
    """Nothing of the transaction that failed was applied, and all before it was; mended, the replica goes on."""
    failure = wlr.status(world.replica).failure
    if failure is not None:
        assert failure.tick == _tick_of_damage(world) + 1
    assert wlr.tick(world.replica) == _tick_of_damage(world)
    _change_replica(world, "INSERT INTO place VALUES (50, 'x')")
    check_replica(world, world.states)
    _roll_forward(world)


def _failed(world: World) -> None:
    _damaged(world)
    with pytest.raises(ReplayError):
        _roll_forward(world)


def _accept(world: World) -> None:
    wlr.accept(world.replica)


def _accept_again(world: World) -> None:
    """What was accepted is skipped, exactly; then the replica is mended for what comes after it."""
    if wlr.status(world.replica).failure is not None:
        _accept(world)
    assert wlr.status(world.replica).accepted == (_tick_of_damage(world) + 1,)
    wlr.replicate(into=world.replica, tick=_tick_of_damage(world) + 1)
    _change_replica(world, "INSERT INTO place VALUES (50, 'y')")
    check_replica(world, world.states)
    _roll_forward(world)


def _bypassed(world: World) -> None:
    """Written to behind the capture's back; a replica of what is published lies beside it."""
    _with_replica(world)
    wlc.flush(world.source)
    wlr.replicate(into=world.replica)
    with duckdb.connect(str(world.source)) as connection:
        connection.execute("DELETE FROM label; INSERT INTO visit VALUES (1, 'secret', 0), (1, 'secret', 0)")
        world.note(connection)


def _repair(world: World) -> None:
    wlc.repair(world.source, published=world.replica)


def _repair_again(world: World) -> None:
    """What a repair has journalled is published by whoever comes next; what it has not is found once more."""
    with warnings.catch_warnings(action="ignore"):
        wlc.flush(world.source)
    wlr.replicate(into=world.replica)
    _repair(world)
    assert not wlc.status(world.source).bypassed
    _go_on(world)


def _prune(world: World) -> None:
    wlc.prune(NAME, farm=world.farm, keep_for="0s")


def _prunable(world: World) -> None:
    _flushed(world)
    for statement in SECOND:
        _write(world, (statement,))
        wlc.flush(world.source)
    wlc.snapshot(world.source)


def _prune_again(world: World) -> None:
    _prune(world)
    database = world.open()
    assert len(database.snapshot_ticks()) == len(database.batch_numbers()) == 1
    _go_on(world)


def _relay(world: World) -> FarmDatabase:
    return open_database(f"{world.farm}/relay/{NAME}")


def _ship(world: World) -> None:
    wlc.ship(NAME, farm=world.farm, to=f"{world.farm}/relay")


def _shipped_before(world: World) -> None:
    _flushed(world)
    _ship(world)
    _write(world, SECOND)
    wlc.flush(world.source)
    wlc.snapshot(world.source)


def _ship_again(world: World) -> None:
    """Whatever a run left, readers are given a prefix; the next run makes the relay equal."""
    relay = _relay(world)
    if relay.store.exists(CONFIG):
        check_log(relay)
        wlr.replicate(NAME, farm=f"{world.farm}/relay", into=(copy := world.folder / "relayed.duckdb"), register=False)
        assert file_contents(copy) == farm_contents(world, wlr.tick(copy))
        copy.unlink()
    _ship(world)


def _is_relayed(world: World) -> None:
    farm, relay = world.open(), _relay(world)
    assert relay.config() == farm.config()
    assert (relay.batch_numbers(), relay.snapshot_ticks()) == (farm.batch_numbers(), farm.snapshot_ticks())
    assert [relay.read_batch(number)[1] for number in relay.batch_numbers()] == [
        farm.read_batch(number)[1] for number in farm.batch_numbers()
    ]
    assert [found.kind for found in replicas(farm)] == ["relay"]
    assert wlr.verify_farm(relay.url, full=True).problems == ()


def _promotable(world: World) -> None:
    """The master's place is taken by a copy, beside another replica at the same tick; its own file lies elsewhere."""
    _published(world)
    _replicate(world)
    _replicate_lake(world)
    copy = world.folder / "copy.duckdb"
    wlr.replicate(NAME, farm=world.farm, into=copy)
    world.source.rename(world.folder / "former.duckdb")
    copy.rename(world.source)


def _promote(world: World) -> None:
    wlr.promote(world.source)


def _promote_again(world: World) -> None:
    with warnings.catch_warnings(action="ignore"):
        _promote(world)
    _go_on(world)


def _is_promoted(world: World) -> None:
    _has_snapshot(world)
    assert [found.target for found in replicas(world.open()) if found.target.endswith("copy.duckdb")] == []
    assert wlr.verify_farm(world.url, full=True).problems == ()


MASTER = Operation("master", _create, _master, _master_again, _has_snapshot)
FLUSH = Operation("flush", _waiting, _flush, _go_on)
FLUSH_EACH = Operation("flush, beat 0", _waiting, _flush_each, _go_on)
COMMIT = Operation("commits, beat 0", lambda world: _become_master(world, 0), _commit, _go_on)
BEAT = Operation("beat", _waiting, _set_beat, _go_on)
SNAPSHOT = Operation("snapshot", _waiting, _snapshot, _snapshot_again, _has_snapshot)
STOP = Operation("stop", _waiting, _stop, _stop_again, _restarts)
RESTART = Operation("master again", _stopped, _master, _master_again, _has_snapshot)
FIRST_REPLICATION = Operation("first replication", _published, _replicate, _replicate)
REPLICATION = Operation("replication", _with_replica, _replicate, _replicate)
SWAP = Operation("replication that swaps", _with_swapping_replica, _replicate, _replicate, _is_not_behind)
LAKE = Operation("first Parquet replication", _published, _replicate_lake, _replicate_lake)
LAKE_FORWARD = Operation("Parquet replication", _with_lake, _replicate_lake, _replicate_lake)
TO_A_TICK = Operation("replication to a tick", _published, _replicate_to_a_tick, _to_the_end)
TO_A_TIME = Operation("replication to a time", _with_replica_behind, _replicate_to_a_time, _to_the_end)
BISECTION = Operation("bisection", _damaged, _roll_forward, _put_back, is_sound=False)
ACCEPTANCE = Operation("accept", _failed, _accept, _accept_again, is_sound=False)
BACK = Operation("going back", _replica_ahead, _replica_back, _replica_back)
BACK_ANEW = Operation("going back to an older schema", _replica_ahead, _replica_anew, _replica_anew)
LAKE_BACK = Operation("Parquet going back", _lake_ahead, _lake_back, _lake_back_again)
LAKE_ANEW = Operation("Parquet going back to an older schema", _lake_ahead, _lake_anew, _lake_anew_again)
OPEN_LAKE = Operation("replication of open tables", _with_open_lake, _replicate_lake, _replicate_lake)
OPEN_LAKE_ANEW = Operation("open tables going back", _open_lake_ahead, _lake_anew, _lake_anew_again)
REPAIR = Operation("repair", _bypassed, _repair, _repair_again)
PRUNE = Operation("prune", _prunable, _prune, _prune_again, _has_snapshot)
SHIP = Operation("first shipping", _published, _ship, _ship_again, _is_relayed)
PROMOTE = Operation("promote", _promotable, _promote, _promote_again, _is_promoted)
SHIP_FORWARD = Operation("shipping", _shipped_before, _ship, _ship_again, _is_relayed)

OPERATIONS = (
    MASTER,
    FLUSH,
    FLUSH_EACH,
    COMMIT,
    BEAT,
    SNAPSHOT,
    STOP,
    RESTART,
    FIRST_REPLICATION,
    REPLICATION,
    TO_A_TICK,
    TO_A_TIME,
    BISECTION,
    ACCEPTANCE,
    LAKE,
    LAKE_FORWARD,
    BACK,
    BACK_ANEW,
    LAKE_BACK,
    LAKE_ANEW,
    REPAIR,
    PRUNE,
    SHIP,
    SHIP_FORWARD,
    OPEN_LAKE,
    OPEN_LAKE_ANEW,
    SWAP,
    PROMOTE,
)
