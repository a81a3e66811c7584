"""What is in a farm, and who reads it: `wlc list`, `wlc replicas`, `wlc forget`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from wlc.farm.errors import CorruptError, InvalidError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_farm_and_its_readers_are_listed_whatever_is_wrong_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WLC_FARM", raising=False)
    with pytest.raises(InvalidError, match="no farm is given"):
        wlc.databases()
    for name in ("sales", "shop", "site"):
        site = "oslo" if name == "site" else None
        wlc.master(f"{name}.duckdb", create=True, farm="dbfarm", beat_s=300, site=site)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    wlr.replicate("sales", farm="dbfarm", into="slow.duckdb")
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert run_app(app, "wlc", ["join", "rome.duckdb", "--name", "site", "--farm", "dbfarm", "--site", "rome"]) == 0
    capsys.readouterr()
    wlc.stop("shop.duckdb")
    (tmp_path / "dbfarm" / "notes").mkdir()
    (tmp_path / "dbfarm" / "broken").mkdir()
    (tmp_path / "dbfarm" / "broken" / "wlc.config").write_text("tick=1\n")

    found = {entry.database: entry for entry in wlc.databases()}
    assert list(found) == ["broken", "sales", "shop", "site", "site/sites/rome"]
    assert (found["broken"].state, "wlc.config" in found["broken"].problem) == ("damaged", True)
    sales = found["sales"]
    assert (sales.kind, sales.state, sales.tick, sales.problem) == ("database", "started", 2, "")
    assert sales.bytes == wlc.status("sales", "dbfarm").log_bytes > 0
    assert sales.can_go_back_to == wlc.status("sales", "dbfarm").can_go_back_to
    assert sales.age_s is not None
    assert 0 <= sales.age_s < 3600
    assert (found["shop"].state, found["shop"].age_s, found["site/sites/rome"].kind) == ("stopped", None, "site")
    assert run_app(app, "wlc", ["list", "dbfarm", "--json"]) == 0
    assert [each["database"] for each in json.loads(capsys.readouterr().out)] == list(found)
    with pytest.raises(InvalidError, match="is a database, and not a farm") as caught:
        wlc.databases("dbfarm/sales")
    assert caught.value.hint == f"wlc list {tmp_path / 'dbfarm'}"
    with pytest.raises(InvalidError, match="there is no folder"):
        wlc.databases("nowhere")

    (reader,) = wlc.readers("sales", "dbfarm")
    assert (reader.kind, reader.tick, reader.lag_transactions, reader.is_overdue) == ("replica", 1, 1, False)
    assert reader.lag_s is not None
    assert reader.lag_s > 0
    assert reader.held_bytes == 0
    wlc.snapshot("sales.duckdb")
    assert wlc.readers("sales", "dbfarm")[0].held_bytes == held(tmp_path)
    assert run_app(app, "wlc", ["replicas", "sales", "--farm", "dbfarm"]) == 0
    assert reader.id in capsys.readouterr().out
    assert run_app(app, "wlc", ["forget", "sales", reader.id, "--farm", "dbfarm"]) == 0
    assert wlc.readers("sales", "dbfarm") == []
    (tmp_path / "dbfarm" / "sales" / "replicas" / "x.json").write_text("{}")
    with pytest.raises(CorruptError, match=r"replicas/x\.json"):
        wlc.readers("sales", "dbfarm")


def held(tmp_path: Path) -> int:
    """Size of the first batch, the only one that nobody but the replica needs."""
    first = (tmp_path / "dbfarm" / "sales" / "wlc_logs").glob("sales_000000000001*")
    return sum(file.stat().st_size for each in first for file in (each.rglob("*") if each.is_dir() else [each]))
