"""The story that examples in docstrings tell: the database `sales`, its table `orders`, a farm, and replicas.

Each example begins with a state of one folder. A copy of a master is refused, so a state begins again with its own files.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from wlc.tiers.upstreams import Push

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def usual() -> None:
    """The master has inserted two orders, tick 2, and changed one of them, tick 3; a copy and a lake hold both."""
    wlc.master("sales.duckdb", create=True, beat_s=60)
    write(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR)", "INSERT INTO orders VALUES (1, 'pen'), (2, 'ink')"
    )
    wlr.replicate("sales", into="lake", keep="10")
    write("UPDATE orders SET item = 'blue ink' WHERE id = 2")
    wlr.replicate(into="lake")
    wlr.replicate("sales", into="copy.duckdb")


def write(*statements: str, file: str = "sales.duckdb") -> None:
    """Let a master commit, and publish."""
    with wlc.connect(file) as connection:
        for statement in statements:
            connection.execute(statement)


def bypassed() -> None:
    """A program has written a row into the master without the capture."""
    with duckdb.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO orders VALUES (3, 'cup')")


def write_into_copy(statement: str) -> None:
    """Write into the replica, past its guard."""
    wlr.unlock("copy.duckdb")
    with duckdb.connect("copy.duckdb") as connection:
        connection.execute(statement)
    wlr.lock("copy.duckdb")


def failed() -> None:
    """The copy lacks a row that transaction 4 changes."""
    write_into_copy("DELETE FROM orders WHERE id = 2")
    write("UPDATE orders SET item = 'red ink' WHERE id = 2")
    with pytest.raises(wlr.ReplayError):
        wlr.replicate(into="copy.duckdb")


def accepted() -> None:
    """After `failed`: the copy has skipped transaction 4, and holds the row again that it lacked."""
    wlr.accept("copy.duckdb")
    write_into_copy("INSERT INTO orders VALUES (2, 'blue ink')")


def adopted() -> None:
    """A file with tables of its own holds a replica."""
    with duckdb.connect("app.duckdb") as connection:
        connection.execute("CREATE TABLE notes (text VARCHAR)")
    wlr.replicate("sales", into="app.duckdb", adopt=True)


def listed() -> None:
    """The registry of a lower tier lists its own place, which a pusher fills."""
    wlc.push_list("edge/sales", add=Push("edge", to="edge/sales"))


def shared() -> None:
    """The database has two sites: oslo, the primary, and rome, which has not taken the last change of oslo."""
    wlc.master("sales.duckdb", site="oslo")
    start = wlc.joined_from("rome.duckdb", name="sales", site="rome")
    assert start is not None
    wlr.replicate(start.url, into="rome.duckdb", tick=start.tick, register=False)
    wlc.join("rome.duckdb", name="sales", site="rome")
    wlc.set_rule("sales", "orders", "epoch")
    write("UPDATE orders SET item = 'red ink' WHERE id = 2")


def rejected() -> None:
    """After `shared`: both sites have changed one order, and rome's change was rejected."""
    write("UPDATE orders SET item = 'green ink' WHERE id = 2", file="rome.duckdb")
    for file in ("sales.duckdb", "rome.duckdb"):
        wlc.take(file)


# The state that another one begins with, if that is not the usual one.
BEFORE = {accepted: failed, rejected: shared}


@dataclass
class Story:
    """The folder, and the contents of its files at each state that an example needed.

    A master knows its file by path and inode. So each file of a state has a second name outside of the folder, from which
    the state gets the same file back.
    """

    folder: Path
    states: dict[Callable[[], None], dict[Path, bytes]] = field(default_factory=dict)

    def begin(self, state: Callable[[], None]) -> None:
        """Put the folder, which must be the current one, into a state."""
        if state in self.states:
            self._restore(state)
            return
        if state is usual:
            self._clear()
        else:
            self.begin(BEFORE.get(state, usual))
        state()
        self._keep(state)

    def _second_name(self, state: Callable[[], None], path: Path) -> Path:
        return self.folder.with_name(f"{state.__name__} kept") / path.relative_to(self.folder)

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _keep(self, state: Callable[[], None]) -> None:
        self.states[state] = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        for path in self.states[state]:
            kept = self._second_name(state, path)
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, kept)

    def _restore(self, state: Callable[[], None]) -> None:
        self._clear()
        for path, content in self.states[state].items():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._second_name(state, path), path)
            path.write_bytes(content)
