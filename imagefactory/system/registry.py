"""The one client of container registries: the OCI distribution API, with Docker's credentials.

Written out here because the one library for it, oras, waits for ever, drops the digest of a
manifest, and knows neither referrers nor ``$DOCKER_CONFIG``.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.system import credentials, web
from imagefactory.system.credentials import Account
from imagefactory.system.references import HUB_API, Name, is_loopback, parse

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session

#: Seconds for a connection, and for the next bytes of an answer.
SECONDS = (10, 60)
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
#: Docker keeps the credentials of Docker Hub under this address.
_HUB_LOGIN = "https://index.docker.io/v1/"
#: A field of a challenge, such as ``realm="https://auth.docker.io/token"``.
_FIELD = re.compile(r'(\w+)="([^"]*)"')
#: Answers of a proxy whose registry is away for a moment.
_AWAY = (502, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What a manifest or an index says about something that it refers to.

    Attributes:
        digest: ``sha256:...``.
        media_type: its kind.
        size: its bytes, as the registry stores them.
        platform: OCI platform of an index's manifest; empty for anything else.
        artifact_type: kind of artifact, of a referrer.
        annotations: what its maker noted.
    """

    digest: str
    media_type: str
    size: int
    platform: str = ""
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a registry has under a reference: an image, or an index of several.

    Attributes:
        digest: SHA-256 of the manifest itself.
        media_type: its kind.
        size: its own bytes.
        config: the image's configuration; None for an index.
        layers: the image's layers, bottom first; none for an index.
        manifests: the manifests of an index; none for an image.
    """

    digest: str
    media_type: str
    size: int
    config: Descriptor | None
    layers: tuple[Descriptor, ...]
    manifests: tuple[Descriptor, ...]


class Registries:
    """Asks registries; threads may share one.

    ``config`` is the folder of Docker's configuration, None for Docker's own default. What does not
    exist is None, False or empty. Every method raises SetupError: ``registry-unreachable``,
    ``registry-denied`` (no credentials, or of somebody who may not), ``registry-failed``.
    """

    def __init__(self, config: Path | None = None) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._tokens: dict[tuple[str, str], str] = {}

    def manifest(self, reference: str) -> Manifest | None:
        """The manifest of an image or index; None if the registry has no such reference."""
        name = parse(reference)
        answer = self._ask(name, f"/manifests/{name.wanted}", accept=MANIFESTS)
        if answer is None:
            return None
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        if name.wanted.startswith("sha256:") and name.wanted != digest:
            raise _failed(name, f"{reference} came as {digest}")
        row = _json(name, answer)
        kind = str(row.get("mediaType") or answer.headers.get("Content-Type", ""))
        return Manifest(
            digest=digest,
            media_type=kind.partition(";")[0],
            size=len(answer.content),
            config=next(iter(_descriptors(name, [row.get("config")])), None),
            layers=_descriptors(name, row.get("layers")),
            manifests=_descriptors(name, row.get("manifests")),
        )

    def blobs(self, reference: str) -> dict[str, int]:
        """Digest -> bytes of the layers and configuration of an image, or of an index's images.

        Empty if the registry has no such reference.
        """
        found = self.manifest(reference)
        if found is None:
            return {}
        own = (*found.layers, *((found.config,) if found.config else ()))
        blobs = {part.digest: part.size for part in own}
        repository = reference.partition("@")[0]
        for part in found.manifests:
            blobs |= self.blobs(f"{repository}@{part.digest}")
        return blobs

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether the repository has a layer or configuration."""
        return self._ask(parse(repository), f"/blobs/{digest}", method="HEAD") is not None

    def read_blob(self, repository: str, digest: str) -> bytes | None:
        """The content of a small blob, such as a configuration; None if there is no such blob."""
        name = parse(repository)
        answer = self._ask(name, f"/blobs/{digest}")
        if answer is None:
            return None
        found = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        if found != digest:
            raise _failed(name, f"{digest} came as {found}")
        return answer.content

    def save_blob(self, repository: str, digest: str, target: Path) -> bool:
        """Write a blob of any size to ``target``; whether the registry has it."""
        name, tail = parse(repository), f"/blobs/{digest}"
        answer = self._ask(name, tail, stream=True)
        if answer is None:
            return False
        sha256 = hashlib.sha256()
        with answer, target.open("wb") as file:
            for chunk in answer.iter_content(web.CHUNK):
                sha256.update(chunk)
                file.write(chunk)
        if f"sha256:{sha256.hexdigest()}" != digest:
            raise _failed(name, f"{digest} came with other content")
        return True

    def tags(self, repository: str) -> tuple[str, ...]:
        """The tags of a repository, in the registry's order."""
        pages = self._pages(parse(repository), "/tags/list?n=1000")
        return tuple(str(tag) for page in pages for tag in page.get("tags") or ())

    def referrers(self, repository: str, digest: str) -> tuple[Descriptor, ...]:
        """What is attached to a manifest: signatures, SBOMs, receipts.

        Of a registry without the referrers API those that the fallback tag of the OCI
        specification (``sha256-...``) lists.
        """
        pages = list(self._pages(parse(repository), f"/referrers/{digest}"))
        if not pages:
            listed = self.manifest(f"{repository}:{digest.replace(':', '-')}")
            return listed.manifests if listed else ()
        rows = (page.get("manifests") for page in pages)
        return tuple(one for page in rows for one in _descriptors(parse(repository), page))

    def _pages(self, name: Name, tail: str) -> Iterator[dict[str, Any]]:
        """The JSON of an address and of those that follow it; none if it does not exist."""
        following: str | None = tail
        while following is not None:
            answer = self._ask(name, following)
            if answer is None:
                return
            yield _json(name, answer)
            link = answer.links.get("next", {}).get("url")
            # only the path is taken: credentials go to no other host
            parts = urlsplit(urljoin(f"{name.url}{following}", link)) if link else None
            prefix = f"/v2/{name.path}"
            following = f"{parts.path.removeprefix(prefix)}?{parts.query}" if parts else None

    def _ask(
        self,
        name: Name,
        tail: str,
        *,
        method: str = "GET",
        accept: tuple[str, ...] = (),
        stream: bool = False,
    ) -> Response | None:
        """The answer, None for what does not exist; with ``stream``, its body is not read yet."""
        key = name.host, name.path
        ask = partial(self._send, name, tail, method, accept, stream=stream)
        answer = ask(self._tokens.get(key))
        if answer.status_code == 401:
            header = self._authorization(name, answer.headers.get("WWW-Authenticate", ""))
            if header:
                self._tokens[key] = header
                answer = ask(header)
        if answer.status_code in (401, 403):
            what = f"{name.host} does not show {name.path}: {_message(answer)}"
            fix = f"docker login {name.host}, as somebody who may pull from there"
            raise fail(SetupError, "registry-denied", what, fix=fix)
        if answer.status_code == 404:
            return None
        if answer.status_code >= 400:
            raise _failed(name, _message(answer))
        return answer

    def _send(
        self,
        name: Name,
        tail: str,
        method: str,
        accept: tuple[str, ...],
        header: str | None,
        *,
        stream: bool,
    ) -> Response:
        headers = {"Accept": ", ".join(accept)} if accept else {}
        session = self._session(name.host)
        # a registry may keep blobs elsewhere: that it sends us there says that it has one
        follow = method != "HEAD"
        return _patiently(
            name.host,
            lambda: session.request(
                method,
                f"{name.url}{tail}",
                headers=headers,
                auth=_with(header),
                timeout=SECONDS,
                allow_redirects=follow,
                stream=stream,
            ),
        )

    def _session(self, host: str) -> Session:
        import requests  # noqa: PLC0415 - it takes a twentieth of a second to load

        with self._lock:
            if host not in self._sessions:
                made = requests.Session()
                # a proxy has no business between here and the loopback address
                made.trust_env = not is_loopback(host)
                # Docker trusts this bundle; requests' own variables take precedence
                made.verify = os.environ.get("SSL_CERT_FILE") or True
                self._sessions[host] = made
            return self._sessions[host]

    def _authorization(self, name: Name, challenge: str) -> str | None:
        """The header that answers a registry's challenge, None if we have nothing to answer."""
        scheme, _, rest = challenge.partition(" ")
        login = _HUB_LOGIN if name.host == HUB_API else name.host
        account = credentials.find(login, self._config)
        if scheme.lower() == "basic":
            return account.basic if account else None
        fields = dict(_FIELD.findall(rest))
        realm = fields.get("realm")
        if scheme.lower() != "bearer" or not realm:
            return None
        wanted = {
            "service": fields.get("service") or name.host,
            "scope": fields.get("scope") or f"repository:{name.path}:pull",
        }
        answer = _patiently(name.host, lambda: self._token(name, realm, wanted, account))
        if not answer.ok:
            return None
        found = _json(name, answer)
        token = found.get("token") or found.get("access_token")
        return f"Bearer {token}" if token else None

    def _token(
        self, name: Name, realm: str, wanted: Mapping[str, str], account: Account | None
    ) -> Response:
        session = self._session(name.host)
        if account and account.is_token:
            form = {"grant_type": "refresh_token", "client_id": "imagefactory", **wanted}
            form["refresh_token"] = account.secret
            return session.post(realm, data=form, auth=_with(None), timeout=SECONDS)
        header = account.basic if account else None
        return session.get(realm, params=wanted, auth=_with(header), timeout=SECONDS)


