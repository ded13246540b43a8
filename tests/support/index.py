"""A simple index on loopback with tiny generated wheels: real HTTP and real uv, but no network."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.elf_files import Elf


def wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: tuple[str, ...] = (),
    files: Mapping[str, str | bytes] = {},
) -> Path:
    """Make a pure-Python wheel; ``files`` are its members besides the metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    members = {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        **files,
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), text)
    return path


def torch(folder: Path, version: str, local: str, cuda: str | None, *, name: str = "torch") -> Path:
    """Make a torch wheel whose version.py identifies the build, while its METADATA does not."""
    built = f"{version.partition('+')[0]}+{local}"
    text = f"__version__ = {built!r}\ncuda: object = {cuda!r}\n"
    members = {"torch/version.py": text.encode(), "torch/lib/libtorch.so": Elf().build()}
    return wheel(folder, name, version, files=members)


def vllm(folder: Path, version: str, *, requires: tuple[str, ...] = ()) -> Path:
    """Make a wheel of vLLM with an extension that needs nothing."""
    members = {"vllm/_C.abi3.so": Elf().build()}
    return wheel(folder, "vllm", version, requires=requires, files=members)


def unpacker(folder: Path, version: str) -> Path:
    """Make a wheel of uv for any platform; its program prints the version."""
    program = f"uv-{version}.data/scripts/uv"
    return wheel(folder, "uv", version, files={program: f"#!/bin/sh\necho uv {version}\n"})


def wheels_of_matrix(folder: Path) -> Path:
    """Make the wheels that the matrix of ``support.matrices`` resolves to; returns ``folder``."""
    for version in ("0.22.1", "0.33.0", "0.23.0"):
        vllm(folder, version, requires=("leaf",))
    torch(folder, "2.11.0", "cu130", "13.0")
    torch(folder, "2.14.0", "cu130", "13.0")
    wheel(folder, "leaf", "1.0")
    wheel(folder, "numpy", "2.3")
    unpacker(folder, "0.13.8")
    return folder


@contextmanager
def serve(files: Path, root: Path, account: str = "") -> Iterator[str]:
    """Serve the wheels in ``files`` as a simple index (HTML only); yields its URL.

    ``account`` is the ``user:password`` that it asks for; empty for an index for everybody.
    """
    write_pages(files, root)
    with served(root, account) as url:
        yield f"{url}/simple"


@contextmanager
def served(root: Path, account: str = "") -> Iterator[str]:
    """Serve the files below ``root``; yields the URL. ``account`` is as for ``serve``."""
    basic = f"Basic {base64.b64encode(account.encode()).decode()}" if account else ""
    handler = partial(_Handler, basic, directory=str(root))
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        yield url


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    """Let ``server`` answer requests meanwhile; yields its URL."""
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_pages(files: Path, root: Path) -> None:
    """Write the index's pages for the wheels that are in ``files`` now."""
    projects: dict[str, list[str]] = {}
    (root / "files").mkdir(parents=True, exist_ok=True)
    for path in sorted(files.glob("*.whl")):
        (root / "files" / path.name).write_bytes(path.read_bytes())
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        name = path.name.partition("-")[0].replace("_", "-")
        projects.setdefault(name, []).append(
            f'<a href="/files/{path.name}#sha256={sha}">{path.name}</a>'
        )
    for page in (root / "simple").glob("*/index.html"):
        page.unlink()
    for name, links in projects.items():
        page = root / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>")


class _Handler(SimpleHTTPRequestHandler):
    """Supports ranged reads, as real indexes do, and logs nothing."""

    def __init__(self, basic: str, *args: Any, **options: Any) -> None:
        self.basic = basic
        super().__init__(*args, **options)

    def log_message(self, *_: object) -> None:
        pass

    def send_head(self) -> Any:
        return super().send_head() if self._is_known() else None

    def _is_known(self) -> bool:
        if self.basic in ("", self.headers.get("Authorization")):
            return True
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="index"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_GET(self) -> None:
        requested = self.headers.get("Range", "")
        path = Path(self.translate_path(self.path))
        if not requested.startswith("bytes=") or not path.is_file():
            super().do_GET()
            return
        if not self._is_known():
            return
        data = path.read_bytes()
        first, _, last = requested.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end - begin + 1))
        self.end_headers()
        self.wfile.write(data[begin : end + 1])
