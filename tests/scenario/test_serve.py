"""`wlr serve` as systemd runs it: signals, a wrong file, secrets, kills under load, and a soak.

Docs: docs/service.md.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cli.wlr
import wlc
import wlr
from cli.command import run_app
from tests.lake import folder_of, rebuilt
from tests.oracle import contents, file_contents
from tests.ports import free_port
from tests.scenario.test_secrets_everywhere import VARIABLES
from wlr.service.job_states import Board, ServiceMemory
from wlr.service.jobs import works_of
from wlr.service.settings_file import read_settings
from wlr.service.supervisor import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
SECRET = "C4n4ry"

CONFIG = """\
[farms.main]
url = "farm"

[databases.sales]
keep = "30d"
beat = 0
prune_every = "1h"
drill_every = "1h"

[replicas.copy]
database = "sales"
into = "copy.duckdb"

[replicas.lake]
database = "sales"
into = "lake/"

[feeds.t]
database = "sales"
to = "t.jsonl"

[relays.branch]
database = "sales"
to = "branch"

[derived.part]
database = "sales"
where = "t: a % 3 > 0"
mask = "t: b = truncate:1"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WLC_FARM", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    wlc.master("sales.duckdb", create=True, farm="farm", beat_s=0)
    write("CREATE TABLE t (a INTEGER PRIMARY KEY, b VARCHAR)")
    (tmp_path / "dbfarm.toml").write_text(CONFIG)
    return tmp_path


def write(*statements: str) -> None:
    with wlc.connect("sales.duckdb") as connection:
        for statement in statements:
            connection.execute(statement)


class Running:
    """The service in a process, and what systemd hears of it."""

    def __init__(self, folder: Path, systemd: socket.socket, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.heard: list[str] = []
        # A queue that nobody reads holds ten messages.
        threading.Thread(target=self._listen, args=(systemd,), daemon=True).start()
        self.log = folder / "log.txt"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "cli.wlr", "serve", str(folder / "dbfarm.toml"), *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), **environment},
            )

    def _listen(self, systemd: socket.socket) -> None:
        with suppress(OSError):
            while told := systemd.recv(1000).decode():
                self.heard.append(told)

    def hears(self, wanted: str) -> None:
        """Wait until systemd is told something, after what was waited for before."""
        self.until(lambda: any(re.search(wanted, told) for told in self.heard))
        while not re.search(wanted, self.heard.pop(0)):
            pass

    def until(self, is_so: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def has_logged(self, text: str) -> bool:
        return bool(re.search(text, self.log.read_text()))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, f"exit code {self.process.returncode}: {self.log.read_text()}"


@contextmanager
def service(folder: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    (folder / "notify").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder / "notify"))
        running = Running(folder, systemd, *arguments, **environment)
        try:
            yield running
        finally:
            running.process.kill()
            running.process.wait()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"", str(folder / "notify"))


