"""The pages that `wlr serve --listen` shows: over HTTP, with the facts of `wlc farm report`."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.browser import look, needs_browser
from wlc import FarmEntry
from wlc.farm.clock import utc_now
from wlc.farm.database import open_database
from wlc.farm.health import change_health, read_health
from wlr.care.report_page import ListedDatabase, databases_page, report_page
from wlr.service.health import Attendant
from wlr.service.http_server import SCRIPT, Pages
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
    board = Board()
    pages = Pages(read_settings(config), board, clock)
    attendant = Attendant(ServiceOptions(listen="127.0.0.1:0"), board, pages)
    yield attendant, pages, clock
    attendant.close()


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    report: Callable[..., wlr.DatabaseReport] = wlr.report
    monkeypatch.setattr(wlr, "report", lambda db, **given: (made.append(db), report(db, **given))[1])
    return made


@pytest.mark.slow
def test_a_database_is_shown_live_with_the_facts_of_the_report(served, monkeypatch) -> None:
    attendant, _, clock = served
    made = counting(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(lambda path: get(attendant.port, path), ["/sales", "/sales?again"] * 8))
    ((status, kind, page),) = answers
    assert (status, kind, made) == (200, "text/html; charset=utf-8", ["sales"])
    moment = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\d+s ago|is \d+s old|[\d.]+ [kMGT]?B free")
    expected = report_page(wlr.report("sales", farm="farm"), SCRIPT)
    assert "parrots" not in page
    assert moment.sub("", page) == moment.sub("", expected)
    assert '<a href="/">' in page
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO parrots VALUES (1)")
    assert get(attendant.port, "/sales")[2] == page
    clock.now += 11
    assert "parrots" in get(attendant.port, "/sales")[2]
    assert get(attendant.port, "/nope")[0] == get(attendant.port, "/../etc/passwd")[0] == 404


@pytest.mark.slow
def test_the_program_for_charts_is_no_part_of_the_page(served) -> None:
    attendant, _, _ = served
    page = get(attendant.port, "/sales")[2]
    assert len(page) < 100_000
    assert f'src="{SCRIPT}"' in page
    status, kind, program = get(attendant.port, SCRIPT)
    assert (status, kind, "Plotly" in program) == (200, "text/javascript; charset=utf-8", True)
    with urllib.request.urlopen(f"http://127.0.0.1:{attendant.port}{SCRIPT}", timeout=60) as answer:
        assert answer.headers["Cache-Control"] == "max-age=86400"


def test_the_list_says_how_each_database_is_and_what_fails(served, config) -> None:
    attendant, pages, clock = served
    page = get(attendant.port, "/")[2]
    assert ('<strong class="quiet">quiet</strong>' in page, "Works that fail" in page) == (True, False)
    assert "Databases: 1, nothing is wrong" in page
    database = open_database("sales", "farm")
    sign = read_health(database).publisher
    assert sign is not None
    gone = replace(sign, seen=utc_now() - timedelta(hours=1), is_closed=False)
    change_health(database, lambda health: replace(health, publisher=gone, sign_every=timedelta(seconds=1)))
    database.change_config(lambda present: replace(present, write=utc_now() - timedelta(hours=2)))
    pages._board.change(("replicas.copy", "follow"), lambda now: now.after_failure(OSError("<b>full</b>"), utc_now()))
    clock.now += 11
    page = get(attendant.port, "/")[2]
    assert '<strong class="silent">silent</strong>' in page
    assert "has given no sign for 1h, and did not close" in page
    assert "Databases: 1, in need of attention: 1, failing jobs: 1" in page
    assert "&lt;b&gt;full&lt;/b&gt;" in page


@pytest.mark.deep
@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_list_before_and_after_a_fault(served, config, tmp_path, width) -> None:
    attendant, _, clock = served
    seen = look(get(attendant.port, "/")[2], tmp_path, width, "databases")
    assert (seen.errors, seen.needed <= width) == ([], True)
    assert {"sales", "quiet"} <= set(seen.text.split())
    (config.parent / "farm" / "sales" / "wlc.config").write_text("tick=1\n")
    clock.now += 11
    seen = look(get(attendant.port, "/")[2], tmp_path, width, "databases-damaged")
    assert (seen.errors, seen.needed <= width) == ([], True)
    assert {"sales", "damaged"} <= set(seen.text.split())
    assert "wlc.config is damaged" in seen.text


@pytest.mark.deep
@needs_browser
def test_a_browser_sorts_and_filters_the_list(tmp_path) -> None:
    listed = [
        ListedDatabase(name, f"/{name}", FarmEntry(name, "database", state, "why", bytes=size), (0,) * 23 + (size,))
        for name, state, size in (("crm", "ok", 3), ("sales", "silent", 1), ("web", "quiet", 2))
    ]
    page = databases_page(listed, [])

    def names(action: str) -> list[str]:
        text = look(page, tmp_path, 1280, "sorted", action).text
        return [word for word in text.split() if word in ("crm", "sales", "web")]

    # Those that need someone come first.
    assert names("") == ["sales", "crm", "web"]
    by_size = "document.querySelectorAll('th button')[7].click();"
    assert names(by_size) == ["sales", "web", "crm"]
    assert names(by_size * 2) == ["crm", "web", "sales"]
    typed = "const box = document.querySelector('input'); box.value = 'S'; box.dispatchEvent(new Event('input'));"
    assert names(typed) == ["sales"]


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
