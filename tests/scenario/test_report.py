"""The report on a database: its facts, and the page that shows them."""

from __future__ import annotations

import html
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.browser import look, needs_browser
from tests.fault.processes import call_command
from wlc.farm.errors import InvalidError
from wlr.care.report_page import report_page, shown

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A farm with three batches of two tables, two snapshots, a replica that is behind, a tag, and a hostile name."""
    folder = tmp_path_factory.mktemp("report")
    source, farm = folder / "sales.duckdb", folder / "farm"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what VARCHAR)")
        connection.execute(f'CREATE TABLE "{HOSTILE}" (i INTEGER)')
    wlc.master(source, farm=str(farm), beat_s=300)
    for number in range(3):
        with wlc.connect(source) as connection:
            connection.execute(f"INSERT INTO orders SELECT range + {100 * number}, 'some' FROM range(50)")
            connection.execute(f'INSERT INTO "{HOSTILE}" VALUES ({number})')
        wlc.flush(source)
        if number == 1:
            wlr.replicate(str(farm / "sales"), into=folder / "copy.duckdb")
            wlc.snapshot(source)
    wlc.tag(str(farm / "sales"), "before-easter", 2)
    return farm


@pytest.mark.slow
def test_facts_are_those_of_the_log(farm: Path) -> None:
    found = wlr.report(str(farm / "sales"))
    assert (found.database, found.entry.state, found.tick, found.beat_s) == ("sales", "quiet", 6, 300.0)
    assert [(batch.number, batch.transactions, batch.rows) for batch in found.batches] == [
        (n, 2, 51) for n in (1, 2, 3)
    ]
    assert sum(batch.bytes for batch in found.batches) == found.log_bytes
    assert all(0 <= batch.waited_s < 600 for batch in found.batches)
    today = found.batches[0].arrived.date()
    assert {(each.table, each.rows) for each in found.tables if each.day == today} == {
        ("main.orders", 150),
        (f"main.{HOSTILE}", 3),
    }
    assert [(each.tick, each.tables, each.rows) for each in found.snapshots] == [(4, 2, 102), (0, 2, 0)]
    assert (found.rows, found.snapshot_count, found.can_go_back_to_tick) == (102, 2, 0)
    assert [(reader.kind, reader.tick, reader.lag_transactions) for reader in found.readers] == [("replica", 4, 2)]
    assert [tag.name for tag in found.tags] == ["before-easter"]
    assert (found.sites, found.audit, found.problems, found.is_cut) == ((), None, (), False)


@pytest.mark.slow
def test_a_period_leaves_out_what_arrived_before_it(farm: Path) -> None:
    found = wlr.report(str(farm / "sales"), since=datetime.now(UTC) + timedelta(hours=1))
    assert (found.batches, found.tables, found.bytes_per_row, found.tick) == ((), (), None, 6)
    assert "How long commits waited" not in report_page(found)


def test_a_damaged_log_file_is_a_problem_and_not_the_end_of_the_report(farm: Path, tmp_path: Path) -> None:
    copy = tmp_path / "farm"
    shutil.copytree(farm, copy)
    damaged = next(copy.rglob("sales_000000000002"))
    damaged.write_bytes(damaged.read_bytes().replace(b'"transactions":2', b'"transactions":3'))
    found = wlr.report(str(copy / "sales"), verify=True)
    assert any(damaged.name in problem for problem in found.problems)
    assert found.audit is not None
    assert found.audit.problems
    page = report_page(found)
    assert damaged.name in page
    assert "problems.</strong>" in page


def test_the_page_shows_what_json_says_and_escapes_what_comes_from_the_farm(farm: Path, tmp_path: Path) -> None:
    out = tmp_path / "sales.html"
    answer = call_command("wlc", "farm", "report", farm / "sales", "--out", out, "--verify", "--json")
    told = json.loads(answer.stdout)
    page = out.read_text(encoding="utf-8")
    body, _, scripts = page.partition("<script>")
    cells = [html.unescape(cell) for cell in re.findall(r"<(?:td|dd)[^>]*>(.*?)</(?:td|dd)>", body, re.DOTALL)]
    for value in (told["tick"], told["bytes_per_row"], len(told["readers"]), told["readers"][0]["lag_transactions"]):
        assert shown(value) in cells
    for snapshot in told["snapshots"]:
        assert {shown(snapshot["tick"]), shown(snapshot["rows"]), shown(snapshot["tables"])} <= set(cells)
    charts = json.loads(scripts.rpartition("const charts = ")[2].partition(";\nfunction draw")[0])
    waited, growth, tables = (chart["data"] for chart in charts)
    assert waited[0]["y"] == [batch["waited_s"] for batch in told["batches"]]
    assert sum(growth[0]["y"]) == sum(batch["bytes"] for batch in told["batches"])
    assert {html.unescape(bar["name"]): sum(bar["y"]) for bar in tables} == {
        each["table"]: each["rows"] for each in told["tables"]
    }
    assert HOSTILE not in page
    # Nothing is fetched, whatever the page is opened with.
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", body)


def test_a_page_that_cannot_be_written_is_named(farm: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"no/page.html cannot be written: No such file or directory"):
        wlr.write_report(wlr.report(str(farm / "sales")), tmp_path / "no" / "page.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@needs_browser
@pytest.mark.parametrize("width", [360, 1440])
def test_a_browser_shows_it_without_errors_and_without_overflow(farm: Path, tmp_path: Path, width: int) -> None:
    seen = look(report_page(wlr.report(str(farm / "sales"))), tmp_path, width, "report")
    assert (seen.errors, seen.width) == ([], width)
    assert seen.needed <= width
    assert 0 < seen.drawn <= width
