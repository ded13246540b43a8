"""Adapter for uv, the only resolver: turns a request into a set of wheels, at lock time only."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import tomli_w
import uv
from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.locking import cures, indexes, named_indexes, uv_indexes
from imagefactory.locking.lock import FIND_LINKS, Resolution, Wheel
from imagefactory.locking.tags import target_tags, uv_platform
from imagefactory.matrix.cell import Request
from imagefactory.settings import Settings
from imagefactory.system import index_errors, shell, temporary, web

#: An answer that keeps uv from resolving anything; others depend on the package.
_FATAL = {"credentials", "proxy", "failing", "timeout", "tls", "cut-off", "unreachable", "garbage"}


def resolve(
    request: Request,
    settings: Settings,
    *,
    previous: Resolution | None = None,
    refresh: bool = False,
    upgrade_packages: Sequence[str] = (),
    constraints: Sequence[str] = (),
) -> dict[Wheel, str]:
    """Resolve ``request`` to wheels, each with the URL it was found at.

    Versions of ``previous`` are kept where possible, except for ``upgrade_packages``;
    ``constraints`` limit versions without requiring anything; ``refresh`` ignores index pages in
    uv's cache. Raises CheckFailedError if there is no solution or no wheel
    for the target, SetupError if no index is reachable.
    """
    with temporary.folder(prefix="imagefactory-lock-") as folder:
        out = folder / "pylock.resolved.toml"
        if previous:
            out.write_text(_as_pylock(previous), encoding="utf-8")
        command = _command(request, settings, folder, out, upgrade_packages)
        if constraints:
            limits = folder / "constraints.txt"
            limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
            command += ["--constraint", str(limits)]
        _check_indexes(request, settings)
        done = shell.run(
            [*command, "--refresh"] if refresh else command,
            env={**web.uv_environment(), **uv_indexes.environment(settings, request.indexes)},
        )
        if not done.ok:
            raise _failure(request, done.err, settings)
        packages = tomllib.loads(out.read_text(encoding="utf-8")).get("packages", [])
    tags = {tag: rank for rank, tag in reversed(list(enumerate(target_tags(request))))}
    chosen = [_best(package, tags, request) for package in packages]
    with ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(lambda pair: _size(pair[1], settings), chosen))
    return {
        _wheel(package, entry, size, settings.indexes): entry["url"]
        for (package, entry), size in zip(chosen, sizes, strict=True)
    }


def _command(
    request: Request, settings: Settings, folder: Path, out: Path, upgrade_packages: Sequence[str]
) -> list[str]:
    requirements, overrides = folder / "requirements.in", folder / "overrides.txt"
    urls = named_indexes.urls(request, settings)
    texts = [named_indexes.at_url(text, urls) for text in request.requirements]
    requirements.write_text("".join(f"{line}\n" for line in texts), encoding="utf-8")
    # uv leaves a package out if its requirement has a marker that is never true
    lines = [
        f"{o.requirement}; sys_platform == 'never'"
        if o.drop
        else named_indexes.at_url(o.requirement, urls)
        for o in request.overrides
    ]
    overrides.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    config = folder / "uv.toml"  # uv finds the credentials for these itself
    tables = [{"name": i.name, "url": i.url, "explicit": True} for i in request.indexes]
    config.write_text(tomli_w.dumps({"index": tables} if tables else {}), encoding="utf-8")
    return [
        *(uv.find_uv_bin(), "pip", "compile", str(requirements)),
        *("--override", str(overrides), "--output-file", str(out)),
        # any interpreter will do, as only wheels are read; uv takes seconds to find the target's
        *("--python", sys.executable, "--python-version", request.python),
        *("--python-platform", uv_platform(request.platform, request.glibc)),
        *("--format", "pylock.toml", "--only-binary", ":all:"),
        *("--no-header", "--quiet", "--config-file", str(config)),
        *uv_indexes.options(settings),
        *(option for package in upgrade_packages for option in ("--upgrade-package", package)),
    ]


def _names(request: Request) -> list[str]:
    """The packages that are looked up on the machine's own indexes."""
    named = {index.package for index in request.indexes}
    found = [Requirement(text) for text in request.requirements]
    names = [canonicalize_name(one.name) for one in found if not one.url]
    return [name for name in dict.fromkeys(names) if name not in named]


