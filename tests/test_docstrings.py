"""Each public function and context has an example in its docstring, and the example does what it shows."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import os
import pydoc
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest

import wlc
import wlr
import wlr.spark
from tests import sales_story
from tests.sales_story import Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

LINES_MAX = 4


def shows_an_example(package: ModuleType, name: str) -> bool:
    # Looking at the names of wlr.spark imports pyspark.
    if package is wlr.spark:
        return True
    value = getattr(package, name)
    return inspect.isfunction(value) or hasattr(value, "__enter__")


PUBLIC = [
    f"{package.__name__}.{name}"
    for package in (wlc, wlr, wlr.spark)
    for name in package.__all__
    if shows_an_example(package, name)
]
# Examples that the quick test cannot run: what each needs, as the example writes it, and why the example needs it.
EXEMPT = {
    "wlc.run": (
        "postgresql://",
        "the process that writes a DuckDB master publishes it, and `run` a PostgreSQL server's",
    ),
    "wlc.tables_to_change": ("postgresql://", "tables of a DuckDB master have no replica identity"),
    # tests/spark/test_docs_snippets.py runs it.
    "wlr.spark.FarmDataSource": ("spark.", "Spark needs Java"),
}
# Where an example begins, if not with the usual state.
STATES: dict[str, Callable[[], None]] = {
    "wlc.Pusher": sales_story.listed,
    "wlc.begin_anew": sales_story.shared,
    "wlc.conflicts": sales_story.rejected,
    "wlc.exceptions": sales_story.rejected,
    "wlc.join": sales_story.shared,
    "wlc.joined_from": sales_story.shared,
    "wlc.leave": sales_story.shared,
    "wlc.push_list": sales_story.listed,
    "wlc.repair": sales_story.bypassed,
    "wlc.resubmit": sales_story.rejected,
    "wlc.rules": sales_story.shared,
    "wlc.set_role": sales_story.shared,
    "wlc.set_rule": sales_story.shared,
    "wlc.sites": sales_story.shared,
    "wlc.take": sales_story.shared,
    "wlr.accept": sales_story.failed,
    "wlr.drop": sales_story.adopted,
    "wlr.repair": sales_story.failed,
    "wlr.retry": sales_story.accepted,
}


def example_of(name: str) -> str:
    """The section at the end of the docstring as `help` shows it."""
    package, _, short = name.rpartition(".")
    text = inspect.getdoc(getattr(sys.modules[package], short)) or ""
    return text.partition("\n\nExamples:\n")[2]


def output_of_failure(name: str, example: str, **names: object) -> str:
    """Run an example; return what it did otherwise than shown."""
    names |= {"duckdb": duckdb, "signal": signal, "threading": threading, "wlc": wlc, "wlr": wlr}
    parsed = doctest.DocTestParser().get_doctest(example, names, name, None, None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(parsed, out=said.append)
    return "".join(said)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    story = Story(tmp_path_factory.mktemp("docstrings") / "story")
    story.folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(story.folder)
        patch.setenv("WLC_FARM", "farm")
        story.begin(sales_story.usual)
        yield story


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_ends_with_a_short_example_of_itself(name: str) -> None:
    example = example_of(name)
    code = [line.strip()[4:] for line in example.splitlines() if re.match(r"    (>>>|\.\.\.) ", line)]
    assert 0 < len(code) <= LINES_MAX
    assert name in "\n".join(code)
    assert "\n\n" not in example
    for each in doctest.DocTestParser().get_examples(example):
        compile(each.source, name, "single")


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in EXEMPT])
def test_an_example_does_what_it_shows(story: Story, name: str, tmp_path: Path, monkeypatch) -> None:
    # Verification remembers files by their places, and another example had other files there.
    monkeypatch.setenv("DBFARM_CACHE", str(tmp_path))
    story.begin(STATES.get(name, sales_story.usual))
    failure = output_of_failure(name, example_of(name))
    assert failure == "", failure


@contextlib.contextmanager
def terminated() -> Iterator[None]:
    """Send SIGTERM to this process every second, which ignores it until an example does something else."""
    over = threading.Event()

    def terminate() -> None:
        while not over.wait(1):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_an_example_with_a_server_does_what_it_shows(database_url: str, tmp_path: Path, monkeypatch) -> None:
    def failure(name: str) -> str:
        return output_of_failure(name, example_of(name).replace("postgresql://db.example.com/sales", database_url))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WLC_FARM", "farm")
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    assert {name for name, (need, _) in EXEMPT.items() if need != "spark."} == {"wlc.run", "wlc.tables_to_change"}
    assert not (said := failure("wlc.tables_to_change")), said
    wlc.master(database_url)
    with terminated():
        assert not (said := failure("wlc.run")), said


@pytest.mark.parametrize("example", [">>> 1 + 1\n3\n", ">>> 1 + 1\n", ">>> x = 1\n1\n", ">>> wlc.nothing\n"])
def test_an_example_that_does_something_else_is_found(example: str) -> None:
    assert output_of_failure("example", example) != ""


def test_exemptions_and_states_are_needed() -> None:
    assert [name for name, (need, _) in EXEMPT.items() if need not in example_of(name)] == []
    assert EXEMPT.keys() | STATES.keys() <= set(PUBLIC)
    assert EXEMPT.keys().isdisjoint(STATES)


@pytest.mark.parametrize("function", [wlr.replicate, wlr.feed, wlc.ship])
def test_help_of_a_function_with_declared_options_shows_the_example_last(function) -> None:
    text = pydoc.plain(pydoc.render_doc(function))
    order = ["Args:", "upstream: Where", "Raises:", "Examples:", f".{function.__name__}("]
    assert sorted(order, key=text.index) == order
