"""Image references, by the grammar of github.com/distribution/reference, which Docker uses. Pure.

Written out here because the one maintained library for it, docker-image-py, needs a regex engine of
its own and accepts a newline after a name and ports that do not exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagefactory.errors import FactoryError, InputError, fail

#: Where a name without a host is.
HUB = "docker.io"
LONGEST_NAME = 255
LAST_PORT = 65535

_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(
    rf"(?P<name>{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::(?P<port>[0-9]{{1,5}}))?", re.ASCII
)
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(
    r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:(?P<hex>[0-9a-fA-F]{32,})"
)
#: Hex digits of the digests that registries use.
_HEX_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
REPOSITORY = "HOST/PATH, such as ghcr.io/me/vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The parts of a reference: registry host, path there, tag and digest (empty if left out)."""

    host: str
    path: str
    tag: str = ""
    digest: str = ""


def parse(text: str) -> Reference:
    """The parts of ``text``, which may leave out the host, the tag and the digest.

    Raises InputError ``reference-wrong``, whose message has no password that ``text`` may contain.
    """
    _no_account_or_scheme(text)
    name, at, digest = text.partition("@")
    host, path = _split(name)
    path, colon, tag = path.partition(":")
    if host:
        _check_host(text, host)
    if not _PATH.fullmatch(path):
        raise _wrong_path(text, path)
    if len(name.removesuffix(f":{tag}")) > LONGEST_NAME:
        raise _wrong(text, f"is longer than {LONGEST_NAME} characters", "write a shorter name")
    if colon and not is_tag(tag):
        fix = "a tag has up to 128 letters, digits, _, . and -, and begins with no . or -"
        raise _wrong(text, f"has the tag {tag[:40]!r}", fix)
    if at and not is_digest(digest):
        raise _wrong(text, "has a malformed digest", "write @sha256: and 64 hex digits")
    return Reference(host=host or HUB, path=path, tag=tag, digest=digest)


def repository(text: str) -> str:
    """``text``, if it is a repository: a reference without tag and digest.

    Raises InputError ``reference-wrong``, as ``parse`` does.
    """
    found = parse(text)
    if found.tag or found.digest:
        extra = "a digest" if found.digest else f"the tag {found.tag}"
        what = f"has {extra}, and a repository has none"
        raise _wrong(text, what, f"write {text.partition('@')[0].removesuffix(':' + found.tag)}")
    return text


def is_cut_digest(text: str) -> bool:
    """Whether ``text`` is meant as a digest, well-formed or not."""
    return re.match(r"sha\d+:", text) is not None and "/" not in text


def _split(name: str) -> tuple[str, str]:
    """Host and path; what precedes the first slash is a host if it looks like one."""
    first, slash, rest = name.partition("/")
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return (first, rest) if slash and is_host else ("", name)


def _no_account_or_scheme(text: str) -> None:
    scheme = _SCHEME.match(text)
    if scheme:
        what = f"begins with {scheme[0]}, and a reference has no scheme"
        raise _wrong(text, what, f"write {REPOSITORY}")
    before, at, after = text.rpartition("@")
    if (
        at
        and not (before and _DIGEST.match(after) and "@" not in before)
        and not is_cut_digest(after)
    ):
        fix = f"remove them; docker login keeps the account of a registry. Write {REPOSITORY}"
        raise _wrong(text, "contains credentials", fix)


def _check_host(text: str, host: str) -> None:
    found = _HOST.fullmatch(host)
    if found is None:
        raise _wrong(text, "has a malformed host", f"write {REPOSITORY}")
    if found["port"] is not None and not 0 < int(found["port"]) <= LAST_PORT:
        raise _wrong(text, f"has port {found['port']}", f"write a port from 1 to {LAST_PORT}")


def _wrong_path(text: str, path: str) -> FactoryError:
    if not text:
        return _wrong(text, "is empty", f"write {REPOSITORY}")
    if not path:
        return _wrong(text, "has no repository path", f"write {REPOSITORY}")
    if any(letter.isspace() for letter in text):
        return _wrong(text, "contains white space", f"write {REPOSITORY}")
    if path != path.lower() and _PATH.fullmatch(path.lower()):
        return _wrong(text, "has uppercase letters", "write the repository in lower case")
    fix = "parts of a path are lower-case letters and digits, joined by ., _, __ or -"
    return _wrong(text, "has a malformed repository path", fix)


def is_tag(text: str) -> bool:
    """Whether ``text`` is a tag."""
    return _TAG.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Whether ``text`` is a digest, such as ``sha256:`` and 64 hex digits."""
    found = _DIGEST.fullmatch(text)
    if found is None:
        return False
    digits = _HEX_DIGITS.get(text.partition(":")[0].lower())
    return digits is None or (len(found["hex"]) == digits and text == text.lower())


def _is_named(text: str) -> bool:
    """Whether ``text`` can be nothing but a name with a path, and perhaps a tag."""
    host, path = _split(text)
    name, colon, tag = path.partition(":")
    is_path = "/" in text and _PATH.fullmatch(name) and (is_tag(tag) or not colon)
    return bool(is_path and (not host or _HOST.fullmatch(host)))


def _wrong(text: str, what: str, fix: str) -> FactoryError:
    """The error for ``text``; anything that may be an account is left out of the message."""
    before, at, after = text.rpartition("@")
    is_name = _DIGEST.fullmatch(after) or (is_cut_digest(after) and _is_named(before))
    known = at and is_name and "@" not in before
    hidden = f"***@{after}" if at and not known else text
    shown = hidden if len(hidden) <= 80 else f"{hidden[:79]}…"
    return fail(InputError, "reference-wrong", f"image reference {shown!r} {what}", fix=fix)
