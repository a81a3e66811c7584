"""The SQL that computes digests in DuckDB; `wlc.farm.digest` says what a digest is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.sql import literal, quote
from wlc.dialect.types import BY_NAME, ColumnType, DigestText, parse, storage_type
from wlc.farm.digest import EMPTY, MODULUS, plus
from wlc.farm.model import WEIGHT, Digest, file_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import duckdb

    from wlc.farm.model import Column, Layout

# Infinity has no number, and its text is the same in every time zone.
_NUMBERS = {
    DigestText.DAYS: "date_diff('day', DATE '1970-01-01', {})",
    DigestText.MICROSECONDS: "epoch_us({})",
    DigestText.NANOSECONDS: "epoch_ns({})",
}


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


def _tagged(tag: str, kind: ColumnType, value: str, *, is_there: bool = False) -> list[str]:
    """Return arguments for concat() that write a value behind a tag. NULL writes nothing: concat() ignores it."""
    tags = [literal(tag) if is_there else _unless_null(value, literal(tag))]
    if kind.row.digest is DigestText.COUNTED:
        # Only texts need a length in front: no other value contains a comma.
        colon = literal(":")
        return [*tags, f"strlen({value})", colon if is_there else _unless_null(value, colon), value]
    return [*tags, _written(kind, value)]


def _written(kind: ColumnType, value: str) -> str:
    """Write a value of another type than text; NULL stays NULL."""
    rule = kind.row.digest
    if rule is DigestText.BITS:
        return f"CASE WHEN isnan({value}) THEN 'nan' ELSE hex(CAST(CAST({value} AS BIT) AS BLOB)) END"
    if rule is DigestText.HEX:
        return f"hex({value})"
    if rule is DigestText.MEMBERS:
        return _nested(kind, value)
    if rule in _NUMBERS:
        return f"coalesce(CAST({_NUMBERS[rule].format(value)} AS VARCHAR), CAST({value} AS VARCHAR))"
    return value


def _nested(kind: ColumnType, value: str) -> str:
    if kind.kind == "STRUCT":
        return _unless_null(value, _struct(kind, value))
    if kind.kind == "MAP":
        return _list(ColumnType(BY_NAME["STRUCT"], "", kind.fields), f"map_entries({value})")
    return _list(kind.fields[0][1], value)


def _list(element: ColumnType, value: str, depth: str = "e") -> str:
    while depth in value:
        depth += "e"
    items = f"list_transform({value}, lambda {depth}: concat(',', {', '.join(_tagged('=', element, depth))}))"
    return _unless_null(value, f"concat(len({value}), '[', array_to_string({items}, ''), ']')")


def _struct(kind: ColumnType, value: str) -> str:
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
    """Count rows and add up DuckDB's own hashes of them, modulo 2^64; see `wlc.dialect.duckdb.snapshot.Known`.

    Args:
        connection: Where to ask.
        layout: Of the rows.
        source: FROM text.
        value: As for `hash_sql`.
        is_weighted: They are row images, each to be taken times its weight.
    """
    number = _quick_sql(map(value, layout.stored))
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


def sum_added(connection: duckdb.DuckDBPyConnection, layout: Layout, source: str) -> tuple[int, int]:
    """Add up the numbers of images that all have weight 1, and DuckDB's own hashes of them, while reading them once.

    Args:
        connection: Where to ask.
        layout: Of the rows.
        source: FROM text of a data file.
    """
    names = [quote(file_column(column.name)) for column in layout.stored]
    sums = f"coalesce(sum({hash_sql(layout)}), 0), coalesce(sum({_quick_sql(names)}), 0)"
    total, quick = connection.execute(f"SELECT {sums} FROM {source}").fetchall()[0]
    return int(total) % MODULUS, int(quick) % MODULUS


def _quick_sql(values: Iterable[str]) -> str:
    return f"hash({', '.join(['0', *values])})"


def keeps_rows(old: Layout, new: Layout) -> bool:
    """Say whether a table's rows have the same numbers in another layout, given that new columns are NULL."""
    before, after = ([storage_type(column.type) for column in layout.stored] for layout in (old, new))
    added = new.stored[len(before) :]
    return after[: len(before)] == before and all(column.default in (None, "NULL") for column in added)
