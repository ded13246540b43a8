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
from contextlib import contextmanager
from http import HTTPStatus
from typing import IO

from imagefactory.system import loopback_http
from imagefactory.transport.content import Content, chunks

#: What the names of its repositories begin with.
PREFIX = "imagefactory-transport-"
_PATH = re.compile(r"/v2/([^?]+)/(manifests|blobs)/(sha256:[0-9a-f]{64})")
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)")


class Serving(loopback_http.Server):
    """A server of an image, and of others that are parts of it.

    Attributes:
        blobs: what it serves: by digest, an image that has it.
        repository: the name under which it has them.
        sent: bytes of each blob and manifest, by digest, that were sent so far.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.blobs: dict[str, Content] = {}
        self.repository = f"{PREFIX}{secrets.token_hex(8)}"
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, image: Content) -> None:
        """Serve one more image."""
        self.blobs |= dict.fromkeys(image.blobs, image)

    def count(self, digest: str, size: int) -> None:
        """Add bytes that were sent."""
        with self._lock:
            self.sent[digest] += size


@contextmanager
def serving() -> Iterator[Serving]:
    """Serve the images that are added, as long as the block runs."""
    server = Serving()
    with server.running():
        yield server


class _Handler(loopback_http.Handler):
    server: Serving

    def get(self) -> None:
        found = _PATH.fullmatch(self.path)
        if found is None or found[1] != self.server.repository or found[3] not in self.server.blobs:
            self.answer(HTTPStatus.NOT_FOUND)
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
            self.answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, headers)
            return
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        status = HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK
        self.answer(status, last - first + 1, headers)
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
