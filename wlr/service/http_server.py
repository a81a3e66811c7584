"""Serves `/metrics`, `/healthz` and the pages of databases."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from wlr.service.job_states import Board
    from wlr.service.metrics import Exposition
    from wlr.service.pages import Pages

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
