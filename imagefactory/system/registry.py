"""The one client of container registries: the OCI distribution API, with Docker's credentials.

Written out here because the one library for it, oras, waits for ever, drops the digest of a
manifest, and knows neither referrers nor ``$DOCKER_CONFIG``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from imagefactory import redaction
from imagefactory.system import credentials, manifests, registry_failures, web
from imagefactory.system import reference as references
from imagefactory.system.credentials import Account
from imagefactory.system.manifests import Descriptor, Document, Manifest, digest_of
from imagefactory.system.registry_failures import Kind, RegistryError, error_of
from imagefactory.system.registry_names import HUB_API, Name, is_loopback, parse

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session

#: Seconds for a connection, and for the next bytes of an answer.
SECONDS = (10, 60)
#: Kinds of manifests that are understood.
ACCEPTED = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
#: Docker keeps the credentials of Docker Hub under this address.
_HUB_LOGIN = "https://index.docker.io/v1/"
#: A field of a challenge, such as ``realm="https://auth.docker.io/token"``.
_FIELD = re.compile(r'(\w+)="([^"]*)"')
#: Seconds for a whole answer, and the bytes and pages that it may have: a manifest has 4 MiB at
#: most, by the specification.
DEADLINE, MOST_BYTES, MOST_PAGES = 120.0, 1 << 22, 1000
#: Seconds for a whole layer, which may have gigabytes.
DOWNLOAD = 3600.0
#: How deep indexes may be nested.
DEEPEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a registry answered; ``following`` is the address of the next page, if there is one."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    following: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request sends."""

    content: bytes
    media_type: str


