"""An extra to be built: a wheel beside vLLM, from sources, against the torch of a cell. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from imagefactory.errors import InputError, fail
from imagefactory.locking.lock import Lock, LockedToolchain, Resolution
from imagefactory.locking.requirements import requirements_txt
from imagefactory.matrix.cell import Cell, Extra
from imagefactory.planning import context, render, wheel_plan
from imagefactory.planning.wheel_plan import WheelPlan, uncovered
from imagefactory.system import files as texts

#: Bytes; a setup.py has a hundredth of it.
LARGEST_SETUP = 1_000_000
#: A variable of the flavor that torch's own build reads.
ARCHS = "TORCH_CUDA_ARCH_LIST"


def compose(
    extra: Extra,
    cell: Cell,
    resolution: Resolution,
    lock: Lock,
    *,
    templates: tuple[Path, ...],
    project: Path,
    uv_version: str,
) -> WheelPlan:
    """The wheel of ``extra`` for ``cell``, which has the wheels of ``resolution``.

    Raises InputError if the lock lacks its sources, tools or compilers, a file or folder of the
    user is not there, or the resolution has a wheel of the same project.
    """
    if resolution.wheel(extra.name):
        what = f"{cell.name} has a wheel of {extra.name} already, by its requirements"
        fix = "remove the extra, or the requirement"
        raise fail(InputError, "extra-twice", what, where=str(extra.location), fix=fix)
    system = lock.base(cell.flavor.base, cell.platform)
    if system is None or system.compiler is None:
        raise uncovered(extra.location, wheel_plan.compilers_of(cell))
    tools = _toolchain(extra.tools, extra, cell, lock)
    name = cell.flavor.toolchain
    compilers = _toolchain(name, extra, cell, lock).wheels if name else None
    wheels = {
        "tools": tools.wheels,
        "torch": tuple(wheel_plan.torch_wheels(resolution)),
        **({"toolchain": compilers} if compilers else {}),
    }
    origins = {"": extra.source, **extra.sources}
    parts = tuple(
        wheel_plan.part_of(variable, text, extra.location, resolution, lock, project)
        for variable, text in origins.items()
    )
    values = {
        "name": extra.name,
        "platform": cell.platform,
        "arch": cell.platform.arch,
        "toolchain": bool(compilers),
    }
    files = {
        **context.program_files("extra"),
        **{f"requirements/{k}.txt": requirements_txt(v).encode() for k, v in wheels.items()},
        "job/sources.json": wheel_plan.sources_json(parts),
        "job/job.json": json.dumps(_job(extra, cell), indent=1, sort_keys=True).encode(),
        **_setup(extra, project),
        "Dockerfile": render.render(templates, "extra.Dockerfile.j2", values).encode(),
    }
    decides = [
        uv_version,
        *wheel_plan.decided_by(parts, files),
        wheel_plan.decided_by_system(system),
    ]
    return WheelPlan(
        key=context.key_of(decides),
        platform=cell.platform,
        name=extra.name,
        where=extra.location,
        compiles=True,
        parts=parts,
        files=files,
        beside=resolution,
        wheels=wheels,
    )


def _toolchain(name: str, extra: Extra, cell: Cell, lock: Lock) -> LockedToolchain:
    found = lock.toolchain(name, cell.platform)
    if found is None:
        what = f"wheels.lock lacks toolchain {name} for {cell.platform}, which builds {extra.name}"
        fix = f"add {cell.platform} to its `platforms` if missing, then run imagefactory lock"
        raise fail(InputError, "lock-uncovered", what, where=str(extra.location), fix=fix)
    return found


def _job(extra: Extra, cell: Cell) -> dict[str, object]:
    """What the program that builds it reads."""
    cuda = "/opt/cuda" if cell.flavor.toolchain else cell.flavor.base.cuda_home or ""
    archs = cell.flavor.env.get(ARCHS) if cuda else None
    return {
        "cuda": cuda,
        "folder": extra.folder,
        "env": {**({ARCHS: archs} if archs else {}), **extra.env},
        "sources": list(extra.sources),
    }


def _setup(extra: Extra, project: Path) -> Mapping[str, bytes]:
    """The user's own setup.py, if there is one."""
    if extra.setup is None:
        return {}
    path = project / extra.setup
    try:
        return {"job/setup.py": texts.read(path, LARGEST_SETUP)}
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else str(error)) or "not readable"
        what = f"{extra.name}: {path} cannot be read: {why}"
        fix = "put the file there, or name another one as `setup`"
        raise fail(InputError, "extra-setup", what, where=str(extra.location), fix=fix) from None
