"""What patches make of the files of the locked wheels: applied on this machine, once more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.inbuild import overlay
from imagefactory.locking.lock import Wheel
from imagefactory.matrix.cell import SourceBuild
from imagefactory.patching.patch import Step
from imagefactory.system import temporary
from imagefactory.verifying.outside.inventory import Inventory, Wheels, sha256

#: The project whose wheel may be built with its patches in it.
_BUILT = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """What a series leaves behind.

    Attributes:
        files: SHA-256 and size of every file that it touches, by path below site-packages.
        patches: the paths that each applied patch touches, and those that it creates.
        faults: patches that do not apply.
    """

    files: Mapping[str, tuple[str, int]]
    patches: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    faults: tuple[str, ...]


def apply(
    series: Sequence[Step],
    build: SourceBuild | None,
    wheels: Sequence[Wheel],
    inventories: Mapping[str, Inventory],
    source: Wheels,
    obsolete: Collection[str],
) -> Patched:
    """Apply ``series`` to the files of ``wheels``, without those that are ``obsolete``.

    Raises SetupError if a file of a wheel is not available.
    """
    diffs = [
        (step.patch.name, step.variant.diff)
        for step in series
        if step.variant
        and not step.exempt
        and step.patch.name not in obsolete
        and not (build is not None and step.patch.project == _BUILT)
    ]
    names = {name for _, diff in diffs for name in overlay.touched(diff)}
    with temporary.folder(prefix="imagefactory-patched-") as folder:
        tree = folder / "site-packages"
        tree.mkdir()
        faults = list(_unpack(tree, names, wheels, inventories, source))
        done: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        for name, diff in diffs:
            touched = overlay.touched(diff)
            before = {path for path in touched if (tree / path).is_file()}
            if overlay.git_apply(tree, diff).returncode:
                faults.append(f"patch {name} does not apply to the locked wheels")
                continue
            created = [p for p in touched if p not in before and (tree / p).is_file()]
            done[name] = tuple(touched), tuple(created)
        files = {
            name: (sha256((tree / name).read_bytes()), (tree / name).stat().st_size)
            for name in sorted({path for touched, _ in done.values() for path in touched})
            if (tree / name).is_file()
        }
    return Patched(files=files, patches=done, faults=tuple(faults))


def _unpack(
    tree: Path,
    names: Collection[str],
    wheels: Sequence[Wheel],
    inventories: Mapping[str, Inventory],
    source: Wheels,
) -> list[str]:
    """Write the pristine files ``names`` to ``tree``; returns what is wrong with them."""
    faults = []
    for wheel in wheels:
        files = inventories[wheel.sha256].files
        for name in sorted(set(names) & set(files)):
            data = source.content(wheel, name)
            if files[name].sha256 and sha256(data) != files[name].sha256:
                faults.append(f"{wheel.filename} contradicts its own RECORD about {name}")
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return faults