class Registries:
    """Asks registries; threads may share one.

    ``config`` is the folder of Docker's configuration, None for Docker's own default. What does not
    exist is None, False or empty. Every method raises RegistryError, which is a SetupError, if the
    registry or the way there fails, and InputError ``reference-wrong``.
    """

    def __init__(self, config: Path | None = None) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._tokens: dict[tuple[str, str], str] = {}

    def document(self, reference: str) -> Document | None:
        """The bytes of a manifest; None if the registry has no such reference."""
        name = parse(reference)
        answer = self.ask(name, f"/manifests/{name.wanted}", accept=ACCEPTED)
        if answer is None:
            return None
        digest = digest_of(answer.content)
        if name.wanted.startswith("sha256:") and name.wanted != digest:
            raise _failed(name, f"{reference} came as {digest}")
        row = _json(name, answer)
        kind = str(row.get("mediaType") or answer.headers.get("Content-Type", ""))
        return Document(
            digest=digest, media_type=kind.partition(";")[0], content=answer.content, row=row
        )

    def manifest(self, reference: str) -> Manifest | None:
        """The manifest of an image or index; None if the registry has no such reference."""
        found = self.document(reference)
        return self.understood(found, reference) if found else None

    def understood(self, found: Document, reference: str) -> Manifest:
        """The manifest in a document that came from ``reference``."""
        with _understood(parse(reference)):
            return manifests.read(found)

    def blobs(self, reference: str, *, depth: int = DEEPEST) -> dict[str, int]:
        """Digest -> bytes of the layers and configuration of an image, or of an index's images.

        Empty if the registry has no such reference. Indexes in indexes are read ``depth`` deep.
        """
        found = self.manifest(reference)
        if found is None:
            return {}
        own = (*found.layers, *((found.config,) if found.config else ()))
        blobs = {part.digest: part.size for part in own}
        repository = reference.partition("@")[0]
        for part in found.manifests:
            if not depth or not references.is_digest(part.digest):
                raise _failed(parse(reference), f"{reference} is an index that cannot be read")
            blobs |= self.blobs(f"{repository}@{part.digest}", depth=depth - 1)
        return blobs

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether the repository has a layer or configuration."""
        return self.ask(parse(repository), f"/blobs/{digest}", method="HEAD") is not None

    def read_blob(self, repository: str, digest: str) -> bytes | None:
        """The content of a small blob, such as a configuration; None if there is no such blob."""
        name = parse(repository)
        answer = self.ask(name, f"/blobs/{digest}")
        if answer is None:
            return None
        found = digest_of(answer.content)
        if found != digest:
            raise _failed(name, f"{digest} came as {found}")
        return answer.content

    def save_blob(self, repository: str, digest: str, target: Path) -> bool:
        """Write a blob of any size to ``target``; whether the registry has it."""
        name, tail = parse(repository), f"/blobs/{digest}"
        if self.ask(name, tail, into=target) is None:
            return False
        with target.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if f"sha256:{found}" != digest:
            raise _failed(name, f"{digest} came as sha256:{found}")
        return True

    def tags(self, repository: str) -> tuple[str, ...]:
        """The tags of a repository, in the registry's order."""
        name = parse(repository)
        pages = list(self._pages(name, "/tags/list?n=1000"))
        with _understood(name):
            found = [tag for page in pages for tag in manifests.rows(page.get("tags"))]
            if not all(isinstance(tag, str) and references.is_tag(tag) for tag in found):
                raise ValueError("a tag is none")
        return tuple(found)

    def referrers(self, repository: str, digest: str) -> tuple[Descriptor, ...]:
        """What is attached to a manifest: signatures, SBOMs, receipts.

        Of a registry without the referrers API those that the fallback tag of the OCI
        specification (``sha256-...``) lists.
        """
        pages = list(self._pages(parse(repository), f"/referrers/{digest}"))
        if not pages:
            listed = self.manifest(f"{repository}:{digest.replace(':', '-')}")
            return listed.manifests if listed else ()
        with _understood(parse(repository)):
            lists = [manifests.descriptors(page.get("manifests")) for page in pages]
        return tuple(one for found in lists for one in found)

    def _pages(self, name: Name, tail: str) -> Iterator[dict[str, Any]]:
        """The JSON of an address and of those that follow it; none if it does not exist."""
        following: str | None = tail
        asked = set[str]()
        while following is not None:
            if following in asked or len(asked) >= MOST_PAGES:
                raise _failed(name, f"its list of {name.path} has no end")
            asked.add(following)
            answer = self.ask(name, following)
            if answer is None:
                return
            yield _json(name, answer)
            with _understood(name):
                following = tail_of(name, following, answer.following)

    def ask(
        self,
        name: Name,
        tail: str,
        *,
        method: str = "GET",
        accept: tuple[str, ...] = (),
        into: Path | None = None,
        body: Body | None = None,
    ) -> Answer | None:
        """The answer, None for what does not exist; with ``into``, its body is in that file."""
        key = name.host, name.path
        ask = partial(self._send, name, tail, method, accept, into=into, body=body)
        answer = ask(self._tokens.get(key))
        if answer.status == 401:
            header = self._authorization(name, answer.headers.get("WWW-Authenticate", ""))
            if header:
                self._tokens[key] = header
                answer = ask(header)
        if answer.status == 404:
            return None
        if answer.status >= 400:
            said = registry_failures.message(answer.status, answer.content)
            kind = registry_failures.of_answer(answer.status, said)
            raise error_of(kind, name.host, name.path, f"{name.host}: {said}")
        return answer

    def _send(
        self,
        name: Name,
        tail: str,
        method: str,
        accept: tuple[str, ...],
        header: str | None,
        *,
        into: Path | None,
        body: Body | None,
    ) -> Answer:
        headers = {"Accept": ", ".join(accept)} if accept else {}
        headers |= {"Content-Type": body.media_type} if body else {}
        session = self._session(name.host)
        # a registry may keep blobs elsewhere: that it sends us there says that it has one
        follow = method != "HEAD"
        return _patiently(
            name,
            lambda: session.request(
                method,
                f"{name.url}{tail}",
                headers=headers,
                data=body.content if body else None,
                auth=_with(header),
                timeout=SECONDS,
                allow_redirects=follow,
                stream=True,
            ),
            into,
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
        if name.url.startswith("https:") and not realm.startswith("https:"):
            raise _failed(name, "it wants credentials sent without encryption")
        wanted = {
            "service": fields.get("service") or name.host,
            "scope": fields.get("scope") or f"repository:{name.path}:pull",
        }
        answer = _patiently(name, lambda: self._token(name, realm, wanted, account))
        if answer.status >= 400:
            return None
        found = _json(name, answer)
        token = found.get("token") or found.get("access_token")
        if token and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise _failed(name, "its access token cannot be sent in a header")
        if token:
            redaction.remember(token)
        return f"Bearer {token}" if token else None

    def _token(
        self, name: Name, realm: str, wanted: Mapping[str, str], account: Account | None
    ) -> Response:
        session = self._session(name.host)
        if account and account.is_token:
            form = {"grant_type": "refresh_token", "client_id": "imagefactory", **wanted}
            form["refresh_token"] = account.secret
            return session.post(realm, data=form, auth=_with(None), timeout=SECONDS, stream=True)
        header = account.basic if account else None
        return session.get(realm, params=wanted, auth=_with(header), timeout=SECONDS, stream=True)


def _patiently(name: Name, ask: Callable[[], Response], into: Path | None = None) -> Answer:
    """What ``ask`` returns, asked again while the registry is away or cuts the connection."""
    import requests  # noqa: PLC0415 - as above
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    def once() -> Answer:
        answer = web.within(DOWNLOAD if into else DEADLINE, lambda: _read(name, ask, into))
        kind = registry_failures.of_status(answer.status)
        if answer.status >= 400 and kind.transient:
            said = registry_failures.message(answer.status, answer.content)
            error = requests.ConnectionError(kind, said)
            raise web.asked_to_wait(error, answer.headers.get("Retry-After"))
        return answer

    try:
        return web.with_retries(once)
    except (requests.RequestException, HTTPError, ValueError) as error:
        if isinstance(error.args[0] if error.args else None, Kind):
            kind, reason = error.args
        else:
            reason = _reason(error)
            kind = registry_failures.of_text(f"{type(error).__name__} {reason}")
        raise error_of(kind, name.host, name.path, f"{name.host}: {reason}") from None


def _read(name: Name, ask: Callable[[], Response], into: Path | None) -> Answer:
    with ask() as response, ExitStack() as stack:
        saved = stack.enter_context(into.open("wb")) if into and response.ok else None
        content = bytearray()
        for piece in response.iter_content(1 << 16):
            if saved:
                saved.write(piece)
                continue
            content += piece
            if len(content) > MOST_BYTES:
                raise _failed(name, f"its answer is longer than {MOST_BYTES} bytes")
        links = response.links.get("next", {})
        return Answer(
            status=response.status_code,
            headers=response.headers,
            content=bytes(content),
            following=links.get("url"),
        )


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


def _failed(name: Name, said: str) -> RegistryError:
    return error_of(registry_failures.OTHER, name.host, name.path, f"{name.host}: {said}")


def tail_of(name: Name, tail: str, link: str | None) -> str | None:
    """The part of the address ``link`` that follows the repository's; None without one.

    ``tail`` is that of the page with the link. Raises ValueError if it is no URL.
    """
    if link is None:
        return None
    # only the path is taken: credentials go to no other host
    parts = urlsplit(urljoin(f"{name.url}{tail}", link))
    return f"{parts.path.removeprefix(f'/v2/{name.path}')}?{parts.query}"


@contextmanager
def _understood(name: Name) -> Iterator[None]:
    """What cannot be read in an answer is an error of the registry's."""
    try:
        yield
    except ValueError as error:
        raise _failed(name, f"its answer about {name.path} cannot be read: {error}") from None


def _json(name: Name, answer: Answer) -> dict[str, Any]:
    try:
        row = json.loads(answer.content)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise _failed(name, f"its answer about {name.path} is not JSON")
    return row
