"""The content of a Parquet replica at one tick, and the manifest that describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time
from wlc.farm.ddl_fields import as_ddl, ddl_json
from wlc.farm.documents import decode_document, encode_document
from wlr.engine.state import as_standing, standing_json
from wlr.fold.files import FilePart
from wlr.plan.contained_transactions import NOTHING, Contained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.model import Ddl, Layout, Name, Position, SequencePosition
    from wlr.fold.tally import Held

FORMAT = 1
ANEW = "Make the replica anew."


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table and its files, which do not overlap and come in key order where there is a key."""

    table: Name
    layout: Layout
    parts: tuple[FilePart, ...]

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
        digests: What the tables hold; see `wlr.fold.tally`.
        contained: What it contains of other sites, too; see `ReplicaState`.
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
    digests: Mapping[Name, Held] = field(default_factory=dict)
    contained: Contained = NOTHING

    @property
    def paths(self) -> set[str]:
        """Paths of the data files that it names."""
        return {part.file.path for table in self.tables for part in table.parts}


def encode_version(version: Version) -> bytes:
    """Write a version as the bytes of its manifest."""
    return encode_document(
        "manifest",
        {
            **standing_json(version),
            "made": format_time(version.made),
            "catalog": version.catalog,
            "schema": [ddl_json(ddl) for ddl in version.schema],
            "schema_after": [ddl_json(ddl) for ddl in version.schema_after],
            "sequences": [fields.sequence_json(sequence) for sequence in version.sequences],
            "tables": [_table_json(table) for table in version.tables],
            "format": FORMAT,
        },
    )


def decode_version(data: bytes, where: str) -> Version:
    """Read and check a manifest.

    Raises:
        CorruptError: It is damaged, or of a newer version.
    """

    def read(content: dict[str, Any]) -> Version:
        fields.as_format(content["format"], FORMAT)
        return Version(
            **as_standing(content),
            made=fields.as_time(content["made"]),
            catalog=fields.as_text(content["catalog"]),
            schema=tuple(as_ddl(ddl) for ddl in fields.as_list(content["schema"])),
            schema_after=tuple(as_ddl(ddl) for ddl in fields.as_list(content["schema_after"])),
            sequences=tuple(fields.as_sequence(sequence) for sequence in fields.as_list(content["sequences"])),
            tables=tuple(_table(table, where) for table in fields.as_list(content["tables"])),
        )

    return decode_document("manifest", data, where, read, hint=ANEW)


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


def part_json(part: FilePart) -> dict[str, Any]:
    """Write a part."""
    return {**fields.data_file_json(part.file), "low": list(part.low), "high": list(part.high)}


def part_from_json(value: object, where: str) -> FilePart:
    """Read a part found in the file `where`."""
    content = fields.as_object(value)
    low, high = (tuple(map(fields.as_text, fields.as_list(content[name]))) for name in ("low", "high"))
    return FilePart(fields.as_data_file(content, where), low, high)
