"""The main job in the stores of other services: master, replicas, a lake, a relay, pruning, verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["google_url", "azure_url", "sftp_url"])
def test_the_main_job(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    url = request.getfixturevalue(kind)
    source, copy, lake = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb", f"{url}/lake"
    duckdb.connect(str(source)).close()
    wlc.master(source, farm=url)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount DECIMAL(9, 2))")
        connection.execute("INSERT INTO orders SELECT range, range * 1.5 FROM range(1000)")
    wlc.flush(source)
    for into in (copy, lake):
        assert wlr.replicate("sales", farm=url, into=into).tick == 2
    with wlc.connect(source) as connection:
        connection.execute("DELETE FROM orders WHERE id % 2 = 0")
    wlc.flush(source)
    wlc.snapshot(source)
    for into in (copy, lake):
        assert wlr.replicate(into=into).tick == 3
    rows = [(500, 375000.0)]
    assert wlr.read("sales", "orders", farm=url).aggregate("count(*), sum(amount)::DOUBLE").fetchall() == rows
    assert wlr.read(lake, "orders").aggregate("count(*), sum(amount)::DOUBLE").fetchall() == rows
    assert not wlr.verify(copy).differing
    assert not wlr.verify(lake).differing
    branch = f"{url}/branch"
    wlc.ship("sales", farm=url, to=branch)
    assert wlr.replicate("sales", farm=branch, into=tmp_path / "far.duckdb").tick == 3
    assert wlc.prune("sales", farm=url, keep_for="0s").delete_batches[0] == 1
    assert not wlr.verify_farm("sales", farm=url).problems
