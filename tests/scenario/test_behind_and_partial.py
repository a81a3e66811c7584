"""Replicas that stay behind their master (`--delay`, `wlr replica pause`), and replicas without some tables (`--ignore`)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlr.service.jobs import works_of
from wlr.service.settings_file import read_settings

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.model import DataFile, TableFile
    from wlr.service.job_states import Done

pytestmark = pytest.mark.slow


class Alone:
    """A round of a service that nobody stops."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()

    def progress(self, done: int, total: int, what: str = "") -> None:
        """Go on."""

    def note(self, outcome: Done | Exception) -> None:
        """Nobody is interested."""


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    wlc.master(tmp_path / "s.duckdb", farm="memory://behind", name=tmp_path.name, beat_s=3600, create=True)
    return tmp_path / "s.duckdb"


def test_a_delayed_replica_stays_behind_until_it_is_sent_ahead(source: Path, tmp_path: Path):
    write(source, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    wlc.snapshot(source)
    copy = tmp_path / "copy.duckdb"
    # What is younger than that comes with a later run.
    with pytest.raises(UnavailableError, match="nothing is old enough yet"):
        wlr.replicate(source, into=copy, delay="1h")
    assert wlr.replicate(source, into=copy, delay=timedelta(0)).tick == 2
    write(source, "DROP TABLE t")
    for _ in range(2):
        assert wlr.replicate(into=copy, delay="1h").tick == 2
    assert wlr.replicate(into=copy, tick=3).tick == 3
    assert wlr.replicate(into=copy, delay="1h").tick == 3
    with pytest.raises(InvalidError, match="--tick, --until and --delay exclude each other"):
        wlr.replicate(into=copy, delay="1h", tick=3)


@pytest.mark.slow
@pytest.mark.parametrize("into", ["copy.duckdb", "lake"])
def test_a_paused_replica_stays_where_it_is(source: Path, tmp_path: Path, into: str):
    write(source, "CREATE TABLE t (a INTEGER)")
    wlr.replicate(source, into=(replica := tmp_path / into))
    wlr.pause(replica)
    write(source, "INSERT INTO t VALUES (1)")
    found = wlr.replicate(into=replica)
    assert (found.tick, found.is_paused, wlr.status(replica).is_paused) == (1, True, True)
    (file := tmp_path / "dbfarm.toml").write_text(
        f'[farms.main]\nurl = "memory://behind"\n[replicas.copy]\ndatabase = "{tmp_path.name}"\ninto = "{replica}"\n'
    )
    (served,) = works_of(read_settings(file))
    assert served.do_round(Alone()).tick == 1
    wlr.resume(replica)
    assert served.do_round(Alone()).tick == 2
    assert not wlr.status(replica).is_paused


@pytest.mark.slow
def test_a_replica_of_the_service_holds_chosen_rows_columns_and_values(source: Path, tmp_path: Path):
    write(source, "CREATE TABLE t (a INTEGER, b VARCHAR, c VARCHAR)", "INSERT INTO t VALUES (1, 'x', 'y')")
    (tmp_path / "mask.key").write_text("a key of more than sixteen bytes")
    (file := tmp_path / "dbfarm.toml").write_text(
        f'[farms.main]\nurl = "memory://behind"\n[replicas.copy]\ndatabase = "{tmp_path.name}"\ninto = "copy.duckdb"\n'
        'where = "t: a < 3"\ncolumns = "t: a, b"\nmask = ["t: b = hash"]\nmask_key = "mask.key"\n'
    )
    (served,) = works_of(read_settings(file))
    assert served.do_round(Alone()).tick == 2
    write(source, "INSERT INTO t VALUES (2, NULL, 'y'), (3, 'x', 'y')")
    assert served.do_round(Alone()).tick == 3
    (hashed, _), (missing, _) = wlr.read(tmp_path / "copy.duckdb", "t", columns=["b", "a"]).order("a").fetchall()
    assert (len(hashed), missing) == (64, None)


@pytest.mark.slow
@pytest.mark.parametrize("into", ["copy.duckdb", "lake"])
def test_an_ignored_table_is_not_there_and_not_read(
    source: Path, tmp_path: Path, into: str, monkeypatch: pytest.MonkeyPatch
):
    write(
        source,
        "CREATE TABLE t1 (a INTEGER PRIMARY KEY)",
        "CREATE TABLE t2 (a INTEGER)",
        "CREATE TABLE t3 (a INTEGER REFERENCES t1 (a))",
        *(f"INSERT INTO t{number} VALUES (1)" for number in (1, 2, 3)),
    )
    wlc.snapshot(source)
    write(source, "INSERT INTO t2 VALUES (2)", "INSERT INTO t1 VALUES (2)", "ALTER TABLE t2 ADD COLUMN b INTEGER")
    read: list[int] = []
    for name in ("fetch", "fetch_snapshot"):
        fetch = getattr(FarmDatabase, name)

        def noted(self: FarmDatabase, *files: DataFile | TableFile, _fetch: object = fetch) -> object:
            file = files[-1]
            read.append(file.rows if not hasattr(file, "file") else file.file.rows)
            return _fetch(self, *files)  # type: ignore[operator]

        monkeypatch.setattr(FarmDatabase, name, noted)
    replica = tmp_path / into
    wlr.replicate(source, into=replica, ignore=["t2"])
    # Rows of t1 and t3 in the snapshot, and of t1 in the log.
    assert read == [1, 1, 1]
    assert {(str(found.table), found.rows, found.outcome) for found in wlr.verify(replica).tables} == {
        ("main.t1", 2, "same"),
        ("main.t3", 1, "same"),
    }
    with pytest.raises(InvalidError, match="the replica holds all tables but t2"):
        wlr.replicate(into=replica, ignore=["t1"])
    message = r"table main\.t3 has a foreign key to main\.t1, which is not replicated"
    with pytest.raises(UnsupportedError, match=message) as caught:
        wlr.replicate(source, into=tmp_path / f"other-{into}", ignore=["t1"])
    assert caught.value.hint.endswith("--where 'main.t3: true'")
    filters = wlr.row_filters(where=["main.t3: true"])
    assert wlr.replicate(source, into=tmp_path / f"whole-{into}", ignore=["t1"], filters=filters).tick == 9
    with pytest.raises(InvalidError, match="no table matches --ignore 't9'"):
        wlr.replicate(source, into=tmp_path / f"other-{into}", ignore=["t9"])
