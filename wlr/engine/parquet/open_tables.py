"""Open tables: a Delta log over the files of each table, equal to the pointer's manifest after every step.

    data/main.orders/_delta_log/00000000000000000007.json    files that version 7 of the Delta table adds and removes
    wlr.open                                                 the manifest that all logs are equal to

A run creates an entry exclusively under the number after the last one that it read. So an entry exists once and follows
from the one before, with any number of writers. A run reads a log before it checks that the pointer is still its own: a
halted run cannot set a log back, because the run that took over has written the next entry, or would write the same.

`wlr.open` only saves reading the logs. If it names another manifest, because a run died between the pointer and the
logs, the next run reads all logs.

Checkpoints of Delta logs: Parquet files that replace all entries before them.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal
from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError, FarmError, UnavailableError, UnsupportedError
from wlc.farm.json_fields import JsonKey
from wlc.farm.retry import CHANGE_ATTEMPTS
from wlc.farm.store import AlreadyExistsError
from wlc.farm.versioned import VersionedObject
from wlr.engine.calculator import connect
from wlr.engine.parquet.delta import (
    LOG,
    NOTHING,
    REBUILD,
    DeltaContent,
    DeltaLog,
    DeltaMoment,
    content_of,
    entry,
    folder_of,
    replayed,
    whole,
)
from wlr.engine.table_files import DATA, fetched, publish

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.model import Name
    from wlc.farm.store import Store
    from wlr.engine.parquet.folder import LakeFolder, Version
    from wlr.replay.fold.files import FilePart


DELTA = "delta"
MARKER = "wlr.open"
_DELTA_TABLE = "Delta table "
_ENTRY = re.compile(r"(.+/)_delta_log/(\d{20})(\.checkpoint\.parquet|\.json)")


@dataclass(frozen=True, slots=True)
class LevelLog:
    """A log without its files, which are those of a manifest; `files` is their number."""

    folder: str
    version: int
    files: int
    id: str
    schema_sum: Annotated[str, JsonKey("schema")]
    has_ntz: bool


@dataclass(frozen=True, slots=True)
class LevelLogs:
    """The logs, by folder, as of a manifest."""

    manifest: str
    logs: tuple[LevelLog, ...]

    def logs_of(self, contents: Mapping[str, DeltaContent]) -> dict[str, DeltaLog] | None:
        """Return the logs with the files of that manifest; None if another version wrote them by other rules."""
        logs = {}
        for each in self.logs:
            content = contents.get(each.folder, NOTHING)
            log = DeltaLog(each.version, each.id, each.schema_sum, each.has_ntz, frozenset(content.files))
            if each.files != len(content.files) or not log.has_schema_of(content):
                return None
            logs[each.folder] = log
        return logs if contents.keys() <= logs.keys() else None


_DOCUMENT = Document("open", LevelLogs, format=None, hint=REBUILD)


def is_of_open_table(what: str) -> bool:
    """Return whether an entry of `left_out` is about a table that cannot be open."""
    return what.startswith(_DELTA_TABLE)


def left_out(version: Version) -> dict[str, str]:
    """Return the tables that cannot be Delta tables, with the causes."""
    return _divided(version)[1]


class OpenTables:
    """The Delta logs of a replica.

    Args:
        folder: The replica.
        run: The run that writes to it.
    """

    def __init__(self, folder: LakeFolder, run: str) -> None:
        self._folder = folder
        self._store = folder.store
        self._run = run
        self._logs: dict[str, DeltaLog] | None = None
        self._level = ""

    def level(self, version: Version, manifest: str) -> None:
        """Make all logs equal to the current version; write nothing to equal ones.

        Args:
            version: The current version.
            manifest: Path of its manifest, which the pointer names.

        Raises:
            TakenOverError: Another run took the replica over.
            CorruptError: A log is damaged.
            UnavailableError: Other programs keep writing to a log, or the store is unreachable. The next run retries.
        """
        if manifest == self._level:
            return
        contents, _ = _divided(version)
        if self._logs is None:
            self._logs = self._known(contents, manifest)
            if self._level == manifest:
                return
        moment = DeltaMoment(version.made, version.position.tick, version.position.history, manifest)
        for folder in sorted(self._logs.keys() | contents.keys()):
            self._write(folder, contents.get(folder, NOTHING), moment)
        logs = (
            LevelLog(folder, log.version, len(log.files), log.id, log.schema_sum, log.has_ntz)
            for folder, log in sorted(self._logs.items())
        )
        level = LevelLogs(manifest, tuple(logs))
        self._marker.change(lambda _: level)
        self._level = manifest

    def _known(self, contents: Mapping[str, DeltaContent], manifest: str) -> dict[str, DeltaLog]:
        """Return the current logs; read all of them if the marker is for another manifest."""
        marked = self._marker.load()
        if marked and marked[0].manifest == manifest and (known := marked[0].logs_of(contents)) is not None:
            self._level = manifest
            return known
        found = (_ENTRY.fullmatch(entry.path) for entry in self._store.list(DATA))
        logs = {folder: self._read(folder) for folder in sorted({match[1] for match in found if match})}
        self._folder.refuse_other_run(self._run)
        return logs

    @property
    def _marker(self) -> VersionedObject[LevelLogs]:
        where = f"{self._folder.url}/{MARKER}"
        return VersionedObject(self._store, MARKER, _DOCUMENT.encode, lambda data: _DOCUMENT.decode(data, where))

    def _write(self, folder: str, content: DeltaContent, moment: DeltaMoment) -> None:
        assert self._logs is not None
        for _ in range(CHANGE_ATTEMPTS):
            made = entry(self._logs.get(folder, DeltaLog()), content, moment)
            if made is None:
                return
            log, data = made
            try:
                self._store.create(_path(folder, log.version), data)
            except AlreadyExistsError:
                # Another program wrote the entry, or this one did and the answer was lost.
                self._logs[folder] = self._read(folder)
                self._folder.refuse_other_run(self._run)
                continue
            self._logs[folder] = log
            self._check_in(folder, log, content, moment)
            return
        where = f"{self._folder.url}/{folder}{LOG}"
        raise UnavailableError(
            f"other programs keep writing to {where}", hint="Only dbfarm may write there.", path=where
        )

    def _check_in(self, folder: str, log: DeltaLog, content: DeltaContent, moment: DeltaMoment) -> None:
        """Write a checkpoint if one is due."""
        # Importing DuckDB takes longer than the rest of this package.
        from wlr.engine.parquet.open_tables import EVERY, write_checkpoint

        if log.version and log.version % EVERY == 0 and content.schema is not None:
            # A checkpoint is optional for readers.
            with suppress(FarmError):
                path = _path(folder, log.version, ".checkpoint.parquet")
                write_checkpoint(self._store, path, whole(log, content, moment))

    def _read(self, folder: str) -> DeltaLog:
        """Add up the entries of a log, from its last checkpoint on.

        Raises:
            CorruptError: An entry is damaged or missing.
        """
        from wlr.engine.parquet.open_tables import read_checkpoint

        found = [match for listed in self._store.list(f"{folder}{LOG}") if (match := _ENTRY.fullmatch(listed.path))]
        checkpoints = [int(match[2]) for match in found if match[3] != ".json"]
        log = DeltaLog()
        if checkpoints:
            last = max(checkpoints)
            log = read_checkpoint(self._store, _path(folder, last, ".checkpoint.parquet"), log, last)
        for version in sorted(
            number for match in found if match[3] == ".json" and (number := int(match[2])) > log.version
        ):
            path = _path(folder, version)
            where = f"{self._folder.url}/{path}"
            if version != log.version + 1:
                raise CorruptError(f"the entry before {where} is missing", hint=REBUILD, path=where)
            log = replayed(log, version, self._store.read(path), where)
        return log


def gathered(folder: LakeFolder, table: Name, parts: tuple[FilePart, ...], tick: int) -> tuple[FilePart, ...]:
    """Return the files of a table, all in its own folder, where readers of Delta tables need them after a rename.

    On a local disk no byte is copied: the file gets a second name.
    """
    prefix = folder_of(table)
    moved: list[FilePart] = []
    for part in parts:
        if part.file.path.startswith(prefix):
            moved.append(part)
            continue
        with fetched(folder.store, part) as piece:
            moved += publish(folder.store, table, tick, [piece])
    return tuple(moved)


def _divided(version: Version) -> tuple[dict[str, DeltaContent], dict[str, str]]:
    """Return the contents of the Delta tables, by folder, and the tables that cannot be any, with the causes."""
    contents: dict[str, DeltaContent] = {}
    causes: dict[str, str] = {}
    for table in version.tables:
        try:
            contents[folder_of(table.table)] = content_of(table)
        except UnsupportedError as error:
            causes[f"{_DELTA_TABLE}{table.table}"] = error.message
    return contents, causes


def _path(folder: str, version: int, suffix: str = ".json") -> str:
    return f"{folder}{LOG}{version:020d}{suffix}"


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
