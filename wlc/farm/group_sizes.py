"""Group sizes to try for a transaction that does not apply alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ONE_BY_ONE = 4


def group_sizes(most: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 8, 16 … and finally `most`: small groups first, so that they hide no other failure."""
    size = 0
    while size < most:
        size = min(size + 1 if size < _ONE_BY_ONE else 2 * size, most)
        yield size
