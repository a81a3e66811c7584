"""Filtered row images: DuckDB applies conditions, columns and masks to both images of a change alike."""

from __future__ import annotations

import hashlib
import hmac
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parquet_sql import PASSING, rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, store_sql
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.model import WEIGHT, file_column
from wlr.engine.calculator import connect, evaluating, reading
from wlr.reading.condition import checked_condition
from wlr.replay.plan.row_filters import CONSTANT, HASH, NULL, RowFilters, TableFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from wlc.farm.model import Column, Layout
    from wlr.replay.plan.row_filters import Mask


_BLOCK_BYTES = 64
_KEY_BYTES_MIN = 16
# Variables of the connection keep the key out of the text of statements, which errors can show.
_INNER, _OUTER = "dbfarm_mask_inner", "dbfarm_mask_outer"


def with_key(filters: RowFilters, known: str) -> RowFilters:
    """Return filters with the key of their hashes; its file is `known` unless they name another one.

    Raises:
        InvalidError: A mask hashes and no key is given, or the key is too short.
        UnavailableError: The file cannot be read.
    """
    if not filters.hashes:
        return RowFilters(filters.tables)
    file = filters.key_file or known
    if not file:
        hint = "head -c 32 /dev/urandom > mask.key, then --mask-key mask.key; keep the file out of the replica's reach"
        raise InvalidError(
            "a hash needs a key: without one, an attacker can guess values by hashing candidates", hint=hint
        )
    path = Path(file).resolve()
    return RowFilters(filters.tables, str(path), _mark(_read_key(path)))


def key_of(filters: RowFilters) -> bytes:
    """Return the key of the hashes of filters, b"" without hashes.

    Raises:
        InvalidError: The file holds another key now.
        UnavailableError: It cannot be read.
    """
    if not filters.hashes:
        return b""
    key = _read_key(Path(filters.key_file))
    if _mark(key) != filters.key_mark:
        raise other_key(filters.key_file)
    return key


def other_key(file: str) -> InvalidError:
    """Build the error for a key that differs from the replica's."""
    message = f"{file} holds another key than the replica's"
    return InvalidError(message, hint="Give the file with the same key: --mask-key FILE", path=file)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except OSError as error:
        message = f"the key {path} cannot be read: {error.strerror}"
        raise UnavailableError(message, hint="Give the file with the same key: --mask-key FILE") from error
    if len(key) < _KEY_BYTES_MIN:
        message = f"the key {path} has {len(key)} bytes, which is too short"
        raise InvalidError(message, hint=f"head -c 32 /dev/urandom > {path}")
    return key


def _mark(key: bytes) -> str:
    return hmac.new(key, b"dbfarm mask key", hashlib.sha256).hexdigest()


