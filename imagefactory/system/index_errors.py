"""Why an index does not give what was asked for, and what to do: each failure has its own cure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imagefactory.errors import Problem
from imagefactory.system import web

_STATUS = {
    401: ("index-credentials", "asks for a user and password, or rejects those that are set"),
    403: ("index-forbidden", "refuses the request"),
    404: ("index-not-found", "does not have it"),
    407: ("index-proxy", "cannot be reached: the proxy asks for credentials"),
}
_FIXES = {
    "index-credentials": (
        "write user and password to ~/.netrc, or set UV_INDEX_<NAME>_USERNAME and "
        "UV_INDEX_<NAME>_PASSWORD for an index of matrix.yaml"
    ),
    "index-forbidden": "check the rights of the account, and the rules of a proxy in between",
    "index-not-found": "check the URL of the index: imagefactory doctor",
    "index-proxy": "set the credentials of the proxy in HTTPS_PROXY",
    "index-failing": "try again later, or use another index: UV_DEFAULT_INDEX",
    "index-timeout": "try again later, or allow more seconds: UV_HTTP_TIMEOUT",
    "index-tls": "set SSL_CERT_FILE to a bundle with the certificate of its authority",
    "index-cut-off": "try again; if it happens again, use another index: UV_DEFAULT_INDEX",
    "index-unreachable": "check the network and the URL of the index: imagefactory doctor",
    "index-garbage": (
        "check its URL, which usually ends with /simple; a proxy or a login page may answer instead"
    ),
    "index-empty": "check its URL, which usually ends with /simple",
    "index-hash": "the file was damaged or replaced: try another index, and ask its operator",
    "index-corrupt": "ask the operator of the index, or take the package from another one",
}
#: What uv prints, in the order of the search; without a code it has the HTTP status.
_OF_UV = (
    ("hash mismatch", "index-hash"),
    ("timed? ?out|timeout", "index-timeout"),
    ("certificate|UnknownIssuer|invalid peer", "index-tls"),
    (r"(?:status \w+ error \(|HTTP status )(?P<status>\d+)", ""),
    ("connection (?:closed|reset)|unexpected (?:end of file|EOF)|IncompleteBody", "index-cut-off"),
    ("end of file before message length|error decoding response body", "index-cut-off"),
    ("Could not connect|dns error|error sending request", "index-unreachable"),
    ("Unsupported `?Content-Type|expected value at line", "index-garbage"),
    ("Received some unexpected (?:HTML|JSON)", "index-garbage"),
    ("Failed to (?:read|extract|unzip|download)|invalid zip|not a valid zip", "index-corrupt"),
    ("Failed to fetch", "index-unreachable"),
)


def problem(code: str, what: str) -> Problem:
    """A problem with the cure for its code."""
    return Problem(code=code, what=what, fix=_FIXES[code])


def of_request(url: str, error: Exception) -> Problem:
    """What a failed request to ``url`` means."""
    shown, host = web.without_account(url), web.host_of(url)
    answer = getattr(error, "response", None)
    if answer is None and isinstance(error.__cause__, Exception):  # remotezip wraps what it caught
        error = error.__cause__
        answer = getattr(error, "response", None)
    if answer is not None:
        return of_status(shown, answer.status_code)
    code = _kind(error)
    what = {
        "index-tls": f"the certificate of {host} is not trusted ({shown})",
        "index-timeout": f"{host} did not answer within {web.timeout()[1]:g} s ({shown})",
        "index-cut-off": f"{host} ended its answer too early ({shown})",
        "index-garbage": f"{shown} is not a page of a package index: {_line(error)}",
        "index-unreachable": f"cannot connect to {host} ({shown}): {_line(error)}",
    }
    return problem(code, what[code])


def _kind(error: Exception) -> str:
    """The code of an error without an answer."""
    from requests import RequestException, Timeout, exceptions  # noqa: PLC0415 - takes 50 ms

    text = str(error)
    if isinstance(error, exceptions.SSLError):
        return "index-tls"
    if isinstance(error, Timeout) or "timed out" in text.lower():
        return "index-timeout"
    cut = (exceptions.ChunkedEncodingError, exceptions.ContentDecodingError)
    if isinstance(error, cut) or "IncompleteRead" in text:
        return "index-cut-off"
    is_answer = isinstance(error, ValueError) and not isinstance(error, RequestException)
    if is_answer or isinstance(error, exceptions.InvalidJSONError):
        return "index-garbage"
    return "index-unreachable"


def of_status(shown: str, status: int) -> Problem:
    """What the HTTP ``status`` of an answer means."""
    if status < 400:
        return problem("index-garbage", f"{shown} redirects in a circle (HTTP {status})")
    code, what = _STATUS.get(status, ("index-failing", "failed"))
    return problem(code, f"{shown}: the index {what} (HTTP {status})")


def of_uv(text: str, shown: str) -> Problem | None:
    """What uv's error ``text`` says of an index; None if it is about the requirements."""
    for pattern, code in _OF_UV:
        found = re.search(pattern, text, re.IGNORECASE)
        if found and code:
            return problem(code, shown)
        if found:
            return of_status(shown, int(found["status"]))
    return None


def of_empty(index: str, names: Iterable[str]) -> Problem:
    """An index that answers, and has none of the packages."""
    what = f"{web.without_account(index)} has no wheel of {', '.join(names)}"
    return problem("index-empty", what)


def _line(error: Exception) -> str:
    """The error in one line: of a connection, what the system said, without the layers above."""
    inner: BaseException = error
    while inner.__cause__ or inner.__context__:
        inner = inner.__cause__ or inner.__context__ or inner
    if isinstance(inner, OSError) and inner.strerror and "proxy" not in str(error).lower():
        return inner.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
