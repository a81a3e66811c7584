"""Retention from the first policy to a prune, on an encrypted farm in a bucket; snapshots that are due; waiting."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app as wlc_app
from cli.wlr import app as wlr_app
from tests.oracle import file_contents
from tests.scratch import attached
from wlc.farm.clock import utc_now
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.keeping import tags
from wlc.farm.lease import taking_snapshot
from wlc.farm.seal.keys import add_key
from wlc.masters import prune as pruning
from wlc.masters.due_snapshots import is_due

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.database import FarmDatabase


def commit(source: Path, sql: str) -> None:
    with wlc.connect(source) as connection:
        connection.execute(sql)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    program = str(words[0])
    code = run_app(wlc_app if program == "wlc" else wlr_app, program, [str(word) for word in words[1:]])
    return code, *capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", pytest.param("bucket", marks=pytest.mark.deep)])
def test_a_policy_and_a_tag_decide_what_is_left_of_a_farm_and_everything_left_is_reached(
    tmp_path: Path,
    place: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = request.getfixturevalue("s3_url") if place == "bucket" else str(tmp_path / "farm")
    add_key(tmp_path / "farm.key", "encryption")
    key: dict[str, Any] = {"encryption_key_file": str(tmp_path / "farm.key")}
    source = tmp_path / "sales.duckdb"
    at: dict[str, Any] = {"farm": url, "storage_options": key}
    option = ("--storage-option", f"encryption_key_file={tmp_path / 'farm.key'}")
    wlc.master(source, create=True, beat_s=0, **at)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
        for tick in range(2, 9):
            connection.execute(f"INSERT INTO t VALUES ({tick})")
            if tick in (3, 5, 6, 7):
                wlc.snapshot(source)
    status = wlc.status("sales", **at)
    assert (status.can_go_back_to_tick, status.can_go_back_to is not None) == (0, True)
    assert wlc.status("sales", url).can_go_back_to is None  # It is encrypted, and the rest is shown without a key.
    wlc.tag("sales", "before-import", 3, **at)
    for wrong in ("12", "now"):
        with pytest.raises(InvalidError):
            wlc.tag("sales", wrong, **at)
    with pytest.raises(InvalidError, match="tick 99 is not published"):
        wlc.tag("sales", "later", 99, **at)

    # Without a policy, and without a terminal, nothing goes.
    monkeypatch.setenv("WLC_FARM", url)
    code, _, err = run(capsys, "wlc", "prune", "sales", "--keep-for", "0s", *option)
    assert (code, "wlc prune sales --keep-for 0s --yes" in err, "Oldest restorable state before: " in err) == (
        2,
        True,
        True,
    )
    wlc.retention("sales", keep="0s", keep_daily=1, **at)
    code, out, err = run(capsys, "wlc", "prune", "sales", "--keep-for", "0s", "--json", *option)
    told = json.loads(out)
    # The newest snapshot with its log, the last one of a day before it, and the tag's.
    assert (code, told["keep_snapshots"], told["keep_batches"]) == (0, [3, 6, 7], [6, 7, 8]), err
    assert told["before"] < told["after"]
    assert wlc.status("sales", **at).can_go_back_to_tick == 6

    def rows(name: str) -> list[tuple[Any, ...]]:
        with attached(tmp_path / name) as connection:
            return connection.execute("FROM t ORDER BY i").fetchall()

    assert wlr.replicate("sales", into=tmp_path / "tag.duckdb", until="before-import", **at).tick == 3
    assert wlr.replicate("sales", into=tmp_path / "all.duckdb", **at).tick == 8
    assert (rows("tag.duckdb"), len(rows("all.duckdb"))) == ([(2,), (3,)], 7)
    assert wlr.replicate(into=tmp_path / "tag.duckdb", tick=3, storage_options=key).tick == 3
    with pytest.raises(ExpiredError, match="after tick 3 was pruned") as pruned:
        wlr.replicate(into=tmp_path / "tag.duckdb", storage_options=key)
    command = f"wlr replicate --into {tmp_path / 'tag.duckdb'} --rebase"
    assert str(pruned.value.hint).startswith(f"{command} rebuilds the replica")
    with pytest.raises(ExpiredError, match="tick 4 cannot be reached") as caught:
        wlr.replicate("sales", into=tmp_path / "hole.duckdb", tick=4, **at)
    assert "--tick 3 and --tick 6" in str(caught.value.hint)
    assert not (tmp_path / "hole.duckdb").exists()
    with pytest.raises(ExpiredError):
        wlc.tag("sales", "gone", 4, **at)
    assert [tag.name for tag in wlc.tags("sales", **at)] == ["before-import"]
    with pytest.raises(InvalidError, match="neither a time nor a tag") as unknown:
        wlr.replicate("sales", into=tmp_path / "x.duckdb", until="before_import", **at)
    assert "before-import" in str(unknown.value.hint)

    # What is left is sound, short of a longer window, and a relay of it offers the same.
    audit = wlr.verify_farm("sales", full=True, **at)
    assert (audit.problems, audit.snapshots, audit.can_go_back_to_tick) == ((), 3, 6)
    assert run(capsys, "wlc", "farm", "verify", "sales", "--window", "0s", *option)[0] == 0
    code, _, err = run(capsys, "wlc", "farm", "verify", "sales", "--window", "30d", *option)
    assert (code, "does not reach 30d back" in err) == (6, True)
    assert [wlr.drill("sales", tick=tick, folder=tmp_path, **at).covered for tick in (3, 8)] == [0.0, 0.5]
    wlc.ship("sales", to=str(tmp_path / "relay"), **at)
    relay: dict[str, Any] = {"farm": str(tmp_path / "relay"), "storage_options": key}
    assert wlr.replicate("sales", into=tmp_path / "relayed.duckdb", **relay).tick == 8
    assert wlr.replicate("sales", into=tmp_path / "relayed3.duckdb", tick=3, **relay).tick == 3
    assert file_contents(tmp_path / "relayed3.duckdb") == file_contents(tmp_path / "tag.duckdb")
    assert wlr.replicate(into=tmp_path / "tag.duckdb", rebase=True, storage_options=key).tick == 8
    assert rows("tag.duckdb") == rows("all.duckdb")

    wlc.untag("sales", "before-import", **at)
    wlc.retention("sales", keep_daily=0, **at)
    assert wlc.prune("sales", keep_for="0s", **at).keep_snapshots == (7,)


def test_a_snapshot_is_due_when_the_newest_is_old_and_something_was_published_since() -> None:
    now, day = utc_now(), timedelta(days=1)
    policy = wlc.KeepPolicy(snapshot_every=day)
    assert is_due(policy, 5, None, None, now)
    assert is_due(policy, 5, 4, now - day, now)
    assert not is_due(policy, 5, 4, now - day / 2, now)
    assert not is_due(policy, 5, 5, now - 2 * day, now)
    assert not is_due(policy, 0, None, None, now)
    assert not is_due(wlc.KeepPolicy(keep=day), 5, None, None, now)
    assert not is_due(None, 5, None, None, now)


@pytest.mark.slow
def test_whoever_publishes_takes_the_snapshot_that_is_due_and_nobody_else_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "sales.duckdb"
    wlc.master(source, create=True, farm=str(tmp_path / "farm"), beat_s=300)
    database = wlc.resolve(source)
    commit(source, "CREATE TABLE t (i INTEGER)")
    assert database.snapshot_ticks() == []
    wlc.retention(source, snapshot_every="1d")
    # A program that publishes and ends; the next one finds a young snapshot.
    commit(source, "INSERT INTO t VALUES (1)")
    commit(source, "INSERT INTO t VALUES (2)")
    assert database.snapshot_ticks() == [2]
    monkeypatch.setattr("wlc.masters.due_snapshots.utc_now", lambda: utc_now() + timedelta(days=2))
    with taking_snapshot(database.store, "sales") as is_ours:
        assert is_ours
        wlc.flush(source)
    assert database.snapshot_ticks() == [2]
    wlc.flush(source)
    assert database.snapshot_ticks() == [2, 3]
    assert not database.store.exists("snapshot.lease")
    # A program that stays: its beat begins one, and publishing goes on while it is taken.
    goes_on, began = threading.Event(), threading.Event()

    def slowly(self: Any, place: Any, *, is_first: bool) -> Any:
        began.set()
        assert goes_on.wait(120)
        return original(self, place, is_first=is_first)

    from wlc.capture.duckdb.source import DuckDBSource

    original = DuckDBSource.take_snapshot
    monkeypatch.setattr(DuckDBSource, "take_snapshot", slowly)
    wlc.beat(source, 0.05)
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (3)")
        assert began.wait(120)
        connection.execute("INSERT INTO t VALUES (4)")
        assert published(database, 5)
        goes_on.set()
    assert database.snapshot_ticks() == [2, 3, 5]
    monkeypatch.setattr(DuckDBSource, "take_snapshot", original)
    # A snapshot that fails is told, and what was published stays published.
    with duckdb.connect(str(source)) as bypassing:
        bypassing.execute("INSERT INTO t VALUES (99)")
    with pytest.warns(UserWarning, match="main.t"):
        commit(source, "CREATE TABLE u (i INTEGER)")
    assert (wlc.tick("sales", str(tmp_path / "farm")), database.snapshot_ticks()[-1]) == (6, 5)
    assert "no snapshot of sales was taken, although one is due" in caplog.text


def published(database: Any, tick: int) -> bool:
    for _ in range(2400):
        if database.config().tick >= tick:
            return True
        threading.Event().wait(0.05)
    return False


@pytest.mark.slow
def test_following_ends_when_what_was_asked_for_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    wlc.master(source, create=True, farm=str(tmp_path / "farm"), beat_s=0.05)
    commit(source, "CREATE TABLE t (i INTEGER)")
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    begin = ("wlr", "replicate", "sales", "--into", copy)
    code, _, err = run(capsys, *begin, "--tick", 3)
    assert (code, "--follow" in err) == (2, True)
    code, _, err = run(capsys, *begin, "--until", "in 1h")
    assert (code, "--follow" in err) == (2, True)
    assert not copy.exists()

    def later(*statements: str) -> threading.Thread:
        def write() -> None:
            for statement in statements:
                threading.Event().wait(0.5)
                commit(source, statement)

        thread = threading.Thread(target=write)
        thread.start()
        return thread

    writer = later("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)", "INSERT INTO t VALUES (4)")
    assert run(capsys, *begin, "--tick", 3, "--follow")[0] == 0
    writer.join()
    assert wlr.tick(copy) == 3
    # Whoever is further has waited long enough, and a time that has passed needs no waiting.
    assert run(capsys, *begin, "--tick", 2, "--follow")[0] == 0
    assert run(capsys, *begin, "--until", wlc.clock("sales") - timedelta(microseconds=1), "--follow")[0] == 0  # type: ignore[operator]
    assert wlr.tick(copy) == 3
    writer = later("INSERT INTO t VALUES (5)")
    assert run(capsys, *begin, "--until", utc_now() + timedelta(seconds=0.2), "--follow")[0] == 0
    writer.join()
    # It holds what was committed until then, and the first transaction after it has told that this is all.
    assert wlr.tick(copy) == 4
    assert wlr.replicate(into=copy, tick=99, waits=True).is_target_reached is False
    assert wlr.tick(copy) == 5


@pytest.mark.slow
def test_a_tag_that_is_made_while_a_prune_deletes_is_refused_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "sales.duckdb"
    wlc.master(source, create=True, name="sales", farm=str(tmp_path / "farm"))
    for number in range(1, 4):
        with wlc.connect(source) as connection:
            connection.execute(f"CREATE TABLE t{number} (i INTEGER)")
        wlc.flush(source)
    wlc.snapshot(source)
    delete, reread = pruning._delete, tags

    def tag_and_delete(database: FarmDatabase, retention: wlc.Retention) -> None:
        with pytest.raises(ExpiredError, match="tick 1 of sales was pruned"):
            wlc.tag(source, "late", 1)
        wlc.tag(source, "newest", 3)
        delete(database, retention)

    def read_and_tag(database: FarmDatabase) -> list[wlc.Tag]:
        found = reread(database)
        if not any(tag.name == "early" for tag in found):
            wlc.tag(source, "early", 2)
        return found

    monkeypatch.setattr(pruning, "tags", read_and_tag)
    assert wlc.prune(source, keep_for="0s").delete_batches == ()
    wlc.untag(source, "early")
    monkeypatch.setattr(pruning, "tags", reread)
    monkeypatch.setattr(pruning, "_delete", tag_and_delete)
    assert wlc.prune(source, keep_for="0s").delete_batches == (1, 2)
    assert [tag.name for tag in wlc.tags(source)] == ["newest"]
    assert not list((tmp_path / "farm" / "sales").glob("pruning/*"))