@contextmanager
def masking(key: bytes, work: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection that can filter, with the key of `key_of`; it spills to the folder."""
    with closing(connect(work)) as connection:
        if key:
            short = key if len(key) <= _BLOCK_BYTES else hashlib.sha256(key).digest()
            padded = short.ljust(_BLOCK_BYTES, b"\0")
            for name, byte in ((_INNER, 0x36), (_OUTER, 0x5C)):
                value = bytes(each ^ byte for each in padded)
                connection.execute(f"SET VARIABLE {name} = $1::BLOB", [value])
        yield connection


def refuse_unfit(connection: duckdb.DuckDBPyConnection, chosen: TableFilter, layout: Layout) -> None:
    """Refuse a filter that does not fit a table.

    Raises:
        InvalidError: A column is missing or does not fit its mask, or the condition depends on more than a row.
    """
    chosen.projected(layout)
    _condition(connection, chosen, layout)
    for column in layout.stored:
        mask = chosen.mask_of(column.name)
        if mask is not None and mask.kind == CONSTANT:
            query = f"SELECT TRY_CAST({literal(mask.value)} AS {column.type}) IS NULL"
            if connection.execute(query).fetchall()[0][0]:
                message = f"{mask.value!r} is no {column.type}, the type of column {column.name} of {chosen.table}"
                raise InvalidError(message, hint=f"--mask '{chosen.table}: {column.name} = null'")


def _condition(connection: duckdb.DuckDBPyConnection, chosen: TableFilter, layout: Layout) -> str:
    if not chosen.where:
        return "true"
    try:
        return checked_condition(connection, chosen.where, chosen.table, layout).sql
    except InvalidError as error:
        # The hint of a read is about Python: replace it.
        names = ", ".join(f"{column.name} {column.type}" for column in layout.stored)
        error.hint = f"--where takes one expression over a row's columns, which are: {names}."
        raise


@dataclass(frozen=True, slots=True)
class ChosenImages:
    """Row images that pass a filter.

    Attributes:
        layout: Layout of the replica's table.
        sql: Selects them as stored, and their weight.
        chosen: The filter.
    """

    layout: Layout
    sql: str
    chosen: TableFilter

    def reading(self) -> ExitStack:
        """Translate errors while the images are read."""
        opened = ExitStack()
        opened.enter_context(reading(f"row images of {self.chosen.table} to filter"))
        opened.enter_context(evaluating(self.chosen.where, self.chosen.table))
        return opened


def chosen_images(
    connection: duckdb.DuckDBPyConnection, chosen: TableFilter, layout: Layout, raw: str, *, keeps_ticks: bool = False
) -> ChosenImages:
    """Return the images of a table that pass its filter.

    Args:
        connection: The connection that reads them.
        chosen: The filter. A row whose condition is NULL does not pass.
        layout: Layout of the master's table.
        raw: A query that selects images as stored and their weight.
        keeps_ticks: The query and the result also select the ticks.

    Raises:
        InvalidError: The filter does not fit the table.
    """
    condition = _condition(connection, chosen, layout)
    own = chosen.projected(layout)
    stored = dict(zip(layout.stored, fold.stored_columns(layout), strict=True))
    kept = {column: quote(f"dbfarm stored {number}") for number, column in enumerate(layout.stored)}
    declared = (f"{load_sql(column, name)} AS {quote(column.name)}" for column, name in stored.items())
    both = ", ".join([*declared, *(f"{stored[column]} AS {name}" for column, name in kept.items())])
    values = (
        f"{_value(column, chosen.mask_of(column.name), kept[column])} AS {quote(file_column(column.name))}"
        for column in chosen.kept(layout)
    )
    ticks = (', _tick AS "dbfarm tick"', '"dbfarm tick" AS _tick, ') if keeps_ticks else ("", "")
    source = f'SELECT {both}, {WEIGHT} AS "dbfarm weight"{ticks[0]} FROM ({raw})'
    listed = ticks[1] + ", ".join([f'CAST("dbfarm weight" AS TINYINT) AS {WEIGHT}', *values])
    return ChosenImages(own, f"SELECT {listed} FROM ({source}) AS {quote(chosen.table.name)} WHERE {condition}", chosen)


def _value(column: Column, mask: Mask | None, stored: str) -> str:
    if mask is None:
        return stored
    value = quote(column.name)
    if mask.kind == HASH:
        inner = f"sha256(getvariable('{_INNER}') || encode({value}))"
        masked = f"sha256(getvariable('{_OUTER}') || unhex({inner}))"
    elif mask.kind == NULL:
        masked = f"CAST(NULL AS {column.type})"
    elif mask.kind == CONSTANT:
        masked = f"CAST({literal(mask.value)} AS {column.type})"
    else:
        masked = f"left({value}, {mask.value})"
    return store_sql(column, masked)


def write_images(connection: duckdb.DuckDBPyConnection, images: ChosenImages, into: Path, tick: int) -> tuple[int, int]:
    """Write images as a data file of one tick; return the numbers of added and removed rows."""
    with images.reading():
        query = f"SELECT CAST({tick} AS BIGINT) AS _tick, * FROM ({images.sql})"
        connection.execute(f"COPY ({query}) TO {literal(str(into))} ({PASSING})")
        counts = f"count(*) FILTER ({WEIGHT} > 0), count(*) FILTER ({WEIGHT} < 0)"
        added, removed = connection.execute(f"SELECT {counts} FROM {rows_of(into)}").fetchall()[0]
    return int(added), int(removed)
