"""`wlr serve` with a PostgreSQL master: it publishes, a replica follows, and both end when they are told to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import wlc
import wlr
from tests.postgres.cluster import execute
from wlr.service import supervisor
from wlr.service.job_states import Board, ServiceMemory
from wlr.service.settings_file import read_settings
from wlr.service.supervisor import Service

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.postgres.cluster import Cluster

PATIENCE_S = 120.0


def test_a_master_is_published_and_its_slot_is_seen(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_OBSERVE_EVERY_S", 0.2)
    source = cluster.create_database()
    execute(source, "CREATE TABLE t (a INTEGER PRIMARY KEY)")
    wlc.master(source, farm=str(tmp_path / "farm"), name="shop", beat_s=0)
    file = tmp_path / "dbfarm.toml"
    file.write_text(
        f'[farms.main]\nurl = "farm"\n[masters.shop]\nsource = "{source}"\n'
        '[replicas.copy]\ndatabase = "shop"\ninto = "copy.duckdb"\n'
    )
    board = Board()
    service = Service(read_settings(file), board, ServiceMemory(tmp_path / "memory.json"))
    service.start()
    try:
        execute(source, "INSERT INTO t SELECT generate_series(1, 10)")
        end = time.monotonic() + PATIENCE_S
        master, copy = board.get(("masters.shop", "publish")), board.get(("replicas.copy", "follow"))
        while copy.rows < 10 or master.observed.retained_bytes is None or copy.observed.lag_transactions != 0:
            assert time.monotonic() < end, (master, copy)
            time.sleep(0.05)
            master, copy = board.get(("masters.shop", "publish")), board.get(("replicas.copy", "follow"))
        assert (master.rows, master.tick, master.failing_since) == (10, copy.tick, None)
    finally:
        service.stop()
    assert wlr.tick(tmp_path / "copy.duckdb") == wlc.tick("shop", str(tmp_path / "farm"))
    assert board.failing() == []
