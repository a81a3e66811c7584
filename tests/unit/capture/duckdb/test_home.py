"""The file that became a master, told from its copies and from itself after a move of what lies around it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
from wlc.capture.duckdb.home import (
    Doubt,
    Home,
    checkpoints,
    decode,
    decode_home,
    elsewhere,
    encode,
    encode_home,
    home_at,
)
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from pathlib import Path


DISK, OTHER_DISK, NETWORK, REMOUNTED = (os.makedev(*pair) for pair in ((8, 1), (8, 2), (0, 51), (0, 52)))
HOME = Home("db1", "boot 1", "/srv/sales.duckdb", DISK, 12)
REBOOTED = {"boot": "boot 2"}


@pytest.mark.parametrize(
    "home, change, is_home",
    [
        (HOME, {}, True),
        (HOME, REBOOTED, True),
        (HOME, {**REBOOTED, "device": OTHER_DISK}, True),
        (HOME, {"host": "container-2"}, True),
        (HOME, {**REBOOTED, "host": "clone"}, False),
        (HOME, {"path": "/srv/copy.duckdb"}, False),
        (HOME, {"inode": 13}, False),
        (HOME, {"path": "/srv/copy.duckdb", "inode": 13}, False),
        (HOME, {"device": OTHER_DISK}, False),
        (HOME, {"boot": "", "host": "db2"}, False),
        # A file system that was mounted again has another number.
        (replace(HOME, device=NETWORK), {"device": REMOUNTED}, True),
        # Machines without a boot id are told by their names.
        (replace(HOME, boot=""), {}, True),
        (replace(HOME, boot=""), {"host": "db2"}, False),
    ],
)
def test_what_makes_a_file_the_master(home: Home, change: dict[str, Any], is_home: bool) -> None:
    assert home.is_home_of(replace(home, **change)) is is_home


def test_another_path_to_the_same_file_is_home_while_both_lead_there() -> None:
    bound = replace(HOME, path="/mnt/sales.duckdb")
    assert HOME.is_home_of(bound, names=HOME)
    assert not HOME.is_home_of(bound, names=None), "the directory was renamed"
    assert not HOME.is_home_of(bound, names=replace(HOME, inode=13)), "another file was put in its place"


def test_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    master = tmp_path / "folder" / "sales.duckdb"
    master.write_bytes(b"rows")
    home = home_at(str(master))
    link, alias, copy = tmp_path / "link.duckdb", tmp_path / "alias.duckdb", tmp_path / "a copy.duckdb"
    os.link(master, link)
    alias.symlink_to(master)
    shutil.copy2(master, copy)
    for path in (master, link, alias):
        assert elsewhere("sales", home, home_at(str(path)), str(path)) is None
    refused = elsewhere("sales", home, home_at(str(copy)), str(copy))
    assert refused is not None
    assert str(master) in refused.message
    assert str(copy) in refused.message
    assert refused.hint is not None
    assert f"wlc master '{copy}' --moved" in refused.hint
    assert f"wlc master '{copy}' --name OTHER" in refused.hint
    link.unlink()
    copy.replace(master)
    restored = elsewhere("sales", home, home_at(str(master)), str(master))
    assert restored is not None
    assert "put in its place" in restored.message


def test_what_is_written_is_read() -> None:
    for home in (HOME, replace(HOME, inode=2**64 - 1)):
        assert decode_home(encode_home(home)) == home
    for damaged in (None, "", "{}", "[]", "[" * 100_000, encode_home(HOME).replace("12", '"x"')):
        assert decode_home(damaged) is None


def test_a_file_that_does_not_know_its_home_is_a_copy() -> None:
    refused = elsewhere("sales", None, HOME, "sales.duckdb")
    assert refused is not None
    assert refused.message.startswith("sales.duckdb does not say which file became the master")
    assert "wlc master sales.duckdb --moved" in str(refused.hint)


T, U = Name("main", "t"), Name("main", "u")


@pytest.mark.parametrize("doubt", [Doubt(), Doubt(is_open=True), Doubt(is_open=True, compared={T, U})])
def test_what_is_in_doubt_is_remembered(doubt: Doubt) -> None:
    text = encode(7, doubt)
    assert decode(text, 7, has_log=False) == doubt
    for other in (decode(text, 8, has_log=False), decode(text, 7, has_log=True), decode(None, 7, has_log=False)):
        assert other.of([T]) == [T]
    for damaged in ("", "[]", "{}", '{"checkpoint": 7}', '{"checkpoint": 7, "compared": [["main"]]}'):
        assert decode(damaged, 7, has_log=False).is_open


def test_changing_a_row_that_another_program_changed_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "m.duckdb"
    with duckdb.connect(source) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    wlc.master(source, farm=f"{tmp_path}/farm", name="m")
    with wlc.connect(source) as master:
        # What sessions with capture have written is in no doubt.
        master.execute("UPDATE t SET v = 'b' WHERE k = 1")
        assert not master._shared.doubt.is_open
    with duckdb.connect(source) as connection:
        connection.execute("UPDATE t SET v = 'plain' WHERE k = 2")
        before = checkpoints(source)
        connection.execute("CHECKPOINT")
        assert checkpoints(source) == before + 1
    assert checkpoints(source) == before + 1
    with pytest.warns(UserWarning, match=r"main\.t has other rows; wlc farm repair"):
        master = wlc.connect(source)
    with master:
        # Rows can still be added.
        master.execute("INSERT INTO t VALUES (3, 'c')")
        for statement in ("UPDATE t SET v = 'c' WHERE k = 1", "BEGIN; DELETE FROM t WHERE v = 'b'; COMMIT"):
            with pytest.raises(UnsupportedError, match=r"rows of main\.t were changed without") as refused:
                master.execute(statement)
            assert refused.value.hint == f"wlc farm repair {source}"
    # The doubt outlives the session.
    with pytest.warns(UserWarning, match=r"main\.t has "):
        master = wlc.connect(source)
    with master, pytest.raises(UnsupportedError):
        master.execute("DELETE FROM t WHERE k > 0")
