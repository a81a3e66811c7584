"""The story that examples in docstrings tell: the database `sales`, its table `orders`, a farm, and replicas.

Each example begins with a state of one folder. A copy of a master is refused, so that states share the files themselves.
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
    """Two orders, one of which was changed; a copy and a lake hold all of it."""
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


def repaired_by_hand(statement: str) -> None:
    """Write into the replica."""
    wlr.unlock("copy.duckdb")
    with duckdb.connect("copy.duckdb") as connection:
        connection.execute(statement)
    wlr.lock("copy.duckdb")


def failed() -> None:
    """The copy lacks a row that transaction 4 changes."""
    repaired_by_hand("DELETE FROM orders WHERE id = 2")
    write("UPDATE orders SET item = 'red ink' WHERE id = 2")
    with pytest.raises(wlr.ReplayError):
        wlr.replicate(into="copy.duckdb")


def accepted() -> None:
    """After `failed`: the copy has skipped transaction 4, and holds the row again that it lacked."""
    wlr.accept("copy.duckdb")
    repaired_by_hand("INSERT INTO orders VALUES (2, 'blue ink')")


def adopted() -> None:
    """A file with tables of its own holds a replica."""
    with duckdb.connect("app.duckdb") as connection:
        connection.execute("CREATE TABLE notes (text VARCHAR)")
    wlr.replicate("sales", into="app.duckdb", adopt=True)


def listed() -> None:
    """A registry that the upper tier reaches lists itself as a place to be filled."""
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
    """The folder, and what it held at each state that was needed.

    The files of a state stay what they are: each has a second name outside of the folder, under which it is found again.
    """

    folder: Path
    states: dict[Callable[[], None], dict[Path, bytes]] = field(default_factory=dict)

    def begin(self, state: Callable[[], None]) -> None:
        """Let the folder, which is the current one, hold a state."""
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
