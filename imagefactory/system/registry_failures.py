"""What went wrong between here and a registry, and what to do about it. Pure.

Docker writes a line of text, and our own client has an HTTP status or an exception: both become one
of the kinds below.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from imagefactory.errors import Problem, SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of failure.

    Attributes:
        code: of the error.
        status: HTTP statuses that mean it.
        pattern: what Docker, or a library, writes then.
        fix: what to do; ``{host}`` and ``{path}`` are those of the repository.
        transient: whether the same request may succeed a moment later.
    """

    code: str
    status: tuple[int, ...] = ()
    pattern: str = "(?!)"
    fix: str
    transient: bool = False


KINDS = (
    Kind(
        code="registry-untrusted",
        pattern=r"x509|certificate|CERTIFICATE_VERIFY_FAILED",
        fix="trust the CA of {host}: SSL_CERT_FILE for imagefactory, "
        "/etc/docker/certs.d/{host}/ca.crt for the engine",
    ),
    Kind(
        code="registry-plain-http",
        pattern=r"HTTP response to HTTPS client|not look like a TLS handshake|WRONG_VERSION_NUMBER"
        r"|record layer failure",
        fix="serve {host} over https, or list it under insecure-registries in the engine's "
        "daemon.json",
    ),
    Kind(
        code="registry-unreachable",
        pattern=r"no such host|name resolution|Name or service not known|server misbehaving",
        fix="check the spelling of {host}, and the machine's DNS",
    ),
    Kind(
        code="registry-unreachable",
        pattern=r"connection refused|no route to host|network is unreachable",
        fix="nothing listens there: check the port of {host}, and whether the registry runs",
    ),
    Kind(
        code="registry-full",
        status=(507,),
        pattern=r"no space left|insufficient storage|quota|disk (?:is )?full",
        fix="free space in the registry (its garbage collection), or name another --to REPO",
    ),
    Kind(
        code="registry-too-large",
        status=(413,),
        pattern=r"request entity too large|payload too large|content too large",
        fix="raise the body limit of the proxy in front of {host} (nginx: client_max_body_size 0)",
    ),
    Kind(
        code="registry-busy",
        status=(429,),
        pattern=r"toomanyrequests|too many requests|rate limit",
        fix="wait some minutes and try again; docker login {host} raises the limit of most "
        "registries",
        transient=True,
    ),
    Kind(
        code="registry-login",
        status=(401,),
        pattern=r"unauthorized|no basic auth credentials|authentication required"
        r"|authorization failed|incorrect username or password",
        fix="docker login {host}",
    ),
    Kind(
        code="registry-denied",
        status=(403,),
        pattern=r"denied|forbidden|insufficient[_ ]scope",
        fix="ask the owner of {path} for access, or docker login {host} as somebody who has it",
    ),
    Kind(
        code="registry-missing",
        status=(404,),
        pattern=r"name unknown|NAME_UNKNOWN|repository .*(?:not found|does not exist)",
        fix="create the repository {path} on {host}, or check its spelling",
    ),
    Kind(
        code="registry-cannot",
        status=(405,),
        pattern=r"\bUNSUPPORTED\b|operation is unsupported",
        fix="{host} does not do this over its API: allow it there (registry: "
        "REGISTRY_STORAGE_DELETE_ENABLED=true), or use its web page",
    ),
    Kind(
        code="registry-failed",
        status=(500, 502, 503, 504),
        pattern=r"internal server error|bad gateway|service unavailable|gateway time-?out",
        fix="try again later; if it stays, ask whoever runs {host}",
        transient=True,
    ),
    Kind(
        code="registry-cut",
        pattern=r"connection reset|reset by peer|broken pipe|\bEOF\b|timed? ?out|timeout"
        r"|deadline exceeded|connection aborted|closed (?:network )?connection|IncompleteRead"
        r"|response ended prematurely|remote end closed",
        fix="check the network to {host}, and try again: what arrived is kept",
        transient=True,
    ),
)
OTHER = Kind(
    code="registry-failed",
    fix="try again later; if it stays, ask whoever runs {host}",
)


#: Characters of a registry's message that are shown.
MOST_SAID = 300


class RegistryError(SetupError):
    """A registry, or the way there, failed; ``transient`` as for ``Kind``."""

    transient = False


def error_of(kind: Kind, host: str, path: str, what: str) -> RegistryError:
    """The error for a failure at the repository ``path`` of a registry."""
    problem = Problem(code=kind.code, what=what, fix=kind.fix.format(host=host, path=path))
    error = RegistryError(problem)
    error.transient = kind.transient
    return error


def message(status: int, content: bytes) -> str:
    """What the registry says went wrong."""
    try:
        said = str(json.loads(content)["errors"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        said = ""
    return f"HTTP {status}{f', {said[:MOST_SAID]}' if said else ''}"


def of_status(status: int) -> Kind:
    """The kind of an HTTP status that is an error."""
    return next((kind for kind in KINDS if status in kind.status), OTHER)


def of_answer(status: int, said: str) -> Kind:
    """The kind of an answer: a registry that is full may say so in a 403 only."""
    found, spoken = of_status(status), of_text(said)
    return spoken if spoken.code == "registry-full" else found


def of_text(text: str) -> Kind:
    """The kind of what Docker or a library wrote; ``OTHER`` if it says none."""
    for kind in KINDS:
        # 401 as a status, not as a part of a digest, an address or a tag
        numbers = "".join(rf"|(?<![\w.:/@-]){status}(?![\w.-])" for status in kind.status)
        if re.search(f"{kind.pattern}{numbers}", text, re.IGNORECASE):
            return kind
    return OTHER
