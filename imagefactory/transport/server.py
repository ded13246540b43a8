"""A registry for one receiver, on the loopback address and for the time of one transfer.

It serves the images that are sent and nothing else, under a name that cannot be guessed, and
counts what it sent. A receiver may go on in the middle of a blob.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO

from imagefactory.transport.content import Content, chunks

#: What the names of its repositories begin with.
PREFIX = "imagefactory-transport-"
_PATH = re.compile(r"/v2/([^?]+)/(manifests|blobs)/(sha256:[0-9a-f]{64})")
#: The first byte of a connection that is to be encrypted.
_TLS = b"\x16"
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)")


class Serving(ThreadingHTTPServer):
    """A server of an image, and of others that are parts of it.

    Attributes:
        blobs: what it serves: by digest, an image that has it.
        repository: the name under which it has them.
        sent: bytes of each blob and manifest, by digest, that were sent so far.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, Content] = {}
        self.repository = f"{PREFIX}{secrets.token_hex(8)}"
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """Its port on the loopback address."""
        return int(self.server_address[1])

    def add(self, image: Content) -> None:
        """Serve one more image."""
        self.blobs |= dict.fromkeys(image.blobs, image)

    def count(self, digest: str, size: int) -> None:
        """Add bytes that were sent."""
        with self._lock:
            self.sent[digest] += size

    def handle_error(self, request: object, client_address: object) -> None:
        """Do nothing: a receiver that goes away comes back, or its engine says what is wrong."""


@contextmanager
def serving() -> Iterator[Serving]:
    """Serve the images that are added, as long as the block runs."""
    with Serving() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Serving
    request_version = protocol_version
    requestline = ""

    def handle(self) -> None:
        """Engines try TLS first, and go on without it only after an answer that is HTTP's."""
        with suppress(OSError):
            if self.rfile.peek(1)[:1] == _TLS:  # type: ignore[attr-defined]
                self._answer(HTTPStatus.BAD_REQUEST, 0, {})
                return
        super().handle()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self._answer(HTTPStatus.OK, 0, {})
            return
        found = _PATH.fullmatch(self.path)
        if found is None or found[1] != self.server.repository or found[3] not in self.server.blobs:
            self._answer(HTTPStatus.NOT_FOUND, 0, {})
            return
        digest, kind = found[3], "application/octet-stream"
        if found[2] == "manifests":
            kind = self.server.blobs[digest].manifests.get(digest, kind)
        headers = {"Content-Type": kind, "Docker-Content-Digest": digest, "Accept-Ranges": "bytes"}
        self._send(digest, headers)

    def _send(self, digest: str, headers: dict[str, str]) -> None:
        image = self.server.blobs[digest]
        size = image.blobs[digest]
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        last = min(int(wanted[2] or size) if wanted else size, size - 1)
        if wanted and not first <= last:
            headers["Content-Range"] = f"bytes */{size}"
            self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, headers)
            return
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        status = HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK
        self._answer(status, last - first + 1, headers)
        if self.command == "GET":
            with image.store.open(digest) as file:
                file.seek(first)
                self._copy(digest, file, last - first + 1)

    def _copy(self, digest: str, file: IO[bytes], size: int) -> None:
        """Send ``size`` bytes of a blob; a receiver that has gone costs one piece at most."""
        try:
            for piece in chunks(file, 1 << 16):
                part = piece[:size]
                self.server.count(digest, len(part))
                self.wfile.write(part)
                size -= len(part)
                if not size:
                    return
        except OSError:
            self.close_connection = True

    def _answer(self, status: HTTPStatus, size: int, headers: dict[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(size))
            # ssh does not end while a connection through it is open
            self.send_header("Connection", "close")
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the rows of the result say what was sent."""
