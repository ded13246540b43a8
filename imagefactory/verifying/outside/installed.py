"""What the install layers of an image have to contain: the files of the locked wheels, less those
that trim.py removes."""

from __future__ import annotations

import base64
import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from installer.scripts import Script

from imagefactory.building.stack import trim, wheels
from imagefactory.inbuild.layer import SITE, VENV
from imagefactory.locking.lock import LockedToolchain, Wheel
from imagefactory.verifying.outside.inventory import Inventory, Member, sha256
from imagefactory.verifying.outside.tree import Layer
from imagefactory.verifying.outside.want import FILE, PROGRAM, Want, Wants

_SHEBANG = f"#!/{VENV}/bin/python".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """Where packages are installed: the version, such as 3.13, and where the compilers are."""

    version: str
    cuda_home: str | None

    @property
    def site(self) -> str:
        """site-packages, relative to the image's root."""
        return SITE.format(python=self.version)


@dataclass(frozen=True, slots=True)
class _File:
    """An installed file: its path in the image, and the member of a wheel that it is."""

    path: str
    name: str
    member: Member


def install(
    wants: Wants,
    wheels: Sequence[Wheel],
    inventories: Mapping[str, Inventory],
    python: Python,
    tree: Layer,
) -> list[str]:
    """Add the files of one install layer to ``wants``; returns the paths that trim.py removes.

    ``tree`` is the whole image, in which RECORDs are compared with the files that they list.
    """
    files: list[_File] = []
    for wheel in wheels:
        inventory = inventories[wheel.sha256]
        own = [
            _File(_target(name, inventory.name, python), name, member)
            for name, member in inventory.files.items()
        ]
        files += own
        for file in own:
            wants.add(file.path, _want(file, wheel))
        for folder in inventory.folders:
            wants.allow(_target(folder, inventory.name, python))
        generated = _generated(wants, wheel, inventory, python)
        _record(wants, wheel, inventory, python, own, generated, tree)
    return _trim(wants, files, python)


def _target(name: str, project: str, python: Python) -> str:
    """Where a member of a wheel is installed."""
    first, _, rest = name.partition("/")
    if not first.endswith(".data") or not rest:
        return f"{python.site}/{name}"
    scheme, _, inside = rest.partition("/")
    folder = {
        "purelib": python.site,
        "platlib": python.site,
        "scripts": f"{VENV}/bin",
        "data": VENV,
        "headers": f"{VENV}/include/site/python{python.version}/{project}",
    }.get(scheme, f"{python.site}/{first}/{scheme}")
    return f"{folder}/{inside}" if inside else folder


def _want(file: _File, wheel: Wheel) -> Want:
    member, in_bin = file.member, file.path.startswith(f"{VENV}/bin/")
    hashes = frozenset({member.sha256} - {""})
    common = {"origin": f"wheel {wheel.name}", "member": file.name, "wheel": wheel.sha256}
    if in_bin and member.size <= 1 << 20:

        def script(text: bytes) -> str:
            return _script_fault(text, member.sha256)

        return Want(**common, modes=(PROGRAM,), reading=script)  # type: ignore[arg-type]
    mode = PROGRAM if member.executable or in_bin else FILE
    return Want(**common, modes=(mode,), hashes=hashes, size=member.size)  # type: ignore[arg-type]


def _script_fault(text: bytes, wanted: str) -> str:
    """What is wrong with a script of a wheel, whose ``#!python`` is replaced."""
    rest = text.removeprefix(_SHEBANG)
    sources = [text, b"#!python" + rest, b"#!pythonw" + rest]
    return "" if wanted in map(sha256, sources) else "has other content"


