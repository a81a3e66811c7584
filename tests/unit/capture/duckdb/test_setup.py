"""The probe at connect: a DuckDB that behaves otherwise than the capture assumes is refused with the versions that do not.

The databases here really behave otherwise: a table of another catalog type, an index where there should be none, a
connection without the methods.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from wlc.capture.duckdb import setup
from wlc.dialect.duckdb import engine
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


class Other:
    """A connection that runs other statements in place of some, or lacks methods."""

    def __init__(self, instead: dict[str, str] | None = None, lacks: str = "", raw: Any = None) -> None:
        self._connection = raw or duckdb.connect()
        self._instead, self._lacks = instead or {}, lacks

    def __getattr__(self, name: str) -> object:
        if name == self._lacks:
            raise AttributeError(name)
        return getattr(self._connection, name)

    def execute(self, query: str) -> duckdb.DuckDBPyConnection:
        for text, other in self._instead.items():
            query = query.replace(text, other)
        return self._connection.execute(query)

    def cursor(self) -> Other:
        return Other(self._instead, self._lacks, self._connection.cursor())


def plain() -> Other:
    return Other()


def moving() -> Other:
    """Every column is indexed, so that any update moves its row."""
    return Other({"v INTEGER)": "v INTEGER UNIQUE)"})


def committing() -> Other:
    """What a transaction adds has the row ids of committed rows, as if they were not kept apart."""
    return Other({"BEGIN; INSERT INTO t VALUES (9, 9);": "INSERT INTO t VALUES (9, 9); BEGIN;"})


def leaking() -> Other:
    """There are no transactions."""
    return Other({"BEGIN;": ""})


@pytest.mark.parametrize(
    "connect, says",
    [
        (moving, "does not give rows of an open transaction the expected row ids"),
        (committing, "does not give rows of an open transaction the expected row ids"),
        (leaking, "does not run a statement"),
        *((lambda name=name: Other(lacks=name), rf"has no {name}\(\)") for name in ("_submit", "_bind", "_table_kind")),
    ],
)
def test_other_behaviour_is_refused_with_the_supported_versions(connect: Callable[[], Other], says: str):
    with pytest.raises(UnsupportedError, match=f"DuckDB {duckdb.__version__} {says}") as caught:
        setup.check_connection(connect())  # type: ignore[arg-type]
    assert engine.SUPPORTED in str(caught.value.hint)


def test_this_duckdb_behaves_as_assumed():
    setup.check_connection(plain())  # type: ignore[arg-type]


def test_supported_versions_are_those_that_are_installed_with_us():
    root = Path(__file__).parents[4]
    assert f'"{engine.REQUIREMENT}",' in (root / "pyproject.toml").read_text()
    oldest, before = re.findall(r"[\d.]*\d", engine.REQUIREMENT)
    assert f"DuckDB {oldest} and later, before {before}" == engine.SUPPORTED
    assert f"duckdb=={oldest}\n" in (root / "constraints-oldest.txt").read_text()
    assert f"works with {engine.SUPPORTED}:" in (root / "docs/howto/upgrade.md").read_text()
    assert f"pinned to `{engine.REQUIREMENT.removeprefix('duckdb')}`" in (root / "docs/limits.md").read_text()
    # The options of `wlr replicate` that the docs describe.
    for version in engine.STORAGE_VERSIONS:
        assert f"`{version}`" in (root / "docs/cli.md").read_text()


def test_a_version_that_does_not_read_all_rows_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duckdb, "__version__", "2.0.0")
    with pytest.raises(UnsupportedError, match=r"DuckDB 2\.0\.0 reads no rows of some tables") as caught:
        setup.check_connection(plain())  # type: ignore[arg-type]
    assert str(caught.value.hint).endswith("pip install 'duckdb>=2.0.1,<2.1'")


# The same in 2.0.0: 122,880 rows, none of which a query returned until the file was opened again.
@pytest.mark.parametrize(
    "first",
    [
        "CREATE TABLE t AS SELECT * FROM source LIMIT 0",
        "CREATE TABLE t (a BIGINT); INSERT INTO t SELECT * FROM source WHERE a < 0",
    ],
)
@pytest.mark.parametrize("rows", [1000, 122_880, 500_000])
def test_rows_behind_an_insert_of_none_are_read(tmp_path: Path, first: str, rows: int):
    with duckdb.connect(str(tmp_path / "a.duckdb"), config={"threads": "4"}) as connection:
        connection.execute(f"CREATE TABLE source AS SELECT range AS a FROM range({rows})")
        connection.execute(f"BEGIN; {first}")
        connection.execute("INSERT INTO t SELECT * FROM source")
        connection.execute("COMMIT")
        assert len(connection.execute("SELECT a FROM t").fetchall()) == rows
