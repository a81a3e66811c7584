"""Trees of tiers: who reads from whom, through failures, races and changes of mind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.tiers import Pruning
from cli.wlc import app
from cli.wlr import app as wlr_app
from tests.requests import counted_requests
from wlc.farm.clock import utc_now
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError, UnavailableError
from wlc.farm.registry import Replica, register, replicas
from wlc.tiers.attaching import read_through
from wlc.tiers.attachment import Attachment, Keepalive, attachment_object
from wlc.tiers.upstreams import ORIGIN, claims, upstreams
from wlr.engine.adapters import target_at


@dataclass
class Town:
    """A master `shop`, its farm, and places for relays and replicas."""

    folder: Path
    root: str
    master: Path
    origin: str = ""

    @property
    def farm(self) -> str:
        return f"{self.root}/hq"

    @property
    def registry(self) -> FarmDatabase:
        return open_database("shop", self.farm)

    def write(self) -> None:
        with wlc.connect(self.master) as connection:
            connection.execute("INSERT INTO t SELECT coalesce(max(i), 0) + 1 FROM t")
        if self.origin:
            wlc.ship(self.origin, to=self.farm, register=False)

    def relay(self, name: str, **options: object) -> wlc.Shipped:
        return wlc.ship("shop", farm=self.farm, to=f"{self.root}/{name}", **options)  # type: ignore[arg-type]

    def url(self, name: str) -> str:
        return open_database("shop", f"{self.root}/{name}").url

    def id_of(self, name: str) -> str:
        return next(upstream.id for upstream in upstreams(self.registry) if upstream.url == self.url(name))

    def replica(self, name: str, **options: object) -> str:
        """Roll a replica forward, and return the name of the place that it reads."""
        into = self.folder / f"{name}.duckdb"
        master = None if into.exists() and "upstream" not in options else "shop"
        wlr.replicate(master, farm=self.farm, into=into, **options)  # type: ignore[arg-type]
        return wlr.status(into).master.split("/")[-2]

    def age(self, name: str, seconds: float) -> None:
        """Let the store have heard of somebody so long ago."""
        path = Path(self.registry.url) / f"replicas/{self.id_of(name)}.json"
        os.utime(path, (time.time() - seconds,) * 2)


def make(folder: Path, root: str) -> Town:
    town = Town(folder, root, folder / "shop.duckdb")
    wlc.master(town.master, farm=town.farm, beat_s=0, create=True)
    with wlc.connect(town.master) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    town.write()
    return town


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Town:
    folder = tmp_path_factory.mktemp("master")
    return make(folder, str(folder))


@pytest.fixture
def town(shared: Town, tmp_path: Path) -> Town:
    """Its registry is that of a relay, as that of any place can be; the master is everybody's."""
    wlc.ship(shared.url("hq"), to=str(tmp_path / "hq"), register=False)
    return Town(tmp_path, str(tmp_path), shared.master, shared.url("hq"))


@pytest.fixture
def own(tmp_path: Path) -> Town:
    """With a master of its own, which it may prune."""
    return make(tmp_path, str(tmp_path))


@pytest.fixture
def two_relays(town: Town) -> Town:
    """The origin is out of the choice, and two relays have one slot each."""
    town.relay("a", fanout=1)
    town.relay("b", fanout=1)
    wlc.set_upstream("shop", ORIGIN, is_active=False, farm=town.farm)
    return town


def test_readers_spread_over_slots_move_from_what_fails_and_hold_when_the_registry_is_away(two_relays: Town) -> None:
    town = two_relays
    assert {town.replica("x", upstream="auto"), town.replica("y", upstream="auto")} == {"a", "b"}
    held = Counter(claim.upstream for claim in claims(town.registry))
    assert held == {town.id_of("a"): 1, town.id_of("b"): 1}
    # What is taken out is left; nobody else has a slot, so that the least bad place is used without one.
    at = town.replica("x")
    wlc.set_upstream("shop", town.id_of(at), is_active=False, farm=town.farm)
    moved = town.replica("x")
    assert moved != at
    assert len(claims(town.registry)) == 1
    # With the registry away, the last choice holds; it is not made anew by those who look for it.
    (town.folder / "hq").rename(town.folder / "away")
    assert town.replica("x") == moved
    assert not (town.folder / "hq").exists()
    (town.folder / "away").rename(town.folder / "hq")
    wlc.set_upstream("shop", town.id_of(at), is_active=True, farm=town.farm)
    # A relay that is gone is left, too, and nothing is lost.
    (town.folder / moved).rename(town.folder / "dead")
    town.write()
    town.relay(at)
    assert town.replica("x") == at
    assert wlr.tick(town.folder / "x.duckdb") == wlc.tick("shop", farm=town.farm)
    state = target_at(town.folder / "x.duckdb").read_state()
    assert state.attachment is not None
    assert [penalty.times for penalty in state.attachment.penalties] == [1]


