"""The mistakes of a new user, and the hints that follow them; test_docs_run.py types what README and the docs tell."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

import cli.wlc
import cli.wlr
import wlc
from cli.command import run_app
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path

APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    monkeypatch.setattr("cli.progress.PATIENCE_S", 3600.0)
    return tmp_path


# Mistakes. Every hint is typed as it stands, up to the words in capitals that only the user knows.


def mistake(capsys, line: str) -> tuple[int, str, str]:
    """Type a wrong line; return the exit code, the error and the hint."""
    capsys.readouterr()
    words = shlex.split(line)
    code = run_app(APPS[words[0]], words[0], words[1:])
    found = re.fullmatch(r"(?:warning: .*\n)*error: (.*)\n(?:hint: (.*)\n)?", capsys.readouterr().err)
    assert found, line
    return code, found[1], found[2] or ""


def right(line: str) -> None:
    words = shlex.split(line)
    assert run_app(APPS[words[0]], words[0], words[1:]) == 0, line


@pytest.fixture
def farm(folder: Path) -> Path:
    """A master with one table, and its replica."""
    right("wlc master sales.duckdb --create")
    right('wlc sql sales.duckdb "CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1)"')
    right("wlr replicate sales --into copy.duckdb")
    return folder


def test_a_master_is_made_where_there_is_no_file(folder: Path, capsys) -> None:
    code, message, hint = mistake(capsys, "wlc master 'my sales.duckdb' --name sales")
    assert (code, message) == (2, "there is no database my sales.duckdb")
    assert hint == "wlc master 'my sales.duckdb' --create --name sales makes it"
    with pytest.raises(InvalidError) as caught:
        wlc.connect("new.duckdb")
    assert caught.value.hint == "wlc master new.duckdb --create makes it"
    right(str(caught.value.hint).removesuffix(" makes it"))
    with wlc.connect("new.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    # A second --create changes nothing, and one that fails leaves nothing behind.
    assert mistake(capsys, "wlc master new.duckdb --create")[:2] == (
        2,
        f"new.duckdb is a master already, as new in {folder}/farm",
    )
    assert mistake(capsys, "wlc master other.duckdb --create --name bad/name")[0] == 2
    assert not (folder / "other.duckdb").exists()
    assert mistake(capsys, "wlc master none/a.duckdb --create")[2] == "mkdir -p none"
    for memory in (":memory:", ""):
        with pytest.raises(InvalidError, match="a database in memory cannot be a master"):
            wlc.connect(memory)


def test_a_database_that_the_farm_has_taken_stays_when_making_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    source = tmp_path / "new.duckdb"
    with monkeypatch.context() as patch:
        patch.setattr("wlc.masters.operations.status_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            wlc.master(source, create=True)
    assert wlc.status(source).state == "active"
    other = tmp_path / "other.duckdb"
    with monkeypatch.context() as patch:
        patch.setattr("wlc.masters.operations.claim", interrupt)
        with pytest.raises(KeyboardInterrupt):
            wlc.master(other, create=True)
    assert not other.exists()


def test_a_mistyped_name_is_answered_with_what_is_there(farm: Path, capsys) -> None:
    create = f"wlc master SOURCE --farm {farm}/farm"
    for line in ("wlc status salse", "wlc status salse.duckdb", "wlr replicate salse --into c2.duckdb"):
        assert mistake(capsys, line)[2] == f"{farm}/farm holds sales; to add a database: {create}"
    for line in ("wlc sql salse.duckdb 'select 1'", "wlc flush salse.duckdb", "wlc stop salse.duckdb"):
        assert mistake(capsys, line)[2].startswith(
            "did you mean sales.duckdb? If not: wlc master salse.duckdb --create"
        )
    assert mistake(capsys, "wlr status copy2.duckdb")[2].startswith(f"did you mean {farm}/copy.duckdb? If not: wlr")
    assert f"there is no folder {farm}/frm" in mistake(capsys, "wlc status sales --farm frm")[2]
    assert not (farm / "c2.duckdb").exists()


@pytest.mark.slow
def test_a_replica_is_not_made_a_master(farm: Path, capsys) -> None:
    before = (farm / "copy.duckdb").read_bytes()
    for line in ("wlc status copy.duckdb", "wlc master copy.duckdb --name again", "wlc sql copy.duckdb 'select 1'"):
        assert mistake(capsys, line) == (
            2,
            "copy.duckdb is a replica, which cannot be a master",
            "wlr status copy.duckdb",
        )
    assert (farm / "copy.duckdb").read_bytes() == before
    right("wlr status copy.duckdb")
    for line in ("wlr status sales.duckdb", "wlr replicate sales --into sales.duckdb"):
        code, message, hint = mistake(capsys, line)
        assert (code, message) == (2, f"{farm}/sales.duckdb is a master, not a replica")
        right(hint.partition(";")[0])


def test_what_is_no_database_is_told_from_what_cannot_be_read(farm: Path, capsys, monkeypatch) -> None:
    (farm / "text.duckdb").write_text("hello")
    for line in ("wlc status text.duckdb", "wlc master text.duckdb"):
        assert mistake(capsys, line)[1:] == ("text.duckdb is not a DuckDB database", "file text.duckdb says what it is")
    assert mistake(capsys, "wlr status text.duckdb")[1] == f"{farm}/text.duckdb is not a DuckDB database"


@pytest.mark.slow
def test_a_copy_that_lost_its_place_is_not_told_to_flush(farm: Path, capsys) -> None:
    (farm / "dup.duckdb").write_bytes((farm / "sales.duckdb").read_bytes())
    right("wlc master dup.duckdb --moved")
    right("wlc sql dup.duckdb 'INSERT INTO orders VALUES (2)'")
    insert = "wlc sql sales.duckdb 'INSERT INTO orders VALUES (3)'"
    assert mistake(capsys, insert)[0] == 4
    code, message, hint = mistake(capsys, insert)
    assert code == 4
    assert "refuses writes" in message
    assert "flush" not in hint
    assert hint.startswith("run exactly one master; to go on from this copy: wlc stop sales.duckdb, then")
    assert mistake(capsys, "wlc flush sales.duckdb")[2] == hint


@pytest.mark.slow
def test_what_would_be_silently_wrong_is_refused(farm: Path, capsys, monkeypatch) -> None:
    replicate = "wlr replicate sales --into c2.duckdb"
    for pattern, meant in (("nope*", ""), ("main.order", "Did you mean main.orders? ")):
        assert mistake(capsys, f"{replicate} --tables '{pattern}'") == (
            2,
            f"no table matches --tables '{pattern}'",
            f"{meant}There are: main.orders.",
        )
    # One that only the log has, after the replica's beginning, is there.
    right("wlc sql sales.duckdb 'CREATE TABLE notes (id INTEGER); ALTER TABLE notes RENAME TO remarks'")
    right("wlr replicate sales --into c1.duckdb --tables remarks --tables order?")
    code, message, hint = mistake(capsys, f"{replicate} --storage-option endpointurl=x")
    assert (code, message, hint) == (2, "there is no storage option 'endpointurl'", "did you mean endpoint_url?")
    for line in (f"{replicate} --farm memory://farm", "wlr replicate memory://farm/sales --into c2.duckdb"):
        assert "is in the memory of one process" in mistake(capsys, line)[1]
    with monkeypatch.context() as changed:
        changed.setenv("WLC_FARM", "memory://farm")
        assert mistake(capsys, replicate)[1].startswith("memory://farm is in the memory of one process")
    code, message, hint = mistake(capsys, f"{replicate} --until 2020-01-01")
    assert code == 2
    assert "is before the first transaction, which was committed at" in message
    first, empty = hint.split("; an empty replica: ")
    right(f"wlr replicate sales --into first.duckdb {first}")
    right(f"wlr replicate sales --into empty.duckdb {empty}")
    assert not (farm / "c2.duckdb").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a?b", "a\\b"])
def test_paths_that_duckdb_cannot_write_to(farm: Path, capsys, name: str) -> None:
    (farm / name).mkdir()
    for into in (f"{name}/copy.duckdb", f"{name}.duckdb", *([f"{name}/lake"] if "?" not in name else [])):
        code, message, hint = mistake(capsys, f"wlr replicate sales --into {shlex.quote(into)}")
        assert (code, message) == (2, f"DuckDB cannot write to {farm}/{into}, because the path has a {name[1]}")
        assert hint == "choose another path, without ? and \\"
    assert mistake(capsys, f"wlc master {shlex.quote(name)}/m.duckdb --create")[0] == 2
    assert list((farm / name).iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("copy", ["copy.duckdb", "lake"])
def test_a_path_with_letters_that_urls_and_patterns_use(farm: Path, copy: str) -> None:
    folder = farm / "a%41 #[1]*it's"
    folder.mkdir()
    into = shlex.quote(str(folder / copy))
    right(f"wlr replicate sales --into {into}")
    right("wlc sql sales.duckdb 'INSERT INTO orders VALUES (2)'")
    right(f"wlr replicate --into {into}")
    right(f"wlr verify {into}")
