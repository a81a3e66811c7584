"""How much a test tries: samples of long lists of cases, and examples of state machines.

A deep run tries all cases; otherwise DBFARM_SEED chooses some.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, settings

from tests.fault.processes import seed, wants_all

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = int(os.environ.get("DBFARM_EXAMPLES", "0"))

_Case = TypeVar("_Case")


def sampled(cases: Sequence[_Case], most: int) -> list[_Case]:
    """Return so many of the cases in their order; a deep run tries all of them."""
    if wants_all() or most >= len(cases):
        return list(cases)
    chosen = random.Random(seed()).sample(range(len(cases)), most)
    return [cases[number] for number in sorted(chosen)]


def machine_settings(examples: int, *, steps: int = 14) -> settings:
    """Return how a state machine runs: so many examples, or as many as DBFARM_EXAMPLES says, then others each time."""
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
