"""JSON documents closed by a checksum: manifests of snapshots, registrations, state of a Parquet replica.

{"<kind>":
{ … }
,"sha256":"<hexadecimal>"}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wlc.farm import json_fields as fields
from wlc.farm.errors import CorruptError
from wlc.farm.json_records import problem_of, record_of
from wlc.farm.seal.checksum import DOCUMENT_END, checksum_problem, with_checksum

if TYPE_CHECKING:
    from collections.abc import Mapping

Content = TypeVar("Content")


def encode_document(kind: str, content: Mapping[str, Any]) -> bytes:
    """Write a document.

    Raises:
        UnicodeEncodeError: A text holds half of a surrogate pair.
    """
    members = ",\n ".join(f"{_json(key)}: {_lines(value)}" for key, value in content.items())
    return with_checksum(f'{{"{kind}":\n{{\n {members}\n}}\n'.encode(), DOCUMENT_END)


def _lines(value: object) -> str:
    """Return a list with one line per item, for human readers."""
    # `json.dumps(indent=…)` is written in Python, and took half of the time that a step of a lake takes.
    if not isinstance(value, list | tuple) or not value:
        return _json(value)
    return "[\n  " + ",\n  ".join(map(_json, value)) + "\n ]"


def _json(value: object) -> str:
    return fields.ENCODER.encode(value)


@dataclass(frozen=True, slots=True)
class Document(Generic[Content]):
    """A kind of document.

    Attributes:
        kind: Its name.
        type: The dataclass that it holds.
        format: Its version, None for a kind without one.
        hint: How to repair a damaged document; `{where}` stands for its place.
        name: The attribute that names a document's file; "" if there is only one document.
        check: Raises ValueError if the content contradicts itself.
        may_be_signed: It can have a signature, which `wlc.farm.seal.signatures` checks.
    """

    kind: str
    type: type[Content]
    format: int | None = fields.FORMAT_VERSION
    hint: str | None = None
    name: str = ""
    check: Callable[[Content], object] = bool
    may_be_signed: bool = False

    def encode(self, content: Content) -> bytes:
        """Write a document.

        Raises:
            UnicodeEncodeError: A text holds half of a surrogate pair.
        """
        version = {"format": self.format} if self._adds_format else {}
        return encode_document(self.kind, version | record_of(self.type).write(content))

    def decode(self, data: bytes, where: str) -> Content:
        """Check a document and read its content.

        Args:
            data: Its bytes.
            where: Where it is, for messages.

        Raises:
            CorruptError: It is damaged, truncated, of another kind or of an unknown version.
        """
        problem = checksum_problem(data, DOCUMENT_END)
        if problem or not data.startswith(f'{{"{self.kind}":\n'.encode()):
            raise self._corrupt(where, problem or f"it is no {self.kind}")
        try:
            text = data.decode()
            document = fields.as_object(fields.DECODER.decode(text))
            fields.refuse_half_characters(document, text)
            fields.known(document, f"{self.kind} sha256", "signature" if self.may_be_signed else "")
            content = self._read(dict(fields.as_object(document[self.kind])))
            self.check(content)
        except (ValueError, KeyError, RecursionError) as error:
            raise self._corrupt(where, problem_of(error)) from error
        if self.name and not where.endswith(f"/{getattr(content, self.name)}.json"):
            raise self._corrupt(where, f"it is {self.kind} {getattr(content, self.name)!r}")
        return content

    def _read(self, content: dict[str, Any]) -> Content:
        if self.format is not None:
            fields.as_format(content["format"], self.format)
        if self._adds_format:
            del content["format"]
        return record_of(self.type).read(content)

    @property
    def _adds_format(self) -> bool:
        return self.format is not None and "format" not in record_of(self.type).keys

    def _corrupt(self, where: str, problem: str) -> CorruptError:
        hint = None if self.hint is None else self.hint.format(where=where)
        return CorruptError(f"{where}: {problem}", hint=hint, path=where)
