"""Packages that the matrix takes from a named index: each becomes the URL of one wheel there.

The resolver gets that URL, because what uv assigns to an index loses the assignment where an
override replaces the requirement. No other package is looked up on a named index.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.locking import indexes
from imagefactory.locking.tags import target_tags
from imagefactory.matrix.cell import NamedIndex, Request
from imagefactory.settings import Settings, index_variable

#: Versions that an error lists at most.
LISTED = 5


def urls(request: Request, settings: Settings) -> dict[str, str]:
    """For each package from a named index, the URL of its wheel, with its hash.

    Raises SetupError if an index cannot be read, CheckFailedError if it has no wheel that fits.
    """
    tags = {tag: rank for rank, tag in reversed(list(enumerate(target_tags(request))))}
    return {index.package: _url(index, request, tags, settings) for index in request.indexes}


def at_url(text: str, found: Mapping[str, str]) -> str:
    """The requirement ``text``, by URL if its package is in ``found``."""
    requirement = Requirement(text)
    url = found.get(canonicalize_name(requirement.name))
    if url is None:
        return text
    requirement.url, requirement.specifier = url, SpecifierSet()
    return str(requirement)


def _url(index: NamedIndex, request: Request, tags: dict[Tag, int], settings: Settings) -> str:
    wanted = _requirement(index.package, request)
    page = indexes.pages(index.url, [index.package], settings)[index.package]
    if page.error:
        what = f"index {index.name} ({index.url}) cannot be read: {page.problem}"
        prefix = index_variable(index.name)
        fix = (
            f"set {prefix}_USERNAME and {prefix}_PASSWORD, or write them to ~/.netrc"
            if page.error.code in ("index-credentials", "index-forbidden")
            else page.error.fix
        )
        raise fail(SetupError, page.error.code, what, fix=fix)
    ranked, versions = [], set()
    for file in page.files:
        try:
            _, version, _, file_tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        ranks = [tags[tag] for tag in file_tags if tag in tags]
        sha256 = file.digests.get("sha256")
        if not ranks or not sha256:
            continue
        versions.add(version)
        if wanted.specifier.contains(version):
            url = f"{file.url.partition('#')[0]}#sha256={sha256}"
            ranked.append((version, -min(ranks), url))
    if not ranked:
        raise _not_found(index, wanted, request, versions)
    return max(ranked)[2]


def _requirement(package: str, request: Request) -> Requirement:
    """What the request wants of ``package``: an override takes precedence."""
    written = [*(o.requirement for o in request.overrides), *request.requirements]
    found = (Requirement(text) for text in written)
    return next(one for one in found if canonicalize_name(one.name) == package)


def _not_found(
    index: NamedIndex, wanted: Requirement, request: Request, versions: set[Version]
) -> Exception:
    target = f"{request.platform}, Python {request.python}"
    what = f"index {index.name} ({index.url}) has no wheel of {wanted} for {target}"
    newest = ", ".join(map(str, sorted(versions, reverse=True)[:LISTED]))
    fix = f"for that target it has {newest}" if newest else "take the package from another index"
    return fail(CheckFailedError, "lock-no-wheel", what, fix=fix)
