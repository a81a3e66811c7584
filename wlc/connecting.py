"""Connections to a master's database; a site's connection can take the other sites' transactions in the background."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import InvalidError
from wlc.masters import adapters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.masters.adapters import Connection
    from wlc.multi_master.taker import Taker


def connect(
    database: str | os.PathLike[str] = ":memory:",
    read_only: bool = False,
    config: dict[str, Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    repair: bool = False,
    take: bool = False,
    beat_s: float | None = None,
) -> Connection:
    """Open a master's database with capture; a drop-in for `duckdb.connect`.

    Args:
        database: Path of the database; DuckDB's default, a database in memory, is refused.
        read_only: Open it for reading only; nothing can be written, so nothing is captured.
        config: Settings of DuckDB.
        storage_options: Options of the farm's file system, over those that the database remembers; they hold until
            the last connection of this process is closed.
        repair: First publish what another program wrote to the file without capture.
        take: Take the other sites' transactions in the background until this connection is closed.
        beat_s: Seconds between two rounds of taking; the database's own beat if omitted.

    Raises:
        InvalidError: There is no such database, it was never a master, or `take` is set and it is no site.
        UnavailableError: Another process has it open.
        duckdb.ConnectionException: This process has it open with another `read_only` or `config`.

    Examples:
        >>> with wlc.connect("sales.duckdb") as connection:
        ...     connection.execute("UPDATE orders SET item = 'brush' WHERE id = 1").fetchall()
        [(1,)]
        >>> wlc.tick("sales")
        4
    """
    if take and read_only:
        raise InvalidError("a connection that only reads cannot take", hint="wlc.connect(path, take=True)")
    if repair and read_only:
        raise InvalidError("a connection that only reads cannot repair", hint="wlc.connect(path, repair=True)")
    source = os.fspath(database)
    connection = adapters.module_of(source).connect(
        source, read_only=read_only, config=config, storage_options=storage_options, repair=repair
    )

    @cache
    def make_taker() -> Taker:
        from wlc.multi_master import taker  # A plain master never loads the code of sites.

        return taker.Taker(source, storage_options, beat_s)

    connection.make_taker = make_taker
    if take:
        try:
            connection.wlc.start()
        except BaseException:
            connection.close()
            raise
        connection.before_close(connection.wlc.stop)
    return connection
