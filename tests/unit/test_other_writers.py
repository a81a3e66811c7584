"""Whether another program has written a master's file, and what is refused then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from wlc.capture.duckdb.home import Doubt, checkpoints, decode, encode
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from pathlib import Path

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
    assert checkpoints(source) == 0
    with wlc.connect(source) as master:
        # Rows can still be added.
        master.execute("INSERT INTO t VALUES (3, 'c')")
        for statement in ("UPDATE t SET v = 'c' WHERE k = 1", "BEGIN; DELETE FROM t WHERE v = 'b'; COMMIT"):
            with pytest.raises(UnsupportedError, match=r"rows of main\.t were changed without") as refused:
                master.execute(statement)
            assert refused.value.hint == f"wlc repair {source}"
    # The doubt outlives the session.
    with wlc.connect(source) as master, pytest.raises(UnsupportedError):
        master.execute("DELETE FROM t WHERE k > 0")
