"""DuckDB beside a PostgreSQL replica: it folds changes, and writes rows as PostgreSQL's COPY reads them.

DuckDB does not read the replica. Rows pass from data files through DuckDB into a pipe, and in blocks to the server.

Rows as PostgreSQL's binary COPY reads them, made by DuckDB.

The server reads numbers and times from bytes in two thirds of the time that it needs for text, which is most of the
time of a large change. Rows pass as bytes only if the server's type of every column has a known format; other rows pass
as text.

Source: PostgreSQL's documentation, "COPY", "Binary Format", and the receive functions of its types.
"""

from __future__ import annotations

import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError
from wlc.farm.read_ahead import one_ahead
from wlr.engine.calculator import Scratch, connect_free_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from wlc.dialect.postgres.server_connection import Connection


# Header and trailer of the rows.
BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
# More digits after the point would exceed DuckDB's 64-bit decimals.
_DIGITS, _SCALE = 18, 9
_GROUP = 10_000


def _finite(number: str, kind: str, bits: str, most: int) -> str:
    """Return SQL for the number of a time: the greatest and the least number are the infinities."""
    start = f"{kind} '2000-01-01'"
    return (
        f"CASE WHEN isfinite({{0}}) THEN {number} WHEN {{0}} > {start} THEN {most}"
        f" WHEN {{0}} < {start} THEN ({-most - 1})::{bits} END"
    )


# PostgreSQL counts days and microseconds from 2000 on. It refuses times as early as the least ones here.
_DAY = "CAST(greatest({0} - DATE '2000-01-01', -2147483647) AS INTEGER)"
_MICROSECOND = "greatest(epoch_us({0}), -9222425352054775807) - 946684800000000"
# By DuckDB's type: the oids of the server's types with the same values, their size, and the SQL of a number with the
# same bits.
_FIXED: Mapping[str, tuple[int, int, str]] = {
    "BOOLEAN": (16, 1, "{0}"),
    "SMALLINT": (21, 2, "{0}"),
    "INTEGER": (23, 4, "{0}"),
    "BIGINT": (20, 8, "{0}"),
    "DATE": (1082, 4, _finite(_DAY, "DATE", "INTEGER", (1 << 31) - 1)),
    **{
        name: (oid, 8, _finite(_MICROSECOND, name, "BIGINT", (1 << 63) - 1))
        for name, oid in (("TIMESTAMP", 1114), ("TIMESTAMP WITH TIME ZONE", 1184))
    },
}
# Text keeps only the sign of a NaN.
_FLOATS = {
    "FLOAT": (700, b"\x7f\xc0\0\0", b"\xff\xc0\0\0"),
    "DOUBLE": (701, b"\x7f\xf8\0\0\0\0\0\0", b"\xff\xf8\0\0\0\0\0\0"),
}
_TEXTS = (25, 1043)
_NUMERIC = 1700
_NULL = "'\\xFF\\xFF\\xFF\\xFF'::BLOB"


def has_bytes(declared: str, oid: int, modifier: int) -> bool:
    """Return whether the binary format of a column is known.

    Args:
        declared: DuckDB's type.
        oid: Oid of the column's type at the server.
        modifier: Type modifier of the column, -1 without one.
    """
    if declared in _FIXED:
        return _FIXED[declared][0] == oid
    if declared in _FLOATS:
        return _FLOATS[declared][0] == oid
    if declared == "VARCHAR":
        return oid in _TEXTS
    if oid != _NUMERIC or not (found := _DECIMAL.fullmatch(declared)):
        return False
    precision, scale = int(found[1]), int(found[2])
    return precision <= _DIGITS and scale <= _SCALE and modifier == (precision << 16 | scale) + 4


def rows_sql(columns: Iterable[tuple[str, str]], query: str) -> str:
    """Return a query with one column: the bytes of each row of a query.

    Args:
        columns: Name and DuckDB type of each column of the query, all with a known binary format.
        query: The rows.
    """
    parts = [_field(declared, name) for name, declared in columns]
    # Appending to a long text would copy it again.
    parts = [_bytes(len(parts), 2), *parts]
    return f"SELECT {' || '.join(parts)} AS row FROM ({query})"


def _field(declared: str, name: str) -> str:
    """Return the SQL of a value after its size."""
    if declared == "VARCHAR":
        value = f"{_bits(f'CAST(strlen({name}) AS INTEGER)')} || encode({name})"
    elif declared in _FLOATS:
        _, nan, minus_nan = _FLOATS[declared]
        odd = f"CASE WHEN signbit({name}) THEN {_literal(minus_nan)} ELSE {_literal(nan)} END"
        value = f"{_bytes(len(nan), 4)} || CASE WHEN isnan({name}) THEN {odd} ELSE {_bits(name)} END"
    elif found := _DECIMAL.fullmatch(declared):
        value = _decimal(name, int(found[1]), int(found[2]))
    else:
        _, size, number = _FIXED[declared]
        value = f"{_bytes(size, 4)} || {_bits(number.format(name))}"
    return f"coalesce({value}, {_NULL})"