def _check_indexes(request: Request, settings: Settings) -> None:
    """Raise SetupError for an index that does not work: uv would try for long, and say less."""
    for index in settings.indexes:
        for name in _names(request)[:1]:
            page = indexes.pages(index, [name], settings)[name]
            if page.error and page.error.code.removeprefix("index-") in _FATAL:
                raise SetupError(page.error)


def _failure(request: Request, text: str, settings: Settings) -> Exception:
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith("warning")
    ]
    essence = " ".join(lines)[:900] or "uv printed no error"
    shown = f"{', '.join(request.requirements)} for {request.platform}, Python {request.python}"
    what = f"{shown}: {essence}"
    of_index = index_errors.of_uv(text, what)
    faults = [of_index] if of_index else indexes.faults(_names(request), settings)
    if faults:
        return SetupError(faults)
    fix = cures.of_missing_wheel(" ".join(lines), request, settings) or (
        "change the pins; or, if upstream's metadata is too strict, add an override with a reason "
        "to matrix.yaml"
    )
    where = next((str(o.location) for o in request.overrides), None)
    return fail(CheckFailedError, "lock-unsatisfiable", what, where=where, fix=fix)


def _best(
    package: dict[str, Any], tags: dict[Tag, int], request: Request
) -> tuple[dict[str, Any], dict[str, Any]]:
    ranked = []
    by_url = [package["archive"]] if "archive" in package else []
    for entry in (*package.get("wheels", ()), *by_url):
        ranks = [tags[tag] for tag in parse_wheel_filename(_filename(entry))[3] if tag in tags]
        if ranks:
            ranked.append((min(ranks), entry))
    if not ranked:
        what = (
            f"{package['name']} {package.get('version')} has no wheel for "
            f"{request.platform}, Python {request.python}"
        )
        fix = "choose another version, or a base with a newer glibc"
        raise fail(CheckFailedError, "lock-no-wheel", what, fix=fix)
    return package, min(ranked, key=lambda pair: pair[0])[1]


def _filename(entry: dict[str, Any]) -> str:
    return str(entry.get("name") or unquote(urlsplit(entry["url"]).path).rpartition("/")[2])


def _size(entry: dict[str, Any], settings: Settings) -> int:
    if "size" in entry:
        return int(entry["size"])
    parts = urlsplit(entry["url"])
    if parts.scheme == "file":
        return Path(unquote(parts.path)).stat().st_size
    return web.size_of(entry["url"], settings.account_for(entry["url"]))


def _wheel(
    package: dict[str, Any], entry: dict[str, Any], size: int, indexes: Sequence[str]
) -> Wheel:
    filename = _filename(entry)
    return Wheel(
        name=canonicalize_name(package["name"]),
        version=str(parse_wheel_filename(filename)[1]),
        filename=filename,
        sha256=entry["hashes"]["sha256"],
        size=size,
        index=_index(package, entry, indexes),
    )


def _index(package: dict[str, Any], entry: dict[str, Any], indexes: Sequence[str]) -> str:
    if "archive" in package:
        return web.without_account(str(entry["url"]).partition("#")[0])
    return FIND_LINKS if entry["url"].startswith("file:") else _index_of(entry["url"], indexes)


def _index_of(url: str, indexes: Sequence[str]) -> str:
    """The index on the file's host; the first index if none is, as PyPI serves files elsewhere."""
    host = urlsplit(url).hostname
    return next((index for index in indexes if urlsplit(index).hostname == host), indexes[0])


def _as_pylock(previous: Resolution) -> str:
    """The resolution in the lock format of uv, which prefers the versions in it."""
    packages = [
        {
            "name": wheel.name,
            "version": wheel.version,
            "wheels": [
                {"url": f"{wheel.index}/{wheel.filename}", "hashes": {"sha256": wheel.sha256}}
            ],
        }
        for wheel in previous.wheels
        if not wheel.is_local and not wheel.has_address
    ]
    return tomli_w.dumps({"lock-version": "1.0", "created-by": "uv", "packages": packages})
