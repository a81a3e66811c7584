"""The mistakes of a new user, and the hints that follow them; test_docs_run.py types what README and the docs tell."""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
from datetime import date
from typing import TYPE_CHECKING

import duckdb
import pytest

import cli.wlc
import cli.wlr
import wlc
import wlr
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
    for memory in ((":memory:",), ("",), ()):
        with pytest.raises(InvalidError, match="a database in memory cannot be a master") as refused:
            wlc.connect(*memory)
        assert refused.value.hint == "wlc master sales.duckdb --create makes a file"


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


def test_the_first_snapshot_says_how_far_it_is(folder: Path) -> None:
    with duckdb.connect("shop.duckdb") as connection:
        connection.execute("CREATE TABLE a AS SELECT 1 AS x; CREATE TABLE b AS SELECT 2 AS x")
    heard: list[tuple[int, int]] = []
    wlc.master("shop.duckdb", farm="farm", progress=lambda done, total, _: heard.append((done, total)))
    assert {total for _, total in heard} == {2}
    assert {done for done, _ in heard} >= {0, 1}
    assert heard == sorted(heard)


# Ticks and times as programs give them.

MOMENTS = {
    "wlc.exceptions": {"since"},
    "wlc.prune": {"reach"},
    "wlc.tag": {"tick"},
    "wlr.attach": {"tick"},
    "wlr.changes": {"since", "until"},
    "wlr.diff": {"first", "last"},
    "wlr.differing_rows": {"first", "last"},
    "wlr.drill": {"tick"},
    "wlr.feed": {"start"},
    "wlr.files": {"tick"},
    "wlr.read": {"tick", "until"},
    "wlr.replicate": {"tick", "until"},
    "wlr.report": {"since"},
    "wlr.retry": {"tick"},
    "wlr.undo": {"first", "last"},
}
# What a call needs beside the moment.
NEEDED: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "wlc.exceptions": (("sales",), {}),
    "wlc.prune": (("sales",), {"dry_run": True}),
    "wlc.tag": (("sales", "t"), {}),
    "wlr.attach": (("lake", "v.duckdb"), {}),
    "wlr.changes": (("sales", "orders"), {}),
    "wlr.diff": (("sales",), {"first": 1, "last": 1}),
    "wlr.differing_rows": (("sales",), {"table": "orders", "first": 1, "last": 1}),
    "wlr.drill": (("sales",), {}),
    "wlr.feed": (("sales",), {"to": "out.jsonl", "name": "f"}),
    "wlr.files": (("lake", "orders"), {}),
    "wlr.read": (("sales", "orders"), {}),
    "wlr.replicate": (("sales",), {"into": "at.duckdb"}),
    "wlr.report": (("sales",), {}),
    "wlr.retry": (("copy.duckdb",), {}),
    "wlr.undo": (("sales.duckdb",), {"first": 2, "dry_run": True}),
}


def test_the_table_of_moments_has_all() -> None:
    words = {"tick", "until", "since", "first", "last", "start", "reach"}
    found: dict[str, set[str]] = {}
    for module in (wlc, wlr):
        for name in module.__all__:
            if inspect.isfunction(function := getattr(module, name)):
                for parameter in inspect.signature(function).parameters.values():
                    if parameter.name in words and re.search("int|date", str(parameter.annotation)):
                        found.setdefault(f"{module.__name__}.{name}", set()).add(parameter.name)
    assert found == MOMENTS


@pytest.mark.parametrize("given", ["2", 2, 2.5, "soon", date(2001, 1, 1), b"2"])
def test_a_moment_works_or_is_invalid(farm: Path, given: object) -> None:
    """Never another error, whatever a program gives."""
    wlr.replicate("sales", into="lake/")
    for function, parameters in MOMENTS.items():
        for parameter in parameters:
            arguments, options = NEEDED[function]
            module, _, name = function.partition(".")
            with contextlib.suppress(wlr.InvalidError, wlr.ExpiredError, wlr.UnsupportedError):
                result = getattr({"wlc": wlc, "wlr": wlr}[module], name)(*arguments, **{**options, parameter: given})
                assert not isinstance(given, (float, bytes)), function
                list(result) if name == "changes" else None


def test_a_difference_between_times_is_that_of_their_ticks(farm: Path) -> None:
    right('wlc sql sales.duckdb "INSERT INTO orders VALUES (2), (3)"')
    (found,) = wlr.diff("sales", 1, "3")
    assert (found.table, found.added) == ("main.orders", 3)
    assert wlr.diff("sales", date(2001, 1, 1), "now") == wlr.diff("sales", 0, 3)
