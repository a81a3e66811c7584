"""What one transaction did to a table with a primary key, applied without adding its images up, if that is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows, rows_of
from wlc.farm.errors import ReplayError
from wlr.replay.fold import net_changes

if TYPE_CHECKING:
    from pathlib import Path

    from wlr.replay.plan.step import TableChange


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    made = HandmadeFarm(tmp_path / "farm")
    made.publish(
        ["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR UNIQUE)"],
        [Rows("t", added=("1, 'a'", "2, 'b'", "3, NULL"))],
    )
    wlr.replicate(made.url, into=tmp_path / "r.duckdb", register=False)
    return made


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose images were added up."""
    found: list[str] = []
    fold = net_changes._folded

    def spy(connection: object, table: object, change: TableChange, *more: str) -> net_changes.NetChange:
        found.append(str(change.table))
        return fold(connection, table, change, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(net_changes, "_folded", spy)
    return found


A, B, N = "1, 'a'", "2, 'b'", "3, NULL"


@pytest.mark.parametrize(
    ("added", "removed", "after", "is_folded"),
    [
        (("1, 'x'", "9, 'y'"), (A, N), {(1, "x"), (2, "b"), (9, "y")}, False),
        (("1, 'b'", "2, 'a'"), (A, B), {(1, "b"), (2, "a"), (3, None)}, False),
        ((A,), (A, B), {(1, "a"), (3, None)}, False),
        (("1, 'x'", "1, 'y'"), (A, "1, 'x'"), {(1, "y"), (2, "b"), (3, None)}, True),
        (("9, 'x'",), (B, "9, 'x'"), {(1, "a"), (3, None)}, True),
        ((A,), (A, A), {(2, "b"), (3, None)}, True),
        ((A, A), (A, A), {(1, "a"), (2, "b"), (3, None)}, True),
    ],
    ids=["once", "values that change places", "a pair", "twice", "come and gone", "gone, back and gone", "nothing"],
)
def test_result_is_that_of_adding_up(
    farm: HandmadeFarm,
    folded: list[str],
    tmp_path: Path,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    after: set[tuple[int, str | None]],
    is_folded: bool,
) -> None:
    farm.publish([Rows("t", added, removed)])
    wlr.replicate(into=tmp_path / "r.duckdb", register=False)
    assert set(rows_of(tmp_path / "r.duckdb", "FROM t")) == after
    assert folded == ["main.t"] * is_folded


def test_several_transactions_are_added_up_at_once(farm: HandmadeFarm, folded: list[str], tmp_path: Path) -> None:
    farm.publish([Rows("t", ("1, 'x'",), (A,))], [Rows("t", ("1, 'y'",), ("1, 'x'",))])
    wlr.replicate(into=tmp_path / "r.duckdb", register=False)
    assert set(rows_of(tmp_path / "r.duckdb", "FROM t")) == {(1, "y"), (2, "b"), (3, None)}
    assert folded == ["main.t"]


@pytest.mark.parametrize(
    ("added", "removed", "told"),
    [
        (("1, 'x'",), ("1, 'not a'",), r"id = 1: 1 of 1 rows to remove"),
        (("1, 'x'", "3, 'c'"), (A,), r"(?i)duplicate key"),
    ],
)
def test_what_does_not_fit_is_reported_as_before(
    farm: HandmadeFarm, tmp_path: Path, added: tuple[str, ...], removed: tuple[str, ...], told: str
) -> None:
    replica = tmp_path / "r.duckdb"
    farm.publish([Rows("t", added, removed)])
    with pytest.raises(ReplayError, match=told):
        wlr.replicate(into=replica, register=False)
    assert set(rows_of(replica, "FROM t")) == {(1, "a"), (2, "b"), (3, None)}
    assert wlr.tick(replica) == 2
