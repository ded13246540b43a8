"""Lays packages over each other, as dpkg unpacks them into a system with a merged /usr. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from imagefactory.building.debian.package import Package
from imagefactory.building.tree import Entry, Kind, Tree
from imagefactory.errors import InputError, Problem

#: Folders of the root that are links into /usr.
_MERGED = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32"})
#: Documentation, translations and static libraries that no image needs, and a folder for apt's
#: downloads, which apt makes itself.
EXCLUDED = (
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/bin/*-lto-dump-*",
    "usr/lib/*/lib*san.a",
    "usr/lib/*/libpython*.a",
    "var/lib/apt/lists/*",
)
#: Licences stay.
INCLUDED = ("usr/share/doc/*/copyright",)


def merge(packages: Sequence[Package]) -> Tree:
    """All files of ``packages`` but those that are excluded.

    Raises InputError naming every path that two packages fill with different things, unless one of
    the packages declares that it replaces the other.
    """
    tree = Tree()
    clashes: list[Problem] = []
    allowed = {package.name: replaced(package) for package in packages}
    # base-files first: the owner and mode of a folder are those of the first package that has it
    for package in sorted(packages, key=lambda each: (each.name != "base-files", each.name)):
        for path, entry in package.entries.items():
            clash = _add(tree, path, entry, allowed)
            clashes += [clash] if clash else []
    clashes += _misplaced(tree)
    if clashes:
        raise InputError(clashes)
    return tree


def merged(path: str) -> str:
    """``path`` (without a leading slash) where it is in a system with a merged /usr."""
    return f"usr/{path}" if path.partition("/")[0] in _MERGED else path


def is_excluded(path: str, entry: Entry) -> bool:
    """Whether ``path`` is left out of images. Links between licences are kept as licences are."""
    if not any(fnmatchcase(path, pattern) for pattern in EXCLUDED):
        return False
    if any(fnmatchcase(path, pattern) for pattern in INCLUDED):
        return False
    return not (entry.kind is Kind.SYMLINK and re.fullmatch(r"usr/share/doc/[^/]+", path))


def _add(
    tree: Tree, path: str, entry: Entry, replaced: Mapping[str, frozenset[str]]
) -> Problem | None:
    root = path.partition("/")[0]
    if root in _MERGED:
        if root not in tree:
            tree.symlink(root, f"usr/{root}", package="base-files")
        if path == root and entry.kind is Kind.SYMLINK:
            return None
    path = merged(path)
    if is_excluded(path, entry):
        return None
    old = tree.entries.get(path)
    if old is None or old.package in replaced[entry.package]:
        tree.put(path, entry)
    elif not (_same(old, entry) or entry.package in replaced[old.package]):
        return Problem(
            code="deb-file-conflict",
            what=f"/{path} is in {old.package} and, different, in {entry.package}",
            fix="leave one of the two packages out of the base",
        )
    return None


def _misplaced(tree: Tree) -> Iterator[Problem]:
    """Paths below something else than a folder, which an archive cannot hold."""
    for path, entry in tree:
        parent = tree.entries.get(path.rpartition("/")[0])
        if parent is not None and parent.kind is not Kind.FOLDER:
            yield Problem(
                code="deb-file-conflict",
                what=f"/{path} of {entry.package} is below a {parent.kind} of {parent.package}",
                fix="leave one of the two packages out of the base",
            )


def _same(one: Entry, other: Entry) -> bool:
    if one.kind is Kind.FOLDER and other.kind is Kind.FOLDER:
        return True
    facts = [(entry.kind, entry.mode, entry.uid, entry.gid, entry.target) for entry in (one, other)]
    return facts[0] == facts[1] and one.size == other.size and one.read() == other.read()


def replaced(package: Package) -> frozenset[str]:
    """The packages whose files ``package`` may overwrite, whatever their version."""
    names = re.findall(r"[a-z0-9][a-z0-9+.-]+(?=\s*(?:,|$))", package.fields.get("Replaces", ""))
    return frozenset({*names, package.name})
