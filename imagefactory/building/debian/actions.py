"""Does natively what reviewed maintainer scripts do to a new system. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from imagefactory.building.debian import accounts, alternatives, certificates, linker
from imagefactory.building.debian.package import Package
from imagefactory.building.debian.scripts import INSTALLING, Table, steps
from imagefactory.building.debian.system import Diversion, System
from imagefactory.errors import InputError, fail

_LOCAL_CERTIFICATES = "usr/local/share/ca-certificates/"


def run(system: System, reviews: Table) -> None:
    """Do what the scripts of the packages of ``system`` do, per ``reviews``.

    Raises InputError if the table and the packages do not match.
    """
    found: list[alternatives.Alternative] = []
    # groups first, because other steps need their numbers, and their passwords when all are there
    order = {"base-passwd": -1, "passwd": 1}
    for package in sorted(
        system.packages.values(), key=lambda each: (order.get(each.name, 0), each.name)
    ):
        for step in steps(package, reviews):
            _do(system, package, step)
        found += _alternatives(package)
    alternatives.install(system.tree, found)


def _do(system: System, package: Package, step: tuple[str, ...]) -> None:
    filled = (word.format_map(system.names) if "{" in word else word for word in step)
    name, *arguments = filled
    try:
        STEPS[name](system, package, *arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise fail(
            InputError,
            "deb-action",
            f"{' '.join(step)!r} of {package.name} cannot be done: {error}",
            fix="report this: the reviewed table does not match the package",
        ) from error


def _alternatives(package: Package) -> list[alternatives.Alternative]:
    scripts = (package.script(name) or "" for name in INSTALLING)
    try:
        return [each for script in scripts for each in alternatives.parse(script)]
    except ValueError as error:
        raise fail(
            InputError, "deb-alternatives", str(error), where=f"the scripts of {package.name}"
        ) from error


def link_libraries(system: System) -> None:
    """Do what ldconfig does, when all libraries are there."""
    tree = system.tree
    for path, target in linker.missing_links(tree, system.platform).items():
        tree.symlink(path, target, package="libc-bin")
    version = system.libc_bin
    if version:
        before = tree.find(linker.CACHE)
        old = before.read() if before else b""
        cache = linker.make(tree, system.platform, libc_bin=version, old=old)
        tree.file(linker.CACHE, cache, package="libc-bin")


def _link(system: System, package: Package, path: str, target: str) -> None:
    if path not in system.tree:
        system.tree.symlink(path, target, package=package.name)


def _replace(system: System, package: Package, path: str, target: str) -> None:
    """Make a link of a folder, and move what packages have in it to the link's target."""
    inside = list(system.tree.below(f"{path}/"))
    system.tree.remove(path)
    system.tree.symlink(path, target, package=package.name)
    for name, entry in inside:
        if system.tree.find(name) is None:
            system.tree.put(system.tree.real(name), entry)


def _own(system: System, package: Package, path: str, mode: str, group: str) -> None:
    """Change the mode and the group of a file that the package has."""
    name = system.tree.real(path)
    entry = system.tree.entries[name]
    gid = accounts.group_id(system.tree, group)
    changed = replace(entry, mode=int(mode, 8), gid=gid, package=package.name, inode="")
    system.tree.put(name, changed)


def _copy(system: System, package: Package, source: str, path: str) -> None:
    system.tree.copy(source, path, package=package.name)


def _folder(system: System, package: Package, path: str, mode: str, group: str = "root") -> None:
    gid = accounts.group_id(system.tree, group)
    system.tree.folder(path, mode=int(mode, 8), gid=gid, package=package.name)


def _file(
    system: System, package: Package, path: str, mode: str, group: str, text: str = ""
) -> None:
    if system.tree.find(path) is None:
        gid = accounts.group_id(system.tree, group)
        system.tree.file(path, text, mode=int(mode, 8), gid=gid, package=package.name)


def _ccache(system: System, package: Package) -> None:
    """Make ccache's links that have the names of compilers."""
    pattern = rf"((c89-|c99-|{system.names['triplet']}-)?(gcc|g\+\+)(-\d+)?)"
    names = {
        path.removeprefix("usr/bin/")
        for path, _ in system.tree.below("usr/bin/")
        if re.fullmatch(f"usr/bin/{pattern}", path)
    }
    # alternatives, which are made later
    names |= {name for name, own in (("cc", "gcc"), ("c++", "g++")) if own in names}
    for name in names:
        system.tree.symlink(f"usr/lib/ccache/{name}", "../../bin/ccache", package=package.name)


def _certificates(system: System, _: Package) -> None:
    if any(path.endswith(".crt") for path, _ in system.tree.below(_LOCAL_CERTIFICATES)):
        raise ValueError(f"the image has certificates of its own in /{_LOCAL_CERTIFICATES}")
    certificates.install(system.tree)


def _divert(system: System, package: Package, path: str, to: str) -> None:
    system.diversions.append(Diversion(path=path, to=to, package=package.name))


#: What the first word of a step in the table does.
STEPS: Mapping[str, Callable[..., None]] = {
    "link": _link,
    "replace": _replace,
    "own": _own,
    "copy": _copy,
    "folder": _folder,
    "file": _file,
    "divert": _divert,
    "ccache": _ccache,
    "accounts": lambda system, _: accounts.create(system),
    "group": lambda system, _, name: accounts.add_group(system, name),
    "shadow": lambda system, _: accounts.shadow(system),
    "user": lambda system, _, name: accounts.require_user(system, name),
    "shells": lambda system, _: accounts.shells(system),
    "pam": lambda system, _: accounts.pam(system),
    "certificates": _certificates,
    "architecture": lambda system, package: _file(
        system, package, "var/lib/dpkg/arch-native", "0644", "root", f"{system.platform.arch}\n"
    ),
}
