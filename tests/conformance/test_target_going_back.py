"""Going back, and what only some targets can do: what every replica engine must do, continued from `test_target.py`."""

from __future__ import annotations

import itertools
import pkgutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlr
from tests.conformance.targets import OlderDuckDBKind, ParquetKind, SwappingKind
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.lake import to_duckdb
from tests.postgres.held import held_by_duckdb
from wlc.farm.errors import InvalidError, ReplayError, UnsupportedError
from wlc.farm.registry import replicas
from wlr.engine.adapters import target_at
from wlr.engine.contract import DatabaseFile, Facet, Guarded, Lake, Rebuildable, Roles
from wlr.replay import going_back
from wlr.replay.plan.log_steps import Limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.conformance.targets import Kind
    from tests.postgres.held import Held
    from wlr.engine.replica_state import ReplicaState

from tests.conformance.targets import KEYED, modelled, publish_everything, replicate, rows

# Facets --------------------------------------------------------------------------------------------------------------


def remembered(into: str, **options: Any) -> ReplicaState:
    """Replicate with options, and return what the replica remembers then."""
    wlr.replicate(into=into, engine="local", **options)
    return target_at(into).read_state()


def read_files(into: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as reader:
        return reader.execute("SELECT id, v FROM read_parquet(?)", [wlr.files(into, "t")]).fetchall()


def adopted(kind: Kind, farm: HandmadeFarm) -> str:
    """Make a replica beside a table of its owner's."""
    into = kind.new()
    if kind.holds_own:
        kind.write(into, "CREATE TABLE own (x INTEGER)")
    wlr.replicate(farm.url, into=into, tick=2, adopt=True, engine="local")
    return into


def dropped(kind: Kind, farm: HandmadeFarm, into: str) -> Held:
    """Drop an adopted replica, or `into` if there cannot be one; return what is left."""
    place = adopted(kind, farm) if DatabaseFile in kind.facets else into
    wlr.drop(place)
    return kind.held(place)


def unlocked(into: str) -> bool:
    wlr.unlock(into)
    return wlr.status(into).is_unlocked


def locked(into: str) -> bool:
    wlr.lock(into)
    return wlr.status(into).is_unlocked


def retried(into: str) -> list[wlr.Retried]:
    with pytest.raises(ReplayError, match="transaction 3"):
        wlr.replicate(into=into, engine="local")
    wlr.accept(into)
    return wlr.retry(into)


# For each facet: what asks for it, and what is seen where a target has the facet.
FACETS: dict[type[Any], dict[str, tuple[Callable[[Kind, HandmadeFarm, str], object], object]]] = {
    Lake: {
        "--keep": (lambda kind, farm, into: remembered(into, tick=2, keep="3").keep, "3"),
        "--open": (lambda kind, farm, into: remembered(into, tick=2, open_tables="delta").open_tables, "delta"),
        "wlr lake files": (lambda kind, farm, into: read_files(into), [(1, "a")]),
        "wlr lake attach": (lambda kind, farm, into: wlr.attach(into, f"{into}.views").views, ("main.t",)),
        "wlr lake prune": (lambda kind, farm, into: wlr.prune(into, keep="0").ticks, (0, 1)),
    },
    DatabaseFile: {
        "--adopt": (lambda kind, farm, into: set(kind.held(adopted(kind, farm))), {"main.own", "main.t"}),
        "--swap": (lambda kind, farm, into: [remembered(into, tick=2, swap=s).swaps for s in (True, False)], [True, False]),
        "wlr replica drop": (dropped, {"main.own": {}}),
    },
    Roles: {"--access": (lambda kind, farm, into: remembered(into, tick=2, access=True).access, True)},
    Rebuildable: {
        "rebuilding a replica": (lambda kind, farm, into: wlr.replicate(into=into, tick=0, engine="local").tick, 0)
    },
    Guarded: {
        "wlr replica unlock": (lambda kind, farm, into: unlocked(into), True),
        "wlr replica lock": (lambda kind, farm, into: locked(into), False),
        "wlr replica retry": (lambda kind, farm, into: retried(into), [wlr.Retried(3, 0)]),
    },
}  # fmt: skip


@pytest.mark.parametrize("has", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["lacks", "has"])
def test_a_target_has_a_facet_or_refuses_all_that_asks_for_it(
    kind: Kind, farm: HandmadeFarm, into: str, has: bool
) -> None:
    if isinstance(kind, SwappingKind | OlderDuckDBKind):
        pytest.skip("it is a DuckDB file")
    farm.publish([KEYED], [Rows("t", rows(1))], [Rows("t", rows(3), rows(77))])
    replicate(farm, into, 2)
    # A copy of the past does not register by itself.
    wlr.replicate(into=into, tick=2, register=True)
    assert set(FACETS) == set(Facet.__subclasses__())
    target = target_at(into)
    assert {facet for facet in FACETS if facet.of(target)} == kind.facets
    asks = ((facet, *ask) for facet in FACETS if (facet in kind.facets) == has for ask in FACETS[facet].items())
    before = (kind.held(into), [(each.target, each.position) for each in replicas(farm.db)])
    for facet, asked, (ask, seen) in asks:
        if has:
            assert ask(kind, farm, into) == seen, asked
        else:
            with pytest.raises(facet.error, match=rf"is {kind.noun}: {asked} is for {facet.owners}(\n|$)") as caught:
                ask(kind, farm, into)
            assert caught.value.hint
            assert (kind.held(into), [(each.target, each.position) for each in replicas(farm.db)]) == before, asked


# Going back ----------------------------------------------------------------------------------------------------------


def publish_rows(farm: HandmadeFarm) -> None:
    """Publish changes of rows only, after the schema, in four batches."""
    farm.publish([KEYED, "CREATE TABLE bag (x DOUBLE, s VARCHAR)"])
    farm.publish([Rows("t", rows(1, 2, 3))], [Rows("bag", ("0.0, 'x'",) * 3 + ("-0.0::DOUBLE, NULL",))], None)
    farm.publish([Rows("t", rows(2, v="b"), rows(2))], [Rows("t", rows(4), rows(1))], [Rows("t", (), rows(4))])
    farm.publish([Rows("bag", ("5, ''",), ("0.0, 'x'",) * 2)], [Rows("t", rows(1, 2, v="c"), rows(2, v="b"))])


@pytest.mark.slow
def test_going_back_equals_a_new_replica_of_that_tick(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    publish_rows(farm)
    replicate(farm, into)
    for there in (8, 3, 7, 2, 9, 4):
        standing = wlr.tick(into)
        planned = wlr.replicate(into=into, tick=there, engine="local", dry_run=True)
        assert (wlr.tick(into), planned.tick, planned.is_back) == (standing, there, there < standing)
        done = wlr.replicate(into=into, tick=there, engine="local")
        assert done == replace(planned, is_dry_run=False)
        assert done.rebuilt_because == ""
        assert kind.held(into) == modelled(farm, there), f"at tick {there}"
        assert wlr.clock(into) == time_of(there if there != 4 else 3), "4 was rolled back"
        assert all(check.outcome in ("same", "unknown") for check in wlr.verify(into).tables)
    done = wlr.replicate(into=into, until=time_of(2), engine="local")
    assert (done.tick, done.is_back, done.clock) == (2, True, time_of(2))
    assert kind.held(into) == modelled(farm, 2)


@pytest.mark.slow
def test_a_row_that_was_changed_here_cannot_be_undone_silently(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    if not kind.refusal:
        pytest.skip("nobody can write to it")
    publish_rows(farm)
    replicate(farm, into)
    wlr.unlock(into)
    kind.write(into, "UPDATE t SET v = 'mine'")
    wlr.lock(into)
    held = kind.held(into)
    try:
        done = wlr.replicate(into=into, tick=6, engine="local")
    except UnsupportedError as error:
        assert "rebuilding" in error.message
        assert kind.held(into) == held
    else:
        assert "cannot be undone" in done.rebuilt_because
        assert kind.held(into) == modelled(farm, 6)


@pytest.mark.slow
def test_schema_changes_and_emptied_tables_are_not_undone(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    publish_everything(farm)
    replicate(farm, into, 7)
    held = kind.held(into)
    planned = wlr.replicate(into=into, tick=3, engine="local", dry_run=True)
    assert "transaction 5 changes the schema (CREATE TABLE main.bag)" in planned.rebuilt_because
    assert kind.held(into) == held
    try:
        done = wlr.replicate(into=into, tick=3, engine="local")
    except UnsupportedError as error:
        assert (error.hint or "").startswith("Replicate into another place")
        assert (kind.held(into), wlr.tick(into)) == (held, 7)
    else:
        assert (done.tick, done.rebuilt_because) == (3, planned.rebuilt_because)
        assert kind.held(into) == modelled(farm, 3)
        replicate(farm, into)
        assert kind.held(into) == modelled(farm, farm.tick)


@pytest.mark.slow
def test_going_back_that_breaks_off_leaves_a_prefix(
    kind: Kind, farm: HandmadeFarm, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At writes of a state, before and after; `tests.fault.operations` breaks all calls of two engines."""
    publish_rows(farm)
    models = {tick: modelled(farm, tick) for tick in range(2, farm.tick + 1)}
    replicate(farm, into)
    # Several steps, each committed on its own.
    monkeypatch.setattr(going_back, "way_back", partial(going_back.way_back, limits=Limits(transactions=3)))
    owner, name, _ = kind.deaths[-1]
    place = pkgutil.resolve_name(f"wlr.engine.{owner}")
    for number, is_late in ((0, False), (0, True), (1, True)):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, breaking(getattr(place, name), number, is_late=is_late))
            with pytest.raises(KeyboardInterrupt):
                replicate(farm, into, 2)
        assert kind.held(into) == models[wlr.tick(into)], f"write {number}, {is_late}"
        replicate(farm, into, 2)
        assert kind.held(into) == models[2]
        replicate(farm, into)
        assert kind.held(into) == models[farm.tick]


def breaking(write: Callable[..., object], number: int, *, is_late: bool) -> Callable[..., object]:
    """Return a write that breaks off at call `number`, before it or after it."""
    calls = itertools.count()

    def written(*args: object, **options: object) -> object:
        is_broken = next(calls) == number
        if is_broken and not is_late:
            raise KeyboardInterrupt
        done = write(*args, **options)
        if is_broken:
            raise KeyboardInterrupt
        return done

    return written


@pytest.mark.slow
def test_what_was_accepted_may_be_here_so_that_it_is_not_undone(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    """A repair brings what was skipped, and a replica that is made anew does not skip it."""
    if not kind.refusal:
        pytest.skip("nobody can write to it")
    farm.publish([KEYED], [Rows("t", rows(1, 2))], [Rows("t", rows(2, v="b"), rows(2))], [Rows("t", rows(4))])
    replicate(farm, into, 2)
    wlr.unlock(into)
    kind.write(into, "DELETE FROM t WHERE id = 2")
    wlr.lock(into)
    with pytest.raises(ReplayError):
        replicate(farm, into)
    wlr.accept(into)
    replicate(farm, into)
    wlr.repair(into, ["t"])
    held = kind.held(into)
    wlr.unlock(into)
    with pytest.raises(InvalidError, match="is unlocked.*transaction 3 was accepted") as caught:
        replicate(farm, into, 2)
    assert f"wlr replica lock {into}" in str(caught.value.hint)
    wlr.lock(into)
    try:
        assert "accepted" in replicate(farm, into, 2).rebuilt_because
    except UnsupportedError:
        assert kind.held(into) == held
    else:
        assert kind.held(into) == modelled(farm, 2)
        assert wlr.status(into).accepted == ()
        replicate(farm, into)
        assert kind.held(into) == modelled(farm, 4)


@pytest.mark.slow
def test_the_clock_is_that_of_the_last_commit_and_old_ticks_stay(kind: Kind, farm: HandmadeFarm, into: str) -> None:
    farm.publish([KEYED, "CREATE TABLE bag (x INTEGER)"])
    farm.publish([Rows("t", rows(1))], [Rows("bag", ("1",))])
    chain, tick = farm.chain, farm.tick
    farm.publish(None, [Rows("bag", ("2",))])
    replicate(farm, into, 1)
    replicate(farm, into)
    done = replicate(farm, into, 4)
    assert (done.tick, done.clock, wlr.clock(into)) == (4, time_of(3), time_of(3)), "4 was rolled back"
    replicate(farm, into, 3)
    held = kind.held(into)
    # Another past from here on: what was written for a later tick is still a part of this one.
    farm.take_back(chain, tick)
    farm.publish([Rows("t", rows(9))])
    replicate(farm, into)
    if isinstance(kind, ParquetKind):
        wlr.prune(into)
        assert held_by_duckdb(to_duckdb(into, Path(f"{into} at 3.duckdb"), 3)) == held
    assert kind.held(into) == modelled(farm, 4)
