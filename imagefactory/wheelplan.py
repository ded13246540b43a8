"""A wheel to be made from sources: everything that decides its content, put together and hashed into its key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory import plan, render
from imagefactory.cell import Cell
from imagefactory.errors import InputError, fail
from imagefactory.locking import toolchains
from imagefactory.locking.model import Lock, LockedSource, LockedToolchain, Resolution, Wheel
from imagefactory.locking.requirements import requirements_txt
from imagefactory.patching.model import Step

PROGRAMS = ("overlay.py", "wheelmaker.py")
#: The tools are Python only: one set serves every build platform, and a key does not depend on where it is built.
TOOLS_PLATFORM = "linux/amd64"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlan:
    """A wheel to be made.

    Attributes:
        key: hash of everything that decides its content.
        platform: OCI platform that it is for.
        source: what it is made from.
        official: the wheel of the same release whose compiled parts it gets, and in whose place it is installed.
        steps: the patches in it, in order.
        files: build context: relative path -> bytes, without the two files above.
    """

    key: str
    platform: str
    source: LockedSource
    official: Wheel
    steps: tuple[Step, ...]
    files: Mapping[str, bytes]


def steps_in(cell: Cell, series: Sequence[Step]) -> tuple[Step, ...]:
    """The patches that are in the cell's own wheel of vLLM: all of vLLM's, where it has one."""
    return tuple(step for step in series if step.patch.project == toolchains.BUILT) if cell.flavor.build else ()


def compose(
    cell: Cell,
    resolution: Resolution,
    series: Sequence[Step],
    lock: Lock,
    *,
    templates: Path,
    uv_version: str,
) -> WheelPlan | None:
    """The wheel that ``cell`` asks for; None if it takes vLLM from the index.

    Raises InputError if the lock lacks the sources or the tools.
    """
    build = cell.flavor.build
    if build is None:
        return None
    source, tools = lock.source(toolchains.BUILT, cell.axes["vllm"]), lock.toolchain(build.tools, TOOLS_PLATFORM)
    official = resolution.wheel(toolchains.BUILT)
    if source is None or tools is None or official is None:
        what = f"wheels.lock lacks vLLM {cell.axes['vllm']}'s sources or wheel, or {build.tools} for {TOOLS_PLATFORM}"
        raise fail(InputError, "lock-uncovered", what, where=str(build.source), fix="imagefactory lock")
    steps = steps_in(cell, series)
    files = _files(cell, resolution, steps, tools, source, official, templates=templates)
    decides = [source.sha256, official.sha256, uv_version, {name: plan.sha(data) for name, data in files.items()}]
    return WheelPlan(
        key=plan.key_of(decides),
        platform=cell.platform,
        source=source,
        official=official,
        steps=steps,
        files=files,
    )


def _files(
    cell: Cell,
    resolution: Resolution,
    steps: Sequence[Step],
    tools: LockedToolchain,
    source: LockedSource,
    official: Wheel,
    *,
    templates: Path,
) -> dict[str, bytes]:
    install = [
        *("uv", "pip", "install", "--python", "/opt/venv/bin/python", "--target", "/tools"),
        *("--only-binary", ":all:", "--no-deps", "--require-hashes", "--link-mode", "copy"),
    ]
    values = {
        "name": source.name,
        "version": source.version,
        "platform": cell.platform,
        "install": install,
        "sdist": source.filename,
        "official": official.filename,
        "torch": resolution.torch.version,
        "cuda": resolution.torch.cuda or "none",
    }
    return {
        **plan.patch_files(steps),
        **{f"factory/{name}": (plan.INBUILD / name).read_bytes() for name in PROGRAMS},
        "requirements/tools.txt": requirements_txt(tools.wheels).encode(),
        "Dockerfile": render.render(templates, "wheel.Dockerfile.j2", values).encode(),
    }
