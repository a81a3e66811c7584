"""Which module makes a path or URL a source. This table is the only place that names all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from wlc.farm.addresses import refuse_connection_string
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from wlc.capture.duckdb.connection import Connection as Connection
    from wlc.farm.model import Name
    from wlc.masters.contract import PublishingPlace, Remembered, Source


class SourceModule(Protocol):
    """What the module of an engine offers."""

    def opened(self, source: str, tables: Sequence[str] = ()) -> AbstractContextManager[Source]:
        """Open a source; `tables` are patterns of those that a new master captures, all if there are none."""

    def creating(self, source: str) -> AbstractContextManager[None]:
        """Make an empty database unless there is one; remove it again if what follows fails before it is a master.

        Raises:
            InvalidError: A database of this engine is not made here; the hint says how.
        """

    def look(self, source: str) -> Remembered:
        """Return what a source remembers, without opening it for writing.

        Raises:
            InvalidError: It has never been a master.
            UnavailableError: It is in use.
        """

    def default_place(self, source: str) -> tuple[str, str] | None:
        """Return the farm and the name that a source has unless others were given, where its path or URL says so."""

    def held_place(self, source: str) -> PublishingPlace | None:
        """Return where a source publishes that cannot be opened now, None if that is not known."""

    def tables_to_change(self, source: str, tables: Sequence[str]) -> list[Name]:
        """List the tables whose replica identity must change before a source can become a master."""

    def preparation(self, source: str) -> str:
        """Return what the server's administrator must run before the role of a URL can make the database a master.

        Raises:
            InvalidError: There is nothing to prepare.
        """

    def check_run(self, source: str) -> None:
        """Refuse a source that is published by the process that writes it."""

    def check_repair(self, source: str) -> None:
        """Refuse a source that cannot publish what bypassed its capture; the hint says what helps instead."""

    def connect(
        self,
        source: str,
        *,
        read_only: bool,
        config: dict[str, Any] | None,
        storage_options: Mapping[str, Any] | None,
    ) -> Connection:
        """Open a master to write to it with capture; arguments and errors as for `wlc.connect`."""


@dataclass(frozen=True, slots=True)
class _Engine:
    name: str
    module: str
    extra: str | None = None


_FILE = _Engine("DuckDB", "wlc.capture.duckdb.source")
_POSTGRES = _Engine("PostgreSQL", "wlc.capture.postgres.source", extra="postgres")
_SCHEMES = {"postgresql": _POSTGRES, "postgres": _POSTGRES}


def is_source(db: str | os.PathLike[str]) -> bool:
    """Say whether this is a source, and not the name or URL of a database in a farm."""
    refuse_connection_string(os.fspath(db))
    scheme, mark, _ = os.fspath(db).partition("://")
    return scheme in _SCHEMES if mark else Path(db).is_file()


def module_of(source: str | os.PathLike[str]) -> SourceModule:
    """Import the module for a path or URL.

    Raises:
        InvalidError: No engine has such URLs, or it needs packages that are not installed.
    """
    refuse_connection_string(os.fspath(source))
    scheme, mark, _ = os.fspath(source).partition("://")
    if mark and scheme not in _SCHEMES:
        known = " or ".join(f"{name}://…" for name in _SCHEMES)
        raise InvalidError(f"a {scheme}:// URL cannot be a master", hint=f"give the path of a DuckDB file, or {known}")
    engine = _SCHEMES[scheme] if mark else _FILE
    try:
        return cast("SourceModule", import_module(engine.module))
    except ImportError as error:
        if engine.extra is None:
            raise
        message = f"{engine.name} needs packages that are not installed: {error}"
        raise InvalidError(message, hint=f"pip install 'dbfarm[{engine.extra}]'") from error


def opened(source: str | os.PathLike[str], tables: Sequence[str] = ()) -> AbstractContextManager[Source]:
    """Open a source; arguments as for `SourceModule.opened`."""
    return module_of(source).opened(os.fspath(source), tables)


def creating(source: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Make an empty database unless there is one; see `SourceModule.creating`."""
    return module_of(source).creating(os.fspath(source))
