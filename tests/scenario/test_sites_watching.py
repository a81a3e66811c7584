"""What `wlc sites` and `wlc conflicts` show while sites differ, and what users do about it."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("watching"))
    sites.found()
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "a", "epoch")
    sites.exchange()
    return sites


def shown(capsys: Capture, *arguments: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run_app(app, "wlc", [*map(str, arguments), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def counters(capsys: Capture, sites: Sites) -> dict[str, int]:
    found = shown(capsys, "conflicts", sites.file("oslo"))
    return {each["name"]: each["value"] for each in found if each["site"] == "rome"}


@pytest.mark.slow
def test_e14_the_last_conflict_is_contained_once_its_refresh_has_come_back(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id = 1")
    wlc.flush(two.file("oslo"))
    oslo, rome = shown(capsys, "sites", "sales", "--farm", two.farm)
    assert (rome["window_rows"], rome["window_age_s"] > 0, rome["is_stable"]) == (2, True, True)
    assert (oslo["behind"], oslo["delay_s"]["rome"] > 0, oslo["contained_by"]["rome"] < oslo["tick"]) == (
        ["rome"], True, True,
    )  # fmt: skip
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 1", "INSERT INTO a VALUES (7, 'seven', 0)")
    two.take("oslo")
    found = counters(capsys, two)
    assert found["last_conflict_tick"] > found["contained_tick"]
    assert "last_stable_tick" not in found
    oslo, rome = shown(capsys, "sites", two.file("oslo"))
    assert not oslo["is_stable"]
    assert not rome["is_stable"]
    two.take("rome")
    assert counters(capsys, two) == found
    two.take("oslo")
    found = counters(capsys, two)
    assert found["contained_tick"] == found["last_conflict_tick"] == found["last_stable_tick"]
    oslo, rome = shown(capsys, "sites", two.file("rome"))
    for site in (oslo, rome):
        assert (site["is_stable"], site["behind"], site["window_rows"], site["window_age_s"]) == (True, [], 0, 0)
        assert list(site["delay_s"].values()) == [0]
    assert oslo["contained_by"] == {"rome": oslo["tick"]}


def rejected(two: Sites, capsys: Capture) -> list[dict[str, Any]]:
    return shown(capsys, "exceptions", two.file("oslo"))


@pytest.mark.slow
def test_a_rejected_transaction_is_written_again(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "INSERT INTO a VALUES (20, 'twenty', 1.5), (21, 'twenty-one', NULL)")
    two.write("oslo", "INSERT INTO parents VALUES (1, 'one')")
    wlc.set_rule(two.file("oslo"), "parents", "epoch_trans")
    wlc.set_rule(two.file("oslo"), "u", "epoch_trans")
    two.exchange()
    before = len(rejected(two, capsys))
    two.write("oslo", "UPDATE a SET x = 2.5 WHERE id = 20", "UPDATE parents SET v = 'oslo' WHERE id = 1")
    two.write("rome", "UPDATE a SET v = 'O''Hara' WHERE id = 20")
    two.write("rome", "BEGIN; INSERT INTO parents VALUES (2, 'two'); INSERT INTO u VALUES (5, 'five');"
              " UPDATE parents SET v = 'rome' WHERE id = 1; COMMIT")  # fmt: skip
    two.exchange()
    row, *whole = rejected(two, capsys)[before:]
    assert (row["op_type"], row["local"]) == ("UPDATE_ROW", {"id": 20, "v": "twenty", "x": "2.5"})
    # Of an updated row only what its transaction changed is written again.
    assert run_app(app, "wlc", ["exceptions", str(two.file("oslo")), "--resubmit", row["id"]]) == 0
    assert two.rows("oslo", "a")[-2] == (20, "O'Hara", 2.5)
    assert len(whole) == 3
    transaction = f"rome:{whole[0]['source_tick']}"
    assert wlc.resubmit(two.file("oslo"), transaction) == 3
    assert two.rows("oslo", "parents") == [(1, "rome"), (2, "two")]
    assert two.rows("oslo", "u") == [(5, "five")]
    assert all(each["resubmitted"] for each in rejected(two, capsys)[before:])
    for again in (row["id"], transaction):
        capsys.readouterr()
        assert run_app(app, "wlc", ["exceptions", str(two.file("oslo")), "--resubmit", again]) == 2
        assert "was resubmitted at" in capsys.readouterr().err
    two.exchange()
    two.refuse_differences("a", "parents", "u")
    two.replica_equals("oslo")


@pytest.mark.slow
def test_rows_that_differ_from_what_the_exception_shows_are_not_written_over(two: Sites) -> None:
    two.write("oslo", "INSERT INTO a VALUES (30, 'thirty', 0), (31, 'x', 0), (32, 'x', 0)")
    two.exchange()
    before = len(wlc.exceptions(two.file("oslo")))
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id BETWEEN 30 AND 32", "INSERT INTO a VALUES (33, 'oslo', 0)")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id IN (30, 31)", "DELETE FROM a WHERE id = 32",
              "INSERT INTO a VALUES (33, 'rome', 0)")  # fmt: skip
    two.exchange()
    by_key = {row.key["id"]: row for row in wlc.exceptions(two.file("oslo"))[before:]}
    changed, gone, deleted, added = (by_key[key] for key in (30, 31, 32, 33))
    two.write("oslo", "UPDATE a SET v = 'later' WHERE id = 30", "DELETE FROM a WHERE id = 31")
    for row, problem in (
        (changed, r'row {"id": 30} has changed since it was rejected, and is .*"later"'),
        (gone, r'main\.a has no row {"id": 31}'),
        (added, r'main\.a has a row {"id": 33} already: .*"oslo"'),
    ):
        with pytest.raises(InvalidError, match=problem):
            wlc.resubmit(two.file("oslo"), row.id)
    assert wlc.resubmit(two.file("oslo"), deleted.id) == 1
    assert [row[0] for row in two.rows("oslo", "a") if row[0] in (30, 31, 32, 33)] == [30, 33]
    with pytest.raises(InvalidError, match="nothing that could be written was rejected here as rome:999"):
        wlc.resubmit(two.file("oslo"), "rome:999")
    with pytest.raises(InvalidError, match="names no exception"):
        wlc.resubmit(two.file("oslo"), "rome")


@pytest.mark.slow
def test_the_process_that_has_the_file_open_takes_in_the_background(two: Sites, tmp_path: Path) -> None:
    with wlc.connect(two.file("rome"), take=True, beat_s=0.1) as connection:
        two.write("oslo", "INSERT INTO a VALUES (40, 'forty', 0)")
        wlc.flush(two.file("oslo"))
        deadline = time.monotonic() + 60
        while not connection.execute("SELECT 1 FROM a WHERE id = 40").fetchall():
            assert time.monotonic() < deadline, connection.wlc.failure
            time.sleep(0.05)
        connection.execute("INSERT INTO a VALUES (41, 'rome', 0)")
        assert [each.site for each in connection.wlc.take()] == ["oslo"]
    # Closing has ended the thread and published what was written.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wlc take")]
    two.exchange()
    two.refuse_differences("a")
    alone = tmp_path / "alone.duckdb"
    wlc.master(alone, farm=str(tmp_path / "farm"), create=True)
    with pytest.raises(InvalidError, match="no site"):
        wlc.connect(alone, take=True)
    with pytest.raises(InvalidError, match="only reads"):
        wlc.connect(two.file("rome"), read_only=True, take=True)


def test_join_warns_of_keys_that_all_sites_would_number_alike(tmp_path: Path, capsys: Capture) -> None:
    sites = Sites(tmp_path)
    sites.found(
        "CREATE SEQUENCE numbers; CREATE TABLE orders (id INTEGER PRIMARY KEY DEFAULT nextval('numbers'), v VARCHAR,"
        " n INTEGER DEFAULT nextval('numbers')); CREATE TABLE a (id UUID PRIMARY KEY DEFAULT uuid())"
    )
    join = ["--name", "sales", "--farm", sites.farm, "--site", "rome"]
    assert run_app(app, "wlc", ["join", "postgresql://nobody:secret@127.0.0.1:1/x", *join]) == 8
    shown = capsys.readouterr().err
    assert "PostgreSQL sites do not exist yet" in shown
    assert "secret" not in shown
    assert run_app(app, "wlc", ["join", str(sites.file("rome")), *join]) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "sequence" in line]
    assert "key column id of main.orders defaults to a sequence" in warning
    assert "uuid()" in warning