def test_a_pin_and_a_list_are_kept_and_ended(town: Town) -> None:
    town.relay("a", class_name="prod")
    town.relay("b")
    assert town.replica("x", upstream=town.url("b")) == "b"
    wlc.set_upstream("shop", town.id_of("b"), is_active=False, farm=town.farm)
    town.write()
    town.relay("b")
    assert town.replica("x") == "b"
    tree = {member.url: member for member in wlc.tier_tree("shop", town.farm).members}
    assert tree[str(town.folder / "x.duckdb")].upstream == town.id_of("b")
    assert tree[str(town.folder / "x.duckdb")].tier == 2
    town.relay("a")
    assert town.replica("x", upstream=[town.url("a"), town.url("b")]) == "a"
    assert town.replica("x", upstream="auto") == "hq"
    assert [claim.upstream for claim in claims(town.registry)] == [ORIGIN]
    assert town.replica("x", upstream="none") == "hq"
    assert claims(town.registry) == []
    for upstream in (None, "none"):
        with pytest.raises(InvalidError, match="needs an upstream|is of no use without an upstream"):
            town.replica("x", class_name="prod", upstream=upstream)
    with pytest.raises(InvalidError, match="only a registered replica can choose its upstream"):
        town.replica("y", upstream="auto", register=False)
    assert town.replica("y", upstream=town.url("b"), register=False) == "b"
    assert town.replica("x", upstream="auto") == "hq"
    assert len(claims(town.registry)) == 1
    wlr.switch(town.folder / "x.duckdb", town.url("a"))
    assert claims(town.registry) == []
    # Until its next round it has no other upstream than the place that it was given.
    assert (wlr.status(town.folder / "x.duckdb").master, wlr.status(town.folder / "x.duckdb").upstream) == (
        town.url("a"),
        "",
    )
    assert town.replica("x") == "a"


def test_a_reader_of_a_class_reads_from_it_or_a_higher_one(two_relays: Town) -> None:
    town = two_relays
    town.relay("a", class_name="test")
    town.relay("b", class_name="prod")
    wlc.set_upstream("shop", ORIGIN, is_active=False, farm=town.farm)
    assert town.replica("x", upstream="auto", class_name="beta") == "b"
    assert town.replica("y", upstream="auto") == "a"
    wlc.set_upstream("shop", town.id_of("b"), is_active=False, farm=town.farm)
    with pytest.raises(UnavailableError, match=r"no upstream of .* serves .* its class test is below beta") as caught:
        town.replica("x")
    assert str(caught.value.hint).startswith("wlc tier show ")


def test_who_is_silent_is_no_candidate_and_an_hourly_relay_is(two_relays: Town) -> None:
    town = two_relays
    # Two visits were an hour apart, as far as they say.
    for name, interval_s in (("a", 3600.0), ("b", 10.0)):
        known = next(found for found in replicas(town.registry) if found.id == town.id_of(name))
        register(town.registry, replace(known, interval_s=interval_s))
        town.age(name, 3000)
    assert town.replica("x", upstream="auto") == "a"
    town.age("a", 11000)
    with pytest.raises(UnavailableError, match="it was last seen 11"):
        town.replica("y", upstream="auto")
    silent = [m.url for m in wlc.tier_tree("shop", town.farm).members if "silent" in m.marks]
    assert silent == sorted([town.url("a"), town.url("b")], key=lambda url: town.id_of(url.split("/")[-2]))


