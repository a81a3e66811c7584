"""What a Parquet replica is at one tick, and its manifest, which says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wlc import fields
from wlc.clock import format_time
from wlc.errors import CorruptError
from wlc.log import digest, seal_problem
from wlr.engine import START
from wlr.engine.tally import as_tally, tally_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.model import DataFile, Ddl, Digest, Layout, Name, Position, SequencePosition
    from wlr.engine.parquet.kernel import Key

FORMAT = 1
_SEAL_START = b',"sha256":"'


@dataclass(frozen=True, slots=True)
class Part:
    """One data file of a table; `low` and `high` enclose its keys as texts, both empty where there is no key."""

    file: DataFile
    low: Key = ()
    high: Key = ()


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table and its files, which do not overlap and come in key order where there is a key."""

    table: Name
    layout: Layout
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return sum(part.file.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class Version:
    """The replica at one tick.

    Attributes:
        made: When it became the current one.
        schema: Statements that build the schema on an empty database; `schema_after`: those to run once rows are there.
        digests: What the tables hold; see `wlr.engine.tally`.
    """

    position: Position
    batch_last: int
    clock: datetime | None
    made: datetime
    catalog: str
    schema: tuple[Ddl, ...]
    schema_after: tuple[Ddl, ...]
    sequences: tuple[SequencePosition, ...]
    tables: tuple[LakeTable, ...]
    digests: Mapping[Name, Digest | None] = field(default_factory=dict)


def encode_version(version: Version) -> bytes:
    """Write a version as the bytes of its manifest."""
    return seal(
        "manifest",
        {
            "position": fields.position_json(version.position) if version.position.history else None,
            "batch_last": version.batch_last,
            "clock": format_time(version.clock) if version.clock else None,
            "made": format_time(version.made),
            "catalog": version.catalog,
            "schema": [fields.ddl_json(ddl) for ddl in version.schema],
            "schema_after": [fields.ddl_json(ddl) for ddl in version.schema_after],
            "sequences": [fields.sequence_json(sequence) for sequence in version.sequences],
            "tables": [_table_json(table) for table in version.tables],
            "digests": tally_json(version.digests),
        },
    )


def decode_version(data: bytes, where: str) -> Version:
    """Read and check a manifest.

    Raises:
        CorruptError: It is damaged, or of a newer version.
    """
    content = unseal("manifest", data, where)
    try:
        return Version(
            position=START if content["position"] is None else fields.as_position(content["position"]),
            batch_last=fields.as_count(content["batch_last"]),
            clock=fields.as_time(content["clock"]) if content["clock"] is not None else None,
            made=fields.as_time(content["made"]),
            catalog=fields.as_text(content["catalog"]),
            schema=tuple(fields.as_ddl(ddl) for ddl in fields.as_list(content["schema"])),
            schema_after=tuple(fields.as_ddl(ddl) for ddl in fields.as_list(content["schema_after"])),
            sequences=tuple(fields.as_sequence(sequence) for sequence in fields.as_list(content["sequences"])),
            tables=tuple(_table(table, where) for table in fields.as_list(content["tables"])),
            digests=as_tally(content.get("digests") or []),
        )
    except (KeyError, ValueError) as error:
        raise CorruptError(f"{where} is damaged: {error}", path=where) from error


def seal(kind: str, content: dict[str, Any]) -> bytes:
    """Write a document closed by a checksum of all that is above it."""
    text = json.dumps({**content, "format": FORMAT}, ensure_ascii=False, indent=1)
    body = f'{{"{kind}":\n{text}\n'.encode()
    return body + _SEAL_START + digest(body).encode() + b'"}\n'


def unseal(kind: str, data: bytes, where: str) -> dict[str, Any]:
    """Read what `seal` wrote.

    Raises:
        CorruptError: It is damaged, or of a newer version.
    """
    if problem := seal_problem(data, _SEAL_START):
        raise CorruptError(f"{where}: {problem}", hint="Make the replica anew.", path=where)
    try:
        document = fields.as_object(fields.DECODER.decode(data.decode()))
        json.dumps(document, ensure_ascii=False).encode()  # Refuses lone halves of surrogate pairs.
        content = fields.as_object(document[kind])
        fields.as_format(content["format"], FORMAT)
    except (KeyError, ValueError, RecursionError) as error:
        raise CorruptError(f"{where} is damaged: {error}", hint="Make the replica anew.", path=where) from error
    return content


def _table_json(table: LakeTable) -> dict[str, Any]:
    return {
        "table": fields.name_json(table.table),
        "layout": fields.layout_json(table.layout),
        "files": [part_json(part) for part in table.parts],
    }


def _table(value: object, where: str) -> LakeTable:
    content = fields.as_object(value)
    parts = tuple(part_from_json(part, where) for part in fields.as_list(content["files"]))
    return LakeTable(fields.as_name(content["table"]), fields.as_layout(content["layout"]), parts)


def part_json(part: Part) -> dict[str, Any]:
    """Write a part."""
    return {**fields.data_file_json(part.file), "low": list(part.low), "high": list(part.high)}


def part_from_json(value: object, where: str) -> Part:
    """Read a part found in the file `where`."""
    content = fields.as_object(value)
    low, high = (tuple(map(fields.as_text, fields.as_list(content[name]))) for name in ("low", "high"))
    return Part(fields.as_data_file(content, where), low, high)
