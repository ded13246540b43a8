"""Adapter for upstream sources: sdists, fetched once by hash and kept below the cache."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests
import stamina
from filelock import FileLock
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage

from imagefactory.errors import SetupError, fail
from imagefactory.locking import places
from imagefactory.settings import Settings

#: Project -> the distribution that carries its sources, and the oldest release that anything is measured for.
DISTRIBUTIONS = {"vllm": ("vllm", "0.16"), "flashinfer": ("flashinfer-python", "0.6.3")}
#: What patches and proofs read; the rest of an sdist (images, test data) is not unpacked.
TEXT = frozenset({".py", ".pyi", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".cmake", ".txt", ".toml", ".jinja"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """The sources of one release.

    Attributes:
        project: such as ``vllm``.
        version: the release.
        root: folder laid out as the sdist; for Python files that is also how ``site-packages`` is laid out.
        sha256: of the sdist: equal trees have equal hashes.
    """

    project: str
    version: str
    root: Path
    sha256: str


def releases(project: str, specifier: SpecifierSet | None, settings: Settings) -> list[str]:
    """Releases with an sdist, oldest first: all that match ``specifier``; without one, the newest of every minor.

    The index is asked; if none answers, what is in the cache is what there is. Raises SetupError if that is nothing.
    """
    _, oldest = DISTRIBUTIONS[project]
    names = {Version(file.version or "0") for file in _sdists(project, settings)} or _cached(project, settings)
    if not names:
        raise fail(
            SetupError, "sources-unreachable", f"no index tells the releases of {project}", fix="imagefactory doctor"
        )
    if specifier is not None:
        return [str(v) for v in sorted(names) if specifier.contains(v, prereleases=True)]
    newest: dict[tuple[int, int], Version] = {}
    for version in sorted(v for v in names if v >= Version(oldest) and not v.is_prerelease):
        newest[version.major, version.minor] = version
    return [str(v) for v in newest.values()]


def fetch(project: str, version: str, settings: Settings) -> SourceTree:
    """The sources of one release, from the cache or the index.

    Raises SetupError if no index answers or its file is not the one with its hash.
    """
    root = _folder(project, settings) / version
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.with_suffix(".lock")):
        mark = root / ".source.json"
        if mark.is_file():
            return SourceTree(
                project=project, version=version, root=root, sha256=json.loads(mark.read_text())["sha256"]
            )
        found = next((f for f in _sdists(project, settings) if f.version == version), None)
        if found is None:
            what = f"no index has sources of {project} {version}"
            raise fail(SetupError, "sources-unreachable", what, fix="imagefactory doctor checks the indexes")
        sha = _unpack(found, root)
        mark.write_text(json.dumps({"sha256": sha, "file": found.filename}) + "\n", encoding="utf-8")
    return SourceTree(project=project, version=version, root=root, sha256=sha)


def _folder(project: str, settings: Settings) -> Path:
    return settings.cache / "sources" / project


def _cached(project: str, settings: Settings) -> set[Version]:
    found = set()
    for mark in _folder(project, settings).glob("*/.source.json"):
        try:
            found.add(Version(mark.parent.name))
        except InvalidVersion:
            continue
    return found


def _sdists(project: str, settings: Settings) -> list[DistributionPackage]:
    name = DISTRIBUTIONS[project][0]
    for index in settings.indexes:
        files = [f for f in places.pages(index, [name])[name].files if f.package_type == "sdist" and _is_version(f)]
        if files:
            return files
    return []


def _is_version(file: DistributionPackage) -> bool:
    try:
        Version(file.version or "")
    except InvalidVersion:
        return False
    return True


@stamina.retry(on=(requests.ConnectionError, requests.Timeout), attempts=3)
def _unpack(file: DistributionPackage, root: Path) -> str:
    """Download an sdist, hold it against its hash, unpack its texts to ``root`` in one step; returns the hash."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=root.parent) as name, tempfile.TemporaryFile() as data:
        with requests.get(file.url, stream=True, timeout=60) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_content(1 << 20):
                digest.update(chunk)
                data.write(chunk)
        wanted = file.digests.get("sha256")
        if wanted and wanted != digest.hexdigest():
            what = f"{file.filename} is {digest.hexdigest()[:16]}, the index promised {wanted[:16]}"
            raise fail(SetupError, "sources-corrupt", what, fix="try again; if it stays, ask who keeps the index")
        data.seek(0)
        with tarfile.open(fileobj=data) as archive:
            for member in _texts(archive):
                _write(archive, member, Path(name))
        (top,) = [path for path in Path(name).iterdir() if path.is_dir()]
        top.rename(root)
    return digest.hexdigest()


def _texts(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The sources in an sdist; its own metadata is not among what gets installed."""
    for member in archive:
        path = Path(member.name)
        inside = not path.is_absolute() and ".." not in path.parts
        own = any(part.endswith(".egg-info") for part in path.parts)
        if member.isfile() and inside and path.suffix in TEXT and not own:
            yield member


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Unpack one plain file; by hand, for tarfile's safe filters are younger than the oldest Python we run on."""
    data = archive.extractfile(member)
    target = folder / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data.read() if data else b"")