def test_a_claim_whose_holder_died_is_taken_over_and_the_holder_notices(two_relays: Town) -> None:
    town = two_relays
    wlc.set_upstream("shop", town.id_of("b"), is_active=False, farm=town.farm)
    assert town.replica("x", upstream="auto") == "a"
    (claim,) = claims(town.registry)
    path = Path(town.registry.url) / f"replicas/{claim.holder}.json"
    os.utime(path, (time.time() - 20_000,) * 2)
    assert town.replica("y", upstream="auto") == "a"
    (taken,) = claims(town.registry)
    assert (taken.upstream, taken.slot) == (claim.upstream, claim.slot)
    assert taken.holder != claim.holder
    # The first one comes back, has lost its slot, and chooses anew.
    wlc.set_upstream("shop", town.id_of("b"), is_active=True, farm=town.farm)
    assert town.replica("x") == "b"


def test_slots_above_a_lowered_fan_out_are_void(town: Town) -> None:
    town.relay("a")
    assert [town.replica(name, upstream="auto") for name in "xy"] == ["hq", "hq"]
    wlc.fanout("shop", 1, upstream=ORIGIN, farm=town.farm)
    assert sorted(town.replica(name) for name in "xy") == ["a", "hq"]
    (first, second) = wlc.fanout("shop", farm=town.farm)
    assert (first.fanout, first.used, first.decided_by) == (1, 1, "override")
    assert (second.fanout, second.used, second.decided_by) == (8, 1, "registry")
    assert wlc.fanout("shop", upstream=ORIGIN, farm=town.farm)[0].decided_by == "registry"


def test_two_relays_that_choose_each_other_dissolve_the_circle(town: Town) -> None:
    town.relay("a", upstream="auto")
    town.relay("b", upstream="auto")
    # Both chose the other at once, each before it could see the other's choice.
    for name, other in (("a", "b"), ("b", "a")):
        relay = open_database("shop", f"{town.root}/{name}")
        attachment_object(relay).change(
            lambda _, other=other: Attachment(town.registry.url, upstream=town.id_of(other), url=town.url(other))
        )
        known = next(found for found in replicas(town.registry) if found.id == town.id_of(name))
        register(town.registry, replace(known, upstream=town.id_of(other)))
    assert {m.tier for m in wlc.tier_tree("shop", town.farm).members if m.kind == "relay"} == {None}
    for _ in range(2):
        for name in "ab":
            town.relay(name, upstream="auto")
    tiers = sorted(m.tier or 0 for m in wlc.tier_tree("shop", town.farm).members if m.kind == "relay")
    assert tiers in ([1, 1], [1, 2])


def test_defect_a_many_who_claim_at_once_get_no_more_slots_than_there_are(town: Town) -> None:
    town.relay("a", fanout=2)
    wlc.fanout("shop", 3, upstream=ORIGIN, farm=town.farm)
    ready = threading.Barrier(8)

    def read(number: int) -> tuple[str, int | None]:
        me = Replica(f"r{number}", f"/r{number}", None, None, utc_now(), "host", "ann")
        ready.wait()
        return read_through(
            town.registry,
            me,
            Attachment(town.registry.url),
            lambda _, membership: (membership.attachment.upstream, membership.attachment.slot),
        )

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(read, range(8)))
    claimed = Counter(upstream for upstream, slot in got if slot is not None)
    assert claimed == {ORIGIN: 3, town.id_of("a"): 2}
    assert Counter(claim.upstream for claim in claims(town.registry)) == claimed
    assert len({found for found in got if found[1] is not None}) == 5


