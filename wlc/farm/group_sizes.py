"""How many transactions are tried together with one that does not fit alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ONE_BY_ONE = 4


def group_sizes(most: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 8, 16 … and `most` at last: few as a rule, so that nothing else hides behind them."""
    size = 0
    while size < most:
        size = min(size + 1 if size < _ONE_BY_ONE else 2 * size, most)
        yield size
