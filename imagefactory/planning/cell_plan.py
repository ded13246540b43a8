"""The plan station: everything that decides an image's content.

Put together and hashed into its build key. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from imagefactory import inbuild
from imagefactory.locking.lock import LockedToolchain, Resolution, Wheel
from imagefactory.locking.requirements import requirements_txt
from imagefactory.locking.store import digest as lock_digest
from imagefactory.locking.tags import BUILT, COMPILER_GLIBC, uv_platform
from imagefactory.matrix.cell import Base, Cell, SourceBuild
from imagefactory.patching.patch import Stage, Step
from imagefactory.planning import render
from imagefactory.planning.layers import CUDA_TORCH, InstallLayer, split
from imagefactory.system.platforms import Platform

LABEL = "io.imagefactory"
#: Where the toolchain is in an image, and the folder that holds everything that is compiled or
#: fetched at run time.
CUDA_HOME, CACHE = "/opt/cuda", "/root/.cache"
INBUILD = Path(inbuild.__file__).parent
NO_KEY = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base as it was found for one platform.

    Attributes:
        base: what the matrix declares.
        platform: OCI platform.
        reference: what FROM names: a registry reference by digest, or the declared name, swapped
            for a local image.
        digest: of the image in the registry, or of a bootstrapped one's layers; None if nothing
            could tell.
        origin: ``registry``, ``bootstrap`` or ``unresolved``.
        swap: image that stands in for ``reference`` (``docker-image://...``), or None.
    """

    base: Base
    platform: Platform
    reference: str
    digest: str | None
    origin: str
    swap: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """A cell with all that its image is made of.

    Attributes:
        cell: the cell.
        resolution: its wheels.
        series: its patches, in order, with the variants for its versions.
        base: the base it stands on.
        build_key: hash of everything that decides the content.
        labels: the image's labels, the build key among them.
        files: build context: relative path -> bytes.
        local_wheels: wheels that are at no index: from a local folder, by their address, or built.
        toolchain: the compilers that the image carries, or None.
    """

    cell: Cell
    resolution: Resolution
    series: tuple[Step, ...]
    base: BaseImage
    build_key: str
    labels: Mapping[str, str]
    files: Mapping[str, bytes]
    local_wheels: tuple[Wheel, ...]
    toolchain: LockedToolchain | None = None

    @property
    def epoch(self) -> int:
        """SOURCE_DATE_EPOCH of the image, seconds: the day on which its wheels were resolved."""
        return int(datetime.fromisoformat(f"{self.resolution.created}T00:00:00+00:00").timestamp())

    @property
    def dockerfile(self) -> str:
        """The text of the cell's Dockerfile."""
        return self.files["Dockerfile"].decode()


def compose(
    cell: Cell,
    resolution: Resolution,
    series: Sequence[Step],
    base: BaseImage,
    *,
    templates: Path,
    uv_version: str,
    toolchain: LockedToolchain | None = None,
) -> CellPlan:
    """Plan one cell. Raises InputError if a value cannot stand in a Dockerfile."""
    files = {
        **_install_files(resolution, toolchain),
        **patch_files(series, cell.flavor.build),
        **_program_files(),
    }
    files["entrypoint"] = (templates / "entrypoint").read_bytes()
    labels = _labels(cell, resolution, series, base)
    env = _environment_of(cell, toolchain)
    # rendered once: the key is of the text that has this in the key's own place
    text = _dockerfile(
        cell, resolution, templates, env=env, labels={**labels, f"{LABEL}.build-key": NO_KEY}
    )
    base_text = render.base_dockerfile(templates, cell.flavor.base, base.reference)
    key = key_of(
        [
            sha(text.encode()),
            sha(base_text.encode()),
            base.digest,
            cell.platform,
            uv_version,
            {k: sha(v) for k, v in files.items()},
        ]
    )
    labels = {**labels, f"{LABEL}.build-key": key}
    files["manifest.json"] = _manifest(cell, resolution, toolchain, key)
    files["Dockerfile"] = text.replace(NO_KEY, key).encode()
    return CellPlan(
        cell=cell,
        resolution=resolution,
        series=tuple(series),
        base=base,
        build_key=key,
        labels=labels,
        files=files,
        local_wheels=_local_wheels(resolution),
        toolchain=toolchain,
    )


