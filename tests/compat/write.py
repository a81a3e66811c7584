"""Write the compatibility farm anew: `python -m tests.compat.write`.

Until the first release the format may change in place, and this farm with it. From the first release on it is frozen:
a format that changes gets a new number, a new folder beside this one, and readers for both.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb

from wlc.dialect.duckdb import digest_sql
from wlc.dialect.types import store_sql
from wlc.farm.config import encode_config
from wlc.farm.database import FarmDatabase, describe_file, open_database
from wlc.farm.documents import encode_document
from wlc.farm.health import Health, Proof, Sign, change_health
from wlc.farm.log import encode_batch
from wlc.farm.model import (
    AlteredObject,
    Batch,
    Change,
    Clear,
    Column,
    Config,
    CreatedObject,
    DbObject,
    Ddl,
    Digest,
    Handover,
    Layout,
    Manifest,
    Name,
    Origin,
    Position,
    RowRejected,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    SnapshotTable,
    TableFile,
    Taken,
    Transaction,
)
from wlc.farm.paths import data_path, log_path
from wlc.farm.registry import SITE, Replica, register
from wlc.farm.seal.checksum import LINES_END, with_checksum
from wlc.farm.seal.keys import ENCRYPTION, SIGNING, new_key, public_half

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(__file__).parent / "format1"
T, S = Name("main", "t"), Name("main", "s")
COLUMNS = (Column("id", "INTEGER", nullable=False), Column("name", "VARCHAR"), Column("price", "DECIMAL(6,2)"))
LAYOUT = Layout(COLUMNS, ("id",))
WIDER = Layout((*COLUMNS, Column("note", "VARCHAR", default="'?'")), ("id",))
START = datetime(2026, 11, 20, 10, tzinfo=UTC)

HEALTH = Health(
    Sign("h1", START, "shop.duckdb", "host", "ann", is_closed=True, failure="the disk is full"),
    Proof(START, 3),
    Proof(START, 2, "main.t differs"),
    timedelta(minutes=2),
    timedelta(hours=1),
)
REJECTED = RowRejected(
    *(T, "b1", 9, 1, {"id": 5}, "UPDATE_ROW", "DATA_IN_CONFLICT", "update_origin_differs"),
    old={"id": 5, "name": "d", "price": "5.00"},
    new={"id": 5, "name": None, "price": "5.00"},
    local={"id": 5, "name": "e", "price": "5.00"},
    dependent=False,
    more=2,
)
CREATE = Ddl(
    "CREATE TABLE",
    T,
    "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR, price DECIMAL(6,2))",
    layout=LAYOUT,
    does=(CreatedObject(DbObject("TABLE", T)),),
)
SEQUENCE = Ddl("CREATE SEQUENCE", S, "CREATE SEQUENCE s", does=(CreatedObject(DbObject("SEQUENCE", S)),))
BY_NAME = DbObject("INDEX", Name("main", "by_name"))
INDEX = Ddl("CREATE INDEX", BY_NAME.name, "CREATE INDEX by_name ON t (name)", does=(CreatedObject(BY_NAME, of=T),))
MADE = (CreatedObject(DbObject("FUNCTION", Name("main", "f"), ("integer",))),)
FUNCTION = Ddl("CREATE FUNCTION", Name("main", "f"), "CREATE FUNCTION f(integer) …", dialect="postgres", does=MADE)


def at(tick: int) -> datetime:
    """When a transaction was committed."""
    return START + timedelta(seconds=tick, microseconds=1)


def path(batch: int, number: int = 0) -> str:
    return data_path("shop", batch, number)


def write_rows(file: Path, layout: Layout, rows: Sequence[str], *, is_log: bool = True) -> None:
    """Write rows, each the SQL text of its values, behind tick and weight in a file of the log, as a data file."""
    declared = ["_tick BIGINT", "_weight TINYINT"] if is_log else []
    declared += [f"{column.name} {column.type}" for column in layout.stored]
    stored = ["_tick", "_weight"] if is_log else []
    stored += [f"{store_sql(column, column.name)} AS {column.name}" for column in layout.stored]
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(declared)})")
        connection.execute("INSERT INTO t VALUES " + ", ".join(f"({row})" for row in rows))
        connection.execute(f"COPY (SELECT {', '.join(stored)} FROM t) TO '{file}' (FORMAT parquet, COMPRESSION zstd)")


def digest(layout: Layout, *rows: str) -> Digest:
    """What a table of these rows holds."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(f'{c.name} {c.type}' for c in layout.stored)})")
        connection.execute("INSERT INTO t VALUES " + ", ".join(f"({row})" for row in rows))
        return digest_sql.sum_rows(connection, layout, "t", store_sql)