@pytest.mark.slow
def test_a_feed_chooses_switches_and_is_pinned_as_replicas_are(two_relays: Town) -> None:
    town, out = two_relays, two_relays.folder / "out.jsonl"

    def fed(**options: object) -> tuple[str, int]:
        """Do a round, and return the place that was read and how many lines there are."""
        wlr.feed("shop", farm=town.farm, to=str(out), tables=["t"], **options)  # type: ignore[arg-type]
        found = wlr.feed_status(out)
        assert found is not None
        return found.master.split("/")[-2], len(out.read_text().splitlines())

    at, lines = fed(upstream="auto")
    other = "ab".replace(at, "")
    assert [claim.holder for claim in claims(town.registry)] == ["feed-out-jsonl"]
    found = wlr.feed_status(out)
    assert found is not None
    assert (found.upstream, found.registries) == (town.id_of(at), (town.registry.url,))
    # It moves from what is taken out, without news and with news, and from what is gone.
    wlc.set_upstream("shop", town.id_of(at), is_active=False, farm=town.farm)
    assert fed() == (other, lines)
    # Each place knows who reads there, so that its log waits.
    for name, readers in ((at, []), (other, ["feed-out-jsonl"])):
        assert [known.id for known in replicas(open_database("shop", f"{town.root}/{name}"))] == readers
    town.write()
    town.relay(other)
    assert fed() == (other, lines + 1)
    wlc.set_upstream("shop", town.id_of(at), is_active=True, farm=town.farm)
    (town.folder / other).rename(town.folder / "dead")
    town.write()
    town.relay(at)
    assert fed() == (at, lines + 2)
    (town.folder / "dead").rename(town.folder / other)
    town.relay(other)
    assert wlr.switch(out, town.url(other)).now == town.url(other)
    assert fed() == (other, lines + 2)
    assert claims(town.registry) == []
    assert fed(upstream="none") == ("hq", lines + 2)
    (town.folder / "else").mkdir()
    elsewhere = make(town.folder / "else", str(town.folder / "else")).url("hq")
    with pytest.raises(InvalidError, match="does not hold the replica's tick"):
        wlr.switch(out, elsewhere)
    assert fed() == ("hq", lines + 2)


@pytest.mark.slow
def test_a_feed_that_nobody_covers_begins_anew_where_it_may_read(own: Town) -> None:
    town, out = own, own.folder / "out.jsonl"
    feed = partial(wlr.feed, "shop", farm=town.farm, to=str(out), upstream="auto")
    feed()
    for _ in range(2):
        town.write()
    wlc.snapshot(town.master)
    town.write()
    wlc.prune("shop", farm=town.farm, deadline=timedelta(0), keep_for="0s")
    with pytest.raises(ExpiredError) as caught:
        feed()
    assert re.search(r"wlr feed shop .*--upstream auto.* --from snapshot continues", str(caught.value.hint))
    assert feed(start="snapshot").records == 4


