"""SQL that computes digests in DuckDB; `wlc.farm.digest` defines digests, docs/format.md the arithmetic."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from wlc.dialect.sql import literal, quote
from wlc.dialect.types import BY_NAME, ColumnType, DigestText, parse, storage_type
from wlc.farm.digest import EMPTY, MODULUS, plus
from wlc.farm.model import WEIGHT, Digest, file_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import duckdb

    from wlc.farm.model import Column, Layout

# They return NULL for an infinity, whose text is the same in every time zone.
_NUMBERS = {
    DigestText.DAYS: "date_diff('day', DATE '1970-01-01', {})",
    DigestText.MICROSECONDS: "epoch_us({})",
    DigestText.NANOSECONDS: "epoch_ns({})",
}
_INFINITE = {DigestText.DAYS: 2**31 - 1, DigestText.MICROSECONDS: 2**63 - 1, DigestText.NANOSECONDS: 2**63 - 1}
_BITS = {"FLOAT": ("UINTEGER", 0x7FC00000), "DOUBLE": ("UBIGINT", 0x7FF8000000000000)}
# DuckDB multiplies DECIMALs of up to 18 digits as fast as integers. If value and factor have more, a text is faster.
_DIGITS_MOST = 18
_LOW = MODULUS - 1
# DuckDB raises an error if a HUGEINT overflows, so sums are reduced in time. Seven products of a 64-bit value and a
# 60-bit multiplier fit, or 64 sums that are reduced already.
_SUM = (1 << 120) - 1
_PRODUCTS, _SUMS = 7, 64
# The constant of the generator wyrand. Its last step mixes a row's sum so that the result is not linear in any column
_MIXER = 0xE7037ED1A0B428DB


def numbered_sql(layout: Layout, source: str, value: Callable[[Column], str] | None = None, **kept: str) -> str:
    """Return FROM text that gives each row's number as `h`, UBIGINT.

    Each step is a separate query, because it uses the result of the previous step more than once.

    Args:
        layout: Of the rows.
        source: FROM text, with conditions if there are any.
        value: SQL that yields a column's value in its storage type; its name in data files if omitted.
        kept: Further columns of the result: expressions over the columns of the source.
    """
    read = value or (lambda column: quote(file_column(column.name)))
    names = "".join(f", {name}" for name in kept)
    kept_sql = "".join(f", {expression} AS {name}" for name, expression in kept.items())
    numbers, texts = _parts(layout, read)
    first = f"SELECT {_sum(numbers)} AS s, {_md5(texts)} AS t{kept_sql} FROM {source}"
    second = f"SELECT (CAST((s & {_LOW}) + (s >> 64) AS UHUGEINT) + t) & {_LOW} AS u{names} FROM ({first})"
    product = f"(u * xor(u, {_MIXER}))"
    return f"(SELECT CAST(xor({product} >> 64, {product} & {_LOW}) AS UBIGINT) AS h{names} FROM ({second}))"


def _parts(layout: Layout, read: Callable[[Column], str]) -> tuple[list[str], list[_Text]]:
    """Return the terms that columns add to a row's sum, and the texts of columns that have one."""
    numbers: list[str] = []
    texts: list[_Text] = []
    constant = 0
    for place, column in enumerate(layout.stored, start=1):
        kind, value = parse(storage_type(column.type)), read(column)
        number = _number(kind, value)
        if number is None:
            text = _text(kind, value, is_null=column.nullable)
            number = f"octet_length({text.sql})" if text.is_bytes else f"strlen({text.sql})"
            texts.append(text)
        there, factor = _constants(place)
        product = f"CAST({number} AS HUGEINT) * {factor}"
        if kind.row.digest is DigestText.HALVES:
            high = f"CAST(CAST({value} AS UHUGEINT) >> 64 AS HUGEINT) * {there}"
            product = f"(({high} + {product}) & {_SUM})"
        # NULL subtracts its column's part of the constant.
        numbers.append(f"coalesce({product}, -{there})" if column.nullable else product)
        constant += there
    return [*numbers, str(constant & _SUM)], texts


