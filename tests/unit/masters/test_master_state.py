"""What a master remembers: typed fields, written and read in one place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from wlc.farm.config import STARTED
from wlc.farm.errors import CorruptError
from wlc.farm.model import Batch, Origin, Position, Transaction
from wlc.masters.master_state import Fence, MasterState, changes, decode, encode

NOON = datetime(2026, 11, 20, 12, 0, 0, 1, tzinfo=UTC)
FIRST = MasterState(
    farm="s3://bucket/farm",
    name="sales",
    history="a" * 16,
    batch=0,
    tick=0,
    chain="",
    clock=None,
    vector={},
    parent=None,
    beat_s=300.0,
    logs="wlc_logs",
)
LATER = replace(
    FIRST,
    batch=3,
    tick=41,
    chain="c" * 64,
    clock=NOON,
    vector={"b" * 16: 7},
    parent=Origin("b" * 16, 7),
    beat_s=0.5,
    options={"endpoint_url": "http://localhost:9000"},
    state=STARTED,
    began=NOON,
    fence=Fence("another master", "stop it", datetime(2026, 11, 20, 10, tzinfo=UTC)),
)


@pytest.mark.parametrize("state", [FIRST, LATER], ids=["first", "later"])
def test_what_is_written_is_read(state: MasterState) -> None:
    assert decode(encode(state), "sales.duckdb") == state
    assert decode({**encode(state), "slot": "of a source's own"}, "sales.duckdb") == state


def test_nothing_was_never_a_master() -> None:
    assert decode({}, "sales.duckdb") is None


def test_secrets_are_not_written() -> None:
    written = encode(replace(FIRST, options={"secret": "hush", "anon": False}))
    assert "hush" not in str(written)
    assert "hush" not in repr(replace(FIRST, options={"secret": "hush"}))


@pytest.mark.parametrize("key, value", [("tick", "many"), ("clock", "noon"), ("vector", "{"), ("parent", '{"a": 1}')])
def test_damage_is_named(key: str, value: str) -> None:
    missing = encode(LATER)
    del missing[key]
    for damaged in ({**encode(LATER), key: value}, missing):
        with pytest.raises(CorruptError, match=r"the state of sales\.duckdb"):
            decode(damaged, "sales.duckdb")


def test_only_what_changed_is_written() -> None:
    assert changes(LATER, LATER) == {}
    assert changes(LATER, replace(LATER, beat_s=60.0)) == {"beat_s": "60"}
    assert changes(None, FIRST) == encode(FIRST)


def test_a_published_batch_moves_the_state_on() -> None:
    transactions = (Transaction(42, "ann", NOON, NOON), Transaction(43, "ann", NOON, None))
    batch = Batch("sales", 4, LATER.history, 42, 43, LATER.chain, "sales", transactions, vector={LATER.history: 43})
    after = LATER.after(batch, "d" * 64)
    assert (after.batch, after.tick, after.chain, after.parent) == (4, 43, "d" * 64, None)
    assert after.reached().position == Position(LATER.history, 43, 4, "d" * 64)
    assert (after.config().batches, after.config().tick, after.config().write) == (5, 43, NOON)
    rolled_back = replace(batch, transactions=transactions[1:])
    assert FIRST.after(rolled_back, "").clock is None


def test_a_snapshot_before_the_first_batch_is_not_later_than_the_first_commit() -> None:
    assert replace(FIRST, began=NOON).reached().clock == NOON
    assert replace(FIRST, began=NOON).reached().vector == {}
    assert LATER.reached().vector == {"b" * 16: 7, LATER.history: 41}
