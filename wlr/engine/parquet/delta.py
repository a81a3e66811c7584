"""The log of a Delta table over the files of a table: its schema, its entries, and their sum.

Pure functions of values; `open_tables` reads and writes. The protocol is delta-io/delta's PROTOCOL.md.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wlc.dialect.types import parse, storage_type
from wlc.farm import json_fields as fields
from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.farm.model import file_column
from wlc.farm.seal.checksum import checksum
from wlc.farm.version import __version__
from wlr.engine.table_files import table_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from wlc.dialect.types import ColumnType
    from wlc.farm.model import Layout, Name
    from wlr.engine.parquet.folder import LakeTable

LOG = "_delta_log/"
REBUILD = "Delete wlr.open and all folders called _delta_log: the next run rebuilds them."
_NTZ = "timestampNtz"
# Characters that Spark refuses in names of columns unless the table maps names.
_UNFIT = re.compile(r"[ ,;{}()\n\t=]")


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of a Delta table: name in the table's folder, bytes and rows."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class DeltaContent:
    """The wanted content of a Delta table.

    Attributes:
        schema: JSON text of its schema; None to leave it as it is.
        files: By name.
    """

    schema: str | None
    files: Mapping[str, DeltaFile]


NOTHING = DeltaContent(None, {})


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The sum of a log's entries.

    Attributes:
        version: Number of the last entry; -1 if there is none.
        id: Id of the table.
        schema_sum: Checksum of the JSON text of the schema.
        has_ntz: The log declares that a column may be a timestamp without time zone.
        files: Names of the files.
    """

    version: int = -1
    id: str = ""
    schema_sum: str = ""
    has_ntz: bool = False
    files: frozenset[str] = field(default_factory=frozenset)

    def has_schema_of(self, content: DeltaContent) -> bool:
        """Return whether a content has the same schema."""
        return content.schema is None or _sum(content.schema) == self.schema_sum


@dataclass(frozen=True, slots=True)
class DeltaMoment:
    """The state of the replica that an entry describes."""

    made: datetime
    tick: int
    history: str
    manifest: str

    @property
    def made_ms(self) -> int:
        """Its time, in milliseconds since 1970."""
        return round(self.made.timestamp() * 1000)


def folder_of(table: Name) -> str:
    """Folder of a table's Delta table: the folder of its files, with a slash at its end."""
    return table_prefix(table, 0).rpartition("/")[0] + "/"


def content_of(table: LakeTable) -> DeltaContent:
    """Return the content of a table's Delta table.

    Raises:
        UnsupportedError: The table cannot be a Delta table; the message is the cause.
    """
    schema, folder = schema_of(table.layout), folder_of(table.table)
    if "%" in folder:
        raise UnsupportedError(f"delta-rs opens no folder with a percent sign, such as {folder}")
    listed = [DeltaFile(part.file.path.removeprefix(folder), part.file.bytes, part.file.rows) for part in table.parts]
    if any("/" in file.name for file in listed):
        raise UnsupportedError("files from before its rename are in another folder; they move with the next step")
    return DeltaContent(schema, {file.name: file for file in listed})


# The schema ----------------------------------------------------------------------------------------------------------


def schema_of(layout: Layout) -> str:
    """Return the JSON text of a Delta schema for files of a layout.

    Every column may be NULL: NOT NULL of the master does not concern readers, and can change without new files.

    Raises:
        UnsupportedError: A column has a name or a type that Delta does not have.
    """
    columns = []
    for column in layout.stored:
        name = file_column(column.name)
        try:
            columns.append(_field(name, _delta_type(parse(storage_type(column.type)))))
        except UnsupportedError as error:
            raise UnsupportedError(f"column {column.name}: {error.message}") from error
    return json.dumps({"type": "struct", "fields": columns}, separators=(",", ":"))


def _field(name: str, delta_type: Any) -> dict[str, Any]:
    if _UNFIT.search(name):
        raise UnsupportedError(f"Delta allows none of ' ,;{{}}()=' and no line ends or tabs in the name {name!r}")
    return {"name": name, "type": delta_type, "nullable": True, "metadata": {}}


def _delta_type(stored: ColumnType) -> Any:
    members = [(name, _delta_type(member)) for name, member in stored.fields]
    match stored.kind:
        case "LIST":
            return {"type": "array", "elementType": members[0][1], "containsNull": True}
        case "MAP":
            (_, key), (_, value) = members
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        case "STRUCT" if _looks_like_variant(members):
            raise UnsupportedError(
                "DuckDB's delta_scan takes a STRUCT of metadata and value, as of a VARIANT, for a VARIANT"
            )
        case "STRUCT":
            return {"type": "struct", "fields": [_field(name, member) for name, member in members]}
        case _ if stored.row.delta is None:
            raise UnsupportedError(f"Delta has no type for {stored.text}")
        case _:
            return stored.row.delta.format(stored.parameters)


