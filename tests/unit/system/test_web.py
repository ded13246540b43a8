"""HTTP requests are retried when a connection breaks."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
import stamina

from imagefactory.errors import SetupError
from imagefactory.system import web

DATA = b"0123456789" * 100


class _Breaking(BaseHTTPRequestHandler):
    """Sends only half of the content the first ``breaks`` times, then all of it."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.server.requests += 1  # type: ignore[attr-defined]
        broken = self.server.requests <= self.server.breaks  # type: ignore[attr-defined]
        self.wfile.write(DATA[:500] if broken else DATA)


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Breaking)
    made.requests = made.breaks = 0  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def download(server: ThreadingHTTPServer, breaks: int) -> tuple[str, bytes]:
    server.breaks = breaks  # type: ignore[attr-defined]
    file = io.BytesIO()
    found = web.download(f"http://127.0.0.1:{server.server_port}/x", file, code="wheel-unreachable")
    return found, file.getvalue()


def test_a_download_that_breaks_halfway_starts_over(server: ThreadingHTTPServer) -> None:
    assert download(server, 2) == (hashlib.sha256(DATA).hexdigest(), DATA)


def test_a_download_that_keeps_breaking_is_reported_with_its_url(
    server: ThreadingHTTPServer,
) -> None:
    with pytest.raises(SetupError) as caught:
        download(server, 9)
    (problem,) = caught.value.problems
    assert problem.code == "wheel-unreachable"
    assert f"(http://127.0.0.1:{server.server_port}/x)" in problem.what
    assert server.requests == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("after", "tried", "waited"),
    [("7", 3, [7.0, 7.0]), ("31", 1, []), ("Wed, 21 Oct 2026", 3, []), (None, 3, [])],
)
def test_a_server_is_asked_again_when_it_says_so_unless_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, after: str | None, tried: int, waited: list[float]
) -> None:
    sleeps = list[float]()
    count = 0

    def request() -> None:
        nonlocal count
        count += 1
        raise web.asked_to_wait(requests.ConnectionError(), after)

    stamina.set_testing(False)
    monkeypatch.setattr("tenacity.nap.time.sleep", sleeps.append)
    try:
        with pytest.raises(requests.ConnectionError):
            web.with_retries(request)
    finally:
        stamina.set_testing(True, attempts=3, cap=True)
    assert count == tried
    assert [pause for pause in sleeps if pause >= 5] == waited
