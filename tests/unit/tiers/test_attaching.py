"""Attaching to an upstream without a master or a replica: farms in memory, and a round that only says where it reads."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from cli.command import run_app
from cli.wlc import app
from wlc.farm import paths
from wlc.farm.clock import utc_now
from wlc.farm.config import first_config, with_batch
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.model import Batch, Position, Transaction
from wlc.farm.paths import TIERS
from wlc.farm.registry import ACTIVE, RELAY, Replica, moved_to, register, register_versioned, replicas
from wlc.farm.store import MissingError
from wlc.farm.store.memory import MemoryStore
from wlc.masters.retention import children
from wlc.tiers.administration import fanout, forget, set_tiers, set_upstream
from wlc.tiers.attaching import read_through
from wlc.tiers.attachment import (
    Attachment,
    Keepalive,
    Membership,
    Registration,
    attachment_object,
    attachment_of,
    register_reader,
)
from wlc.tiers.copying import Copier
from wlc.tiers.overview import tier_tree
from wlc.tiers.pushing import Pusher, push_list
from wlc.tiers.relay import ship
from wlc.tiers.upstreams import ORIGIN, Push, Upstream, change_upstream, claims, upstreams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_unique = count()


def farm(*, history: str = "h", batches: int = 3, name: str = "shop") -> FarmDatabase:
    made = open_database(f"memory://farm-{next(_unique)}/{name}")
    made.create_config(first_config(name))
    chain, now = "", utc_now()
    for number in range(1, batches + 1):
        transaction = Transaction(number, "ann", now, now, (), None)
        batch = Batch(name, number, history, number, number, chain, name, (transaction,), vector={history: number})
        chain = made.publish(batch, {})
        made.change_config(lambda config, batch=batch: with_batch(config, batch))
    return made


def offer(registry: FarmDatabase, place: FarmDatabase, relay: str = "aaaa") -> None:
    """Register a place as an upstream, with the position of the registry itself."""
    now, config = utc_now(), registry.config()
    position = Position(config.history, config.tick, config.batches - 1, "")
    said = Replica(relay, place.url, position, now, now, "host", "ann", kind=RELAY, interval_s=10.0)
    register(registry, said)
    transitions = moved_to((), ACTIVE, "holds a whole copy", now)
    change_upstream(registry, relay, lambda _: Upstream(relay, place.url, "host", "ann", transitions=transitions))


def copied(source: FarmDatabase) -> FarmDatabase:
    made = open_database(f"memory://farm-{next(_unique)}/{source.name}")
    made.create_config(source.config())
    for number in source.batch_numbers():
        path = paths.log_path(source.name, number)
        made.logs.create(path, source.logs.read(path))
    return made


def reader(position: Position | None = None, **options: object) -> Replica:
    return replace(Replica("me", "/me.duckdb", position, None, utc_now(), "host", "ann"), **options)  # type: ignore[arg-type]


def where(place: FarmDatabase, membership: Membership) -> tuple[str, Attachment]:
    return place.url, membership.attachment


def read(registry: FarmDatabase, me: Replica | None = None, attachment: Attachment | None = None) -> str:
    return read_through(registry, me or reader(), attachment or Attachment(registry.url), where)[0]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: farm(history="other"), "has another past than"),
        (lambda: farm(history="other", batches=1), "has another past than"),
        (lambda: farm(name="other"), "is a place of database other, not of shop"),
    ],
)
def test_a_new_reader_takes_neither_another_past_nor_another_database(made: object, told: str) -> None:
    registry, other = farm(), made()  # type: ignore[operator]
    offer(registry, other)
    set_upstream(registry.url, ORIGIN, is_active=False)
    with pytest.raises(UnavailableError, match=told):
        read(registry)
    # Nobody there waits for the reader, and the failure is remembered with the next choice.
    assert replicas(other) == []
    set_upstream(registry.url, ORIGIN, is_active=True)
    assert read(registry) == registry.url
    right = copied(registry)
    offer(registry, right, "bbbb")
    set_upstream(registry.url, ORIGIN, is_active=False)
    url, attachment = read_through(registry, reader(), Attachment(registry.url), where)
    assert url == right.url
    assert {penalty.upstream for penalty in attachment.penalties} <= {"aaaa"}


def test_a_place_that_is_behind_has_the_same_past_also_when_a_new_history_began() -> None:
    registry = farm(batches=2)
    behind = copied(registry)
    config = registry.config()
    previous = registry.read_batch(2)[1]
    now = utc_now()
    batch = Batch(
        "shop", 3, "h2", 3, 3, previous, "shop", (Transaction(3, "ann", now, now, (), None),), vector={"h2": 3}
    )
    registry.publish(batch, {})
    registry.change_config(lambda present: with_batch(present, batch))
    assert registry.config().history != config.history
    offer(registry, behind)
    set_upstream(registry.url, ORIGIN, is_active=False)
    assert read(registry) == behind.url


def test_a_relay_that_died_ahead_of_another_one_does_not_take_that_for_another_past() -> None:
    registry = farm(batches=3)
    relay = f"memory://farm-{next(_unique)}"
    mine = FarmDatabase("shop", open_database(f"{relay}/shop").store)
    at_first = registry.config()
    ship(registry.url, to=relay, upstream="auto")
    # It died before its wlc.config followed; so it seems to stand where the other one is, too.
    mine.change_config(lambda config: replace(config, batches=2, tick=1))
    behind = copied(registry)
    behind.delete_batch(3)
    behind.change_config(lambda config: replace(config, batches=3, tick=2))
    offer(registry, behind)
    set_upstream(registry.url, ORIGIN, is_active=False)
    with pytest.raises(UnavailableError, match="ends with batch 2, the relay goes on to batch 3"):
        ship(registry.url, to=relay, upstream="auto")
    set_upstream(registry.url, ORIGIN, is_active=True)
    assert ship(registry.url, to=relay, upstream="auto").tick == 3
    assert mine.config().batches == at_first.batches


def test_a_master_that_died_before_its_config_followed_serves_who_has_read_its_log() -> None:
    registry = farm(batches=3)
    position = Position("h", 3, 3, registry.read_batch(3)[1])
    registry.change_config(lambda config: replace(config, batches=3, tick=2))
    me = replace(reader(), position=position)
    assert read_through(registry, me, Attachment(registry.url), where)[0] == registry.url


@pytest.mark.parametrize("pins", [False, True])
def test_a_place_that_is_pruned_while_a_reader_comes_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, *, pins: bool
) -> None:
    registry = farm(batches=4)
    place = copied(registry)
    offer(registry, place)
    set_upstream(registry.url, ORIGIN, is_active=False)
    position = Position("h", 1, 1, registry.read_batch(1)[1])
    register(registry, reader(position))
    before = Attachment(registry.url, upstream=ORIGIN, url=registry.url)

    def pruned(database: FarmDatabase, replica: Replica, **options: object) -> Replica:
        if database.url == place.url:
            # The prune had read the registrations before.
            for number in (1, 2):
                place.delete_batch(number)
        return register(database, replica, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("wlc.tiers.attaching.register", pruned)
    attachment = replace(before, among=(place.url,)) if pins else before
    with pytest.raises(FarmError, match="was pruned|serves /me.duckdb now"):
        read(registry, reader(position), attachment)
    assert replicas(place) == []
    (known,) = (found for found in replicas(registry) if found.id == "me")
    assert known.upstream == ""


def test_a_full_place_that_holds_the_position_serves_where_the_others_have_pruned_it() -> None:
    registry = farm()
    place = copied(registry)
    offer(registry, place)
    fanout(registry.url, 1)
    # Reading takes longer than an upstream that failed is avoided.
    set_tiers(registry.url, ("penalty_s=0",))
    set_upstream(registry.url, "aaaa", is_active=False)
    assert read(registry, reader(id="other")) == registry.url
    set_upstream(registry.url, "aaaa", is_active=True)
    for number in (1, 2):
        place.delete_batch(number)
    position = Position("h", 1, 1, registry.read_batch(1)[1])
    assert read(registry, reader(position)) == registry.url


@pytest.mark.parametrize(
    ("away_is", "told"),
    [
        ("nothing", ExpiredError),
        ("registry", MissingError),
        ("relay", UnavailableError),
        # Its owner has taken it out, and it stays out until he puts it back.
        ("relay for good", ExpiredError),
    ],
)
def test_a_position_has_expired_only_if_all_places_say_so(away_is: str, told: type[FarmError]) -> None:
    registry = farm()
    position = Position("h", 1, 1, registry.read_batch(1)[1])
    relay = copied(registry)
    offer(registry, relay)

    def expires(place: FarmDatabase, _: Membership) -> None:
        if away_is in ("registry", "relay"):
            away(registry if away_is == "registry" else relay)
        raise ExpiredError("batch 2 was pruned", path=place.url)

    set_upstream(registry.url, "aaaa", is_active=False)
    known = read_through(registry, reader(position), Attachment(registry.url), where)[1]
    set_upstream(registry.url, "aaaa", is_active=away_is != "relay for good")
    with pytest.raises(told) as raised:
        read_through(registry, reader(position), known, expires)
    assert type(raised.value) is told


def test_an_unfinished_first_copy_stays_where_it_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = farm(batches=4)
    place, begun = copied(registry), open_database(f"memory://farm-{next(_unique)}/shop")
    offer(registry, place)
    log = paths.log_path("shop", 1)
    begun.logs.create(log, registry.logs.read(log))
    for number in (1, 2):
        registry.delete_batch(number)
    attachment_object(begun).change(lambda _: Attachment(registry.url, upstream="aaaa", url=place.url))
    left: list[str] = []
    monkeypatch.setattr("wlc.tiers.attaching.unregister", lambda database, _: left.append(database.url))
    assert ship(registry.url, to=begun.url.removesuffix("/shop"), upstream="auto").batches == 3
    # Whoever leaves a place lets it prune what it held for him.
    assert left == []


def test_a_relay_whose_next_batch_is_nowhere_is_told_to_ship_again() -> None:
    registry, begun = farm(batches=4), open_database(f"memory://farm-{next(_unique)}/shop")
    log = paths.log_path("shop", 1)
    begun.logs.create(log, registry.logs.read(log))
    for number in (1, 2):
        registry.delete_batch(number)
    with pytest.raises(ExpiredError) as raised:
        ship(registry.url, to=begun.url.removesuffix("/shop"), upstream="auto")
    assert raised.value.hint
    assert f"Delete {begun.url} and ship again" in raised.value.hint


def test_damaged_documents_cost_a_choice_and_stop_nobody() -> None:
    registry = farm()
    place = copied(registry)
    offer(registry, place)
    known = Attachment(registry.url, upstream="aaaa", url=place.url, chosen=utc_now())
    assert read(registry, attachment=known) == place.url
    for path in ("upstreams/aaaa.json", "upstreams/origin.json", TIERS, "replicas/torn.json"):
        registry.store.delete(path)
        registry.store.create(path, b"garbage")
    with pytest.warns(UserWarning, match=r"tiers\.json"):
        assert read(registry, attachment=known) == registry.url
    with pytest.warns(UserWarning, match="garbage|torn|json") as told:
        tree = tier_tree(registry.url)
    for path in ("upstreams/aaaa.json", TIERS, "replicas/torn.json"):
        assert any(f"{registry.url}/{path}" in str(warning.message) for warning in told)
    assert len(tree.damaged) == 3
    assert "me" in {member.id for member in tree.members}


def test_a_relay_leaves_an_upstream_that_came_to_have_another_past() -> None:
    registry, other = farm(), farm(history="other", batches=4)
    offer(registry, other)
    relay = copied(registry)
    remembered = Attachment(registry.url, upstream="aaaa", url=other.url, chosen=utc_now())
    attachment_object(relay).change(lambda _: remembered)
    ship(registry.url, to=relay.url.rpartition("/")[0], upstream="auto")
    found = attachment_object(relay).load()
    assert found is not None
    assert (found[0].url, [penalty.upstream for penalty in found[0].penalties]) == (registry.url, ["aaaa"])
    # Without a choice, the error remains.
    with pytest.raises(CorruptError, match="restored or made anew"):
        ship(other.url, to=relay.url.rpartition("/")[0])


@pytest.mark.parametrize("halted_at", ["copy_files", "create"])
@pytest.mark.parametrize("held", [0, 3])
def test_a_run_that_was_halted_restores_no_batch_that_was_pruned(
    monkeypatch: pytest.MonkeyPatch, halted_at: str, held: int
) -> None:
    source = farm(batches=8)
    target = open_database(f"memory://farm-{next(_unique)}/shop")
    to = target.url.rpartition("/")[0]
    if held:
        target.create_config(first_config("shop"))
        for number in range(1, held + 1):
            path = paths.log_path("shop", number)
            target.logs.create(path, source.logs.read(path))
    real, halts = getattr(Copier, halted_at), iter([True])
    monkeypatch.setattr("wlc.tiers.relay._HALTED_S", -1.0)

    def halted(self: Copier, *arguments: object) -> object:
        if f"_{held + 1:012d}" in str(arguments) and next(halts, False):
            ship(source.url, to=to, register=False)
            for number in range(1, 7):
                target.delete_batch(number)
        return real(self, *arguments)

    monkeypatch.setattr(Copier, halted_at, halted)
    with pytest.raises(UnavailableError, match="was copied by another run and pruned meanwhile"):
        ship(source.url, to=to, register=False)
    assert target.batch_numbers() == [7, 8]
    assert ship(source.url, to=to, register=False).tick == 8


def test_a_relay_is_not_shipped_to_itself(tmp_path: Path) -> None:
    source = farm()
    ship(source.url, to=str(tmp_path / "r1"))
    (tmp_path / "link").symlink_to(tmp_path / "r1")
    for place, upstream in (
        (source.url, str(tmp_path / "r1/shop")),
        (source.url, str(tmp_path / "link/shop")),
        (str(tmp_path / "link/shop"), None),
    ):
        with pytest.raises(InvalidError, match="is the farm that shop is in"):
            ship(place, to=str(tmp_path / "r1"), upstream=upstream)


def test_relays_that_are_pinned_make_no_circle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    registry = farm()
    places = [str(tmp_path / name) for name in ("r1", "r2")]
    for place in places:
        ship(registry.url, to=place, fanout=2)
    one, two = (f"{place}/shop" for place in places)
    ship(registry.url, to=places[0], upstream=two)
    with pytest.raises(InvalidError, match="cannot read from a place that reads from it"):
        ship(registry.url, to=places[1], upstream=one)
    assert tier_tree(registry.url).cut_off == ()
    # A circle of old, or of two that pinned each other at the same moment.
    (other,) = (known for known in replicas(registry) if known.target == two)
    first = next(known.id for known in replicas(registry) if known.target == one)
    register(registry, replace(other, upstream=first))
    assert {member.url for member in tier_tree(registry.url).cut_off} == {one, two}
    # The registry's place keeps what they lack.
    assert {known.id for known in children(replicas(registry))} == {first, other.id}
    copy = ship(registry.url, to=str(tmp_path / "hq"), register=False).url
    for known in replicas(registry):
        register(open_database(copy), known)
    assert run_app(app, "wlc", ["tier", "show", copy]) == 9
    assert "no path leads to the origin from" in capsys.readouterr().err


@pytest.mark.parametrize("upstream", [None, "auto"])
def test_a_relay_that_was_forgotten_serves_again_with_its_next_round(tmp_path: Path, upstream: str | None) -> None:
    registry = farm()

    def shipped() -> list[str]:
        done = ship(registry.url, to=str(tmp_path), upstream=upstream)
        assert done.tick == 3
        return [known.url for known in upstreams(registry)]

    (url,) = shipped()
    forget(registry.url, upstreams(registry)[0].id)
    assert upstreams(registry) == []
    assert shipped() == [url]
    # Who does not register does not come back.
    registry.store.delete(paths.upstream_path(upstreams(registry)[0].id))
    ship(registry.url, to=str(tmp_path), upstream=upstream, register=False)
    assert upstreams(registry) == []
    assert shipped() == [url]


def test_a_delay_passes_to_the_places_below() -> None:
    registry, late = farm(), farm(batches=0)
    offer(registry, late)
    offer(registry, copied(registry), "bbbb")
    change_upstream(registry, "aaaa", lambda before: replace(before or Upstream("", "", "", ""), delay_s=3600.0))
    (below,) = (known for known in replicas(registry) if known.id == "bbbb")
    register(registry, replace(below, upstream="aaaa"))
    set_upstream(registry.url, ORIGIN, is_active=False)
    with pytest.raises(UnavailableError, match="bbbb: it stays 3600 s behind on purpose"):
        read(registry)


def test_a_class_is_pushed_to_where_nothing_is_yet() -> None:
    source = farm()
    edge = source.url.replace("/shop", "-edge/shop")
    with pytest.raises(MissingError, match="there is no database"):
        push_list(edge)
    push_list(edge, add=Push("uats", class_name="uat"))
    attachment = Attachment(edge, among=(edge,), class_name="uat")
    registry = open_database(edge)
    with pytest.raises(MissingError, match="holds nothing yet") as caught:
        read(registry, attachment=attachment)
    assert str(caught.value.hint).endswith(f": wlc tier ship DB --pushes {edge}")
    with Pusher(source.url, edge, class_name="prod") as pusher:
        assert [done.tick for done in pusher.push().shipped] == [3]
        assert read(registry, attachment=attachment) == edge
        # The list is read again, and of the readers only what is new.
        register(registry, reader(interval_s=1.0, id="other"))
        reads: list[str] = []
        real = MemoryStore.read

        def noted(self: MemoryStore, path: str) -> bytes:
            reads.append(path)
            return real(self, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "read", noted)
            for _ in range(2):
                pusher._listed = None
                pusher.push()
        # The pusher's place registers at the source, too.
        assert sorted(path for path in reads if path in ("replicas/me.json", "replicas/other.json")) == [
            "replicas/me.json",
            "replicas/other.json",
        ]


def test_who_is_pinned_to_a_place_that_is_not_filled_is_told_what_to_type(tmp_path: Path) -> None:
    registry = open_database(ship(farm().url, to=str(tmp_path / "hq"), register=False).url)
    place = tmp_path / "edge" / "shop"
    for position in (None, Position("h", 1, 1, registry.read_batch(1)[1])):
        attachment = Attachment(registry.url, among=(str(place),))
        with pytest.raises(MissingError, match=f"{place} holds nothing yet") as caught:
            read(registry, reader(position), attachment)
        told, _, command = str(caught.value.hint).partition(": wlc ")
        assert (told, run_app(app, "wlc", shlex.split(command))) == ("to fill it", 0)
        assert read(registry, reader(position), attachment) == str(place)
        shutil.rmtree(place)
    # Nobody knows where the data comes from.
    with pytest.raises(MissingError) as caught:
        read(open_database(str(place)), attachment=Attachment(str(place), among=(str(place),)))
    assert caught.value.hint == f"to fill it: wlc tier ship DB --to {place.parent}"


def test_a_pinned_place_must_have_the_same_past_and_needs_no_registry() -> None:
    registry, other = farm(), farm(history="other")
    with pytest.raises(CorruptError, match="has another past than"):
        read(registry, attachment=Attachment(registry.url, among=(other.url,)))
    assert replicas(other) == []
    place = copied(registry)
    offer(registry, place)
    chosen = Attachment(registry.url, upstream="aaaa", url=place.url, chosen=utc_now())
    registry.store.delete(paths.CONFIG)
    registry.store.create(paths.CONFIG, b"garbage")
    assert read(registry, attachment=Attachment(registry.url, among=(place.url,))) == place.url
    assert read(registry, attachment=chosen) == place.url


# Several registries ---------------------------------------------------------------------------------------------------


def chooser(registries: Sequence[FarmDatabase], given: FarmDatabase) -> Attachment:
    """What a new reader remembers that is given a farm and registries."""
    found = attachment_of(given, None, None, None, [known.url for known in registries], given.url)
    assert found is not None
    return found


def registered(place: FarmDatabase, membership: Membership) -> tuple[str, Attachment]:
    register_reader(place, reader(), membership, is_level=True)
    return place.url, membership.attachment


def away(registry: FarmDatabase) -> bytes:
    kept = registry.store.read(paths.CONFIG)
    registry.store.delete(paths.CONFIG)
    return kept


def holders(registry: FarmDatabase) -> list[str]:
    return [claim.holder for claim in claims(registry)]


def test_multimeta() -> None:
    """Comdb2: a reader is registered in every registry that it was given, claims in the first, and is nowhere else."""
    first = farm()
    second, other = copied(first), copied(first)
    url, attachment = read_through(first, reader(), chooser([first, second], other), registered)
    assert (url, attachment.upstream, attachment.slot) == (first.url, ORIGIN, 0)
    assert [known.id for known in replicas(first)] == [known.id for known in replicas(second)] == ["me"]
    assert [known.registry for known in (*replicas(first), *replicas(second))] == ["", first.url]
    assert (holders(first), holders(second), replicas(other)) == (["me"], [], [])
    # Pruning in the second one does not wait for a reader that reads elsewhere.
    assert (children(replicas(first)), children(replicas(second))) == (replicas(first), [])
    with pytest.raises(InvalidError, match="is a place of database other, not of shop"):
        chooser([farm(name="other")], first)
    with pytest.raises(InvalidError, match="a registry is of no use without an upstream"):
        attachment_of(first, None, "none", None, [second.url])


def test_a_registry_that_is_away_stops_nobody() -> None:
    first = farm()
    second, given = copied(first), copied(first)
    kept, asked = away(first), chooser([first, second], given)
    # No choice was made yet: it begins with the farm that it was given.
    url, attachment = read_through(first, reader(), asked, registered)
    assert (url, attachment.url, attachment.slot) == (given.url, given.url, None)
    assert [known.id for known in replicas(second)] == ["me"]
    assert replicas(first) == []
    # With the first chosen, the second one's absence is not noticed, and neither is that of both later.
    first.store.create(paths.CONFIG, kept)
    kept = away(second)
    url, attachment = read_through(first, reader(), attachment, registered)
    assert (url, attachment.upstream) == (first.url, ORIGIN)
    offer(first, given)
    set_upstream(first.url, ORIGIN, is_active=False)
    url, attachment = read_through(first, reader(), attachment, registered)
    assert url == given.url
    away(first)
    assert read_through(first, reader(), attachment, registered)[0] == given.url
    second.store.create(paths.CONFIG, kept)
    assert read_through(first, reader(), attachment, registered)[0] == given.url
    assert [known.upstream for known in replicas(second)] == ["aaaa"]


def test_registries_are_remembered_and_changed() -> None:
    first = farm()
    second = copied(first)
    asked = chooser([first], second)
    url, before = read_through(first, reader(), asked, registered)
    assert url == first.url
    # A later call says nothing of registries, or says the same.
    for said in (None, [first.url]):
        assert attachment_of(second, before, None, None, said, second.url) == before
    # One more that is told is no reason to choose anew.
    more = attachment_of(second, before, None, None, [first.url, second.url], second.url)
    assert more == replace(before, registries=(first.url, second.url))
    # Another one that decides is.
    moved = attachment_of(second, before, "auto", None, [second.url], second.url)
    assert moved is not None
    assert (moved.registry, moved.url, moved.slot, moved.chosen) == (second.url, first.url, None, None)
    assert read_through(second, reader(), moved, registered)[0] == second.url
    assert holders(second) == ["me"]


def test_intermediate_physrep_active_status(tmp_path: Path) -> None:
    """Comdb2: a relay is active in the second registry, and serves those who choose by it."""
    first = farm()
    second = copied(first)
    registries, to = [first.url, second.url], f"memory://farm-{next(_unique)}"
    done = ship(first.url, to=to, registry=registries)
    for registry in (first, second):
        (known,) = upstreams(registry)
        assert (known.url, known.state) == (done.url, ACTIVE)
        # Deleted by hand, it is there again with the next round, whether that has news or not.
        registry.store.delete(paths.upstream_path(known.id))
    ship(first.url, to=to, registry=registries)
    assert [[known.url for known in upstreams(registry)] for registry in (first, second)] == [[done.url]] * 2
    set_upstream(second.url, ORIGIN, is_active=False)
    assert read_through(second, reader(), chooser([second], second), registered)[0] == done.url
    # Its registry is away: it copies what there is, and nothing is made in its place.
    kept = away(first)
    set_upstream(second.url, ORIGIN, is_active=True)
    more = ship(second.url, to=f"{to}-more", registry=[second.url, first.url])
    assert (more.tick, [known.url for known in upstreams(first)]) == (3, [done.url])
    first.store.create(paths.CONFIG, kept)
    for refused in ([done.url], [first.url, done.url]):
        with pytest.raises(InvalidError, match="is the farm that shop is in"):
            ship(first.url, to=to, registry=refused)


def test_verify_alt_metadb_system_table() -> None:
    """Comdb2: the other registries are listed, and so is who chooses by another one."""
    first = farm()
    second = copied(first)
    relay = ship(first.url, to=f"memory://farm-{next(_unique)}", registry=[first.url, second.url]).url
    below = ship(second.url, to=f"memory://farm-{next(_unique)}", upstream=relay, registry=second.url).url
    shown = {member.url: member for member in tier_tree(second.url).members}
    assert (shown[relay].registry, shown[relay].marks, shown[relay].state) == (first.url, (), ACTIVE)
    assert (shown[below].registry, shown[below].marks, shown[below].upstream) == ("", (), shown[relay].id)
    # Nobody who monitors the second one is alarmed.
    tree = tier_tree(second.url)
    assert (tree.stuck, tree.cut_off) == ((), ())
    assert [known.id for known in children(replicas(second))] == []


def test_a_round_takes_the_place_of_a_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("wlc.tiers.attachment.time.monotonic", lambda: clock[0])
    registry, alive = farm(), Keepalive()
    alive.interval_s = 10.0
    other = copied(registry)
    said = [Registration(place, *register_versioned(place, reader())) for place in (registry, other)]
    for clock[0], left_s in ((100.0, 10.0), (106.0, 4.0), (120.0, 0.0)):
        assert alive._left_s() == left_s
    alive.note(said)
    assert alive._left_s() == 10.0
    # A registry that is away in a round still hears what it knew.
    alive.note([said[0].renewed()])
    assert {each.registry.url for each in alive._registrations} == {registry.url, other.url}
    # What others wrote meanwhile is found out, and written over the next time.
    register(other, reader(interval_s=7.0))
    stale = said[1].renewed()
    assert stale.version is None
    assert stale.renewed().replica.interval_s == 7.0
