"""The patch station: applies and proves the patch series of cells on upstream's sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell, Toolchain
from imagefactory.patching import check, cuda_home
from imagefactory.patching.check import Checked
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import Patch, Step
from imagefactory.settings import Settings


def bench(
    patches: Iterable[Patch],
    toolchains: Sequence[Toolchain],
    lock: Lock | None,
    settings: Settings,
    *,
    fresh: bool = False,
) -> Bench:
    """The bench that measures ``patches``, with a toolchain if one of their proofs needs nvcc.

    That toolchain is the first of ``toolchains``; ``fresh`` ignores cached results. Raises
    SetupError if it is locked and cannot be installed.
    """
    cuda = None
    if lock and toolchains and any(patch.proof and patch.proof.kind == "nvcc" for patch in patches):
        locked = cuda_home.for_this_machine(lock, toolchains[0].name)
        cuda = cuda_home.prepare(locked, settings) if locked else None
    return Bench(settings, cuda=cuda, fresh=fresh)


def check_series(
    series: Sequence[tuple[Cell, Sequence[Step]]],
    toolchains: Sequence[Toolchain],
    lock: Lock | None,
    settings: Settings,
) -> tuple[Checked, ...]:
    """Check the patches of each cell on the sources of what it installs, as the build does.

    Raises SetupError if no index has the sources.
    """
    patches = (step.patch for _, steps in series for step in steps)
    shared = bench(patches, toolchains, lock, settings)
    return tuple(check.check(cell, steps, shared, lock, settings) for cell, steps in series)
