"""Connections to a master's database; one that belongs to a site can take in the background what others publish."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.retry import PAUSE_LEAST_S
from wlc.masters import adapters
from wlc.masters.position import beat
from wlc.multi_master.take_round import TakenFrom, take, what_to_take_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.masters.adapters import Connection

_log = logging.getLogger("wlc")


def connect(
    database: str | os.PathLike[str],
    read_only: bool = False,
    config: dict[str, Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    take: bool = False,
    beat_s: float | None = None,
) -> Connection:
    """Open a master's database with capture; a drop-in for `duckdb.connect`.

    Args:
        database: Path of the database.
        read_only: Open it for reading; nothing is captured, since nothing can be written.
        config: Settings of DuckDB.
        storage_options: Options of the farm's file system, over those that the database remembers; they hold until
            the last connection of this process is closed.
        take: Take what other sites publish, in the background, until this connection is closed.
        beat_s: Seconds between two rounds of taking; the database's own beat if omitted.

    Raises:
        InvalidError: No such database, it has never been a master, or is to take and is no site.
        UnavailableError: Another process has it open.
        duckdb.ConnectionException: This process has it open with another `read_only` or `config`.
    """
    if take and read_only:
        raise InvalidError("a connection that only reads cannot take", hint="wlc.connect(path, take=True)")
    source = os.fspath(database)
    connection = adapters.module_of(source).connect(
        source, read_only=read_only, config=config, storage_options=storage_options
    )
    connection.wlc = Taker(source, storage_options, beat_s)
    if take:
        try:
            what_to_take_as(source)
        except BaseException:
            connection.close()
            raise
        connection.wlc.start()
        connection.before_close(connection.wlc.stop)
    return connection


class Taker:
    """Takes for the process that has a site's database open: `connection.wlc`.

    Attributes:
        failure: Why the last round in the background failed; None if it succeeded.
    """

    def __init__(self, source: str, storage_options: Mapping[str, Any] | None, beat_s: float | None) -> None:
        self.failure: FarmError | None = None
        self._source, self._options, self._beat_s = source, storage_options, beat_s
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, site: str | None = None) -> list[TakenFrom]:
        """Take now what other sites published; see `wlc.take`."""
        return take(self._source, site=site, storage_options=self._options)

    def start(self) -> None:
        """Take now and on every beat, until `stop`."""
        self._thread = threading.Thread(target=self._rounds, name=f"wlc take {self._source}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the background thread; returns when it has ended."""
        self._is_stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _rounds(self) -> None:
        pause_s = self._beat_s
        with suppress(FarmError):
            pause_s = self._beat_s if self._beat_s is not None else beat(self._source, storage_options=self._options)
        while not self._is_stopped.is_set():
            try:
                self.take()
                self.failure = None
            except FarmError as error:
                if self.failure is None or self.failure.message != error.message:
                    _log.warning("%s did not take everything: %s", self._source, error)
                self.failure = error
            self._is_stopped.wait(max(pause_s or 0, PAUSE_LEAST_S))
