"""JSON documents closed by a checksum: manifests of snapshots, registrations, what a Parquet replica keeps.

{"<kind>":
{ … }
,"sha256":"<hexadecimal>"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wlc.farm import json_fields as fields
from wlc.farm.errors import CorruptError
from wlc.farm.seal.checksum import DOCUMENT_END, checksum_problem, with_checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Content = TypeVar("Content")


def encode_document(kind: str, content: Mapping[str, Any]) -> bytes:
    """Write a document.

    Raises:
        UnicodeEncodeError: A text holds half of a surrogate pair.
    """
    members = ",\n ".join(f"{_json(key)}: {_lines(value)}" for key, value in content.items())
    return with_checksum(f'{{"{kind}":\n{{\n {members}\n}}\n'.encode(), DOCUMENT_END)


def _lines(value: object) -> str:
    """Return a list with a line for each item, for people who read it."""
    # `json.dumps(indent=…)` is written in Python, and took half of the time that a step of a lake takes.
    if not isinstance(value, list | tuple) or not value:
        return _json(value)
    return "[\n  " + ",\n  ".join(map(_json, value)) + "\n ]"


def _json(value: object) -> str:
    return fields.ENCODER.encode(value)


def decode_document(
    kind: str,
    data: bytes,
    where: str,
    read: Callable[[dict[str, Any]], Content],
    *,
    hint: str | None = None,
    may_be_signed: bool = False,
) -> Content:
    """Check a document and read its content.

    Args:
        kind: What it must be.
        data: Its bytes.
        where: Where it is, for messages.
        read: Reads its object; raises KeyError, ValueError or CorruptError where that is invalid.
        hint: What to do about one that is damaged.
        may_be_signed: It can have a signature, which `wlc.farm.seal.signatures` checks.

    Raises:
        CorruptError: It is damaged, truncated, of another kind or of an unknown version.
    """
    problem = checksum_problem(data, DOCUMENT_END)
    if problem or not data.startswith(f'{{"{kind}":\n'.encode()):
        raise CorruptError(f"{where}: {problem or f'it is no {kind}'}", hint=hint, path=where)
    try:
        text = data.decode()
        document = fields.as_object(fields.DECODER.decode(text))
        fields.refuse_half_characters(document, text)
        fields.known(document, f"{kind} sha256", "signature" if may_be_signed else "")
        return read(fields.as_object(document[kind]))
    except KeyError as error:
        raise CorruptError(f"{where}: no {error.args[0]!r}", hint=hint, path=where) from error
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{where}: {error}", hint=hint, path=where) from error
    except CorruptError as error:
        raise CorruptError(f"{where}: {error.message}", hint=hint, path=where) from error
