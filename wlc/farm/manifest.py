"""Manifests: the content list of a snapshot, as one JSON document closed by a checksum."""

from __future__ import annotations

from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.model import Manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as the bytes of its file.

    Raises:
        InvalidError: The manifest is inconsistent, so that every reader would refuse it.
    """
    if problem := manifest.problem:
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


_DOCUMENT = Document("manifest", Manifest, may_be_signed=True)
