"""Checkpoints of Delta logs: Parquet files that replace all entries before them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal
from wlr.engine.calculator import connect
from wlr.engine.parquet.delta import replayed

if TYPE_CHECKING:
    from wlc.farm.store import Store
    from wlr.engine.parquet.delta import DeltaLog

EVERY = 100
_MAP = "MAP(VARCHAR, VARCHAR)"
_FILE = f"path VARCHAR, partitionValues {_MAP}, size BIGINT"
_COLUMNS = {
    "txn": "STRUCT(appId VARCHAR, version BIGINT, lastUpdated BIGINT)",
    "add": f"STRUCT({_FILE}, modificationTime BIGINT, dataChange BOOLEAN, stats VARCHAR, tags {_MAP})",
    "remove": f"STRUCT({_FILE}, deletionTimestamp BIGINT, dataChange BOOLEAN, extendedFileMetadata BOOLEAN)",
    "metaData": (
        "STRUCT(id VARCHAR, name VARCHAR, description VARCHAR, schemaString VARCHAR, createdTime BIGINT,"
        f" format STRUCT(provider VARCHAR, options {_MAP}), partitionColumns VARCHAR[], configuration {_MAP})"
    ),
    "protocol": (
        "STRUCT(minReaderVersion INTEGER, minWriterVersion INTEGER, readerFeatures VARCHAR[], writerFeatures VARCHAR[])"
    ),
}


def write_checkpoint(store: Store, path: str, content: bytes) -> None:
    """Write a checkpoint with actions, one a line; raises AlreadyExistsError if there is one."""
    columns = ", ".join(f"{literal(name)}: {literal(text)}" for name, text in _COLUMNS.items())
    with tempfile.TemporaryDirectory(prefix="wlr-checkpoint-") as folder:
        lines, file = Path(folder) / "lines", Path(folder) / "file"
        lines.write_bytes(content)
        with connect(Path(folder)) as connection:
            read = f"read_json({literal(str(lines))}, format = 'newline_delimited', columns = {{{columns}}})"
            connection.execute(f"COPY (FROM {read}) TO {literal(str(file))} ({KEPT})")
        store.create(path, file)


def read_checkpoint(store: Store, path: str, log: DeltaLog, version: int) -> DeltaLog:
    """Return the sum of a checkpoint's actions, by any writer.

    Raises:
        CorruptError: It is damaged.
    """
    file = store.fetch(path)
    try:
        with tempfile.TemporaryDirectory(prefix="wlr-checkpoint-") as folder, connect(Path(folder)) as connection:
            columns = ", ".join(f'"{name}"' for name in ("add", "metaData", "protocol"))
            rows = connection.execute(f"SELECT to_json(t) FROM (SELECT {columns} FROM {rows_of(file)}) t").fetchall()
    finally:
        store.release(file)
    return replayed(log, version, "\n".join(row[0] for row in rows).encode(), f"{store.url}/{path}")
