"""Simulations made from a seed: who takes part, what goes wrong and when, and what must hold at the end."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.hub import BEGIN, Hub
from tests.simulation.network import Network
from tests.simulation.nodes import ROUND_S, Master, Node, Reader, Relay, ReplicaNode, Site
from tests.simulation.source import NAME, SimulatedSource, master_state
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import InvalidError
from wlc.farm.registry import register
from wlc.multi_master.circle import MESH, STAR, SiteHistory, circle_object
from wlc.multi_master.circle_place import SiteState, site_database
from wlc.multi_master.membership import founded, with_site
from wlc.multi_master.take_round import as_reader
from wlc.tiers.administration import fanout, forget, set_upstream
from wlc.tiers.choice import ancestors, recent_s
from wlc.tiers.tier_settings import change_settings
from wlc.tiers.tree import read_tree, relay_id
from wlc.tiers.upstreams import ORIGIN, upstreams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.tiers.tree import Tree

FARM = "memory://top"
DATABASE = f"{FARM}/{NAME}"
RECHOOSE_S = 120


@dataclass(eq=False)
class World:
    """Nodes, and what happens to them.

    Attributes:
        round_s: Time between two rounds of each, which is the beat, too.
        nodes: All of them, by name; those of `masters` write.
    """

    hub: Hub
    network: Network
    round_s: float = ROUND_S
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, node: Any) -> Any:
        self.nodes[node.name] = node
        return node

    @property
    def masters(self) -> list[Master]:
        return [node for node in self.nodes.values() if isinstance(node, Master)]

    @property
    def readers(self) -> list[Node]:
        return [node for node in self.nodes.values() if not isinstance(node, Master)]

    def start(self) -> None:
        for node in self.nodes.values():
            node.start(skew_s=self.hub.random.uniform(-2, 2))

    def trouble(self, rounds: int, *, kills: float = 0.1, cuts: float = 0.1) -> None:
        """Let rounds pass in which processes are killed and begin again later, and places are away for some."""
        chance = self.hub.random
        for _ in range(rounds):
            for node in self.nodes.values():
                if node.is_running and chance.random() < kills:
                    node.kill()
                elif not node.is_running and chance.random() < 0.5:
                    node.start(skew_s=chance.uniform(-2, 2))
            places = ["top", *(node.name for node in self.nodes.values() if isinstance(node, Relay))]
            pairs = [(name, place) for name in self.nodes for place in places if name != place]
            self.network.cut = {pair for pair in pairs if chance.random() < cuts}
            self.run_rounds(1)

    def administer(self) -> None:
        """Do something that the owner of a tree may do at any time: take a place out or back, set slots, forget one."""
        chance = self.hub.random
        places = {
            node.name: relay_id(open_database(node.url)) for node in self.nodes.values() if isinstance(node, Relay)
        }
        place = chance.choice([ORIGIN, *places.values()])
        act = chance.choice(("take out", "put back", "set all", "set one", "forget"))
        # Somebody who is not registered yet cannot be changed.
        with suppress(InvalidError):
            if act == "forget":
                who = chance.choice([node for node in self.readers if isinstance(node, Reader)])
                forget(DATABASE, places.get(who.name, who.name))
                who.is_forgotten = True
            elif act in ("take out", "put back"):
                set_upstream(DATABASE, place, is_active=act == "put back")
            else:
                fanout(DATABASE, chance.randint(1, 4), upstream=place if act == "set one" else None)

    def open_all(self) -> None:
        """Put all places back, with slots enough for everybody."""
        for upstream in upstreams(open_database(DATABASE)):
            set_upstream(DATABASE, upstream.id, is_active=True)
            fanout(DATABASE, len(self.readers), upstream=upstream.id)

    def run_rounds(self, rounds: float) -> None:
        self.hub.run_until(self.hub.now_s + rounds * self.round_s)

    def calm(self, gone: tuple[str, ...] = ()) -> None:
        """Let nothing go wrong any more, and nobody write; those who are gone do not come back."""
        self.network.cut, self.network.loss = set(), 0.0
        for master in self.masters:
            master.writes = 0
        for node in self.nodes.values():
            if node.name in gone:
                node.kill()
            elif not node.is_running:
                node.start()

    def rounds_until_settled(self, most: int, gone: tuple[str, ...] = ()) -> int:
        """Run rounds until everybody who is there holds everything; returns how many."""
        for number in range(most):
            if self.is_settled(gone):
                return number
            self.run_rounds(1)
        assert self.is_settled(gone), self.standing()
        return most

    def is_settled(self, gone: tuple[str, ...] = ()) -> bool:
        sources = [master.source for master in self.masters]
        wanted = {source.author: source.values.get(source.author, 0) for source in sources}
        wanted = {author: value for author, value in wanted.items() if value}
        if any(source.journal or source.values != wanted for source in sources):
            return False
        last = sources[0].state
        readers = [node for node in self.readers if node.name not in gone]
        replicas = [node for node in readers if isinstance(node, ReplicaNode)]
        relays = [node for node in readers if isinstance(node, Relay)]
        if any(replica.values != wanted for replica in replicas):
            return False
        return all(_batches(open_database(relay.url)) == last.batch for relay in relays)

    def standing(self) -> str:
        """Say where everybody stands."""
        told = [f"seed {self.hub.seed}, {self.hub.now_s:.0f} s"]
        for node in self.nodes.values():
            if isinstance(node, Master):
                state = node.source.state
                told.append(f"{node.name}: tick {state.tick}, waiting {len(node.source.journal)}, {node.source.values}")
            elif isinstance(node, ReplicaNode):
                reads = node.attachment.upstream if node.attachment else None
                told.append(f"{node.name}: {node.position}, {node.values}, reads {reads}")
            elif isinstance(node, Relay):
                told.append(f"{node.name}: batch {_batches(open_database(node.url))}")
            told += [f"    {failure}" for failure in node.failures[-3:]]
        return "\n".join(told)


def _batches(database: FarmDatabase) -> int:
    return max(database.batch_numbers(), default=0)


@contextmanager
def world(seed: int, *, loss: float = 0.02, latency_s: float = 0.3, round_s: float = ROUND_S) -> Iterator[World]:
    """An empty world."""
    hub = Hub(seed)
    network = Network(hub, latency_s=latency_s, loss=loss)
    with hub.machine(), network.opened():
        found = World(hub, network, round_s)
        yield found
        for node in found.nodes.values():
            node.kill()


def tree_of_tiers(found: World, relays: int, replicas: int, fanout: int = 3, rechoose_s: float = RECHOOSE_S) -> None:
    """A master with relays and replicas that find their places by themselves."""
    hub = found.hub
    source = SimulatedSource("sales", master_state(FARM, NAME, "aa", hub.clock(), found.round_s), hub.clock)
    open_database(DATABASE).create_config(source.state.config())
    change_settings(open_database(DATABASE), (f"rechoose_s={rechoose_s}", f"fanout={fanout}"))
    found.add(Master(hub, "master", found.round_s, source=source))
    for number in range(relays):
        found.add(Relay(hub, f"relay{number}", found.round_s, fanout=fanout, registry=DATABASE, network=found.network))
    for number in range(replicas):
        found.add(ReplicaNode(hub, f"replica{number}", found.round_s, registry=DATABASE, network=found.network))


def sites(found: World, names: tuple[str, ...], *, is_mesh: bool) -> None:
    """Several masters in one farm; the first one is the founder."""
    hub, founder = found.hub, names[0]
    database = open_database(DATABASE)
    circle = founded(NAME, founder, _history(founder), BEGIN, MESH if is_mesh else STAR)
    for name in names[1:]:
        circle = with_site(circle, name, SiteHistory(_history(name)), BEGIN)
    circle_object(database).replace(circle, None)
    for name in names:
        folder = circle.site(name).folder
        log = site_database(database, folder)
        state = _site_state(log, name, folder, found)
        log.create_config(state.config())
        found.add(Site(hub, name, found.round_s, source=SimulatedSource(name, state, hub.clock)))
        # As `wlc site join` does: nothing is pruned before those have read it who are going to.
        for other in circle.sources_of(name):
            register(site_database(database, other.folder), as_reader(SiteState(name, folder), name, None))


def _history(site: str) -> str:
    return f"h-{site}"


def _site_state(log: FarmDatabase, name: str, folder: str, found: World) -> Any:
    farm, _, database = log.url.rpartition("/")
    state = SiteState(name, folder)
    return master_state(farm, database, _history(name), found.hub.clock(), found.round_s, state)


def silent_after_s(found: World, name: str) -> float:
    """Return after how many seconds a relay counts as silent; one whose rounds took long has announced that."""
    member = read_tree(open_database(DATABASE)).members.get(relay_id(open_database(found.nodes[name].url)))  # type: ignore[attr-defined]
    return recent_s(member.replica.interval_s or 0.0 if member else 0.0)


def refuse_bad_tree(found: World, gone: tuple[str, ...] = ()) -> None:
    """Check what the registry says of the tree: no circle, no more readers than slots, and nobody reads who is gone."""
    tree = read_tree(open_database(DATABASE))
    for _ in range(2):
        if not _in_circles(tree):
            break
        # Who moves says so before he looks whether that closes a circle, and takes it back: he may be at that.
        found.run_rounds(1)
        tree = read_tree(open_database(DATABASE))
    assert not _in_circles(tree), (_in_circles(tree), found.standing())
    silent = [relay_id(open_database(found.nodes[name].url)) for name in gone]  # type: ignore[attr-defined]
    assert not [name for name, member in tree.members.items() if member.replica.upstream in silent], found.standing()
    for name, count in tree.children().items():
        assert count <= tree.fanout(name), (name, count, found.standing())


def _in_circles(tree: Tree) -> list[str]:
    """Return who does not read from the origin, through whomever."""
    known = {node.id: node for node in tree.nodes()}
    known |= {member.replica.id: tree.node(member) for member in tree.members.values()}
    return [name for name in known if name != ORIGIN and ancestors(name, known)[-1] != ORIGIN]
