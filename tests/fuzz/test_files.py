"""Files that others wrote: any bytes are refused as corrupt, and whatever is accepted can be written and read again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.profile import broken, fuzzed, mutated, sealed, text_of
from tests.unit.farm.test_json_records import BATCH, DOCUMENTS, LAYOUT, NOW, PATH, SHA, TABLE
from wlc.farm.config import decode_config, encode_config
from wlc.farm.errors import CorruptError
from wlc.farm.log import decode_batch, encode_batch
from wlc.farm.manifest import decode_manifest, encode_manifest
from wlc.farm.model import (
    Change,
    Config,
    DataFile,
    Manifest,
    Origin,
    TableFile,
    Transaction,
)
from wlc.farm.registry import Replica, decode_replica, encode_replica
from wlr.engine.parquet.folder import (
    Pointer,
    Version,
    decode_pointer,
    decode_version,
    encode_pointer,
    encode_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Of two tables and users, with columns of every kind.
FIRST, SECOND = PATH.format(0), PATH.format(1)
RUN = encode_batch(
    replace(
        BATCH,
        transactions=(
            *(
                Transaction(
                    tick,
                    "ann" if tick % 3 else "bob",
                    NOW + timedelta(microseconds=tick * tick),
                    NOW + timedelta(seconds=1),
                    (Change(TABLE, FIRST, 1, 0), *([Change(TABLE, SECOND, tick, 2)] if tick % 2 else [])),
                    xid=tick,
                )
                for tick in range(5, 14)
            ),
            Transaction(17, "bob", NOW, None),
        ),
        last=17,
        files=tuple(
            TableFile(DataFile(path, rows, 731, SHA), TABLE, LAYOUT) for path, rows in ((FIRST, 9), (SECOND, 55))
        ),
        vector={"h1": 17, "h0": 3},
    ),
    runs_from=0,
)
CONFIG = Config("snapshots/000000000007", "wlc_logs", 1, 3, 0.5, NOW, "sales", "h1", 9, Origin("h0", 4))


@dataclass(frozen=True)
class Format:
    """A kind of file; `start` is what its last line begins with."""

    valid: bytes
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    start: bytes


def json_format(value: Any, encode: Any, decode: Any, where: str) -> Format:
    return Format(encode(value), lambda data: decode(data, where), encode, b',"sha256":"')


FORMATS = {
    "log file": Format(
        encode_batch(BATCH), lambda d: decode_batch(d, "f/shop_000000000002"), encode_batch, b'{"sha256":"'
    ),
    "log file with a run": Format(RUN, lambda d: decode_batch(d, "f/shop_000000000002"), encode_batch, b'{"sha256":"'),
    "manifest": json_format(DOCUMENTS["manifest"](Manifest), encode_manifest, decode_manifest, "f/manifest.json"),
    "registration": json_format(DOCUMENTS["replica"](Replica), encode_replica, decode_replica, "f/id.json"),
    "lake's manifest": json_format(
        DOCUMENTS["manifest"](Version), encode_version, decode_version, "lake/manifests/1.json"
    ),
    "lake's pointer": json_format(DOCUMENTS["pointer"](Pointer), encode_pointer, decode_pointer, "lake/wlr.pointer"),
}
LOGS = [kind for kind in FORMATS if kind.startswith("log file")]
CONFIG_FORMAT = Format(encode_config(CONFIG), lambda data: decode_config(data, "f/wlc.config"), encode_config, b"")


def check(found: Format, data: bytes) -> Any:
    """Read a file; None if it is refused as it should be, otherwise what it says can be written and read again."""
    try:
        value = found.decode(data)
    except CorruptError as error:
        assert error.path
        assert str(error).encode(), "the message can be shown"
        return None
    assert found.decode(found.encode(value)) == value
    return value


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FORMATS, "configuration"])
@fuzzed
@given(data=st.data())
def test_bytes_that_were_changed_are_corrupt(kind: str, data: Any) -> None:
    found = FORMATS.get(kind, CONFIG_FORMAT)
    assert check(found, found.valid) is not None
    changed = data.draw(st.binary(max_size=200) | broken(found.valid))
    if changed != found.valid:
        assert check(found, changed) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in LOGS])
@fuzzed
@given(data=st.data())
def test_a_document_that_a_hostile_writer_sealed(kind: str, data: Any) -> None:
    found = FORMATS[kind]
    name, _, rest = found.valid.partition(b":\n")
    document = json.loads(rest[: rest.rindex(found.start)])
    body = name + b":\n" + text_of(data.draw(mutated(document))) + b"\n"
    check(found, sealed(body, found.start))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOGS)
@fuzzed
@given(data=st.data())
def test_a_log_file_that_a_hostile_writer_sealed(kind: str, data: Any) -> None:
    found = FORMATS[kind]
    lines = [json.loads(line) for line in found.valid.splitlines()[:-1]]
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = data.draw(mutated(lines[at]))
    order = data.draw(st.just(range(len(lines))) | st.permutations(range(len(lines))))
    body = b"".join(text_of(lines[number]) + b"\n" for number in order)
    check(found, sealed(body, found.start))


@fuzzed
@given(data=st.data())
def test_bytes_that_a_hostile_writer_sealed(data: Any) -> None:
    found = FORMATS[data.draw(st.sampled_from(list(FORMATS)))]
    body = found.valid[: found.valid.rindex(found.start)]
    check(found, sealed(data.draw(broken(body)), found.start))


@fuzzed
@given(
    key=st.integers(0, 10), value=st.text(max_size=30) | st.sampled_from(["9" * 5000, "1e400", "nan", "٣", "-0", "1_0"])
)
def test_a_configuration_that_a_hostile_writer_sealed(key: int, value: str) -> None:
    lines = CONFIG_FORMAT.valid.decode().splitlines()[:-1]
    lines[key] = f"{lines[key].partition('=')[0]}={value}"
    body = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
    check(CONFIG_FORMAT, body + b"sha256=" + sealed(body, b"")[len(body) : len(body) + 64] + b"\n")


def test_nesting_without_end_is_corrupt() -> None:
    for found in FORMATS.values():
        for deep in (b"[" * 200_000, b'{"a":' * 200_000):
            assert check(found, sealed(deep + b"\n", found.start)) is None