def batches() -> list[tuple[Batch, list[list[str]]]]:
    """Every kind of line, in five batches, with the rows of their data files; `previous` and `files` come later."""
    first = Batch(
        "shop",
        1,
        "h1",
        1,
        3,
        "",
        "shop",
        (
            Transaction(
                1, "ann", START, at(1), (CREATE, SEQUENCE, Change(T, path(1), 3, 0), SequencePosition(S, 3)), xid=7
            ),
            Transaction(2, 'b"ö\nb', START, None),
            Transaction(3, "ann", at(2), at(3), (Change(T, path(1), 1, 1), INDEX), after=1),
        ),
        vector={"h1": 3},
        digests={T: digest(LAYOUT, "1, 'a', 1.50", "2, 'B', NULL", "3, 'ç', 3.25")},
    )
    rows = ["1, 1, 1, 'a', 1.50", "1, 1, 2, 'b', NULL", "1, 1, 3, 'ç', 3.25"]
    rows += ["3, -1, 2, 'b', NULL", "3, 1, 2, 'B', NULL"]
    second = Batch(
        "shop",
        2,
        "h1",
        4,
        6,
        "",
        "shop",
        (
            Transaction(
                4, "ann", at(3), at(4), (Change(T, path(2), 1, 0), RowsRead(T, path(2, 1), 2, exclusive=True)), after=3
            ),
            Transaction(
                5,
                "eve",
                at(3),
                at(5),
                (Change(T, path(2), 0, 1), RowsRefreshed(T, path(2, 2), 1, absent=True)),
                Origin("b1", 9, at(3)),
                after=3,
            ),
            Transaction(
                6,
                "ann",
                at(5),
                at(6),
                (Clear(T, 3), Change(T, path(2), 2, 0), RowsRefreshed(T, path(2, 2), 1, absent=False), REJECTED),
            ),
        ),
        vector={"b1": 9, "h1": 6},
        digests={T: digest(LAYOUT, "5, 'e', 5.00", "6, NULL, NULL")},
        lsn="0/16B3748",
        term=3,
        own=6,
        taken=(Taken("bergen", "b1", 9, 4, "c" * 64),),
    )
    changes = ["4, 1, 4, 'd', 4.00", "5, -1, 3, 'ç', 3.25", "6, 1, 5, 'e', 5.00", "6, 1, 6, NULL, NULL"]
    reads = ["4, 0, 1, 'a', 1.50", "4, 0, 2, 'B', NULL"]
    refreshed = ["5, 0, 3, NULL, NULL", "6, 0, 5, 'e', 5.00"]
    wider = digest(WIDER, "5, 'e', 5.00, '?'", "6, NULL, NULL, '?'")
    statement = "ALTER TABLE t ADD COLUMN note VARCHAR DEFAULT '?'"
    settings = (("TimeZone", "Asia/Tokyo"), ("integer_division", "true"))
    original = f"{statement} /* as written */"
    does = (AlteredObject(DbObject("TABLE", T), columns=((None, "note"),)),)
    alter = Ddl("ALTER TABLE", T, statement, ("main",), "duckdb", WIDER, original, wider, settings, does)
    third = Batch(
        "shop",
        3,
        "h1",
        7,
        7,
        "",
        "shop",
        (Transaction(7, "ann", at(6), at(7), (alter, SequencePosition(S, 6))),),
        vector={"b1": 9, "h1": 7},
        digests={T: wider},
        term=4,
        own=7,
        handover=Handover("bergen", 4),
    )
    fourth = Batch(
        "shop",
        4,
        "h2",
        8,
        8,
        "",
        "shop",
        (Transaction(8, "ann", at(7), at(8), (FUNCTION, Change(T, path(4), 1, 1))),),
        vector={"b1": 9, "h1": 7, "h2": 8},
        parent=Origin("h1", 7),
        digests={T: digest(WIDER, "5, 'e', 5.00, 'new'", "6, NULL, NULL, '?'")},
    )
    last = ["8, -1, 5, 'e', 5.00, '?'", "8, 1, 5, 'e', 5.00, 'new'"]
    ticks = range(9, 18)
    fifth = Batch(
        "shop",
        5,
        "h2",
        ticks[0],
        ticks[-1],
        "",
        "shop",
        tuple(
            Transaction(
                tick,
                "ann" if tick % 2 else "eve",
                at(tick - 1),
                at(tick),
                (Change(T, path(5), 1, int(tick > 9)),),
                xid=None if tick == 9 else tick,
            )
            for tick in ticks
        ),
        vector={"b1": 9, "h1": 7, "h2": ticks[-1]},
        parent=Origin("h1", 7),
        digests={T: digest(WIDER, "5, 'e', 5.00, 'new'", "6, NULL, NULL, '?'", "7, '17', 7.00, NULL")},
    )
    small = [f"{tick}, 1, 7, '{tick}', 7.00, NULL" for tick in ticks]
    small += [f"{tick}, -1, 7, '{tick - 1}', 7.00, NULL" for tick in ticks[1:]]
    small.sort(key=lambda row: int(row.partition(",")[0]))
    sixth = Batch(
        "shop",
        6,
        "h3",
        20,
        20,
        "",
        "copy",
        (Transaction(20, "bob", at(20), at(20)),),
        vector={"b1": 9, "h1": 7, "h2": 16, "h3": 20},
        parent=Origin("h2", 16),
        continues=True,
    )
    later = [(fourth, [last]), (fifth, [small]), (sixth, [])]
    return [(first, [rows]), (second, [changes, reads, refreshed]), (third, []), *later]


