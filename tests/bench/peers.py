"""The same work with dbfarm, DuckLake and delta-rs: merge, small change, change feed, commit of a row, read of the past.

All begin with the same files of a table and the same changes, and take turns. What DuckLake and delta-rs have to merge
is given to them as the last image of each key; dbfarm reads it from the farm's log. After each round, all three tables
are read as they were before it, and must be the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import wlc
import wlr
from tests.bench import lakes, rivals, tables
from tests.bench.measure import Line, duration, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.measure import Setting

BESIDE = "peer"
ROWS = 5_000_000
CHANGES = 500_000
FEW_CHANGES = 5_000
BATCHES = 20
SINGLES = 40
# Other rows are free in three turns only; see `lakes.change`.
ROUNDS_MOST = 3
PACKAGES = ("duckdb==1.5.5", "duckdb-extension-ducklake==1.5.5", "deltalake==1.6.6", "pyarrow")
PROGRAM = Path(__file__).with_name("peer_sides.py")
# All columns and rows count. A sum of c depends on the order.
READ = (
    "count(*), sum(id)::BIGINT, sum(a)::BIGINT, sum(length(b))::BIGINT, count(c), sum(epoch_us(d) // 1000000)::BIGINT"
)
PEERS = ("ducklake", "delta-rs")


def run(setting: Setting) -> Iterator[Line]:
    """Yield a line for each peer and each kind of work; none if the peers cannot be installed."""
    python = _python(setting.folder / "environment")
    if python is None:
        print("note: DuckLake and delta-rs cannot be installed, so there are no lines", file=sys.stderr, flush=True)
        return
    rows, changes, few = setting.rows(ROWS), setting.rows(CHANGES), setting.rows(FEW_CHANGES)
    world = lakes.make(setting.folder / "peers", rows)
    base = wlr.files(world.lake, "main.t")
    with ExitStack() as stack:
        peers = []
        for name in PEERS:
            peers.append(_Peer(python, name, tables.fresh(world.folder / name), base))
            stack.callback(peers[-1].end)
        bench = stack.enter_context(_Bench(_Ours(world), peers))
        border = rows * lakes.STEP // 10
        for turn in range(1, min(setting.rounds, ROUNDS_MOST) + 1):
            bench.roll(turn, "merge", changes, low=border)
            bench.roll(turn, "small change", few, high=border)
        for number in range(min(SINGLES, setting.singles)):
            bench.commit((rows + 1) * lakes.STEP + number)
    size = f"{rows:,} rows"
    titles = {
        "merge": f"merge of {changes:,} changes into {size}",
        "small change": f"{few:,} changes in a tenth of the keys",
        "feed": "change feed of the merge, into Arrow",
        "past": f"read as of before the merge, {size}",
        "commit": "commit of one row",
        "published": "commit of one row, and flush",
    }
    for what, title in titles.items():
        for name in PEERS:
            theirs, ours = (median(bench.seconds[side, what]) for side in (name, "dbfarm"))
            yield Line(f"{title}: {name}", duration(theirs), duration(ours), ours / theirs)


def _python(folder: Path) -> str | None:
    """The Python of an environment with all packages; DBFARM_PEERS may name one that is there."""
    if given := os.environ.get("DBFARM_PEERS"):
        return str(Path(given) / "bin" / "python")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    found = subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, timeout=900)
    return None if found.returncode else python


class _Peer:
    """A process that holds one peer's table."""

    def __init__(self, python: str, name: str, folder: Path, base: list[str]) -> None:
        self.name = name
        command, pipe = [python, str(PROGRAM), name, str(folder)], subprocess.PIPE
        quiet = {**os.environ, "RUST_LOG": "error"}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=quiet)
        self.do("make", base)

    def do(self, what: str, *arguments: Any) -> tuple[float, Any]:
        """Let it do something; returns the seconds and the answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([what, *arguments]), file=stdin, flush=True)
        line = stdout.readline()
        assert line, f"{self.name} has ended"
        seconds, answer = json.loads(line)
        return seconds, answer

    @property
    def version(self) -> int:
        return int(self.do("version")[1])

    def end(self) -> None:
        # It ends with its standard input.
        with self._process:
            pass


class _Ours:
    """The same of dbfarm: a farm, and a Parquet replica."""

    def __init__(self, world: lakes.World) -> None:
        self.world = world
        self._farm = str(world.folder / "farm" / "t")

    def merge(self, tick: int) -> None:
        wlr.replicate(into=self.world.lake, tick=tick, engine="local", register=False)

    def feed(self, after: int, last: int) -> int:
        return sum(batch.num_rows for batch in wlr.changes(self._farm, "t", since=after, until=last))

    def read(self, tick: int) -> list[Any]:
        return list(wlr.read(str(self.world.lake), "t", tick=tick).aggregate(READ).fetchall()[0])


class _Bench:
    def __init__(self, ours: _Ours, peers: list[_Peer]) -> None:
        self.ours, self.peers = ours, peers
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._connection: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def roll(self, turn: int, name: str, changes: int, **keys: int) -> None:
        """Let all take the same changes; those of a merge are read by all, and so is the table as it was before."""
        world = self.ours.world
        before, known = wlc.tick(world.master), set(world.change_files())
        tick = lakes.change(world, changes, BATCHES if name == "merge" else 1, turn=turn, **keys)
        net = world.folder / "net.parquet"
        rivals.write_net([file for file in world.change_files() if file not in known], net)
        versions = {peer.name: peer.version for peer in self.peers}
        self._time("dbfarm", name, lambda: self.ours.merge(tick))
        for peer in self.peers:
            self.seconds[peer.name, name].append(peer.do("merge", str(net))[0])
        if name == "merge":
            images = [self._time("dbfarm", "feed", lambda: self.ours.feed(before, tick))]
            reads = [self._time("dbfarm", "past", lambda: self.ours.read(before))]
            now = [self.ours.read(tick)]
            for peer in self.peers:
                version = peer.version
                images.append(self._ask(peer, "feed", "feed", versions[peer.name], version))
                reads.append(self._ask(peer, "past", "read", versions[peer.name], READ))
                now.append(peer.do("read", version, READ)[1])
            for what, answers in (("images", images), ("rows before", reads), ("rows after", now)):
                assert all(answer == answers[0] for answer in answers), f"{what} differ: {answers}"

    def commit(self, number: int) -> None:
        """Let all commit a row."""
        world = self.ours.world
        if self._connection is None:
            self._connection = wlc.connect(world.master)
        statement, values = "INSERT INTO t VALUES (?, ?, ?, ?, ?)", [number, 1, "value", 0.5, "2026-01-01 00:00:00"]
        os.sync()
        started = time.perf_counter()
        self._connection.execute(statement, values)
        committed = time.perf_counter()
        wlc.flush(world.master)
        self.seconds["dbfarm", "commit"].append(committed - started)
        self.seconds["dbfarm", "published"].append(time.perf_counter() - started)
        for peer in self.peers:
            seconds, _ = peer.do("insert", number)
            self.seconds[peer.name, "commit"].append(seconds)
            self.seconds[peer.name, "published"].append(seconds)

    def _ask(self, peer: _Peer, name: str, what: str, *arguments: Any) -> Any:
        seconds, answer = peer.do(what, *arguments)
        self.seconds[peer.name, name].append(seconds)
        return answer

    def _time(self, side: str, name: str, call: Callable[[], Any]) -> Any:
        answers: list[Any] = []
        self.seconds[side, name].append(timed(lambda: answers.append(call())))
        return answers[0]
