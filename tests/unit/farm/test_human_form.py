"""How notebooks and rich show results, and the units in which people read them."""

from __future__ import annotations

import io
from dataclasses import dataclass, is_dataclass
from datetime import datetime, timedelta
from html.parser import HTMLParser

import pytest
from rich.console import Console

import wlc
import wlr
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople, duration, parse_rate

# What a caller hands in, or what an error or another result consists of.
NO_RESULTS = {"ChangedRows", "KeyRange", "Manifest", "RowConflict", "RowFilters", "WantedChange", "DatabaseReport"}


@dataclass(frozen=True, slots=True)
class Part(ForPeople):
    table: str
    rows: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Whole(ForPeople):
    database: str
    lag_s: float
    log_bytes: int
    is_stuck: bool
    seen: datetime | None
    parts: tuple[Part, ...] = ()
    reasons: tuple[str, ...] = ()


class Reader(HTMLParser):
    """Collects the texts of the cells, and every tag that was opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_notebook_shows_a_table_in_units() -> None:
    parts = (Part("main.orders", 12_000), Part("main.<b>", 1))
    found = Whole("sales & co", 3661.0, 2_500_000, False, None, parts, ("one", "two"))
    read = Reader(found._repr_html_())
    assert read.texts == [
        *("database", "sales & co", "lag", "1h 1m", "log bytes", "2.5 MB"),
        *("parts", "table", "rows", "main.orders", "12,000", "main.<b>", "1"),
        *("reasons", "one", "two"),
    ]
    # What a table is called does not become markup.
    assert set(read.tags) == {"table", "tr", "th", "td", "br"}


def test_rich_shows_the_same_names_and_units() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(Whole("sales", 0.5, 1000, True, None))
    assert out.getvalue() == "Whole(database='sales', lag_s='0.5s', log_bytes='1.0 kB', is_stuck='yes')\n"


def test_every_public_result_has_these_forms() -> None:
    public = {name: getattr(module, name) for module in (wlc, wlr) for name in module.__all__}
    results = {name for name, value in public.items() if isinstance(value, type) and is_dataclass(value)}
    lacking = {name for name in results - NO_RESULTS if not issubclass(public[name], ForPeople)}
    assert len(results) > 30
    assert not lacking


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0s"), (0.04, "0s"), (59.94, "59.9s"), (60, "1m"), (3601, "1h"), (3660, "1h 1m"), (200_000, "2d 7h")],
)
def test_lengths_of_time_have_two_units(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500k", 500e3), ("10M", 10e6), ("1.5 GB/s", 1.5e9), ("2MiB", 2e6), ("7", 7.0)],
)
def test_a_rate_is_read(text: str, expected: float):
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["", "0", "fast", "-1M", "1T"])
def test_what_is_no_rate_is_refused(text: str):
    with pytest.raises(InvalidError, match="is not a number of bytes per second"):
        parse_rate(text)