def _decimal(name: str, precision: int, scale: int) -> str:
    """Return the SQL of a decimal: its groups of four digits on both sides of the point, which may be zeros."""
    whole, fraction = -(-(precision - scale) // 4), -(-scale // 4)
    before = f"trunc(abs({name}))"
    behind = f"(CAST((abs({name}) - {before}) * {10**scale} AS BIGINT) * {10 ** (4 * fraction - scale)})"
    groups = [f"((CAST({before} AS BIGINT) // {_GROUP**at}) % {_GROUP})" for at in reversed(range(whole))]
    groups += [f"(({behind} // {_GROUP**at}) % {_GROUP})" for at in reversed(range(fraction))]
    sign = f"CASE WHEN {name} < 0 THEN {_bytes(0x4000, 2)} ELSE {_bytes(0, 2)} END"
    head = _bytes(8 + 2 * len(groups), 4, len(groups), 2, whole - 1, 2)
    return " || ".join([head, sign, _bytes(scale, 2), *_packed(groups)])


def _packed(groups: list[str]) -> Iterable[str]:
    """Pack groups into few numbers, since each costs a conversion."""
    at = 0
    for size, kind in ((4, "BIGINT"), (2, "INTEGER"), (1, "SMALLINT")):
        while len(groups) - at >= size:
            shifted = (f"{group} * {1 << 16 * (size - 1 - n)}" for n, group in enumerate(groups[at : at + size]))
            yield _bits(f"CAST({' + '.join(shifted)} AS {kind})")
            at += size


def _bits(number: str) -> str:
    """Return the SQL of a number's bytes, the highest first."""
    return f"CAST(CAST({number} AS BIT) AS BLOB)"


def _bytes(*numbers: int) -> str:
    """Write numbers, each followed by its size in bytes."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return _literal(b"".join(number.to_bytes(size, "big", signed=True) for number, size in pairs))


def _literal(content: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02X}" for byte in content) + "'::BLOB"


_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 1 << 14


def work_folder(identity: str) -> Path:
    """Return the folder for temporary files of a database's workshop."""
    return Path(tempfile.gettempdir()).resolve() / f"wlr-{identity}" / "work"


class Workshop:
    """A DuckDB database in memory, and the folder for its spilled data.

    Args:
        identity: Identifies the database; only one run at a time works on it.
        folders: Folders with data files.
    """

    def __init__(self, identity: str, folders: Sequence[Path]) -> None:
        work = work_folder(identity)
        self.folder = work.parent
        try:
            # Rows of the replica pass through the folder.
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            hint = "Set TMPDIR to a folder with room."
            raise UnavailableError(f"{self.folder} cannot be made: {error}", hint=hint) from error
        self.scratch = Scratch(work, folders)
        self.duckdb = connect_free_of("main")
        self.scratch.confine(self.duckdb)
        # Zoned times are written as text that names their zone, UTC.
        self.duckdb.execute("SET TimeZone = 'UTC'")

    def close(self) -> None:
        """Remove the database and the folder."""
        self.duckdb.close()
        self.scratch.remove()
        with suppress(OSError):
            self.folder.rmdir()

    def bring(self, connection: Connection, query: str, quoted: Collection[str], into: str) -> int:
        """Copy the rows of a DuckDB query into a PostgreSQL table, and return their number.

        Args:
            connection: Connection in a transaction.
            query: Its columns are those that COPY reads.
            quoted: Columns of the query with empty values, which are not NULL.
            into: A table with a list of columns, and options of COPY, as SQL text.
        """
        force = f", FORCE_QUOTE ({', '.join(map(quote, quoted))})" if quoted else ""
        with connection.cursor() as cursor:
            options = f"(FORMAT csv, HEADER false, NULLSTR ''{force})"
            with self._written(query, options) as rows, cursor.copy(into.encode()) as copy:
                while block := rows.read(_BLOCK_BYTES):
                    copy.write(block)
            return cursor.rowcount

    def bring_bytes(self, connection: Connection, query: str, into: str) -> int:
        """Copy rows in binary format into a PostgreSQL table, and return their number.

        Args:
            connection: Connection in a transaction.
            query: Its column has the bytes of each row.
            into: As for `bring`.
        """
        # Rows of one block may have more than 2 GiB.
        self.duckdb.execute("SET arrow_large_buffer_size = true")
        reader = self.duckdb.sql(query).to_arrow_reader(_BLOCK_ROWS)
        with connection.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            try:
                with (
                    cursor.copy(into.encode()) as copy,
                    closing(one_ahead(pool, reader)) as blocks,
                ):
                    copy.write(BEGIN)
                    for block in blocks:
                        copy.write(_content(block.column(0)))
                    copy.write(END)
            except BaseException:
                self.duckdb.interrupt()
                raise
            return cursor.rowcount

    @contextmanager
    def _written(self, query: str, options: str) -> Iterator[BinaryIO]:
        """Open the output of COPY for a query while it is written, so that the server reads it at the same time."""
        pipe = self.scratch.folder / "rows.csv"
        os.mkfifo(pipe, 0o600)
        # A reader sees the end of a pipe once all writers have closed it. We keep it open until everything is written.
        rows = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
        held = os.open(pipe, os.O_WRONLY)
        os.set_blocking(rows.fileno(), True)

        def write() -> None:
            try:
                self.duckdb.execute(f"COPY ({query}) TO {literal(str(pipe))} {options}")
            finally:
                os.close(held)

        with ThreadPoolExecutor(1) as pool, rows:
            writing = pool.submit(write)
            try:
                yield rows
            except BaseException:
                self.duckdb.interrupt()
                raise
            finally:
                # The writer waits until its output is read.
                while rows.read(_BLOCK_BYTES):
                    pass
                pipe.unlink()
            writing.result()


def _content(rows: pa.Array) -> memoryview:
    """Return the bytes of all rows, which are contiguous."""
    _, offsets, data = rows.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[rows.offset] : ends[rows.offset + len(rows)]]
