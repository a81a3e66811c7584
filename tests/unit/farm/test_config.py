from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.config import decode_config, encode_config, parse_beat, typed_beat
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.model import Config, Origin

CONFIG = Config(
    snapshot="snapshots/000000001040",
    logs="wlc_logs",
    state=1,
    batches=43,
    beat_s=300.0,
    write=datetime(2026, 11, 20, 10, 0, 0, 1, UTC),
    name="sales",
    history="a1b2",
    tick=1040,
    parent=Origin("0f", 1000),
)


def test_the_file_looks_as_the_format_says() -> None:
    assert encode_config(CONFIG).decode().splitlines() == [
        "snapshot=snapshots/000000001040",
        "logs=wlc_logs",
        "state=1",
        "batches=43",
        "beat=300",
        "write=2026-11-20T10:00:00.000001Z",
        "name=sales",
        "history=a1b2",
        "tick=1040",
        "parent=0f:1000",
        "format=1",
        "sha256=" + hashlib.sha256(encode_config(CONFIG).rpartition(b"sha256=")[0]).hexdigest(),
    ]


def test_a_value_that_is_another_than_was_written_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="checksum"):
        decode_config(encode_config(CONFIG).replace(b"tick=1040", b"tick=1041"), "x")


@given(
    st.sampled_from(["", "snapshots/000000000001"]),
    st.sampled_from(["wlc_logs", "/disk two/logs", "s3://bucket/a=b"]),
    st.sampled_from([1, 2]),
    st.integers(1, 10**12 - 1),
    st.floats(0, 1e9),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.builds(Origin, st.just("h-1"), st.integers(0, 10**12 - 1)),
)
def test_what_is_written_is_read(
    snapshot: str, logs: str, state: int, batches: int, beat_s: float, write: datetime | None, parent: Origin | None
) -> None:
    config = Config(snapshot, logs, state, batches, beat_s, write, "sales", "h", 7, parent)
    assert decode_config(encode_config(config), "x") == config


def test_every_truncation_is_corrupt() -> None:
    content = encode_config(CONFIG)
    for length in range(len(content)):
        with pytest.raises(CorruptError):
            decode_config(content[:length], "x")


@pytest.mark.parametrize(
    "line, said",
    [
        ("format=2", "format '2' is unknown, this version reads 1"),
        ("state=3", "state='3'"),
        ("beat=-1", "beat='-1'"),
        ("beat=nan", "beat='nan'"),
        ("tick=x", "tick='x'"),
        ("batches=0", "batches='0'"),
        ("write=yesterday", "write='yesterday'"),
        ("snapshot=../../etc", "snapshot='../../etc'"),
        ("name=a/b", "name='a/b'"),
        ("history=", "history=''"),
        ("parent=0f", "parent='0f'"),
    ],
)
def test_bad_values_are_named(line: str, said: str) -> None:
    key = line.partition("=")[0]
    lines = [line if kept.startswith(f"{key}=") else kept for kept in encode_config(CONFIG).decode().splitlines()]
    with pytest.raises(CorruptError, match=said):
        decode_config(("\n".join(lines) + "\n").encode(), "x")


def test_double_unknown_and_missing_keys_are_corrupt() -> None:
    content = encode_config(CONFIG)
    for changed in (content + b"tick=1\n", content + b"colour=red\n", content.replace(b"tick=1040\n", b"")):
        with pytest.raises(CorruptError):
            decode_config(changed, "x")


def test_what_cannot_be_read_back_is_not_written() -> None:
    for config in (replace(CONFIG, logs="a\nstate=2"), replace(CONFIG, beat_s=float("inf")), replace(CONFIG, state=5)):
        with pytest.raises(InvalidError, match="cannot write this configuration"):
            encode_config(config)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon", "", "1e99"])
def test_bad_beats_are_refused(text: str) -> None:
    for read in (parse_beat, typed_beat):
        with pytest.raises(InvalidError, match="is not a beat"):
            read(text)


@pytest.mark.parametrize("text, beat_s", [("0", 0), ("1.5", 1.5), ("1s", 1), ("5m", 300), ("2 hours", 7200)])
def test_people_may_type_a_unit_with_a_beat(text: str, beat_s: float) -> None:
    assert typed_beat(text) == beat_s
