"""Steps of so many rows that they are added up on a connection of their own while they are written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.oracle import file_contents
from tests.sound import assert_same
from wlc.farm.errors import ReplayError
from wlr.replay.fold import net_changes as changes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ROWS = changes._ASIDE + 1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE bag (id INTEGER)")
    wlc.master(path, farm=str(tmp_path / "farm"))
    wlr.replicate(path, into=tmp_path / "copy.duckdb")
    return path


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)
    wlc.flush(source)


@pytest.mark.slow
def test_large_inserts_and_deletes_are_added_up_meanwhile(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = source.with_name("copy.duckdb")
    asked: list[tuple[bool, bool]] = []
    total = changes._total

    def aside(connection: object, net: changes.NetChange) -> int:
        asked.append((net.is_temporary, threading.current_thread() is not threading.main_thread()))
        return total(connection, net)  # type: ignore[arg-type]

    monkeypatch.setattr(changes, "_total", aside)
    for statement, tables in (
        (
            f"BEGIN; INSERT INTO t SELECT range, 'v' || range FROM range({ROWS + 9});"
            f" INSERT INTO bag SELECT range % 7 FROM range({ROWS}); COMMIT",
            [False, False],
        ),
        ("DELETE FROM t WHERE id > 5", [False]),
        (f"INSERT INTO t SELECT range + 10, NULL FROM range({ROWS})", [False]),
    ):
        asked.clear()
        write(source, statement)
        wlr.replicate(into=copy)
        assert asked == [(is_folded, True) for is_folded in tables]
        assert_same(copy)
    assert file_contents(copy) == file_contents(source)


def test_step_that_fails_meanwhile_is_told_and_the_next_one_goes_on(source: Path) -> None:
    copy = source.with_name("copy.duckdb")
    wlr.unlock(copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute(f"INSERT INTO t VALUES ({ROWS - 1}, 'in the way')")
    wlr.lock(copy)
    write(source, f"INSERT INTO t SELECT range, 'v' || range FROM range({ROWS})")
    with pytest.raises(ReplayError, match=r"main\.t"):
        wlr.replicate(into=copy)
    wlr.unlock(copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute("DELETE FROM t")
    wlr.lock(copy)
    wlr.replicate(into=copy)
    assert_same(copy)
