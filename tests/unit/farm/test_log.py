from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.log import decode_batch, encode_batch
from wlc.farm.model import (
    Batch,
    Change,
    Clear,
    Column,
    CreatedObject,
    DataFile,
    DbObject,
    Ddl,
    Digest,
    Handover,
    Layout,
    Name,
    Origin,
    RowRejected,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    TableFile,
    Taken,
    Transaction,
)
from wlc.farm.seal.checksum import LINES_END, checksum, with_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

TIME = datetime(2026, 11, 20, 10, 0, 0, 1, UTC)
TABLE = Name("main", "t")
LAYOUT = Layout((Column("id", "INTEGER", nullable=False), Column("twice", "INTEGER", generated="id * 2")), ("id",))
PATH = "sales_000000000042.d/0.parquet"
CREATE = Ddl(
    "CREATE TABLE",
    TABLE,
    "CREATE TABLE t (id INTEGER PRIMARY KEY, …)",
    layout=LAYOUT,
    does=(CreatedObject(DbObject("TABLE", TABLE)),),
)

BATCH = Batch(
    database="sales",
    number=42,
    history="a1b2",
    first=7,
    last=9,
    previous="0" * 64,
    catalog="sales",
    transactions=(
        Transaction(7, "ann", TIME, TIME, (CREATE, Change(TABLE, PATH, 2, 0), SequencePosition(Name("main", "s"), -3))),
        Transaction(8, 'o"ö\n\\', TIME, None),
        Transaction(9, "bob", TIME, TIME, (Clear(TABLE, 5), Change(TABLE, PATH, 1, 1)), Origin("ffff", 3)),
    ),
    files=(TableFile(DataFile(PATH, 4, 1000, "e" * 64), TABLE, LAYOUT),),
    vector={"a1b2": 9, "ffff": 3},
    parent=Origin("0000", 6),
    digests={Name("main", "t"): Digest(2, 17)},
    undigested=frozenset({Name("main", "bag")}),
)

# What only databases with several masters use.
REJECTED = RowRejected(
    *(TABLE, "ffff", 3, 1, {"id": 1}, "UPDATE_ROW", "constraint", None),
    old={"id": 1, "v": "ö", "b": True},
    new={"id": 1, "v": None, "b": False},
    local=None,
    dependent=True,
    more=4,
)
READ_PATH, REFRESH_PATH = PATH.replace("/0.", "/1."), PATH.replace("/0.", "/2.")
SEVERAL = replace(
    BATCH,
    term=3,
    transactions=(
        replace(
            BATCH.transactions[0],
            records=(*BATCH.transactions[0].records, RowsRead(TABLE, READ_PATH, 2, exclusive=True)),
            after=5,
        ),
        BATCH.transactions[1],
        replace(
            BATCH.transactions[2],
            records=(*BATCH.transactions[2].records, RowsRefreshed(TABLE, REFRESH_PATH, 1, absent=True), REJECTED),
            origin=Origin("ffff", 3, TIME),
            after=0,
        ),
    ),
    files=tuple(
        TableFile(DataFile(path, rows, 1000, "e" * 64), TABLE, LAYOUT)
        for path, rows in ((PATH, 4), (READ_PATH, 2), (REFRESH_PATH, 1))
    ),
    own=7,
    handover=Handover("oslo", 4),
    taken=(Taken("bergen", "ffff", 3, 2, "c" * 64),),
)


def sealed(lines: list[Any]) -> bytes:
    """A log file of these lines with a right checksum, as someone who knows the format could forge it."""
    body = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
    return body + b'{"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def lines_of(batch: Batch) -> list[Any]:
    return [json.loads(line) for line in encode_batch(batch).splitlines()[:-1]]


def test_a_batch_is_read_as_written() -> None:
    assert decode_batch(encode_batch(BATCH), "x") == BATCH
    smallest = replace(BATCH, transactions=BATCH.transactions[1:2], first=8, last=8, vector={"a1b2": 8}, files=())
    smallest = replace(smallest, parent=None, digests={}, previous="")
    assert decode_batch(encode_batch(smallest), "x") == smallest


