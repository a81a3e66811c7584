"""What a registry of tiers keeps: each document comes back, and one that is damaged costs a choice and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from wlc.farm import registry
from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase
from wlc.farm.documents import encode_document
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.paths import TIERS, claim_path, parse_claim_path, parse_upstream_path, upstream_path
from wlc.farm.registry import ACTIVE, INACTIVE, SITE, Replica, Transition, decode_replica, encode_replica, register
from wlc.farm.store.memory import MemoryStore
from wlc.tiers.attachment import Attachment, Penalty, attachment_object
from wlc.tiers.tier_settings import DEFAULTS, read_settings
from wlc.tiers.tree import Offer, offer_place, read_tree
from wlc.tiers.upstreams import (
    Claim,
    Push,
    Upstream,
    add_push,
    change_upstream,
    claims,
    decode_upstream,
    encode_upstream,
    pushes,
    read_claim,
    release_claim,
    take_claim,
    upstreams,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
RELAY = Upstream(
    *("r", "s3://b/farm/shop", "host", "ann"),
    class_name="prod",
    fanout=3,
    delay_s=60.0,
    first=7,
    transitions=(Transition(ACTIVE, "holds a whole copy", "ann@host", NOW),),
)


@pytest.fixture
def database() -> FarmDatabase:
    made = FarmDatabase("shop", MemoryStore("memory://hq/shop", {}))
    made.create_config(first_config("shop"))
    return made


def test_documents_come_back(database: FarmDatabase) -> None:
    assert decode_upstream(encode_upstream(RELAY), "upstreams/r.json") == RELAY
    reads = Attachment("hq", ("a", "b"), "prod", "r", "a", 2, NOW, (Penalty("b", 3, NOW),))
    for attachment in (reads, Attachment("hq")):
        assert attachment_object(database).decode(attachment_object(database).encode(attachment)) == attachment
    assert parse_upstream_path(upstream_path("r-1")) == "r-1"
    assert parse_claim_path(claim_path("r-1", 12)) == ("r-1", 12)
    for path in ("claims/r/01.json", "claims/r/x.json", "claims/r.json", "claims/../1.json"):
        assert parse_claim_path(path) is None
    with pytest.raises(InvalidError):
        upstream_path("../r")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-9],
        lambda data: data.replace(b"prod", b"uats"),
        lambda data: b"",
        lambda data: data.replace(b"upstream", b"upstairs"),
    ],
)
def test_a_damaged_upstream_is_left_out_and_replaced(database: FarmDatabase, spoil: Callable[[bytes], bytes]) -> None:
    database.store.create("upstreams/r.json", spoil(encode_upstream(RELAY)))
    database.store.create("upstreams/s.json", encode_upstream(replace(RELAY, id="s")))
    database.store.create("upstreams/readme.txt", b"no upstream")
    assert [found.id for found in upstreams(database)] == ["s"]
    change_upstream(database, "r", lambda before: before or RELAY)
    assert [found.id for found in upstreams(database)] == ["r", "s"]


def test_the_registration_of_another_is_refused() -> None:
    with pytest.raises(CorruptError, match="it is upstream 'r'"):
        decode_upstream(encode_upstream(RELAY), "upstreams/s.json")


@pytest.mark.parametrize(
    ("push", "fits"),
    [
        (Push("p", class_name="uat"), "abc"),
        (Push("p", class_name="[u]*"), "abc"),
        (Push("p", host="edge-*"), "ab"),
        (Push("p", site="os*"), "ac"),
        (Push("p", site="*"), "ac"),
        (Push("p", site="rome"), ""),
        (Push("p", host="edge-1", site="oslo", class_name="uat"), "a"),
        (Push("p", host="edge-1", class_name="prod"), ""),
        (Push("p", to="s3://b/farm/shop"), ""),
    ],
)
def test_pushes_mean_readers_by_class_host_and_site(database: FarmDatabase, push: Push, fits: str) -> None:
    reader = Replica("a", "/a", None, None, NOW, "edge-1", "ann", place="/place", class_name="uat", site="oslo")
    readers = (
        reader,
        replace(reader, id="b", host="edge-2", site=""),
        replace(reader, id="c", host="hq", kind=SITE),
        # Nobody knows which place to fill for this one.
        replace(reader, id="d", place=""),
    )
    assert "".join(replica.id for replica in readers if push.matches(replica)) == fits
    add_push(database, push)
    assert pushes(database) == ([push], [])
    assert [decode_replica(encode_replica(replica), f"replicas/{replica.id}.json") for replica in readers] == [*readers]


def _late_taker(database: FarmDatabase) -> Callable[..., bytes]:
    """Return what encodes a document, and takes a claim over before it does so the first time."""
    turns = iter([True])

    def encode(kind: str, content: Mapping[str, object]) -> bytes:
        if next(turns, False):
            assert take_claim(database, "r", 0, "d", "c")
        return encode_document(kind, content)

    return encode


def test_a_slot_has_one_holder(database: FarmDatabase) -> None:
    assert take_claim(database, "r", 0, "a", None)
    assert not take_claim(database, "r", 0, "b", None)
    assert not take_claim(database, "r", 0, "b", "c")
    assert take_claim(database, "r", 0, "b", "a")
    release_claim(database, Claim("r", 0, "a"))
    assert claims(database) == [Claim("r", 0, "b")]
    release_claim(database, Claim("r", 0, "b"))
    assert read_claim(database, "r", 0) is None
    assert take_claim(database, "r", 0, "c", None)
    # Somebody took it over between the look at a claim and its release.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wlc.farm.documents.encode_document", _late_taker(database))
        release_claim(database, Claim("r", 0, "c"))
    assert read_claim(database, "r", 0) == Claim("r", 0, "d")
    # A damaged one has no holder, and whoever finds it may take it.
    database.store.create(claim_path("r", 1), b"torn")
    assert read_claim(database, "r", 1) == Claim("r", 1, "")
    assert take_claim(database, "r", 1, "a", "")


def test_damaged_settings_and_attachments_are_named(database: FarmDatabase) -> None:
    database.store.create(TIERS, b"torn")
    with pytest.warns(UserWarning, match=r"tiers\.json.* Delete memory://hq/shop/tiers\.json: the defaults then apply"):
        assert read_settings(database) == DEFAULTS
    database.store.create("attachment.json", b"torn")
    with pytest.raises(CorruptError, match=r"attachment\.json"):
        attachment_object(database).load()


def test_a_relay_that_was_taken_out_stays_so_and_keeps_what_it_said(database: FarmDatabase) -> None:
    relay = FarmDatabase("shop", MemoryStore("memory://relay/shop", {}))
    first = offer_place(database, relay, Offer("prod", 3, 0.0), None, has_start=False)
    assert (first.state, first.class_name, first.fanout, first.first) == ("pending", "prod", 3, None)
    assert offer_place(database, relay, Offer(None, None, 0.0), 5, has_start=True).state == ACTIVE
    change_upstream(
        database,
        first.id,
        lambda before: replace(
            before or RELAY, transitions=registry.moved_to((before or RELAY).transitions, INACTIVE, "by hand", NOW)
        ),
    )
    last = offer_place(database, relay, Offer(None, 4, 0.0), None, has_start=True)
    assert (last.state, last.class_name, last.fanout, last.first) == (INACTIVE, "prod", 4, 5)
    assert [(t.state, t.cause) for t in last.transitions] == [
        ("pending", "registered"),
        ("active", "holds a whole copy"),
        ("inactive", "by hand"),
    ]


def test_a_hundred_pending_registrations_are_read_and_nobody_waits_for_them(database: FarmDatabase) -> None:
    for number in range(100):
        register(database, Replica(f"p{number}", f"/p{number}", None, None, NOW, "host", "ann"))
        change_upstream(
            database, f"p{number}", lambda _, number=number: replace(RELAY, id=f"p{number}", transitions=())
        )
    tree = read_tree(database)
    assert len(tree.members) == 100
    assert {node.state for node in tree.nodes() if node.id != "origin"} == {"pending"}


@pytest.mark.parametrize("read", range(4))
def test_a_claim_of_the_meantime_is_of_somebody_who_is_there(
    database: FarmDatabase, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """Somebody registers and claims between any two reads of the registry: the slot is not free for others."""
    reads = 0

    def interrupted(store: MemoryStore, *arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == read + 1:
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(MemoryStore, "list", listed)
                register(database, Replica("late", "/late", None, None, NOW, "host", "ann"))
                assert take_claim(database, "origin", 0, "late", None)
        return listed(store, *arguments, **options)

    listed = MemoryStore.list
    monkeypatch.setattr(MemoryStore, "list", interrupted)
    tree = read_tree(database)
    assert all(tree.is_live(claim) for claim in tree.claims)
    assert reads <= 4, "there are more moments to try"
