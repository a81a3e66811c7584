"""Typed fields of the farm's JSON: values to plain objects and back, refusing whatever is not exactly that."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from wlc.farm.clock import format_time, read_time
from wlc.farm.config import TICK_MAX
from wlc.farm.model import (
    FORMAT_VERSION,
    Column,
    DataFile,
    Digest,
    Handover,
    Layout,
    Name,
    Origin,
    Position,
    SequencePosition,
    Taken,
)
from wlc.farm.paths import check_relative, is_site_name, is_token

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

_INT64 = range(-(2**63), 2**63)
_HEX = frozenset("0123456789abcdef")
_LSN = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")


class FieldError(ValueError):
    """A field is missing or is not what it must be; the reader of the file adds where."""


def _refuse_constant(text: str) -> NoReturn:
    raise FieldError(f"{text} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FieldError(f"key {short(key)} is there twice")
            seen.add(key)
    return found


# Two readers need not take the same one of two values under one key.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)
# `json.dumps` would make one for every text.
ENCODER = json.JSONEncoder(ensure_ascii=False)


def refuse_half_characters(value: object, text: str) -> None:
    """Refuse half of a surrogate pair, which only an escape brings into a text: it could not be written again.

    Args:
        value: What was read.
        text: From which.

    Raises:
        UnicodeEncodeError: There is one.
    """
    if "\\ud" in text or "\\uD" in text:
        ENCODER.encode(value).encode()


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object."""
    if type(value) is not dict:
        raise FieldError(f"{short(value)} is not an object")
    return value


def known_format(content: Mapping[str, Any], keys: str, optional: str = "") -> None:
    """Refuse a line or document of another format than the farm's, and keys that are not known.

    Args:
        content: A JSON object that says its format.
        keys: Names of its other keys, separated by blanks.
        optional: Names of keys that need not be there.
    """
    as_format(content["format"], FORMAT_VERSION)
    known(content, f"format {keys}", optional)


def known(content: Mapping[str, Any], keys: str, optional: str = "") -> None:
    """Refuse keys that are not known; a line or document may also have `info`, which readers ignore.

    Args:
        content: A JSON object; the reader of each key reports one that is missing.
        keys: Names of the keys, separated by blanks.
        optional: Names of keys that need not be there.
    """
    allowed = _allowed(keys, optional)
    if not content.keys() <= allowed:
        raise FieldError(f"key {short(min(content.keys() - allowed))} is unknown")


@cache
def _allowed(keys: str, optional: str) -> frozenset[str]:
    return frozenset((*keys.split(), *optional.split()))


def as_list(value: object) -> list[Any]:
    """Return a JSON list."""
    if type(value) is not list:
        raise FieldError(f"{short(value)} is not a list")
    return value


def as_text(value: object) -> str:
    """Return a text."""
    if type(value) is not str:
        raise FieldError(f"{short(value)} is not a text")
    return value


def as_flag(value: object) -> bool:
    """Return true or false."""
    if type(value) is not bool:
        raise FieldError(f"{short(value)} is not true or false")
    return value


def as_count(value: object) -> int:
    """Return an integer from 0 on."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise FieldError(f"{short(value)} is not a count")
    return value


def as_tick(value: object, smallest: int = 1) -> int:
    """Return a tick, or another number that the farm counts."""
    if type(value) is not int or not smallest <= value <= TICK_MAX:
        raise FieldError(f"{short(value)} is not a tick or number")
    return value


def as_history(value: object) -> str:
    """Return the id of a history."""
    if not is_token(as_text(value)):
        raise FieldError(f"{short(value)} is not the id of a history")
    return as_text(value)


def as_sha256(value: object) -> str:
    """Return a SHA-256 in lower-case hexadecimal."""
    text = as_text(value)
    if len(text) != 64 or not _HEX.issuperset(text):
        raise FieldError(f"{short(value)} is not a SHA-256")
    return text


def as_lsn(value: object) -> str:
    """Return a place in PostgreSQL's log."""
    if not _LSN.fullmatch(as_text(value)):
        raise FieldError(f"{short(value)} is not a place in a log")
    return as_text(value)


def as_time(value: object) -> datetime:
    """Return a time in the farm's one form."""
    try:
        return read_time(as_text(value))
    except (ValueError, OverflowError) as error:
        raise FieldError(f"{short(value)} is not a time") from error


