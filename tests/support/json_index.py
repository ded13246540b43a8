"""A simple index with PEP 691 pages, ETags and core metadata (PEP 658), made from a record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from imagefactory.inbuild.simple_index import JSON
from support.index import running

#: Project -> version -> its row in a record (tests/data/releases.json).
Record = Mapping[str, Mapping[str, Mapping[str, Any]]]


class JsonIndex(ThreadingHTTPServer):
    """Serves ``record``; ``answers`` has the status of every request for a page, by project."""

    def __init__(self, record: Record) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.record = record
        self.answers: list[tuple[str, int]] = []
        self.wheels: list[str] = []
        self.down: set[str] = set()


@contextmanager
def serve(record: Record) -> Iterator[tuple[JsonIndex, str]]:
    """The server, and the URL of its index."""
    server = JsonIndex(record)
    with running(server) as url:
        yield server, f"{url}/simple"


def _page(project: str, versions: Mapping[str, Mapping[str, Any]]) -> bytes:
    files = [
        {
            "filename": name,
            "url": f"/files/{project}/{version}/{name}",
            "hashes": {"sha256": hashlib.sha256(name.encode()).hexdigest()},
            "size": 1,
            "upload-time": row["uploaded"],
            "yanked": row.get("yanked", False),
            **({"requires-python": row["python"]} if "python" in row else {}),
        }
        for version, row in versions.items()
        for name in row["wheels"]
    ]
    meta = {"api-version": "1.1"}
    page = {"meta": meta, "name": project, "files": files, "versions": list(versions)}
    return json.dumps(page).encode()


class _Handler(BaseHTTPRequestHandler):
    server: JsonIndex

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        kind, project, *rest = self.path.strip("/").split("/")
        if kind == "simple":
            self._project(project)
        elif rest[-1].endswith(".metadata") and "requires" in self._row(project, rest[0]):
            lines = self._row(project, rest[0])["requires"]
            text = "Metadata-Version: 2.4\n" + "".join(f"Requires-Dist: {one}\n" for one in lines)
            self._send(200, text.encode())
        elif rest[-1].endswith(".metadata"):
            self._send(404)
        else:
            self.server.wheels.append(rest[-1])
            self._send(200, b"a whole wheel, whatever range was asked for")

    def _row(self, project: str, version: str) -> Mapping[str, Any]:
        return self.server.record[project][version]

    def _project(self, project: str) -> None:
        body = _page(project, self.server.record.get(project, {}))
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        status = 404 if project not in self.server.record else 200
        if project in self.server.down:
            status = 503
        elif status == 200 and self.headers.get("If-None-Match") == etag:
            status = 304
        self.server.answers.append((project, status))
        headers = {"Content-Type": JSON, "ETag": etag} if status in (200, 304) else {}
        self._send(status, body if status == 200 else b"", headers)

    def _send(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