def _generated(wants: Wants, wheel: Wheel, inventory: Inventory, python: Python) -> dict[str, Want]:
    """Files that are written when the wheel is installed, by path."""
    info = f"{python.site}/{_info(inventory)}"
    made = {f"{info}/{name}": (data, FILE) for name, data in wheels.ADDED.items()}
    for name, target in inventory.scripts.items():
        module, _, function = target.partition(":")
        script = Script(name, module.strip(), function.strip(), "console")
        made[f"{VENV}/bin/{name}"] = (script.generate(wheels.PYTHON, "posix")[1], PROGRAM)
    found = {
        path: Want(
            origin=f"wheel {wheel.name}",
            modes=(mode,),
            hashes=frozenset({sha256(data)}),
            size=len(data),
        )
        for path, (data, mode) in made.items()
    }
    for path, want in found.items():
        wants.add(path, want)
    return found


def _info(inventory: Inventory) -> str:
    return next(
        name.partition("/")[0]
        for name in inventory.files
        if name.endswith(".dist-info/RECORD") and name.count("/") == 1
    )


def _record(
    wants: Wants,
    wheel: Wheel,
    inventory: Inventory,
    python: Python,
    own: Sequence[_File],
    generated: Mapping[str, Want],
    tree: Layer,
) -> None:
    """RECORD is written anew when a wheel is installed and trimmed: its rows are judged."""
    path = f"{python.site}/{_info(inventory)}/RECORD"
    known = {file.path: file.member for file in own}
    claims = {file.path: inventory.sizes.get(file.name) for file in own}

    def fault(text: bytes) -> str:
        try:
            rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
        except (ValueError, csv.Error):
            return "cannot be read"
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        if out.getvalue().encode() != text or any(len(row) != 3 for row in rows):
            return "is not written as the build writes it"
        listed = {_resolve(f"{python.site}/{row[0]}"): row for row in rows}
        present = {name for name in (*known, *generated) if name in tree.entries}
        ghosts = {_resolve(_target(name, inventory.name, python)) for name in inventory.ghosts}
        other = sorted((set(listed) - ghosts) ^ present)
        if other:
            return f"and the files of the wheel differ: {other[0]}"
        for name, row in listed.items():
            member, claim = known.get(name), claims.get(name)
            if name in tree.entries and not _agrees(row, name, member, claim, tree):
                return f"has a wrong hash or size for {row[0]}"
        return ""

    want = Want(origin=f"wheel {wheel.name}", modes=(FILE,), reading=fault)
    wants.replace(path, want)


