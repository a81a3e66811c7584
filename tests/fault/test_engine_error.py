"""DuckDB fails by an error of its own and gives up the database: a failure of the transaction, which can be accepted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlr import app
from wlr.engine.duckdb import replica as duckdb_replica
from wlr.engine.parquet import catalog as lake_catalog
from wlr.engine.parquet import executor as lake_executor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

_TICKS = re.compile(r"_tick BETWEEN (\d+) AND (\d+)")


def is_poison(text: str) -> bool:
    """Whether a statement makes the table `poison`, or reads the images of transaction 2."""
    return text.startswith("CREATE TABLE poison") or any(
        int(first) <= 2 <= int(last) for first, last in _TICKS.findall(text)
    )


class BrokenByPoison:
    """A connection that fails as DuckDB does at a certain statement, and at every statement after it."""

    def __init__(self, inner: duckdb.DuckDBPyConnection, broken: list[str] | None = None) -> None:
        self._inner = inner
        self._broken: list[str] = [] if broken is None else broken

    def execute(self, text: str, *arguments: Any) -> Any:
        if self._broken:
            raise duckdb.FatalException(
                "FATAL Error: Failed: database has been invalidated because of a previous fatal error. The database must"
                ' be restarted prior to being used again.\nOriginal error: "INTERNAL Error: Attempted to access index 3"'
            )
        if is_poison(text):
            self._broken.append(text)
            raise duckdb.InternalException("INTERNAL Error: Attempted to access index 3 within vector of size 3")
        return self._inner.execute(text, *arguments)

    def cursor(self) -> BrokenByPoison:
        return BrokenByPoison(self._inner.cursor(), self._broken)

    def __enter__(self) -> BrokenByPoison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def breaking(open_one: Callable[..., duckdb.DuckDBPyConnection]) -> Callable[..., Any]:
    return lambda *arguments, **options: BrokenByPoison(open_one(*arguments, **options))


OPENING = ((duckdb_replica, "attach"), (lake_catalog, "open_scratch"), (lake_executor, "connect"))


@pytest.mark.parametrize(
    "kind, statement",
    [
        ("copy.duckdb", "CREATE TABLE poison (i INTEGER)"),
        ("lake", "INSERT INTO t VALUES (2, 'b')"),
        pytest.param("copy.duckdb", "INSERT INTO t VALUES (2, 'b')", marks=pytest.mark.deep),
        pytest.param("lake", "CREATE TABLE poison (i INTEGER)", marks=pytest.mark.deep),
    ],
)
def test_an_error_of_duckdb_is_a_failure_of_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, statement: str
) -> None:
    source, into = tmp_path / "source.duckdb", tmp_path / kind
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)")
    wlc.master(source, farm=str(tmp_path / "farm"))
    wlr.replicate(source, into=into)
    with wlc.connect(source) as connection:
        for text in ("INSERT INTO t VALUES (1, 'a')", statement, "INSERT INTO t VALUES (3, 'c')"):
            connection.execute(text)
    wlc.flush(source)
    with monkeypatch.context() as patch:
        for module, name in OPENING:
            patch.setattr(module, name, breaking(getattr(module, name)))
        assert run_app(app, "wlr", ["replicate", "--into", str(into)]) == 5
    failure = wlr.status(into).failure
    assert failure is not None
    assert (failure.tick, wlr.tick(into)) == (2, 1)
    assert "INTERNAL Error" in failure.cause
    assert wlr.accept(into).tick == 2
    wlr.replicate(into=into)
    assert wlr.tick(into) == 3
    assert {table.table: table.outcome for table in wlr.verify(into).tables}["main.t"] == (
        "same" if statement.startswith("CREATE") else "accepted"
    )
