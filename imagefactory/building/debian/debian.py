"""Assembles a base image from ``.deb`` files: no root, no engine, none of the image's programs.

    package -> merge -> scripts -> actions -> database -> layout

reads each package, lays their files over each other, checks that the maintainer scripts are known,
does natively what they do, records the packages as installed, and writes an OCI image layout. The
same packages give the same bytes on any machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from imagefactory.building.debian import actions, database, layout, merge, package, scripts
from imagefactory.building.debian.package import Package
from imagefactory.building.debian.system import System
from imagefactory.errors import InputError, Problem
from imagefactory.system.platforms import Platform

#: The tag of the image in its layout.
TAG = "base"
_SOURCES = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: {suite} {suite}-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: {suite}-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A base image on disk.

    Attributes:
        folder: an OCI image layout with one image, tagged ``base``.
        digest: of its manifest; the same wherever the same packages are assembled.
        layer: the digest of its only layer, which is not compressed.
        size: of that layer, in bytes.
    """

    folder: Path
    digest: str
    layer: str
    size: int

    @property
    def context(self) -> str:
        """What a build context of Buildx calls the image."""
        return f"oci-layout://{self.folder}@{self.digest}"


def assemble(
    files: Sequence[Path], *, platform: Platform, suite: str, epoch: int, folder: Path
) -> Assembled:
    """Install the packages in ``files`` into a new image for ``platform``, written to ``folder``.

    ``suite`` is what apt in the image is set up for; ``epoch`` the date of every file, in seconds.
    An existing ``folder`` is replaced when the new one is complete. Raises InputError naming what
    is wrong: a damaged package, one for another architecture, two that disagree about a file, a
    maintainer script that was not reviewed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as work:
        packages = read_all(files, Path(work))
        check(packages, platform)
        reviews = scripts.table()
        scripts.check(packages, reviews)
        system = System(
            tree=merge.merge(packages),
            packages={each.name: each for each in packages},
            platform=platform,
            suite=suite,
            epoch=epoch,
        )
        actions.run(system, reviews)
        actions.link_libraries(system)
        _finish(system)
        database.write(system)
        made = Path(work) / "layout"
        history = f"Debian {suite}: {len(packages)} packages"
        digest, layer, size = layout.write(
            system.tree, made, platform=platform, epoch=epoch, history=history, tag=TAG
        )
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return Assembled(folder=folder, digest=digest, layer=layer, size=size)


def read_all(files: Sequence[Path], work: Path) -> list[Package]:
    """The packages, by name. Decompressing needs nearly all of the time, and runs in parallel."""
    largest = sorted(files, key=lambda file: (-file.stat().st_size, file.name))
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        numbered = enumerate(largest)
        found = pool.map(lambda item: package.read(item[1], work / f"{item[0]}.tar"), numbered)
        return sorted(found, key=lambda each: each.name)


def check(packages: Sequence[Package], platform: Platform) -> None:
    """Raise InputError for packages of another architecture, or that are there twice."""
    problems = [
        Problem(
            code="deb-architecture",
            what=f"{each.name} is for {each.arch}, not for {platform.arch}",
            where=str(each.file),
        )
        for each in packages
        if each.arch not in {"all", platform.arch}
    ]
    problems += [
        Problem(
            code="deb-twice",
            what=f"{one.name} is there twice: {one.fields['Version']}, {two.fields['Version']}",
            where=str(two.file),
        )
        for one, two in itertools.pairwise(packages)
        if one.name == two.name
    ]
    if problems:
        raise InputError(problems)


def _finish(system: System) -> None:
    """What an installer adds that belongs to no package."""
    tree = system.tree
    tree.file("etc/machine-id", "")
    sources = _SOURCES.format(suite=system.suite)
    tree.file("etc/apt/sources.list.d/debian.sources", sources)
    for name in ("dev", "proc", "sys"):
        tree.folder(name)
    tree.folder("tmp", mode=0o1777)
