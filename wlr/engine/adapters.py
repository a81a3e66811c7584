"""The table of replica engines: no other module names one. An adapter is imported on first use."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.opening import refuse_path
from wlc.farm.addresses import without_password
from wlc.farm.errors import InvalidError
from wlr.engine.place import Place, is_remote, path_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from wlr.engine.contract import Lake, Target

_PARQUET = "parquet://"
# Suffixes of files that cannot be replicas.
_OTHER_FORMATS = frozenset(
    ".csv .tsv .txt .json .jsonl .ndjson .parquet .sqlite .sqlite3 .xlsx .arrow .avro .gz .zip".split()
)
_POSTGRES = ("postgresql://", "postgres://")


def target_at(into: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Target:
    """Return the target that a path or URL names; the target is not opened.

    Args:
        into: The user's text, see `locate`.
        storage_options: Options of the target's file system.

    Raises:
        InvalidError: The text names no target, or the engine's packages are not installed.
    """
    place = locate(into, storage_options)
    return _ADAPTERS[place.engine](place)


def locate(into: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Place:
    """Decide the place and the engine of a replica.

    `postgresql://` and `postgres://` are PostgreSQL databases; `parquet://` and other URLs, folders, and paths without
    a suffix that do not exist yet are Parquet replicas; other paths are DuckDB files.

    Args:
        into: The user's text.
        storage_options: Options of the replica's file system.

    Raises:
        InvalidError: The text is empty or cannot be a path, or PostgreSQL's drivers are not installed.
    """
    text = str(into)
    options = dict(storage_options or {})
    if not text.strip():
        raise InvalidError("a replica needs a place", hint="wlr replicate MASTER --into copy.duckdb")
    if text.startswith(_POSTGRES):
        if find_spec("psycopg") is None:
            message = "PostgreSQL needs packages that are not installed"
            raise InvalidError(message, hint="pip install 'dbfarm[postgres]'")
        return Place("postgres", text, without_password(text))
    if text.startswith(_PARQUET):
        # parquet://lake and parquet:///data/lake are paths; parquet://s3://bucket/lake is a URL after the prefix.
        inner = text.removeprefix(_PARQUET)
        if not inner:
            raise InvalidError(f"{text} names no folder", hint="wlr replicate MASTER --into parquet://lake")
        return _parquet_place(inner if is_remote(inner) else str(path_of(inner)), options)
    if is_remote(text):
        return _parquet_place(text, options)
    path = path_of(text)
    try:
        is_folder = path.is_dir() or text.endswith("/") or (not path.suffix and not path.exists())
    except OSError as error:
        raise InvalidError(f"{text[:200]!r} cannot be a path: {error.strerror}", hint="Choose another path.") from error
    if is_folder:
        return _parquet_place(str(path), options)
    refuse_path(path)
    if path.suffix.lower() in _OTHER_FORMATS and not path.exists():
        stem = shlex.quote(str(path.with_suffix("")))
        raise InvalidError(
            f"{text} cannot be a replica: that is a DuckDB file, a folder of Parquet files, or a PostgreSQL database",
            hint=f"--into {stem}.duckdb, or --into {stem}/ for Parquet files; wlr feed writes CSV and JSON",
        )
    return Place("duckdb", str(path), without_password(str(path)), options)


def folder_target(folder: Path) -> Lake:
    """Return a target in a local folder whose files can become a snapshot; see `Lake.as_snapshot`."""
    return _parquet(_parquet_place(str(folder), {}))


def _parquet_place(url: str, options: Mapping[str, Any]) -> Place:
    if "://" not in url:
        refuse_path(url, unfit="\\")
    return Place("parquet", url, without_password(url), options)


def _duckdb(place: Place) -> Target:
    from wlr.engine.duckdb.target import DuckDBTarget

    return DuckDBTarget(place)


def _postgres(place: Place) -> Target:
    from wlr.engine.postgres.target import PostgresTarget

    return PostgresTarget(place)


def _parquet(place: Place) -> Lake:
    from wlr.engine.parquet.target import ParquetTarget

    return ParquetTarget(place)


_ADAPTERS: dict[str, Callable[[Place], Target]] = {"duckdb": _duckdb, "postgres": _postgres, "parquet": _parquet}
