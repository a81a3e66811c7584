"""What only a directory can do to us: other processes, crashes, odd file systems."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.store import AlreadyExistsError, ConflictError, MissingError, local, open_store
from wlc.farm.store.contract import READ_LIMIT_VARIABLE
from wlc.farm.store.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CREATE_ALL = """
import sys
from wlc.farm.store import AlreadyExistsError, open_store
store, me = open_store(sys.argv[1]), sys.argv[2]
input()
won = []
for number in range(300):
    try:
        store.create(f"race/{number}", me.encode() * 5000)
        won.append(number)
    except AlreadyExistsError:
        pass
print(*won)
"""

ADD_ONE = """
import sys
from wlc.farm.store import ConflictError, open_store
store = open_store(sys.argv[1])
input()
for _ in range(50):
    while True:
        data, version = store.read_versioned("counter")
        try:
            store.replace("counter", b"%d" % (int(data) + 1), version)
            break
        except ConflictError:
            pass
"""


def run_together(program: str, url: str, count: int) -> list[str]:
    """Run `program` in several processes that start at once, and return what they print."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, url, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(count)
    ]
    for process in running:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running)
    return answers


@pytest.mark.slow
def test_of_many_processes_one_creates_each_object(tmp_path: Path) -> None:
    answers = run_together(CREATE_ALL, str(tmp_path), 6)
    winners = {int(number): str(me) for me, answer in enumerate(answers) for number in answer.split()}
    assert sum(len(answer.split()) for answer in answers) == 300
    assert sorted(winners) == list(range(300))
    store = open_store(str(tmp_path))
    assert all(store.read(f"race/{number}") == me.encode() * 5000 for number, me in winners.items())
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.slow
def test_increments_of_many_processes_all_count(tmp_path: Path) -> None:
    open_store(str(tmp_path)).create("counter", b"0")
    run_together(ADD_ONE, str(tmp_path), 4)
    assert open_store(str(tmp_path)).read("counter") == b"200"