def test_the_file_is_json_lines_closed_by_the_checksum_of_those_above() -> None:
    lines = encode_batch(BATCH).split(b"\n")
    kinds = [next(iter(json.loads(line))) for line in lines[:-1]]
    assert kinds == (
        ["batch", "begin", "ddl", "change", "sequence", "commit", "begin", "rollback"]
        + ["begin", "clear", "change", "commit", "end", "sha256"]
    )
    assert lines[-1] == b""
    assert json.loads(lines[-2]) == {"sha256": checksum(b"\n".join(lines[:-2]) + b"\n")}
    assert json.loads(lines[0]) == {
        "batch": {
            "format": 1,
            "database": "sales",
            "number": 42,
            "history": "a1b2",
            "first": 7,
            "last": 9,
            "previous": "0" * 64,
            "catalog": "sales",
            "parent": {"history": "0000", "tick": 6},
        }
    }


def test_the_specification_shows_the_lines_as_they_are() -> None:
    text = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
    block = text.partition("```json\n")[2].partition("```")[0].replace("[…]", "[]")
    shown = {kind: content for line in block.splitlines() for kind, content in json.loads(line).items()}
    written = {kind: content for line in encode_batch(BATCH).splitlines() for kind, content in json.loads(line).items()}
    assert shown.keys() == written.keys()
    for kind in shown.keys() - {"sha256"}:
        assert shown[kind].keys() == written[kind].keys()
        # Every key of a line is explained in the table below it.
        assert all(f"`{key}`" in text for key in written[kind])


def test_keys_of_several_masters_are_read_as_written() -> None:
    read = decode_batch(encode_batch(SEVERAL), "x")
    assert read == SEVERAL
    assert encode_batch(read) == encode_batch(SEVERAL)


def test_keys_of_several_masters_are_explained_and_written_only_where_they_are_used() -> None:
    text = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
    for line in lines_of(SEVERAL):
        for kind, content in line.items():
            assert all(f"`{key}`" in text for key in (kind, *content))
    new = {"term", "after", "own", "handover", "taken"}
    assert not any(content.keys() & new for line in lines_of(BATCH) for content in line.values())


@pytest.mark.parametrize("batch", [BATCH, SEVERAL])
def test_info_is_ignored_and_every_other_unknown_key_is_refused(batch: Batch) -> None:
    for index, line in enumerate(lines_of(batch)):
        ((kind, content),) = line.items()
        lines = lines_of(batch)
        lines[index] = {kind: {**content, "info": {"any": ["thing"]}}}
        assert decode_batch(sealed(lines), "x") == batch
        lines[index] = {kind: {**content, "later": 1}}
        with pytest.raises(CorruptError, match=f"line {index + 1}: key 'later' is unknown|key 'later' is unknown"):
            decode_batch(sealed(lines), "x")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda lines: lines[1]["begin"].update(after=7), "transaction 7 began after itself"),
        (lambda lines: lines[-1]["end"].update(own=10), "own tick 10 is after the last one"),
        (lambda lines: lines[-1]["end"]["taken"].extend(lines[-1]["end"]["taken"]), "taken from twice"),
        (lambda lines: lines[0]["batch"]["parent"].update(committed=None), "key 'committed' is unknown"),
        (lambda lines: lines[5]["read"].update(rows=1), "has 2 rows, its transactions have 1"),
        (lambda lines: lines[5]["read"].update(path=PATH), "cannot have a change"),
        (lambda lines: lines[5]["read"].update(path=REFRESH_PATH), "two kinds of records"),
        (lambda lines: lines[9]["begin"]["origin"].update(committed="now"), "not a time"),
        (lambda lines: lines.insert(8, lines[5]), "rolled back has records"),
        (lambda lines: lines[13]["rejected"].update(old={"id": [1]}), "is not an image of a row"),
        (lambda lines: lines[13]["rejected"].update(key=None), "is not an object"),
    ],
)
def test_forged_keys_of_several_masters_are_named(change: Callable[[list[Any]], None], said: str) -> None:
    lines = lines_of(SEVERAL)
    change(lines)
    with pytest.raises(CorruptError, match=said):
        decode_batch(sealed(lines), "x")


def test_every_truncation_is_corrupt_and_named() -> None:
    content = encode_batch(BATCH)
    for length in range(len(content)):
        with pytest.raises(CorruptError, match="logs/sales_42") as caught:
            decode_batch(content[:length], "logs/sales_42")
        assert caught.value.path == "logs/sales_42"


def test_every_changed_byte_is_corrupt() -> None:
    content = encode_batch(BATCH)
    for index in range(len(content)):
        for bit in (1, 32, 128):
            damaged = bytearray(content)
            damaged[index] ^= bit
            with pytest.raises(CorruptError):
                decode_batch(bytes(damaged), "x")