def _looks_like_variant(members: list[tuple[str, Any]]) -> bool:
    """Return whether DuckDB 1.5 reads a group of a Delta table as a VARIANT, despite the schema, and fails."""
    types = dict(members)
    has_names = types.keys() - {"typed_value"} == {"metadata", "value"}
    return has_names and all(types[name] in ("string", "binary") for name in ("metadata", "value"))


# Entries -------------------------------------------------------------------------------------------------------------


def entry(log: DeltaLog, content: DeltaContent, moment: DeltaMoment) -> tuple[DeltaLog, bytes] | None:
    """Return the log after the entry that makes it equal to a content, and the bytes of that entry.

    Returns:
        None if the log is equal already, or is not needed.
    """
    added = sorted(content.files.keys() - log.files)
    removed = sorted(log.files - content.files.keys())
    schema_sum = log.schema_sum if content.schema is None else _sum(content.schema)
    if not added and not removed and schema_sum == log.schema_sum:
        return None
    after = DeltaLog(
        log.version + 1,
        log.id or str(uuid.uuid4()),
        schema_sum,
        log.has_ntz or _has_ntz(content.schema),
        frozenset(content.files),
    )
    actions: list[dict[str, Any]] = [_commit_info(moment, is_append=not removed and log.schema_sum == schema_sum)]
    if log.version < 0 or after.has_ntz != log.has_ntz:
        actions.append(_protocol(has_ntz=after.has_ntz))
    if content.schema is not None and schema_sum != log.schema_sum:
        actions.append(_metadata(after.id, content.schema, moment))
    actions += [{"remove": _remove(name, moment)} for name in removed]
    actions += [_add(content.files[name], moment) for name in added]
    return after, _lines(actions)


def _lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def whole(log: DeltaLog, content: DeltaContent, moment: DeltaMoment) -> bytes:
    """Return the lines of a checkpoint, which replaces all entries so far for readers."""
    assert content.schema is not None
    added = (_add(content.files[name], moment) for name in sorted(content.files))
    return _lines([_protocol(has_ntz=log.has_ntz), _metadata(log.id, content.schema, moment), *added])


def replayed(log: DeltaLog, version: int, data: bytes, where: str) -> DeltaLog:
    """Return a log after one more entry, by any writer.

    Raises:
        CorruptError: The entry is damaged.
    """
    files = set(log.files)
    try:
        for line in filter(None, data.decode().split("\n")):
            action = fields.as_object(fields.DECODER.decode(line))
            if add := action.get("add"):
                files.add(fields.as_text(add["path"]))
            elif remove := action.get("remove"):
                files.discard(fields.as_text(remove["path"]))
            elif metadata := action.get("metaData"):
                log = replace(log, id=fields.as_text(metadata["id"]), schema_sum=_sum(metadata["schemaString"]))
            elif protocol := action.get("protocol"):
                log = replace(log, has_ntz=_NTZ in (protocol.get("readerFeatures") or ()))
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{where} is damaged: {error}", hint=REBUILD, path=where) from error
    return replace(log, version=version, files=frozenset(files))


def _sum(schema: str) -> str:
    return checksum(schema.encode())[:16]


def _has_ntz(schema: str | None) -> bool:
    return schema is not None and '"timestamp_ntz"' in schema


def _commit_info(moment: DeltaMoment, *, is_append: bool) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": moment.made_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append" if is_append else "Overwrite"},
            "isBlindAppend": is_append,
            "engineInfo": f"dbfarm/{__version__}",
            "dbfarm_tick": moment.tick,
            "dbfarm_history": moment.history,
            "dbfarm_manifest": moment.manifest,
        }
    }


def _protocol(*, has_ntz: bool) -> dict[str, Any]:
    if not has_ntz:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    features = {"readerFeatures": [_NTZ], "writerFeatures": [_NTZ]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


def _metadata(identity: str, schema: str, moment: DeltaMoment) -> dict[str, Any]:
    return {
        "metaData": {
            "id": identity,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
            "configuration": {},
            "createdTime": moment.made_ms,
        }
    }


def _add(file: DeltaFile, moment: DeltaMoment) -> dict[str, Any]:
    return {
        "add": {
            "path": file.name,
            "partitionValues": {},
            "size": file.bytes,
            "modificationTime": moment.made_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }


def _remove(name: str, moment: DeltaMoment) -> dict[str, Any]:
    return {"path": name, "deletionTimestamp": moment.made_ms, "dataChange": True}
