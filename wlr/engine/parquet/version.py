"""The content of a Parquet replica at one tick, and the manifest that describes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from wlc.farm.documents import Document
from wlc.farm.json_fields import FORMAT_VERSION, FormatVersion, JsonKey, Later
from wlc.farm.model import Ddl, Layout, SequencePosition
from wlc.farm.names import TableName
from wlr.engine.state import StartOrPosition, WrittenContained
from wlr.fold.files import FilePart
from wlr.fold.tally import Tallies

ANEW = "Make the replica anew."


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table and its files, which do not overlap and come in key order where there is a key."""

    table: TableName
    layout: Layout
    parts: Annotated[tuple[FilePart, ...], JsonKey("files")]

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

    position: StartOrPosition
    batch_last: int
    clock: datetime | None
    digests: Tallies
    contained: Later[WrittenContained]
    made: datetime
    catalog: str
    schema: tuple[Ddl, ...]
    schema_after: tuple[Ddl, ...]
    sequences: tuple[SequencePosition, ...]
    tables: tuple[LakeTable, ...]
    format: FormatVersion = FORMAT_VERSION

    @property
    def paths(self) -> set[str]:
        """Paths of the data files that it names."""
        return {part.file.path for table in self.tables for part in table.parts}


_DOCUMENT = Document("manifest", Version, hint=ANEW)
encode_version, decode_version = _DOCUMENT.encode, _DOCUMENT.decode
