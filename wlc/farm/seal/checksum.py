"""Checksums: the SHA-256 of a file, and a last line with the SHA-256 of all lines above it.

`head -n -1 FILE | sha256sum` checks such a file by hand. A checksum finds damage; a signature also finds forgery.
"""

from __future__ import annotations

import hashlib

# The text after the key's name: 64 digits and the end of the line.
_DIGITS = 64
_END = b'"}\n'
CHECKSUM_LINE_BYTES = _DIGITS + len(_END)
# How the last line begins, in a file of JSON lines and in one JSON document.
LINES_END = b'{"sha256":"'
DOCUMENT_END = b',"sha256":"'


def checksum(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def with_checksum(body: bytes, start: bytes) -> bytes:
    """Return a file with a checksum line appended; `start` is how that line begins."""
    return body + start + checksum(body).encode() + _END


def checksum_problem(data: bytes, start: bytes) -> str | None:
    """Say what is wrong with the checksum line of a file, None if it is right."""
    end = max(len(data) - len(start) - CHECKSUM_LINE_BYTES, 0)
    line = data[end:]
    if not (data.endswith(b"\n", 0, end) and line.startswith(start) and line.endswith(_END)):
        return "it does not end with its checksum; it is truncated or damaged"
    if checksum(memoryview(data)[:end]).encode() != line[-CHECKSUM_LINE_BYTES : -len(_END)]:
        return "its checksum does not match its content"
    return None