def _dockerfile(
    cell: Cell,
    resolution: Resolution,
    templates: Path,
    *,
    env: Mapping[str, str],
    labels: Mapping[str, str],
) -> str:
    layers = _layers(resolution)
    return render.render(
        templates,
        "Dockerfile.j2",
        {
            "cell": {"name": cell.name},
            "arch": cell.platform.arch,
            "layers": [layer.name for layer in layers],
            "cuda_layers": [layer.name for layer in layers if layer.group == CUDA_TORCH],
            "install": _install_command(cell),
            "toolchain": _toolchain_command(cell) if "CUDA_HOME" in env else [],
            "cuda_home": CUDA_HOME.removeprefix("/"),
            "cuda_major": cell.axes.get("cuda", "").partition(".")[0],
            "site": render.SITE.format(python=cell.python),
            "torch": resolution.torch.version,
            "env": sorted(env.items()),
            "labels": sorted(labels.items()),
        },
    )


def _install_command(cell: Cell) -> list[str]:
    """uv, as an unpacker: for the target platform, from hashes, without any resolving."""
    base = cell.flavor.base
    return [
        *(
            "uv",
            "pip",
            "install",
            "--python",
            "/opt/venv/bin/python",
            "--prefix",
            "/layer/opt/venv",
        ),
        *(
            "--python-version",
            cell.python,
            "--python-platform",
            uv_platform(cell.platform, base.glibc),
        ),
        *("--only-binary", ":all:", "--no-deps", "--require-hashes", "--find-links", "/wheels"),
        *("--index-strategy", "unsafe-best-match", "--link-mode", "copy"),
    ]


def _toolchain_command(cell: Cell) -> list[str]:
    """uv, as an unpacker of compilers.

    They are for any Python 3, and stay apart from the image's own packages.
    """
    return [
        *("uv", "pip", "install", "--python", "/opt/venv/bin/python", "--target", "/unpacked"),
        *("--python-platform", uv_platform(cell.platform, COMPILER_GLIBC)),
        *("--only-binary", ":all:", "--no-deps", "--require-hashes", "--link-mode", "copy"),
    ]


@lru_cache(maxsize=64)
def _layers(resolution: Resolution) -> list[InstallLayer]:
    """Install layers, once for all cells that share a resolution."""
    return split(resolution)


@lru_cache(maxsize=64)
def _local_wheels(resolution: Resolution) -> tuple[Wheel, ...]:
    return tuple(
        wheel
        for wheel in resolution.wheels
        if wheel.is_local or wheel.is_built or wheel.has_address
    )


def _install_files(resolution: Resolution, toolchain: LockedToolchain | None) -> dict[str, bytes]:
    files = dict(_requirements(resolution))
    if toolchain:
        files["requirements/toolchain.txt"] = requirements_txt(toolchain.wheels).encode()
    return files


@lru_cache(maxsize=64)
def _requirements(resolution: Resolution) -> dict[str, bytes]:
    """What each layer installs, once for all cells that share a resolution."""
    files = {
        f"requirements/layer-{layer.name}.txt": requirements_txt(layer.wheels).encode()
        for layer in _layers(resolution)
    }
    torch = resolution.wheel("torch")
    return {**files, "requirements/torch.txt": requirements_txt([torch] if torch else []).encode()}


def patch_files(series: Sequence[Step], build: SourceBuild | None = None) -> dict[str, bytes]:
    """Diffs, proofs, and ``series.json`` with their order.

    With ``build`` the wheel of vLLM has its patches in it: what they changed is proven once more in
    the installed tree, but for those that changed only what was compiled, whose sources are not
    there.
    """
    files: dict[str, bytes] = {}
    rows: list[dict[str, object]] = []
    for step in series:
        name, variant = step.patch.name, step.variant
        inside = build is not None and step.patch.project == BUILT
        if step.exempt:
            rows.append({"name": name, "exempt": step.exempt})
            continue
        if build and inside and step.patch.stage is Stage.SOURCE:
            rows.append({"name": name, "compiled": [f"vllm/{one}*.so" for one in build.extensions]})
            continue
        files[f"patches/{name}/proof.py"] = _bytes(step.patch.proof.script)
        if variant:
            files[f"patches/{name}/{variant.diff.name}"] = _bytes(variant.diff)
        diff = f"{name}/{variant.diff.name}" if variant else None
        more = {"in_wheel": "yes"} if inside else {}
        rows.append({"name": name, "diff": diff, "proof": f"{name}/proof.py", **more})
    files["patches/series.json"] = json.dumps(rows, indent=1).encode()
    return files