def _patiently(host: str, ask: Callable[[], Response]) -> Response:
    """What ``ask`` returns, asked again while the registry is away."""
    import requests  # noqa: PLC0415 - as above

    def once() -> Response:
        answer = ask()
        if answer.status_code in _AWAY:
            raise requests.ConnectionError(f"HTTP {answer.status_code}")
        return answer

    try:
        return web.with_retries(once)
    except requests.RequestException as error:
        fix = "check the address and the network; SSL_CERT_FILE names the CAs to trust"
        raise fail(
            SetupError, "registry-unreachable", f"{host}: {_reason(error)}", fix=fix
        ) from None


def _reason(error: Exception) -> str:
    """What broke a connection, without the libraries that passed it on."""
    cause = getattr(error.args[0] if error.args else None, "reason", None) or error
    return str(cause).rpartition("): ")[2] or type(error).__name__


def _with(header: str | None) -> Callable[[PreparedRequest], PreparedRequest]:
    """Sets the Authorization header; requests would otherwise take one from ~/.netrc."""

    def sign(request: PreparedRequest) -> PreparedRequest:
        if header:
            request.headers["Authorization"] = header
        return request

    return sign


def _failed(name: Name, said: str) -> FactoryError:
    what, fix = f"{name.host}: {said}", "try again later, or ask whoever runs the registry"
    return fail(SetupError, "registry-failed", what, fix=fix)


def _json(name: Name, answer: Response) -> dict[str, Any]:
    try:
        row = answer.json()
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise _failed(name, f"{answer.url} is not JSON")
    return row


def _message(answer: Response) -> str:
    """What the registry says went wrong."""
    try:
        said = str(answer.json()["errors"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        said = ""
    return f"HTTP {answer.status_code}{f', {said}' if said else ''}"


def _descriptors(name: Name, rows: Iterable[Any] | None) -> tuple[Descriptor, ...]:
    """The descriptors in a manifest's list, which may be missing."""
    try:
        return tuple(_descriptor(row) for row in rows or () if row is not None)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _failed(name, f"{name.path} has a manifest that cannot be read") from None


def _descriptor(row: Mapping[str, Any]) -> Descriptor:
    platform = row.get("platform") or {}
    return Descriptor(
        digest=str(row["digest"]),
        media_type=str(row.get("mediaType", "")),
        size=int(row.get("size", 0)),
        platform=f"{platform['os']}/{platform['architecture']}" if platform else "",
        artifact_type=str(row.get("artifactType", "")),
        annotations=row.get("annotations") or {},
    )