def test_several_registries_are_remembered_and_shown(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    """A farm that is given alone is read; with registries, the first of them decides."""
    wlc.ship(town.url("hq"), to=f"{town.root}/second", register=False)
    registries = [town.url("hq"), town.url("second")]
    assert town.replica("plain") == "hq"
    assert (claims(town.registry), wlr.status(town.folder / "plain.duckdb").registries) == ([], ())
    master, into = town.master, town.folder / "x.duckdb"
    told = [word for url in registries for word in ("--registry", url)]
    assert run_app(wlr_app, "wlr", ["replicate", str(master), "--into", str(into), *told]) == 0
    town.relay("a", registry=registries)
    for place in registries:
        assert {member.kind for member in wlc.tier_tree(place).members} >= {"relay", "origin"}
        assert str(into) in {member.url for member in wlc.tier_tree(place).members}
    assert [claim.upstream for claim in claims(open_database(registries[0]))] == [ORIGIN, ORIGIN]
    # Without the option, and with the first registry away, the last choice holds.
    wlc.set_upstream(registries[0], ORIGIN, is_active=False)
    wlr.replicate(into=into)
    (town.folder / "hq").rename(town.folder / "away")
    wlr.replicate(into=into)
    assert not (town.folder / "hq").exists()
    capsys.readouterr()
    assert run_app(wlr_app, "wlr", ["status", str(into)]) == 0
    shown = capsys.readouterr().out
    upstream = next(known.id for known in upstreams(open_database(registries[1])))
    for field, value in (("master", town.url("a")), ("is_paused", "false"), ("upstream", upstream)):
        assert re.search(rf"^{field} +{re.escape(value)}$", shown, re.MULTILINE)
    assert re.search(r"^registries .*" + ".*".join(map(re.escape, registries)), shown, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_another_past_is_never_read_from(own: Town, tmp_path: Path) -> None:
    town = own
    town.replica("x", upstream="auto")
    (tmp_path / "other").mkdir()
    other = make(tmp_path / "other", str(tmp_path / "other"))
    other.write()
    with pytest.raises(CorruptError, match="has another past than the replica"):
        town.replica("x", upstream=other.url("hq"))
    assert wlr.status(town.folder / "x.duckdb").master == town.url("hq")
    with pytest.raises(InvalidError, match="is a place of database hq, not of shop"):
        town.replica("x", upstream=other.farm)
    assert town.replica("x", upstream="auto") == "hq"


def test_clocks_an_hour_apart_make_nobody_silent(two_relays: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town = two_relays
    for known in replicas(town.registry):
        register(town.registry, replace(known, interval_s=10.0))
    for hours in (-1, 1):
        ahead = utc_now() + timedelta(hours=hours)
        for module in ("wlc.tiers.attaching", "wlr.replay.registration"):
            monkeypatch.setattr(f"{module}.utc_now", lambda ahead=ahead: ahead)
        assert town.replica(f"x{hours}", upstream="auto") in "ab"


def test_a_keepalive_says_between_rounds_that_somebody_is_there(town: Town) -> None:
    wlc.set_tiers("shop", ["keepalive_s=0.05"], farm=town.farm)
    with Keepalive() as alive:
        town.replica("x", upstream="auto", keepalive=alive)
        (first,) = replicas(town.registry)
        deadline = time.monotonic() + 10
        while replicas(town.registry)[0].seen == first.seen:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    (last,) = replicas(town.registry)
    assert (last.interval_s, last.position, last.progressed) == (0.05, first.position, first.progressed)
    # Who was forgotten stays so until the next round.
    wlc.forget("shop", last.id, farm=town.farm)
    assert (replicas(town.registry), claims(town.registry)) == ([], [])
    with pytest.raises(InvalidError, match="knows no upstream or replica"):
        wlc.forget("shop", last.id, farm=town.farm)


@pytest.mark.slow
def test_defect_d_pruning_of_each_place_waits_for_its_own_children(own: Town) -> None:
    town = own
    town.relay("a")
    town.relay("b")
    for name in (ORIGIN, town.id_of("b")):
        wlc.set_upstream("shop", name, is_active=False, farm=town.farm)
    assert town.replica("x", upstream="auto") == "a"
    for _ in range(3):
        town.write()
    wlc.snapshot(town.master)
    town.write()
    for name in "ab":
        town.relay(name)
    # The origin's children have everything. The relay's child stands at batch 2.
    assert wlc.prune("shop", farm=town.farm, keep_for="0s").keep_batches == (5, 6)
    kept = wlc.prune("shop", farm=f"{town.root}/a", keep_for="0s")
    assert kept.keep_batches == (2, 3, 4, 5, 6)
    assert set(kept.held_bytes) == {replica.id for replica in kept.holding}
    assert min(kept.held_bytes.values()) > 1000
    assert town.replica("x") == "a"
    assert wlc.prune("shop", farm=f"{town.root}/a", keep_for="0s").keep_batches == (5, 6)


@pytest.mark.slow
def test_an_hour_is_kept_for_readers_that_began(own: Town) -> None:
    town = own
    wlc.snapshot(town.master)
    town.write()
    wlc.snapshot(town.master)
    assert wlc.prune("shop", farm=town.farm).delete_snapshots == ()
    for file in (Path(town.registry.url) / "snapshots").rglob("manifest.json"):
        os.utime(file, (time.time() - 4000,) * 2)
    assert wlc.prune("shop", farm=town.farm).delete_snapshots == (2,)


def test_the_tree_is_shown_and_somebody_stuck_ends_it_with_9(
    two_relays: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    town = two_relays
    town.replica("x", upstream="auto")
    assert run_app(app, "wlc", ["tier", "show", town.registry.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1:]] in (["0", "1", "2", "1"], ["0", "1", "1", "2"])
    town.write()
    town.relay("a")
    town.relay("b")
    (x,) = (found for found in replicas(town.registry) if found.kind == "replica")
    late = utc_now() + timedelta(minutes=5)
    register(town.registry, replace(x, seen=late))
    assert run_app(app, "wlc", ["tier", "show", town.registry.url]) == 9
    told = capsys.readouterr()
    assert re.search(rf"error: {x.id} \(.* makes no progress", told.err)
    # Whoever examines the database, or looks at its page, is told the same, with the command that shows the cause.
    (check,) = (check for check in wlr.report(town.registry.url).checks if check.check == "readers")
    assert (check.state, check.remedy) == ("wrong", f"wlr replicate --into {x.target}")
    assert x.id in check.found
    assert run_app(app, "wlc", ["tier", "set", town.registry.url, "stuck_s=1000"]) == 0
    assert run_app(app, "wlc", ["tier", "show", town.registry.url, "--json"]) == 0
    assert '"cause": "holds a position"' in capsys.readouterr().out
    # Somebody registered and never held a position.
    new = Replica("new", "/new", None, None, utc_now(), "host", "ann")
    for seen in (new.seen, late):
        register(town.registry, replace(new, seen=seen))
        marks = {member.id: member.marks for member in wlc.tier_tree(town.registry.url).members}
        assert marks["new"] == ()
    wlc.set_tiers("shop", ["pending_s=200"], farm=town.farm)
    (member,) = (member for member in wlc.tier_tree(town.registry.url).members if member.id == "new")
    assert (member.state, member.marks) == ("pending", ("pending for long",))


@pytest.mark.slow
def test_a_bucket_serves_as_a_directory_does_and_no_use_costs_nothing(s3_url: str, tmp_path: Path) -> None:
    town = make(tmp_path, s3_url)
    town.relay("a", fanout=2)
    wlc.fanout("shop", 1, upstream=ORIGIN, farm=town.farm)
    assert [town.replica(name, upstream="auto") for name in "xyz"] == ["hq", "a", "a"]
    town.write()
    town.relay("a")
    assert [town.replica(name) for name in "xyz"] == ["hq", "a", "a"]
    assert {wlr.tick(tmp_path / f"{name}.duckdb") for name in "xyz"} == {wlc.tick("shop", farm=town.farm)}
    counts = []
    for name in ("y", "plain"):
        town.replica(name)
        with counted_requests() as made:
            town.replica(name)
        # Without the request of `wlr.status`.
        counts.append(made.total() - 1)
    # Three to find out that there is nothing new, and two for the registration. A tier's reader asks the registry, too.
    assert counts[1] == 5
    assert counts[0] <= 16


@pytest.mark.slow
def test_a_relay_that_was_restored_is_behind_and_has_no_other_past(
    own: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    own.relay("a")
    wlc.set_upstream("shop", ORIGIN, is_active=False, farm=own.farm)
    shutil.copytree(own.folder / "a", own.folder / "old")
    own.write()
    own.relay("a")
    readers = {"x": ["auto"], "y": [own.url("a")], "z": [own.url("a"), own.url("gone")]}
    feed = {name: partial(wlr.feed, "shop", farm=own.farm, to=own.folder / f"{name}.jsonl") for name in readers}
    for name, upstream in readers.items():
        assert own.replica(name, upstream=upstream) == "a"
        assert feed[name](upstream=upstream).records == 3
    restore(own, "a")
    behind = "/a/shop ends with batch 2, its reader is in batch 3"
    for name in readers:
        for asked in ({}, {"tick": 1}, {"rebase": True}):
            with pytest.raises(UnavailableError, match=behind):
                own.replica(name, **asked)
        for start in (None, "snapshot"):
            with pytest.raises(UnavailableError, match=behind):
                feed[name](start=start)
    words = ["feed", "shop", "--farm", own.farm, "--to", str(own.folder / "y.jsonl")]
    assert run_app(wlr_app, "wlr", words) == 75
    assert behind in capsys.readouterr().err
    # All reasons are named, and nothing was undone.
    for reads in (partial(own.replica, "x"), feed["x"]):
        with pytest.raises(UnavailableError, match=r"origin: it is inactive"):
            reads()
    assert wlr.tick(own.folder / "x.duckdb") == 3
    # With the registry away, nothing says that the origin has lost it.
    (own.folder / "hq").rename(own.folder / "away")
    with pytest.raises(UnavailableError):
        own.replica("y")
    (own.folder / "away").rename(own.folder / "hq")
    own.relay("a")
    assert [own.replica(name) for name in readers] == ["a"] * 3
    assert [feed[name]().records for name in readers] == [0] * 3
    # What the origin lacks, too, is lost, and so is what a place of its own lacks.
    restore(own, "a")
    restore(own, "hq")
    lost = "the farm ends at tick 2, its reader is at tick 3"
    with pytest.raises(CorruptError, match=lost):
        own.replica("y")
    for name in readers:
        with pytest.raises(CorruptError, match=lost) as caught:
            feed[name]()
        assert re.search(r"wlr feed shop .* --from snapshot continues", str(caught.value.hint))
    assert feed["y"](start="snapshot").records == 2


def restore(town: Town, name: str) -> None:
    """Restore the logs of a place to what the folder `old` holds."""
    for part in ("wlc_logs", "wlc.config"):
        place = town.folder / name / "shop" / part
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        old = town.folder / "old" / "shop" / part
        shutil.copytree(old, place) if old.is_dir() else shutil.copy(old, place)


@pytest.mark.slow
def test_a_relay_is_pruned_on_its_own_schedule(own: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    own.relay("a", keep="0s")
    monkeypatch.setattr("cli.tiers.time.monotonic", lambda: now)
    pruning, never = (Pruning(every, None) for every in ("1m", None))
    relay = open_database("shop", f"{own.root}/a")
    begins = []
    for moment in (100.0, 160.0, 200.0, 221.0):
        wlc.snapshot(own.master)
        own.write()
        done = own.relay("a")
        for file in (Path(relay.url) / "snapshots").rglob("manifest.json"):
            os.utime(file, (time.time() - 4000,) * 2)
        now = moment
        assert never.after(done) is pruning.after(done) is done
        begins.append(relay.snapshot_ticks()[0])
    # At 160 s, and a minute later: what is older than the newest snapshot of an hour ago goes.
    assert begins == [2, 3, 3, 5]


def test_a_reader_chooses_again_when_it_is_time(town: Town) -> None:
    town.relay("a")
    wlc.fanout("shop", 1, upstream=ORIGIN, farm=town.farm)
    assert [town.replica(name, upstream="auto") for name in "xy"] == ["hq", "a"]
    (x,) = (claim.holder for claim in claims(town.registry) if claim.upstream == ORIGIN)
    wlc.forget("shop", x, farm=town.farm)
    # A better place has a slot now, which is noticed within the hour.
    assert town.replica("y") == "a"
    wlc.set_tiers("shop", ["rechoose_s=0.01"], farm=town.farm)
    time.sleep(0.02)
    assert town.replica("y") == "hq"
    assert [claim.upstream for claim in claims(town.registry)] == [ORIGIN]


@pytest.mark.slow
def test_who_is_forgotten_holds_nothing_and_serves_nobody(own: Town) -> None:
    own.relay("a")
    wlc.fanout("shop", 1, upstream=ORIGIN, farm=own.farm)
    assert [own.replica(name, upstream="auto") for name in "xy"] == ["hq", "a"]
    gone = own.id_of("a")
    done = wlc.forget("shop", gone, farm=own.farm)
    assert (done.was_replica, done.was_upstream, done.claims) == (True, True, 1)
    assert upstreams(own.registry) == []
    assert [claim.upstream for claim in claims(own.registry)] == [ORIGIN]
    # Pruning waits no longer for what it had not copied.
    for _ in range(2):
        own.write()
    wlc.snapshot(own.master)
    own.write()
    for name in "xy":
        assert own.replica(name) == "hq"
    assert wlc.prune("shop", farm=own.farm, keep_for="0s").keep_batches == (4, 5)
    with pytest.raises(InvalidError, match=r"the origin is .*/shop itself and cannot be removed") as refused:
        wlc.forget("shop", ORIGIN, farm=own.farm)
    command = shlex.split(str(refused.value.hint).partition(": ")[2])
    assert [run_app(app, "wlc", [*command[1:-1], f"--{state}"]) for state in ("inactive", "active")] == [0, 0]
