"""A faulty index: every failure is reported as what it is, with its own cure, and in time."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support import matrices
from support.index import running, wheels_of_matrix, write_pages

from faults import Outcome
from imagefactory.errors import FactoryError
from imagefactory.locking import locking
from imagefactory.matrix import matrix
from imagefactory.settings import from_environment

#: Seconds that a failure may take, and that the factory waits for an answer here.
LIMIT, PATIENCE = 20.0, 1
#: Short forms try one fault for so many that are asked for, as each runs uv.
SHARE = 10
PAGE = b"<!DOCTYPE html><html><body><h1>Please log in</h1></body></html>"
#: Which requests fail, how, and the code that is expected; an empty one if nothing must fail.
FAULTS = [
    ("pages", "401", "index-credentials"),
    ("pages", "403", "index-forbidden"),
    ("pages", "404", "index-empty"),
    ("pages", "500", "index-failing"),
    ("pages", "502", "index-failing"),
    ("pages", "503", "index-failing"),
    ("pages", "login", "index-empty"),
    ("pages", "text", "index-garbage"),
    ("pages", "json", "index-garbage"),
    ("pages", "binary", "index-garbage"),
    ("pages", "loop", "index-garbage"),
    ("pages", "hang", "index-timeout"),
    ("pages", "cut", "index-cut-off"),
    ("pages", "reset", "index-unreachable"),
    ("pages", "refused", "index-unreachable"),
    ("files", "401", "index-credentials"),
    ("files", "403", "index-forbidden"),
    ("files", "404", "index-not-found"),
    ("files", "500", "index-failing"),
    ("files", "hang", "index-timeout"),
    ("files", "cut", "wheel-unreachable"),
    ("files", "login", "index-"),
    ("files", "binary", "index-"),
    ("files", "reset", "index-"),
    ("files", "whole", ""),
    ("files", "swapped", "wheel-changed"),
    ("torch", "401", "index-credentials"),
    ("torch", "404", "index-not-found"),
    ("torch", "500", "index-failing"),
    ("torch", "hang", "index-timeout"),
    ("torch", "cut", "wheel-unreachable"),
    ("torch", "whole", ""),
]


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Lock a cell from an index with one of ``FAULTS``; ``count`` is that of quick attacks."""
    chance = random.Random(seed)  # noqa: S311 - a seeded choice
    files, root = wheels_of_matrix(folder / "files"), folder / "www"
    write_pages(files, root)
    cells = matrix.load(matrices.write(folder)).cells[:1]
    before = dict(os.environ)
    for number, fault in enumerate(chance.sample(FAULTS, min(len(FAULTS), max(1, count // SHARE)))):
        with served(root, *fault[:2]) as url:
            os.environ.update(_environment(folder / f"cache{number}", url))
            began = time.monotonic()
            try:
                error = locking.renew(None, cells, from_environment(os.environ)).error
            finally:
                os.environ.clear()
                os.environ.update(before)
        yield _judged(*fault, error, time.monotonic() - began)


def _environment(cache: Path, url: str) -> dict[str, str]:
    return {
        "UV_DEFAULT_INDEX": f"{url}/simple",
        "UV_INDEX": "",
        "PIP_EXTRA_INDEX_URL": "",
        "UV_FIND_LINKS": "",
        "PIP_FIND_LINKS": "",
        "UV_CACHE_DIR": str(cache / "uv"),
        "XDG_CACHE_HOME": str(cache),
        "UV_HTTP_TIMEOUT": str(PATIENCE),
        "UV_HTTP_RETRIES": "0",
    }


def _judged(
    where: str, what: str, code: str, error: FactoryError | None, seconds: float
) -> Outcome:
    problems = error.problems if error else ()
    codes = {problem.code for problem in problems}
    detail = ""
    if code and not any(found.startswith(code) for found in codes):
        detail = f"expected {code}: {error}"
    elif not code and problems:
        detail = f"expected no error: {error}"
    elif "lock-unsatisfiable" in codes:
        detail = f"blames the requirements: {error}"
    elif not all(problem.fix for problem in problems):
        detail = f"no fix: {error}"
    elif seconds > LIMIT:
        detail = f"took {seconds:.0f} s"
    return Outcome(fault=f"{where}: {what}", held=not detail, detail=detail)


@contextmanager
def served(root: Path, where: str, what: str) -> Iterator[str]:
    """An index whose answers to requests for ``where`` have the fault ``what``; yields its URL."""
    if what == "refused":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        return
    handler = partial(_Faulty, where, what, directory=str(root))
    with running(_Server(("127.0.0.1", 0), handler)) as url:
        yield url


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that has gone away is no error here."""


class _Faulty(SimpleHTTPRequestHandler):
    def __init__(self, where: str, what: str, *args: Any, **options: Any) -> None:
        self.where, self.what = where, what
        super().__init__(*args, **options)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        kind = "files" if self.path.startswith("/files/") else "pages"
        concerned = self.where == kind or (self.where == "torch" and "/files/torch" in self.path)
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            path /= "index.html"
        data = path.read_bytes() if path.is_file() else None
        if data is None:
            self._send(404, b"")
        elif concerned:
            self._fail(data, body=body)
        else:
            self._send_range(data, body=body)

    def _fail(self, data: bytes, *, body: bool) -> None:
        if self.what == "hang":
            time.sleep(PATIENCE * 3)
        elif self.what == "reset":
            self.connection.close()
        elif self.what == "cut":
            self._send(200, data[: len(data) // 2], length=len(data), body=body)
        else:
            status, sent, headers = self._wrong(data)
            self._send(status, sent, headers, body=body)

    def _wrong(self, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of an answer that is wrong; that of a kind is whole."""
        if self.what.isdigit():
            return int(self.what), b"", {"WWW-Authenticate": "Basic"} if self.what == "401" else {}
        kind = "application/vnd.pypi.simple.v1+json"
        answers: dict[str, tuple[int, bytes, dict[str, str]]] = {
            "loop": (302, b"", {"Location": self.path}),
            "login": (200, PAGE, {"Content-Type": "text/html"}),
            "text": (200, b"hello", {"Content-Type": "text/plain"}),
            "json": (200, b'{"files": 7', {"Content-Type": kind}),
            "binary": (200, bytes(range(256)), {"Content-Type": "application/octet-stream"}),
            "swapped": (200, data[:-1] + b"x", {}),
            "whole": (200, data, {}),
        }
        return answers[self.what]

    def _send_range(self, data: bytes, *, body: bool) -> None:
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes="):
            self._send(200, data, {"Accept-Ranges": "bytes"}, body=body)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        shown = f"bytes {begin}-{end}/{len(data)}"
        self._send(206, data[begin : end + 1], {"Content-Range": shown}, body=body)

    def _send(
        self,
        status: int,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        length: int = -1,
        body: bool = True,
    ) -> None:
        self.send_response(status)
        kind = "text/html" if "simple" in self.path else "application/octet-stream"
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length < 0 else length))
        self.end_headers()
        if body:
            self.wfile.write(data)
        if length >= 0:
            self.close_connection = True
