"""A farm's snapshot rolled forward without its master: new replicas start there, and the log before it can go."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

import wlc
import wlr
from tests.lake import lake_contents
from tests.oracle import file_contents
from wlc.farm.config import encode_config
from wlc.farm.errors import InvalidError
from wlc.farm.paths import snapshot_folder
from wlc.farm.versioned import VersionedObject

ROOT = Path(__file__).parents[2]
WLC = [sys.executable, "-c", "from cli.wlc import main; main()"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE SEQUENCE ids START 10; CREATE TYPE mood AS ENUM ('sad', 'glad')")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, h HUGEINT, m mood); CREATE TABLE bag (x DOUBLE)")
        connection.execute("INSERT INTO t SELECT i, i * 10::HUGEINT ** 30, 'sad' FROM range(1000) r(i)")
        connection.execute("INSERT INTO bag VALUES (-0.0), (-0.0), (NULL); CREATE INDEX by_h ON t (m)")
    wlc.master(path)
    with wlc.connect(path) as connection:
        connection.execute("UPDATE t SET m = 'glad' WHERE id % 3 = 0; DELETE FROM bag WHERE x IS NULL")
        connection.execute("ALTER TABLE t ADD COLUMN n BIGINT DEFAULT 7; CREATE VIEW v AS SELECT n FROM t")
        connection.execute("INSERT INTO t VALUES (nextval('ids') + 1000, NULL, NULL, 1); DELETE FROM t WHERE id < 100")
    return path


@pytest.mark.slow
def test_beside_a_master_that_always_writes_the_snapshot_stays_and_others_name_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that wlc.config does not name is no damage: prune and verify name it, whoever comes first."""
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO bag VALUES (1)")
    database = wlc.resolve(source)
    first = database.config().snapshot
    replaced = VersionedObject.replace

    def busy(self: VersionedObject[Any], value: Any, version: str | None) -> str:
        # The master writes between any two requests of ours.
        if self.path == "wlc.config":
            self.store.replace(self.path, encode_config(replace(value, snapshot=first, beat_s=next(beats))), version)
        return replaced(self, value, version)

    beats = itertools.count(100.0)
    with monkeypatch.context() as patch:
        patch.setattr(VersionedObject, "replace", busy)
        taken = wlr.snapshot_from_log(database.url)
    assert database.config().snapshot == first != snapshot_folder(taken.position.tick)
    for kept in (timedelta(days=30), timedelta(0)):
        wlc.retention(database.url, keep=kept)
        database.change_config(lambda config: replace(config, snapshot=first))
        audit = wlr.verify_farm(database.url)
        assert (audit.problems, database.config().snapshot) == ((), snapshot_folder(taken.position.tick))
        database.change_config(lambda config: replace(config, snapshot=first))
        wlc.prune(database.url, keep_for="0s")
    assert database.snapshot_ticks() == [taken.position.tick]
    assert database.config().snapshot == snapshot_folder(taken.position.tick)
    # A prune that may not write it leaves it behind, which is no damage either.
    database.change_config(lambda config: replace(config, snapshot=first))
    assert wlr.verify_farm(database.url).problems == ()
    database.delete_snapshot(taken.position.tick)
    (problem,) = wlr.verify_farm(database.url).problems
    assert "wlc.config names this snapshot, which is missing" in problem.problem


@pytest.mark.slow
def test_new_replicas_start_there_and_the_log_can_go(source: Path, tmp_path: Path) -> None:
    farm = tmp_path / "dbfarm"
    end = wlc.tick(source)
    # Another machine: it has another home, and nothing of the master.
    (elsewhere := tmp_path / "elsewhere").mkdir()
    source.rename(kept := tmp_path / "kept")
    done = subprocess.run(
        [*WLC, "snapshot", "sales", "--farm", str(farm), "--from-log", "--json"],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(elsewhere)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tick"] == end
    kept.rename(source)
    assert wlc.status(source).snapshot == f"snapshots/{end:012d}"

    expected = file_contents(source)
    result = wlr.replicate("sales", farm=str(farm), into=tmp_path / "copy.duckdb")
    assert (result.snapshot, result.transactions) == (end, 0)
    assert file_contents(tmp_path / "copy.duckdb") == expected
    wlr.replicate("sales", farm=str(farm), into=tmp_path / "lake")
    assert lake_contents(tmp_path / "lake") == expected

    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO bag VALUES (5); UPDATE t SET n = 8 WHERE id = 500")
    wlr.replicate(into=tmp_path / "copy.duckdb")
    assert file_contents(tmp_path / "copy.duckdb") == file_contents(source)
    manifest = wlc.resolve("sales", str(farm)).read_manifest(end)
    assert set(manifest.vector.values()) == {end}


@pytest.mark.slow
def test_twice_is_once(source: Path, tmp_path: Path) -> None:
    farm = str(tmp_path / "dbfarm")
    first, second = (wlr.snapshot_from_log("sales", farm=farm) for _ in range(2))
    assert first == second


def test_no_such_database(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no database 'sales'"):
        wlr.snapshot_from_log("sales", farm=str(tmp_path))
