"""Images in one OCI layout, a folder or a tar archive; blobs that they share are there once.

Beside the blobs lie the receipts and SBOMs of the images. A folder is filled blob by blob, and goes
on where it was; its index is written last. An archive appears under its name when it is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from imagefactory.building import layouts
from imagefactory.errors import (
    CheckFailedError,
    FactoryError,
    InputError,
    Problem,
    SetupError,
    fail,
)
from imagefactory.system import files, locks, strict_json
from imagefactory.transport import content as contents
from imagefactory.transport.content import BLOBS, LARGEST, Archive, Content, Folder, Store, chunks

#: The file that makes a folder an OCI layout, and what is in it.
MARK, VERSION = "oci-layout", b'{"imageLayoutVersion": "1.0.0"}'
INDEX = "index.json"
#: What Docker reads if its images are not in containerd's store.
DOCKER = "manifest.json"
_FIX = "name a folder or a .tar that imagefactory save has written to its end"
#: What reading an index that is damaged or none ends with.
_NO_INDEX = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
#: Folders beside the blobs, with a file for each digest.
RECEIPTS, SBOMS = "receipts", "sboms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """What is known about an image: its receipt and its SBOM; None for what there is not."""

    receipt: bytes | None = None
    sbom: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A layout that was read.

    Attributes:
        images: its images.
        receipts: the receipt of an image, by digest, as it came.
        size: bytes of all blobs; what images share counts once.
    """

    images: tuple[Content, ...]
    receipts: Mapping[str, bytes]
    size: int


def is_archive(target: Path) -> bool:
    """Whether a layout of that name is an archive."""
    return target.is_file() or (not target.is_dir() and target.suffix == ".tar")


def save(images: Sequence[Content], papers: Mapping[str, Papers], target: Path) -> None:
    """Write ``images``, with the ``papers`` of their digests.

    A folder keeps the images of other names that it has. Raises InputError ``layout-foreign`` for
    what is there and is no layout, SetupError ``layout-unwritable``, CheckFailedError
    ``content-damaged`` for a blob that is not what its digest says.
    """
    write = _save_archive if is_archive(target) else _save_folder
    try:
        write(images, papers, target)
    except OSError as error:
        what = f"{target} cannot be written: {error.strerror or error}"
        fix = "save to a disk with room"
        raise fail(SetupError, "layout-unwritable", what, fix=fix) from None


def _save_folder(images: Sequence[Content], papers: Mapping[str, Papers], target: Path) -> None:
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).exists():
        what = f"{target} is not empty, and no OCI layout"
        raise fail(InputError, "layout-foreign", what, fix="name an empty or a new folder")
    folder = target / BLOBS
    folder.mkdir(parents=True, exist_ok=True)
    (target / MARK).write_bytes(VERSION)
    with locks.held(target / ".lock", f"the images in {target}"):
        kept = [row for row in _rows_of(target) if _name(row) not in {one.name for one in images}]
        for digest, one in _owners(images).items():
            _copy(one, digest, folder)
        for name, data in _papers(images, papers).items():
            (target / name).parent.mkdir(exist_ok=True)
            files.write_durably(target / name, data)
        rows = [*kept, *map(_row, images)]
        left = [contents.read(Folder(folder), row["digest"], _name(row)) for row in rows]
        files.write_durably(target / DOCKER, _docker_rows(left))
        files.write_durably(target / INDEX, _index(rows))
        _remove_others(target, left)


def _owners(images: Sequence[Content]) -> dict[str, Content]:
    """All blobs, each with one of the images that have it."""
    return {digest: one for one in images for digest in one.blobs}