def as_beat(value: object) -> float:
    """Return a number of seconds, 0 or more."""
    if type(value) not in (int, float) or not 0 <= value <= TICK_MAX:  # type: ignore[operator]
        raise FieldError(f"{short(value)} is not a beat")
    return float(value)  # type: ignore[arg-type]


def as_format(value: object, known: int) -> int:
    """Return the version of a format."""
    if type(value) is not int or value != known:
        raise FieldError(f"format {short(value)} is unknown, this version reads {known}")
    return value


def as_name(value: object) -> Name:
    """Return the name of an object in a schema."""
    if type(value) is not list or len(value) != 2:
        raise FieldError(f"{short(value)} is not a name of schema and object")
    schema, name = value
    if type(schema) is not str or type(name) is not str or not schema or not name:
        raise FieldError(f"{short(value)} is not a name of schema and object")
    return Name(schema, name)


def as_object_name(value: object) -> Name:
    """Return the name of what may have no schema around it, such as a schema, or no name inside."""
    if type(value) is not list or len(value) != 2:
        raise FieldError(f"{short(value)} is not a name of schema and object")
    return Name(as_text(value[0]), as_text(value[1]))


def as_vector(value: object) -> dict[str, int]:
    """Return per history a tick."""
    return {as_history(history): as_tick(tick, 0) for history, tick in as_object(value).items()}


def as_origin(value: object) -> Origin | None:
    """Return where a transaction was first committed, or None for null."""
    if value is None:
        return None
    fields = as_object(value)
    known(fields, "history tick", "committed")
    committed = None if fields.get("committed") is None else as_time(fields["committed"])
    return Origin(as_history(fields["history"]), as_tick(fields["tick"]), committed)


def as_parent(value: object) -> Origin | None:
    """Return the history and tick that another history grew from, or None for null."""
    if value is None:
        return None
    fields = as_object(value)
    known(fields, "history tick")
    return Origin(as_history(fields["history"]), as_tick(fields["tick"], 0))


def as_position(value: object) -> Position:
    """Return a position."""
    content = as_object(value)
    known(content, "history tick batch chain")
    chain = content["chain"]
    return Position(
        history=as_history(content["history"]),
        tick=as_tick(content["tick"], 0),
        batch=as_tick(content["batch"], 0),
        chain="" if chain == "" else as_sha256(chain),
    )


def as_layout(value: object) -> Layout:
    """Return the columns and primary key of a table."""
    fields = as_object(value)
    known(fields, "columns primary_key")
    columns = tuple(_column(column) for column in as_list(fields["columns"]))
    key = tuple(as_text(name) for name in as_list(fields["primary_key"]))
    names = [column.name for column in columns]
    if not columns or len(set(names)) != len(names) or not set(key) <= set(names):
        raise FieldError(f"{short(names)} with key {short(key)} is not the layout of a table")
    return Layout(columns, key)


def as_digest(value: object) -> Digest:
    """Return what a table holds."""
    fields = as_object(value)
    text = as_text(fields["sum"])
    if len(text) != 16 or not _HEX.issuperset(text):
        raise FieldError(f"{short(text)} is not the sum of a digest")
    return Digest(as_count(fields["rows"]), int(text, 16))


def as_digests(value: object) -> dict[Name, Digest]:
    """Return what tables hold, from a list or, where nothing is known, null."""
    digests, undigested = as_digests_or_none(value)
    if undigested:
        raise FieldError(f"the digest of {min(undigested)} is null")
    return digests


def as_digests_or_none(value: object) -> tuple[dict[Name, Digest], frozenset[Name]]:
    """Return what tables hold, and of which tables it is unknown, from a list or null."""
    digests: dict[Name, Digest] = {}
    undigested: set[Name] = set()
    items = [] if value is None else as_list(value)
    for item in items:
        digest = as_object(item)
        known(digest, "table rows sum")
        name = as_name(digest["table"])
        if digest["rows"] is None and digest["sum"] is None:
            undigested.add(name)
        else:
            digests[name] = as_digest(digest)
    if len(digests.keys() | undigested) != len(items):
        raise FieldError("a table has two digests")
    return digests, frozenset(undigested)


