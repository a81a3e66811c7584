"""Registrations: what older versions wrote is read, and states follow each other, also those of who is paused."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from wlc.farm.clock import utc_now
from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.documents import encode_document
from wlc.farm.errors import CorruptError
from wlc.farm.model import Position
from wlc.farm.paths import TIERS
from wlc.farm.registry import Replica, decode_replica, keep_alive, register, replicas
from wlc.masters.prune import prune_database
from wlc.masters.retention import children
from wlc.tiers.listing import readers
from wlc.tiers.overview import tier_tree
from wlc.tiers.tier_settings import DEFAULTS, decode_settings, encode_settings, read_settings
from wlc.tiers.tree import read_tree

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
POSITION = Position("h", 3, 2, "c" * 64)
ME = Replica("old", "/old.duckdb", POSITION, NOW, NOW, "host", "ann")
# What the first version wrote: nothing of upstreams, classes, intervals and states.
FIRST: dict[str, Any] = {
    "format": 1,
    "id": "old",
    "target": "/old.duckdb",
    "position": {"history": "h", "tick": 3, "batch": 2, "chain": "c" * 64},
    "clock": "2026-11-20T12:00:00.000000Z",
    "seen": "2026-11-20T12:00:00.000000Z",
    "host": "host",
    "user": "ann",
}
_numbers = count()


@pytest.fixture
def database() -> FarmDatabase:
    made = open_database(f"memory://registry-{next(_numbers)}/shop")
    made.create_config(first_config("shop"))
    return made


def states(database: FarmDatabase) -> list[tuple[str, str]]:
    (known,) = replicas(database)
    return [(transition.state, transition.cause) for transition in known.transitions]


@pytest.mark.parametrize("optional", [{}, {"kind": "relay"}, {"info": {"of": "a version to come"}}])
def test_firstfile_rollout_a_registration_without_newer_keys_is_read(
    database: FarmDatabase, optional: dict[str, Any]
) -> None:
    database.store.create("replicas/old.json", encode_document("replica", {**FIRST, **optional}))
    (known,) = replicas(database)
    assert replace(known, seen=NOW) == replace(ME, kind=optional.get("kind", "replica"))
    # It counts as everybody does: for pruning, in the tree, among those who choose.
    assert [known.id for known in children(replicas(database))] == ["old"]
    (member,) = tier_tree(database.url).members[1:]
    assert (member.id, member.state, member.tick, member.interval_s) == ("old", "active", 3, None)
    assert [node.id for node in read_tree(database).nodes()] == ["origin"]
    # Its holder goes on with this version, which says what the first one did not.
    kept = keep_alive(database, "old", None)
    assert kept is not None
    assert (kept[0].position, kept[0].transitions) == (POSITION, ())
    register(database, replace(ME, seen=NOW + timedelta(hours=1)))
    assert states(database) == [("active", "goes on")]


def test_keepalive_v2_a_key_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(CorruptError, match="keepalive_v2"):
        decode_replica(encode_document("replica", {**FIRST, "keepalive_v2": True}), "replicas/old.json")


def test_verify_tunable_defaults_a_setting_that_the_file_lacks_has_its_default(database: FarmDatabase) -> None:
    changed = encode_settings(replace(DEFAULTS, fanout=3, fanouts={"a": 1}, classes="low<high"))
    content = json.loads(changed)["tiers"]
    for name in ("push_list_s", "candidates"):
        del content[name]
    assert decode_settings(encode_document("tiers", content), TIERS) == decode_settings(changed, TIERS)
    database.store.create(TIERS, encode_document("tiers", {"format": 1, "fanouts": {}, "keepalive_s": 30}))
    assert read_settings(database) == replace(DEFAULTS, keepalive_s=30.0)


def test_who_is_paused_is_inactive_and_never_stuck(database: FarmDatabase) -> None:
    def said(minutes: int, **how: Any) -> None:
        register(database, replace(ME, seen=NOW + timedelta(minutes=minutes)), **how)

    def marks() -> tuple[str, ...]:
        (member,) = tier_tree(database.url).members[1:]
        return member.marks

    # There is more to read.
    database.change_config(lambda config: replace(config, batches=9, tick=20))
    said(0)
    said(600)
    assert marks() == ("stuck",)
    said(601, is_paused=True)
    said(602, is_paused=True, failure="transaction 4 failed")
    assert marks() == ()
    assert tier_tree(database.url).stuck == ()
    said(603)
    assert states(database) == [("active", "holds a position"), ("inactive", "paused"), ("active", "goes on")]


def test_who_is_paused_before_it_holds_anything_is_pending_again(database: FarmDatabase) -> None:
    for is_paused in (False, True, False, False):
        register(database, replace(ME, position=None), is_paused=is_paused)
    assert states(database) == [("pending", "registered"), ("inactive", "paused"), ("pending", "goes on")]


@pytest.mark.parametrize("wrong", [timedelta(days=-4000), timedelta(days=4000)])
def test_a_clock_that_is_wrong_or_was_set_lets_pruning_neither_forget_nor_wait_for_ever(
    tmp_path: Path, wrong: timedelta
) -> None:
    database = open_database(str(tmp_path / "shop"))
    database.create_config(first_config("shop"))
    register(database, replace(ME, seen=utc_now()))
    register(database, replace(ME, seen=utc_now() + wrong))
    assert prune_database(database).overdue == ()
    assert [reader.is_overdue for reader in readers("shop", str(tmp_path))] == [False]
    # Nobody heard of it for eight days.
    (file,) = tmp_path.rglob("old.json")
    os.utime(file, times=(before := time.time() - 8 * 86400, before))
    assert [replica.id for replica in prune_database(database).overdue] == ["old"]
    assert [reader.is_overdue for reader in readers("shop", str(tmp_path))] == [True]
