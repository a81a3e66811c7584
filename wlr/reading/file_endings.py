"""What the ending of a file's name says of the format that is written to it."""

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
    """Return the format in which a new file is written.

    Args:
        file: Its path.
        asked: What its user asked for; None for what the ending says.
        endings: Formats of files with an ending, the usual one first.
        usual: The format of files whose ending says nothing.

    Raises:
        InvalidError: What is asked for is not what the ending says.
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
