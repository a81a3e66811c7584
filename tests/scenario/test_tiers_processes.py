"""Tiers as they are run, in directories and in a bucket: what goes on is a process, and some are killed with signal 9.

Each story names the cases of Comdb2's suite for physical replication that it shows. The names of some unit tests, as in
`tests/unit/tiers/test_choice.py`, are those of its cases, too; its verify_connection_count and check_metadb_memstat do not apply.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import DEADLINE_S, Program, call_command
from tests.feed_oracle import flat, projection
from tests.oracle import file_contents
from tests.scenario.test_feed import as_records, lines
from tests.scratch import attached
from wlc.farm.clock import utc_now
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.model import Change
from wlc.farm.paths import CONFIG, replica_path
from wlc.farm.registry import SITE, Replica, encode_replica, register, replicas, unregister
from wlc.tiers.upstreams import Push, claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.tiers.overview import TierMember

pytestmark = pytest.mark.slow

# Nobody is silent because the machine is busy.
SOON = ("keepalive_s=0.5", "recent_s=600", "penalty_s=0.2", "penalty_most_s=0.5", "push_dial_s=0.3", "push_list_s=0.3")
# Processes that are waited for share the machine, and the bucket is served by this process.
LOOKED_EVERY_S = 0.3


@dataclass
class Land:
    """A master `shop`, its farm `hq`, and other places beside it, in directories or in a bucket."""

    folder: Path
    root: str
    running: list[Program] = field(default_factory=list)
    source: Path = Path()

    def __post_init__(self) -> None:
        self.source = self.folder / "shop.duckdb"
        wlc.master(self.source, farm=self.farm("hq"), beat_s=0.3, create=True)
        self.write(
            "CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)", "INSERT INTO t SELECT range, 'a' FROM range(50)"
        )
        wlc.set_tiers(self.place("hq"), SOON)

    def farm(self, name: str) -> str:
        return f"{self.root}/{name}"

    def place(self, name: str) -> str:
        return f"{self.root}/{name}/shop"

    def at(self, name: str) -> FarmDatabase:
        return open_database(self.place(name))

    def into(self, name: str) -> Path:
        return self.folder / f"{name}.duckdb"

    def write(self, *statements: str) -> int:
        with wlc.connect(self.source) as connection:
            for statement in statements or ("INSERT INTO t SELECT max(i) + 1, 'more' FROM t",):
                connection.execute(statement)
        wlc.flush(self.source)
        return wlc.tick(self.source)

    def run(self, *words: object, code: int = 0) -> str:
        """Run a command, and return what it says: on standard output, or why it failed."""
        done = call_command(str(words[0]), *words[1:])
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stderr if code else done.stdout

    def start(self, *words: object) -> Program:
        """Start a command that goes on."""
        program = Program(f"cli.{words[0]}", *words[1:])
        self.running.append(program)
        return program

    def replicate(self, name: str, *words: object, code: int = 0) -> str:
        return self.run("wlr", "replicate", *words, "--into", self.into(name), code=code)

    def members(self, registry: str = "hq") -> dict[str, TierMember]:
        """Return who is in the tree, by the last part of their places."""
        tree = wlc.tier_tree(self.place(registry))
        return {member.url.removesuffix("/shop").rpartition("/")[2]: member for member in tree.members}

    def wait_for(self, name: str, **wanted: Any) -> TierMember:
        """Wait until the registry says so of a member."""

        found: list[TierMember] = []

        def is_so() -> bool:
            found.extend(member for key, member in self.members().items() if key == name)
            return bool(found) and all(getattr(found[-1], key) == value for key, value in wanted.items())

        wait_until(is_so)
        return found[-1]

    def is_filled(self, name: str) -> bool:
        return self.at(name).store.exists(CONFIG)

    @contextmanager
    def away(self, *names: str) -> Iterator[None]:
        """Let places be out of reach for everybody."""
        for name in names:
            self._rename(name, f"away-{name}")
        yield
        for name in names:
            self._rename(f"away-{name}", name)

    def _rename(self, name: str, to: str) -> None:
        if "://" not in self.root:
            Path(self.farm(name)).rename(self.farm(to))
            return
        here, there = open_database(self.place(name)).store, open_database(self.place(to)).store
        for entry in here.list():
            there.create(entry.path, here.read(entry.path))
            here.delete(entry.path)

    def logs(self, name: str) -> dict[str, bytes]:
        """Return the objects of a place that are never changed, with their bytes."""
        store = self.at(name).store
        kept = ("wlc_logs/", "snapshots/")
        return {entry.path: store.read(entry.path) for entry in store.list() if entry.path.startswith(kept)}

    def rows(self, name: str, query: str) -> list[Any]:
        with attached(self.into(name)) as connection:
            return connection.execute(query).fetchall()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what another process brings about."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(LOOKED_EVERY_S)


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.deep)])
def land(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Land]:
    root = str(tmp_path) if request.param == "directory" else request.getfixturevalue("s3_url")
    made = Land(tmp_path, root)
    yield made
    for program in made.running:
        if program.process.poll() is None:
            program.kill()


def test_readers_find_a_relay_move_and_end_equal(land: Land) -> None:
    """Cases of Comdb2.

    generated_tests, compare_end_lsns, verify_blkseq, bulkimport, require_recent_heartbeat, verify_fanout_overrides,
    fanout_myoverride, physrep_max_pending, physrep_allowed_source, rtcpu_source, revconn_rtcpu, incoherent_test,
    incoherent_master, physrep_block_writes_correct_rcode, test_sp_no_readonly, nophyswrite,
    phys_rep_firstfile_rollout, verify_tunable_defaults, keepalive_v2.
    """
    hq, auto = land.place("hq"), ("--upstream", "auto")
    ship = (
        "wlc",
        "tier",
        "ship",
        hq,
        "--to",
        land.farm("r"),
        "--upstream",
        hq,
        "--fanout",
        1,
        "--class",
        "prod",
        "--follow",
    )
    relay = land.start(*ship)
    at = land.wait_for("r", state="active").id
    wlc.set_upstream(hq, "origin", is_active=False)
    # physrep_max_pending: a hundred who never came further stand in nobody's way, though an older version wrote of them,
    # which knew nothing of classes, intervals and states (firstfile_rollout).
    pending = [Replica(f"p{number}", f"/p{number}", None, None, utc_now(), "host", "ann") for number in range(100)]
    for replica in pending:
        land.at("hq").store.create(replica_path(replica.id), encode_replica(replica))
    land.start("wlr", "replicate", hq, "--into", land.into("x"), *auto, "--class", "uat", "--follow")
    wait_until(lambda: at in {claim.upstream for claim in claims(land.at("hq"))})
    for replica in pending:
        unregister(land.at("hq"), replica.id)
    land.wait_for("x.duckdb", state="active", upstream=at, tier=2)
    # verify_fanout_overrides: the relay has one slot, and the override of its owner gives it two.
    for fanout, name in ((1, "y"), (2, "y2")):
        land.replicate(name, hq, *auto, "--class", "uat")
        assert len([claim for claim in claims(land.at("hq")) if claim.upstream == at]) == fanout
        shown = json.loads(land.run("wlc", "tier", "fanout", hq, 2, "--upstream", at, "--json"))
        assert {"upstream": at, "fanout": 2, "used": fanout, "decided_by": "override"} in shown
    # physrep_allowed_source: nobody reads from a class that is not in the order with its own.
    assert "its class prod is below own" in land.replicate("w", hq, *auto, "--class", "own", code=75)
    _pause_while_it_follows(land)
    # require_recent_heartbeat: a relay that died is no candidate, and is one again when it is back.
    relay.kill()
    wlc.set_tiers(hq, ["recent_s=1"])
    land.wait_for("r", marks=("silent",))
    assert "it was last seen" in land.replicate("z", hq, *auto, code=75)
    wlc.set_tiers(hq, ["recent_s=600"])
    said = land.members()["r"].seen
    land.start(*ship)
    wait_until(lambda: land.members()["r"].seen != said)
    land.replicate("z", hq, *auto)
    # rtcpu_source: what is taken out is left by who follows, too.
    wlc.set_upstream(hq, "origin", is_active=True)
    land.run("wlc", "tier", "upstream", hq, at, "--inactive")
    land.wait_for("x.duckdb", upstream="origin", tier=1)
    wlc.set_upstream(hq, at, is_active=True)
    _end_equal(land)


def _pause_while_it_follows(land: Land) -> None:
    before = land.members()["x.duckdb"]
    assert "is paused" in land.run("wlr", "replica", "pause", land.into("x"))
    said = land.wait_for("x.duckdb", state="inactive")
    tick = land.write()
    land.wait_for("r", tick=tick)
    # It says that it is there, stays where it is, and keeps its slot.
    wait_until(lambda: land.members()["x.duckdb"].seen != said.seen)
    now = land.members()["x.duckdb"]
    assert (now.tick, now.state, now.marks, now.upstream) == (before.tick, "inactive", (), before.upstream)
    assert now.id in {claim.holder for claim in claims(land.at("hq"))}
    assert json.loads(land.run("wlr", "status", land.into("x"), "--json"))["is_paused"]
    land.run("wlr", "replica", "resume", land.into("x"))
    last = land.wait_for("x.duckdb", tick=tick, state="active").transitions
    assert [(each.state, each.cause) for each in last][-2:] == [("inactive", "paused"), ("active", "goes on")]


def _end_equal(land: Land) -> None:
    """generated_tests, bulk load, change of the master; then who reads, who writes, and what is equal."""
    land.write("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7", "CREATE TABLE u AS SELECT range AS i FROM range(20000)")
    land.source = Path(shutil.copy(land.source, land.folder / "second.duckdb"))
    land.run("wlc", "master", land.source, "--moved")
    wlc.snapshot(land.source)
    tick = land.write("UPDATE t SET v = 'b' WHERE i % 2 = 0", "DELETE FROM t WHERE i > 40", "TRUNCATE u")
    land.wait_for("r", tick=tick)
    for name in ("x.duckdb", "r"):
        land.wait_for(name, tick=tick, state="active")
    for program in land.running:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGTERM)
            assert program.end() == 0, program.errors
    land.replicate("y")
    assert land.logs("r") == land.logs("hq")
    expected = file_contents(land.source)
    for name in "xy":
        found = wlr.verify(land.into(name))
        assert (found.tick, found.differing, found.unverifiable) == (tick, (), ())
        assert file_contents(land.into(name)) == expected
    # incoherent_test, nophyswrite: with every place away it is read, and nobody writes to it or takes its changes.
    with land.away("hq", "r"):
        assert land.rows("x", "SELECT count(*), sum(c) FROM t") == [(41, 41 * 7)]
        for words in (("wlc", "sql", land.into("x"), "DELETE FROM t"), ("wlr", "feed", land.into("x"), "--to", "f")):
            assert "is a replica, which cannot be a master" in land.run(*words, code=2)
        assert json.loads(land.run("wlr", "status", land.into("x"), "--json"))["tick"] == tick
    assert land.rows("x", "SELECT count(*) FROM t") == [(41,)]


def test_places_below_are_filled_by_one_pusher_that_may_be_killed(land: Land) -> None:
    """Cases of Comdb2.

    revconn_source_cluster, _class, verify_revconn_fix, _populate_error, _retry, clustered_revconn,
    revconn_leak_test, revconn_latency, revconn_metadb_failure_test.
    """
    hq, edge = land.place("hq"), land.place("edge")
    wlc.push_list(edge, add=Push("uats", class_name="uat"))
    land.run("wlc", "tier", "push", edge, "add", "here", "--host", socket.gethostname(), "--class", "beta")
    land.run("wlc", "tier", "set", edge, *SOON)
    for name, class_name in (("a", "uat"), ("b", "beta")):
        told = land.replicate(name, edge, "--upstream", land.place(f"of-{name}"), "--class", class_name, code=2)
        assert f"wlc tier ship DB --pushes {edge}" in told
    # populate_error: an entry that cannot be read holds nobody up, and is told.
    land.at("edge").store.create("pushes/torn.json", b"torn")
    push = ("wlc", "tier", "ship", hq, "--pushes", edge, "--class", "prod")
    pusher = land.start(*push, "--follow")
    wait_until(lambda: land.is_filled("of-a") and land.is_filled("of-b"))
    handles = _handles(pusher)
    assert "in use by process" in land.run(*push, code=75)
    # A list that is changed needs no restart: a cluster of the original is a site.
    place = land.place("of-oslo")
    register(
        land.at("edge"), Replica("oslo", "oslo", None, None, utc_now(), "o", "ann", kind=SITE, site="oslo", place=place)
    )
    land.run("wlc", "tier", "push", edge, "add", "sites", "--site", "os*")
    wait_until(lambda: land.is_filled("of-oslo"))
    for _ in range(5):
        tick = land.write()
        wait_until(lambda tick=tick: wlc.tick(land.place("of-a")) == tick)
    # revconn_leak_test: when it has nothing to do, ten more at most; connections that wait for another request end.
    wait_until(lambda: _handles(pusher) <= handles + 10)
    pusher.kill()
    # Another one takes the places over, and goes on where the first was killed.
    tick = land.write()
    land.at("edge").store.delete("pushes/torn.json")
    assert set(json.loads(land.run(*push, "--json"))["places"].values()) == {tick}
    for name in ("a", "b"):
        land.replicate(name, edge, "--upstream", land.place(f"of-{name}"))
    # revconn_metadb_failure_test: with registry and upper tier away it reads its place, and looks nowhere else.
    with land.away("edge", "hq"):
        land.replicate("a")
        assert wlr.status(land.into("a")).master == land.place("of-a")
        with land.away("of-a"):
            land.replicate("a", code=2)
    assert file_contents(land.into("a")) == file_contents(land.into("b")) == file_contents(land.source)
    assert land.logs("of-oslo") == land.logs("hq")
    # Pruning above waits for every place that is filled.
    assert {known.target for known in replicas(land.at("hq"))} >= {
        land.place(f"of-{name}") for name in ("a", "b", "oslo")
    }


def _handles(program: Program) -> int:
    return len(list(Path(f"/proc/{program.process.pid}/fd").iterdir()))


def test_a_feed_that_is_killed_says_at_both_places_what_happened_once(land: Land) -> None:
    """Comdb2: log_trigger, physrep_ignore_table."""
    first, second, hq = land.folder / "first.jsonl", land.folder / "second.jsonl", land.place("hq")
    land.write("CREATE TABLE u (i INTEGER, b BLOB)", "CREATE TABLE w (i INTEGER PRIMARY KEY, b BLOB)")
    feed = ("wlr", "feed", hq, "--table", "main.[tw]", "--to", first, "--max-bytes", 40_000, "--follow")
    for number in range(3):
        feeder, size = land.start(*feed), first.stat().st_size if first.exists() else 0
        blobs = f"SELECT i, repeat(chr((65 + i % 26)::INTEGER), 16384)::BLOB FROM range({number * 9}, {number * 9 + 9}) r(i)"
        land.write(
            f"INSERT INTO w {blobs}",
            f"INSERT INTO u {blobs}",
            f"UPDATE t SET v = 'r{number}' WHERE i < 20",
            f"DELETE FROM w WHERE i % 4 = {number}",
        )
        wait_until(lambda size=size: first.exists() and first.stat().st_size > size)
        feeder.kill()
    land.run(*feed[:-1])
    assert as_records(_with_blobs(lines(first))) == flat(projection(land.at("hq"), "main.[tw]"))
    # At a relay, everything is the same, each byte.
    land.run("wlc", "tier", "ship", hq, "--to", land.farm("r"))
    land.run("wlr", "feed", hq, "--table", "main.[tw]", "--to", second, "--upstream", land.place("r"))
    assert second.read_bytes() == first.read_bytes()
    # log_trigger with maxsize 1: nothing is left, and what was dropped is counted.
    least = land.folder / "least.jsonl"
    done = json.loads(
        land.run("wlr", "feed", hq, "--table", "main.w", "--to", least, "--max-bytes", 1, "--drop", "--json")
    )
    assert [line["dropped"] for line in lines(least)] == [done["dropped"]]
    assert done["dropped"] == sum(line["table"] == "main.w" for line in lines(first))
    # physrep_ignore_table: the relay has lost the bytes of what is ignored, and nobody misses them.
    relay = land.at("r")
    for number in relay.batch_numbers():
        for transaction in relay.read_batch(number)[0].transactions:
            for record in transaction.records:
                if isinstance(record, Change) and record.table.name == "u":
                    relay.logs.delete(record.path)
    land.replicate("kept", land.place("r"), "--ignore", "main.u")
    assert land.rows("kept", "SELECT count(*) FROM t JOIN w USING (i)") == [(len(_images(first)),)]
    with pytest.raises(duckdb.CatalogException, match="Table with name u does not exist"):
        land.rows("kept", "FROM u")
    assert "is missing" in land.replicate("whole", land.place("r"), code=6)


def _with_blobs(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines with the bytes that they have as base64."""
    import base64

    for line in said:
        for image in (line.get("before"), line.get("after")):
            if image and image.get("b") is not None:
                image["b"] = base64.b64decode(image["b"])
    return said


