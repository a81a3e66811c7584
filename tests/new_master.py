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


def make_master(path: Path, *statements: str) -> Path:
    """Make a database that plain statements fill a master of the folder `farm` beside it."""
    with duckdb.connect(str(path)) as plain:
        for statement in statements:
            plain.execute(statement)
    wlc.master(path, farm=str(path.parent / "farm"))
    return path


@contextmanager
def new_master(path: Path) -> Iterator[Connection]:
    """Make an empty database a master of the folder `farm` beside it; what is written to it is published at the end."""
    with wlc.connect(make_master(path)) as connection:
        yield connection
    wlc.flush(path)
