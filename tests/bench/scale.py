"""How many rounds, requests and bytes a tree of tiers, a star and a mesh need, on the simulated network.

It counts, so that the machine does not matter; the clock and the network are those of `tests/simulation`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.measure import Line, Setting
from tests.bench.plot import Panel, draw
from tests.simulation.world import World, sites, tree_of_tiers, world

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = (3, 10, 30, 100, 200)
SITES = (2, 4, 8, 16)
BEATS_S = (10.0, 60.0, 300.0)
BEAT_S = 60.0
FANOUT = 8
# Dollars for a request of S3 Standard, us-east-1: those that change or list, and those that read. Deletions are free.
_CHANGES = ("create", "replace", "list")
_DOLLARS = {**dict.fromkeys(_CHANGES, 0.005 / 1000), "read": 0.0004 / 1000, "exists": 0.0004 / 1000, "delete": 0.0}
_MONTH_S = 30 * 86400.0
_ROUNDS = 20


# Figures of each number of nodes, for each kind and beat.
Curves = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Counted:
    """What all nodes did in some time: of one node in a minute, but dollars of all of them in a month."""

    requests: float
    kilobytes: float
    dollars: float


def run(setting: Setting) -> Iterator[Line]:
    """Yield what each number of nodes needs, and draw it if that is asked for."""
    is_whole = setting.scale == 1
    rounds, busy, idle = Curves(), Curves(), Curves()
    for kind, sizes in (("tree", NODES), ("star", SITES), ("mesh", SITES)):
        for number in sizes if is_whole else sizes[:1]:
            for beat_s in BEATS_S if is_whole else (BEAT_S,):
                writing, resting, needed = _measured(kind, number, beat_s)
                name = f"{kind} of {number}, beat {beat_s:.0f} s"
                yield Line(f"{name}, all write: a node in a minute", "", "", writing.requests, "requests")
                yield Line(f"{name}, all write: a node in a minute", "", "", writing.kilobytes, "kB")
                yield Line(f"{name}, idle: a node in a minute", "", "", resting.requests, "requests")
                yield Line(
                    f"{name}, all write: a month of a bucket", f"idle {resting.dollars:.2f}", "", writing.dollars, "$"
                )
                yield Line(f"{name}: until all hold a write", "", "", needed, "rounds")
                busy.setdefault(f"{kind}, {beat_s:.0f} s", []).append((number, writing.requests))
                idle.setdefault(f"{kind}, {beat_s:.0f} s", []).append((number, resting.requests))
                if beat_s == BEAT_S:
                    rounds.setdefault(kind, []).append((number, needed))
    if setting.plots:
        (setting.plots / "scale.svg").write_text(draw(list(_panels(rounds, busy, idle))), encoding="utf-8")


def _panels(rounds: Curves, busy: Curves, idle: Curves) -> Iterator[Panel]:
    yield Panel("Rounds until all hold a write", "nodes", "", rounds)
    for kind in rounds:
        of_kind = {name: points for name, points in busy.items() if name.startswith(kind)}
        yield Panel(f"Requests of a node in a minute, {kind}, all write", "nodes", "", of_kind)
    at_rest = {name: points for name, points in idle.items() if f", {BEAT_S:.0f} s" in name}
    yield Panel("The same, idle", "nodes", "", at_rest)


def _measured(kind: str, number: int, beat_s: float) -> tuple[Counted, Counted, int]:
    """Return what is needed while all write, while nobody does, and in how many rounds all hold a last write."""
    with world(1, loss=0.0, latency_s=0.1, round_s=beat_s) as found:
        if kind == "tree":
            relays = (number - 1) // (FANOUT + 1)
            tree_of_tiers(found, relays, number - 1 - relays, FANOUT, rechoose_s=3600)
        else:
            sites(found, tuple(f"site{each}" for each in range(number)), is_mesh=kind == "mesh")
        found.start()
        found.run_rounds(_ROUNDS)
        writing = _counted(found)
        found.calm()
        found.rounds_until_settled(_ROUNDS * 2)
        found.run_rounds(1)
        resting = _counted(found)
        found.masters[-1].source.commit()
        return writing, resting, found.rounds_until_settled(_ROUNDS * 2)


def _counted(found: World) -> Counted:
    """Count what is done in the next rounds."""
    for node in found.nodes.values():
        node.requests, node.bytes = Counter(), 0
    began_s = found.hub.now_s
    found.run_rounds(_ROUNDS)
    passed_s, nodes = found.hub.now_s - began_s, list(found.nodes.values())
    requests = sum((node.requests for node in nodes), Counter[str]())
    per_node_minute = 60 / passed_s / len(nodes)
    dollars = sum(_DOLLARS[kind] * count for kind, count in requests.items()) * _MONTH_S / passed_s
    transferred = sum(node.bytes for node in nodes) / 1000
    return Counted(requests.total() * per_node_minute, transferred * per_node_minute, dollars)
