"""dpkg's database of installed packages. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator

from imagefactory.building.debian.merge import merged
from imagefactory.building.debian.package import Package
from imagefactory.building.debian.system import System
from imagefactory.building.tree import Tree

_ROOT = "var/lib/dpkg"
STATUS = f"{_ROOT}/status"
_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "config"})
#: The order in which dpkg writes fields; it leaves others where they are, after these.
_ORDER = (
    *("Package", "Essential", "Protected", "Status", "Priority", "Section", "Installed-Size"),
    *("Origin", "Maintainer", "Bugs", "Architecture", "Multi-Arch", "Source", "Version"),
    *("Replaces", "Provides", "Depends", "Pre-Depends", "Recommends", "Suggests", "Breaks"),
    *("Conflicts", "Enhances", "Conffiles", "Description"),
)


def write(system: System) -> None:
    """Record every package as installed and configured, with no more than the files it has.

    The lists of files and checksums leave out what the image leaves out, so that ``dpkg --verify``
    does not report it as missing.
    """
    tree = system.tree
    packages = sorted(system.packages.values(), key=lambda package: package.name)
    for package in packages:
        _write_info(tree, package)
    status = "".join(_status(tree, package) for package in packages)
    tree.file(STATUS, status, package="dpkg")
    tree.file(f"{_ROOT}/info/format", "1\n", package="dpkg")
    diverted = "".join(f"{d.path}\n{d.to}\n{d.package}\n" for d in system.diversions)
    tree.file(f"{_ROOT}/diversions", diverted, package="dpkg")
    for name in ("available", "statoverride"):
        tree.file(f"{_ROOT}/{name}", "", package="dpkg")
    for name in ("updates", "parts", "alternatives"):
        tree.folder(f"{_ROOT}/{name}", package="dpkg")
    _write_triggers(tree, packages)


def add(system: System) -> None:
    """Record the packages of ``system`` as installed, beside those that its files list already."""
    tree = system.tree
    packages = sorted(system.packages.values(), key=lambda package: package.name)
    for package in packages:
        _write_info(tree, package)
    rows = [(_field(one, "Package"), one) for one in paragraphs(tree.raw(STATUS))]
    kept = [row for row in rows if row[0] not in system.packages or _is_foreign(row[1], system)]
    kept += [(package.name, _status(tree, package)) for package in packages]
    status = "".join(text for _, text in sorted(kept))
    tree.file(STATUS, status.encode(errors="surrogateescape"), package="dpkg")
    diverted = "".join(f"{d.path}\n{d.to}\n{d.package}\n" for d in system.diversions)
    tree.file(f"{_ROOT}/diversions", diverted, package="dpkg")
    _write_triggers(tree, packages)


def paragraphs(status: str) -> list[str]:
    """The paragraphs of packages in dpkg's status, each with the empty line after it."""
    return [f"{one.strip(chr(10))}\n\n" for one in status.split("\n\n") if one.strip()]


def _field(paragraph: str, name: str) -> str:
    found = re.search(rf"(?m)^{name}: (.+)$", paragraph)
    return found[1] if found else ""


def _is_foreign(paragraph: str, system: System) -> bool:
    """Whether a package is of another architecture than the system."""
    return _field(paragraph, "Architecture") not in {"all", system.platform.arch}


def _write_info(tree: Tree, package: Package) -> None:
    info = f"{_ROOT}/info/{package.database_name}"
    for name, data in package.control.items():
        content = _kept_sums(tree, data) if name == "md5sums" else data
        mode = 0o755 if name in _SCRIPTS else 0o644
        tree.file(f"{info}.{name}", content, mode=mode, package="dpkg")
    kept = [path for path in package.paths if path == "/." or merged(path[1:]) in tree]
    tree.file(f"{info}.list", "".join(f"{path}\n" for path in kept), package="dpkg")


def _kept_sums(tree: Tree, data: bytes) -> bytes:
    lines = data.decode().splitlines(keepends=True)
    return "".join(line for line in lines if merged(line[34:].rstrip("\n")) in tree).encode()


def _status(tree: Tree, package: Package) -> str:
    """The paragraph of an installed package."""
    fields: dict[str, str] = {**package.fields, "Status": "install ok installed"}
    conffiles = "".join(f"\n {line}" for line in _conffiles(tree, package))
    if conffiles:
        fields["Conffiles"] = conffiles
    known = [name for name in _ORDER if name in fields]
    names = [*known, *(name for name in fields if name not in _ORDER)]
    text = "".join(f"{name}:{_spaced(fields[name])}\n" for name in names)
    return text + "\n"


def _spaced(value: str) -> str:
    return value if value.startswith("\n") else f" {value}"


def _conffiles(tree: Tree, package: Package) -> Iterator[str]:
    for line in package.control.get("conffiles", b"").decode().splitlines():
        *flags, path = line.split()
        if "remove-on-upgrade" in flags:
            yield f"{path} newconffile remove-on-upgrade"
        elif path.startswith("/"):
            entry = tree.find(path[1:])
            content = entry.read() if entry else b""
            yield f"{path} {hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def _write_triggers(tree: Tree, packages: Iterable[Package]) -> None:
    """Who is interested in which trigger. Nothing is pending: everything is configured."""
    root = f"{_ROOT}/triggers"
    names = {package.name for package in packages}
    files = _others(tree, f"{root}/File", names)
    named: dict[str, list[str]] = {}
    for package in packages:
        for line in package.control.get("triggers", b"").decode().splitlines():
            directive, _, trigger = line.partition("#")[0].strip().partition(" ")
            if not directive.startswith("interest"):
                continue
            suffix = "/noawait" if directive == "interest-noawait" else ""
            if trigger.startswith("/"):
                files.append(f"{trigger} {package.name}{suffix}\n")
            else:
                known = named.setdefault(trigger, _others(tree, f"{root}/{trigger}", names))
                known.append(f"{package.name}{suffix}\n")
    tree.file(f"{root}/File", "".join(sorted(files)), package="dpkg")
    tree.file(f"{root}/Unincorp", "", package="dpkg")
    for trigger, lines in named.items():
        tree.file(f"{root}/{trigger}", "".join(lines), package="dpkg")


def _others(tree: Tree, path: str, names: Collection[str]) -> list[str]:
    """The lines of a list of triggers that are about other packages."""
    if tree.find(path) is None:
        return []
    lines = tree.text(path).splitlines(keepends=True)
    return [line for line in lines if line.split()[-1].partition("/")[0] not in names]