def _program_files() -> dict[str, bytes]:
    names = ("belt.py", "identity.py", "manifest.py", "overlay.py", "cuda_home.py", "trim.py")
    return {f"factory/{name}": _bytes(INBUILD / name) for name in (*names, "proofkit.py")}


def _environment_of(cell: Cell, toolchain: LockedToolchain | None) -> dict[str, str]:
    env = {
        "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VIRTUAL_ENV": "/opt/venv",
        "IMAGEFACTORY_CHANNEL": cell.channel,
        "IMAGEFACTORY_SERVE_ARGS": json.dumps(list(cell.flavor.serve_args)),
    }
    if cell.channel != "cpu":
        # what the NVIDIA container runtime looks for when it decides whether a container gets the
        # GPU
        env |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    if toolchain:
        env |= {
            "CUDA_HOME": CUDA_HOME,
            # Triton has a ptxas of its own for each generation of GPUs; both are the image's one
            "TRITON_PTXAS_PATH": f"{CUDA_HOME}/bin/ptxas",
            "TRITON_PTXAS_BLACKWELL_PATH": f"{CUDA_HOME}/bin/ptxas",
        }
    if cell.channel != "cpu":
        # what is compiled at run time is worth keeping: with these, all of it is below the one
        # folder to mount
        env |= {
            "TRITON_CACHE_DIR": f"{CACHE}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/torchinductor",
        }
    return {**env, **cell.flavor.env}


def _labels(
    cell: Cell, resolution: Resolution, series: Sequence[Step], base: BaseImage
) -> dict[str, str]:
    oci = "org.opencontainers.image"
    labels = {
        f"{oci}.title": f"vLLM {cell.axes['vllm']} ({cell.flavor.name})",
        f"{oci}.description": cell.flavor.summary,
        f"{oci}.version": cell.vllm,
        f"{oci}.created": f"{resolution.created}T00:00:00Z",
        f"{oci}.base.name": base.base.image,
        f"{LABEL}.cell": cell.name,
        f"{LABEL}.flavor": cell.flavor.name,
        f"{LABEL}.channel": cell.channel,
        f"{LABEL}.torch": resolution.torch.version,
        f"{LABEL}.lock-digest": lock_digest(resolution),
        f"{LABEL}.base-origin": base.origin,
        **{f"{LABEL}.pin.{axis}": value for axis, value in cell.pins.items()},
        **{f"{LABEL}.patch.{s.patch.name.replace('/', '.')}": _variant_text(s) for s in series},
    }
    if base.digest:
        labels[f"{oci}.base.digest"] = base.digest
    if cell.flavor.driver:
        labels[f"{LABEL}.minimum-driver"] = cell.flavor.driver
    return labels


def _variant_text(step: Step) -> str:
    return step.variant.diff.name if step.variant else "n/a" if step.exempt else "proof only"


@lru_cache(maxsize=64)
def _rows(resolution: Resolution) -> list[dict[str, str]]:
    rows = [
        {"name": w.name, "version": w.version, "sha256": w.sha256, "group": layer.name}
        for layer in _layers(resolution)
        for w in layer.wheels
    ]
    return sorted(rows, key=lambda row: row["name"])


def _manifest(
    cell: Cell, resolution: Resolution, toolchain: LockedToolchain | None, key: str
) -> bytes:
    manifest = {
        "cell": cell.name,
        "build_key": key,
        "axes": dict(cell.axes),
        "torch": {"version": resolution.torch.version, "cuda": resolution.torch.cuda},
        "wheels": _rows(resolution),
        "toolchain": {w.name: w.version for w in toolchain.wheels} if toolchain else None,
        "entrypoint_modes": ["serve", "ray-head", "ray-worker", "bash"],
    }
    # laid out for people when the image's own is made of it
    return json.dumps(manifest).encode()


def _bytes(path: Path) -> bytes:
    """What is in a file; read once for all cells that have it."""
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
