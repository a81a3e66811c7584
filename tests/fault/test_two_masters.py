"""Two masters for one farm database: one publishes, the other is fenced off and told what to do."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from cli import wlc as commands
from cli.command import run_app
from tests.fault.processes import call_command, program, rounds
from tests.fault.trial import check_log
from tests.oracle import Contents, file_contents, published
from wlc.farm.config import STOPPED
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, FencedError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fault.processes import Program

# Programs that do the same with what they are given, again and again: to start one takes longer than a race.
WRITE_AND_FLUSH = """
import json, sys, wlc
from wlc.farm.errors import FarmError
for line in sys.stdin:
    path, value = json.loads(line)
    connection = wlc.connect(path)
    connection.execute("INSERT INTO t VALUES (?)", [value])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        connection.close()
        print("published", flush=True)
    except FarmError as error:
        print(type(error).__name__, flush=True)
"""
BECOME_MASTER = """
import json, sys, wlc, wlc.capture.duckdb.source
from wlc.farm.errors import FarmError
for line in sys.stdin:
    path, farm = json.loads(line)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        wlc.master(path, farm=farm, name="shared")
        print("master", flush=True)
    except FarmError as error:
        print(type(error).__name__, error.exit_code, error.hint, flush=True)
"""


@pytest.fixture
def farm(tmp_path: Path) -> str:
    return str(tmp_path / "farm")


@pytest.fixture
def source(tmp_path: Path, farm: str) -> Path:
    """A master with two published transactions."""
    path = tmp_path / "first" / "bank.duckdb"
    path.parent.mkdir()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (0)")
    wlc.master(path, farm=farm)
    write(path, 1, 2)
    wlc.flush(path)
    return path


def write(path: Path, *values: int) -> None:
    """Commit without publishing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wlc.masters.background.Publisher.try_publish", lambda shared: None)
        with wlc.connect(path) as connection:
            for value in values:
                connection.execute("INSERT INTO t VALUES (?)", [value])


def copied(source: Path, name: str) -> Path:
    """A copy of the database's folder; the file's name, which is that of its catalog, stays."""
    shutil.copytree(source.parent, source.parent.with_name(name))
    return source.parent.with_name(name) / source.name


def moved_copy(source: Path, name: str) -> Path:
    """A copy that takes the master's place, as its owner says, while the master lives on."""
    copy = copied(source, name)
    wlc.master(copy, moved=True)
    return copy


def published_contents(farm: str, name: str = "bank") -> Contents:
    check_log(open_database(name, farm))
    return published(f"{farm}/{name}")


# A copy of a master's file


@pytest.mark.slow
def test_copy_that_comes_second_is_fenced_off_and_can_publish_under_another_name(source: Path, farm: str):
    copy = moved_copy(source, "copy")
    write(source, 10)
    wlc.flush(source)
    expected = published_contents(farm)
    # Whether it has written or not.
    for values in ((), (20,)):
        write(copy, *values)
        refused = call_command("wlc", "flush", copy)
        assert refused.returncode == 4, refused.stderr
        assert "published by another master" in refused.stderr
        assert "wlc stop" in refused.stderr
        assert published_contents(farm) == expected == file_contents(source)
    with pytest.warns(UserWarning, match="publishes no more"):
        wlc.stop(copy)
    assert wlc.status("bank", farm=farm).state == "active", "the stop of a fenced copy stopped the true master"
    wlc.master(copy, farm=farm, name="other")
    for path, name, value in ((copy, "other", 21), (source, "bank", 11)):
        write(path, value)
        wlc.flush(path)
        assert published_contents(farm, name) == file_contents(path)


