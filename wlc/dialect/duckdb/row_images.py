"""The rows that transactions removed and added, for a DBA to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import BY_NAME, storage_type
from wlc.farm.history import batches_between
from wlc.farm.typed_names import is_meant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Column, Name, TableFile

FETCH_ROWS = 10_000
# Storage types that JSON holds exactly; other values become text.
_AS_THEMSELVES = frozenset(
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT VARCHAR".split()
)


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row image: weight -1 existed before the transaction, weight 1 exists after it."""

    tick: int
    table: Name
    weight: int
    values: Mapping[str, object]


def rows(
    database: FarmDatabase,
    *,
    batch: int | None = None,
    first: int | None = None,
    last: int | None = None,
    table: str | None = None,
) -> Iterator[ChangedRow]:
    """Read the row images that transactions removed and added; arguments as fields of `wlc.farm.history.LogChoice`.

    Within a data file, rows are ordered by tick, removed ones before added ones.

    Raises:
        InvalidError: There is no such batch.
        CorruptError: A log file or a data file is damaged.
    """
    for found in batches_between(database, batch, first, last):
        for file in found.files:
            if table is None or is_meant(file.table, table):
                local = database.fetch(file)
                try:
                    yield from _rows_of(local, file, first, last)
                finally:
                    database.release(local)


def _rows_of(path: Path, file: TableFile, first: int | None, last: int | None) -> Iterator[ChangedRow]:
    columns = file.layout.stored
    selected = ", ".join(["_tick", "_weight", *map(_shown, columns)])
    bounds = " AND ".join(
        f"_tick {comparison} {tick}" for comparison, tick in ((">=", first), ("<=", last)) if tick is not None
    )
    where = f" WHERE {bounds}" if bounds else ""
    with engine.connect() as connection:
        found = connection.execute(f"SELECT {selected} FROM {rows_of(path)}{where} ORDER BY _tick, _weight")
        while chunk := found.fetchmany(FETCH_ROWS):
            for tick, weight, *values in chunk:
                named = {column.name: value for column, value in zip(columns, values, strict=True)}
                yield ChangedRow(tick, file.table, weight, named)


def _shown(column: Column) -> str:
    name, row = quote(column.name), BY_NAME.get(column.type.upper())
    return name if row is not None and row.is_native else f"CAST({name} AS VARCHAR)"


def json_object_sql(values: Iterable[tuple[Column, str]]) -> str:
    """Return the expression that writes columns, given with the SQL of their stored values, as JSON."""
    parts = []
    for column, stored in values:
        value = stored if storage_type(column.type) in _AS_THEMSELVES else f"CAST({stored} AS VARCHAR)"
        parts.append(f"{literal(column.name)}, {value}")
    return f"json_object({', '.join(parts)})"
