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


def number(row: str) -> int:
    return int.from_bytes(hashlib.md5(row.encode(), usedforsecurity=False).digest()[8:], "little")


def rows(table: pa.Table) -> Iterable[str]:
    for index in range(table.num_rows):
        values = (table.column(place)[index] for place in range(table.num_columns))
        yield "".join(tagged(f",{place}=", value) for place, value in enumerate(values, start=1))


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
    (pa.types.is_decimal, lambda value: f"{value.as_py():f}"),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
]
