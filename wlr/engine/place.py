"""Where a replica is, and of which kind, told from what the user typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from wlc.errors import InvalidError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_PARQUET = "parquet://"
_FILE = "file://"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is.

    Attributes:
        url: Path of a DuckDB file; path or URL of a Parquet replica's folder.
        is_parquet: It is a folder of Parquet files, else a DuckDB file.
        storage_options: Options of the folder's file system.
    """

    url: str
    is_parquet: bool
    storage_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def path(self) -> Path:
        """The DuckDB file."""
        return Path(self.url)

    def __str__(self) -> str:
        return self.url


def locate(into: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Place:
    """Tell where a replica is and of which kind.

    `parquet://` and other URLs, folders, and paths without a suffix that do not exist yet are Parquet replicas; other
    paths are DuckDB files.

    Args:
        into: What the user typed.
        storage_options: Options of the folder's file system.

    Raises:
        InvalidError: It is empty.
    """
    text = str(into)
    options = dict(storage_options or {})
    if not text.strip():
        raise InvalidError("a replica needs a place", hint="wlr replicate MASTER --into copy.duckdb")
    if text.startswith(_PARQUET):
        # parquet://lake and parquet:///data/lake are paths, parquet://s3://bucket/lake is the URL behind it.
        inner = text.removeprefix(_PARQUET)
        if not inner:
            raise InvalidError(f"{text} names no folder", hint="wlr replicate MASTER --into parquet://lake")
        return Place(inner if _is_remote(inner) else str(_path(inner)), True, options)
    if _is_remote(text):
        return Place(text, True, options)
    path = _path(text)
    is_folder = path.is_dir() or text.endswith("/") or (not path.suffix and not path.exists())
    return Place(str(path), is_folder, options)


def _is_remote(text: str) -> bool:
    return "://" in text and not text.startswith(_FILE)


def _path(text: str) -> Path:
    # As in the farm's own URLs, what a path may not hold is escaped in file:///data/my%20lake.
    plain = unquote(text.removeprefix(_FILE)) if text.startswith(_FILE) else text
    return Path(plain).expanduser().absolute()