@pytest.mark.slow
def test_first_master_is_fenced_off_where_the_copy_was_faster(source: Path, farm: str):
    copy = moved_copy(source, "copy")
    write(copy, 20)
    wlc.flush(copy)
    write(source, 10)
    with pytest.raises(FencedError):
        wlc.flush(source)
    assert published_contents(farm) == file_contents(copy)
    shown = wlc.status(source)
    assert shown.fenced is not None
    assert "published by another master" in shown.fenced
    assert shown.fenced_since is not None
    assert f"wlc stop {source}, then wlc master {source}" in (shown.remedy or "")
    assert (wlc.status(copy).fenced, wlc.status(copy).fenced_since, wlc.status(copy).remedy) == (None, None, None)
    with pytest.raises(FencedError):
        wlc.flush(source)
    assert wlc.status(source).fenced_since == shown.fenced_since
    # What cannot be published is not written any more; what is there stays readable.
    with wlc.connect(source) as connection:
        with pytest.raises(FencedError, match="refuses writes.*published by another master") as refused:
            connection.execute("INSERT INTO t VALUES (11)")
        assert refused.value.hint is not None
        assert f"wlc stop {source}, then wlc master {source}" in refused.value.hint
        connection.execute("BEGIN; CREATE TABLE later (i INTEGER)")
        with pytest.raises(FencedError):
            connection.execute("COMMIT")
        assert connection.execute("SELECT max(i) FROM t").fetchall() == [(10,)]
        connection.execute("CREATE TEMP TABLE mine AS FROM t")


def test_a_master_whose_fence_is_gone_writes_again(source: Path, farm: str):
    config = open_database("bank", farm).config()
    open_database("bank", farm).change_config(lambda config: replace(config, state=STOPPED))
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (10)")
        with pytest.raises(FencedError, match="was stopped"):
            wlc.flush(source)
        with pytest.raises(FencedError, match="was stopped"):
            connection.execute("INSERT INTO t VALUES (11)")
        open_database("bank", farm).change_config(lambda present: replace(present, state=config.state))
        wlc.flush(source)
        assert wlc.status(source).fenced is None
        connection.execute("INSERT INTO t VALUES (11)")
    assert published_contents(farm) == file_contents(source)


@pytest.mark.slow
def test_the_command_that_meets_the_fence_says_what_to_type(
    source: Path, farm: str, capsys: pytest.CaptureFixture[str]
):
    open_database("bank", farm).change_config(lambda config: replace(config, state=STOPPED))
    # It is shown before it is met.
    assert run_app(commands.app, "wlc", ["status", str(source)]) == 0
    assert "farm database bank was stopped" in capsys.readouterr().out
    for said in ("the statements are committed and wait to be published", "refuses writes"):
        assert run_app(commands.app, "wlc", ["sql", str(source), "INSERT INTO t VALUES (10)"]) == 4
        error = capsys.readouterr().err
        assert said in error
        assert "farm database bank was stopped" in error
        assert f"hint: wlc stop {source}, then wlc master {source}" in error
    assert run_app(commands.app, "wlc", ["sql", str(source), "SELECT count(*) FROM t WHERE i = 10"]) == 0
    assert "1" in capsys.readouterr().out.split()


@pytest.mark.slow
def test_a_copy_publishes_and_stops_nothing_until_its_owner_says_so(source: Path, farm: str):
    copy = copied(source, "copy")
    before = published_contents(farm)
    with wlc.connect(copy) as connection:
        for statement in ("INSERT INTO t VALUES (20)", "CREATE TABLE u (i INTEGER)", "BEGIN; DELETE FROM t; COMMIT"):
            with pytest.raises(FencedError) as refused:
                connection.execute(statement)
            assert str(source) in refused.value.message
            assert str(copy) in refused.value.message
            with suppress(duckdb.Error):
                connection.execute("ROLLBACK")
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
    for command in (wlc.flush, wlc.snapshot, wlc.prune, lambda copy: wlc.beat(copy, 7)):
        with pytest.raises(FencedError, match="a copy publishes nothing"):
            command(copy)
    assert (wlc.tick(copy), wlc.prune(copy, dry_run=True).delete_batches) == (2, ())
    with pytest.raises(InvalidError, match="belongs to another source.*a copy publishes nothing"):
        wlc.master(copy, farm=farm)
    with pytest.warns(UserWarning, match="a copy publishes nothing"):
        assert "a copy publishes nothing" in (wlc.status(copy).fenced or "")
    with pytest.warns(UserWarning, match="the farm is left as it is"):
        wlc.stop(copy)
    assert wlc.status("bank", farm=farm).state == "active"
    write(source, 10)
    wlc.flush(source)
    assert published_contents(farm) == file_contents(source) != before
    # It becomes a master of its own.
    own = copied(source, "own")
    wlc.master(own, farm=farm, name="own")
    write(own, 20)
    wlc.flush(own)
    assert published_contents(farm, "own") == file_contents(own)


