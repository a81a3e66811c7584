"""Manifests: what a snapshot holds, as one JSON document closed by a checksum."""

from __future__ import annotations

from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.json_fields import FieldError
from wlc.farm.model import Manifest
from wlc.farm.paths import parse_snapshot_data_path


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as the bytes of its file.

    Raises:
        InvalidError: The manifest contradicts itself, so that no reader would take it.
    """
    if problem := _problem(manifest):
        raise InvalidError(f"snapshot of {manifest.database} at {manifest.position} cannot be published: {problem}")
    try:
        return _DOCUMENT.encode(manifest)
    except UnicodeEncodeError as error:
        raise InvalidError(f"snapshot of {manifest.database} holds text that is not Unicode: {error}") from error


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Read and check a manifest.

    Args:
        data: The file's bytes.
        path: Where it is, for messages.

    Raises:
        CorruptError: It is damaged, truncated or of an unknown version; do not load the snapshot.
    """
    return _DOCUMENT.decode(data, path)


def _problem(manifest: Manifest) -> str | None:
    tables = [table.table for table in manifest.tables]
    paths = [file.path for table in manifest.tables for file in table.files]
    if len(set(tables)) != len(tables) or len(set(paths)) != len(paths):
        return "a table or a data file occurs twice"
    # Replicas keep their own tables there.
    if own := [table for table in tables if table.schema.lower() in ("wlc", "wlr")]:
        return f"table {own[0]} cannot be part of a snapshot"
    if wrong := [path for path in paths if parse_snapshot_data_path(path) is None]:
        return f"{wrong[0]!r} is not a data file of a snapshot"
    return None


def _check(manifest: Manifest) -> None:
    if problem := _problem(manifest):
        raise FieldError(problem)


_DOCUMENT = Document("manifest", Manifest, check=_check, may_be_signed=True)
