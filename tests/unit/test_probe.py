"""The probe at connect: a DuckDB that behaves otherwise than the capture assumes is refused with the versions that do not.

The databases here really behave otherwise: a table of another catalog type, an index where there should be none, a
connection without the methods.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from wlc.capture.duckdb import probe
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
        probe.check_connection(connect())  # type: ignore[arg-type]
    assert probe.SUPPORTED in str(caught.value.hint)


def test_this_duckdb_behaves_as_assumed():
    probe.check_connection(plain())  # type: ignore[arg-type]


def test_supported_versions_are_those_that_are_installed_with_us():
    wanted = 'duckdb>=2.0,<2.1"'
    assert wanted in (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert probe.SUPPORTED == "DuckDB 2.0.0 and later, before 2.1"
