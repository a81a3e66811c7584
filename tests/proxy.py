"""A server in front of the server of a store that misbehaves on request."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wlc.farm.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What can happen to a request: the connection breaks before it is forwarded, after it was carried out, or in the middle
# of the answer; it takes a while; the server is not well, and says so before it does anything.
FAULTS = ("drop", "lose", "cut", "delay", "500", "503")


@dataclass
class Proxy:
    """A server in front of the store's server that misbehaves on request.

    `loses_answer` gets method and path and says whether the answer is thrown away after the request was carried out;
    `fault` gets the same and returns one of FAULTS, or "". `stripped` are request headers that are not passed on, in
    lower case, `rewritten` changes the path that is, and `answers` gives an answer in the server's stead: status, headers
    and content, or None. `denied` gets method, path and headers and says whether the request is not allowed.
    """

    url: str = ""
    stripped: frozenset[str] = frozenset()
    rewritten: Callable[[str], str] = lambda path: path
    loses_answer: Callable[[str, str], bool] = lambda method, path: False
    fault: Callable[[str, str], str] = lambda method, path: ""
    answers: Callable[[str, str], tuple[int, dict[str, str], bytes] | None] = lambda method, path: None
    denied: Callable[[str, str, Mapping[str, str]], bool] = lambda method, path, headers: False
    seen: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)

    def store(self, url: str) -> Store:
        options = {"endpoint_url": self.url, "key": "k", "secret": "topsecretvalue"}
        return open_store(url, options | {"config_kwargs": {"retries": {"max_attempts": 1}}})


class Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    target: str
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        proxy = self.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.signatures.append(self.headers.get("Authorization", ""))
        fault = proxy.fault(self.command, self.path)
        if fault == "drop":
            self.hang_up()
            return
        if fault == "delay":
            time.sleep(0.05)
        if fault.isdigit():
            # S3 answers like this, too, and what it was asked for was not done.
            self.answer(int(fault), {}, b"<Error><Code>InternalError</Code></Error>")
            return
        if proxy.denied(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}):
            proxy.seen.append(f"{self.command} {self.path} denied")
            self.answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
            return
        status, headers, content = proxy.answers(self.command, self.path) or self.ask(body)
        proxy.seen.append(f"{self.command} {status}")
        if fault == "lose" or proxy.loses_answer(self.command, self.path):
            self.hang_up()
            return
        self.answer(status, headers, content, most=len(content) // 2 if fault == "cut" else None)

    def ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        kept = {name: value for name, value in self.headers.items() if name.lower() not in self.proxy.stripped}
        kept.pop("Expect", None)
        connection = http.client.HTTPConnection(self.target, timeout=20)
        connection.request(self.command, self.proxy.rewritten(self.path), body, kept)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        dropped = ("transfer-encoding", "connection", "date", "server")
        return answer.status, {n: v for n, v in answer.getheaders() if n.lower() not in dropped}, content

    def answer(self, status: int, headers: dict[str, str], content: bytes, most: int | None = None) -> None:
        self.send_response(status)
        if not any(name.lower() == "content-length" for name in headers):
            headers = headers | {"Content-Length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:most])
        if most is not None:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            # The client may have been quicker.
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815 - names that http.server looks for

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def proxy_to(server: str) -> Iterator[Proxy]:
    proxy = Proxy()
    handler = type("ToServer", (Handler,), {"proxy": proxy, "target": urlsplit(server).netloc})
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    listener.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield proxy
    listener.shutdown()
    listener.server_close()
    thread.join()
