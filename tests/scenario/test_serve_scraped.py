"""Debian's Prometheus scrapes `wlr serve`, and understands the dashboard and the alert rules that come along."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import wlc
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
PATIENCE_S = 120.0
CONFIG = '[farms.main]\nurl = "farm"\n[replicas.copy]\ndatabase = "sales"\ninto = "copy.duckdb"\n'


def expressions() -> list[str]:
    """Return what the dashboard asks for, with values in place of its variables."""
    panels = json.loads((CONTRIB / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [each.replace("$job", ".*").replace("$__rate_interval", "5m") for each in asked]


@contextmanager
def running(*command: object, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{Path(str(command[0])).name}.log").open("wb") as log:
        process = subprocess.Popen([*map(str, command)], cwd=folder, stdout=log, stderr=log, env=os.environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def ask(port: int, path: str, **query: str) -> Any:
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError:
        # It does not listen yet.
        return {"result": []}


@pytest.mark.deep
def test_prometheus_scrapes_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which("prometheus", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("no prometheus: Debian's package of this name has it; sh tests/run.sh --deep installs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    wlc.master("sales.duckdb", create=True, farm="farm", beat_s=0)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (1)")
    tick = wlc.tick("sales", farm="farm")
    (tmp_path / "dbfarm.toml").write_text(CONFIG)
    shutil.copy(CONTRIB / "alerts.yml", tmp_path)
    service, server = free_port(), free_port()
    (tmp_path / "prometheus.yml").write_text(
        "global: { scrape_interval: 1s }\nrule_files: [alerts.yml]\nscrape_configs:\n"
        f"  - job_name: dbfarm\n    static_configs: [{{ targets: ['127.0.0.1:{service}'] }}]\n"
    )
    listen = f"127.0.0.1:{service}"
    # Debian's program has the folders of its package as defaults.
    places = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
    with (
        running(sys.executable, "-m", "cli.wlr", "serve", "dbfarm.toml", "--listen", listen, folder=tmp_path),
        running(program, *places, f"--web.listen-address=127.0.0.1:{server}", folder=tmp_path) as prometheus,
    ):
        wanted, until = 'dbfarm_tick{item="replicas.copy"}', time.monotonic() + PATIENCE_S
        values: list[str] = []
        while values != [str(tick)]:
            assert prometheus.poll() is None, (tmp_path / "prometheus.log").read_text()
            assert time.monotonic() < until, values
            time.sleep(0.2)
            values = [each["value"][1] for each in ask(server, "query", query=wanted)["result"]]
        for expression in expressions():
            assert "result" in ask(server, "query", query=expression), expression
        (target,) = ask(server, "targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert ask(server, "rules")["groups"][0]["rules"]
