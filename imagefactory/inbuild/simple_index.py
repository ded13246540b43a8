"""Reads simple indexes (PEP 503 and 691) and the files on them. Standard library only: it runs in
the builder.

Connections stay open, one per thread and server, because urllib would need one for each of some
hundred small files. Proxies are those of the environment.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, quote, unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from typing import Self

JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
REDIRECTS = 10
#: Seconds to wait before each further attempt.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)

T = TypeVar("T")


class AnswerError(Exception):
    """A server refused; ``status`` is the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


#: What reading a URL raises: a refusal, or a connection that fails.
FAILURES = (AnswerError, OSError, HTTPException)


class Client:
    """Reads URLs; threads may share it, and it is closed by the one that made it.

    ``ca`` may be a file of certificates.
    """

    def __init__(self, ca: Path) -> None:
        known = str(ca) if ca.is_file() and ca.stat().st_size else None
        self._tls = ssl.create_default_context(cafile=known)
        self._timeout = float(os.environ.get("UV_HTTP_TIMEOUT", "60"))
        #: By thread, scheme and server.
        self._open: dict[tuple[int, str, str], HTTPConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open.values():
            connection.close()

    @contextmanager
    def get(self, url: str, **headers: str) -> Iterator[tuple[str, HTTPResponse]]:
        """The answer to a GET, after redirects, and the URL that it came from.

        Credentials in ``url`` are sent to that server only. Raises one of ``FAILURES``.
        """
        for _ in range(REDIRECTS):
            parts = urlsplit(url)
            try:
                answer = self._ask(parts, headers)
                target = _redirection(answer)
                if target is None:
                    yield url, answer
                    return
                answer.read()
                url = urljoin(url, target)
            except BaseException:
                connection = self._open.pop(_key(parts), None)
                if connection:
                    connection.close()
                raise
        raise AnswerError(310)

    def _ask(self, parts: SplitResult, headers: dict[str, str]) -> HTTPResponse:
        if _key(parts) not in self._open:
            self._open[_key(parts)] = self._connect(parts)
        connection = self._open[_key(parts)]
        path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        if parts.scheme == "http" and connection.host != parts.hostname:  # a proxy
            path = f"http://{parts.netloc.rpartition('@')[2]}{path}"
        account = _basic(parts)
        own = {"Authorization": account} if account else {}
        connection.request("GET", path, headers={**headers, **own})
        return connection.getresponse()

    def _connect(self, parts: SplitResult) -> HTTPConnection:
        host = parts.hostname or ""
        proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme)
        server = urlsplit(proxy) if proxy else parts
        if parts.scheme != "https":
            return HTTPConnection(server.hostname or "", server.port, timeout=self._timeout)
        connection = HTTPSConnection(
            server.hostname or "", server.port, timeout=self._timeout, context=self._tls
        )
        if proxy:
            account = _basic(server)
            known = {"Proxy-Authorization": account} if account else {}
            connection.set_tunnel(host, parts.port, headers=known)
        return connection


def _key(parts: SplitResult) -> tuple[int, str, str]:
    return threading.get_ident(), parts.scheme, parts.netloc


def _redirection(answer: HTTPResponse) -> str | None:
    """Where ``answer`` sends us; None if it is what was asked for."""
    if answer.status < 300:
        return None
    target = answer.headers.get("Location")
    if answer.status >= 400 or target is None:
        raise AnswerError(answer.status)
    return target


def _basic(parts: SplitResult) -> str | None:
    """The Authorization header for the credentials in a URL."""
    if parts.username is None:
        return None
    plain = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(plain.encode()).decode()}"


def find(client: Client, project: str, sha256: str, indexes: Sequence[str]) -> str:
    """The URL of the file of ``project`` with that hash, on the first of ``indexes`` that has it.

    Raises LookupError, which says what each index answered.
    """
    problems = []
    for index in indexes:
        page = f"{index.rstrip('/')}/{re.sub('[-_.]+', '-', project).lower()}/"
        try:
            found = patiently(lambda page=page: files(client, page))  # type: ignore[misc]
        except (*FAILURES, ValueError) as error:
            problems.append(f"{without_account(index)}: {error}")
            continue
        if sha256 in found:
            return _with_account(found[sha256], index)
        problems.append(f"{without_account(index)}: no such file")
    raise LookupError("; ".join(problems) or "no index is configured")


def files(client: Client, page: str) -> dict[str, str]:
    """The URL of each file on a project's page, by its SHA-256."""
    with client.get(page, Accept=ACCEPT) as (base, answer):
        kind, data = answer.headers.get_content_type(), answer.read()
    if kind == JSON:
        rows = json.loads(data)["files"]
        return {row["hashes"].get("sha256", ""): urljoin(base, row["url"]) for row in rows}
    links = _Links()
    links.feed(data.decode())
    pairs = [urldefrag(urljoin(urljoin(base, links.base), link)) for link in links.found]
    return {fragment.removeprefix("sha256="): url for url, fragment in pairs}


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") or ""
        if tag == "base":
            self.base = href
        elif tag == "a" and href:
            self.found.append(href)


def append(client: Client, url: str, path: Path) -> None:
    """Download what the file ``path`` still lacks of ``url``. Raises one of ``FAILURES``."""
    there = path.stat().st_size
    ranged = {"Range": f"bytes={there}-"} if there else {}
    with client.get(url, **ranged) as (_, answer), path.open("r+b") as file:
        file.seek(there if answer.status == 206 else 0)
        file.truncate()
        while piece := answer.read(1 << 20):
            file.write(piece)
        if answer.length:
            raise HTTPException(f"{answer.length} bytes are missing")


def patiently(work: Callable[[], T]) -> T:
    """The result of ``work``, tried again while the network or a server fails."""
    for pause in PAUSES:
        try:
            return work()
        except AnswerError as error:
            if error.status < 500 and error.status not in (408, 429):
                raise
        except (OSError, HTTPException):
            pass
        time.sleep(pause)
    return work()


def without_account(url: str) -> str:
    """``url`` without credentials."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def with_accounts(indexes: Sequence[str], accounts: Mapping[str, Sequence[str]]) -> list[str]:
    """``indexes`` with user and password in the URL of each that has them in ``accounts``."""
    found = []
    for index in indexes:
        scheme, mark, rest = index.partition("://")
        pair = ":".join(quote(word, safe="") for word in accounts.get(index, ()))
        found.append(f"{scheme}{mark}{pair}@{rest}" if pair else index)
    return found


def _with_account(url: str, index: str) -> str:
    """``url`` with the credentials in ``index``, if both are on one server."""
    account, at, host = urlsplit(index).netloc.rpartition("@")
    parts = urlsplit(url)
    same = (parts.scheme, parts.netloc) == (urlsplit(index).scheme, host)
    return urlunsplit(parts._replace(netloc=f"{account}{at}{host}")) if same else url
