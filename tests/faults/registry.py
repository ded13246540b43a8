"""Faulty registries: wrong statuses, cut connections, garbage, endless and slow answers.

Every answer has to be a success or one clear error, soon, and without the planted password.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import stamina

from faults import Outcome
from imagefactory import redaction
from imagefactory.errors import SetupError
from imagefactory.publishing import publishing, vouching
from imagefactory.system import registry, registry_writes, shell, ui
from imagefactory.system.engine import Engine
from imagefactory.system.registry import Registries
from imagefactory.system.registry_writes import Attachment

PASSWORD = "planted-s3cret"
BASIC = base64.b64encode(f"robot:{PASSWORD}".encode()).decode()
DIGEST = f"sha256:{'a' * 64}"
#: Seconds that one fault may take, with limits of tenths of a second for its parts.
BOUND = 4.0
STATUSES: tuple[int, ...] = (
    200,
    204,
    206,
    301,
    302,
    307,
    400,
    401,
    403,
    404,
    405,
    413,
    418,
    429,
    500,
    501,
    502,
)
STATUSES += (503, 504, 507, 511, 599)
GOOD = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": [], "tags": ["a"]}
ROW = {"digest": DIGEST, "size": 1}
BODIES: tuple[bytes, ...] = (
    json.dumps(GOOD).encode(),
    json.dumps({**GOOD, "config": ROW, "layers": [ROW]}).encode(),
    json.dumps({"manifests": [ROW]}).encode(),
    json.dumps({"manifests": [{**ROW, "digest": "../../etc/passwd"}]}).encode(),
    json.dumps({"tags": ["a b", "--help", "x" * 999]}).encode(),
    json.dumps({"tags": {"a": 1}, "layers": 5, "manifests": "x"}).encode(),
    json.dumps({"layers": [None, [], {}, 1, "x"]}).encode(),
    b'{"layers": [{"digest": "x", "size": 1e999}]}',
    b'{"layers": [{"digest": "x", "size": ' + b"9" * 5000 + b"}]}",
    b'{"token": "a\\r\\nb"}',
    b'{"token": 5}',
    b'{"token": {"a": []}}',
    b"[" * 50_000,
    b"\xff\xfe\x00garbage",
    b"<html>\x1b[31mred</html>",
    b"null",
    b"[]",
    b"",
    json.dumps({"errors": [{"message": "\x1b]0;title\x07" + "long " * 9999}]}).encode(),
    json.dumps({"errors": [{"message": f"who is robot:{PASSWORD}? Basic {BASIC}"}]}).encode(),
    json.dumps({"errors": "x"}).encode(),
)
CHALLENGES = (
    'Bearer realm="{here}/token",service="x"',
    'Basic realm="x"',
    "Bearer",
    "Negotiate",
    'Bearer realm="http://[::1"',
    'Bearer realm="file:///etc/passwd"',
    'Bearer realm="{here}/token?{password}"',
    "\x80\xff",
)
OWN = registry_writes.document({"layers": []}, registry_writes.IMAGE)
RECEIPT = Attachment(kind="application/x", media_type="a/b", content=b"{}", annotations={})
#: What Docker may write while it pushes.
SAID = (
    "denied: requested access to the resource is denied",
    "unauthorized: authentication required",
    "write tcp 10.0.0.1: connection reset by peer",
    "received unexpected HTTP status: 507 Insufficient Storage",
    "x509: certificate signed by unknown authority",
    "Cannot connect to the Docker daemon at unix:///x.sock",
    f"Put https://robot:{PASSWORD}@host/v2/: EOF",
    "\x1b[2J garbage \ufffd",
    "",
)


class _Handler(BaseHTTPRequestHandler):
    """Answers as its server's random numbers decide."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_GET(self) -> None:
        choose = self.server.choose
        way = choose.choices(
            ("whole", "cut", "truncated", "endless", "dripping", "silent", "no http"),
            (40, 4, 5, 2, 1, 1, 2),
        )[0]
        with self.server.lock:
            body, status = choose.choice(BODIES), choose.choice((200, 200, 401, *STATUSES))
        self.close_connection = True
        with suppress(OSError):  # the client has left
            getattr(self, f"_{way.replace(' ', '_')}")(status, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _head(self, status: int, length: int) -> None:
        choose, here = self.server.choose, f"http://127.0.0.1:{self.server.server_port}"
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if status == 401:
            text = choose.choice(CHALLENGES).format(here=here, password=PASSWORD)
            self.send_header("WWW-Authenticate", text)
        if status in (301, 302, 307):
            targets = (self.path, f"{here}/v2/x", "http://127.0.0.1:9/x", "file:///x", "http://[")
            self.send_header("Location", choose.choice(targets))
        if choose.random() < 0.3:
            wanted = ("0", "1", "99999999999", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "x")
            self.send_header("Retry-After", choose.choice(wanted))
            places = ("/v2/me/x/blobs/uploads/1?a=b", "http://127.0.0.1:9/x", "http://[", "")
            self.send_header("Location", choose.choice(places))
        if choose.random() < 0.2:
            self.send_header(
                "Link", f'<{choose.choice((self.path, "/v2/y?z", "http://["))}>; rel="next"'
            )
        self.end_headers()

    def _whole(self, status: int, body: bytes) -> None:
        self._head(status, len(body))
        self.wfile.write(body)

    def _truncated(self, status: int, body: bytes) -> None:
        self._head(status, len(body) + 100)
        self.wfile.write(body)

    def _cut(self, *_: object) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)

    def _no_http(self, _: int, body: bytes) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH\r\n" + body)

    def _endless(self, status: int, body: bytes) -> None:
        self._head(status, 1 << 40)
        for _ in range(1000):
            self.wfile.write((body or b"x") * 10)

    def _dripping(self, status: int, _: bytes) -> None:
        self._head(status, 1000)
        for _number in range(40):
            self.wfile.write(b" ")
            time.sleep(0.05)

    def _silent(self, *_: object) -> None:
        time.sleep(0.5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    choose: random.Random
    lock = threading.Lock()

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def _serving() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _works(address: str, config: Path, choose: random.Random) -> dict[str, Callable[[], object]]:
    ask, repository = Registries(config), f"{address}/me/x"
    engine = Engine()

    def pushed(*_: object, **__: object) -> shell.Completed:
        code = choose.choice((1, 1, 125))
        return shell.Completed(argv=(), code=code, out="", err=choose.choice(SAID))

    def push() -> None:
        with mock.patch.object(shell, "run", pushed):
            engine.push(f"{repository}:1")

    return {
        "manifest": lambda: ask.manifest(f"{repository}:1"),
        "manifest by digest": lambda: ask.manifest(f"{repository}@{DIGEST}"),
        "blobs": lambda: ask.blobs(f"{repository}:1"),
        "has blob": lambda: ask.has_blob(repository, DIGEST),
        "tags": lambda: ask.tags(repository),
        "referrers": lambda: ask.referrers(repository, DIGEST),
        "image": lambda: vouching.read_image(ask, repository, "1"),
        "put manifest": lambda: registry_writes.put_manifest(ask, f"{repository}:1", OWN),
        "put blob": lambda: registry_writes.put_blob(ask, repository, b"x"),
        "attach": lambda: registry_writes.attach(ask, repository, OWN, [RECEIPT]),
        "delete": lambda: registry_writes.delete(ask, repository, DIGEST),
        "known blobs": lambda: publishing._known_blobs(ask, repository, [f"{repository}:1"]),
        "docker push": push,
    }


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Try ``count`` faults made from ``seed``."""
    limits: dict[str, Any] = {
        "SECONDS": (0.2, 0.2),
        "DEADLINE": 0.3,
        "MOST_BYTES": 200_000,
        "MOST_PAGES": 5,
    }
    with (
        _serving() as server,
        stamina.set_testing(True, attempts=2, cap=True),
        mock.patch.multiple(registry, **limits),
        mock.patch.object(ui.err, "quiet", new=True),
    ):
        address = f"127.0.0.1:{server.server_port}"
        auths = {"auths": {address: {"auth": BASIC}}}
        (folder / "config.json").write_text(json.dumps(auths))
        for number in range(count):
            server.choose = random.Random(f"{seed}-{number}")  # noqa: S311 - to be repeated
            client = random.Random(f"{seed}-{number}-client")  # noqa: S311 - as above
            works = _works(address, folder, client)
            name = list(works)[number % len(works)]
            yield _outcome(f"{name} (seed {seed}, fault {number})", works[name])


def _outcome(fault: str, work: Callable[[], object]) -> Outcome:
    began, shown = time.monotonic(), ""
    try:
        work()
    except SetupError as error:
        # as main shows it
        shown = str(redaction.hide_in([problem.as_dict() for problem in error.problems]))
        if len(error.problems) != 1 or not error.problems[0].fix or len(shown) > 1500:
            return Outcome(fault=fault, held=False, detail=f"no one clear error: {shown[:500]}")
    except BaseException:  # noqa: BLE001 - anything else is what this looks for
        return Outcome(fault=fault, held=False, detail=traceback.format_exc())
    took = time.monotonic() - began
    if took > BOUND:
        return Outcome(fault=fault, held=False, detail=f"took {took:.1f} s")
    leaked = PASSWORD in shown or BASIC in shown
    return Outcome(fault=fault, held=not leaked, detail=shown if leaked else "")
