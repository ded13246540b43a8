"""Checks before a build whether the disk has room for it. Pure, but for asking how much is free."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import Problem
from imagefactory.planning.cell_plan import CellPlan

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes on the disk for each byte of wheels: for the finished image, and at the peak."""

    image: float
    peak: float


#: For a gb10 cell, whose wheels are twice as large when unpacked. The archives and the layers are
#: kept; an engine has the layers once more and unpacks them, and a folder gets a copy of them.
ENGINE, FOLDER = Needs(image=3, peak=6), Needs(image=1, peak=4)


def wheels_of(plans: Sequence[CellPlan]) -> int:
    """Bytes of all wheels that ``plans`` install; what cells share counts once."""
    parts = [plan.resolution.wheels for plan in plans] + [
        plan.toolchain.wheels for plan in plans if plan.toolchain
    ]
    return sum({wheel.sha256: wheel.size for wheels in parts for wheel in wheels}.values())


def free(folder: str) -> int | None:
    """Bytes that are free where the engine keeps its images; None if that is on another machine."""
    path = Path(folder)
    return shutil.disk_usage(path).free if path.is_dir() else None


def judge(
    plans: Sequence[CellPlan], available: int | None, needs: Needs = ENGINE
) -> Problem | None:
    """What is wrong with building ``plans`` with so much free.

    ``disk-short`` may fit, ``disk-full`` cannot.
    """
    needed = wheels_of(plans)
    if available is None or available >= needed * needs.peak:
        return None
    full = available < needed * needs.image
    least, most = needed * needs.image / GIB, needed * needs.peak / GIB
    what = (
        f"{len(plans)} cells need {least:.0f} GiB for their images and up to "
        f"{most:.0f} GiB while they are built"
    )
    return Problem(
        code="disk-full" if full else "disk-short",
        what=f"{what}; the engine's disk has {available / GIB:.0f} GiB free",
        fix=(
            "docker buildx prune, remove images that are not needed, or build "
            "fewer cells with --select"
        ),
    )