@lru_cache(maxsize=4096)
def _constants(place: int) -> tuple[int, int]:
    """Return the term that a non-NULL column adds to a row's sum, and the multiplier of its value."""
    made = hashlib.md5(str(place).encode(), usedforsecurity=False).digest()
    return int.from_bytes(made[:8], "little") >> 4 | 1, int.from_bytes(made[8:], "little") >> 4 | 1


def _sum(terms: list[str]) -> str:
    """Add up terms modulo 2^120."""
    terms = [f"({some} & {_SUM})" for some in _in_groups(" + ", terms, _PRODUCTS)]
    while len(terms) > 1:
        terms = [f"({some} & {_SUM})" for some in _in_groups(" + ", terms, _SUMS)]
    return terms[0]


def _in_groups(operator: str, terms: list[str], most: int) -> list[str]:
    """Join terms by an operator, in groups: a flat chain could exceed DuckDB's maximum expression depth."""
    groups = (terms[first : first + most] for first in range(0, len(terms), most))
    return [f"({operator.join(group)})" for group in groups]


@dataclass(frozen=True, slots=True)
class _Text:
    """SQL that writes a value of variable width.

    Attributes:
        sql: Its type is BLOB or VARCHAR.
        is_bytes: It is BLOB.
        is_null: It may be NULL; NULL adds nothing to the text of a row.
    """

    sql: str
    is_bytes: bool
    is_null: bool

    @property
    def as_bytes(self) -> str:
        found = self.sql if self.is_bytes else f"encode({self.sql})"
        return f"coalesce({found}, CAST('' AS BLOB))" if self.is_null else found


def _text(kind: ColumnType, value: str, *, is_null: bool) -> _Text:
    if kind.row.digest is DigestText.BYTES:
        return _Text(value, is_bytes=True, is_null=is_null)
    return _Text(f"CAST({_written(kind, value)} AS VARCHAR)", is_bytes=False, is_null=is_null)


def _md5(texts: list[_Text]) -> str:
    """Return half of the MD5 of texts, UHUGEINT."""
    empty = hashlib.md5(b"", usedforsecurity=False).digest()
    nothing = f"CAST({int.from_bytes(empty[8:], 'little')} AS UHUGEINT)"
    if not texts:
        return nothing
    if len(texts) == 1:
        half = f"md5_number({texts[0].sql}) >> 64"
        return f"coalesce({half}, {nothing})" if texts[0].is_null else half
    if any(text.is_bytes for text in texts):
        # concat() would write bytes as text.
        parts = [text.as_bytes for text in texts]
        while len(parts) > 1:
            parts = _in_groups(" || ", parts, _SUMS)
        return f"md5_number({parts[0]}) >> 64"
    return f"md5_number(concat({', '.join(text.sql for text in texts)})) >> 64"


def _number(kind: ColumnType, value: str) -> str | None:
    """Return the integer for a value of fixed width; None for types that have a text instead."""
    rule = kind.row.digest
    if rule is DigestText.INTEGER:
        return value
    if rule is DigestText.BITS:
        bits, nan = _BITS[kind.kind]
        return f"CASE WHEN isnan({value}) THEN {nan} ELSE CAST(CAST({value} AS BIT) AS {bits}) END"
    if rule is DigestText.HALVES:
        return f"CAST({value} AS UHUGEINT) & {_LOW}"
    if rule is DigestText.TIME:
        return f"epoch_ns({value})" if kind.kind == "TIME_NS" else f"epoch_us({value})"
    if rule is DigestText.DECIMAL:
        digits, scale = map(int, kind.parameters.strip("()").split(","))
        if digits + scale + 1 > _DIGITS_MOST:
            return None
        return f"CAST({value} * CAST({10**scale} AS DECIMAL({scale + 1},0)) AS BIGINT)"
    if rule in _NUMBERS:
        most = _INFINITE[rule]
        infinite = f"CASE {value} WHEN 'infinity' THEN {most} WHEN '-infinity' THEN -{most} END"
        return f"coalesce({_NUMBERS[rule].format(value)}, {infinite})"
    return None


