"""What the service shows: metrics in both forms, a page of health, the socket of systemd."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

from wlc import FarmEntry
from wlc.farm.errors import CorruptError, InvalidError, UnavailableError
from wlr.service.health import Attendant, Notifier
from wlr.service.http_server import Listener
from wlr.service.job_states import Board, Done, Observed, WorkStanding
from wlr.service.metrics import Exposition
from wlr.service.settings import ServiceOptions

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
CONTRIB = Path(__file__).parents[3] / "contrib"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def board() -> Board:
    board = Board()

    def copy(standing: WorkStanding) -> WorkStanding:
        entry = FarmEntry("sales", "database", "quiet", "it closed", tick=4, clock=NOW, seen=NOW)
        seen = Observed(lag_s=1.5, lag_transactions=3, free_bytes=10**9, entry=entry)
        return WorkStanding(*(standing.item, standing.work), observed=seen).after(Done(4, NOW, 2, 10, 100), NOW)

    board.change(("replicas.copy", "follow"), copy)
    board.change(
        ("masters.shop", "publish"),
        lambda standing: standing.after_failure(CorruptError("S3cr3t"), NOW).after_failure(
            UnavailableError("S3cr3t"), NOW
        ),
    )
    return board


def test_both_forms_hold_the_same_numbers(board: Board, tmp_path: Path) -> None:
    exposition, file = Exposition(board), tmp_path / "dbfarm.prom"
    exposition.write(file)
    assert list(tmp_path.iterdir()) == [file]
    plain, open_metrics = file.read_text(), exposition.answer(OPENMETRICS)[0].decode()
    assert open_metrics.endswith("# EOF\n")

    def samples(text: str) -> set[str]:
        return {line for line in text.splitlines() if not line.startswith("#")}

    assert samples(plain) == samples(open_metrics)
    labels = '{item="replicas.copy",work="follow"}'
    assert {
        f"dbfarm_lag_seconds{labels} 1.5",
        f"dbfarm_lag_transactions{labels} 3.0",
        f"dbfarm_tick{labels} 4.0",
        f"dbfarm_rows_total{labels} 10.0",
        f"dbfarm_failing{labels} 0.0",
        'dbfarm_failures_total{class="CorruptError",item="masters.shop",work="publish"} 1.0',
    } <= samples(plain)
    (last,) = re.findall(r"^dbfarm_last_success_timestamp_seconds\S+ (\S+)$", plain, re.MULTILINE)
    assert float(last) == NOW.timestamp()
    assert "S3cr3t" not in plain


def promtool(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("no promtool: Debian's package prometheus has it; sh tests/run.sh --deep installs it")
    return subprocess.run([program, *map(str, arguments)], input=text, capture_output=True, text=True)


def test_promtool_finds_nothing_to_say_about_the_metrics(board: Board, tmp_path: Path) -> None:
    file = tmp_path / "dbfarm.prom"
    Exposition(board).write(file)
    done = promtool("check", "metrics", text=file.read_text())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_promtool_accepts_the_alert_rules_and_their_tests() -> None:
    for arguments in (("check", "rules", CONTRIB / "alerts.yml"), ("test", "rules", CONTRIB / "alerts_test.yml")):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alert_rules_are_about_metrics_that_exist(board: Board) -> None:
    known = set(re.findall(r"^# TYPE (\w+)", Exposition(board).answer("")[0].decode(), re.MULTILINE))
    used = set(re.findall(r"\bdbfarm_\w+", (CONTRIB / "alerts.yml").read_text()))
    assert len(used) >= 5
    assert used <= known


def test_the_dashboard_is_about_metrics_that_exist(board: Board) -> None:
    exported = Exposition(board).answer("")[0].decode()
    known = set(re.findall(r"^# TYPE (dbfarm_\w+)", exported, re.MULTILINE))
    dashboard = json.loads((CONTRIB / "dashboard.json").read_text())
    used = set(re.findall(r"\bdbfarm_\w+", json.dumps([dashboard["panels"], dashboard["templating"]])))
    assert used == known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    labels = set(re.findall(r"[{,](\w+)=", exported))
    assert set(re.findall(r"{{(\w+)}}", json.dumps(dashboard))) <= labels


def get(port: int | None, path: str, accept: str = "") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_listener_serves_metrics_and_health(board: Board) -> None:
    attendant = Attendant(ServiceOptions(listen="127.0.0.1:0"), board)
    try:
        status, kind, text = get(attendant.port, "/metrics", OPENMETRICS)
        assert (status, kind.startswith("application/openmetrics-text"), "dbfarm_tick" in text) == (200, True, True)
        assert get(attendant.port, "/metrics")[1].startswith("text/plain")
        status, _, text = get(attendant.port, "/healthz")
        assert (status, json.loads(text)["failing"][0]["item"], "S3cr3t" in text) == (503, "masters.shop", False)
        board.change(("masters.shop", "publish"), lambda standing: standing.after(Done(), NOW))
        assert get(attendant.port, "/healthz")[0] == 200
        assert get(attendant.port, "/etc/passwd")[0] == 404
        with pytest.raises(InvalidError, match="cannot listen on 127.0.0.1"):
            Listener(f"127.0.0.1:{attendant.port}", board, Exposition(board))
        # One that cannot be had leaves the one before as it is.
        taken = socket.create_server(("127.0.0.1", 0))
        with taken, pytest.raises(InvalidError):
            attendant.change(ServiceOptions(listen=f"127.0.0.1:{taken.getsockname()[1]}"))
        assert get(attendant.port, "/healthz")[0] == 200
    finally:
        attendant.close()


def test_systemd_hears_through_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
        notifier = Notifier(told)
        assert notifier.watchdog_s == 15
        notifier.send("READY=1", "STATUS=2 works")
        assert systemd.recv(100) == b"READY=1\nSTATUS=2 works"
        notifier.reloading()
        assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", systemd.recv(100))
        other = Notifier({**told, "WATCHDOG_PID": str(os.getpid() + 1)})
        assert other.watchdog_s is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0dbfarm-{os.getpid()}")
        systemd.settimeout(60)
        Notifier({"NOTIFY_SOCKET": f"@dbfarm-{os.getpid()}"}).send("STOPPING=1")
        assert systemd.recv(100) == b"STOPPING=1"
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")
    Notifier({}).send("READY=1")


def test_a_service_without_metrics_needs_no_package_for_them() -> None:
    blocked = "import sys; sys.modules['prometheus_client'] = None; "
    subprocess.run([sys.executable, "-c", f"{blocked}import wlr.service.supervisor, wlr.service.jobs"], check=True)
    asked = subprocess.run(
        [sys.executable, "-c", f"{blocked}import wlr.service.metrics"], capture_output=True, text=True, check=False
    )
    assert "metrics need a package that is not installed" in asked.stderr
