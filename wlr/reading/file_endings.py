"""The format of a new file by the suffix of its name."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_of_file(
    file: str | os.PathLike[str], asked: str | None, endings: Mapping[str, tuple[str, ...]], usual: str
) -> str:
    """Return the format of a new file.

    Args:
        file: Its path.
        asked: The user's format; None for that of the suffix.
        endings: Formats by suffix, the usual one first.
        usual: The format without a known suffix.

    Raises:
        InvalidError: The user's format contradicts the suffix.
    """
    ending = PurePath(file).suffix.lower()
    said = endings.get(ending)
    if said is None:
        return asked or usual
    if asked is None or asked in said:
        return asked or said[0]
    other = next(known for known, formats in endings.items() if asked in formats)
    message = f"{os.fspath(file)} ends in {ending}, and --format is {asked}"
    raise InvalidError(message, hint=f"--format {said[0]}, or a name that ends in {other}")
