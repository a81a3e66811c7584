"""Signatures of log files and manifests: a line before the last one, over all lines above it.

A signature proves the author of a file; the checksum below it only proves that the file is whole. A log file names the
chain hash of the one before it and the checksums of its data files, so its signature covers them, too.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError
from wlc.farm.seal import cipher
from wlc.farm.seal.checksum import CHECKSUM_LINE_BYTES, DOCUMENT_END, LINES_END, checksum_problem, with_checksum
from wlc.farm.store.encrypted import refuse_encrypted

if TYPE_CHECKING:
    from wlc.farm.seal.keys import Key, Keys

_LINE = re.compile(rb'[{,]"signature":\{"key":"([0-9a-f]{16})","ed25519":"([A-Za-z0-9+/]{86}==)"\}\}?\n')
# The longest that a line can be.
_LINE_BYTES = 160
_HANDOVER = b'"handover":{'


def signed_log(data: bytes, keys: Keys) -> bytes:
    """Return a log file, with its signature if there is a signing key.

    Raises:
        InvalidError: A signing key is required and missing.
    """
    return _signed(data, keys, LINES_END, b"{", b"}") if keys.signs else data


def signed_manifest(data: bytes, keys: Keys) -> bytes:
    """Return a manifest with its signature; see `signed_log`."""
    return _signed(data, keys, DOCUMENT_END, b",", b"") if keys.signs else data


def verify_log(data: bytes, where: str, keys: Keys, *, is_own: bool = False) -> None:
    """Check that a log file is signed with one of the keys to verify with; without such keys nothing is checked.

    Args:
        data: The file's bytes.
        where: Where it is, for messages.
        keys: Keys to verify with.
        is_own: The caller is the publisher of this file: if the caller signs, its own signature is required. A batch
            that hands over the log is signed by the successor, with one of the keys to verify with.

    Raises:
        CorruptError: The signature is missing or wrong. Apply nothing of the file.
        InvalidError: The file is encrypted, and there is no key to decrypt it.
    """
    refuse_encrypted(data, where)
    is_others = not is_own or _HANDOVER in data
    if known := (keys.own if is_own else ()) + (keys.verifying if is_others else ()):
        _verify(data, where, known, LINES_END)


def verify_manifest(data: bytes, where: str, keys: Keys) -> None:
    """Check the signature of a manifest; see `verify_log`."""
    refuse_encrypted(data, where)
    if keys.verifying:
        _verify(data, where, keys.verifying, DOCUMENT_END)


def is_signed_manifest(data: bytes) -> bool:
    """Say whether a manifest has a signature, by any key."""
    return _signature(data[: -len(DOCUMENT_END) - CHECKSUM_LINE_BYTES])[1] is not None


def _signature(body: bytes) -> tuple[int, re.Match[bytes] | None]:
    """Return where the last line of a file begins, and that line if it is a signature."""
    start = body.rfind(b"\n", max(0, len(body) - _LINE_BYTES), len(body) - 1) + 1
    return start, _LINE.fullmatch(body[start:])


def _signed(data: bytes, keys: Keys, last: bytes, start: bytes, end: bytes) -> bytes:
    body = data[: -len(last) - CHECKSUM_LINE_BYTES]
    key = keys.signing
    value = base64.b64encode(cipher.sign(key.content, body))
    body += start + b'"signature":{"key":"' + key.id.encode() + b'","ed25519":"' + value + b'"}' + end + b"\n"
    return with_checksum(body, last)


def _verify(data: bytes, where: str, keys: tuple[Key, ...], last: bytes) -> None:
    # Damage is reported as damage, not as forgery.
    if problem := checksum_problem(data, last):
        raise CorruptError(f"{where}: {problem}", path=where)
    body = data[: -len(last) - CHECKSUM_LINE_BYTES]
    start, found = _signature(body)
    known = ", ".join(key.id for key in keys)
    hint = "Another writer created it. To trust that writer, add its key: verify_key_file, WLC_VERIFY_KEY_FILE."
    if found is None:
        raise CorruptError(f"{where} is not signed; it must be signed with key {known}", hint=hint, path=where)
    id_ = found[1].decode()
    key = next((key for key in keys if key.id == id_), None)
    if key is None:
        raise CorruptError(f"{where} is signed with key {id_}; it must be signed with {known}", hint=hint, path=where)
    try:
        cipher.verify(key.content, base64.b64decode(found[2]), body[:start])
    except cipher.ForgedError as error:
        raise CorruptError(f"{where}: the signature is not that of key {id_}", hint=hint, path=where) from error
