"""What people and farms write as text: times, beats, ticks, places, options, types; a value or a refusal by its class."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.options import storage_options, tick_range
from tests.fuzz.profile import EXAMPLES, fuzzed
from tests.unit.farm.test_json_records import STATE
from wlc.dialect import types
from wlc.farm.addresses import without_password
from wlc.farm.clock import format_time, parse_time, read_time
from wlc.farm.config import format_beat, parse_beat
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnsupportedError
from wlc.farm.store import open_store
from wlc.farm.store.options import lay_over, recalled, remembered
from wlr.engine.adapters import locate, target_at
from wlr.engine.replica_state import decode, encode
from wlr.replay.plan.retention import parse_keep
from wlr.spark.read.options import read_options

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
digits = st.sampled_from(["0", "7", "-1", "9" * 20, "9" * 5000, "٣", "1_0", "1e5", "nan", "inf", "0x1", " 5 "])
words = st.sampled_from("now ago h min days weeks : - 2026-11-20 T14:30 Z +25:00 24:00 9999-12-31 0001-01-01".split())
texts = st.text(max_size=30) | st.lists(digits | words | st.just(" "), max_size=6).map("".join)


@fuzzed
@given(texts)
@example("-" + "9" * 400 + "w")
@example("0001-01-01")
@example("9999-12-31T23:59:59-14:00")
def test_times(text: str) -> None:
    try:
        found = parse_time(text, NOW)
    except InvalidError:
        return
    assert found.tzinfo is UTC
    assert read_time(format_time(found)) == found


@fuzzed
@given(texts)
def test_beats_and_keeps(text: str) -> None:
    try:
        beat_s = parse_beat(text)
        assert parse_beat(format_beat(beat_s)) == beat_s >= 0
    except InvalidError:
        pass
    try:
        keep = parse_keep(text)
        assert keep.ticks is None or keep.age is None
    except InvalidError:
        pass


@fuzzed
@given(texts)
@example(":-1")
@example("-0:5")
@example("9" * 5000)
def test_ranges_of_ticks(text: str) -> None:
    try:
        low, high = tick_range(text)
    except InvalidError:
        return
    assert (low, high) != (None, None)
    assert 0 <= (low or 0) <= (high if high is not None else low or 0)


urls = st.text(max_size=40) | st.lists(
    st.sampled_from(
        ["s3://", "file://", "memory://", "parquet://", "postgresql://", "postgres://", "http://", "~", "~nobody at all/", "/", "//"]
        + ["..", ".", "a", "a.duckdb", "[", "]", "@", ":", "?", "#", "%00", "%2e%2e", "\0", "\n", "x" * 300, "\ud800", "user:pw@host/db"]
    ),
    max_size=6,
).map("".join)  # fmt: skip


@fuzzed
@given(urls)
@example("~nobody at all/x")
@example("x" * 5000)
@example("file://[")
@example("s3://")
def test_places(text: str) -> None:
    for read in (locate, open_store, open_database, lambda text: open_database(text, "farm")):
        try:
            found = read(text)
        except FarmError as error:
            assert str(error)
            continue
        assert found is not None


@pytest.mark.slow
@settings(fuzzed, max_examples=EXAMPLES or 40)
@given(urls)
def test_a_replica_is_looked_for_anywhere(text: str) -> None:
    """Of paths and memory only: other stores would be asked over the network."""
    if text.startswith(("postgres", "s3:", "parquet://s3:")):
        return
    try:
        found = target_at(text).find_state()
    except FarmError as error:
        assert str(error)
    else:
        assert found is None


@fuzzed
@given(st.text(max_size=15), st.text(max_size=15), st.text(max_size=15))
def test_passwords_are_not_shown(user: str, password: str, rest: str) -> None:
    secret = f"pa55{password}"
    for hidden in ("@", "/", "?", "#"):
        secret = secret.replace(hidden, "")
        user = user.replace(hidden, "")
    shown = without_password(
        f"postgresql://{user.replace(':', '')}:{secret}@host/{rest.replace('@', '')}?password={secret.replace('&', '')}"
    )
    assert "pa55" not in shown or "pa55" in rest + user


pairs = st.lists(
    st.sampled_from(["a=1", "a.b=2", "a.b.c=3", "a=TRUE", ".=x", "a.=", "=", "", "a", "client_kwargs.x=y"])
    | st.text(max_size=10)
)


@fuzzed
@given(pairs)
def test_storage_options(given_pairs: list[str]) -> None:
    try:
        found = storage_options(given_pairs)
    except InvalidError:
        return
    again = lay_over(recalled(remembered(found or {})), found or {})
    assert again == lay_over(found or {}, found or {}) == (found or {})
    # A name has a value or parts, whichever comes first.
    assert storage_options(given_pairs[::-1]) is not None or not given_pairs


OPTIONS = "table farm tick time changes from_tick to_tick maxBatchesPerTrigger memory partitions pushdown other".split()
options = st.dictionaries(
    st.sampled_from([*OPTIONS, "storage.a", "storage.a.b", "storage."]),
    texts | st.sampled_from(["true", "false", "TRUE", "t", "main.t", "1"]),
    max_size=5,
)


@fuzzed
@given(options)
@example({"table": "t", "tick": "9" * 5000})
def test_options_of_a_spark_source(found: dict[str, str]) -> None:
    try:
        read = read_options({"database": "sales", "farm": "/farm", "table": "t", **found})
    except InvalidError:
        return
    assert read.partitions >= 1
    assert read.stop.tick is None or read.stop.tick >= 0


parts = st.sampled_from(
    [
        "INTEGER",
        "VARCHAR",
        "DECIMAL(10,2)",
        "DECIMAL(٣,1)",
        "ENUM('a', 'b''c')",
        "TIMESTAMP WITH TIME ZONE",
        "GEOMETRY('x')",
    ]
    + ["STRUCT(", "MAP(", "UNION(", "TUPLE(", ")", ", ", "[]", "[3]", "[٣]", "[", "]", '"a b" ', "a ", "'", '"']
    + ["; DROP TABLE t", "--", "\n"]
)
type_texts = st.lists(parts, max_size=12).map("".join) | st.text(max_size=30)


@fuzzed
@given(type_texts)
@example("DECIMAL(٣,1)")
@example("INTEGER[٣]")
def test_types(text: str) -> None:
    try:
        found = types.parse(text)
        storage = types.storage_type(text)
    except UnsupportedError:
        return
    assert found.text.isascii() or not text.isascii()
    assert types.parse(found.text) == found, "the canonical text is a fixed point"
    assert types.storage_type(storage) == storage, "what is stored can be stored as it is"


@pytest.mark.parametrize(
    "text",
    [
        "INTEGER" + "[]" * 50_000,
        "STRUCT(a " * 50_000 + "INTEGER" + ")" * 50_000,
        "STRUCT(" + ", ".join(f"c{number} INTEGER" for number in range(20_000)) + ")",
        "ENUM(" + ", ".join(f"'{number}'" for number in range(50_000)) + ")",
    ],
    ids=["lists", "structs", "members", "values"],
)
def test_types_without_end_take_no_time(text: str) -> None:
    began = time.monotonic()
    try:
        assert types.parse(text).text
    except UnsupportedError as error:
        assert len(str(error)) < 1000
    assert time.monotonic() - began < 120


values = texts | st.sampled_from(
    ['"ab"', "[1]", '["a"]', "{}", "null", '{"at": 5}', "[" * 100_000, "1" * 5000, "Infinity", "true"]
)


@fuzzed
@given(st.dictionaries(st.sampled_from(sorted(encode(STATE))), values, max_size=2))
@example({"accepted": "[" * 100_000})
@example({"accepted": '["a"]'})
@example({"patterns": '"ab"'})
@example({"beat_s": "nan"})
@example({"position": "9" * 5000})
def test_the_state_in_a_database(changed: dict[str, str]) -> None:
    sound = encode(STATE)
    assert decode(sound, "x", is_unlocked=False).failure == STATE.failure
    try:
        found = decode({**sound, **changed}, "x", is_unlocked=False)
    except CorruptError as error:
        assert "x" in str(error)
        return
    assert decode(encode(found), "x", is_unlocked=False) == found
    assert all(type(tick) is int for tick in found.accepted)
    assert found.position.tick >= 0 <= found.beat_s