def at(index: int, kind: str, key: str, value: object) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        lines[index][kind][key] = value

    return change


def file_at(key: str, value: object) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        lines[-1]["end"]["files"][0][key] = value

    return change


@pytest.mark.parametrize(
    "change, said",
    [
        (at(0, "batch", "database", "../x"), "line 14?.*cannot name a database"),
        (at(0, "batch", "first", 6), "ticks do not rise"),
        (at(0, "batch", "last", 10), "ticks do not rise"),
        (at(1, "begin", "tick", 8), "transaction 8 was expected"),
        (at(1, "begin", "started", "2026-11-20"), "line 6: '2026-11-20' is not a time"),
        (at(1, "begin", "origin", {"history": "x"}), "no 'tick'"),
        (at(3, "change", "added", 3), "has 4 rows, its transactions have 5"),
        (at(3, "change", "path", "other"), "transaction 7 cannot have a change of main.t in 'other'"),
        (at(3, "change", "table", ["main", "u"]), "cannot have a change of main.u"),
        (at(3, "change", "table", ["main"]), "not a name"),
        (at(-1, "end", "transactions", 2), "number of transactions"),
        (at(-1, "end", "vector", {}), "vector"),
        (file_at("path", "/etc/passwd"), "not a path inside the farm"),
        (file_at("path", "sales_000000000042.d/../../x"), "not a path inside the farm"),
        (file_at("path", "sales_000000000041.d/0.parquet"), "not the next data file of batch 42"),
        (lambda lines: lines.insert(3, {"grant": {}}), "line 4: 'grant' where a record"),
        (lambda lines: lines.insert(3, lines[3]), "transaction 7 cannot have a change"),
        (lambda lines: lines.insert(3, {"change": 1}), "not an object"),
        (lambda lines: lines.insert(3, [1]), "line 4: not a JSON object with one key"),
        (lambda lines: lines.append({"more": {}}), "number of transactions or lines"),
        (lambda lines: lines.pop(5), "line 6: 'begin' where a record, commit or rollback"),
        (lambda lines: lines.pop(0), "not the header"),
        (lambda lines: lines.pop(), "ends too early"),
        (lambda lines: lines.insert(7, {"clear": {"table": ["main", "t"], "removed": 1}}), "rolled back has records"),
    ],
)
def test_forgeries_are_named_with_their_line(change: Callable[[list[Any]], None], said: str) -> None:
    lines = lines_of(BATCH)
    change(lines)
    with pytest.raises(CorruptError, match=said):
        decode_batch(sealed(lines), "x")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"begin":{"tick":1' + b"0" * 9999 + b"}}",
        b'{"begin":{"tick":NaN}}',
        b'{"begin":{"tick":8,"user":"\\udc00","started":"2026-11-20T10:00:00.000001Z"}}',
    ],
)
def test_hostile_json_and_half_a_surrogate_pair_are_corrupt(line: bytes) -> None:
    body = encode_batch(BATCH).split(b"\n")[0] + b"\n" + line + b"\n"
    with pytest.raises(CorruptError, match="line 2"):
        decode_batch(body + b'{"sha256":"' + checksum(body).encode() + b'"}\n', "x")


def test_what_no_reader_would_take_is_not_written() -> None:
    wrong = [
        replace(BATCH, transactions=()),
        replace(BATCH, first=1),
        replace(BATCH, vector={}),
        replace(BATCH, files=()),
        replace(BATCH, format=2),
        replace(BATCH, database="a/b"),
        replace(BATCH, catalog="\ud800"),
        replace(BATCH, files=BATCH.files * 2),
    ]
    for batch in wrong:
        with pytest.raises(InvalidError):
            encode_batch(batch)


@pytest.mark.parametrize(
    "written, twice",
    [
        ('{"begin":{"tick":8,', '{"begin":{"tick":8,"tick":8,'),
        ('{"commit":{"tick":7,', '{"commit":{"tick":8,"tick":7,'),
    ],
)
def test_a_key_is_there_once(written: str, twice: str) -> None:
    """Two readers need not take the same one of two values."""
    body = encode_batch(BATCH).decode().rpartition('{"sha256"')[0]
    assert written in body
    changed = body.replace(written, twice, 1).encode()
    with pytest.raises(CorruptError, match="is there twice"):
        decode_batch(with_checksum(changed, LINES_END), "x")
