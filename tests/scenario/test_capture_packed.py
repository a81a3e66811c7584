"""Large change sets are journalled as the data file that publishes them: exactly captured, whatever comes in between."""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
from tests.fault.breaker import abandon_masters
from tests.new_master import new_master
from tests.oracle import contents, file_contents, published
from tests.scratch import attached
from wlc.capture.duckdb import packed, unpublished
from wlc.farm.database import open_database
from wlc.farm.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANY = "SELECT i, 'row ' || i, [i, NULL], i::HUGEINT << 64, INTERVAL (i) DAY FROM range({}, {}) r(i)"
TABLES = """
    CREATE TABLE keyed (id INTEGER PRIMARY KEY, "_tick" VARCHAR, l INTEGER[], h HUGEINT, i INTERVAL);
    CREATE TABLE bag (id INTEGER, b VARCHAR, l INTEGER[], h HUGEINT, i INTERVAL)
"""


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "ROWS", 10)


def kept(connection: Any) -> dict[int, tuple[int, int]]:
    """By tick, images in the table of `keyed` and bytes that are packed."""
    return {
        tick: (rows, size)
        for tick, rows, size in connection.execute(
            "SELECT tick, sum(rows)::INTEGER, sum(size)::INTEGER FROM ("
            " SELECT _tick AS tick, 1 AS rows, 0 AS size FROM wlc.j1"
            " UNION ALL SELECT tick, 0, octet_length(piece) FROM wlc.packed) GROUP BY tick ORDER BY tick"
        ).fetchall()
    }


