"""Digests by another program: docs/format.md written down once more in plain Python, over what pyarrow reads."""

from __future__ import annotations

import hashlib
import math
import struct
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


# What a column counts for: an integer, two halves of one, a text, bytes, or nothing
Counted = int | uuid.UUID | str | bytes | None


def digest(file: Path) -> tuple[int, int]:
    """Rows of a snapshot's data file, and their sum."""
    table = pq.read_table(file)
    return table.num_rows, sum(map(number, rows(table))) % 2**64


def sum_of_images(file: Path) -> int:
    """Sum of the images of a batch's data file, each times its weight."""
    table = pq.read_table(file)
    weights = table.column("_weight").to_pylist()
    images = rows(table.drop_columns(["_tick", "_weight"]))
    return sum(weight * number(row) for weight, row in zip(weights, images, strict=True)) % 2**64


def number(row: list[Counted]) -> int:
    """Number of a row, given the integer, the text or the bytes of each column."""
    total, joined = 0, b""
    for place, value in enumerate(row, start=1):
        if value is not None:
            first, second = (half // 16 | 1 for half in _halves(str(place).encode()))
            text = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
            high, low = divmod(value.int, 2**64) if isinstance(value, uuid.UUID) else (0, value)
            total += first * (1 + high) + second * (low if isinstance(low, int) else len(text))
            joined += text
    total %= 2**120
    u = (total % 2**64 + total // 2**64 + _halves(joined)[1]) % 2**64
    product = u * (u ^ 0xE7037ED1A0B428DB)
    return product % 2**64 ^ product // 2**64


def _halves(text: bytes) -> tuple[int, int]:
    made = hashlib.md5(text, usedforsecurity=False).digest()
    return int.from_bytes(made[:8], "little"), int.from_bytes(made[8:], "little")


def rows(table: pa.Table) -> Iterable[list[Counted]]:
    for index in range(table.num_rows):
        yield [
            counted(table.column(place)[index]) if table.column(place)[index].is_valid else None
            for place in range(table.num_columns)
        ]


def counted(value: pa.Scalar) -> Counted:
    """The integer that a value of a fixed width is, the text or the bytes of any other."""
    kind = value.type
    if isinstance(value, pa.ExtensionScalar):
        return counted(value.value) if kind.extension_name != "arrow.uuid" else value.as_py()
    if pa.types.is_fixed_size_binary(kind):
        # Only UUIDs are stored so; newer versions of pyarrow have a type of their own for them.
        return uuid.UUID(bytes=value.as_py())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return int(value.as_py())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return int(value.value)
    if pa.types.is_floating(kind):
        return _bits(value)
    if pa.types.is_time(kind):
        return int(value.value)
    if pa.types.is_decimal(kind) and kind.precision + kind.scale <= 17:
        return int(value.as_py().scaleb(kind.scale))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return value.as_py()
    return written(value)


def _bits(value: pa.Scalar) -> int:
    form, nan = (">f", 0x7FC00000) if value.type == pa.float32() else (">d", 0x7FF8000000000000)
    return nan if math.isnan(value.as_py()) else int.from_bytes(struct.pack(form, value.as_py()), "big")


def tagged(tag: str, value: pa.Scalar) -> str:
    return tag + written(value) if value.is_valid else ""


def written(value: pa.Scalar) -> str:
    kind = value.type
    if isinstance(value, pa.ExtensionScalar):
        return written(value.value) if kind.extension_name != "arrow.uuid" else str(value.as_py())
    for is_kind, write in _WRITERS:
        if is_kind(kind):
            return write(value)
    return str(value.as_py())


def _text(value: pa.Scalar) -> str:
    return f"{len(value.as_py().encode())}:{value.as_py()}"


def _count(value: pa.Scalar) -> str:
    most = 2**31 - 1 if pa.types.is_date32(value.type) else 2**63 - 1
    return {most: "infinity", -most: "-infinity"}.get(value.value, str(value.value))


def _float(value: pa.Scalar) -> str:
    form = ">f" if value.type == pa.float32() else ">d"
    return "nan" if math.isnan(value.as_py()) else struct.pack(form, value.as_py()).hex().upper()


def _time(value: pa.Scalar) -> str:
    seconds, rest = divmod(value.value * {"us": 1000, "ns": 1}[value.type.unit], 10**9)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{rest:09}".rstrip("0") if rest else text


def _decimal(value: pa.Scalar) -> str:
    text = f"{value.as_py():f}"
    return text.replace("0.", ".", 1) if value.type.precision == value.type.scale else text


def _list(value: pa.Scalar) -> str:
    return f"{len(value)}[" + "".join("," + tagged("=", item) for item in value.values) + "]"


def _map(value: pa.Scalar) -> str:
    entries = [value.values[index] for index in range(len(value.values))]
    return f"{len(entries)}[" + "".join(f",={_members([entry[0], entry[1]])}" for entry in entries) + "]"


def _struct(value: pa.Scalar) -> str:
    return _members([value[place] for place in range(value.type.num_fields)])


def _members(values: list[pa.Scalar]) -> str:
    return "{" + "".join(tagged(f",{place}=", value) for place, value in enumerate(values, start=1)) + "}"


_WRITERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Scalar], str]]] = [
    (pa.types.is_string, _text),
    (pa.types.is_binary, lambda value: value.as_py().hex().upper()),
    # Only UUIDs are stored so; newer versions of pyarrow have a type of their own for them.
    (pa.types.is_fixed_size_binary, lambda value: str(uuid.UUID(bytes=value.as_py()))),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, lambda value: "true" if value.as_py() else "false"),
    (pa.types.is_date, _count),
    (pa.types.is_timestamp, _count),
    (pa.types.is_time, _time),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
]
