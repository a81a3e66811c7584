"""Old farms stay readable: a farm of every format ever released, committed here, is read and means what it meant."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlr
from tests.compat.write import FOLDER, HEALTH, REJECTED, sealed_options, write
from tests.scratch import attached
from wlc.farm.config import decode_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError
from wlc.farm.health import read_health
from wlc.farm.history import entries
from wlc.farm.log import decode_batch
from wlc.farm.manifest import decode_manifest
from wlc.farm.model import (
    AlteredObject,
    Change,
    Config,
    CreatedObject,
    DbObject,
    Ddl,
    Handover,
    Name,
    Origin,
    Position,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    Taken,
    Transaction,
)
from wlc.farm.registry import SITE, decode_replica, replicas
from wlc.farm.vectors import first_fall

if TYPE_CHECKING:
    from pathlib import Path

FARM = str(FOLDER / "farm" / "shop")
SEALED = str(FOLDER / "sealed" / "shop")

# What table t holds at each tick at which it changes.
CONTENT = {
    1: [(1, "a", "1.50"), (2, "b", None), (3, "ç", "3.25")],
    3: [(1, "a", "1.50"), (2, "B", None), (3, "ç", "3.25")],
    4: [(1, "a", "1.50"), (2, "B", None), (3, "ç", "3.25"), (4, "d", "4.00")],
    5: [(1, "a", "1.50"), (2, "B", None), (4, "d", "4.00")],
    6: [(5, "e", "5.00"), (6, None, None)],
    7: [(5, "e", "5.00", "?"), (6, None, None, "?")],
    8: [(5, "e", "5.00", "new"), (6, None, None, "?")],
    9: [(5, "e", "5.00", "new"), (6, None, None, "?"), (7, "9", "7.00", None)],
    13: [(5, "e", "5.00", "new"), (6, None, None, "?"), (7, "13", "7.00", None)],
    17: [(5, "e", "5.00", "new"), (6, None, None, "?"), (7, "17", "7.00", None)],
}


def time(second: int, microsecond: int = 1) -> datetime:
    return datetime(2026, 11, 20, 10, 0, second, microsecond, UTC)


@pytest.fixture
def database() -> FarmDatabase:
    return open_database(FARM)


def content(replica: Path) -> list[tuple[object, ...]]:
    with attached(replica) as connection:
        query = "SELECT * REPLACE (CAST(price AS VARCHAR) AS price) FROM t ORDER BY id"
        return connection.execute(query).fetchall()


def test_configuration(database: FarmDatabase) -> None:
    parent = Origin("h2", 16)
    assert database.config() == Config("", "wlc_logs", 1, 7, 12.5, time(20), "shop", "h3", 20, parent)


def test_health(database: FarmDatabase) -> None:
    assert read_health(database) == HEALTH


def test_every_line_of_the_log(database: FarmDatabase) -> None:
    shown = [
        (e.batch, e.transaction.tick, e.what, e.object and str(e.object), e.added, e.removed) for e in entries(database)
    ]
    assert shown == [
        (1, 1, "CREATE TABLE", "main.t", None, None),
        (1, 1, "CREATE SEQUENCE", "main.s", None, None),
        (1, 1, "change", "main.t", 3, 0),
        (1, 1, "sequence", "main.s", None, None),
        (1, 2, "rollback", None, None, None),
        (1, 3, "change", "main.t", 1, 1),
        (1, 3, "CREATE INDEX", "main.by_name", None, None),
        (2, 4, "change", "main.t", 1, 0),
        (2, 4, "read", "main.t", None, None),
        (2, 5, "change", "main.t", 0, 1),
        (2, 5, "refresh", "main.t", None, None),
        (2, 6, "clear", "main.t", 0, 3),
        (2, 6, "change", "main.t", 2, 0),
        (2, 6, "refresh", "main.t", None, None),
        (2, 6, "rejected", "main.t", None, None),
        (3, 7, "ALTER TABLE", "main.t", None, None),
        (3, 7, "sequence", "main.s", None, None),
        (4, 8, "CREATE FUNCTION", "main.f", None, None),
        (4, 8, "change", "main.t", 1, 1),
        (5, 9, "change", "main.t", 1, 0),
        *((5, tick, "change", "main.t", 1, 1) for tick in range(10, 18)),
        (6, 20, "empty", None, None, None),
    ]


def test_transactions(database: FarmDatabase) -> None:
    found = [t for number in (1, 2, 3, 4) for t in database.read_batch(number)[0].transactions]
    assert [(t.tick, t.user, t.committed, t.xid, t.after) for t in found] == [
        (1, "ann", time(1), 7, None),
        (2, 'b"ö\nb', None, None, None),
        (3, "ann", time(3), None, 1),
        (4, "ann", time(4), None, 3),
        (5, "eve", time(5), None, 3),
        (6, "ann", time(6), None, None),
        (7, "ann", time(7), None, None),
        (8, "ann", time(8), None, None),
    ]
    assert found[0].started == time(0, 0)
    assert [t.origin for t in found] == [None] * 4 + [Origin("b1", 9, time(3))] + [None] * 3
    assert found[0].records[-1] == SequencePosition(Name("main", "s"), 3)
    folder = "shop_000000000002.d"
    assert found[3].records[-1] == RowsRead(Name("main", "t"), f"{folder}/1.parquet", 2, exclusive=True)
    assert found[4].records[-1] == RowsRefreshed(Name("main", "t"), f"{folder}/2.parquet", 1, absent=True)
    assert found[5].records[-2] == RowsRefreshed(Name("main", "t"), f"{folder}/2.parquet", 1, absent=False)
    assert found[5].records[-1] == REJECTED


def test_run_of_transactions(database: FarmDatabase) -> None:
    assert b'{"run":' in (FOLDER / "farm" / "shop" / "wlc_logs" / "shop_000000000005").read_bytes()
    batch, _ = database.read_batch(5)
    change = Change(Name("main", "t"), "shop_000000000005.d/0.parquet", 1, 1)
    assert list(batch.transactions) == [
        Transaction(9, "ann", time(8), time(9), (replace(change, removed=0),)),
        *(
            Transaction(tick, "ann" if tick % 2 else "eve", time(tick - 1), time(tick), (change,), xid=tick)
            for tick in range(10, 18)
        ),
    ]
    assert f"{batch.digests[Name('main', 't')].sum:016x}" == "a5962f5fbe9a54d9"


def test_schema_changes(database: FarmDatabase) -> None:
    create, _, _, _ = database.read_batch(1)[0].transactions[0].records
    alter, _ = database.read_batch(3)[0].transactions[0].records
    function, _ = database.read_batch(4)[0].transactions[0].records
    assert (create.layout.primary_key, create.dialect, create.search_path) == (("id",), "duckdb", ("main",))
    assert [(c.name, c.type, c.nullable, c.default) for c in alter.layout.columns] == [
        ("id", "INTEGER", False, None),
        ("name", "VARCHAR", True, None),
        ("price", "DECIMAL(6,2)", True, None),
        ("note", "VARCHAR", True, "'?'"),
    ]
    assert alter.original == "ALTER TABLE t ADD COLUMN note VARCHAR DEFAULT '?' /* as written */"
    assert alter.settings == (("TimeZone", "Asia/Tokyo"), ("integer_division", "true"))
    assert f"{alter.digest.sum:016x}" == "1e2c66358fde8958"
    assert (function.dialect, function.original, function.layout) == ("postgres", None, None)


def test_headers_and_footers(database: FarmDatabase) -> None:
    found, chain = [], ""
    for number in (1, 2, 3, 4):
        batch, chain = database.read_batch(number, chain)
        found.append(batch)
    assert [(b.history, b.first, b.last, b.catalog, b.parent) for b in found] == [
        ("h1", 1, 3, "shop", None),
        ("h1", 4, 6, "shop", None),
        ("h1", 7, 7, "shop", None),
        ("h2", 8, 8, "shop", Origin("h1", 7)),
    ]
    vectors = [dict(b.vector) for b in found]
    assert vectors == [{"h1": 3}, {"b1": 9, "h1": 6}, {"b1": 9, "h1": 7}, {"b1": 9, "h1": 7, "h2": 8}]
    assert first_fall(vectors) is None
    assert [(b.term, b.own, b.lsn) for b in found] == [
        (None, None, None),
        (3, 6, "0/16B3748"),
        (4, 7, None),
        (None, None, None),
    ]
    assert [b.handover for b in found] == [None, None, Handover("bergen", 4), None]
    assert [b.taken for b in found] == [(), (Taken("bergen", "b1", 9, 4, "c" * 64),), (), ()]
    digests = [{str(name): (d.rows, f"{d.sum:016x}") for name, d in b.digests.items()} for b in found]
    assert digests == [
        {"main.t": (3, "2de2bf31b577729c")},
        {"main.t": (2, "0ed46ebba6173790")},
        {"main.t": (2, "1e2c66358fde8958")},
        {"main.t": (2, "f0e9751f86af9e75")},
    ]
    assert chain == "b639be5d4351a21a6e3092070d925e808b965482e596450fea928878d422c0cb"


def test_a_history_that_continues_another_one(database: FarmDatabase) -> None:
    batch, _ = database.read_batch(6)
    assert (batch.continues, batch.parent, batch.first, batch.last) == (True, Origin("h2", 16), 20, 20)
    assert not any(database.read_batch(number)[0].continues for number in range(1, 6))


def test_effects_of_statements(database: FarmDatabase) -> None:
    statements = [ddl for entry in entries(database) for ddl in entry.transaction.records if isinstance(ddl, Ddl)]
    table, by_name = DbObject("TABLE", Name("main", "t")), DbObject("INDEX", Name("main", "by_name"))
    assert list(dict.fromkeys(ddl.does for ddl in statements)) == [
        (CreatedObject(table),),
        (CreatedObject(DbObject("SEQUENCE", Name("main", "s"))),),
        (CreatedObject(by_name, of=table.name),),
        (AlteredObject(table, columns=((None, "note"),)),),
        (CreatedObject(DbObject("FUNCTION", Name("main", "f"), ("integer",))),),
    ]


def test_data_files_are_as_the_log_says(database: FarmDatabase, tmp_path: Path) -> None:
    # A verification notes its result in the farm.
    shutil.copytree(FARM, tmp_path / "shop")
    audit = wlr.verify_farm(str(tmp_path / "shop"), full=True)
    assert audit.problems == ()
    reads, refreshed = (database.fetch(file) for file in database.read_batch(2)[0].files[1:])
    for file, expected in (
        (reads, [(4, 0, 1, "a"), (4, 0, 2, "B")]),
        (refreshed, [(5, 0, 3, None), (6, 0, 5, "e")]),
    ):
        assert duckdb.sql(f"SELECT _tick, _weight, id, name FROM '{file}'").fetchall() == expected


def test_snapshot(database: FarmDatabase) -> None:
    manifest = database.read_manifest(3)
    assert manifest.position == Position("h1", 3, 1, database.read_batch(1)[1])
    assert (manifest.clock, manifest.catalog, dict(manifest.vector)) == (time(3), "shop", {"h1": 3})
    assert [ddl.kind for ddl in (*manifest.schema, *manifest.schema_after)] == [
        "CREATE TABLE",
        "CREATE SEQUENCE",
        "CREATE INDEX",
    ]
    assert [(str(t.table), [file.rows for file in t.files]) for t in manifest.tables] == [("main.t", [3])]
    assert manifest.sequences == (SequencePosition(Name("main", "s"), 3),)
    assert manifest.digests == database.read_batch(1)[0].digests


def test_registered_replicas(database: FarmDatabase) -> None:
    site, one, two = replicas(database)
    assert (one.id, one.target, one.clock, one.host, one.user) == ("r1", "/data/réplica.duckdb", time(3), "host", "ann")
    assert one.position == Position("h1", 3, 1, database.read_batch(1)[1])
    assert (two.id, two.position, two.clock) == ("r2", None, None)
    assert (site.kind, site.counters) == (SITE, {"oslo epoch_trans rejects": 2, "bergen  evicted": 1})


@pytest.mark.slow
def test_replicas(tmp_path: Path) -> None:
    into, lake = tmp_path / "replica.duckdb", f"{tmp_path}/lake/"
    for tick in sorted(CONTENT):
        wlr.replicate(FARM, into=into, tick=tick, register=False)
        assert content(into) == CONTENT[tick]
        assert [table.outcome for table in wlr.verify(into).tables] == ["same"]
    with pytest.raises(wlr.InvalidError, match="continues at tick 16"):
        wlr.replicate(into=into, register=False)
    for at_once in (tmp_path / "at once.duckdb", lake):
        wlr.replicate(FARM, into=at_once, register=False)
        # The log says what a table holds at the end of a batch, and history h3 continues within one.
        assert [table.outcome for table in wlr.verify(at_once).tables] == ["unknown"]
    assert content(tmp_path / "at once.duckdb") == [*CONTENT[8], (7, "16", "7.00", None)]


def test_signed_and_encrypted_farm(tmp_path: Path) -> None:
    into, options = tmp_path / "replica.duckdb", sealed_options()
    wlr.replicate(SEALED, into=into, register=False, storage_options=options)
    assert content(into) == CONTENT[3]
    batch, chain = open_database(SEALED, storage_options=options).read_batch(1)
    assert [transaction.tick for transaction in batch.transactions] == [1, 2, 3]
    assert chain != open_database(FARM).read_batch(1)[1], "the signature is part of the chain"
    with pytest.raises(wlr.InvalidError):
        open_database(SEALED).read_batch(1)


def test_a_later_format_is_refused_by_name() -> None:
    later = FOLDER / "later"
    readers = {
        "wlc.config": decode_config,
        "shop_000000000001": decode_batch,
        "manifest.json": decode_manifest,
        "replica.json": decode_replica,
    }
    for name, decode in readers.items():
        with pytest.raises(CorruptError, match=f"{name}.*format '?2'? is unknown, this version reads 1"):
            decode((later / name).read_bytes(), f"later/{name}")


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_the_farm_is_written_the_same_again(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        written.append(files_of(tmp_path / name))
    assert written[0] == written[1]
    committed = files_of(FOLDER)
    assert written[0].keys() == committed.keys()
    data = next(path for path in committed if path.endswith("/0.parquet"))
    if committed[data] == written[0][data]:
        # Another version of DuckDB writes other bytes into data files, and so into all that has their checksums.
        assert written[0] == committed
