"""A registry on the loopback address that the engine and its builder get layers from.

The builder reads layers from it lazily: it is given the manifest of a cell's packages, and fetches
no layer that the engine has. An image for a folder is pushed to it: the builder finds that it has
the layers of the packages already, and transfers only its own. With an OCI layout as context and as
output, each layer would be copied twice.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO

from imagefactory.building import layouts
from imagefactory.building.bases import LAYOUT
from imagefactory.matrix.cell import Cell
from imagefactory.system import loopback_http
from imagefactory.system.files import link

#: The tag that a builder gives an image here; its names come when it is finished.
TAG = "built"
_BLOB = re.compile(r"/v2/([^?]+)/blobs/(sha256:[0-9a-f]{64})")
_MANIFEST = re.compile(r"/v2/([^?]+)/manifests/(sha256:[0-9a-f]{64}|built)")
_UPLOADS = re.compile(r"/v2/([^?]+)/blobs/uploads/(?:\?.*)?")
_UPLOAD = re.compile(r"/v2/([^?]+)/blobs/uploads/x\?digest=(sha256(?::|%3A)[0-9a-f]{64})")
_PIECE = 1 << 20
#: A manifest's size, by the specification.
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Loopback:
    """A registry that runs.

    Attributes:
        output: the folder that has OCI layouts; each is a repository, a cell's has its name.
        prefix: its address, and a name that cannot be guessed, as other users of this machine
            reach it, too.
    """

    output: Path
    prefix: str

    def packages(self, cell: Cell, image: str) -> str:
        """The build context with the packages of ``cell``, which ``image`` is as an OCI layout.

        Its blobs become part of the layout of ``cell``.
        """
        folder, _, digest = image.removeprefix(LAYOUT).rpartition("@")
        blobs = _blobs(layouts.folder_of(self.output, cell))
        blobs.mkdir(parents=True, exist_ok=True)
        for path in _blobs(Path(folder)).iterdir():
            if not (blobs / path.name).exists():
                link(path, blobs / path.name)
        return f"docker-image://{self.prefix}/{cell.name}@{digest}"

    def address(self, image: str) -> str:
        """The reference of ``image``, an OCI layout below ``output``."""
        folder, _, digest = image.removeprefix(LAYOUT).rpartition("@")
        return f"{self.prefix}/{Path(folder).name}@{digest}"

    def is_lost(self, error: str) -> bool:
        """Whether a bake ended with ``error`` because the builder cannot connect to the registry.

        An engine in a virtual machine, say, has another loopback address.
        """
        return f"dial tcp {self.prefix.partition('/')[0]}" in error

    def name(self, cell: Cell) -> str:
        """Where the image of ``cell`` is pushed to."""
        return f"{self.prefix}/{cell.name}:{TAG}"


@contextmanager
def serving(output: Path) -> Iterator[Loopback]:
    """Run a registry of the OCI layouts below ``output``."""
    server = _Server(output)
    with server.running():
        yield Loopback(output, f"127.0.0.1:{server.port}/{server.secret}")


class _Server(loopback_http.Server):
    def __init__(self, output: Path) -> None:
        super().__init__(_Handler)
        self.output, self.secret = output, secrets.token_hex(8)

    def layout(self, repository: str) -> Path | None:
        """The layout of a repository; None for one that there is not."""
        secret, _, name = repository.partition("/")
        folder = self.output / name
        known = secret == self.secret and "/" not in name and _blobs(folder).is_dir()
        return folder if known else None


class _Handler(loopback_http.Handler):
    server: _Server

    def get(self) -> None:
        found = _BLOB.fullmatch(self.path) or _MANIFEST.fullmatch(self.path)
        layout = self.server.layout(found[1]) if found else None
        if not found or not layout or found[2] == TAG:
            self.answer(HTTPStatus.NOT_FOUND)
            return
        path = _blobs(layout) / found[2].removeprefix("sha256:")
        try:
            with path.open("rb") as file:
                self._send(file, found[2], path.stat().st_size)
        except FileNotFoundError:
            self.answer(HTTPStatus.NOT_FOUND)

    def _send(self, file: IO[bytes], digest: str, size: int) -> None:
        is_manifest = "/manifests/" in self.path
        kind = _media_type(file) if is_manifest else "application/octet-stream"
        headers = {"Content-Type": kind, "Docker-Content-Digest": digest}
        self.answer(HTTPStatus.OK, size, headers)
        if self.command == "GET":
            shutil.copyfileobj(file, self.wfile, _PIECE)

    def do_POST(self) -> None:
        """Begin an upload; blobs of other repositories are not mounted."""
        found = _UPLOADS.fullmatch(self.path)
        if not found or not self.server.layout(found[1]):
            self.answer(HTTPStatus.NOT_FOUND)
            return
        self.answer(HTTPStatus.ACCEPTED, 0, {"Location": f"/v2/{found[1]}/blobs/uploads/x"})

    def do_PUT(self) -> None:
        if found := _UPLOAD.fullmatch(self.path):
            layout, wanted = self.server.layout(found[1]), found[2].replace("%3A", ":")
            self._take(layout, wanted)
        elif found := _MANIFEST.fullmatch(self.path):
            self._take(self.server.layout(found[1]), found[2], _LARGEST)
        else:
            self.answer(HTTPStatus.NOT_FOUND)

    def _take(self, layout: Path | None, wanted: str, most: int | None = None) -> None:
        """Store what is sent; a manifest (of ``most`` bytes) is what the layout has from then."""
        size = int(self.headers.get("Content-Length", -1))
        if not layout or not 0 <= size <= (most or size):
            self.close_connection = True  # what is sent is not read
            self.answer(HTTPStatus.BAD_REQUEST)
            return
        with tempfile.NamedTemporaryFile(dir=layout, prefix=".receiving.", delete=False) as file:
            digest = self._receive(file, size)
        path = Path(file.name)
        if not digest or wanted not in (digest, TAG):
            path.unlink()
            self.answer(HTTPStatus.BAD_REQUEST)
            return
        path.chmod(0o644)
        path.replace(_blobs(layout) / digest.removeprefix("sha256:"))
        if most:
            layouts.write_index(layout, digest, size, self.headers.get("Content-Type", ""))
        self.answer(HTTPStatus.CREATED, 0, {"Location": self.path, "Docker-Content-Digest": digest})

    def _receive(self, file: IO[bytes], size: int) -> str:
        """Write the body to ``file``; its digest, empty if the connection ended before it did."""
        digest = hashlib.sha256()
        while size:
            piece = self.rfile.read(min(size, _PIECE))
            if not piece:
                return ""
            digest.update(piece)
            file.write(piece)
            size -= len(piece)
        return f"sha256:{digest.hexdigest()}"


def _blobs(layout: Path) -> Path:
    return layout / "blobs" / "sha256"


def _media_type(file: IO[bytes]) -> str:
    found = str(json.load(file)["mediaType"])
    file.seek(0)
    return found