def shown(kept: dict[int, tuple[int, int]]) -> list[str]:
    return [
        "packed" if size and not rows else "images" if rows and not size else "both" for rows, size in kept.values()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("run_least", [1, 1000])
def test_large_changes_are_packed_between_small_ones_and_published_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_least: int
) -> None:
    # From so many transactions on, those that are journalled as images are read as columns.
    monkeypatch.setattr(unpublished, "_RUN_LEAST", run_least)
    with new_master(tmp_path / "sales.duckdb") as connection:
        connection.execute(TABLES)
        wlc.flush(tmp_path / "sales.duckdb")
        connection.execute("INSERT INTO keyed VALUES (-1, 'one', [], -1, NULL)")
        connection.execute("INSERT INTO keyed " + MANY.format(0, 30))
        connection.execute("UPDATE keyed SET _tick = NULL WHERE id < 20")
        connection.execute(
            "BEGIN; DELETE FROM keyed WHERE id = 3; INSERT INTO keyed " + MANY.format(30, 60) + "; COMMIT"
        )
        connection.execute("INSERT INTO keyed " + MANY.format(60, 90) + " ON CONFLICT DO NOTHING")
        # An update in place of rows that the same transaction added.
        connection.execute(
            "BEGIN; INSERT INTO keyed " + MANY.format(90, 120) + "; UPDATE keyed SET l = [7] WHERE id > 99"
        )
        connection.execute("DELETE FROM keyed WHERE id = 100; COMMIT")
        assert shown(kept(connection)) == ["images", "packed", "images", "images", "packed", "packed"]
        # What was only written to the journal counts, too.
        assert {each.outcome for each in wlc.verify_source(tmp_path / "sales.duckdb")} == {"same"}
        before = contents(connection, "sales")
        flushed = wlc.flush(tmp_path / "sales.duckdb")
        assert (flushed.transactions, kept(connection)) == (6, {})
        (batch, _) = open_database(str(tmp_path / "farm" / "sales")).read_batch(2)
        assert [len({record.path for record in each.records}) for each in batch.transactions] == [1] * 6
        assert len(batch.files) == 4
        assert published(str(tmp_path / "farm" / "sales")) == before


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A master with one transaction that is packed and not published; nobody has it open."""
    source = tmp_path / "sales.duckdb"
    with new_master(source) as connection:
        connection.execute(TABLES)
    fill(source)
    return source


def fill(source: Path, statements: str = "INSERT INTO keyed " + MANY.format(0, 30)) -> None:
    """Commit as a process does that is killed before it publishes."""
    connection = wlc.connect(source)
    connection._shared.publisher.stop()
    connection._shared.publisher = None
    connection.execute(statements)
    connection._finalizer.detach()
    connection._raw.close()
    abandon_masters()


def with_duckdb(source: Path, statement: str) -> list[Any]:
    with duckdb.connect(str(source)) as connection:
        return connection.execute(statement).fetchall()


def assert_published(source: Path) -> None:
    assert wlc.status(source).unpublished == 0
    with attached(source) as connection:
        assert kept(connection) == {}
        assert published(str(source.parent / "farm" / "sales")) == contents(connection, "sales")


@pytest.mark.slow
def test_a_batch_whose_publisher_died_before_it_noted_that_is_noted_once(
    waiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(waiting, "CREATE TABLE made AS " + MANY.format(0, 30))
    with monkeypatch.context() as patch:
        patch.setattr(unpublished, "acknowledge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            wlc.flush(waiting)
    abandon_masters()
    assert len(with_duckdb(waiting, "SELECT DISTINCT tick FROM wlc.packed")) == 2
    wlc.flush(waiting)
    assert open_database(str(waiting.parent / "farm" / "sales")).batch_numbers() == [1, 2]
    assert_published(waiting)


@pytest.mark.slow
def test_one_transaction_a_batch_keeps_what_the_next_one_has_packed(waiting: Path) -> None:
    fill(waiting, "INSERT INTO keyed " + MANY.format(30, 60))
    # The layout of both is no longer that of the table.
    fill(waiting, "ALTER TABLE keyed ADD COLUMN later INTEGER")
    wlc.beat(waiting, 0)
    assert wlc.flush(waiting).batches == 3
    assert with_duckdb(waiting, "SELECT count(*) FROM wlc.packed") == [(0,)]
    assert published(str(waiting.parent / "farm" / "sales")) == file_contents(waiting)


@pytest.mark.slow
def test_a_transaction_that_is_rolled_back_leaves_nothing(waiting: Path) -> None:
    before = with_duckdb(waiting, "SELECT count(*) FROM wlc.packed")
    with wlc.connect(waiting) as connection:
        connection._shared.publisher.stop()
        connection.execute("BEGIN; INSERT INTO keyed " + MANY.format(30, 60))
        connection.execute("INSERT INTO bag " + MANY.format(0, 30))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packed, "_PIECE_BYTES", "no number")
            with pytest.raises(TypeError):
                connection.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM bag").fetchall() == [(0,)]
        assert connection.execute("SELECT count(*) FROM wlc.packed").fetchall() == before
        assert [path for path in waiting.parent.iterdir() if path.name.startswith(".")] == []
        connection.execute("INSERT INTO bag " + MANY.format(0, 30))
    assert_published(waiting)


@pytest.mark.slow
def test_what_a_process_left_that_died_while_it_packed_is_removed(waiting: Path) -> None:
    left = waiting.parent / f"{packed.prefix(waiting)}abcdefgh"
    left.mkdir()
    (left / packed._FILE).write_bytes(b"PAR1")
    others = waiting.parent / f"{packed.prefix(waiting)}kept"
    others.mkdir()
    (others / "notes.txt").write_text("somebody else's")
    wlc.status(waiting)
    wlc.flush(waiting)
    assert (left.exists(), (others / "notes.txt").exists()) == (False, True)


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def forbid_folders(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tempfile, "mkdtemp", refuse)


def forbid_files(connection: Any, patch: pytest.MonkeyPatch) -> None:
    connection.execute("SET enable_external_access = false")
    patch.setattr(connection._shared, "work", None)


def allow_little(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed, "_MOST_BYTES", 1000)


def allow_little_memory(connection: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed, "_SHARE_OF_MEMORY", 1 << 20)
    connection.execute("SET memory_limit = '1GB'")


@pytest.mark.slow
@pytest.mark.parametrize("forbid", [forbid_folders, forbid_files, allow_little, allow_little_memory])
def test_where_no_file_can_be_written_or_kept_rows_are_journalled_as_images(
    waiting: Path, forbid: Callable[[Any, pytest.MonkeyPatch], None]
) -> None:
    wlc.flush(waiting)
    connection = wlc.connect(waiting)
    connection._shared.publisher.stop()
    with pytest.MonkeyPatch.context() as patch:
        forbid(connection, patch)
        connection.execute("INSERT INTO keyed " + MANY.format(30, 60))
    assert shown(kept(connection)) == ["images"]
    connection._finalizer.detach()
    connection._raw.close()
    abandon_masters()
    wlc.flush(waiting)
    assert_published(waiting)


@pytest.mark.slow
def test_a_database_that_is_cut_off_from_files_packs_in_the_folder_that_is_allowed(waiting: Path) -> None:
    wlc.flush(waiting)
    with wlc.connect(waiting, config={"enable_external_access": "false"}) as connection:
        connection._shared.publisher.stop()
        connection.execute("INSERT INTO keyed " + MANY.format(30, 60))
        assert shown(kept(connection)) == ["packed"]
    assert_published(waiting)


def test_a_missing_piece_is_noticed_and_nothing_is_published(waiting: Path) -> None:
    with_duckdb(waiting, "DELETE FROM wlc.packed")
    with pytest.raises(UnavailableError, match=r"bytes of table main.keyed at tick 3 DuckDB shows 0"):
        wlc.flush(waiting)
    assert open_database(str(waiting.parent / "farm" / "sales")).batch_numbers() == [1]


@pytest.mark.slow
def test_a_master_that_becomes_a_site_has_images_again(waiting: Path) -> None:
    fill(waiting, "UPDATE keyed SET l = NULL WHERE id = 3")
    with attached(waiting) as connection:
        assert shown(kept(connection)) == ["packed", "images"]
    wlc.master(waiting, farm=str(waiting.parent / "farm"), site="oslo")
    with attached(waiting) as connection:
        assert shown(kept(connection)) == ["images", "images"]
        # Data files are sorted by tick, and written in the order of the image table.
        ticks = [tick for (tick,) in connection.execute("SELECT _tick FROM wlc.j1").fetchall()]
        assert ticks == sorted(ticks)
    fill(waiting, "INSERT INTO keyed " + MANY.format(30, 60))
    with attached(waiting) as connection:
        assert shown(kept(connection)) == ["images"] * 3
    assert wlc.flush(waiting).rows == 62
    assert_published(waiting)


def test_a_copy_of_the_file_holds_what_waits(waiting: Path) -> None:
    moved = waiting.with_name("moved.duckdb")
    shutil.move(waiting, moved)
    wlc.master(moved, moved=True)
    assert wlc.flush(moved).rows == 30


@pytest.mark.slow
def test_a_database_of_an_earlier_version_gets_the_table(waiting: Path) -> None:
    wlc.flush(waiting)
    with_duckdb(waiting, "DROP TABLE wlc.packed")
    fill(waiting, "INSERT INTO bag " + MANY.format(0, 30))
    assert wlc.flush(waiting).rows == 30
    assert_published(waiting)