def page(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


@pytest.mark.slow
def test_as_systemd_runs_it_and_no_secret_is_shown(folder: Path) -> None:
    """One run: ready, watched, a wrong and a right file, a master out of reach, and the end; canaries everywhere."""
    (folder / "key").write_text(f"# {SECRET}\n")
    extra = f"""
[masters.shop]
source = "postgresql://dbfarm@127.0.0.1:{free_port()}/shop"

[service]
heartbeat_url = "http://127.0.0.1:{free_port()}/{SECRET}"
on_failure = ["sh", "-c", "env >{folder}/told.txt", "{SECRET}"]
on_failure_after = "0s"
"""
    (folder / "dbfarm.toml").write_text(CONFIG + extra)
    port = free_port()
    environment = {**dict.fromkeys(VARIABLES, SECRET), "WATCHDOG_USEC": "400000"}
    shown = ("--listen", f"127.0.0.1:{port}", "--metrics", str(folder / "m.prom"), "--verbose", "--log-format", "json")
    with service(folder, *shown, **environment) as running:
        running.hears("READY=1")
        running.hears("WATCHDOG=1")
        running.until(lambda: running.has_logged("replicas.copy follow") and running.has_logged("masters.shop publish"))
        write("INSERT INTO t VALUES (1, 'a')")
        running.until(lambda: 'dbfarm_tick{item="replicas.copy",work="follow"} 2.0' in page(port, "/metrics"))
        running.until(lambda: 'dbfarm_lag_seconds{item="replicas.copy",work="follow"} ' in page(port, "/metrics"))
        running.until((folder / "told.txt").exists)
        health = json.loads(page(port, "/healthz"))
        assert [each["item"] for each in health["failing"]] == ["masters.shop"]
        pages = page(port, "/metrics") + page(port, "/healthz")

        (folder / "dbfarm.toml").write_text(CONFIG + extra + "prune_often = 1\n")
        running.process.send_signal(signal.SIGHUP)
        running.hears(r"RELOADING=1\nMONOTONIC_USEC")
        running.hears("READY=1")
        line = (folder / "dbfarm.toml").read_text().count("\n")
        assert running.has_logged(f"dbfarm.toml, line {line}: service.prune_often: there is no such key")
        (folder / "dbfarm.toml").write_text(CONFIG + '\n[replicas.more]\ndatabase = "sales"\ninto = "more.duckdb"\n')
        running.process.send_signal(signal.SIGHUP)
        running.until(lambda: running.has_logged("replicas.more follow"))
        running.stop()
        running.hears("STOPPING=1")
    assert file_contents(folder / "more.duckdb") == file_contents(folder / "copy.duckdb")
    levels = [json.loads(line)["level"] for line in running.log.read_text().splitlines()]
    assert set(levels) <= {"info", "warning", "error"}
    # The heartbeat was not sent, because something failed; nothing is left of the run but what it is for.
    unit = subprocess.run(
        [sys.executable, "-m", "cli.wlr", "serve", str(folder / "dbfarm.toml"), "--unit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    assert "ExecStart=" in unit
    told = (folder / "told.txt").read_text()
    for text in (running.log.read_text(), pages, unit, (folder / "m.prom").read_text(), told):
        assert SECRET not in text
    assert "DBFARM_ITEM=masters.shop" in told
    assert SECRET not in "".join(file.read_text() for file in (folder / "state").iterdir())


@pytest.mark.slow
def test_a_killed_service_goes_on_where_it_was(folder: Path) -> None:
    """SIGKILL while a master writes without pause; what was not finished is finished by the next run."""
    chosen = [0.4, 1.1, 2.3]
    value = 0
    for pause_s in chosen:
        with service(folder) as running:
            running.hears("READY=1")
            end = time.monotonic() + pause_s
            while time.monotonic() < end:
                value += 1
                write(f"INSERT INTO t VALUES ({value}, 'x')", f"UPDATE t SET b = 'y' WHERE a = {value // 2}")
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
    with service(folder) as running:
        running.hears("READY=1")
        # What a killed run did but did not log any more is not logged by the next one: so there must be more to do.
        value += 1
        write(f"INSERT INTO t VALUES ({value}, 'x')")
        last = wlc.tick("sales", "farm")
        follows = [
            rf"{item} follow: .*tick {last},"
            for item in ("replicas.copy", "replicas.lake", "feeds.t", "relays.branch", "derived.part")
        ]
        running.until(lambda: all(running.has_logged(each) for each in follows))
        running.stop()
    expected = file_contents(folder / "sales.duckdb")["main.t"]
    assert sum(expected.values()) == value
    assert file_contents(folder / "copy.duckdb")["main.t"] == expected
    with rebuilt(folder / "lake") as (connection, catalog):
        assert contents(connection, catalog)["main.t"] == expected
    assert wlc.tick("sales", "branch") == last
    passing = Counter((a, b[:1]) for a, b in wlr.read("sales", "t", farm="farm").fetchall() if a % 3 > 0)
    assert Counter(wlr.read("part", "t", farm="farm").fetchall()) == passing
    assert (wlc.tick("part", "farm"), wlr.verify_farm("part", farm="farm").problems) == (last, ())
    records = [json.loads(line) for line in (folder / "t.jsonl").read_text().splitlines()]
    assert len({json.dumps(record, sort_keys=True) for record in records}) == len(records)


KEPT = """\
[farms.main]
url = "farm"

[databases.sales]
keep = "30d"
prune_every = "1h"
snapshot_from_log_every = "1h"

[relays.branch]
database = "sales"
to = "branch"
keep = "30d"
prune_every = "1h"

[replicas.lake]
database = "sales"
into = "lake/"
keep = "9"
prune_every = "1h"
"""


def pruned_once(folder: Path, text: str) -> dict[str, str]:
    """Run the service until each prune was tried; return what went wrong."""
    (folder / "dbfarm.toml").write_text(text)
    board = Board()
    running = Service(read_settings(folder / "dbfarm.toml"), board, ServiceMemory(folder / "none.json"))
    running.start()
    end = time.monotonic() + PATIENCE_S
    prunes = [standing for standing in board.all() if standing.work == "prune"]
    while not all(
        board.get((each.item, each.work)).last_success or board.get((each.item, each.work)).message for each in prunes
    ):
        assert time.monotonic() < end, board.all()
        time.sleep(0.05)
    running.stop()
    (folder / "none.json").unlink(missing_ok=True)
    return {f"{each.item} {each.work}": each.message for each in board.all() if each.message}


def test_what_deletes_follows_what_says_how_much_is_kept(tmp_path: Path) -> None:
    (tmp_path / "dbfarm.toml").write_text(KEPT)
    works = works_of(read_settings(tmp_path / "dbfarm.toml"))
    assert {work.item: work.follows for work in works if work.name == "prune"} == {
        "databases.sales": ("policy", "snapshot"),
        "relays.branch": ("follow",),
        "replicas.lake": ("follow",),
    }


@pytest.mark.slow
def test_no_prune_of_the_service_goes_by_less_than_its_file_says(folder: Path) -> None:
    """Every kind of place that is pruned: the first prune after a start goes by what the file keeps."""
    wlr.replicate("sales", into="lake", farm="farm", keep="0")
    for value in (1, 2):
        write(f"INSERT INTO t VALUES ({value}, 'x')")
        wlc.snapshot("sales.duckdb")
        wlr.replicate("sales", into="lake", farm="farm")
    wlc.ship("sales", to="branch", farm="farm")
    for place in ("farm", "branch"):
        for file in Path(place).rglob("*"):
            os.utime(file, (0, 0))

    def held() -> list[list[int]]:
        places = [wlc.resolve("sales", farm) for farm in ("farm", "branch")]
        return [
            *(place.batch_numbers() for place in places),
            [tick for tick, *_ in folder_of("lake").manifests(3)],
        ]

    everything = held()
    assert [len(each) for each in everything] == [3, 3, 4]
    without = KEPT.replace('keep = "30d"\n', "")
    refusals = pruned_once(folder, without)
    assert sorted(refusals) == ["databases.sales prune", "relays.branch prune"]
    assert all("has no retention policy" in message for message in refusals.values())
    assert held()[:2] == everything[:2]
    for farm in ("farm", "branch"):
        wlc.retention("sales", keep="0s", farm=farm)
    assert pruned_once(folder, KEPT) == {}
    assert held() == everything
    assert pruned_once(folder, KEPT.replace('"30d"', '"0s"').replace('"9"', '"0"')) == {}
    assert [len(each) for each in held()] == [1, 1, 1]


def test_a_wrong_file_starts_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dbfarm.toml").write_text(CONFIG.replace("into = ", "onto = ", 1))
    assert run_app(cli.wlr.app, "wlr", ["serve"]) == 2
    assert "line 12: replicas.copy.onto: there is no such key" in capsys.readouterr().err
    (folder / "dbfarm.toml").write_text(CONFIG)
    assert run_app(cli.wlr.app, "wlr", ["serve", "--check", "--json"]) == 0
    listed = [(each["item"], each["work"]) for each in json.loads(capsys.readouterr().out)]
    assert ("databases.sales", "drill") in listed
    assert ("replicas.copy", "follow") in listed
    assert sorted(path.name for path in folder.iterdir()) == ["dbfarm.toml", "farm", "sales.duckdb"]


def test_where_nothing_runs_a_wrong_file_is_an_error_and_no_log_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "dbfarm.toml").write_text(CONFIG.replace("into = ", "onto = ", 1))
    for option in ("--check", "--unit", "--install"):
        assert run_app(cli.wlr.app, "wlr", ["serve", option]) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert run_app(cli.wlr.app, "wlr", ["serve", "--user", "ann"]) == 2
    assert "--user goes with --unit or --install (hint: wlr serve dbfarm.toml --unit)" in capsys.readouterr().err


def test_a_unit_is_installed_and_systemd_finds_it_hard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    assert run_app(cli.wlr.app, "wlr", ["serve", "--install", "--folder", str(folder)]) == 0
    assert "systemctl daemon-reload" in capsys.readouterr().out
    file = folder / "dbfarm.service"
    assert "Type=notify\n" in file.read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: the unit's text was checked, systemd's opinion was not asked")
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # The threshold is in tenths.
    secure = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", str(file)]
    done = subprocess.run(secure, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.deep
def test_memory_and_handles_of_a_service_stay_flat(folder: Path) -> None:
    """For DBFARM_SOAK_MINUTES: the last third of it uses no more than the second one, but for little."""
    minutes = float(os.environ.get("DBFARM_SOAK_MINUTES") or 0.3)
    found: list[tuple[int, int]] = []
    with service(folder, "--metrics", str(folder / "m.prom")) as running:
        running.hears("READY=1")
        end, value = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < end:
            value += 1
            write(f"INSERT INTO t VALUES ({value}, 'x')")
            time.sleep(0.2)
            pages = int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1])
            handles = len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))
            found.append((pages * resource.getpagesize(), handles))
        running.stop()
    third = len(found) // 3
    (memory_before, handles_before), (memory, handles) = (
        tuple(max(each[place] for each in part) for place in (0, 1))
        for part in (found[third : 2 * third], found[2 * third :])
    )
    print(
        f"{len(found)} samples: {memory_before / 1e6:.0f} then {memory / 1e6:.0f} MB, {handles_before} then {handles} handles"
    )
    assert memory <= 1.15 * memory_before + 20e6
    assert handles <= handles_before + 5
