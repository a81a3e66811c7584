"""Serves `/metrics`, `/healthz` and the pages of databases.

The pages of `wlc report`, live, for the databases that the service looks after.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import wlr
from wlc.farm.errors import FarmError, InvalidError
from wlr.care.report_page import report_page
from wlr.service.settings import MasterItem, SiteItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlr.service.job_states import Board
    from wlr.service.metrics import Exposition
    from wlr.service.settings import ListedFarm, ServiceSettings


# Whoever asks and does not read the answer does not keep a thread for ever.
_PATIENCE_S = 10.0


class Listener:
    """An HTTP server in a thread of its own.

    Args:
        address: Such as `:9188` for all addresses of the machine, or `127.0.0.1:9188`.
        board: What `/healthz` is about.
        exposition: What `/metrics` shows.
        pages: What `/` shows; nothing if omitted.

    Raises:
        InvalidError: Nobody can listen there.
    """

    def __init__(self, address: str, board: Board, exposition: Exposition, pages: Pages | None = None) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), _handler(board, exposition, pages))
        except OSError as error:
            raise InvalidError(
                f"cannot listen on {address}: {error.strerror}", hint="--listen 127.0.0.1:9188"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="listener", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, also where 0 let the system choose one."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # `close` does not wait for somebody who reads slowly.
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: somebody went away, which is no change of ours."""


def health(board: Board) -> tuple[int, dict[str, object]]:
    """Return the HTTP status and the text of `/healthz`: 200 if nothing fails, 503 with the failures otherwise."""
    failing = board.failing()
    listed = [{"item": each.item, "work": each.work, "failures": dict(each.failures)} for each in failing]
    return (503 if failing else 200), {"is_well": not failing, "failing": listed}


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
                self._answer(page.status, page.kind, page.content)
            else:
                self._answer(404, "text/plain; charset=utf-8", b"/, /metrics and /healthz\n")

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: a request is no change."""

    return Handler


log = logging.getLogger("wlr.service")

# A page is made anew when it is older than this, and older than it took to make.
_FRESH_S = 10.0
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """What is answered to a request: HTTP status, content type, content."""

    status: int
    kind: str
    content: bytes


@dataclass
class _Page:
    """The page of one database, and the lock that lets only one request make it."""

    database: str
    farm: ListedFarm | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: WebAnswer | None = None
    fresh_until: float = 0.0


class Pages:
    """The pages, made when somebody asks and kept for some seconds.

    Args:
        settings: Name the databases.
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, settings: ServiceSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pages = _pages(settings)

    def change(self, settings: ServiceSettings) -> None:
        """Go on with other settings."""
        self._pages = _pages(settings)

    def answer(self, path: str) -> WebAnswer | None:
        """Answer a request: `/` shows the only database or lists them, `/NAME` shows one; None for another path."""
        pages, name = self._pages, unquote(path.removeprefix("/"))
        if name in pages:
            return self._made(pages[name])
        if name or not pages:
            return None
        return self._made(next(iter(pages.values()))) if len(pages) == 1 else _index(pages)

    def _made(self, page: _Page) -> WebAnswer:
        with page.lock:
            if page.answer is None or self._now() >= page.fresh_until:
                begun = self._now()
                page.answer = _answer(page)
                done = self._now()
                page.fresh_until = done + max(_FRESH_S, done - begun)
            return page.answer


def _pages(settings: ServiceSettings) -> dict[str, _Page]:
    """Name every database that an item is about, once; a name that is taken gets the name of its farm before it."""
    found: dict[str, _Page] = {}
    places = set()
    for section, item in settings.items.items():
        farm = settings.farm_of(item.farm)
        if isinstance(item, MasterItem | SiteItem):
            # What it is called in its farm, only it knows.
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
        found[name] = _Page(database, farm)
    return found


def _answer(page: _Page) -> WebAnswer:
    farm = page.farm
    try:
        found = wlr.report(
            page.database, farm=farm.url if farm else None, storage_options=(farm.options if farm else None) or None
        )
        return WebAnswer(200, HTML, report_page(found).encode())
    except (FarmError, OSError) as error:
        hint = f"\n{error.hint}" if isinstance(error, FarmError) and error.hint else ""
        # What is invalid here is the installation or the file, and not the request.
        status = 501 if isinstance(error, InvalidError) else 503
        return WebAnswer(status, TEXT, f"{error}{hint}\n".encode())
    except Exception as error:  # noqa: BLE001 - a defect of the page is no reason to answer nothing
        log.error("page: %s: %s", type(error).__name__, error, extra={"cause": error})
        return WebAnswer(500, TEXT, b"the page cannot be made; the log of the service says why\n")


def _index(pages: Mapping[str, _Page]) -> WebAnswer:
    listed = "\n".join(f'<li><a href="/{quote(name)}">{escape(name)}</a></li>' for name in sorted(pages))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme"'
    style = "<style>body { font: 1.1rem/2 system-ui, sans-serif; margin: 2rem }</style>"
    return WebAnswer(
        200,
        HTML,
        f'<!doctype html>\n<html lang="en">{head} content="light dark"><title>dbfarm</title>{style}\n'
        f"<h1>Databases</h1>\n<ul>\n{listed}\n</ul>\n</html>\n".encode(),
    )
