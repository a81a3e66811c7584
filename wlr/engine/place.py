"""The place of a replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from wlc.farm.store import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping


_FILE = "file://"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a replica.

    Attributes:
        engine: Name of its adapter, see `wlr.engine.adapters`.
        url: Path or URL. It may hold a password, so messages show `str(place)` instead.
        shown: The URL without a password.
        storage_options: Options of the file system.
    """

    engine: str
    url: str = field(repr=False)
    shown: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @property
    def path(self) -> Path:
        """The place as a local path."""
        return Path(self.url)

    def __str__(self) -> str:
        return self.shown


def is_remote(text: str) -> bool:
    """Return whether a text is a URL, but not of a local file."""
    return "://" in text and not text.startswith(_FILE)


def path_of(text: str) -> Path:
    """Return the local path that a text or a `file://` URL names."""
    # A file URL escapes characters that URLs cannot hold, as in file:///data/my%20lake.
    plain = unquote(text.removeprefix(_FILE)) if text.startswith(_FILE) else text
    return local_path(plain)