def as_sequence(value: object) -> SequencePosition:
    """Return the position of a sequence."""
    fields = as_object(value)
    known(fields, "name value", "info")
    position = fields["value"]
    if type(position) is not int or position not in _INT64:
        raise FieldError(f"{short(position)} is not the position of a sequence")
    return SequencePosition(as_name(fields["name"]), position)


def as_data_file(value: object, where: str) -> DataFile:
    """Return a data file found in the file `where`."""
    fields = as_object(value)
    path = check_relative(as_text(fields["path"]), where)
    return DataFile(path, as_count(fields["rows"]), as_count(fields["bytes"]), as_sha256(fields["sha256"]))


def as_site(value: object) -> str:
    """Return the name of a site."""
    if not is_site_name(as_text(value)):
        raise FieldError(f"{short(value)} is not the name of a site")
    return as_text(value)


def as_handover(value: object) -> Handover:
    """Return to whom a primary handed over."""
    fields = as_object(value)
    known(fields, "to term")
    return Handover(as_site(fields["to"]), as_tick(fields["term"]))


def as_taken(value: object) -> Taken:
    """Return how far another site's log was read."""
    fields = as_object(value)
    known(fields, "site history tick batch chain", "filters")
    return Taken(
        site=as_site(fields["site"]),
        history=as_history(fields["history"]),
        tick=as_tick(fields["tick"]),
        batch=as_tick(fields["batch"]),
        chain=as_sha256(fields["chain"]),
        filters=as_sha256(fields["filters"]) if fields.get("filters") else "",
    )


def taken_json(taken: Taken) -> dict[str, Any]:
    """Write how far another site's log was read."""
    place = {"site": taken.site, "history": taken.history, "tick": taken.tick}
    proof = {"batch": taken.batch, "chain": taken.chain}
    return {**place, **proof, **({"filters": taken.filters} if taken.filters else {})}


def name_json(name: Name) -> list[str]:
    """Write a name."""
    return [name.schema, name.name]


def origin_json(origin: Origin | None) -> dict[str, Any] | None:
    """Write a history and tick."""
    if origin is None:
        return None
    committed = {"committed": format_time(origin.committed)} if origin.committed else {}
    return {"history": origin.history, "tick": origin.tick, **committed}


def position_json(position: Position) -> dict[str, Any]:
    """Write a position."""
    return {"history": position.history, "tick": position.tick, "batch": position.batch, "chain": position.chain}


def layout_json(layout: Layout) -> dict[str, Any]:
    """Write columns and primary key."""
    columns = [
        {"name": c.name, "type": c.type, "nullable": c.nullable, "default": c.default, "generated": c.generated}
        for c in layout.columns
    ]
    return {"columns": columns, "primary_key": list(layout.primary_key)}


def digest_json(digest: Digest) -> dict[str, Any]:
    """Write what a table holds."""
    return {"rows": digest.rows, "sum": f"{digest.sum:016x}"}


def digests_json(digests: Mapping[Name, Digest], undigested: Collection[Name] = ()) -> list[dict[str, Any]]:
    """Write what tables hold, sorted so that the same digests are the same bytes."""
    nothing = {"rows": None, "sum": None}
    return [
        {"table": name_json(name), **(digest_json(digests[name]) if name in digests else nothing)}
        for name in sorted({*digests, *undigested})
    ]


def sequence_json(sequence: SequencePosition) -> dict[str, Any]:
    """Write the position of a sequence."""
    return {"name": name_json(sequence.sequence), "value": sequence.value}


def data_file_json(file: DataFile) -> dict[str, Any]:
    """Write a data file."""
    return {"path": file.path, "rows": file.rows, "bytes": file.bytes, "sha256": file.sha256}


def vector_json(vector: Mapping[str, int]) -> dict[str, int]:
    """Write a vector, sorted so that equal vectors are equal bytes."""
    return dict(sorted(vector.items()))


def _column(value: object) -> Column:
    fields = as_object(value)
    known(fields, "name type nullable default generated")
    if type(fields["nullable"]) is not bool or not fields["name"]:
        raise FieldError(f"{short(value)} is not a column")
    return Column(
        name=as_text(fields["name"]),
        type=as_text(fields["type"]),
        nullable=fields["nullable"],
        default=None if fields["default"] is None else as_text(fields["default"]),
        generated=None if fields["generated"] is None else as_text(fields["generated"]),
    )


def short(value: object) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
