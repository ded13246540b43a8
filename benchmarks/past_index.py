"""A simple index on loopback that shows PyPI as it was at a moment that can be set.

Pages have the real files with their hashes, sizes and dates. Metadata (PEP 658) is that of the real
wheels, cut to the fields that a resolver reads. Of torch's wheels there is one more member, its
``version.py``; no other wheel can be read. Other files, such as sources, are redirected to PyPI.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import requests
from packaging.version import InvalidVersion, Version
from remotezip import RemoteZip, RemoteZipError

from imagefactory.errors import SetupError, fail
from imagefactory.inbuild.simple_index import JSON
from imagefactory.locking.torch_build import MEMBER
from imagefactory.watching.rows import WATCHED

PYPI, HOST = "https://pypi.org/simple", "https://files.pythonhosted.org/"
#: What a resolver reads of METADATA.
FIELDS = frozenset(
    {
        "metadata-version",
        "name",
        "version",
        "requires-python",
        "requires-dist",
        "provides-extra",
    }
)
#: The projects whose sources are read, too.
WITH_SOURCES = ("vllm",)
File = dict[str, Any]
ATTEMPTS = 4
SESSION = requests.Session()
SESSION.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=8, pool_block=True))


class Upstream(Protocol):
    """Where pages and metadata come from."""

    def files(self, project: str) -> Sequence[File] | None:
        """The files of a project's page, with PyPI's keys; None if there is no such project."""

    def member(self, url: str, kind: str) -> str:
        """``metadata`` or ``torch`` (its version.py) of the wheel at ``url``."""


@dataclass
class Pypi:
    """PyPI now, each page and text read once into ``folder``.

    Attributes:
        folder: where they are kept.
        asked: the URLs of wheels whose metadata was read.
    """

    folder: Path
    asked: set[str] = field(default_factory=set)
    _pages: dict[str, Sequence[File] | None] = field(default_factory=dict)

    def files(self, project: str) -> Sequence[File] | None:
        """As the protocol says."""
        if project not in self._pages:
            path = self.folder / "pages" / f"{project}.json"
            if not path.is_file():
                answer = _get(f"{PYPI}/{project}/", JSON)
                files = answer.json()["files"] if answer.ok else None
                kept = [_short(one) for one in files if _is_wanted(project, one)] if files else None
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(kept), encoding="utf-8")
            self._pages[project] = json.loads(path.read_text(encoding="utf-8"))
        return self._pages[project]

    def member(self, url: str, kind: str) -> str:
        """As the protocol says."""
        self.asked.add(url)
        name = hashlib.sha256(f"{kind} {url}".encode()).hexdigest()
        path = self.folder / "members" / name
        if not path.is_file():
            text = _metadata(url) if kind == "metadata" else _read(url, MEMBER)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{name}.{threading.get_ident()}")
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        return path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Record:
    """A record of PyPI: what one replay asked for, so that another needs no network."""

    pages: Mapping[str, Sequence[File]]
    members: Mapping[str, str]

    def files(self, project: str) -> Sequence[File] | None:
        """As the protocol says."""
        return self.pages.get(project)

    def member(self, url: str, kind: str) -> str:
        """As the protocol says. Raises KeyError for what nobody asked for."""
        return self.members[f"{kind} {url}"]

    def save(self, path: Path) -> None:
        """Write it, compressed."""
        data = {"pages": self.pages, "members": self.members}
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def load(path: Path) -> Record:
    """Read a record."""
    data = json.loads(lzma.decompress(path.read_bytes()))
    return Record(pages=data["pages"], members=data["members"])


def releases(
    upstream: Upstream, project: str, after: datetime, until: datetime
) -> dict[str, datetime]:
    """The final releases of a project within a period, with their dates."""
    found: dict[str, datetime] = {}
    for file in upstream.files(project) or ():
        version = file["filename"].split("-")[1]
        if file["filename"].endswith(".whl") and not Version(version).is_prerelease:
            found[version] = min(_moment(file), found.get(version, until))
    return {version: moment for version, moment in found.items() if after < moment < until}


def record(pypi: Pypi, until: datetime) -> Record:
    """What was asked of ``pypi``: the files whose metadata was read, and all of the projects' own.

    A page that was only looked at keeps its newest versions, for a record must show what is newer.
    """
    pages: dict[str, Sequence[File]] = {}
    members: dict[str, str] = {}
    for project, files in pypi._pages.items():  # noqa: SLF001 - the same module
        known = [one for one in files or () if _moment(one) <= until]
        own = [one for one in known if one["url"] in pypi.asked or project in LEADS]
        pages[project] = own or _newest(known)
    for url in sorted(pypi.asked):
        members[f"metadata {url}"] = pypi.member(url, "metadata")
        if "/torch-" in url:
            members[f"torch {url}"] = pypi.member(url, "torch")
    return Record(pages=pages, members=members)


#: Projects of which a record has every release.
LEADS = ("vllm", "uv", "nvidia-cudnn-frontend")


class PastIndex(ThreadingHTTPServer):
    """The index.

    Attributes:
        upstream: what it shows.
        now: the moment.
        sent: bytes.
        down: whether it answers 503.
        yanked: projects and versions that were withdrawn, for a test.
        asked: the projects whose pages were read.
    """

    request_queue_size = 512

    def __init__(self, upstream: Upstream, now: datetime) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.now = upstream, now
        self.sent, self.down = 0, False
        self.yanked: set[tuple[str, str]] = set()
        self.asked: set[str] = set()

    def page(self, project: str) -> bytes | None:
        """A project's page at this moment."""
        self.asked.add(project)
        files = self.upstream.files(project)
        if files is None:
            return None
        shown = [self._shown(project, one) for one in files if _moment(one) <= self.now]
        page = {"meta": {"api-version": "1.1"}, "name": project, "files": shown}
        return json.dumps(page).encode()

    def changed(self, before: datetime, now: datetime, *, every: bool) -> bool:
        """Whether vLLM's page got a file in between; with ``every``, any that a night looks at."""
        return any(
            before < _moment(one) <= now
            for project in self.asked
            if project == LEADS[0] or (every and project.startswith(WATCHED))
            for one in self.upstream.files(project) or ()
        )

    def _shown(self, project: str, file: File) -> File:
        local = {**file, "url": f"/files/{file['url'].removeprefix(HOST)}", "yanked": False}
        if (project, file["filename"].split("-")[1]) in self.yanked:
            local["yanked"] = "planted"
        return {**local, "core-metadata": True} if file["filename"].endswith(".whl") else local


