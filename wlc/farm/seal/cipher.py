"""AES-256-GCM and Ed25519 by the package `cryptography`, which only farms with keys need."""

from __future__ import annotations

from functools import cache
from os import urandom
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
SALT_BYTES = 32
TAG_BYTES = 16
CHUNK_BYTES = 1 << 20


class ForgedError(Exception):
    """Encrypted or signed data was changed, or the key is wrong."""


def random_bytes(count: int) -> bytes:
    """Return unpredictable bytes."""
    return urandom(count)


def sealed(key: bytes, salt: bytes, context: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Encrypt an object chunk by chunk, so that no chunk can be changed, moved, left out or added (STREAM).

    Each object has its own key, derived from a random salt, so that counting chunks makes nonces that never repeat.

    Args:
        key: 32 bytes.
        salt: 32 random bytes of this object alone.
        context: Data that the object is bound to, such as its path; required again for decryption.
        chunks: All but the last of CHUNK_BYTES; at least one.

    Source: Hoang, Reyhanitabar, Rogaway, Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
        Misuse-Resistance", 2015.
    """
    gcm = _object_cipher(key, salt)
    for number, chunk, is_last in _numbered(chunks):
        yield gcm.encrypt(_nonce(number, is_last=is_last), chunk, context)


def opened(key: bytes, salt: bytes, context: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decrypt the chunks of `sealed`, which are TAG_BYTES longer.

    Raises:
        ForgedError: The data was changed, or the key or context is wrong. Discard the chunks yielded before.
    """
    _require()
    from cryptography.exceptions import InvalidTag

    gcm = _object_cipher(key, salt)
    for number, chunk, is_last in _numbered(chunks):
        try:
            yield gcm.decrypt(_nonce(number, is_last=is_last), chunk, context)
        except InvalidTag as error:
            raise ForgedError from error


def sign(private: bytes, message: bytes) -> bytes:
    """Sign a message with an Ed25519 key; the same message gives the same signature."""
    _require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def public_of(private: bytes) -> bytes:
    """Return the public half of an Ed25519 key."""
    _require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Check a signature.

    Raises:
        ForgedError: It is not this key's signature of this message.
    """
    _require()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise ForgedError from error


@cache
def _require() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        message = f"keys need a package that is not installed: {error}"
        raise InvalidError(message, hint="pip install 'dbfarm[crypto]'") from error


def _object_cipher(key: bytes, salt: bytes) -> AESGCM:
    _require()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"dbfarm object").derive(key))


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def _numbered(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield each chunk with its number and whether it is the last."""
    number, chunk = 0, next(chunks)
    for following in chunks:
        yield number, chunk, False
        number, chunk = number + 1, following
    yield number, chunk, True
