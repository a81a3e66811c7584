from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.manifest import decode_manifest, encode_manifest
from wlc.farm.model import Column, DataFile, Ddl, Layout, Manifest, Name, Position, SequencePosition, SnapshotTable
from wlc.farm.seal.checksum import checksum

TABLE = Name("main", 'täble "1"')
LAYOUT = Layout((Column("id", "INTEGER", nullable=False, default="nextval('s')"), Column("x", "mood")), ("id",))
MANIFEST = Manifest(
    database="sales",
    position=Position("a1b2", 1040, 42, "c" * 64),
    clock=datetime(2026, 11, 20, 10, 0, 0, 1, UTC),
    catalog="sales",
    schema=(
        Ddl("CREATE TYPE", Name("main", "mood"), "CREATE TYPE mood AS ENUM ('a')"),
        Ddl("CREATE TABLE", TABLE, "CREATE TABLE …\n", layout=LAYOUT),
    ),
    schema_after=(Ddl("CREATE INDEX", Name("main", "i"), "CREATE INDEX i ON …"),),
    tables=(
        SnapshotTable(TABLE, LAYOUT, (DataFile("0.parquet", 5, 77, "e" * 64), DataFile("1.parquet", 0, 7, "f" * 64))),
        SnapshotTable(Name("other", "empty"), LAYOUT, ()),
    ),
    sequences=(SequencePosition(Name("main", "s"), 12),),
    vector={"a1b2": 1040},
)


def forged(change: dict[str, object]) -> bytes:
    document = json.loads(encode_manifest(MANIFEST))["manifest"] | change
    body = b'{"manifest":\n' + json.dumps(document).encode() + b"\n"
    return body + b',"sha256":"' + checksum(body).encode() + b'"}\n'


def test_a_manifest_is_read_as_written() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "x") == MANIFEST
    empty = Manifest("sales", Position("h", 0), MANIFEST.clock, "sales", (), (), ())
    assert decode_manifest(encode_manifest(empty), "x") == empty


def test_the_file_is_one_json_document_whose_last_line_is_the_checksum_of_those_above() -> None:
    content = encode_manifest(MANIFEST)
    document = json.loads(content)
    assert document["sha256"] == checksum(content[: content.rindex(b"\n", 0, -1) + 1])
    assert document["manifest"]["position"] == {"history": "a1b2", "tick": 1040, "batch": 42, "chain": "c" * 64}


def test_every_truncation_and_every_changed_byte_is_corrupt() -> None:
    content = encode_manifest(MANIFEST)
    for index in range(len(content)):
        damaged = bytearray(content)
        damaged[index] ^= 1
        for bad in (content[:index], bytes(damaged)):
            with pytest.raises(CorruptError, match="snapshots/7/manifest"):
                decode_manifest(bad, "snapshots/7/manifest")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"format": 2}, "format 2 is unknown, this version reads 1"),
        ({"vector": {"a b": 1}}, "id of a history"),
    ],
)
def test_forgeries_are_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(CorruptError, match=said):
        decode_manifest(forged(change), "x")


@pytest.mark.parametrize("path", ["../0.parquet", "/etc/passwd", "x.parquet", "00.parquet", "a/0.parquet"])
def test_data_files_lie_beside_the_manifest(path: str) -> None:
    file = DataFile(path, 1, 1, "e" * 64)
    tables = (SnapshotTable(TABLE, LAYOUT, (file,)),)
    with pytest.raises(InvalidError, match="is not a data file of a snapshot"):
        encode_manifest(replace(MANIFEST, tables=tables))
    table = json.loads(encode_manifest(MANIFEST))["manifest"]["tables"][0]
    table["files"][0]["path"] = path
    with pytest.raises(CorruptError, match=r"not a (path inside the farm|data file of a snapshot)"):
        decode_manifest(forged({"tables": [table]}), "x")


def test_tables_and_files_occur_once() -> None:
    for tables in (MANIFEST.tables[:1] * 2, (MANIFEST.tables[0], replace(MANIFEST.tables[0], table=Name("a", "b")))):
        with pytest.raises(InvalidError, match="occurs twice"):
            encode_manifest(replace(MANIFEST, tables=tables))