def encode_with_info(batch: Batch) -> bytes:
    """Add the key that readers ignore to every line."""
    lines = [json.loads(line) for line in encode_batch(batch).splitlines()[:-1]]
    for line in lines:
        for content in line.values():
            content["info"] = {"from": ["a later version"]}
    body = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()
    return with_checksum(body, LINES_END)


def publish(database: FarmDatabase, last: int, folder: Path) -> list[tuple[Batch, str]]:
    """Publish the batches up to number `last`; every line of the second one has `info`, the fifth one is a run."""
    done: list[tuple[Batch, str]] = []
    for made, contents in batches()[:last]:
        files, local = [], {}
        for number, rows in enumerate(contents):
            layout = WIDER if made.number >= 4 else LAYOUT
            file = folder / f"{made.number}.{number}.parquet"
            write_rows(file, layout, rows)
            local[path(made.number, number)] = file
            files.append(TableFile(describe_file(file, path(made.number, number), len(rows)), T, layout))
        batch = replace(made, previous=done[-1][1] if done else "", files=tuple(files))
        encode = encode_with_info if batch.number == 2 else partial(encode_batch, runs_from=0)
        with patch("wlc.farm.database.encode_batch", encode):
            done.append((batch, database.publish(batch, local)))
    return done


def write_snapshot(database: FarmDatabase, batch: Batch, chain: str, folder: Path) -> None:
    """Publish a snapshot after the first batch."""
    rows = ["1, 'a', 1.50", "2, 'B', NULL", "3, 'ç', 3.25"]
    write_rows(folder / "snapshot.parquet", LAYOUT, rows, is_log=False)
    file = describe_file(folder / "snapshot.parquet", "0.parquet", len(rows))
    manifest = Manifest(
        "shop",
        Position("h1", 3, 1, chain),
        at(3),
        "shop",
        (CREATE, SEQUENCE),
        (INDEX,),
        (SnapshotTable(T, LAYOUT, (file,)),),
        (SequencePosition(S, 3),),
        batch.vector,
        batch.digests,
    )
    database.publish_snapshot(manifest, {"0.parquet": folder / "snapshot.parquet"})


def write_later(folder: Path) -> None:
    """Write files as a program of format 2 might, which must be refused."""
    folder.mkdir()
    config = Config("", "wlc_logs", 1, 2, 300.0, None, "shop", "h1", 0)
    text = encode_config(config).decode().replace("format=1\n", "format=2\n")
    body = text[: text.rindex("sha256=")].encode()
    (folder / "wlc.config").write_bytes(with_checksum(body, b"sha256=").removesuffix(b'"}\n') + b"\n")
    header = b'{"batch":{"format":2,"shop":{"later":true}}}\n'
    (folder / log_path("shop", 1)).write_bytes(with_checksum(header, LINES_END))
    for kind in ("manifest", "replica"):
        (folder / f"{kind}.json").write_bytes(encode_document(kind, {"format": 2, "later": True}))


def sealed_options() -> dict[str, str]:
    """Keys of the signed and encrypted farm, for its writer and its readers."""
    with patch("secrets.token_bytes", lambda length: bytes(range(length))):
        encryption, signing = new_key(ENCRYPTION), new_key(SIGNING)
    words = {"encryption_key": encryption.word, "signing_key": signing.word}
    return {**words, "verify_key": public_half(signing).word}


def write(folder: Path) -> None:
    """Write the whole farm into an empty or new folder; the same versions write the same bytes."""
    salts = count()
    with (
        tempfile.TemporaryDirectory() as temporary,
        patch("wlc.farm.seal.cipher.urandom", lambda length: next(salts).to_bytes(length, "big")),
    ):
        for name, last, options in (("farm", 6, None), ("sealed", 1, sealed_options())):
            database = open_database(str(folder / name / "shop"), storage_options=options)
            database.create_config(Config("", "wlc_logs", 1, 1, 12.5, None, "shop", "h1", 0))
            done = publish(database, last, Path(temporary))
            write_snapshot(database, *done[0], Path(temporary))
            # A publisher that begins a history says so first.
            history, parent = done[-1][0].history, done[-1][0].parent
            database.change_config(lambda config, h=history, p=parent: replace(config, history=h, parent=p))
            database.rebuild_config()
            position = Position("h1", 3, 1, done[0][1])
            register(database, Replica("r1", "/data/réplica.duckdb", position, at(3), at(60), "host", "ann"))
            register(database, Replica("r2", "s3://bucket/lake", None, None, at(60), "host", "bob"))
            counters = {"oslo epoch_trans rejects": 2, "bergen  evicted": 1}
            site = Replica(
                "bergen", "bergen.duckdb", position, None, at(60), "host", "eve", kind=SITE, counters=counters
            )
            register(database, site)
            change_health(database, lambda _: HEALTH)
    write_later(folder / "later")
    for left in folder.rglob(".wlc.lock"):
        left.unlink()


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write(FOLDER)
    sys.stdout.write(f"wrote {sum(file.is_file() for file in FOLDER.rglob('*'))} files into {FOLDER}\n")
