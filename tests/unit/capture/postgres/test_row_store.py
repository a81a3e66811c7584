"""The database of row stores: one after the other uses it, and none finds what an earlier one has left."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from wlc.capture.postgres.row_store import MEMORY_VARIABLE, RowDatabase, RowStore

if TYPE_CHECKING:
    from pathlib import Path


def test_the_next_store_uses_the_database_of_the_last_one(tmp_path: Path) -> None:
    with closing(RowDatabase()) as database:
        stores = []
        for number in range(3):
            stores.append(RowStore(tmp_path / str(number), database))
            stores[-1].close()
        assert len({id(store.connection) for store in stores}) == 1
        found = stores[-1].connection.execute("SELECT current_setting('temp_directory')").fetchall()
        assert found == [(str(tmp_path / "2"),)]


@pytest.mark.slow
def test_a_database_that_has_used_the_disk_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "64MB")
    first = tmp_path / "first"
    with closing(RowDatabase()) as database:
        connection, held_bytes_max = database.lend(first)
        assert 15_000_000 < held_bytes_max < 16_000_001
        connection.execute("CREATE TABLE t AS SELECT range AS a, md5(range::VARCHAR) AS b FROM range(2000000)")
        assert any(first.iterdir()), "nothing was moved to the disk"
        # DuckDB takes no other folder then.
        again, as_before = database.lend(tmp_path / "second")
        assert again is not connection
        assert as_before == held_bytes_max
        assert again.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