@pytest.mark.slow
def test_a_moved_master_goes_on(source: Path, farm: str):
    write(source, 10)
    history, place = wlc.status("bank", farm=farm).history, source.with_name("moved.duckdb")
    source.rename(place)
    with pytest.raises(FencedError):
        wlc.flush(place)
    assert wlc.master(place, moved=True).history == wlc.master(place, moved=True).history == history
    wlc.flush(place)
    assert published_contents(farm) == file_contents(place)
    wlc.stop(place)
    place.rename(source)
    assert wlc.master(source, farm=farm, moved=True).history != history
    assert published_contents(farm) == file_contents(source)


@pytest.mark.slow
def test_a_master_and_its_farm_are_moved_together(tmp_path: Path):
    source, moved = tmp_path / "old" / "bank.duckdb", tmp_path / "new" / "bank.duckdb"
    source.parent.mkdir()
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    wlc.master(source)
    write(source, 1)
    source.parent.rename(moved.parent)
    assert wlc.master(moved, moved=True).farm == str(tmp_path / "new" / "dbfarm" / "bank")
    wlc.flush(moved)
    farm = tmp_path / "farm"
    (tmp_path / "new" / "dbfarm").rename(farm)
    with pytest.raises(InvalidError, match="there is no database") as refused:
        wlc.master(moved, moved=True)
    assert refused.value.hint == f"If the farm was moved, name it: wlc master {moved} --moved --farm URL"
    wlc.master(moved, moved=True, farm=str(farm))
    write(moved, 2)
    wlc.flush(moved)
    assert published_contents(str(farm)) == file_contents(moved)


@pytest.mark.slow
@pytest.mark.parametrize("is_captured", [True, False], ids=["wlc.connect", "DuckDB alone"])
def test_an_export_of_a_master_is_restored_into_it(source: Path, farm: str, tmp_path: Path, is_captured: bool):
    exported = tmp_path / "exported"
    with (wlc.connect if is_captured else duckdb.connect)(str(source)) as connection:
        connection.execute(f"EXPORT DATABASE '{tmp_path}/export'")
    (tmp_path / "export").rename(exported)
    with wlc.connect(source) as connection:
        assert connection.execute(f"DROP TABLE t; IMPORT DATABASE '{exported}'").fetchall() == []
        connection.execute("INSERT INTO t VALUES (10)")
    assert published_contents(farm) == file_contents(source)
    assert file_contents(source)["main.t"] == {(str(value),): 1 for value in (0, 1, 2, 10)}
    # A new file, made from the export or otherwise, is a copy.
    new = tmp_path / "bank.duckdb"
    with duckdb.connect(str(new)) as connection:
        connection.execute(f"IMPORT DATABASE '{exported}'")
    with wlc.connect(source) as connection:
        connection.execute(f"ATTACH '{tmp_path}/whole.duckdb' AS whole; COPY FROM DATABASE bank TO whole")
    for copy in (new, tmp_path / "whole.duckdb"):
        with pytest.raises(FencedError, match="a copy publishes nothing"):
            wlc.flush(copy)


@pytest.mark.slow
def test_two_processes_publish_the_same_batch_at_once(source: Path, farm: str):
    with two_programs(WRITE_AND_FLUSH) as programs:
        for number in range(rounds(3)):
            copy = moved_copy(source, f"copy {number}")
            before = published_contents(farm)
            answers = race(programs, [(source, 100 + number), (copy, 200 + number)])
            assert sorted(answers) == ["FencedError", "published"]
            winner, loser = (source, copy) if answers[0] == "published" else (copy, source)
            assert published_contents(farm) == file_contents(winner) != before
            with pytest.raises(FencedError):
                wlc.flush(loser)
            if winner is copy:
                shutil.copyfile(copy, source)
                wlc.master(source, moved=True)


@contextmanager
def two_programs(text: str) -> Iterator[tuple[Program, Program]]:
    """Two processes that run the same program; both must end well when they get no more to do."""
    with program(text=text) as one, program(text=text) as other:
        yield one, other
        for running in (one, other):
            assert running.process.stdin is not None
            running.process.stdin.close()
            assert running.end() == 0, running.errors


def race(programs: tuple[Program, Program], given: list[tuple[object, object]]) -> list[str]:
    """Let both programs do their work on what they are given at the same time; returns what each says."""
    for running, work in zip(programs, given, strict=True):
        running.say(json.dumps(work, default=str))
    for running in programs:
        running.wait_for("ready")
    for running in programs:
        running.say("go")
    return [running.next_line() for running in programs]


