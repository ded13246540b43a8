"""Adapter for upstream sources: downloaded once, checked by hash and kept in the cache.

A source tree is laid out as diffs and proofs expect it.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from isal import igzip, igzip_lib
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imagefactory.errors import InputError, SetupError, fail
from imagefactory.locking import indexes, refs, remote_wheel, wheelhouse
from imagefactory.locking.lock import Lock
from imagefactory.locking.tags import BUILT
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.settings import Settings
from imagefactory.system import locks, temporary, ui, web

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Where a project's sources come from.

    Attributes:
        name: the distribution on the index.
        kind: ``sdist``, or ``wheel`` if the wheel contains the sources that are compiled at run
            time, at the paths where they are installed.
        oldest: the oldest release that is measured.
        steps: components of a version that a patch's variants distinguish: 2 for a project that
            changes with every minor release.
        pinned_in: vLLM's requirements file that pins it, relative to vLLM's sources; else empty.
    """

    name: str
    kind: str
    oldest: str
    steps: int = 2
    pinned_in: str = ""


DISTRIBUTIONS = {
    "vllm": Distribution(name="vllm", kind="sdist", oldest="0.16"),
    "flashinfer": Distribution(
        name="flashinfer-python",
        kind="wheel",
        oldest="0.6.3",
        steps=3,
        pinned_in="requirements/cuda.txt",
    ),
}
#: Suffixes of the files that patches and proofs read; others, such as images, are not unpacked.
TEXT = frozenset(
    {
        ".py",
        ".pyi",
        ".cu",
        ".cuh",
        ".h",
        ".hpp",
        ".inl",
        ".cpp",
        ".cc",
        ".cmake",
        ".txt",
        ".toml",
        ".jinja",
        ".json",
    }
)
#: Patches change no tests; they are more than a third of vLLM's files.
TESTS = ("tests",)
_PIECE = 1 << 20
#: How files of gzip begin; archives of git refs are not packed.
GZIP = b"\x1f\x8b"
#: What reading an archive raises if it is damaged, or none at all.
DAMAGED: tuple[type[Exception], ...] = (  # type: ignore[assignment] # isal has no types
    *remote_wheel.DAMAGED,
    *(tarfile.TarError, gzip.BadGzipFile, igzip_lib.IsalError),
)
#: Python does this on one core anyway: one after the other, the first is there earlier.
_UNPACKING = threading.Lock()
AGAIN = "try again; if it persists, contact the operator of the index"
#: Beside the files of a tree: what it was unpacked from, and which suffixes were.
MARK = ".source.json"
#: The C++ standard headers that FlashInfer's wheel contains have no suffix.
TEXT_OF = {"sdist": TEXT, "wheel": TEXT | {""}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """The sources of one release.

    Attributes:
        project: such as ``vllm``.
        version: the release.
        root: folder laid out as the sdist, or as ``site-packages``; vLLM's Python files have the
            same paths in both.
        sha256: of the file that it was unpacked from: equal hashes mean equal trees.
        released: whether they are those of a release, not of somebody's wheel or a commit.
    """

    project: str
    version: str
    root: Path
    sha256: str
    released: bool = True


def releases(project: str, specifier: SpecifierSet | None, settings: Settings) -> list[str]:
    """Releases with sources, oldest first: those matching ``specifier``, or all.

    All are those that are no pre-releases and not older than the oldest that is measured. If no
    index answers, only releases in the cache are known. Raises SetupError if there are none.
    """
    oldest = DISTRIBUTIONS[project].oldest
    names = {Version(file.version or "0") for file in _files(project, settings)} or _cached(
        project, settings
    )
    if not names:
        raise fail(
            SetupError,
            "sources-unreachable",
            f"no index lists any release of {project}",
            fix="imagefactory doctor",
        )
    if specifier is not None:
        return [str(v) for v in sorted(names) if specifier.contains(v, prereleases=True)]
    return [str(v) for v in sorted(names) if v >= Version(oldest) and not v.is_prerelease]


def pinned(project: str, trees: Sequence[SourceTree]) -> list[str]:
    """The releases of ``project`` that the vLLM releases among ``trees`` pin, oldest first."""
    wanted, found = DISTRIBUTIONS[project], set()
    for tree in trees:
        path = tree.root / wanted.pinned_in
        if not wanted.pinned_in or tree.project != "vllm" or not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            pin = re.match(rf"{re.escape(wanted.name)}\s*==\s*([^\s;#]+)", line)
            if pin:
                found.add(Version(pin[1]))
    return [str(version) for version in sorted(found)]


def fetch(project: str, version: str, settings: Settings) -> SourceTree:
    """The sources of one release, from the cache or the index.

    Raises SetupError if no index has them, or the download does not have the index's hash.
    """
    root = _folder(project, settings) / version
    root.parent.mkdir(parents=True, exist_ok=True)
    suffixes = TEXT_OF[DISTRIBUTIONS[project].kind]
    with locks.held(root.with_name(f"{version}.lock"), f"the sources of {project} {version}"):
        sha = _unpacked(root, suffixes)
        if sha is None:
            found = next((f for f in _files(project, settings) if _is(f, version)), None)
            if found is None:
                what = f"no index has sources of {project} {version}"
                fix = "imagefactory doctor checks the indexes"
                raise fail(SetupError, "sources-unreachable", what, fix=fix)
            with ui.step(f"fetching the sources of {project} {version}"):
                sha = _download(found, root, suffixes, settings)
    return SourceTree(project=project, version=version, root=root, sha256=sha)


def of_cell(project: str, cell: Cell, lock: Lock | None, settings: Settings) -> SourceTree:
    """The sources of what ``cell`` installs of ``project``, as locked if there is a ``lock``.

    They are those of a release, unless the matrix names a wheel by its URL or a git ref. Raises
    SetupError if they are not available, InputError for a ref that is not locked.
    """
    resolution = lock.find(request_of(cell)) if lock else None
    wheel = resolution.wheel(DISTRIBUTIONS[project].name) if resolution else None
    if cell.ref and project == BUILT:
        locked = lock.ref(cell.ref) if lock else None
        if locked is None:
            raise InputError(refs.not_locked(cell.ref))
        source = locked.source
        file = wheelhouse.fetch(source.url, source.sha256, source.filename, settings)
        return _of_file(project, locked.version, file, source.sha256, settings)
    if wheel and wheel.has_address:
        return _of_file(
            project, cell.axes[project], wheelhouse.file_of(wheel, settings), wheel.sha256, settings
        )
    return fetch(project, cell.axes[project], settings)


def _of_file(project: str, version: str, file: Path, sha256: str, settings: Settings) -> SourceTree:
    root = _folder(project, settings) / sha256
    root.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(root.with_name(f"{sha256}.lock"), f"the sources of {project}"):
        if _unpacked(root, TEXT) is None:
            with file.open("rb") as data:
                _write_texts(data, file.name, root, TEXT, sha256)
    return SourceTree(project=project, version=version, root=root, sha256=sha256, released=False)


def _folder(project: str, settings: Settings) -> Path:
    return settings.cache / "sources" / project


def _unpacked(root: Path, suffixes: frozenset[str]) -> str | None:
    """The SHA-256 of what ``root`` was unpacked from; None unless all ``suffixes`` were."""
    try:
        mark = json.loads((root / MARK).read_text(encoding="utf-8"))
        return str(mark["sha256"]) if mark["suffixes"] == sorted(suffixes) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _cached(project: str, settings: Settings) -> set[Version]:
    found = set()
    for mark in _folder(project, settings).glob(f"*/{MARK}"):
        try:
            found.add(Version(mark.parent.name))
        except InvalidVersion:
            continue
    return found


def _files(project: str, settings: Settings) -> list[DistributionPackage]:
    wanted = DISTRIBUTIONS[project]
    for index in settings.indexes:
        page = indexes.pages(index, [wanted.name], settings)[wanted.name]
        files = [f for f in page.files if f.package_type == wanted.kind and _is_version(f)]
        if files:
            return files
    return []


def _is(file: DistributionPackage, version: str) -> bool:
    return Version(file.version or "0") == Version(version)


def _is_version(file: DistributionPackage) -> bool:
    try:
        Version(file.version or "")
    except InvalidVersion:
        return False
    return True


def _download(
    file: DistributionPackage, root: Path, suffixes: frozenset[str], settings: Settings
) -> str:
    """Download a file, check its hash, unpack its text files to ``root``; returns the hash."""
    with tempfile.TemporaryFile() as data:
        account = settings.account_for(file.url)
        found = web.download(file.url, data, code="sources-unreachable", account=account)
        wanted = file.digests.get("sha256")
        if wanted and wanted != found:
            what = f"{file.filename} has SHA-256 {found[:16]}…, the index says {wanted[:16]}…"
            raise fail(SetupError, "sources-corrupt", what, fix=AGAIN)
        data.seek(0)
        with _UNPACKING:
            _write_texts(data, file.filename, root, suffixes, found)
    return found


def _write_texts(
    data: IO[bytes], filename: str, root: Path, suffixes: frozenset[str], sha256: str
) -> None:
    """Unpack the text files of a wheel or an sdist to ``root``, atomically.

    A tree that an older version of the factory unpacked is replaced. Raises SetupError for a file
    that is damaged: not every index has hashes.
    """
    with temporary.folder(prefix="imagefactory-sources-", parent=root.parent) as parent:
        folder = parent / "tree"
        folder.mkdir()
        try:
            _unpack(data, filename, folder, suffixes)
        except DAMAGED as error:
            what = f"{filename} cannot be unpacked: {error}"
            raise fail(SetupError, "sources-corrupt", what, fix=AGAIN) from None
        mark = {"sha256": sha256, "file": filename, "suffixes": sorted(suffixes)}
        (folder / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
        shutil.rmtree(root, ignore_errors=True)
        folder.rename(root)


def _unpack(data: IO[bytes], filename: str, folder: Path, suffixes: frozenset[str]) -> None:
    for inside, text in (_of_wheel if filename.endswith(".whl") else _of_sdist)(data, suffixes):
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)


def _of_sdist(data: IO[bytes], suffixes: frozenset[str]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The text files of an sdist, by their path below its top folder; none of its tests.

    tarfile's extraction filters would do this too, but Debian 12's Python 3.11 lacks them.
    """
    is_packed = data.read(len(GZIP)) == GZIP
    data.seek(0)
    plain = igzip.IGzipFile(fileobj=data) if is_packed else data  # type: ignore[no-untyped-call]
    with plain, tarfile.open(fileobj=plain, mode="r:") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            wanted = member.isfile() and _is_wanted(path, suffixes) and path.parts[1:2] != TESTS
            if wanted:
                file = archive.extractfile(member)
                yield PurePosixPath(*path.parts[1:]), file.read() if file else b""
        while plain.read(_PIECE):  # tarfile ends at a damaged header; the checksum comes last
            pass


def _of_wheel(data: IO[bytes], suffixes: frozenset[str]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The text files of a wheel, by the path at which they are installed."""
    with zipfile.ZipFile(data) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if not name.endswith("/") and _is_wanted(path, suffixes):
                yield path, archive.read(name)


def _is_wanted(path: PurePosixPath, suffixes: frozenset[str]) -> bool:
    metadata = any(part.endswith((".egg-info", ".dist-info")) for part in path.parts)
    is_safe = not path.is_absolute() and ".." not in path.parts
    return path.suffix in suffixes and not metadata and is_safe
