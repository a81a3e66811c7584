"""Every call of the store and every durable statement of the database is broken once, in every way it can break."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.fault import operations
from tests.fault.breaker import DIES_AFTER, DIES_BEFORE, FAILS, LOSES_ANSWER, TEARS, Fault
from tests.fault.operations import OPERATIONS
from tests.fault.trial import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault.trial import Operation

# A call that only reads leaves the same behind whether one dies before or after it, and its answer cannot be lost.
READS = ("read", "read_versioned", "fetch", "list", "exists")


def is_write(call: str) -> bool:
    return call.split()[0] not in READS


def break_each(bench: Bench, hows: tuple[str, ...], *, store: bool, only_writes: tuple[str, ...] = ()) -> None:
    """Break each call, or, with DBFARM_FAULTS=N, N of them, by a seed that is printed."""
    calls = bench.run(None, store=store).calls
    faults = [
        Fault(how, at) for how in hows for at, call in enumerate(calls) if how not in only_writes or is_write(call)
    ]
    most = int(os.environ.get("DBFARM_FAULTS", len(faults)))
    if most < len(faults):
        seed = int(os.environ.get("DBFARM_SEED", random.randrange(2**32)))
        print(f"DBFARM_SEED={seed} DBFARM_FAULTS={most}")
        faults = random.Random(seed).sample(faults, most)
    for fault in faults:
        bench.run(fault, store=store)
    print(f"{bench.operation.name}: {len(calls)} calls, {len(faults)} faults")
    assert faults


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_process_dies_at_every_call_of_the_store(operation: Operation, tmp_path: Path):
    bench = Bench(operation, tmp_path)
    break_each(bench, (DIES_BEFORE, DIES_AFTER), store=True, only_writes=(DIES_AFTER,))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_call_of_the_store_fails_or_loses_its_answer(operation: Operation, tmp_path: Path):
    bench = Bench(operation, tmp_path)
    break_each(bench, (FAILS, LOSES_ANSWER), store=True, only_writes=(LOSES_ANSWER,))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_process_dies_around_everything_that_makes_the_database_durable(operation: Operation, tmp_path: Path):
    if operation is operations.PRUNE:
        pytest.skip("it writes to no database")
    break_each(Bench(operation, tmp_path), (DIES_BEFORE, DIES_AFTER, FAILS), store=False)


@pytest.mark.parametrize("operation", [operations.MASTER, operations.FLUSH, operations.SNAPSHOT], ids=lambda o: o.name)
def test_uploads_into_a_directory_are_torn(operation: Operation, tmp_path: Path):
    bench = Bench(operation, tmp_path / "bench", str(tmp_path / "farm"))
    break_each(bench, (TEARS,), store=True, only_writes=(TEARS,))
