"""Archives of wheels: kept by their hashes, downloaded once from whichever index has them."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imagefactory.inbuild import archives, simple_index

WHEEL = "pkg-1-py3-none-any.whl"
DATA = b"an archive " * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()
HTML = f'<a href="../../files/{WHEEL}#sha256={SHA256}">{WHEEL}</a>'.encode()


@dataclass
class Server:
    """An index with one project; tests change how it answers.

    Attributes:
        address: its host and port.
        page: the project's page.
        kind: the content type of ``page``.
        failures: statuses that the next answers have.
        cut: bytes after which the next download breaks off.
        account: credentials that it asks for.
        asked: path and Range of each request.
    """

    address: str = ""
    page: bytes = HTML
    kind: str = "text/html"
    failures: list[int] = field(default_factory=list)
    cut: int | None = None
    account: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def index(self) -> str:
        """The URL of the index."""
        return f"http://{self.address}/simple"

    @property
    def paths(self) -> list[str]:
        """The paths that were asked for."""
        return [path for path, _ in self.asked]


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self, state)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    state.address = f"127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def answer(request: BaseHTTPRequestHandler, state: Server) -> None:
    ranged = request.headers.get("Range", "")
    state.asked.append((request.path, ranged))
    expected = f"Basic {base64.b64encode(state.account.encode()).decode()}"
    status, headers, body = 200, {}, b""
    if state.failures:
        status = state.failures.pop(0)
    elif state.account and request.headers.get("Authorization") != expected:
        status = 401
    elif request.path == "/moved/pkg/":
        status, headers = 302, {"Location": "/simple/pkg/"}
    elif request.path == "/simple/pkg/":
        headers, body = {"Content-Type": state.kind}, state.page
    elif request.path == f"/files/{WHEEL}":
        start = int(ranged.removeprefix("bytes=").rstrip("-") or 0)
        status, body = 206 if start else 200, DATA[start:]
    else:
        status = 404
    request.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        request.send_header(name, value)
    request.end_headers()
    cut, state.cut = (state.cut, None) if request.path.startswith("/files/") else (None, state.cut)
    request.wfile.write(body[:cut])
    if cut is not None:
        request.close_connection = True


#: Reading the certificate authorities takes 60 ms.
authorities = cache(ssl.create_default_context)


@pytest.fixture
def listing(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of a layer with one wheel, which the index of ``server`` has."""
    monkeypatch.setattr(archives, "ARCHIVES", tmp_path / "archives")
    monkeypatch.setattr(simple_index, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(ssl, "create_default_context", authorities)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", server.index)
    monkeypatch.setenv("UV_INDEX", "")
    return listed(tmp_path / "list.txt", SHA256)


def listed(path: Path, sha256: str) -> Path:
    path.write_text(f"pkg==1 --hash=sha256:{sha256}\n")
    return path


def refusal(listing: Path) -> str:
    with pytest.raises(SystemExit) as caught:
        archives.collect(listing)
    return str(caught.value)


def test_an_archive_is_downloaded_once_and_kept_as_it_is(server: Server, listing: Path) -> None:
    (path,) = archives.collect(listing)
    assert path.relative_to(archives.ARCHIVES).parts == (SHA256, WHEEL)
    assert path.read_bytes() == DATA
    assert [file.name for file in path.parent.iterdir()] == [WHEEL]
    assert archives.collect(listing) == [path]
    assert server.paths == ["/simple/pkg/", f"/files/{WHEEL}"]


def test_a_damaged_archive_is_downloaded_again(server: Server, listing: Path) -> None:
    (path,) = archives.collect(listing)
    path.write_bytes(DATA[:100])
    assert archives.collect(listing) == [path]
    assert path.read_bytes() == DATA


def test_a_mounted_archive_is_used_where_it_is(
    server: Server, listing: Path, tmp_path: Path
) -> None:
    mounted = tmp_path / "wheels"
    mounted.mkdir()
    (mounted / WHEEL).write_bytes(DATA)
    assert archives.collect(listing, mounted) == [mounted / WHEEL]
    assert server.asked == []


def test_a_page_may_be_json(server: Server, listing: Path) -> None:
    rows = [
        {"filename": "other", "url": "https://elsewhere/", "hashes": {}},
        {"filename": WHEEL, "url": f"/files/{WHEEL}", "hashes": {"sha256": SHA256}},
    ]
    server.page, server.kind = json.dumps({"files": rows}).encode(), simple_index.JSON
    (path,) = archives.collect(listing)
    assert path.read_bytes() == DATA


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server: Server, listing: Path) -> None:
    server.cut = 4000
    (path,) = archives.collect(listing)
    assert path.read_bytes() == DATA
    assert [ranged for name, ranged in server.asked if name.endswith(".whl")] == ["", "bytes=4000-"]


def test_a_server_that_fails_for_a_moment_is_asked_again(server: Server, listing: Path) -> None:
    server.failures = [503, 429]
    archives.collect(listing)
    assert server.paths[:3] == ["/simple/pkg/"] * 3


def test_a_server_that_keeps_failing_is_named_with_its_status(
    server: Server, listing: Path
) -> None:
    server.failures = [503] * 3
    assert f"pkg 1 (sha256 {SHA256}) was not found: {server.index}: HTTP 503" in refusal(listing)


def test_the_next_index_is_asked_for_what_the_first_does_not_have(
    server: Server, listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{server.address}/empty")
    monkeypatch.setenv("UV_INDEX", server.index)
    (path,) = archives.collect(listing)
    assert path.read_bytes() == DATA
    assert server.paths[:2] == ["/empty/pkg/", "/simple/pkg/"]


def test_redirects_are_followed(
    server: Server, listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{server.address}/moved")
    (path,) = archives.collect(listing)
    assert path.read_bytes() == DATA


def test_a_wheel_that_no_index_has_is_named_with_the_answers(
    server: Server, listing: Path, tmp_path: Path
) -> None:
    said = refusal(listed(listing, "0" * 64))
    assert said == f"E: pkg 1 (sha256 {'0' * 64}) was not found: {server.index}: no such file"


def test_a_file_that_is_not_the_locked_one_is_not_kept(server: Server, listing: Path) -> None:
    server.page = HTML.replace(SHA256.encode(), b"0" * 64)
    assert "is not pkg 1" in refusal(listed(listing, "0" * 64))
    assert list(archives.ARCHIVES.glob("*/*")) == []


def test_the_credentials_of_an_index_are_sent_to_it_and_appear_in_no_message(
    server: Server, listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.account = "me:se cret"
    assert "HTTP 401" in refusal(listing)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:se%20cret@{server.address}/simple")
    (path,) = archives.collect(listing)
    assert path.read_bytes() == DATA
    assert "cret" not in refusal(listed(listing, "0" * 64))


def test_credentials_are_sent_to_no_other_server() -> None:
    index = "https://me:secret@index.example/simple"
    for url in ("https://files.example/a.whl", "http://index.example/a.whl"):
        assert simple_index._with_account(url, index) == url


def test_a_line_without_a_hash_ends_the_build(listing: Path) -> None:
    listing.write_text("pkg==1\n")
    assert "expected NAME==VERSION --hash=sha256:HASH, not 'pkg==1'" in refusal(listing)


def test_requests_go_through_the_proxy_of_the_environment(
    server: Server, listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("http_proxy", f"http://{server.address}")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://index.invalid/simple")
    assert "HTTP 404" in refusal(listing)
    assert server.paths == ["http://index.invalid/simple/pkg/"]
