"""Calls of the store and durable statements of the database are broken, in every way they can break.

Samples are chosen by DBFARM_SEED, which every test prints; `DBFARM_FAULTS=all` breaks every single one.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.fault import operations
from tests.fault.breaker import (
    CLOCKS,
    DELAYS,
    DIES_AFTER,
    DIES_BEFORE,
    FAILS,
    LISTINGS,
    LOSES_ANSWER,
    OMITS,
    REPEATS,
    REPEATS_LATE,
    TEARS,
    Fault,
)
from tests.fault.operations import OPERATIONS
from tests.fault.processes import seed
from tests.fault.trial import Bench
from tests.pieces import each

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault.trial import Operation

# Under load a beat falls due in the middle of an operation; then the thread of the publisher dies as the process would.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

# A call that only reads leaves the same behind whether one dies before or after it, and its answer cannot be lost.
READS = ("read", "read_versioned", "fetch", "list", "exists")


WRITE_FAULTS = (DIES_AFTER, LOSES_ANSWER, TEARS, REPEATS, REPEATS_LATE)


def can_happen(how: str, call: str) -> bool:
    """Whether a fault at a call differs from the same one before it, or from none."""
    if how in LISTINGS:
        # A store lists what was written (docs/format.md): that there is a snapshot is told by nothing else.
        return call.startswith("list ") and not (how == OMITS and "snapshots/" in call)
    if how == REPEATS_LATE and call.endswith("wlr.lease"):
        # A lease that comes back holds others off for two minutes, which is what it is for.
        return False
    return how not in WRITE_FAULTS or call.split()[0] not in READS


# Ways to break: each operation is tried with one of these groups, unless DBFARM_FAULTS wants more.
GROUPS = 12


def sampled(group: int) -> list[Operation]:
    """Return the operations that are tried with a group of faults."""
    if "DBFARM_FAULTS" in os.environ:
        return list(OPERATIONS)
    return [found for number, found in enumerate(OPERATIONS) if number % GROUPS == (group + seed()) % GROUPS]


_calls: dict[tuple[str, bool, bool], list[str]] = {}


def calls_of(bench: Bench, *, store: bool) -> list[str]:
    """Return the calls of an operation; they are the same in every run on such a farm, so one run is enough."""
    key = bench.operation.name, store, "://" in bench.farm
    if key not in _calls:
        _calls[key] = bench.calls(store=store)
    return _calls[key]


def break_each(bench: Bench, hows: tuple[str, ...], *, store: bool = True) -> None:
    """Break calls chosen by DBFARM_SEED: one of them, DBFARM_FAULTS=N of them, or DBFARM_FAULTS=all."""
    calls = calls_of(bench, store=store)
    number = seed()
    faults = [Fault(how, at, number) for how in hows for at, call in enumerate(calls) if can_happen(how, call)]
    if not faults:
        pytest.skip("there is no such call")
    wanted = os.environ.get("DBFARM_FAULTS", "1")
    most = len(faults) if wanted == "all" else min(int(wanted), len(faults))
    chosen = faults if most == len(faults) else random.Random(number).sample(faults, most)
    for fault in each(chosen):
        bench.run(fault, store=store)
    print(f"{bench.operation.name}: {len(calls)} calls, {len(chosen)} of {len(faults)} faults")


@pytest.mark.parametrize("operation", sampled(0), ids=lambda operation: operation.name)
def test_process_dies_at_every_call_of_the_store(operation: Operation, tmp_path: Path):
    bench = Bench(operation, tmp_path)
    break_each(bench, (DIES_BEFORE, DIES_AFTER))


@pytest.mark.parametrize("operation", sampled(1), ids=lambda operation: operation.name)
def test_every_call_of_the_store_fails_or_loses_its_answer(operation: Operation, tmp_path: Path):
    bench = Bench(operation, tmp_path)
    break_each(bench, (FAILS, LOSES_ANSWER))


@pytest.mark.parametrize("operation", sampled(2), ids=lambda operation: operation.name)
def test_process_dies_around_everything_that_makes_the_database_durable(operation: Operation, tmp_path: Path):
    if operation is operations.PRUNE:
        pytest.skip("it writes to no database")
    break_each(Bench(operation, tmp_path), (DIES_BEFORE, DIES_AFTER, FAILS), store=False)


@pytest.mark.parametrize("operation", sampled(3), ids=lambda operation: operation.name)
def test_calls_take_long_or_arrive_twice_or_list_in_another_order(operation: Operation, tmp_path: Path):
    break_each(Bench(operation, tmp_path), (DELAYS, REPEATS, REPEATS_LATE, *LISTINGS))


@pytest.mark.parametrize("operation", sampled(4), ids=lambda operation: operation.name)
def test_clock_jumps_at_every_call_of_the_store(operation: Operation, tmp_path: Path):
    break_each(Bench(operation, tmp_path), tuple(CLOCKS))


@pytest.mark.parametrize("operation", [operations.FLUSH, operations.SNAPSHOT], ids=lambda o: o.name)
def test_uploads_into_a_directory_are_torn(operation: Operation, tmp_path: Path):
    bench = Bench(operation, tmp_path / "bench", str(tmp_path / "farm"))
    break_each(bench, (TEARS,))