@pytest.mark.parametrize("is_new", [False, True])
def test_what_another_process_creates_during_a_replacement_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The object is deleted and created again, or only created, between comparing and writing."""
    store, other = LocalStore(tmp_path), open_store(str(tmp_path))
    version = None if is_new else store.replace("a/config", b"1", None)

    def create_anew() -> None:
        other.delete("a/config")
        other.create("a/config", b"theirs")

    theirs, write = threading.Thread(target=create_anew), LocalStore._write_beside

    def slowly(self: LocalStore, *arguments: Any, **options: Any) -> tuple[int, str]:
        if self is store and not theirs.ident:
            theirs.start()
            theirs.join(0.5)
        return write(self, *arguments, **options)

    monkeypatch.setattr(LocalStore, "_write_beside", slowly)
    if is_new:
        with pytest.raises(ConflictError):
            store.replace("a/config", b"ours", version)
    else:
        store.replace("a/config", b"ours", version)
    theirs.join()
    assert other.read("a/config") == b"theirs"
    other.delete("a/config")
    # Only who replaces leaves a lock.
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ([] if is_new else [".wlc.lock"])


def test_a_full_disk_has_no_room_for_a_lock_and_objects_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    version = store.replace("config", b"1", None)
    monkeypatch.setattr("wlc.farm.store.local._open_lock", failing(errno.ENOSPC))
    with pytest.raises(UnavailableError, match="No space left"):
        store.replace("config", b"2", version)
    store.delete("config")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_objects_and_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, itertools\nfrom wlc.farm.store import open_store\nstore = open_store(sys.argv[1])\n"
        "version = None\n"
        "for number in itertools.count():\n"
        "    store.create(f'{number}', b'x' * 3_000_000)\n"
        "    version = store.replace('config', b'y' * 100_000, version)\n"
    )
    store = open_store(str(tmp_path))
    for turn in range(5):
        root = f"{tmp_path}/{turn}"
        process = subprocess.Popen([sys.executable, "-c", program, root])
        deadline = time.monotonic() + 30
        while not store.exists(f"{turn}/2"):
            assert time.monotonic() < deadline
            time.sleep(0.003 * turn)
        process.send_signal(signal.SIGKILL)
        process.wait()
        survivor = open_store(root)
        assert {entry.bytes for entry in survivor.list() if entry.path != "config"} == {3_000_000}
        data, version = survivor.read_versioned("config")
        assert data == b"y" * 100_000
        survivor.replace("config", b"z", version)
        survivor.sweep(0)
        assert not list(tmp_path.rglob(".*.tmp"))


def test_young_leftovers_are_not_swept(tmp_path: Path) -> None:
    (tmp_path / ".abc.tmp").write_bytes(b"being written")
    store = open_store(str(tmp_path))
    assert store.list() == []
    store.sweep(60)
    assert (tmp_path / ".abc.tmp").exists()


def test_objects_are_readable_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        open_store(str(tmp_path)).create("a/x", b"1")
        open_store(str(tmp_path)).replace("a/y", b"1", None)
    finally:
        os.umask(before)
    assert [(tmp_path / "a" / name).stat().st_mode & 0o777 for name in "xy"] == [0o640, 0o640]


def failing(number: int) -> object:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EPERM, errno.EOPNOTSUPP):
        monkeypatch.setattr(os, "link", failing(number))
        with pytest.raises(UnsupportedError, match="has no hard links"):
            open_store(str(tmp_path)).probe()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_unavailable_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(UnavailableError, match="No space left"):
        open_store(str(tmp_path)).create("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_lost_answer_to_a_link_is_settled_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_and_forget(source: str, target: str, **folders: Any) -> None:
        link(source, target, **folders)
        raise FileExistsError(errno.EEXIST, "retransmitted")

    monkeypatch.setattr(os, "link", link_and_forget)
    open_store(str(tmp_path)).create("x", b"mine")
    assert open_store(str(tmp_path)).read("x") == b"mine"
    monkeypatch.undo()
    with pytest.raises(AlreadyExistsError):
        open_store(str(tmp_path)).create("x", b"mine")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidError, match="file"):
        open_store(str(tmp_path / "file")).create("x", b"1")
    with pytest.raises(InvalidError, match="file"):
        open_store(str(tmp_path / "file")).read("x")


def test_paths_with_spaces_and_file_urls(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a b%c")).create("x", b"1")
    assert open_store(f"file://{tmp_path}/a%20b%25c").read("x") == b"1"


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    os.mkfifo(tmp_path / "x")
    with pytest.raises(CorruptError, match="x is not a regular file"):
        store.read("x")
    with pytest.raises(MissingError):
        store.fetch("x")


def create_staged(store: LocalStore) -> None:
    staged = store.stage("a/b/x", b"1")
    try:
        store.create("a/b/x", staged)
    finally:
        store.release(staged)


def calls(file: Path) -> dict[str, Callable[[Any], object]]:
    """Return every call about the object a/b/x."""
    version = hashlib.sha256(b"outside").hexdigest()
    return {
        "read": lambda store: store.read("a/b/x"),
        "read_versioned": lambda store: store.read_versioned("a/b/x"),
        "fetch": lambda store: store.fetch("a/b/x"),
        "exists": lambda store: store.exists("a/b/x"),
        "create": lambda store: store.create("a/b/x", b"1"),
        "create of a file": lambda store: store.create("a/b/x", file),
        "create of what was staged": create_staged,
        "make_durable": lambda store: store.make_durable("a/b/y"),
        "replace of nothing": lambda store: store.replace("a/b/x", b"1", None),
        "replace": lambda store: store.replace("a/b/x", b"1", version),
        "delete": lambda store: store.delete("a/b/x"),
        "list": lambda store: store.list(),
        "list of a folder": lambda store: store.list("a/b/"),
        "list of one": lambda store: store.list("a/b/x"),
        "list without folders": lambda store: [store.read(entry.path) for entry in store.list("a/b/", recursive=False)],
        "folders": lambda store: store.folders("a/b/"),
        "sweep": lambda store: store.sweep(-60),
    }


def contents(folder: Path) -> dict[str, object]:
    return {
        str(found): found.is_symlink() or (found.lstat().st_mode, found.is_file() and found.read_bytes())
        for found in folder.rglob("*")
    }


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/x", "a/b/.wlc.lock"])
@pytest.mark.parametrize("leads", ["to the same", "nowhere"])
def test_no_call_goes_through_a_link(tmp_path: Path, link: str, leads: str) -> None:
    (file := tmp_path / "file").write_bytes(b"rows")
    elsewhere, root = tmp_path / "outside", tmp_path / "farm"
    for top in (elsewhere, root):
        (top / "a/b/deep").mkdir(parents=True)
        for name in ("x", ".old.tmp", ".wlc.lock"):
            (top / "a/b" / name).write_bytes(b"outside")
    place = root / link
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    target = elsewhere / (link if leads == "to the same" else "nothing")
    place.symlink_to(target)
    passed = set()
    for name, call in calls(file).items():
        before = contents(elsewhere) | (contents(root) if name != "sweep" else {})
        try:
            call(LocalStore(root))
            passed.add(name)
        except CorruptError as error:
            assert f"{place} is a symbolic link to {target}" in str(error)
            assert f"rm {place}" in str(error.hint)
        except (AlreadyExistsError, ConflictError):
            passed.add(name)
        assert contents(elsewhere) | (contents(root) if name != "sweep" else {}) == before, name
    harmless = {
        "a/b/x": {"make_durable", "folders", "sweep"},
        "a/b/.wlc.lock": set(calls(file)) - {"replace", "delete"},
    }
    assert passed == harmless.get(link, {"sweep"})


@pytest.mark.parametrize("call", ["create", "replace", "delete"])
def test_a_link_that_takes_the_place_of_a_folder_meanwhile_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store, elsewhere = LocalStore(tmp_path / "farm"), tmp_path / "outside"
    version = store.replace("a/config", b"1", None)
    shutil.copytree(tmp_path / "farm/a", elsewhere)
    before, real = contents(elsewhere), local.open_file

    def swap(folder: int, path: str, flags: int, mode: int = 0o666) -> int:
        opened = real(folder, path, flags, mode)
        if path != "a" and not (tmp_path / "away").exists():
            (tmp_path / "farm/a").rename(tmp_path / "away")
            (tmp_path / "farm/a").symlink_to(elsewhere)
        return opened

    for module in (local, local):
        monkeypatch.setattr(module, "open_file", swap)
    with suppress(FarmError):
        {
            "create": lambda: store.create("a/x", b"1"),
            "replace": lambda: store.replace("a/config", b"2", version),
            "delete": lambda: store.delete("a/config"),
        }[call]()
    assert (tmp_path / "away").exists()
    assert contents(elsewhere) == before


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    with (tmp_path / "x").open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(CorruptError, match="x has 6442450944 bytes, at most 1073741824 are read") as caught:
        store.read("x")
    assert READ_LIMIT_VARIABLE in str(caught.value.hint)
    (tmp_path / "x").write_bytes(b"four")
    monkeypatch.setenv(READ_LIMIT_VARIABLE, "3")
    with pytest.raises(CorruptError, match="x has 4 bytes"):
        store.read("x")
    monkeypatch.setenv(READ_LIMIT_VARIABLE, "4")
    assert store.read("x") == b"four"