def _resolve(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return "/".join(parts)


def _agrees(
    row: Sequence[str], path: str, member: Member | None, claim: str | None, tree: Layer
) -> bool:
    """Whether a row of RECORD is that of the wheel's file, or of the file in the image.

    ``claim`` is the size in the wheel's own RECORD, if it is wrong: the file was stripped since.
    """
    entry = tree.entries[path]
    if not row[1]:
        return path.endswith("/RECORD") or entry.kind == "link" or not (member and member.sha256)
    pairs = {(entry.sha256, str(entry.size))}
    if member:
        pairs.add((member.sha256, claim or str(member.size)))
    return any((_field(digest), size) == (row[1], row[2]) for digest, size in pairs if digest)


def _field(digest: str) -> str:
    return f"sha256={base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b'=').decode()}"


def _trim(wants: Wants, files: Sequence[_File], python: Python) -> list[str]:
    """Apply the rules of trim.py to what is wanted; returns the paths that have to be missing."""
    prefix = f"{python.site}/"
    inside = {
        file.path.removeprefix(prefix): file for file in files if file.path.startswith(prefix)
    }
    gone = []
    for name, file in inside.items():
        home = trim.COMPILERS.search(name) if python.cuda_home else None
        if home:
            folder = "nvvm/bin" if home["name"] == "cicc" else "bin"
            _link(wants, file.path, f"{python.cuda_home}/{folder}/{home['name']}")
        elif _unused(name):
            gone.append(file.path)
            wants.paths.pop(file.path, None)
            wants.absent[file.path] = "is never used, and is left out by the build"
    for name, target in _copies(inside):
        _link(wants, f"{prefix}{name}", target)
    _tests(wants, inside, prefix)
    return gone


def _unused(name: str) -> bool:
    library = name.endswith(".a") and name.rpartition("/")[2] not in trim.LINKED
    return library or name.endswith((".pyc", ".pyo", ".whl"))


def _link(wants: Wants, path: str, target: str) -> None:
    origin = wants.paths[path][0].origin
    wants.replace(path, Want(origin=origin, kind="link", links=(target,)))


def _copies(inside: Mapping[str, _File]) -> list[tuple[str, str]]:
    """Libraries that become links to the same library under its fullest name."""
    same: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, file in inside.items():
        stem, dot, _ = name.partition(".so")
        if dot:
            same[stem, file.member.size].append(name)
    found = []
    for names in same.values():
        real, *others = sorted(names, key=lambda name: (-len(name), name))
        found += [
            (name, real.rpartition("/")[2])
            for name in others
            if inside[name].member.sha256 == inside[real].member.sha256
        ]
    return found


def _tests(wants: Wants, inside: Mapping[str, _File], prefix: str) -> None:
    """Folders of tests stay or go as a whole: which, depends on the source of all other modules."""
    folders: dict[str, list[str]] = defaultdict(list)
    for name in inside:
        folder = trim._tests_folder(name)  # noqa: SLF001 - a new name there rebuilds all layers
        if folder:
            folders[folder].append(name)
    for folder, names in folders.items():
        if any(trim._is_test(name) for name in names):  # noqa: SLF001 - as above
            paths = [f"{prefix}{name}" for name in names]
            wants.together[f"{prefix}{folder}"] = [path for path in paths if path in wants.paths]


def compilers(
    wants: Wants, toolchain: LockedToolchain, inventories: Mapping[str, Inventory], python: Python
) -> None:
    """Add the files of the toolchain, and its links to the libraries in site-packages."""
    home = (python.cuda_home or "").strip("/")
    cuda = _cuda_folder(toolchain, inventories)
    for wheel in toolchain.wheels:
        for name, member in inventories[wheel.sha256].files.items():
            if name.startswith(f"{cuda}/"):
                path = f"{home}/{name.removeprefix(f'{cuda}/')}"
                wants.add(path, _want(_File(path, name, member), wheel))
        for folder in inventories[wheel.sha256].folders:
            if folder.startswith(f"{cuda}/"):
                wants.allow(f"{home}/{folder.removeprefix(f'{cuda}/')}")
    origin = f"toolchain {toolchain.name}"
    wants.add(f"{home}/lib64", Want(origin=origin, kind="link", links=("lib",)))
    own = {path.split("/")[-1] for path in wants.paths if path.startswith(f"{home}/lib/")}
    _links(wants, origin, home, f"{python.site}/{cuda}", own)


def _links(wants: Wants, origin: str, home: str, site: str, own: set[str]) -> None:
    """Headers and libraries that the toolchain lacks, linked as cuda_home.py does."""
    headers = _top(wants, f"{home}/include")
    for name in sorted(_top(wants, f"{site}/include") - headers):
        target = f"/{site}/include/{name}"
        wants.add(f"{home}/include/{name}", Want(origin=origin, kind="link", links=(target,)))
    links: dict[str, list[str]] = defaultdict(list)
    for name in sorted(_top(wants, f"{site}/lib")):
        if name.startswith("lib") and ".so" in name:
            for link in {name, f"{name.partition('.so')[0]}.so"} - own:
                links[link].append(f"/{site}/lib/{name}")
    for link, targets in links.items():
        want = Want(origin=origin, kind="link", links=tuple(targets))
        wants.add(f"{home}/lib/{link}", want)


def _cuda_folder(toolchain: LockedToolchain, inventories: Mapping[str, Inventory]) -> str:
    found = sorted(
        name.removesuffix("/bin/nvcc")
        for wheel in toolchain.wheels
        for name in inventories[wheel.sha256].files
        if name.startswith("nvidia/cu") and name.endswith("/bin/nvcc") and name.count("/") == 3
    )
    return found[0] if found else "nvidia/cu"


def _top(wants: Wants, folder: str) -> set[str]:
    """The names directly in ``folder``."""
    return {
        path.removeprefix(f"{folder}/").partition("/")[0]
        for path in wants.paths
        if path.startswith(f"{folder}/")
    }