def _copy(image: Content, digest: str, folder: Path) -> None:
    """Copy a blob, unless it is there: what has its name was copied to the end."""
    path = folder / digest.removeprefix("sha256:")
    if path.exists() and path.stat().st_size == image.blobs[digest]:
        return
    with _written(path) as out, image.store.open(digest) as source:
        reader = _Hashing(source, digest, image.name)
        shutil.copyfileobj(reader, out, 1 << 20)
        reader.check()


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A file that has its name when the block ends, and leaves nothing on a full disk."""
    with files.replacing(path) as part, part.open("wb") as out:
        yield out
        out.flush()
        os.fsync(out.fileno())


class _Hashing(io.RawIOBase):
    """Reads a blob, and compares it with its digest in the end."""

    def __init__(self, source: IO[bytes], digest: str, name: str) -> None:
        self._source, self._digest, self._name = source, digest, name
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        return data

    def check(self) -> None:
        """Raise CheckFailedError ``content-damaged`` if it was another blob."""
        if f"sha256:{self._hash.hexdigest()}" != self._digest:
            raise damaged(self._name, self._digest)


def damaged(name: str, digest: str) -> FactoryError:
    """The error for a blob that is not what its digest says."""
    what, fix = f"{name} is damaged: {digest} has other content", "save the image again"
    return fail(CheckFailedError, "content-damaged", what, fix=fix)


def _damaged_in(source: Path, name: str, digest: str) -> FactoryError:
    """The same in a layout: a folder keeps what has the name and size of a blob."""
    error = damaged(name, digest)
    if not source.is_dir():
        return error
    path = source / BLOBS / digest.removeprefix("sha256:")
    return CheckFailedError(
        replace(problem, fix=f"remove {path}, and {problem.fix}") for problem in error.problems
    )


def _remove_others(target: Path, left: Sequence[Content]) -> None:
    """Remove what an image left that has another digest now, and halves of blobs."""
    digests = {digest for one in left for digest in one.blobs}
    for path in (target / BLOBS).iterdir():
        if f"sha256:{path.name}" not in digests:
            path.unlink()
    papers = {_file_of(one) for one in left}
    for path in (*target.glob(f"{RECEIPTS}/*"), *target.glob(f"{SBOMS}/*")):
        if path.name not in papers:
            path.unlink()


def _save_archive(images: Sequence[Content], papers: Mapping[str, Papers], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not _begins_as_archive(target):
        what = f"{target} exists, and imagefactory save has not written it"
        raise fail(InputError, "layout-foreign", what, fix="remove it, or name another file")
    small = {
        MARK: VERSION,
        INDEX: _index([*map(_row, images)]),
        DOCKER: _docker_rows(images),
        **_papers(images, papers),
    }
    with _written(target) as out, tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in small.items():
            archive.addfile(_header(name, len(data)), io.BytesIO(data))
        for digest, one in _owners(images).items():
            header = _header(f"{BLOBS}/{digest.removeprefix('sha256:')}", one.blobs[digest])
            with one.store.open(digest) as source:
                reader = _Hashing(source, digest, one.name)
                archive.addfile(header, reader)
                reader.check()


def _begins_as_archive(target: Path) -> bool:
    """Whether a file is an archive that was written here, of which the rest may have been lost."""
    try:
        with tarfile.open(target, "r:") as archive:
            first = archive.next()
    except (OSError, tarfile.TarError):
        return False
    return first is not None and first.name == MARK


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header


def _papers(images: Sequence[Content], papers: Mapping[str, Papers]) -> dict[str, bytes]:
    found = {}
    for one in images:
        own = papers.get(one.digest, Papers())
        if own.receipt is not None:
            found[f"{RECEIPTS}/{_file_of(one)}"] = own.receipt
        if own.sbom is not None:
            found[f"{SBOMS}/{_file_of(one)}"] = own.sbom
    return found


def _file_of(image: Content) -> str:
    return f"{image.digest.replace(':', '-')}.json"


def _row(image: Content) -> dict[str, Any]:
    return {
        "mediaType": image.manifests[image.digest],
        "digest": image.digest,
        "size": image.blobs[image.digest],
        "annotations": layouts.names_of(image.name),
    }


def _index(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The index of a layout. Where tags of several repositories are equal, they are in full."""
    names = [_name(row) for row in rows]
    tags = [name.rpartition(":")[2] for name in names]
    named = []
    for row, name, tag in zip(rows, names, tags, strict=True):
        shown = name if tags.count(tag) > 1 else tag
        named.append({**row, "annotations": {**layouts.names_of(name), layouts.TAG: shown}})
    return strict_json.dumps({"schemaVersion": 2, "manifests": named})


