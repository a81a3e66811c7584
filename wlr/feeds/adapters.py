"""The table of outputs: no other module chooses one. An adapter is imported when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError
from wlr.engine.place import is_remote, path_of
from wlr.feeds.file import FileOutput

if TYPE_CHECKING:
    from wlr.feeds.contract import Output


def output_at(to: str, rotate_bytes: int | None = None) -> Output:
    """Return the output that a path or URL names; it is not opened.

    Raises:
        InvalidError: The text names no output.
    """
    if not to.strip():
        raise InvalidError("a feed needs an output", hint="wlr feed DB --to changes.jsonl")
    if is_remote(to):
        message = f"{to} is neither a file nor a topic of Kafka"
        raise InvalidError(message, hint="--to changes.jsonl")
    path = path_of(to)
    if path.is_dir() or to.endswith("/"):
        raise InvalidError(f"{path} is a folder", hint=f"--to {path}/changes.jsonl")
    return FileOutput(path, rotate_bytes)