def _images(file: Path) -> set[int]:
    """Return the keys of table w that a file's lines end with."""
    found: set[int] = set()
    for line in lines(file):
        if line["table"] == "main.w" and line["op"] in ("insert", "delete"):
            image = line["after"] or line["before"]
            (found.add if line["op"] == "insert" else found.discard)(image["i"])
    return found


def test_another_past_a_lost_position_and_a_half_copy_are_told_and_harm_nobody(land: Land) -> None:
    """Cases of Comdb2.

    verify_log_cursor_gen, physrep_truncate, non_existent_record, tranlog_timeout, tranlog_blocklsn,
    verify_generation, verify_non_ignored_reptype.
    """
    hq, copy = land.place("hq"), land.folder / "copy.duckdb"
    shutil.copy(land.source, copy)
    land.run("wlc", "tier", "ship", hq, "--to", land.farm("old"))
    good = land.write()
    # A first copy that is killed is not to be seen, and the next run completes it.
    land.write("CREATE TABLE noise AS SELECT range AS i, random() AS r FROM range(30000)")
    ship = ("wlc", "tier", "ship", hq, "--to", land.farm("r"))
    half = land.start(*ship, "--limit-rate", "40k")
    wait_until(lambda: bool(land.at("r").store.list("wlc_logs/")))
    half.kill()
    if land.is_filled("r"):
        assert wlr.verify_farm(land.place("r"), full=True).problems == ()
    else:
        assert "there is no database" in land.replicate("half", land.place("r"), code=2)
    land.run(*ship)
    assert land.logs("r") == land.logs("hq")
    # tranlog_blocklsn, tranlog_timeout: it waits for a tick that is still to come, and ends with it.
    land.replicate("x", land.place("r"), "--tick", good)
    assert f"tick {good + 99}" in land.replicate("x", "--tick", good + 99, code=2)
    bad = land.write("INSERT INTO t SELECT range, 'bad' FROM range(1000, 2000)")
    waiting = land.start("wlr", "replicate", "--into", land.into("x"), "--tick", bad, "--follow")
    land.run(*ship)
    assert waiting.end() == 0, waiting.errors
    # physrep_truncate: the source was restored to the good past, and goes on from there.
    before = land.logs("r")
    assert "ends at tick" in land.run("wlc", "tier", "ship", land.place("old"), "--to", land.farm("r"), code=6)
    land.source = copy
    wlc.master(copy, moved=True, farm=land.farm("old"))
    for _ in range(4):
        land.write()
    for words in (
        ("wlc", "tier", "ship", land.place("old"), "--to", land.farm("r")),
        ("wlr", "replica", "switch", land.into("x"), land.place("old")),
        ("wlr", "replicate", land.place("old"), "--into", land.into("x")),
    ):
        land.run(*words, code=6)
    assert land.logs("r") == before
    assert land.rows("x", "SELECT count(*) FROM t WHERE v = 'bad'") == [(1000,)]
    land.replicate("x", land.place("old"), "--rebase")
    assert land.rows("x", "SELECT count(*) FROM t WHERE v = 'bad'") == [(0,)]
    assert file_contents(land.into("x")) == file_contents(copy)
    # verify_generation: the history is shown where it was made and where it is read.
    shown = [
        json.loads(land.run(*words, "--json")) for words in (("wlc", "status", copy), ("wlr", "status", land.into("x")))
    ]
    assert shown[0]["history"] == shown[1]["history"]