def _docker_rows(images: Sequence[Content]) -> bytes:
    rows = []
    for one in images:
        with one.store.open(one.image_manifest) as file:
            row = json.load(file)
        parts = [row["config"]["digest"], *(layer["digest"] for layer in row["layers"])]
        config, *layers = (f"{BLOBS}/{digest.removeprefix('sha256:')}" for digest in parts)
        rows.append({"Config": config, "RepoTags": [one.name], "Layers": layers})
    return strict_json.dumps(rows)


def _rows_of(target: Path) -> list[dict[str, Any]]:
    """The images that a folder has: none before its first index. Raises InputError."""
    index = _text_of(target / INDEX)
    try:
        return [row for row in _rows(index) if _name(row)] if index is not None else []
    except _NO_INDEX:
        # what it lists would be removed as blobs that nothing needs
        what = f"{target} has an {INDEX} that cannot be read, or only a part of it"
        fix = "name an empty or a new folder"
        raise fail(InputError, "layout-foreign", what, fix=fix) from None


def _rows(index: bytes) -> list[dict[str, Any]]:
    """The images in an index. Raises one of _NO_INDEX."""
    return [{**row, "digest": str(row["digest"])} for row in json.loads(index)["manifests"]]


def _name(row: Mapping[str, Any]) -> str:
    """The tag of an image in an index; empty if it is not in full there."""
    annotations = row.get("annotations")
    found = annotations if isinstance(annotations, dict) else {}
    tag = str(found.get(layouts.TAG) or "")
    return layouts.short(str(found.get(layouts.FULL_NAME) or (tag if ":" in tag else "")))


def read(source: Path) -> Saved:
    """Read a layout, and check the content of every blob.

    Raises InputError ``layout-missing`` for what is none, CheckFailedError with all that is wrong
    with the images in it.
    """
    try:
        if source.is_dir():
            return _read(source, Folder(source / BLOBS), lambda name: _text_of(source / name))
        with tarfile.open(source, "r:") as archive:
            members = {one.name.removeprefix("./"): one for one in archive if one.isreg()}

            def text(name: str) -> bytes | None:
                member = members.get(name)
                found = archive.extractfile(member) if member else None
                return found.read(LARGEST) if found else None

            return _read(source, Archive(archive, members), text)
    except (OSError, tarfile.TarError) as error:
        what = f"{source} is no OCI layout: {getattr(error, 'strerror', None) or error}"
        raise fail(InputError, "layout-missing", what, fix=_FIX) from None


def _read(source: Path, store: Store, text: Callable[[str], bytes | None]) -> Saved:
    try:
        named = [(row["digest"], _name(row)) for row in _rows(text(INDEX) or b"")]
    except _NO_INDEX:
        what = f"{source} is no OCI layout: it has no {INDEX}, or only a part of it"
        raise fail(InputError, "layout-missing", what, fix=_FIX) from None
    if not named or not all(name for _, name in named):
        what = f"{source} has an image without a name" if named else f"{source} has no image"
        raise fail(InputError, "layout-unnamed", what, fix=_FIX)
    images: list[Content] = []
    problems: list[Problem] = []
    for digest, name in named:
        try:
            images.append(contents.read(store, digest, name))
        except CheckFailedError as error:
            problems += error.problems
    blobs = _owners(images)
    problems += [
        problem
        for digest, one in blobs.items()
        if _hash_of(store, digest) != digest
        for problem in _damaged_in(source, one.name, digest).problems
    ]
    if problems:
        raise CheckFailedError(replace(problem, where=str(source)) for problem in problems)
    found = {one.digest: text(f"{RECEIPTS}/{_file_of(one)}") for one in images}
    return Saved(
        images=tuple(images),
        receipts={digest: data for digest, data in found.items() if data},
        size=sum(one.blobs[digest] for digest, one in blobs.items()),
    )


def _hash_of(store: Store, digest: str) -> str:
    found = hashlib.sha256()
    with store.open(digest) as file:
        for piece in chunks(file):
            found.update(piece)
    return f"sha256:{found.hexdigest()}"


def _text_of(path: Path) -> bytes | None:
    return files.read(path, LARGEST) if path.exists() else None
