"""Names of tables and other objects, and digests of tables, as values and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from wlc.farm.json_fields import FieldError, Hex64, JsonForm, as_text, short
from wlc.farm.json_records import form_of, record_of


@dataclass(frozen=True, order=True, slots=True)
class Name:
    """A schema-qualified name of a table, sequence, view or other object of one database."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        """The name as SQL text, both parts quoted."""
        schema, name = (part.replace('"', '""') for part in (self.schema, self.name))
        return f'"{schema}"."{name}"'

    @property
    def folded(self) -> tuple[bytes, bytes]:
        """The name as DuckDB compares it: ASCII letters in lower case."""
        return self.schema.encode().lower(), self.name.encode().lower()


def as_name(value: object) -> Name:
    """Return the name of an object in a schema."""
    if type(value) is not list or len(value) != 2:
        raise FieldError(f"{short(value)} is not a name of schema and object")
    schema, name = value
    if type(schema) is not str or type(name) is not str or not schema or not name:
        raise FieldError(f"{short(value)} is not a name of schema and object")
    return Name(schema, name)


def as_object_name(value: object) -> Name:
    """Return the name of an object that may lack a schema (such as a schema itself) or an inner name."""
    if type(value) is not list or len(value) != 2:
        raise FieldError(f"{short(value)} is not a name of schema and object")
    return Name(as_text(value[0]), as_text(value[1]))


def name_json(name: Name) -> list[str]:
    """Write a name."""
    return [name.schema, name.name]


TableName = Annotated[Name, JsonForm(as_name, name_json)]
ObjectName = Annotated[Name, JsonForm(as_object_name, name_json)]


@dataclass(frozen=True, slots=True)
class Digest:
    """A table's row count, and the sum of its rows' numbers modulo 2^64 (see `wlc.farm.digest`)."""

    rows: int
    sum: Hex64


@dataclass(frozen=True, slots=True)
class _TableDigest:
    """A table and its digest; both numbers are null if it is unknown."""

    table: TableName
    rows: int | None = None
    sum: Hex64 | None = None


def as_digests_or_none(value: object) -> tuple[dict[Name, Digest], frozenset[Name]]:
    """Return known digests and the tables with unknown ones, from a list, or from null if all are unknown."""
    listed: tuple[_TableDigest, ...] = form_of(tuple[_TableDigest, ...] | None).read(value) or ()
    digests = {
        each.table: Digest(each.rows, each.sum) for each in listed if each.rows is not None and each.sum is not None
    }
    undigested = frozenset(each.table for each in listed if each.rows is None and each.sum is None)
    if len(digests.keys() | undigested) != len(listed):
        raise FieldError("a table has two digests, or half a digest")
    return digests, undigested


def as_digests(value: object) -> dict[Name, Digest]:
    """Return the digests of tables, all of which must be known."""
    digests, undigested = as_digests_or_none(value)
    if undigested:
        raise FieldError(f"the digest of {min(undigested)} is null")
    return digests


def digests_json(digests: Mapping[Name, Digest], undigested: Collection[Name] = ()) -> list[dict[str, Any]]:
    """Write digests, sorted so that equal digests give equal bytes."""
    nothing = _TableDigest(Name("", ""))
    found = ((name, digests.get(name, nothing)) for name in sorted({*digests, *undigested}))
    return [record_of(_TableDigest).write(_TableDigest(name, held.rows, held.sum)) for name, held in found]


# In order of the names.
Digests = Annotated[Mapping[Name, Digest], JsonForm(as_digests, digests_json)]
