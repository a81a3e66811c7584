"""A new master whose farm lies beside it, written to by a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

import wlc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection


@contextmanager
def new_master(path: Path) -> Iterator[Connection]:
    """Make an empty database a master of the folder `farm` beside it; what is written to it is published at the end."""
    duckdb.connect(str(path)).close()
    wlc.master(path, farm=str(path.parent / "farm"))
    with wlc.connect(path) as connection:
        yield connection
    wlc.flush(path)
