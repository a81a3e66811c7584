"""Samples of long lists of cases: all of them in a deep run, otherwise some that DBFARM_SEED chooses."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from tests.fault.processes import seed, wants_all

if TYPE_CHECKING:
    from collections.abc import Sequence

_Case = TypeVar("_Case")


def sampled(cases: Sequence[_Case], most: int) -> list[_Case]:
    """Return so many of the cases in their order; a deep run tries all of them."""
    if wants_all() or most >= len(cases):
        return list(cases)
    chosen = random.Random(seed()).sample(range(len(cases)), most)
    return [cases[number] for number in sorted(chosen)]