@contextmanager
def serve(upstream: Upstream, now: datetime) -> Iterator[tuple[PastIndex, str]]:
    """The server, and the URL of its index."""
    server = PastIndex(upstream, now)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: PastIndex
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        kind, _, rest = self.path.strip("/").partition("/")
        if self.server.down:
            self._send(503)
        elif kind == "simple":
            self._page(rest)
        elif rest.endswith(".metadata"):
            self._member(rest.removesuffix(".metadata"), "metadata")
        elif rest.rpartition("/")[2].startswith("torch-"):
            self._member(rest, "torch")
        else:
            self._send(302, headers={"Location": HOST + rest})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _page(self, project: str) -> None:
        try:
            body = self.server.page(project)
        except SetupError:
            self._send(503)
            return
        if body is None:
            self._send(404)
            return
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        # what changes with the moment must be asked for again
        headers = {"Content-Type": JSON, "ETag": etag, "Cache-Control": "max-age=0"}
        same = self.headers.get("If-None-Match") == etag
        self._send(304 if same else 200, b"" if same else body, headers)

    def _member(self, path: str, kind: str) -> None:
        try:
            text = self.server.upstream.member(HOST + path, kind)
        except (KeyError, SetupError) as error:
            self._send(404 if isinstance(error, KeyError) else 503)
            return
        if kind == "metadata":
            self._send(200, text.encode())
            return
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr(zipfile.ZipInfo(MEMBER), text)
        self._ranged(data.getvalue())

    def _ranged(self, data: bytes) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        headers = {"Content-Range": f"bytes {begin}-{end}/{len(data)}"}
        self._send(206, data[begin : end + 1], headers)

    def _send(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body if self.command == "GET" else b"")
        self.server.sent += len(body)


def _short(file: File) -> File:
    keys = ("filename", "hashes", "requires-python", "size", "upload-time", "url")
    return {key: file[key] for key in keys if file.get(key) is not None}


def _is_wanted(project: str, file: File) -> bool:
    """Whether some Linux with Python 3.10 or newer could install it."""
    name = str(file["filename"])
    if not name.endswith(".whl"):
        return project in WITH_SOURCES and name.endswith(".tar.gz")
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    fits = re.search(r"py3|cp31[0-9]|abi3", f"{python} {abi}")
    return bool(fits and re.search(r"any$|linux.*_(x86_64|aarch64)", platform))


def _newest(files: Sequence[File]) -> list[File]:
    found: dict[Version, list[File]] = {}
    for file in files:
        with suppress(InvalidVersion):
            found.setdefault(Version(file["filename"].split("-")[1]), []).append(file)
    return [one for version in sorted(found)[-3:] for one in found[version]]


def _moment(file: File) -> datetime:
    return datetime.fromisoformat(file["upload-time"])


def _metadata(url: str) -> str:
    answer = _get(f"{url}.metadata", "*/*")
    text = answer.text if answer.ok else ""
    if not text.startswith("Metadata-Version:"):
        text = _read(url, "METADATA")
    head = text.replace("\r\n", "\n").partition("\n\n")[0]
    lines = re.sub(r"\n[ \t]+", " ", head).split("\n")
    kept = [line for line in lines if line.partition(":")[0].lower() in FIELDS]
    return "\n".join(kept) + "\n\n"


def _read(url: str, wanted: str) -> str:
    """A member of the wheel at ``url``, by ranged reads."""
    for _ in range(ATTEMPTS):
        with suppress(RemoteZipError), RemoteZip(url, session=SESSION, timeout=60) as archive:
            names = [one for one in archive.namelist() if one.count("/") == 1]
            name = next(n for n in names if n == wanted or n.endswith(f".dist-info/{wanted}"))
            return str(archive.read(name).decode())
    raise fail(SetupError, "index-failed", f"{url} cannot be read", fix="try again later")


def _get(url: str, accept: str) -> requests.Response:
    for _ in range(ATTEMPTS):
        with suppress(requests.RequestException):
            return SESSION.get(url, headers={"Accept": accept}, timeout=60)
    raise fail(SetupError, "index-failed", f"{url} cannot be read", fix="try again later")
