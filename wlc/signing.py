"""Signatures of log files and manifests: a line before the last one, over all lines above it.

A signature says who wrote a file, where the checksum below it says only that it is whole. Since a log file names the
chain hash of the one before it, and the SHA-256 of its data files, a signed one vouches for them, too.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from wlc import cipher
from wlc.errors import CorruptError
from wlc.log import digest, seal_problem
from wlc.store.encrypted import refuse_encrypted

if TYPE_CHECKING:
    from wlc.keys import Key, Keys

_LOG_SEAL = b'{"sha256":"'
_MANIFEST_SEAL = b',"sha256":"'
_SEAL_END_BYTES = 64 + len(b'"}\n')
_LINE = re.compile(rb'[{,]"signature":\{"key":"([0-9a-f]{16})","ed25519":"([A-Za-z0-9+/]{86}==)"\}\}?\n')
# The longest that a line can be.
_LINE_BYTES = 160


def signed_log(data: bytes, keys: Keys) -> bytes:
    """Return a log file with its signature if there is a key for it, as it is if not.

    Raises:
        InvalidError: There ought to be a key, and is none.
    """
    return _signed(data, keys, _LOG_SEAL, b"{", b"}") if keys.signs else data


def signed_manifest(data: bytes, keys: Keys) -> bytes:
    """Return a manifest with its signature; see `signed_log`."""
    return _signed(data, keys, _MANIFEST_SEAL, b",", b"") if keys.signs else data


def verify_log(data: bytes, where: str, keys: Keys, *, is_own: bool = False) -> None:
    """Check that a log file is signed with one of the keys that are asked for; nothing is checked if none is.

    Args:
        data: The file's bytes.
        where: Where it lies, for messages.
        keys: Keys to verify with.
        is_own: Whoever signs asks for its own signature.

    Raises:
        CorruptError: It is not. Apply nothing of it.
        InvalidError: It is encrypted, and there is no key to decrypt it.
    """
    refuse_encrypted(data, where)
    if known := keys.own if is_own else keys.verifying:
        _verify(data, where, known, _LOG_SEAL)


def verify_manifest(data: bytes, where: str, keys: Keys) -> None:
    """Check the signature of a manifest; see `verify_log`."""
    refuse_encrypted(data, where)
    if keys.verifying:
        _verify(data, where, keys.verifying, _MANIFEST_SEAL)


def _signed(data: bytes, keys: Keys, seal: bytes, start: bytes, end: bytes) -> bytes:
    body = data[: -len(seal) - _SEAL_END_BYTES]
    key = keys.signing
    value = base64.b64encode(cipher.sign(key.content, body))
    body += start + b'"signature":{"key":"' + key.id.encode() + b'","ed25519":"' + value + b'"}' + end + b"\n"
    return body + seal + digest(body).encode() + b'"}\n'


def _verify(data: bytes, where: str, keys: tuple[Key, ...], seal: bytes) -> None:
    # What is damaged is called so, and not forged.
    if problem := seal_problem(data, seal):
        raise CorruptError(f"{where}: {problem}", path=where)
    body = data[: -len(seal) - _SEAL_END_BYTES]
    start = body.rfind(b"\n", max(0, len(body) - _LINE_BYTES), len(body) - 1) + 1
    found = _LINE.fullmatch(body[start:])
    known = ", ".join(key.id for key in keys)
    hint = "Somebody else wrote it; or give the key of its writer, too: verify_key_file, WLC_VERIFY_KEY_FILE."
    if found is None:
        raise CorruptError(f"{where} is not signed, and has to be with key {known}", hint=hint, path=where)
    id_ = found[1].decode()
    key = next((key for key in keys if key.id == id_), None)
    if key is None:
        raise CorruptError(f"{where} is signed with key {id_}, and has to be with {known}", hint=hint, path=where)
    try:
        cipher.verify(key.content, base64.b64decode(found[2]), body[:start])
    except cipher.ForgedError as error:
        raise CorruptError(f"{where}: the signature is not that of key {id_}", hint=hint, path=where) from error
