"""A registry on loopback that holds what a test puts into it, and asks for credentials."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

OCI = "application/vnd.oci.image"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class FakeRegistry:
    """What the registry has, how it behaves, and what it was asked.

    Attributes:
        address: host and port.
        manifests: by repository and tag or digest, the bytes of a manifest.
        blobs: repository and digest of every blob; those without contents are kept elsewhere.
        contents: the blobs that it serves itself.
        user: ``user:password`` of the only account; empty if everybody may pull.
        scheme: how it wants credentials, ``Bearer`` or ``Basic``.
        page: tags on one page of a list.
        broken: answers that are HTTP 503, before the first good one.
        has_referrers: whether it offers the referrers API.
        asked: method and path of every request.
        authorized: the Authorization header of every request.
        forms: what was posted for a token.
        deletes: whether manifests can be removed.
        on_write: is called with each request that writes, and whether it has been carried out.
    """

    address: str = ""
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    referrers: dict[tuple[str, str], bytes] = field(default_factory=dict)
    blobs: set[tuple[str, str]] = field(default_factory=set)
    contents: dict[tuple[str, str], bytes] = field(default_factory=dict)
    user: str = ""
    scheme: str = "Bearer"
    page: int = 1000
    broken: int = 0
    has_referrers: bool = True
    asked: list[str] = field(default_factory=list)
    authorized: list[str | None] = field(default_factory=list)
    forms: list[Mapping[str, list[str]]] = field(default_factory=list)
    deletes: bool = True
    on_write: Callable[[str, bool], None] = lambda *_: None

    def tags(self, repository: str) -> dict[str, str]:
        """Digest of each tag, without what is attached to images."""
        return {
            name: digest_of(data)
            for (there, name), data in self.manifests.items()
            if there == repository and not name.startswith("sha256")
        }

    def put(
        self,
        repository: str,
        tag: str,
        layers: Mapping[str, int],
        *,
        labels: Mapping[str, str] | None = None,
        platform: str = "linux/arm64",
        **more: Any,
    ) -> str:
        """Store an image of these layers (digest -> bytes) under a tag; its digest.

        Its configuration can be read only if it has ``labels``.
        """
        config = {
            "digest": f"sha256:config-{tag}",
            "size": 10,
            "mediaType": f"{OCI}.config.v1+json",
        }
        if labels is not None:
            os, _, arch = platform.partition("/")
            content = {
                "os": os,
                "architecture": arch,
                "config": {"Labels": dict(labels)},
                "rootfs": {"type": "layers", "diff_ids": list(layers)},
            }
            config |= self.put_blob(repository, json.dumps(content).encode())
        rows = [
            {"digest": digest, "size": size, "mediaType": f"{OCI}.layer.v1.tar+zstd"}
            for digest, size in layers.items()
        ]
        self.blobs |= {(repository, row["digest"]) for row in [config, *rows]}  # type: ignore[misc]
        manifest = {"mediaType": f"{OCI}.manifest.v1+json", "config": config, "layers": rows}
        return self.put_manifest(repository, tag, {**manifest, **more})

    def put_blob(self, repository: str, data: bytes) -> dict[str, Any]:
        """Store a blob; how a manifest refers to it, without its media type."""
        digest = digest_of(data)
        self.contents[repository, digest] = data
        return {"digest": digest, "size": len(data)}

    def put_image(
        self,
        repository: str,
        tag: str,
        *platforms: str,
        env: Mapping[str, str] | None = None,
        layers: Sequence[bytes] = (),
    ) -> str:
        """Store an index of images of ``platforms``, all of which set ``env``; its digest.

        ``layers`` are tar archives, bottom first.
        """
        rows = []
        kind = f"{OCI}.layer.v1.tar"
        parts = [{**self.put_blob(repository, one), "mediaType": kind} for one in layers]
        for platform in platforms:
            os, arch = platform.split("/")
            pairs = [f"{name}={value}" for name, value in (env or {}).items()]
            config = {
                "os": os,
                "architecture": arch,
                "config": {"Env": pairs},
                "rootfs": {"type": "layers", "diff_ids": [part["digest"] for part in parts]},
            }
            blob = self.put_blob(repository, json.dumps(config).encode())
            config_row = {**blob, "mediaType": f"{OCI}.config.v1+json"}
            image = {
                "mediaType": f"{OCI}.manifest.v1+json",
                "config": config_row,
                "layers": parts,
            }
            digest = self.put_manifest(repository, f"{tag}-{arch}", image)
            of = {"os": os, "architecture": arch}
            kind = f"{OCI}.manifest.v1+json"
            rows.append({"digest": digest, "size": 1, "mediaType": kind, "platform": of})
        index = {"mediaType": f"{OCI}.index.v1+json", "manifests": rows}
        return self.put_manifest(repository, tag, index)

    def put_manifest(self, repository: str, tag: str, manifest: Mapping[str, Any]) -> str:
        """Store a manifest under a tag; its digest."""
        data = json.dumps(manifest).encode()
        for name in (tag, digest_of(data)):
            self.manifests[repository, name] = data
        return digest_of(data)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks: ``target`` is path and query."""

    method: str
    target: str
    authorization: str | None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the registry answers."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(registry: FakeRegistry, request: Request) -> Reply:
    """What a registry with this content answers, however the request reached it."""
    url = urlsplit(request.target)
    if request.method == "POST" and not url.path.endswith("/uploads/"):
        registry.forms.append(parse_qs(request.data.decode()))
        return Reply(200, json.dumps({"access_token": "a-token"}).encode())
    registry.asked.append(f"{request.method} {request.target}")
    registry.authorized.append(request.authorization)
    if registry.broken:
        registry.broken -= 1
        return Reply(503, b"away")
    return _refused(registry, request, url.path) or _done(registry, request)


