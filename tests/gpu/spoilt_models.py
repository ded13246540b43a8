"""Faults in the weights of a tiny model, as kernels and loaders make them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def swap_nibbles(name: str, kind: str, data: Bytes) -> Bytes:
    """The two E2M1 values of each byte change places."""
    return (data >> 4 | data << 4).astype(np.uint8) if kind == "U8" else data


def shift_scales(name: str, kind: str, data: Bytes) -> Bytes:
    """Each block of 16 weights gets the scale of its neighbour."""
    blocks = kind == "F8_E4M3" and name.endswith("weight_scale") and data.ndim > 1
    return np.roll(data, 1, axis=-1) if blocks else data


def negate_weights(name: str, kind: str, data: Bytes) -> Bytes:
    """FP8 weights change their signs."""
    weights = kind == "F8_E4M3" and name.endswith("proj.weight")
    return (data ^ 0x80).astype(np.uint8) if weights else data


def swap_head(name: str, kind: str, data: Bytes) -> Bytes:
    """The head takes the embedding for the hidden state, which shows in no text."""
    mixes = kind == "BF16" and name.endswith("input_proj.weight")
    return np.roll(data, data.shape[1] // 2, axis=1) if mixes else data


def shift_convolution(name: str, kind: str, data: Bytes) -> Bytes:
    """The convolution of linear attention passes on the word three places before."""
    filters = kind == "BF16" and name.endswith("conv1d.weight")
    return np.roll(data, 1, axis=2) if filters else data


def rotate_experts(tensors: dict[str, Bytes]) -> dict[str, Bytes]:
    """Each expert has the weights of the one before it."""
    experts = sorted({_expert(name) for name in tensors} - {None}, key=str)
    after = dict(zip(experts, [*experts[1:], *experts[:1]], strict=True))
    return {
        name: tensors[name.replace(f".experts.{one}.", f".experts.{after[one]}.")]
        if (one := _expert(name)) is not None
        else data
        for name, data in tensors.items()
    }


def _expert(name: str) -> str | None:
    _, found, rest = name.partition(".experts.")
    return rest.partition(".")[0] if found else None


def spoil(folder: Path, fault: str) -> bool:
    """Change the tensors in ``folder``; whether ``fault`` changed any of them."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = 8 + struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:size])
    header.pop("__metadata__", None)
    before: dict[str, Bytes] = {}
    for name, one in header.items():
        begin, end = one["data_offsets"]
        flat = np.frombuffer(raw, np.uint8, end - begin, size + begin)
        bytewise = flat.size == np.prod(one["shape"], dtype=int)
        before[name] = flat.reshape(one["shape"] if bytewise else (*one["shape"], -1))
    after = (
        rotate_experts(before)
        if fault == "rotated-experts"
        else {n: TENSOR_FAULTS[fault](n, header[n]["dtype"], data) for n, data in before.items()}
    )
    body = bytearray(raw)
    for name, data in after.items():
        begin, end = header[name]["data_offsets"]
        body[size + begin : size + end] = data.tobytes()
    path.write_bytes(body)
    return bytes(body) != raw


TENSOR_FAULTS: Mapping[str, Callable[[str, str, Bytes], Bytes]] = {
    "swapped-nibbles": swap_nibbles,
    "shifted-scales": shift_scales,
    "negated-weights": negate_weights,
    "swapped-head": swap_head,
    "shifted-convolution": shift_convolution,
}
FAULTS = (*TENSOR_FAULTS, "rotated-experts")