def test_a_second_registry_serves_and_a_relay_takes_the_place_of_a_lost_farm(land: Land) -> None:
    """Cases of Comdb2.

    multimeta, test_intermediate_physrep_active_status, verify_alt_metadb_system_table, verify_generation,
    verify_non_ignored_reptype.
    """
    hq, second = land.place("hq"), land.place("second")
    wlc.ship(hq, to=land.farm("second"), register=False)
    both = ("--registry", hq, "--registry", second)
    land.run("wlc", "tier", "ship", hq, "--to", land.farm("r"), *both)
    land.replicate("x", hq, *both)
    shown = json.loads(land.run("wlc", "tier", "show", second, "--json"))["members"]
    assert {(member["kind"], member["state"], member["registry"]) for member in shown} == {
        ("origin", "active", ""),
        ("relay", "active", hq),
        ("replica", "active", hq),
    }
    wlc.set_upstream(second, "origin", is_active=False)
    with land.away("hq"):
        # It had chosen what is gone. The relay serves whoever chooses by the second registry.
        assert "there is no" in land.replicate("x", code=2)
        land.replicate("y", second, "--registry", second)
        assert wlr.status(land.into("y")).master == land.place("r")
        # The farm does not come back: the relay takes its place, and everybody goes on.
        land.run("wlc", "master", land.source, "--moved", "--farm", land.farm("r"))
        tick = land.write()
        land.run("wlr", "replica", "switch", land.into("x"), land.place("r"))
        for name in "xy":
            assert json.loads(land.replicate(name, "--json"))["tick"] == tick
            assert file_contents(land.into(name)) == file_contents(land.source)