def _refused(registry: FakeRegistry, request: Request, path: str) -> Reply | None:
    """What is answered instead to whoever wants a token, or has none."""
    if path == "/token":
        is_known = request.authorization == _basic(registry)
        return Reply(200, json.dumps({"token": "a-token"}).encode()) if is_known else Reply(401)
    wanted = "Bearer a-token" if registry.scheme == "Bearer" else _basic(registry)
    if registry.user and request.authorization != wanted:
        return _challenge(registry)
    return None


def _done(registry: FakeRegistry, request: Request) -> Reply:
    url = urlsplit(request.target)
    if request.method == "POST":
        return Reply(202, headers={"Location": f"{request.target}1?state=x"})
    if request.method in ("PUT", "DELETE"):
        registry.on_write(f"{request.method} {url.path}", False)
        reply = (_put if request.method == "PUT" else _delete)(registry, request)
        registry.on_write(f"{request.method} {url.path}", True)
        return reply
    return _get(registry, url.path.removeprefix("/v2/"), parse_qs(url.query))


def _basic(registry: FakeRegistry) -> str:
    return f"Basic {base64.b64encode(registry.user.encode()).decode()}"


def _challenge(registry: FakeRegistry) -> Reply:
    fields = f'realm="http://{registry.address}/token",service="fake",scope="repository:x:pull"'
    body = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": "who are you"}]})
    return Reply(401, body.encode(), {"WWW-Authenticate": f"{registry.scheme} {fields}"})


def _put(registry: FakeRegistry, request: Request) -> Reply:
    url = urlsplit(request.target)
    repository, _, tail = url.path.removeprefix("/v2/").rpartition("/manifests/")
    if repository:
        for name in (tail, digest_of(request.data)):
            registry.manifests[repository, name] = request.data
    else:
        repository = url.path.removeprefix("/v2/").partition("/blobs/")[0]
        if parse_qs(url.query)["digest"] != [digest_of(request.data)]:
            return Reply(400, b'{"errors": [{"message": "another digest"}]}')
        registry.put_blob(repository, request.data)
    return Reply(201)


def _delete(registry: FakeRegistry, request: Request) -> Reply:
    repository, _, digest = request.target.removeprefix("/v2/").rpartition("/manifests/")
    if not registry.deletes:
        return Reply(405, b'{"errors": [{"message": "The operation is unsupported."}]}')
    own = [
        key
        for key, data in registry.manifests.items()
        if key[0] == repository and digest_of(data) == digest
    ]
    for key in own:
        del registry.manifests[key]
    return Reply(202 if own else 404)


def _get(registry: FakeRegistry, path: str, query: Mapping[str, list[str]]) -> Reply:
    if path.endswith("/tags/list"):
        return _tags(registry, path.removesuffix("/tags/list"), query)
    repository, kind, name = path.rsplit("/", 2)
    if kind == "blobs" and (repository, name) in registry.contents:
        return Reply(200, registry.contents[repository, name])
    if kind == "blobs" and (repository, name) in registry.blobs:
        return Reply(307, headers={"Location": "http://127.0.0.1:9/elsewhere"})
    stored = {
        "manifests": registry.manifests,
        "referrers": registry.referrers if registry.has_referrers else {},
    }.get(kind, {})
    data = stored.get((repository, name))
    if data is None:
        return Reply(404, b'{"errors": [{"message": "unknown"}]}')
    return Reply(200, data, {"Content-Type": f"{OCI}.manifest.v1+json"})


def _tags(registry: FakeRegistry, repository: str, query: Mapping[str, list[str]]) -> Reply:
    tags = sorted(
        name
        for there, name in registry.manifests
        if there == repository and not name.startswith("sha256:")
    )
    if not tags:
        return Reply(404, b'{"errors": [{"message": "repository unknown"}]}')
    last = query.get("last", [""])[0]
    shown = [tag for tag in tags if tag > last][: registry.page]
    more = bool(shown) and shown[-1] != tags[-1]
    link = f'</v2/{repository}/tags/list?n={registry.page}&last={shown[-1]}>; rel="next"'
    body = json.dumps({"name": repository, "tags": shown}).encode()
    return Reply(200, body, {"Link": link} if more else {})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # without these, the second of two small writes waits 40 ms for the client
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, self.headers.get("Authorization"), data)
        reply = answer(self.server.registry, request)
        with suppress(OSError):  # the client has left
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.content)

    do_HEAD = do_GET = do_POST = do_PUT = do_DELETE = _answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    registry: FakeRegistry


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """A fake registry that answers until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.registry = FakeRegistry(address=f"127.0.0.1:{server.server_port}")
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    try:
        yield server.registry
    finally:
        server.shutdown()
        server.server_close()
