"""Where a replica is, and of which kind, told from what the user typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from wlc.address import without_password
from wlc.errors import InvalidError
from wlc.store import local_path

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_PARQUET = "parquet://"
_POSTGRES = ("postgresql://", "postgres://")
_FILE = "file://"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is.

    Attributes:
        url: Path of a DuckDB file; path or URL of a Parquet replica's folder; URL of a PostgreSQL database, which may
            hold a password and is therefore never shown as it is.
        is_parquet: It is a folder of Parquet files.
        storage_options: Options of the folder's file system.
        is_postgres: It is a PostgreSQL database; if it is neither, it is a DuckDB file.
    """

    url: str = field(repr=False)
    is_parquet: bool
    storage_options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    is_postgres: bool = False

    @property
    def path(self) -> Path:
        """The DuckDB file."""
        return Path(self.url)

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        return (
            "a Parquet replica" if self.is_parquet else "a PostgreSQL database" if self.is_postgres else "a DuckDB file"
        )

    def __str__(self) -> str:
        return without_password(self.url) if self.is_postgres else self.url


def locate(into: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Place:
    """Tell where a replica is and of which kind.

    `postgresql://` and `postgres://` are PostgreSQL databases; `parquet://` and other URLs, folders, and paths without
    a suffix that do not exist yet are Parquet replicas; other paths are DuckDB files.

    Args:
        into: What the user typed.
        storage_options: Options of the folder's file system.

    Raises:
        InvalidError: It is empty, cannot be a path, or PostgreSQL's drivers are not installed.
    """
    text = str(into)
    options = dict(storage_options or {})
    if not text.strip():
        raise InvalidError("a replica needs a place", hint="wlr replicate MASTER --into copy.duckdb")
    if text.startswith(_POSTGRES):
        if find_spec("psycopg") is None:
            message = "PostgreSQL needs packages that are not installed"
            raise InvalidError(message, hint="pip install 'dbfarm[postgres]'")
        return Place(text, is_parquet=False, is_postgres=True)
    if text.startswith(_PARQUET):
        # parquet://lake and parquet:///data/lake are paths, parquet://s3://bucket/lake is the URL behind it.
        inner = text.removeprefix(_PARQUET)
        if not inner:
            raise InvalidError(f"{text} names no folder", hint="wlr replicate MASTER --into parquet://lake")
        return Place(inner if _is_remote(inner) else str(_path(inner)), True, options)
    if _is_remote(text):
        return Place(text, True, options)
    path = _path(text)
    try:
        is_folder = path.is_dir() or text.endswith("/") or (not path.suffix and not path.exists())
    except OSError as error:
        raise InvalidError(f"{text[:200]!r} cannot be a path: {error.strerror}", hint="Choose another path.") from error
    return Place(str(path), is_folder, options)


def _is_remote(text: str) -> bool:
    return "://" in text and not text.startswith(_FILE)


def _path(text: str) -> Path:
    # As in the farm's own URLs, what a path may not hold is escaped in file:///data/my%20lake.
    plain = unquote(text.removeprefix(_FILE)) if text.startswith(_FILE) else text
    return local_path(plain)
