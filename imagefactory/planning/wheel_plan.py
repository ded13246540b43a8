"""A wheel to be made from sources.

Everything that decides its content, put together and hashed into its key. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import FactoryError, InputError, fail
from imagefactory.locking.lock import Lock, LockedBase, LockedToolchain, Resolution, Wheel
from imagefactory.locking.locked_sources import LockedRef, LockedSource
from imagefactory.locking.requirements import requirements_txt
from imagefactory.locking.tags import BUILT
from imagefactory.matrix import origins
from imagefactory.matrix.cell import Cell, SourceBuild
from imagefactory.patching.patch import Step
from imagefactory.planning import context, render
from imagefactory.planning.layers import CUDA_TORCH, group_of
from imagefactory.system import archive
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

#: The tools are Python only where nothing is compiled: one set serves every build platform, and a
#: key does not depend on where it is built.
TOOLS_PLATFORM = Platform.AMD64
#: What `import torch` imports; vLLM's CMake files ask torch for its path and its nvcc options.
_TORCH_IMPORTS = frozenset(
    (
        "filelock",
        "fsspec",
        "jinja2",
        "markupsafe",
        "mpmath",
        "networkx",
        "numpy",
        "sympy",
        "typing-extensions",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An archive that a wheel is made from: locked, by its address, in a wheel, or a folder of the
    user's.

    Attributes:
        name: the variable of vLLM's CMake (``..._SRC_DIR``) that names it; empty for vLLM itself.
        file: its name in the build context.
        sha256: of its content.
        inside: the folder in it that counts; empty for all of it.
        origin: what has it.
    """

    name: str
    file: str
    sha256: str
    inside: str
    origin: LockedSource | Wheel | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Units to compile for a look at them.

    Patterns of file names, targets such as ``sm_121a``, what to count.
    """

    units: tuple[str, ...]
    targets: tuple[str, ...]
    count: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlan:
    """A wheel to be made.

    Attributes:
        key: hash of everything that decides its content.
        platform: OCI platform that it is for.
        name: of its project: vLLM, or an extra.
        where: where the matrix asks for it.
        compiles: whether a compiler runs, and so the builder has to be of that platform.
        parts: what it is made from, the project's own sources first.
        files: build context: relative path -> bytes, without the parts and other wheels.
        version: of vLLM; that of an extra is empty, as only its build knows it.
        steps: the patches in it, in order.
        official: the wheel of the same release whose compiled parts vLLM gets, and in whose place
            it is installed; None for an extra.
        ref: the git ref that it is built from; None for a release and for an extra.
        beside: the wheels that an extra is installed beside; None for vLLM.
        wheels: those that the build context of an extra has, by the folder below ``wheels``.
    """

    key: str
    platform: Platform
    name: str
    where: Location
    compiles: bool
    parts: tuple[Part, ...]
    files: Mapping[str, bytes]
    version: str = ""
    steps: tuple[Step, ...] = ()
    official: Wheel | None = None
    ref: LockedRef | None = None
    beside: Resolution | None = None
    wheels: Mapping[str, tuple[Wheel, ...]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its project, with the version if that is known."""
        return f"{self.name} {self.version}".strip()


def steps_in(cell: Cell, series: Sequence[Step]) -> tuple[Step, ...]:
    """The patches that are in the cell's own wheel of vLLM: all of vLLM's, where it has one."""
    return tuple(step for step in series if step.patch.project == BUILT) if cell.build else ()


def compose(
    cell: Cell,
    resolution: Resolution,
    series: Sequence[Step],
    lock: Lock,
    *,
    templates: tuple[Path, ...],
    project: Path,
    uv_version: str,
    trial: Trial | None = None,
) -> WheelPlan | None:
    """The wheel that ``cell`` asks for; None if it takes vLLM from the index.

    Raises InputError if the lock lacks the sources or the tools, or a folder is not there.
    """
    build = cell.build
    if build is None:
        return None
    tools = lock.toolchain(build.tools, cell.platform if build.compiles else TOOLS_PLATFORM)
    compilers = (
        lock.toolchain(cell.flavor.toolchain or "", cell.platform) if build.compiles else None
    )
    official = resolution.wheel(BUILT)
    if tools is None or official is None or (build.compiles and compilers is None):
        names = f"{build.tools} or {cell.flavor.toolchain}" if build.compiles else build.tools
        raise uncovered(
            build.location, f"a wheel of vLLM {cell.axes['vllm']}, or {names} for {cell.platform}"
        )
    system = lock.base(cell.flavor.base, cell.platform)
    if build.compiles and (system is None or system.compiler is None):
        raise uncovered(build.location, compilers_of(cell))
    steps, parts = steps_in(cell, series), _parts(cell, build, resolution, lock, project)
    values = {
        "name": BUILT,
        "version": cell.vllm,
        "platform": cell.platform,
        "arch": cell.platform.arch,
        "official": official.filename,
        "torch": resolution.torch.version,
        "cuda": resolution.torch.cuda or "none",
        "cuda_major": cell.axes.get("cuda", "").partition(".")[0],
        "jobs": ["extensions", "units"] if trial else ["extensions"],
    }
    name = "compiled.Dockerfile.j2" if build.compiles else "wheel.Dockerfile.j2"
    files = {
        **context.patch_files(steps),
        **context.program_files(build.binaries),
        "requirements/tools.txt": requirements_txt(tools.wheels).encode(),
        "sources.json": sources_json(parts),
        **(_compiler_files(cell, build, resolution, compilers, trial) if compilers else {}),
        "Dockerfile": render.render(templates, name, values).encode(),
    }
    decides = [official.sha256, uv_version, *decided_by(parts, files)]
    if system and build.compiles:
        decides.append(decided_by_system(system))
    return WheelPlan(
        key=context.key_of(decides),
        platform=cell.platform,
        name=BUILT,
        where=build.location,
        version=cell.vllm,
        compiles=build.compiles,
        official=official,
        steps=steps,
        parts=parts,
        files=files,
        ref=lock.ref(cell.ref) if cell.ref else None,
    )


