"""The files of a build context: lists of wheels, patches, programs, the planned manifest. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from imagefactory import inbuild
from imagefactory.locking.lock import LockedToolchain, Resolution, Wheel
from imagefactory.locking.requirements import requirements_txt
from imagefactory.locking.tags import BUILT
from imagefactory.matrix.cell import Cell, SourceBuild
from imagefactory.patching.patch import Stage, Step
from imagefactory.planning.layers import InstallLayer, split

_INBUILD = Path(inbuild.__file__).parent
#: Packages that planning does not import, only hashes.
_BUILDING = _INBUILD.parent / "building"
_ASSEMBLER, _STACK = _BUILDING / "debian", _BUILDING / "stack"
#: What both use to write layers.
_TREES = (_BUILDING / "tree.py", _BUILDING / "tarball.py", _BUILDING / "blob.py")
_PROOFKIT = tuple(f"proofkit/{path.name}" for path in sorted((_INBUILD / "proofkit").glob("*.py")))
#: All programs that go into the build context, by what is built: a cell's image, a wheel of vLLM
#: with the official binaries or with compiled ones, or an extra.
PROGRAMS = {
    "image": ("layer.py", "patched.py", "overlay.py", *_PROOFKIT, "manifest.py"),
    "official": (
        *("archives.py", "simple_index.py", "install.py", "sources.py"),
        *("overlay.py", *_PROOFKIT, "wheelmaker.py"),
    ),
    "compiled": (
        *("archives.py", "simple_index.py", "install.py", "cuda_home.py", "sources.py"),
        *("overlay.py", *_PROOFKIT, "compiler.py", "wheelmaker.py"),
    ),
    "extra": (
        *("archives.py", "simple_index.py", "install.py", "cuda_home.py", "sources.py"),
        *("compiler.py", "extra.py", "backend.py"),
    ),
}


def assembler() -> str:
    """Hash of the programs that assemble a base from its packages: they decide what is in it."""
    return _programs(_ASSEMBLER)


def stacker() -> str:
    """Hash of the programs that make layers from wheels."""
    return _programs(_STACK)


def _programs(folder: Path) -> str:
    found = sorted(path for path in folder.iterdir() if path.suffix in (".py", ".toml"))
    return key_of({path.name: sha(_bytes(path)) for path in (*found, *_TREES)})


def program_files(kind: str) -> dict[str, bytes]:
    """The programs of ``PROGRAMS[kind]``, in the folder ``factory``."""
    return {f"factory/{name}": _bytes(_INBUILD / name) for name in PROGRAMS[kind]}


@lru_cache(maxsize=4096)
def layers_of(resolution: Resolution) -> list[InstallLayer]:
    """Install layers, computed once for all cells that share a resolution."""
    return split(resolution)


def wheel_lists(resolution: Resolution, toolchain: LockedToolchain | None) -> dict[str, bytes]:
    """Lists of what is installed: for each layer, for the belt and for the toolchain."""
    files = dict(_lists_of(resolution))
    if toolchain:
        files["requirements/toolchain.txt"] = _list(toolchain.wheels)
    return files


@lru_cache(maxsize=4096)
def _lists_of(resolution: Resolution) -> dict[str, bytes]:
    files = {f"layers/{layer.name}": _list(layer.wheels) for layer in layers_of(resolution)}
    torch = resolution.wheel("torch")
    return {**files, "requirements/torch.txt": _list([torch] if torch else [])}


def _list(wheels: Iterable[Wheel]) -> bytes:
    return requirements_txt(wheels).encode()


def patch_files(series: Sequence[Step], build: SourceBuild | None = None) -> dict[str, bytes]:
    """Diffs, proofs, and ``series.json`` with their order.

    With ``build``, the wheel of vLLM already contains its patches. Their proofs run once more on
    the installed tree, except where only compiled code was changed, whose sources are not
    installed. A patch that is unproven has none, and is marked.
    """
    files: dict[str, bytes] = {}
    rows: list[dict[str, object]] = []
    for step in series:
        name, variant, proof = step.patch.name, step.variant, step.patch.proof
        marked = {} if proof else {"unproven": True}
        inside = build is not None and step.patch.project == BUILT
        if step.exempt:
            rows.append({"name": name, "exempt": step.exempt})
            continue
        if build and inside and step.patch.stage is Stage.SOURCE:
            rows.append(
                {
                    "name": name,
                    "compiled": [f"vllm/{one}*.so" for one in build.extensions],
                    **marked,
                }
            )
            continue
        if variant:
            files[f"patches/{name}/{variant.diff.name}"] = _bytes(variant.diff)
        diff = f"{name}/{variant.diff.name}" if variant else None
        more: dict[str, object] = {"in_wheel": "yes"} if inside else {}
        if proof:
            files[f"patches/{name}/proof.py"] = _bytes(proof.script)
            more = {"proof": f"{name}/proof.py", **more}
        rows.append({"name": name, "diff": diff, **more, **marked})
    files["patches/series.json"] = json.dumps(rows, indent=1).encode()
    return files


@lru_cache(maxsize=4096)
def _rows(resolution: Resolution) -> str:
    """The wheels as JSON, written once for all cells that share a resolution."""
    rows = [
        {"name": w.name, "version": w.version, "sha256": w.sha256, "group": layer.name}
        for layer in layers_of(resolution)
        for w in layer.wheels
    ]
    return json.dumps(sorted(rows, key=lambda row: row["name"]))


def manifest(
    cell: Cell,
    resolution: Resolution,
    toolchain: LockedToolchain | None,
    *,
    key: str,
    cuda_home: str | None,
) -> bytes:
    """What an image's manifest says before the image is built.

    ``key`` is its build key, ``cuda_home`` is where it has compilers.
    """
    planned = {
        "cell": cell.name,
        "build_key": key,
        "axes": dict(cell.axes),
        "torch": {"version": resolution.torch.version, "cuda": resolution.torch.cuda},
        "wheels": None,
        "toolchain": {w.name: w.version for w in toolchain.wheels} if toolchain else None,
        "entrypoint_modes": ["serve", "ray-head", "ray-worker", "bash"],
    }
    if cuda_home and not toolchain:
        planned["cuda_home"] = cuda_home
    text = json.dumps(planned)
    return text.replace('"wheels": null', f'"wheels": {_rows(resolution)}', 1).encode()


def _bytes(path: Path) -> bytes:
    """The content of a file, read once for all cells that need it."""
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _read(path: Path, _mtime: int, _size: int) -> bytes:
    return path.read_bytes()


@lru_cache(maxsize=1024)
def sha(data: bytes) -> str:
    """SHA-256 of ``data``, as hex."""
    return hashlib.sha256(data).hexdigest()


def key_of(parts: object) -> str:
    """The key of whatever has these ``parts``, plain JSON values."""
    return sha(json.dumps(parts, sort_keys=True).encode())
