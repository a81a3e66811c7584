"""Digests: what a table holds as a number of rows and a sum that knows no order, kept from what changes.

A row becomes a text that any program can write (docs/format.md), the text a 64-bit number by MD5, and a table the sum
of its rows' numbers modulo 2^64. The sum is linear: what a transaction adds is added, what it removes is subtracted,
and nobody reads the table again. It finds errors, not forgeries: against those there are signatures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wlc.model import (
    WEIGHT,
    Change,
    Clear,
    Ddl,
    Digest,
    Name,
    SequencePosition,
    Transaction,
    file_column,
    literal,
    quote,
)
from wlc.plain import PlainRun, parts_of
from wlc.types import Type, parse, storage_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import duckdb

    from wlc.model import Batch, Column, Layout, Record

EMPTY = Digest(0, 0)
# What comparing the content of a table with a digest can give.
SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"
MODULUS = 1 << 64
_TEXTS = ("VARCHAR", "TEXT", "STRING", "JSON")
_EPOCHS = {
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"), "epoch_us"),
    **dict.fromkeys(("TIMESTAMP_NS", "TIMESTAMPTZ_NS"), "epoch_ns"),
}


def plus(digest: Digest, rows: int, total: int) -> Digest:
    """Return the digest after rows were added, or, both negative, removed."""
    return Digest(digest.rows + rows, (digest.sum + total) % MODULUS)


# The text of a row ---------------------------------------------------------------------------------------------------


def hash_sql(layout: Layout, value: Callable[[Column], str] | None = None) -> str:
    """Return the expression, UBIGINT, that makes a row's number.

    Args:
        layout: Of the row.
        value: SQL that yields a column's value in its storage type; its name in data files if omitted.
    """
    read = value or (lambda column: quote(file_column(column.name)))
    parts = [
        part
        for number, column in enumerate(layout.stored, start=1)
        for part in _tagged(f",{number}=", parse(storage_type(column.type)), read(column), is_there=not column.nullable)
    ]
    return f"CAST(md5_number(concat({', '.join(parts or [literal('')])})) >> 64 AS UBIGINT)"


def _tagged(tag: str, kind: Type, value: str, *, is_there: bool = False) -> list[str]:
    """Arguments for concat() that write one value behind a tag, and nothing for NULL, which concat() leaves out."""
    tags = [literal(tag) if is_there else _unless_null(value, literal(tag))]
    if kind.kind in _TEXTS:
        # The length ends where the text begins; no other value needs one, because none of them holds a comma.
        colon = literal(":")
        return [*tags, f"strlen({value})", colon if is_there else _unless_null(value, colon), value]
    return [*tags, _written(kind, value)]


def _written(kind: Type, value: str) -> str:
    """Write a value that is no text, NULL for NULL."""
    match kind.kind:
        case "FLOAT" | "REAL" | "DOUBLE":
            return f"CASE WHEN isnan({value}) THEN 'nan' ELSE hex(CAST(CAST({value} AS BIT) AS BLOB)) END"
        case "BLOB":
            return f"hex({value})"
        case "DATE":
            days = f"CAST(date_diff('day', DATE '1970-01-01', {value}) AS VARCHAR)"
            return f"coalesce({days}, CAST({value} AS VARCHAR))"
        case "LIST" | "ARRAY":
            return _list(kind.fields[0][1], value)
        case "MAP":
            entry = Type("STRUCT", "", kind.fields)
            return _list(entry, f"map_entries({value})")
        case "STRUCT":
            return _unless_null(value, _struct(kind, value))
        case found if found in _EPOCHS:
            # Infinity has no number, and its text is the same in every time zone.
            return f"coalesce(CAST({_EPOCHS[found]}({value}) AS VARCHAR), CAST({value} AS VARCHAR))"
        case _:
            return value


def _list(element: Type, value: str, depth: str = "e") -> str:
    while depth in value:
        depth += "e"
    items = f"list_transform({value}, lambda {depth}: concat(',', {', '.join(_tagged('=', element, depth))}))"
    return _unless_null(value, f"concat(len({value}), '[', array_to_string({items}, ''), ']')")


def _struct(kind: Type, value: str) -> str:
    parts = [
        part
        for number, (name, member) in enumerate(kind.fields, start=1)
        for part in _tagged(f",{number}=", member, f"struct_extract({value}, {literal(name)})")
    ]
    return f"concat('{{', {', '.join(parts)}, '}}')"


def _unless_null(value: str, text: str) -> str:
    return f"CASE WHEN {value} IS NOT NULL THEN {text} END"


# Sums ----------------------------------------------------------------------------------------------------------------


def sum_rows(
    connection: duckdb.DuckDBPyConnection, layout: Layout, source: str, value: Callable[[Column], str] | None = None
) -> Digest:
    """Digest all rows of a table or a query.

    Args:
        connection: Where to ask.
        layout: Of the rows.
        source: FROM text.
        value: As for `hash_sql`.
    """
    rows, total = connection.execute(
        f"SELECT count(*), coalesce(sum({hash_sql(layout, value)}), 0) FROM {source}"
    ).fetchall()[0]
    return plus(EMPTY, rows, int(total))


def sum_quickly(
    connection: duckdb.DuckDBPyConnection,
    layout: Layout,
    source: str,
    value: Callable[[Column], str],
    *,
    is_weighted: bool = False,
) -> tuple[int, int]:
    """Count rows and add up DuckDB's own hashes of them, modulo 2^64; see `wlc.snapshot.Known`.

    Args:
        connection: Where to ask.
        layout: Of the rows.
        source: FROM text.
        value: As for `hash_sql`.
        is_weighted: They are row images, each to be taken times its weight.
    """
    number = f"hash({', '.join(['0', *map(value, layout.stored)])})"
    rows, total = ("sum(w)", "sum(CAST(h AS HUGEINT) * w)") if is_weighted else ("count(*)", "sum(h)")
    hashed = f"SELECT {number} AS h, {WEIGHT if is_weighted else 1} AS w FROM {source}"
    found = connection.execute(f"SELECT coalesce({rows}, 0), coalesce({total}, 0) FROM ({hashed})").fetchall()[0]
    return int(found[0]), int(found[1]) % MODULUS


def sum_images(
    connection: duckdb.DuckDBPyConnection, layout: Layout, source: str, value: Callable[[Column], str] | None = None
) -> int:
    """Add up the numbers of row images, each times its weight, modulo 2^64; arguments as for `sum_rows`."""
    weighted = "CASE w WHEN 1 THEN CAST(h AS HUGEINT) WHEN -1 THEN -CAST(h AS HUGEINT) ELSE CAST(h AS HUGEINT) * w END"
    hashed = f"SELECT {hash_sql(layout, value)} AS h, {WEIGHT} AS w FROM {source}"
    total = connection.execute(f"SELECT coalesce(sum({weighted}), 0) FROM ({hashed})").fetchall()[0][0]
    return int(total) % MODULUS


# Following a log -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Content:
    """A table: what is known of it, and the images that came since, by path their first and last tick."""

    known: Digest | None
    rows: int = 0
    reads: dict[str, tuple[int, int]] = field(default_factory=dict)


class Ledger:
    """Follows transactions and says what each table that they change holds afterwards.

    Args:
        known: Digests at the start; tables that are not in it are not known.
        total: Adds up the images of a data file from one tick to another, both included, modulo 2^64.
    """

    def __init__(self, known: Mapping[Name, Digest], total: Callable[[str, int, int], int]) -> None:
        self._tables = {name: _Content(digest) for name, digest in known.items()}
        self._total = total
        self._changed: set[Name] = set()

    def follow(self, transactions: Iterable[Transaction]) -> None:
        """Take in transactions that were committed, in their order."""
        for transaction in transactions:
            for record in transaction.records:
                self.take(record, transaction.tick)

    def take(self, record: Record, tick: int) -> None:
        """Take in one record of a transaction."""
        if isinstance(record, Change):
            self.change(record.table, record.path, tick, record.added - record.removed)
        elif isinstance(record, Clear):
            self.set(record.table, EMPTY)
        elif isinstance(record, Ddl):
            self.alter(record)

    def change(self, table: Name, path: str, tick: int, rows: int) -> None:
        """Take in images of a table; `rows` is by how many it has grown."""
        content = self._tables.setdefault(table, _Content(None))
        first, _ = content.reads.get(path, (tick, tick))
        content.reads[path] = (first, tick)
        content.rows += rows
        self._changed.add(table)

    def alter(self, ddl: Ddl) -> None:
        """Take in a schema change."""
        if ddl.digest is not None:
            self.set(ddl.object, ddl.digest)
        elif ddl.kind == "CREATE TABLE" and ddl.layout is not None:
            self.set(ddl.object, EMPTY)
        elif ddl.kind == "DROP TABLE":
            self.drop(ddl.object)
        elif ddl.kind == "ALTER TABLE":
            self.set(ddl.object, None)

    def set(self, table: Name, digest: Digest | None) -> None:
        """Say what a table holds now; None where nobody knows."""
        self._tables[table] = _Content(digest)
        self._changed.add(table)

    def drop(self, table: Name) -> None:
        """Say that a table is gone."""
        self._tables.pop(table, None)
        self._changed.discard(table)

    def digest(self, table: Name) -> Digest | None:
        """Return what a table holds now, None where that is not known."""
        content = self._tables.get(table)
        if content is None or content.known is None:
            return None
        total = sum(self._total(path, first, last) for path, (first, last) in content.reads.items())
        content = self._tables[table] = _Content(plus(content.known, content.rows, total))
        return content.known

    def changed(self) -> dict[Name, Digest]:
        """Return what tables hold that were changed and are known."""
        return {name: digest for name in sorted(self._changed) if (digest := self.digest(name)) is not None}

    def all(self) -> dict[Name, Digest]:
        """Return what all known tables hold."""
        return {name: digest for name in sorted(self._tables) if (digest := self.digest(name)) is not None}


def after(known: Mapping[Name, Digest], batch: Batch) -> dict[Name, Digest]:
    """Return what tables hold after a batch by what it says itself, given what they held before."""
    found = dict(known)
    for table in touched(batch.transactions):
        found.pop(table, None)
    return {**found, **batch.digests}


def compared(held: Digest | None, told: Digest | None) -> str:
    """Say how what a table holds compares with what it should: SAME, DIFFERS, or UNKNOWN where nobody told."""
    return UNKNOWN if told is None else SAME if held == told else DIFFERS


def differing(held: Mapping[Name, Digest], told: Mapping[Name, Digest]) -> list[Name]:
    """Return the tables that hold something else than was told."""
    return [name for name, digest in held.items() if compared(digest, told.get(name)) == DIFFERS]


def touched(transactions: Iterable[Transaction]) -> set[Name]:
    """Return the tables, and other objects, that transactions changed."""
    found: set[Name] = set()
    for part in parts_of(transactions):
        found |= part.tables if isinstance(part, PlainRun) else set(_objects_of(part))
    return found


def _objects_of(transactions: Iterable[Transaction]) -> Iterator[Name]:
    for transaction in transactions:
        for record in transaction.records:
            if not isinstance(record, SequencePosition):
                yield record.object if isinstance(record, Ddl) else record.table


def keeps_rows(old: Layout, new: Layout) -> bool:
    """Say whether a table's rows have the same numbers in another layout, given that new columns are NULL."""
    before, after = ([storage_type(column.type) for column in layout.stored] for layout in (old, new))
    added = new.stored[len(before) :]
    return after[: len(before)] == before and all(column.default in (None, "NULL") for column in added)
