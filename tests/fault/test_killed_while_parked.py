"""Processes are killed, and disks full, while rows that refer to others are parked."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.parked import change_and_refer, is_parked, refuse_anything_left
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.farm.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sites import Sites
    from wlc.farm.model import Name

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
import wlc, wlr
from wlc.dialect.duckdb.parked_rows import ParkedRows
ParkedRows.{method} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
{command}
"""


def run_killed(method: str, command: str) -> None:
    """Run a command in a process that is killed when it calls a method."""
    script = KILLED.format(method=method, command=command)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("method", ["forget", "_note"])
def test_rows_come_back_when_a_take_was_killed(shop: Sites, method: str) -> None:
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')", "INSERT INTO notes VALUES (1, 9), (2, 9)")
    wlc.flush(shop.file("rome"))
    wlc.flush(shop.file("oslo"))
    before = shop.rows("rome", "notes")
    run_killed(method, f"wlc.take({str(shop.file('rome'))!r})")
    with duckdb.connect(shop.file("rome")) as connection:
        assert is_parked(connection, "wlc") == (method == "forget")
    # Any command that opens the file for writing does.
    wlc.flush(shop.file("rome"))
    assert shop.rows("rome", "notes") == before
    assert shop.rows("rome", "orders")[1] == (9, 3, "B")
    assert shop.rows("rome", "customers")[2][1] is None
    refuse_anything_left(shop)


def test_rows_come_back_when_a_replay_was_killed(shop: Sites) -> None:
    into = shop.folder / "copy.duckdb"
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')", "INSERT INTO notes VALUES (1, 9)")
    wlc.flush(shop.file("rome"))
    log = shop.log("rome").url
    wlr.replicate(log, into=into, register=False)
    shop.take("rome")
    run_killed("forget", f"wlr.replicate({log!r}, into={str(into)!r}, register=False)")
    wlr.replicate(log, into=into, register=False)
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    with duckdb.connect(into) as connection:
        assert connection.execute("SELECT email FROM customers WHERE id = 3").fetchall() == [("new",)]
        assert not is_parked(connection, "wlr")
        with pytest.raises(duckdb.Error, match="belongs to a replica"):
            connection.execute("DELETE FROM notes")


def test_rows_that_cannot_come_back_are_named(shop: Sites) -> None:
    """Only somebody who writes without wlc to the file of a take that was killed can keep them from coming back."""
    change_and_refer(shop)
    run_killed("forget", f"wlc.take({str(shop.file('rome'))!r})")
    with duckdb.connect(shop.file("rome")) as connection:
        connection.execute("INSERT INTO orders VALUES (9, 1, 'X')")
    with pytest.raises(UnavailableError, match=r'main\.orders into "rome"\.wlc\."parked 0", and cannot') as caught:
        wlc.flush(shop.file("rome"))
    assert "undo later changes to the file that were made without dbfarm" in str(caught.value.hint)
    with duckdb.connect(shop.file("rome")) as connection:
        connection.execute("DELETE FROM orders WHERE id = 9")
    wlc.flush(shop.file("rome"))
    refuse_anything_left(shop)


def no_space_left(*_: object) -> None:
    raise duckdb.OperationalError("no space left on device")


def test_rows_come_back_when_a_step_fails_in_spite_of_them(shop: Sites) -> None:
    change_and_refer(shop)
    forget, calls = ParkedRows.forget, iter([no_space_left])

    def fail_once(parked: ParkedRows, names: Sequence[Name]) -> None:
        next(calls, forget)(parked, names)

    with patch.object(ParkedRows, "forget", fail_once), pytest.raises(UnavailableError, match="no space left"):
        wlc.take(shop.file("rome"))
    with duckdb.connect(shop.file("rome")) as connection:
        assert not is_parked(connection, "wlc")
    assert shop.rows("rome", "orders")[1] == (9, 3, "B")
    refuse_anything_left(shop)


def test_nobody_uses_a_database_whose_rows_could_not_be_brought_back(shop: Sites) -> None:
    """The disk is full, for the step and for bringing the rows back; then there is room again."""
    change_and_refer(shop)
    wlc.flush(shop.file("rome"))
    with wlc.connect(shop.file("rome")) as user:
        with patch.object(ParkedRows, "forget", no_space_left):
            with pytest.raises(UnavailableError, match="cannot go back: no space left"):
                wlc.take(shop.file("rome"))
            calls = (
                lambda: user.execute("FROM orders"),
                lambda: user.sql("FROM orders").fetchall(),
                lambda: user.execute("INSERT INTO orders VALUES (9, 1, 'Z')"),
                lambda: wlc.flush(shop.file("rome")),
                lambda: wlc.snapshot(shop.file("rome")),
                lambda: wlc.take(shop.file("rome")),
            )
            for call in calls:
                with pytest.raises(UnavailableError, match="cannot go back: no space left"):
                    call()
        assert len(user.execute("FROM orders").fetchall()) == 2
    refuse_anything_left(shop)


def test_what_is_parked_is_not_read_as_if_it_were_not_there(shop: Sites) -> None:
    into = shop.folder / "copy.duckdb"
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(shop.file("rome"))
    log = shop.log("rome").url
    wlr.replicate(log, into=into, register=False)
    run_killed("forget", f"wlc.take({str(shop.file('rome'))!r})")
    with pytest.raises(UnavailableError, match="rows of main.orders were moved aside") as caught:
        wlc.connect(shop.file("rome"), read_only=True)
    assert str(caught.value.hint).endswith(f"wlc flush {shop.file('rome')}")
    shop.take("rome")
    run_killed("forget", f"wlr.replicate({log!r}, into={str(into)!r}, register=False)")
    with pytest.raises(UnavailableError, match="rows of main.orders were moved aside") as caught:
        wlr.verify(into)
    assert str(caught.value.hint).endswith(f"wlr replicate --into {into}")
    wlr.replicate(into=into)
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
