"""A program that was written for DuckDB's connection takes wlc's: it sets `duckdb.connect`, and checks types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_program_replaces_the_function_that_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, copy, other = (str(tmp_path / name) for name in ("s.duckdb", "copy.duckdb", "other.duckdb"))
    duckdb.connect(other).close()
    monkeypatch.setattr(duckdb, "connect", wlc.connect)
    wlc.master(master, farm=str(tmp_path / "farm"), create=True)
    with duckdb.connect(master) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b INTEGER DEFAULT 1 + 1); INSERT INTO t (a) VALUES (1), (2)")
        connection.execute("CREATE VIEW v AS SELECT a FROM t; UPDATE t SET a = 3 WHERE a = 1")
    wlc.snapshot(master)
    assert wlc.flush(master).tick == 4
    wlr.replicate(master, into=copy)
    for place in (master, copy):
        assert wlr.read(place, "t").order("a").fetchall() == [(2, 2), (3, 2)]
    with pytest.raises(InvalidError, match=r"other\.duckdb is not a master"):
        duckdb.connect(other)