def decided_by(parts: Sequence[Part], files: Mapping[str, bytes]) -> list[object]:
    """What of the sources and of the build context decides the content of a wheel."""
    return [[part.sha256 for part in parts], {k: context.sha(v) for k, v in files.items()}]


def decided_by_system(system: LockedBase) -> object:
    """What of the base that a wheel is compiled on decides its content."""
    return [system.digest, *(deb.sha256 for deb in system.all_debs)]


def torch_wheels(resolution: Resolution) -> list[Wheel]:
    """Torch, and what it imports and links against."""
    return [
        w for w in resolution.wheels if group_of(w.name) == CUDA_TORCH or w.name in _TORCH_IMPORTS
    ]


def sources_json(parts: Sequence[Part]) -> bytes:
    """The list of the archives to unpack, by their variables."""
    return _json({part.name: {"file": part.file, "inside": part.inside} for part in parts})


def _compiler_files(
    cell: Cell,
    build: SourceBuild,
    resolution: Resolution,
    compilers: LockedToolchain,
    trial: Trial | None,
) -> dict[str, bytes]:
    job = {
        "source": "/src",
        "cuda": "/opt/cuda",
        "archs": cell.flavor.env["TORCH_CUDA_ARCH_LIST"],
        "sources": {name: f"/sources/{name}" for name in build.sources},
    }
    files = {
        "requirements/torch.txt": requirements_txt(torch_wheels(resolution)).encode(),
        "requirements/toolchain.txt": requirements_txt(compilers.wheels).encode(),
        "extensions.json": _json({**job, "extensions": list(build.extensions)}),
    }
    if trial:
        asked = {"units": list(trial.units), "targets": list(trial.targets), "count": trial.count}
        files["units.json"] = _json({**job, **asked})
    return files


def _parts(
    cell: Cell, build: SourceBuild, resolution: Resolution, lock: Lock, project: Path
) -> tuple[Part, ...]:
    if cell.ref:
        locked = lock.ref(cell.ref)
        own = locked.source if locked else None
    else:
        own = lock.source(BUILT, cell.vllm)
    if own is None:
        raise uncovered(build.location, f"vLLM {cell.axes['vllm']}'s sources")
    first = Part(name="", file=own.filename, sha256=own.sha256, inside="", origin=own)
    return (
        first,
        *(
            part_of(name, text, build.location, resolution, lock, project)
            for name, text in build.sources.items()
        ),
    )


def part_of(
    name: str, text: str, where: Location, resolution: Resolution, lock: Lock, project: Path
) -> Part:
    """The archive of ``text``, as the matrix writes it at ``where``, for the variable ``name``.

    Raises InputError if it is not locked, or there is no such folder.
    """
    asked, label = origins.of(text), name or "source"
    found: LockedSource | Wheel | Path | None
    if asked.kind is origins.Kind.FOLDER:
        found = project / asked.address
        if not found.is_dir():
            what, fix = (
                f"{label}: there is no folder {found}",
                "put the sources there, or name another folder",
            )
            raise fail(InputError, "no-sources", what, where=str(where), fix=fix)
        return Part(
            name=name,
            file=f"{label}.tar",
            sha256=archive.sha_of_folder(found),
            inside="",
            origin=found,
        )
    if asked.kind is origins.Kind.WHEEL:
        found = resolution.wheel(asked.address)
    elif asked.kind is origins.Kind.GIT:
        found = lock.commit(text)
    else:
        file = asked.address.rpartition("/")[2]
        found = LockedSource(
            name=text, version="", filename=file, sha256=asked.ref, size=0, url=asked.address
        )
    if found is None:
        raise uncovered(where, f"{text} ({label})")
    return Part(
        name=name,
        file=f"{label}-{found.filename}",
        sha256=found.sha256,
        inside=asked.inside,
        origin=found,
    )


def compilers_of(cell: Cell) -> str:
    """What the lock lacks if the base of ``cell`` has no compilers."""
    return f"the compilers of base {cell.flavor.base.name} for {cell.platform}"


def uncovered(where: Location, lacks: str) -> FactoryError:
    """That the lock lacks something which the matrix asks for at ``where``."""
    return fail(
        InputError,
        "lock-uncovered",
        f"wheels.lock lacks {lacks}",
        where=str(where),
        fix="imagefactory lock",
    )


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()
