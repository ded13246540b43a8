"""A registry on loopback that holds what a test puts into it, and asks for credentials."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
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
            content = {"os": os, "architecture": arch, "config": {"Labels": dict(labels)}}
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # without these, the second of two small writes waits 40 ms for the client
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        registry = self.server.registry
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if not self.path.endswith("/uploads/"):
            registry.forms.append(parse_qs(data))
            self._send(200, json.dumps({"access_token": "a-token"}).encode())
        elif self._may():
            self._send(202, b"", {"Location": f"{self.path}1?state=x"})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._may():
            self._write(partial(self._put, data))

    def do_DELETE(self) -> None:
        if self._may():
            self._write(self._delete)

    def _may(self) -> bool:
        """Whether whoever asks may write; if not, that is answered."""
        registry = self.server.registry
        registry.asked.append(f"{self.command} {self.path}")
        registry.authorized.append(self.headers.get("Authorization"))
        if registry.broken:
            registry.broken -= 1
            self._send(503, b"away")
        elif registry.user and not self._is_known(registry):
            self._challenge(registry)
        else:
            return True
        return False

    def _write(self, work: Callable[[], tuple[int, bytes]]) -> None:
        what = f"{self.command} {urlsplit(self.path).path}"
        self.server.registry.on_write(what, False)
        status, body = work()
        self.server.registry.on_write(what, True)
        with suppress(OSError):  # the client has left
            self._send(status, body)

    def _put(self, data: bytes) -> tuple[int, bytes]:
        registry, url = self.server.registry, urlsplit(self.path)
        repository, _, tail = url.path.removeprefix("/v2/").rpartition("/manifests/")
        if repository:
            for name in (tail, digest_of(data)):
                registry.manifests[repository, name] = data
        else:
            repository = url.path.removeprefix("/v2/").partition("/blobs/")[0]
            if parse_qs(url.query)["digest"] != [digest_of(data)]:
                return 400, b'{"errors": [{"message": "another digest"}]}'
            registry.put_blob(repository, data)
        return 201, b""

    def _delete(self) -> tuple[int, bytes]:
        registry = self.server.registry
        repository, _, digest = self.path.removeprefix("/v2/").rpartition("/manifests/")
        if not registry.deletes:
            return 405, b'{"errors": [{"message": "The operation is unsupported."}]}'
        own = [
            key
            for key, data in registry.manifests.items()
            if key[0] == repository and digest_of(data) == digest
        ]
        for key in own:
            del registry.manifests[key]
        return (202 if own else 404), b""

    def _answer(self) -> None:
        registry = self.server.registry
        registry.asked.append(f"{self.command} {self.path}")
        registry.authorized.append(self.headers.get("Authorization"))
        url = urlsplit(self.path)
        if registry.broken:
            registry.broken -= 1
            self._send(503, b"away")
        elif url.path == "/token":
            self._token(registry)
        elif registry.user and not self._is_known(registry):
            self._challenge(registry)
        else:
            self._serve(registry, url.path.removeprefix("/v2/"), parse_qs(url.query))

    def _token(self, registry: FakeRegistry) -> None:
        basic = base64.b64encode(registry.user.encode()).decode()
        if self.headers.get("Authorization") == f"Basic {basic}":
            self._send(200, json.dumps({"token": "a-token"}).encode())
        else:
            self._send(401, b"")

    def _is_known(self, registry: FakeRegistry) -> bool:
        basic = base64.b64encode(registry.user.encode()).decode()
        wanted = "Bearer a-token" if registry.scheme == "Bearer" else f"Basic {basic}"
        return self.headers.get("Authorization") == wanted

    def _challenge(self, registry: FakeRegistry) -> None:
        fields = f'realm="http://{registry.address}/token",service="fake",scope="repository:x:pull"'
        body = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": "who are you"}]})
        self._send(401, body.encode(), {"WWW-Authenticate": f"{registry.scheme} {fields}"})

    def _serve(self, registry: FakeRegistry, path: str, query: Mapping[str, list[str]]) -> None:
        if path.endswith("/tags/list"):
            self._tags(registry, path.removesuffix("/tags/list"), query)
            return
        repository, kind, name = path.rsplit("/", 2)
        if kind == "blobs" and (repository, name) in registry.contents:
            self._send(200, registry.contents[repository, name])
            return
        if kind == "blobs" and (repository, name) in registry.blobs:
            self._send(307, b"", {"Location": "http://127.0.0.1:9/elsewhere"})
            return
        stored = {
            "manifests": registry.manifests,
            "referrers": registry.referrers if registry.has_referrers else {},
        }.get(kind, {})
        data = stored.get((repository, name))
        if data is None:
            self._send(404, b'{"errors": [{"message": "unknown"}]}')
        else:
            self._send(200, data, {"Content-Type": f"{OCI}.manifest.v1+json"})

    def _tags(
        self, registry: FakeRegistry, repository: str, query: Mapping[str, list[str]]
    ) -> None:
        tags = sorted(
            name
            for there, name in registry.manifests
            if there == repository and not name.startswith("sha256:")
        )
        if not tags:
            self._send(404, b'{"errors": [{"message": "repository unknown"}]}')
            return
        last = query.get("last", [""])[0]
        shown = [tag for tag in tags if tag > last][: registry.page]
        more = bool(shown) and shown[-1] != tags[-1]
        link = f'</v2/{repository}/tags/list?n={registry.page}&last={shown[-1]}>; rel="next"'
        body = json.dumps({"name": repository, "tags": shown}).encode()
        self._send(200, body, {"Link": link} if more else {})

    def _send(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


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