def test_who_needs_what_was_pruned_reads_where_it_is_kept(land: Land) -> None:
    """Comdb2: phys_rep_nomatch, match_overlap, physrep_delfiles."""
    hq, auto = land.place("hq"), ("--upstream", "auto")
    land.run("wlc", "tier", "ship", hq, "--to", land.farm("r"))
    for name in ("late", "later"):
        land.replicate(name, hq, *auto)
    for _ in range(3):
        land.write()
    wlc.snapshot(land.source)
    land.write("DELETE FROM t WHERE i < 3", "CREATE TABLE u AS SELECT 1 AS a")
    land.run("wlc", "tier", "ship", hq, "--to", land.farm("r"))
    done = json.loads(land.run("wlc", "prune", hq, "--deadline", 0, "--keep-for", "0s", "--yes", "--json"))
    assert {land.members()[f"{name}.duckdb"].id for name in ("late", "later")} <= set(done["overdue"])
    # phys_rep_nomatch: the origin is out of range, and the relay covers the position.
    land.replicate("late")
    assert wlr.status(land.into("late")).master == land.place("r")
    assert file_contents(land.into("late")) == file_contents(land.source)
    # All are out of range.
    wlc.set_upstream(hq, land.members()["r"].id, is_active=False)
    assert "was pruned" in land.replicate("later", code=7)
    # physrep_delfiles: the relay is cleaned, too, and goes on to serve.
    land.run("wlc", "prune", land.place("r"), "--yes", "--keep-for", "0s")
    assert land.at("r").batch_numbers() == land.at("hq").batch_numbers()
    land.write("DROP TABLE u")
    land.run("wlc", "tier", "ship", hq, "--to", land.farm("r"))
    land.replicate("late")
    assert file_contents(land.into("late")) == file_contents(land.source)
