"""The registry that takes images from the engine's builder: what it has, takes and refuses."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from support.plans import planned

from imagefactory.building import layouts, loopback
from imagefactory.building.loopback import Loopback

CELL = planned().cell
MANIFEST = b'{"mediaType":"application/vnd.oci.image.manifest.v1+json"}'
TYPE = "application/vnd.oci.image.manifest.v1+json"


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A layout with a layer and a manifest."""
    blobs = tmp_path / "packages" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data in (b"a layer", MANIFEST):
        (blobs / sha(data).removeprefix("sha256:")).write_bytes(data)
    return tmp_path / "packages"


@pytest.fixture
def registry(tmp_path: Path, packages: Path) -> Iterator[Loopback]:
    with loopback.serving(tmp_path / "out") as made:
        context = made.packages(CELL, f"oci-layout://{packages}@{sha(MANIFEST)}")
        assert context == f"docker-image://{made.prefix}/{CELL.name}@{sha(MANIFEST)}"
        yield made


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return layouts.folder_of(tmp_path / "out", CELL)


def ask(
    registry: Loopback,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """The status and the body of an answer about the cell's repository."""
    host, _, secret = registry.prefix.partition("/")
    path = path if path.startswith("/v2/") else f"/v2/{secret}/{CELL.name}/{path}"
    with closing(HTTPConnection(host, timeout=20)) as connection:
        connection.request(method, path, body or None, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def files(layout: Path) -> set[str]:
    return {str(path.relative_to(layout)) for path in layout.rglob("*") if path.is_file()}


def test_the_layers_of_the_packages_are_there_without_a_copy(
    registry: Loopback, packages: Path, layout: Path
) -> None:
    blob = f"blobs/{sha(b'a layer')}"
    assert ask(registry, "HEAD", blob) == (200, b"")
    assert ask(registry, "GET", blob) == (200, b"a layer")
    assert ask(registry, "GET", f"manifests/{sha(MANIFEST)}") == (200, MANIFEST)
    (inode,) = {
        (root / "blobs/sha256" / sha(b"a layer")[7:]).stat().st_ino for root in (packages, layout)
    }
    assert inode


def test_an_image_that_is_pushed_is_the_layout_s(registry: Loopback, layout: Path) -> None:
    assert ask(registry, "HEAD", f"blobs/{sha(b'new')}")[0] == 404
    assert ask(registry, "POST", "blobs/uploads/")[0] == 202
    assert ask(registry, "POST", f"blobs/uploads/?mount={sha(b'x')}&from=other")[0] == 202
    done = ask(registry, "PUT", f"blobs/uploads/x?digest={sha(b'new').replace(':', '%3A')}", b"new")
    assert done[0] == 201
    pushed = MANIFEST + b"\n"
    assert ask(registry, "HEAD", "manifests/built")[0] == 404
    sent = ask(registry, "PUT", "manifests/built", pushed, {"Content-Type": TYPE})
    assert sent[0] == 201
    (row,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert row == {"mediaType": TYPE, "digest": sha(pushed), "size": len(pushed)}
    names = {sha(data)[7:] for data in (b"a layer", b"new", MANIFEST, pushed)}
    assert files(layout) == {"index.json", "oci-layout", *(f"blobs/sha256/{n}" for n in names)}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", f"blobs/uploads/x?digest={sha(b'other')}", b"new", 400),
        ("PUT", f"manifests/{sha(b'other')}", b"{}", 400),
        ("PUT", "manifests/latest", b"{}", 404),
        ("PUT", "blobs/uploads/x?digest=sha256:../../x", b"new", 404),
        ("PUT", f"/v2/guessed/{CELL.name}/manifests/built", b"{}", 400),
        ("POST", f"/v2/guessed/{CELL.name}/blobs/uploads/", b"", 404),
        ("GET", f"/v2/guessed/{CELL.name}/blobs/{sha(b'a layer')}", b"", 404),
        ("GET", "blobs/../../index.json", b"", 404),
        ("GET", "/v2/_catalog", b"", 404),
        ("GET", "/v2/", b"", 200),
    ],
)
def test_nothing_else_is_given_or_taken(
    registry: Loopback, layout: Path, method: str, path: str, body: bytes, status: int
) -> None:
    before = files(layout)
    assert ask(registry, method, path, body)[0] == status
    assert files(layout) == before


@pytest.mark.parametrize("size", [loopback._LARGEST + 1, -1])
def test_a_manifest_without_a_proper_size_is_refused_before_it_is_read(
    registry: Loopback, layout: Path, size: int
) -> None:
    before = files(layout)
    assert ask(registry, "PUT", "manifests/built", b"", {"Content-Length": str(size)})[0] == 400
    assert files(layout) == before


def test_a_blob_that_is_cut_off_is_not_kept(registry: Loopback, layout: Path) -> None:
    before = files(layout)
    host, _, secret = registry.prefix.partition("/")
    address, _, port = host.partition(":")
    with socket.create_connection((address, int(port)), timeout=20) as connection:
        path = f"/v2/{secret}/{CELL.name}/blobs/uploads/x?digest={sha(b'new')}"
        connection.sendall(f"PUT {path} HTTP/1.1\r\nContent-Length: 3\r\n\r\nne".encode())
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert files(layout) == before


def test_no_connection_stays_open_for_which_ssh_would_wait(registry: Loopback) -> None:
    with closing(HTTPConnection(registry.prefix.partition("/")[0], timeout=20)) as connection:
        connection.request("GET", "/v2/")
        answer = connection.getresponse()
        assert (answer.getheader("Connection"), answer.will_close) == ("close", True)


def test_an_engine_that_tries_tls_is_answered_in_http(registry: Loopback) -> None:
    host, _, port = registry.prefix.partition("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"\x16\x03\x01\x00\x05hello")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        ('Head "http://{host}/v2/x": dial tcp {host}: connect: connection refused', True),
        ("dial tcp 127.0.0.1:1: connect: connection refused", False),
        ("exit code: 1", False),
    ],
)
def test_only_an_engine_that_cannot_connect_has_lost_the_registry(error: str, lost: bool) -> None:
    made = Loopback(Path(), "127.0.0.1:12345/secret")
    assert made.is_lost(error.format(host="127.0.0.1:12345")) is lost
