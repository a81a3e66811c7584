"""A PostgreSQL replica becomes a master by hand, as the refusal of `wlr promote` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from tests.scenario.test_end_to_end import new_master
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_steps_of_the_hint_make_a_replica_a_master(tmp_path: Path, database_url: str) -> None:
    source = new_master(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'a')")
    wlr.replicate(source, into=database_url)
    with pytest.raises(UnsupportedError, match="the former server's programs cannot be fenced off") as caught:
        wlr.promote(database_url)
    assert "-c 'DROP SCHEMA wlr CASCADE'; wlc master" in str(caught.value.hint)
    execute(database_url, "DROP SCHEMA wlr CASCADE")
    wlc.master(database_url, farm=tmp_path / "farm", name="new")
    try:
        execute(database_url, "INSERT INTO t VALUES (2, 'b')")
        wlc.flush(database_url)
        copy = tmp_path / "copy.duckdb"
        wlr.replicate(str(tmp_path / "farm" / "new"), into=copy)
        assert wlr.verify(copy).tables[0].rows == 2
    finally:
        wlc.stop(database_url)
