"""Adds Debian packages to an image of a registry: one layer, made without running its programs.

What the image has is known from its skeleton: all of its paths, and the files that package tools
keep. The result is an image with only what is new or different; a build copies it over the image.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from imagefactory.building.debian import actions, database, debian, layout, merge, scripts
from imagefactory.building.debian.debian import Assembled
from imagefactory.building.debian.system import Diversion, System
from imagefactory.building.tree import Entry, Kind, Tree, permissions
from imagefactory.errors import InputError, Problem, fail
from imagefactory.locking.debian.skeleton import Node, Skeleton
from imagefactory.system.platforms import Platform

_INFO = "var/lib/dpkg/info"
#: Conffiles in dpkg's status: a path and the hash that its package gave it.
_CONFFILE = re.compile(r"^ (/\S+) ([0-9a-f]{32})\b", re.MULTILINE)


def assemble(
    files: Sequence[Path], image: Skeleton, *, platform: Platform, epoch: int, folder: Path
) -> Assembled:
    """Install the packages in ``files`` over ``image``; the new layer is written to ``folder``.

    ``epoch`` is the date of every file, in seconds. Files that an older version of a package had,
    and the new one does not, stay. Raises InputError as ``debian.assemble`` does, and for an image
    without a merged /usr.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as work:
        packages = debian.read_all(files, Path(work))
        debian.check(packages, platform)
        reviews = scripts.table()
        scripts.check(packages, reviews)
        tree = _tree(image)
        before = dict(tree.entries)
        system = System(
            tree=tree,
            packages={each.name: each for each in packages},
            platform=platform,
            suite=image.distribution.get("VERSION_CODENAME", ""),
            epoch=epoch,
            diversions=list(_diversions(tree)),
            present=_versions(tree),
        )
        _lay(system, merge.merge(packages))
        actions.run(system, reviews)
        actions.link_libraries(system)
        database.add(system)
        made = Path(work) / "layout"
        digest, layer, size = layout.write(
            _new(tree, before),
            made,
            platform=platform,
            epoch=epoch,
            history=f"{len(packages)} packages",
            tag=debian.TAG,
        )
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return Assembled(folder=folder, digest=digest, layer=layer, size=size)


def _tree(image: Skeleton) -> Tree:
    """The image's paths, each with the package that it is from."""
    tree = Tree()
    tree.entries = {path: _entry(node) for path, node in sorted(image.nodes.items())}
    if tree.real("bin") != "usr/bin":
        what = "the image has no merged /usr: its /bin is not a link to /usr/bin"
        fix = "use a newer image: Debian 12, Ubuntu 22.04 or later"
        raise fail(InputError, "base-not-merged", what, fix=fix)
    for path, entry in tree.below(f"{_INFO}/"):
        if path.endswith(".list"):
            package = path.removeprefix(f"{_INFO}/").removesuffix(".list").partition(":")[0]
            for line in entry.read().decode(errors="surrogateescape").splitlines():
                _own(tree, line.strip("/"), package)
    return tree


def _entry(node: Node) -> Entry:
    header = node.header
    kind = Kind.FOLDER if header.isdir() else Kind.SYMLINK if header.issym() else Kind.FILE
    return Entry(
        kind=kind,
        mode=permissions(header.mode),
        uid=header.uid,
        gid=header.gid,
        content=node.content,
        target=header.linkname if kind is Kind.SYMLINK else "",
    )


def _own(tree: Tree, path: str, package: str) -> None:
    name = tree.real(path) if path not in tree else path
    entry = tree.entries.get(name)
    if entry and entry.kind is not Kind.FOLDER:
        tree.entries[name] = replace(entry, package=package)


def _versions(tree: Tree) -> dict[str, str]:
    """Package -> version of those that are installed in the image."""
    rows = database.paragraphs(tree.raw(database.STATUS))
    found = (dict(re.findall(r"(?m)^(Package|Status|Version): (.+)$", row)) for row in rows)
    return {
        row["Package"]: row["Version"]
        for row in found
        if row.get("Status", "").endswith(" ok installed")
    }


def _diversions(tree: Tree) -> list[Diversion]:
    lines = tree.raw("var/lib/dpkg/diversions").splitlines()
    rows = zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    return [Diversion(path=path, to=to, package=package) for path, to, package in rows]


def _lay(system: System, new: Tree) -> None:
    """Lay the files of packages over those of the image."""
    tree = system.tree
    replaced = {name: merge.replaced(package) for name, package in system.packages.items()}
    conffiles = _changed_conffiles(system)
    diverted = {one.path: one for one in system.diversions}
    clashes = []
    for path, entry in new:
        divert = diverted.get(f"/{path}")
        to = divert.to.strip("/") if divert and divert.package != entry.package else path
        parent, _, name = to.rpartition("/")
        real = "/".join(part for part in (tree.real(parent), name) if part)
        old = tree.entries.get(real)
        if old is not None and (_stays(old, entry, tree, real) or real in conffiles):
            continue
        if old is None or old.package in {"", *replaced.get(entry.package, ())}:
            tree.put(real, entry)
        elif entry.package not in replaced.get(old.package, ()):
            clashes.append(_clash(real, old, entry))
    if clashes:
        raise InputError(clashes)


def _stays(old: Entry, new: Entry, tree: Tree, path: str) -> bool:
    """Whether what the image has is kept: folders, links to folders in their place, equal links."""
    if new.kind is Kind.SYMLINK:
        return old.kind is Kind.SYMLINK and old.target == new.target
    if new.kind is not Kind.FOLDER:
        return False
    found = tree.find(path)
    return old.kind is Kind.FOLDER or (found is not None and found.kind is Kind.FOLDER)


def _changed_conffiles(system: System) -> set[str]:
    """The configuration files that the image has changed: dpkg keeps them in an upgrade, too."""
    tree, found = system.tree, set()
    for paragraph in database.paragraphs(tree.raw(database.STATUS)):
        for path, known in _CONFFILE.findall(paragraph):
            entry = tree.find(path.strip("/"))
            content = entry.read() if entry and entry.kind is Kind.FILE else b""
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != known:
                found.add(tree.real(path.strip("/")))
    return found


def _clash(path: str, old: Entry, new: Entry) -> Problem:
    what = f"/{path} of {new.package} is a file of {old.package} in the image"
    fix = f"leave {new.package} out of the base's packages, or use another image"
    return Problem(code="deb-file-conflict", what=what, fix=fix)


def _new(tree: Tree, before: Mapping[str, Entry]) -> Tree:
    """What is not in the image, or differs there, with the folders that it is in."""
    found = Tree()
    for path, entry in tree:
        if before.get(path) is not entry:
            found.entries[path] = entry
            while path := path.rpartition("/")[0]:
                found.entries[path] = tree.entries[path]
    return found
