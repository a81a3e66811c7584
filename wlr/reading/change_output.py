"""Changes of a table in the formats of `wlr rows changes`: lines of JSON or CSV, an Arrow stream, a Parquet file."""

from __future__ import annotations

import csv
import io
import re
import shlex
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql
from wlc.farm.errors import InvalidError
from wlc.farm.model import WEIGHT, Column, file_column
from wlr.reading.feeds.formats import cells_sql, object_sql, quoted_cell_sql
from wlr.reading.file_endings import format_of_file
from wlr.reading.query import feed_column

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from wlr.reading.change_feed import ChangeFeed

_TIME = "strftime(_committed AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
_TICK = re.compile(rb'^\{"_tick":(\d+),', re.MULTILINE)
_BLOCK = 1 << 20
_LONGEST_BEGIN = 64
_ORDER = f"ORDER BY _tick, {WEIGHT}"


class ChangeFormat(ABC):
    """A format.

    Attributes:
        name: As in `--format`.
        is_text: A terminal shows it.
    """

    name: ClassVar[str]
    is_text: ClassVar[bool] = False

    @abstractmethod
    def write(self, feed: ChangeFeed, out: BinaryIO, note: Callable[[int], None], *, is_first: bool) -> None:
        """Write the changes of a feed.

        Args:
            feed: The changes.
            out: The output.
            note: Called with each tick up to which the output is complete, where lines can continue after an error.
            is_first: Nothing was written before.
        """


class _Lines(ChangeFormat):
    """Lines of text that DuckDB makes: Python handles no single rows."""

    is_text = True

    def write(self, feed: ChangeFeed, out: BinaryIO, note: Callable[[int], None], *, is_first: bool) -> None:
        # The header is written with the first rows: a failure before them has written nothing.
        header = self.header(feed).encode() if is_first else b""
        for batch in feed.batches(_stored, lambda selected: self._query(feed, selected), note):
            lines = batch.column(0)
            offsets = memoryview(lines.buffers()[1]).cast("i" if pa.types.is_string(lines.type) else "q")
            first, end = offsets[lines.offset], offsets[lines.offset + len(lines)]
            out.write(header)
            out.write(memoryview(lines.buffers()[2] or b"")[first:end])
            header = b""
        out.write(header)

    def _query(self, feed: ChangeFeed, selected: str) -> str:
        # The SQL that writes values uses the column names of data files.
        columns = [Column(feed_column(column.name), column.type) for column in feed.layout.stored]
        renamed = ", ".join(f"{quote(c.name)} AS {quote(file_column(c.name))}" for c in columns)
        own = f"_tick, {WEIGHT}, _committed, _user, {renamed}"
        line = f"{self.line(columns)} || chr(10)"
        return f"SELECT {line} AS line FROM (SELECT {own} FROM ({selected})) {_ORDER}"

    @abstractmethod
    def line(self, columns: list[Column]) -> str:
        """Return the SQL of a line, without its end."""

    def header(self, feed: ChangeFeed) -> str:  # noqa: ARG002 - only CSV has one
        """Return the header of a file."""
        return ""


class JsonLines(_Lines):
    """A JSON object per row."""

    name = "jsonl"

    def line(self, columns: list[Column]) -> str:
        time, user = f"""coalesce('"' || {_TIME} || '"', 'null')""", "coalesce(CAST(to_json(_user) AS VARCHAR), 'null')"
        own = f"""'{{"_tick":' || _tick || ',"_weight":' || {WEIGHT} || ',"_committed":' || {time}"""
        return f"""{own} || ',"_user":' || {user} || ',' || substr({object_sql(columns)}, 2)"""


class CommaSeparated(_Lines):
    """Cells as in a feed: NULL is an empty cell, and an empty text is `""`."""

    name = "csv"

    def line(self, columns: list[Column]) -> str:
        own = f"_tick || ',' || {WEIGHT} || ',' || coalesce({_TIME}, '') || ',' || {quoted_cell_sql('_user')} || ','"
        return f"{own} || {cells_sql(columns)}"

    def header(self, feed: ChangeFeed) -> str:
        text = io.StringIO()
        names = [feed_column(column.name) for column in feed.layout.stored]
        csv.writer(text, lineterminator="\n").writerow(["_tick", WEIGHT, "_committed", "_user", *names])
        return text.getvalue()


class ArrowStream(ChangeFormat):
    """Arrow's stream format, with values as declared."""

    name = "arrow"

    def write(
        self,
        feed: ChangeFeed,
        out: BinaryIO,
        note: Callable[[int], None],  # noqa: ARG002
        *,
        is_first: bool,  # noqa: ARG002
    ) -> None:
        with pa.ipc.new_stream(out, feed.schema(load_sql)) as writer:
            for batch in feed.batches(load_sql, _ordered):
                writer.write_batch(batch)


class ParquetFile(ChangeFormat):
    """A Parquet file with values in the lossless types of data files."""

    name = "parquet"

    def write(
        self,
        feed: ChangeFeed,
        out: BinaryIO,
        note: Callable[[int], None],  # noqa: ARG002
        *,
        is_first: bool,  # noqa: ARG002
    ) -> None:
        with pq.ParquetWriter(out, feed.schema(_stored), compression="zstd") as writer:
            for batch in feed.batches(_stored, _ordered):
                writer.write_batch(batch)


def _stored(_: Column, stored: str) -> str:
    return stored


def _ordered(selected: str) -> str:
    return f"SELECT * FROM ({selected}) {_ORDER}"


_KINDS: tuple[type[ChangeFormat], ...] = (JsonLines, CommaSeparated, ParquetFile, ArrowStream)
_FORMATS = {kind.name: kind for kind in _KINDS}
_ENDINGS = {f".{name}": (name,) for name in _FORMATS} | dict.fromkeys((".json", ".ndjson"), (JsonLines.name,))


def change_format(name: str | None, out: str | None) -> ChangeFormat:
    """Return the format of a name, as in `--format`; without one, by the suffix of the output.

    Raises:
        InvalidError: There is no such format, or it contradicts the suffix.
    """
    if name is not None and name not in _FORMATS:
        raise InvalidError(f"there is no format {name!r}", hint=f"--format {' or '.join(_FORMATS)}")
    return _FORMATS[format_of_file(out or "", name, _ENDINGS, JsonLines.name)]()


def resume(file: Path) -> int:
    """Cut off the last, perhaps incomplete transaction of a file of JSON lines, and return the tick before it.

    Raises:
        InvalidError: It holds no other transaction, or lines that `JsonLines` does not write.
    """
    with file.open("r+b") as lines:
        size = lines.seek(0, io.SEEK_END)
        tick, place, rest = None, size, b""
        for start in range((size - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
            lines.seek(start)
            block = lines.read(min(_BLOCK, size - start)) + rest
            found = [(int(one[1]), start + one.start()) for one in _TICK.finditer(block) if start == 0 or one.start()]
            for number, where in reversed(found):
                if tick is not None and number != tick:
                    lines.truncate(place)
                    return tick - 1
                tick, place = number, where
            # A line may begin in the block before.
            rest = block[:_LONGEST_BEGIN]
    raise InvalidError(
        f"{file} does not hold one whole transaction of a table",
        hint=f"Remove it, and begin again: rm {shlex.quote(str(file))}",
    )
