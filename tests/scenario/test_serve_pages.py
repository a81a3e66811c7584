"""The pages that `wlr serve --listen` shows: over HTTP, with the facts of `wlc report`."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from wlr.care.report_page import report_page
from wlr.service.health import Attendant
from wlr.service.http_server import Pages
from wlr.service.job_states import Board
from wlr.service.settings import ServiceOptions
from wlr.service.settings_file import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG = """\
[farms.main]
url = "farm"
[databases.main]
name = "sales"
farm = "main"
[replicas.copy]
farm = "main"
database = "sales"
into = "c.duckdb"
"""
MORE = """\
[farms.other]
url = "other"
[relays.away]
farm = "other"
database = "sales"
to = "main"
"""


def get(port: int | None, path: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    wlc.master("sales.duckdb", create=True, farm="farm", beat_s=0)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE parrots (i INTEGER)")
    (tmp_path / "dbfarm.toml").write_text(CONFIG)
    return tmp_path / "dbfarm.toml"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def served(config: Path) -> Iterator[tuple[Attendant, Pages, Clock]]:
    clock = Clock()
    pages = Pages(read_settings(config), clock)
    attendant = Attendant(ServiceOptions(listen="127.0.0.1:0"), Board(), pages)
    yield attendant, pages, clock
    attendant.close()


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    report: Callable[..., wlr.DatabaseReport] = wlr.report
    monkeypatch.setattr(wlr, "report", lambda db, **given: (made.append(db), report(db, **given))[1])
    return made


@pytest.mark.slow
def test_the_only_database_is_shown_live_with_the_facts_of_the_report(served, monkeypatch) -> None:
    attendant, _, clock = served
    made = counting(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(lambda path: get(attendant.port, path), ["/", "/sales", "/?again", "/"] * 4))
    ((status, kind, page),) = answers
    assert (status, kind, made) == (200, "text/html; charset=utf-8", ["sales"])
    moment = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|is \d+s old|[\d.]+ [kMGT]?B free")
    expected = report_page(wlr.report("sales", farm="farm"))
    assert "parrots" not in page
    assert moment.sub("", page) == moment.sub("", expected)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO parrots VALUES (1)")
    assert get(attendant.port, "/")[2] == page
    clock.now += 11
    assert "parrots" in get(attendant.port, "/")[2]
    assert get(attendant.port, "/nope")[0] == get(attendant.port, "/../etc/passwd")[0] == 404


def test_several_databases_are_listed_and_what_cannot_be_shown_says_why(served, config, monkeypatch) -> None:
    attendant, pages, clock = served
    config.write_text(CONFIG + MORE)
    pages.change(read_settings(config))
    status, kind, page = get(attendant.port, "/")
    assert (status, kind, re.findall('href="([^"]*)"', page)) == (
        200,
        "text/html; charset=utf-8",
        ["/other/sales", "/sales"],
    )
    status, kind, page = get(attendant.port, "/other/sales")
    assert (status, kind) == (501, "text/plain; charset=utf-8")
    assert "sales" in page
    assert get(attendant.port, "/sales")[0] == 200
    clock.now += 100
    monkeypatch.setattr("wlr.care.report_page.find_spec", lambda name: None if name == "plotly" else name)
    assert get(attendant.port, "/sales") == (
        501,
        "text/plain; charset=utf-8",
        "a page needs packages that are not installed: plotly\npip install 'dbfarm[report]'\n",
    )
    (config.parent / "farm" / "sales" / "wlc.config").write_text("tick=1\n")
    clock.now += 100
    status, _, page = get(attendant.port, "/sales")
    assert (status, "wlc.config" in page) == (503, True)