def _tagged(tag: str, kind: ColumnType, value: str) -> list[str]:
    """Return arguments for concat() that write a tag and a member. NULL writes nothing: concat() ignores it."""
    tags = [_unless_null(value, literal(tag))]
    if kind.row.digest is DigestText.COUNTED:
        # Only texts need a length prefix: no other value contains a comma.
        return [*tags, f"strlen({value})", _unless_null(value, literal(":")), value]
    return [*tags, _written(kind, value)]


def _written(kind: ColumnType, value: str) -> str:
    """Write a value, a text unchanged; NULL stays NULL."""
    rule = kind.row.digest
    if rule is DigestText.BITS:
        return f"CASE WHEN isnan({value}) THEN 'nan' ELSE hex(CAST(CAST({value} AS BIT) AS BLOB)) END"
    if rule is DigestText.BYTES:
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
    # The length of NULL is NULL, so the whole expression is NULL. CASE would slow the lambda down.
    return f"(len({value}) || concat('[', array_to_string({items}, ''), ']'))"


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
        connection: The connection to query.
        layout: Of the rows.
        source: FROM text.
        value: As for `numbered_sql`.
    """
    numbered = numbered_sql(layout, source, value)
    rows, total = connection.execute(f"SELECT count(*), coalesce(sum(h), 0) FROM {numbered}").fetchall()[0]
    return plus(EMPTY, rows, int(total))


def sum_quickly(
    connection: duckdb.DuckDBPyConnection,
    layout: Layout,
    source: str,
    value: Callable[[Column], str],
    *,
    is_weighted: bool = False,
) -> tuple[int, int]:
    """Count rows and sum DuckDB's own hashes of them, modulo 2^64; see `wlc.dialect.duckdb.snapshot.Known`.

    Args:
        connection: The connection to query.
        layout: Of the rows.
        source: FROM text.
        value: As for `numbered_sql`.
        is_weighted: The rows are images; each hash is multiplied by the image's weight.
    """
    number = _quick_sql(map(value, layout.stored))
    rows, total = ("sum(w)", "sum(CAST(h AS HUGEINT) * w)") if is_weighted else ("count(*)", "sum(h)")
    hashed = f"SELECT {number} AS h, {WEIGHT if is_weighted else 1} AS w FROM {source}"
    found = connection.execute(f"SELECT coalesce({rows}, 0), coalesce({total}, 0) FROM ({hashed})").fetchall()[0]
    return int(found[0]), int(found[1]) % MODULUS


def sum_images(
    connection: duckdb.DuckDBPyConnection, layout: Layout, source: str, value: Callable[[Column], str] | None = None
) -> int:
    """Sum the numbers of row images, each times its weight, modulo 2^64; arguments as for `sum_rows`."""
    numbered = numbered_sql(layout, source, value, w=WEIGHT)
    total = connection.execute(f"SELECT coalesce(sum(CAST(h AS HUGEINT) * w), 0) FROM {numbered}").fetchall()[0][0]
    return int(total) % MODULUS


def sum_added(connection: duckdb.DuckDBPyConnection, layout: Layout, source: str) -> tuple[int, int]:
    """Sum the numbers of images of weight 1, and DuckDB's own hashes of them, in one pass.

    Args:
        connection: The connection to query.
        layout: Of the rows.
        source: FROM text of a data file.
    """
    names = [quote(file_column(column.name)) for column in layout.stored]
    numbered = numbered_sql(layout, source, q=_quick_sql(names))
    total, quick = connection.execute(f"SELECT coalesce(sum(h), 0), coalesce(sum(q), 0) FROM {numbered}").fetchall()[0]
    return int(total) % MODULUS, int(quick) % MODULUS


def _quick_sql(values: Iterable[str]) -> str:
    return f"hash({', '.join(['0', *values])})"


def keeps_rows(old: Layout, new: Layout) -> bool:
    """Say whether a table's rows keep their numbers in another layout, given that new columns are NULL."""
    before, after = ([storage_type(column.type) for column in layout.stored] for layout in (old, new))
    added = new.stored[len(before) :]
    return after[: len(before)] == before and all(column.default in (None, "NULL") for column in added)
