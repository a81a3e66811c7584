"""Signs of life: an idle publisher writes a sign periodically, and a last one when it closes.

A publication is itself a sign, by the time of its last commit in `wlc.config`, so a busy database costs no request.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError
from wlc.farm.health import Health, Sign, change_health, health_object, is_silent, read_health, sign_of
from wlc.farm.retry import CHANGE_ATTEMPTS
from wlc.farm.store import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.farm.database import FarmDatabase
    from wlc.masters.master_state import MasterState

_log = logging.getLogger("wlc")

# A program that opens a database, writes and closes it gives one sign, at its end.
_FIRST = timedelta(seconds=5)
_NEVER = datetime.min.replace(tzinfo=UTC)


class Publishes(Protocol):
    """The part of a source that signs need."""

    def require_state(self) -> MasterState: ...


class Signs:
    """Gives the signs of one publisher in a separate thread, so that a long round does not look like a crash.

    Args:
        source: The master.
        database: Returns its place in the farm.
        failure: Returns the reason why it cannot publish at present; "" if it can.
    """

    def __init__(
        self, source: Publishes, database: Callable[[], FarmDatabase], failure: Callable[[], str] = lambda: ""
    ) -> None:
        self._source, self._database, self._failure = source, database, failure
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._present: tuple[Health, str | None] | None = None
        self._given_at = _NEVER
        self._reported = ""

    def start(self, first: timedelta = _FIRST) -> None:
        """Start to give signs; the first one follows after an interval."""
        if self._thread is None:
            self._is_stopped.clear()
            self._given_at = _NEVER
            name = f"wlc signs {self._source}"
            self._thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop giving signs."""
        if self._thread is not None:
            self._is_stopped.set()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Record that the publisher closed with everything published, unless the last sign already says so."""
        self.stop()
        self._give(is_closed=not self._failure())

    def _run(self, wait: timedelta) -> None:
        while not self._is_stopped.wait(wait.total_seconds()):
            last, now = max(self._given_at, self._source.require_state().clock or _NEVER), utc_now()
            # The first sign replaces the last one of a closed publisher. A clock that was set back, or a server's
            # different clock, must not end the signs.
            is_due = self._given_at == _NEVER or not now - self._every < last <= now
            if is_due or self._failure() != self._reported:
                self._give()
                last = now
            if not self._every:
                return
            wait = max(last + self._every - now, timedelta(seconds=1))

    @property
    def _every(self) -> timedelta:
        return (self._present[0] if self._present else Health()).sign_every

    def _give(self, *, is_closed: bool = False) -> None:
        """Write a sign; if that fails, the reader sees none, which correctly reports a problem."""
        state = self._source.require_state()
        if state.fence is not None or not state.is_master:
            return
        failure = self._failure()
        sign = sign_of(state.history, _place(self._source), is_closed=is_closed, failure=failure)
        try:
            self._write(sign)
        except FarmError as error:
            _log.debug("%s gave no sign of life: %s", self._source, error)
        else:
            self._given_at, self._reported = sign.seen, failure

    def _write(self, sign: Sign) -> None:
        """Replace the last sign with one request; read it first if it is unknown or another process wrote it."""
        database = self._database()
        place = health_object(database)
        for _ in range(CHANGE_ATTEMPTS):
            health, version = self._present or place.load() or (Health(), None)
            if not is_wanted(health, sign) or (self._present is None and database.config().history != sign.history):
                self._present = health, version
                return
            health = replace(health, publisher=sign)
            try:
                self._present = health, place.replace(health, version)
            except ConflictError:
                self._present = None
            else:
                return


def _place(source: Publishes) -> str:
    """Return a source's absolute place, so that its owner finds it from any folder."""
    return str(source) if "://" in str(source) else os.path.abspath(str(source))  # noqa: PTH100 - links stay


@contextmanager
def giving_signs(source: Publishes, database: FarmDatabase) -> Iterator[None]:
    """Give signs while a block runs, and the last one at its end unless it fails."""
    signs = Signs(source, lambda: database)
    signs.start(timedelta(0))
    try:
        yield
        signs.close()
    finally:
        signs.stop()


def is_wanted(health: Health, sign: Sign) -> bool:
    """Say whether a new sign adds information to the last one, and signs are enabled."""
    last = health.publisher
    says_nothing = last is not None and sign.is_closed and last.is_closed and last.history == sign.history
    return bool(health.sign_every) and not says_nothing


def note_flushed(source: Publishes, database: FarmDatabase) -> None:
    """Record that all is published, in place of a publisher that crashed without its last sign."""
    state = source.require_state()

    def closed(health: Health) -> Health:
        if health.publisher is None or not is_silent(health, state.clock, utc_now()):
            return health
        return replace(health, publisher=sign_of(state.history, _place(source), is_closed=True))

    with suppress(FarmError):
        if read_health(database).publisher is not None:
            change_health(database, closed)