# A backup


@pytest.mark.slow
def test_master_restored_from_a_backup_is_refused_and_goes_on_in_a_new_history(source: Path, farm: str, tmp_path: Path):
    backup = copied(source, "backup")
    old_replica, new_replica = tmp_path / "old.duckdb", tmp_path / "new.duckdb"
    for value in (10, 11, 12):
        write(source, value)
        wlc.flush(source)
    wlr.replicate("bank", farm=farm, into=old_replica)
    history, tick = wlc.status("bank", farm=farm).history, wlc.tick("bank", farm=farm)
    shutil.copyfile(backup, source)
    refused = call_command("wlc", "flush", source)
    assert refused.returncode == 4, refused.stderr
    write(source, 20)
    refused = call_command("wlc", "flush", source)
    assert refused.returncode == 4, refused.stderr
    assert "restored" in refused.stderr
    assert "hint: run exactly one master; to go on from this copy: wlc stop " in refused.stderr
    assert "SOURCE" not in refused.stderr
    # What it says is what helps.
    stopped = call_command("wlc", "stop", source)
    assert stopped.returncode == 0, stopped.stderr
    begun = call_command("wlc", "master", source, "--farm", farm)
    assert begun.returncode == 0, begun.stderr
    write(source, 21)
    wlc.flush(source)
    assert wlc.status("bank", farm=farm).history != history
    assert wlc.tick("bank", farm=farm) > tick
    check_log(open_database("bank", farm))
    with pytest.raises((InvalidError, CorruptError), match="anew|rebuild|history"):
        wlr.replicate(into=old_replica)
    wlr.replicate("bank", farm=farm, into=new_replica)
    assert file_contents(new_replica) == file_contents(source)


@pytest.mark.slow
def test_restored_backup_whose_next_batch_was_pruned_is_fenced_off(source: Path, farm: str):
    backup = moved_copy(source, "backup")
    for value in (10, 11, 12):
        write(source, value)
        wlc.flush(source)
    wlc.snapshot(source)
    wlc.prune("bank", farm=farm, keep_for="0s")
    write(backup, 20)
    with pytest.raises(FencedError):
        wlc.flush(backup)


# Becoming master


@pytest.mark.slow
def test_stopped_copies_do_not_both_become_master_again(source: Path, farm: str):
    wlc.stop(source)
    copy = copied(source, "copy")
    wlc.master(source, farm=farm)
    with pytest.raises(InvalidError, match="belongs to another source"):
        wlc.master(copy, farm=farm)
    write(source, 10)
    wlc.flush(source)
    assert file_contents(source)["main.t"][("10",)] == 1
    wlc.master(copy, farm=farm, name="other")
    assert published_contents(farm, "other") == file_contents(copy)
    wlc.stop(source)
    wlc.master(source, farm=farm + " 2")
    write(source, 11)
    wlc.flush(source)
    assert published_contents(farm + " 2") == file_contents(source)


@pytest.mark.slow
def test_one_or_two_databases_become_master_of_one_name_at_once(tmp_path: Path, farm: str):
    with two_programs(BECOME_MASTER) as programs:
        # One database twice, or two.
        for number, names in enumerate([("one", "one"), ("one", "other")] * rounds(3)):
            sources = [tmp_path / f"{name} {number}.duckdb" for name in names]
            for value, path in enumerate(dict.fromkeys(sources)):
                with duckdb.connect(str(path)) as connection:
                    connection.execute(f"CREATE TABLE t (i INTEGER); INSERT INTO t VALUES ({value})")
            place = f"{farm} {number}"
            answers = race(programs, [(path, place) for path in sources])
            refusal, _ = sorted(answers, key=lambda answer: answer == "master")
            winner, loser = sources if answers[0] == "master" else sources[::-1]
            if winner == loser:
                # The second finds the file locked, or, if it came late, a master already.
                assert refusal.split()[0] in ("FileInUseError", "UnavailableError", "InvalidError"), answers
            else:
                assert refusal.startswith("InvalidError 2")
                assert "--name" in refusal
                # What the refusal proposes works.
                wlc.master(loser, farm=place, name="mine")
            for path, name in {winner: "shared", loser: "shared" if winner == loser else "mine"}.items():
                write(path, 5)
                wlc.flush(path)
                assert published_contents(place, name) == file_contents(path)
