"""The source module for a path or URL. This table is the only place that names all modules."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from wlc.farm.addresses import refuse_connection_string, without_password
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from wlc.capture.duckdb.connection import Connection as Connection
    from wlc.farm.model import Name
    from wlc.masters.contract import Interception, PublishingPlace, Remembered, Source


class SourceModule(Protocol):
    """The contract of an engine's module."""

    def opened(self, source: str, tables: Sequence[str] = ()) -> AbstractContextManager[Source]:
        """Open a source; a new master captures the tables that match the patterns `tables`, all if it is empty."""

    def creating(self, source: str) -> AbstractContextManager[None]:
        """Create an empty database unless it exists; remove it again if the body fails before it is a master.

        Raises:
            InvalidError: dbfarm does not create databases of this engine; the hint says how.
        """

    def look(self, source: str) -> Remembered:
        """Return a source's stored state without opening it for writing.

        Raises:
            InvalidError: It has never been a master.
            UnavailableError: It is in use.
        """

    def default_place(self, source: str) -> tuple[str, str] | None:
        """Return the default farm and name of a source, if its path or URL determines them."""

    def held_place(self, source: str) -> PublishingPlace | None:
        """Return where a source that cannot be opened now publishes, None if unknown."""

    def tables_to_change(self, source: str, tables: Sequence[str]) -> list[Name]:
        """List the tables whose replica identity must change before a source can become a master."""

    def preparation(self, source: str) -> str:
        """Return the SQL that a server's administrator must run before a URL's role can make the database a master.

        Raises:
            InvalidError: The engine needs no preparation.
        """

    def check_run(self, source: str) -> None:
        """Refuse a source that its writing process publishes."""

    def check_repair(self, source: str) -> None:
        """Refuse a source that cannot publish uncaptured changes; the hint names the remedy."""

    def connect(
        self,
        source: str,
        *,
        read_only: bool,
        config: dict[str, Any] | None,
        storage_options: Mapping[str, Any] | None,
        repair: bool = False,
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
    """Say whether this is a source rather than the name or URL of a database in a farm."""
    refuse_connection_string(os.fspath(db))
    scheme, mark, _ = os.fspath(db).partition("://")
    return scheme in _SCHEMES if mark else Path(db).is_file()


def module_of(source: str | os.PathLike[str]) -> SourceModule:
    """Import the module for a path or URL.

    Raises:
        InvalidError: No engine has such URLs, or its packages are not installed.
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
    """Create an empty database unless it exists; see `SourceModule.creating`."""
    return module_of(source).creating(os.fspath(source))


def interception(sources: Sequence[str | os.PathLike[str]], storage_options: Mapping[str, Any] | None) -> Interception:
    """Prepare to capture connections to some masters that other programs open.

    Raises:
        InvalidError: One of them is no master, or its engine itself captures what any program writes.
    """
    from wlc.capture.duckdb.interception import DuckDBInterception  # Without that of the engine itself.

    paths = [os.fspath(source) for source in sources]
    for path in paths:
        if "://" in path:
            module_of(path)
            shown = without_password(path)
            raise InvalidError(
                f"{shown} is a PostgreSQL master, which captures what any program writes",
                hint=f"run the program alone; wlc run '{shown}' publishes what is committed",
            )
    return DuckDBInterception(paths, storage_options or {})
