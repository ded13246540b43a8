"""Servers of HTTP on the loopback address, which engines take for registries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: The first byte of a connection that is to be encrypted.
_TLS = b"\x16"


class Server(ThreadingHTTPServer):
    """A server on a free port of the loopback address."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.server_address[1])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve as long as the block runs."""
        with self:
            thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield
            finally:
                self.shutdown()
                thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """Do nothing: an engine that goes away comes back, or says itself what is wrong."""


class Handler(BaseHTTPRequestHandler):
    """One connection of an engine."""

    protocol_version = "HTTP/1.1"
    request_version = protocol_version
    requestline = ""

    def handle(self) -> None:
        """Engines try TLS first, and go on without it only after an answer that is HTTP's."""
        with suppress(OSError):
            if self.rfile.peek(1)[:1] == _TLS:  # type: ignore[attr-defined]
                self.answer(400)
                return
        super().handle()

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer what an engine asks first; the rest is ``get``'s."""
        if self.path == "/v2/":
            self.answer(200)
        else:
            self.get()

    def get(self) -> None:
        """Answer for one path; there is nothing but what a subclass has."""
        self.answer(404)

    def answer(self, status: int, size: int = 0, headers: dict[str, str] | None = None) -> None:
        """Send the head of an answer whose body has ``size`` bytes."""
        with suppress(OSError):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(size))
            # ssh, which engines elsewhere connect through, does not end while a connection is open
            self.send_header("Connection", "close")
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the commands say what was transferred."""
