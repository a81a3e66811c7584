"""Serves `/metrics`, `/healthz` and the pages of databases.

The pages of `wlc farm report`, live, for the databases of the service.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import wlr
from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.version import __version__
from wlc.tiers.listing import entry_of, not_read
from wlr.care.report import published_per_hour
from wlr.care.report_page import ListedDatabase, databases_page, report_page, require_packages, script
from wlr.service.settings import DatabasePlace, MasterItem, SiteItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlr.service.job_states import Board, WorkStanding
    from wlr.service.metrics import Exposition
    from wlr.service.settings import ServiceSettings


# A client that does not read its answer must not occupy a thread for ever.
_PATIENCE_S = 10.0


class Listener:
    """An HTTP server in a separate thread.

    Args:
        address: Such as `:9188` for all addresses of the machine, or `127.0.0.1:9188`.
        board: Source of `/healthz`.
        exposition: Source of `/metrics`.
        pages: Pages of `/`; none if omitted.

    Raises:
        InvalidError: The address cannot be bound.
    """

    def __init__(self, address: str, board: Board, exposition: Exposition, pages: Pages | None = None) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), _handler(board, exposition, pages))
        except OSError as error:
            hint = f"--listen {host or '127.0.0.1'}:{_free_port(host, int(port))}"
            raise InvalidError(f"cannot listen on {address}: {error.strerror}", hint=hint) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="listener", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, also if the system chose it for 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _free_port(host: str, port: int) -> int:
    """Return a free port near a taken one; the usual one if the address is not this machine's."""
    for near in range(port + 1, port + 20):
        with suppress(OSError), socket.socket() as tried:
            tried.bind((host.strip("[]"), near))
            return near
    return 9188


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # `close` does not wait for slow clients.
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: a client has disconnected."""


def health(board: Board) -> tuple[int, dict[str, object]]:
    """Return the HTTP status and the text of `/healthz`: 200, or 503 with failing jobs and faulty databases."""
    failing, wrong = board.failing(), board.wrong()
    works = [{"item": each.item, "work": each.work, "failures": dict(each.failures)} for each in failing]
    databases = [{"database": each.database, "state": each.state, "why": each.why} for each in wrong]
    is_well = not failing and not wrong
    return (200 if is_well else 503), {"is_well": is_well, "failing": works, "databases": databases}


def _handler(board: Board, exposition: Exposition, pages: Pages | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S
        server_version = "dbfarm"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                content, kind = exposition.answer(self.headers.get("Accept", ""))
                self._answer(200, kind, content)
            elif path == "/healthz":
                status, said = health(board)
                self._answer(status, "application/json", json.dumps(said).encode())
            elif pages is not None and (page := pages.answer(path)) is not None:
                self._answer(page.status, page.kind, page.content, is_lasting=path == SCRIPT)
            else:
                self._answer(404, "text/plain; charset=utf-8", b"/, /metrics and /healthz\n")

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, status: int, kind: str, content: bytes, *, is_lasting: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if is_lasting:
                self.send_header("Cache-Control", "max-age=86400")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: a request is no change."""

    return Handler


log = logging.getLogger("wlr.service")

# A page is rebuilt when it is older than this, and older than the time of its making.
_FRESH_S = 10.0
_AT_ONCE = 8
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
# The program that draws charts: several megabytes, which a browser fetches once.
SCRIPT = f"/charts-{__version__}.js"


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """The answer to a request: HTTP status, content type, content."""

    status: int
    kind: str
    content: bytes


@dataclass
class _Page:
    """A page, its maker, and the lock for a single maker at a time."""

    make: Callable[[], str]
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: WebAnswer | None = None
    fresh_until: float = 0.0


class Pages:
    """The pages, made on request and cached for some seconds.

    Args:
        settings: The settings, with the databases.
        board: States of jobs.
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, settings: ServiceSettings, board: Board, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._board = board
        self.change(settings)

    def change(self, settings: ServiceSettings) -> None:
        """Use other settings."""
        places = _places(settings)
        self._pages = {name: _Page(partial(_page_of, place)) for name, place in places.items()}
        self._list = _Page(partial(_list_of, places, self._board.failing))

    def answer(self, path: str) -> WebAnswer | None:
        """Answer a request: `/` lists the databases, `/NAME` shows one; None for another path."""
        name = unquote(path.removeprefix("/"))
        if path == SCRIPT:
            return _answer(script, "text/javascript; charset=utf-8")
        if name in self._pages:
            return self._made(self._pages[name])
        if name or not self._pages:
            return None
        return self._made(self._list)

    def _made(self, page: _Page) -> WebAnswer:
        with page.lock:
            if page.answer is None or self._now() >= page.fresh_until:
                begun = self._now()
                page.answer = _answer(page.make)
                done = self._now()
                page.fresh_until = done + max(_FRESH_S, done - begun)
            return page.answer


def _places(settings: ServiceSettings) -> dict[str, DatabasePlace]:
    """Name every database of an item once; a duplicate name gets the name of its farm as a prefix."""
    found: dict[str, DatabasePlace] = {}
    places = set()
    for section, item in settings.items.items():
        farm = settings.farm_of(item.farm)
        if isinstance(item, MasterItem | SiteItem):
            # Only the source stores its name in the farm.
            database, name = item.source, section.partition(".")[2]
            if name in found:
                continue
        else:
            database = getattr(item, "database", "") or getattr(item, "name", "")
            name = database.rstrip("/").rpartition("/")[2]
            if (place := (database, farm.url if farm else "")) in places:
                continue
            places.add(place)
            name = name if name not in found else f"{item.farm}/{name}" if item.farm else section
        found[name] = DatabasePlace.of(database, farm)
    return found


def _page_of(place: DatabasePlace) -> str:
    return report_page(wlr.report(place.database, **place.where), SCRIPT)


def _listed(name: str, place: DatabasePlace) -> ListedDatabase:
    href = f"/{quote(name)}"
    try:
        found = place.found()
        entry = entry_of(found.url, found.name, options=place.options)
        counts = published_per_hour(found, utc_now())
    except (FarmError, OSError) as error:
        return ListedDatabase(name, href, not_read(name, "database", error))
    return ListedDatabase(name, href, entry, counts)


def _list_of(places: Mapping[str, DatabasePlace], failing: Callable[[], list[WorkStanding]]) -> str:
    require_packages()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        entries = list(pool.map(lambda each: _listed(*each), places.items()))
    return databases_page(entries, failing())


def _answer(make: Callable[[], str], kind: str = HTML) -> WebAnswer:
    try:
        return WebAnswer(200, kind, make().encode())
    except (FarmError, OSError) as error:
        hint = f"\n{error.hint}" if isinstance(error, FarmError) and error.hint else ""
        # An invalid installation or file is not the request's fault.
        status = 501 if isinstance(error, InvalidError) else 503
        return WebAnswer(status, TEXT, f"{error}{hint}\n".encode())
    except Exception as error:  # noqa: BLE001 - a defect of the page must not drop the answer
        log.error("page: %s: %s", type(error).__name__, error, extra={"cause": error})
        return WebAnswer(500, TEXT, b"the page cannot be made; the log of the service says why\n")
