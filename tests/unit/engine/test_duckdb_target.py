"""A DuckDB replica is opened under the name that was read before; it may be another file by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from wlc.farm.errors import CorruptError, InvalidError, UnavailableError
from wlr.engine.adapters import target_at
from wlr.engine.contract import NewReplica, Target
from wlr.engine.replica_state import ReplicaState

if TYPE_CHECKING:
    from pathlib import Path


def made(path: Path, catalog: str) -> Target:
    target = target_at(path)
    target.build(NewReplica(ReplicaState("1" * 16, f"/farm/{catalog}", catalog), None, lambda _: path, lambda _: None))
    return target


@pytest.mark.parametrize("is_found", [True, False])
def test_it_is_opened_under_its_name(tmp_path: Path, is_found: bool) -> None:
    target = made(tmp_path / "copy.duckdb", "shop")
    if is_found:
        target = target_at(tmp_path / "copy.duckdb")
        assert target.read_state().catalog == "shop"
    with target.open() as replica:
        assert replica.state.catalog == "shop"


def test_another_replica_that_has_taken_its_place_is_refused(tmp_path: Path) -> None:
    target = made(tmp_path / "copy.duckdb", "shop")
    made(tmp_path / "other.duckdb", "bank")
    (tmp_path / "other.duckdb").replace(tmp_path / "copy.duckdb")
    with pytest.raises(UnavailableError, match="another process rebuilt"):
        target.open()
    assert target.read_state().catalog == "bank"


def test_a_file_that_is_gone_is_not_made(tmp_path: Path) -> None:
    target = made(tmp_path / "copy.duckdb", "shop")
    (tmp_path / "copy.duckdb").unlink()
    with pytest.raises(InvalidError, match="no replica"):
        target.open()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_replica_is_not_taken_for_another_database(tmp_path: Path) -> None:
    target = made(tmp_path / "copy.duckdb", "shop")
    with duckdb.connect(tmp_path / "copy.duckdb") as connection:
        connection.execute("DROP TABLE wlr.guard")
    with pytest.raises(CorruptError, match="was changed since the replay"):
        target.find_state()


def test_what_looked_into_a_file_opens_it_and_does_not_keep_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "copy.duckdb", "memory")
    target = target_at(tmp_path / "copy.duckdb")
    assert target.read_state().catalog == "memory"
    with duckdb.connect(tmp_path / "copy.duckdb") as other:
        other.execute("CREATE TABLE own (x INTEGER)")
    target.read_state()
    monkeypatch.setattr("wlr.engine.calculator._connect_free", lambda: pytest.fail("another connection was made"))
    with target.open() as replica:
        assert replica.state.catalog == "memory"
