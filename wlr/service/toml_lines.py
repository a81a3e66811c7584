"""In which line of a TOML file a key is: the parser of the standard library does not say."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER = re.compile(r"\s*\[(?!\[)")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the line, from 1 on, of every table and key of a valid TOML file by its path, except arrays of tables."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    statement, began = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        began = began if statement else number
        statement += f"{line}\n"
        try:
            content = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            # It goes on in the next line.
            continue
        if _HEADER.match(statement):
            table = path = _path(content)
        elif content:
            path = (*table, *_path(content))
        else:
            path = ()
        for length in range(1, len(path) + 1):
            found.setdefault(path[:length], began)
        statement = ""
    return found


def _path(content: Mapping[str, object]) -> tuple[str, ...]:
    """Return the way to the one value that a statement sets; its own keys, if it is an inline table, too."""
    path: list[str] = []
    inner: object = content
    while isinstance(inner, dict) and len(inner) == 1:
        ((name, inner),) = inner.items()
        path.append(name)
    return tuple(path)


def line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a path, or of the nearest one that leads to it."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 1)
