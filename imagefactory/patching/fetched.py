"""Diffs that are fetched from an address: a pull request, a commit, or a file at a server."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit, urlunsplit

from imagefactory.errors import FactoryError, InputError, SetupError, fail
from imagefactory.patching import diffs
from imagefactory.patching.patch import Source
from imagefactory.system import web

#: Where OWNER/REPO is, and the repositories of the projects.
FORGE = "https://github.com"
REPOSITORIES = {"vllm": "vllm-project/vllm", "flashinfer": "flashinfer-ai/flashinfer"}
#: Seconds for the whole answer.
LONGEST = 120.0
_REPOSITORY = r"(?P<repository>[\w.-]+/[\w.-]+|vllm|flashinfer)"
_SHORT = (
    (re.compile(rf"{_REPOSITORY}#(?P<number>\d{{1,9}})"), "pull/{number}.diff"),
    (re.compile(rf"{_REPOSITORY}@(?P<commit>[0-9a-f]{{7,40}})"), "commit/{commit}.patch"),
)
#: Paths of pages and files at a forge; what follows a number or commit, such as /files, is ignored.
_LONG = (
    (re.compile(r"(?P<base>.*)/pull/\d+/commits/(?P<commit>[0-9a-f]{7,40})"), "commit-{commit:.9}"),
    (re.compile(r"(?P<base>.*)/pull/(?P<number>\d{1,9})(?:[/.].*)?"), "pr-{number}"),
    (
        re.compile(r"(?P<base>.*)/commit/(?P<commit>[0-9a-f]{7,40})(?:[/.].*)?"),
        "commit-{commit:.9}",
    ),
)
_FILE = re.compile(r"\.(?:diff|patch)$")
#: Addresses of diffs in a script, without those that a variable completes.
_IN_SCRIPT = re.compile(r"https?://[^\s\"'$`{}<>|;)]+?\.(?:diff|patch)(?![\w.$])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a diff is.

    Attributes:
        url: of the diff itself.
        name: what a patch made of it is called.
        project: the upstream project that it changes; None if the address does not say.
    """

    url: str
    name: str
    project: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What an address gave, and where it is from."""

    content: bytes
    source: Source


def address_of(text: str) -> Address | None:
    """The address that ``text`` means; None if it is no address.

    Raises InputError for a URL that is none of a pull request, a commit or a diff.
    """
    for pattern, path in _SHORT:
        if found := pattern.fullmatch(text):
            repository = REPOSITORIES.get(found["repository"], found["repository"])
            return _of_url(f"{FORGE}/{repository}/{path.format(**found.groupdict())}")
    return _of_url(text) if re.match(r"https?://", text) else None


def _of_url(text: str) -> Address:
    parts = urlsplit(text)
    project = next((name for name, one in REPOSITORIES.items() if one in parts.path), None)
    for pattern, name in _LONG:
        if found := pattern.fullmatch(parts.path):
            names = found.groupdict()
            path = parts.path
            if not _FILE.search(path):
                page = "commit/{commit}.patch" if "commit" in names else "pull/{number}.diff"
                path = f"{names['base']}/{page.format(**names)}"
            url = urlunsplit(parts._replace(path=path, fragment=""))
            return Address(url=url, name=name.format(**names), project=project)
    if not _FILE.search(parts.path):
        what = f"{_shown(text)} is neither a pull request, a commit, nor a .diff or .patch file"
        fix = "such as https://github.com/vllm-project/vllm/pull/12345, or vllm#12345"
        raise fail(InputError, "import-address", what, fix=fix)
    name = _FILE.sub("", parts.path.rpartition("/")[2])
    return Address(url=urlunsplit(parts._replace(fragment="")), name=name, project=project)


def addresses_in(script: str) -> list[str]:
    """The addresses of diffs in the text of a script, in order."""
    return list(dict.fromkeys(_IN_SCRIPT.findall(script)))


def fetch(address: Address) -> Fetched:
    """What ``address`` gives. Raises SetupError if it cannot be had, InputError if it is no diff.

    Neither a password nor a token in the address is in errors or in the source.
    """
    import requests  # noqa: PLC0415 - takes 50 ms, which only this command needs

    shown = _shown(address.url)
    try:
        with web.waiting(address.url):
            answer = web.within(
                LONGEST, lambda: web.with_retries(lambda: web.get(address.url, diffs.LARGEST))
            )
    except requests.RequestException as error:
        raise _not_reached(shown, error) from None
    if answer.status != 200:
        raise _refused(shown, answer)
    if len(answer.content) > diffs.LARGEST:
        what = f"{shown} has more than {diffs.LARGEST / 1e6:.0f} MB"
        fix = "import a part of it, from a file"
        raise fail(InputError, "import-large", what, fix=fix)
    if b"\n@@ " not in answer.content and b"\ndiff --git " not in b"\n" + answer.content:
        first = answer.content[:40].decode("utf-8", "replace").partition("\n")[0].strip()
        what = f"{shown} gave no diff; it begins with {first!r}"
        fix = "open it in a browser; save the diff to a file and import that"
        raise fail(InputError, "import-no-diff", what, fix=fix)
    sha = hashlib.sha256(answer.content).hexdigest()
    return Fetched(content=answer.content, source=Source(address=shown, sha256=sha))


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
    return web.without_account(urlunsplit(urlsplit(url)._replace(query="", fragment="")))


_BY_HAND = "or save the diff in a browser and import the file"


def _not_reached(shown: str, error: Exception) -> FactoryError:
    from imagefactory.system import index_errors  # noqa: PLC0415 - as above

    (problem,) = SetupError(index_errors.of_request(shown, error)).problems
    fix = f"check the network, {_BY_HAND}"
    return SetupError(replace(problem, code="import-unreachable", fix=fix))


def _refused(shown: str, answer: web.Response) -> FactoryError:
    status = f"HTTP {answer.status}"
    if answer.status in (404, 410):
        fix = f"check the address; a private repository says so, too: {_BY_HAND[3:]}"
        return fail(InputError, "import-not-found", f"{shown} does not exist ({status})", fix=fix)
    if answer.status in (401, 403, 429):
        after = answer.retry_after
        wait = f"after {after} s" if after.isdigit() else "later"
        what = f"{shown}: the server refuses it: too many requests, or no access ({status})"
        return fail(SetupError, "import-refused", what, fix=f"try again {wait}, {_BY_HAND}")
    what = f"{shown}: the server failed ({status})"
    return fail(SetupError, "import-failing", what, fix=f"try again later, {_BY_HAND}")
