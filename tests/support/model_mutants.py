"""Tiny models spoilt as broken kernels, loaders and exporters spoil models: their text is wrong."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from support.model_reference import store, stored

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault of some models: ``spoil`` puts it into a folder that one was written to."""

    name: str
    models: tuple[str, ...]
    spoil: Callable[[Path], None]

    def __str__(self) -> str:
        return self.name


def _tensors(
    matches: Callable[[str], object], change: Callable[[Bytes], Bytes]
) -> Callable[[Path], None]:
    """Change the bytes of some tensors; ``change`` gets them as (rows, bytes of a row)."""

    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = stored(path)
        names = [name for name in tensors if matches(name)]
        assert names, f"no tensor to spoil in {sorted(tensors)}"
        for name in names:
            dtype, shape, data = tensors[name]
            rows = np.frombuffer(data, np.uint8).reshape(shape[0] if shape else 1, -1)
            tensors[name] = dtype, shape, change(rows.copy()).tobytes()
        store(path, tensors)

    return spoil


def _packed(name: str) -> bool:
    return name.endswith(("proj.weight_packed", "proj.weight")) and "mtp" not in name


def _scales(name: str) -> bool:
    return name.endswith("proj.weight_scale")


def _inverse(rows: Bytes) -> Bytes:
    """Of a float32 that stands alone; block scales stay."""
    if rows.size != 4:
        return rows
    (scale,) = struct.unpack("<f", rows.tobytes())
    return np.frombuffer(struct.pack("<f", 1 / scale), np.uint8)


def _negative(rows: Bytes) -> Bytes:
    """Of bfloat16."""
    rows[:, 1::2] ^= 128
    return rows


def _regrouped(rows: Bytes) -> Bytes:
    """Two heads with four parts each become four parts with two heads each."""
    parts = rows.reshape(2, 4, -1, rows.shape[1])
    return np.ascontiguousarray(parts.transpose(1, 0, 2, 3)).reshape(rows.shape)


def halves_swapped(rows: Bytes) -> Bytes:
    """The two weights of each byte."""
    return (rows << 4 | rows >> 4).astype(np.uint8)


def swizzled(rows: Bytes) -> Bytes:
    """Block scales as tensor cores want them: 4 by 4 in tiles of 128 rows, padded, cut off."""
    high, wide = rows.shape
    padded = np.zeros((-(-high // 128) * 128, -(-wide // 4) * 4), np.uint8)
    padded[:high, :wide] = rows
    tiles = padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(-1)[: rows.size].reshape(rows.shape)


def _unlike_config(folder: Path) -> None:
    """The head's projection is stored as if it were quantized."""
    path = folder / "model.safetensors"
    tensors = stored(path)
    name = "model.mtp_layers.0.input_proj.weight"
    _, (high, wide), _ = tensors[name]
    tensors[name] = "U8", (high, wide // 2), bytes(high * wide // 2)
    tensors[f"{name}_scale"] = "F8_E4M3", (high, wide // 16), bytes(high * wide // 16)
    tensors[f"{name}_scale_2"] = "F32", (), struct.pack("<f", 1)
    store(path, tensors)


FOUR_BITS = ("nvfp4", "nvfp4-modelopt", "moe-nvfp4", "mtp-nvfp4")
MUTANTS = (
    Mutant(
        name="the heads of attention are swapped",
        models=("dense", "dense-bf16", "dialog", "fp8", "moe"),
        spoil=_tensors(
            lambda name: name.endswith("o_proj.weight"),
            lambda rows: np.roll(rows, rows.shape[1] // 2, axis=1),
        ),
    ),
    Mutant(
        name="the two halves of each byte are swapped",
        models=FOUR_BITS,
        spoil=_tensors(_packed, halves_swapped),
    ),
    Mutant(
        name="block scales are one block off",
        models=FOUR_BITS,
        spoil=_tensors(_scales, lambda rows: np.roll(rows, 1, axis=1)),
    ),
    Mutant(
        name="block scales are those of the next row",
        models=FOUR_BITS,
        spoil=_tensors(_scales, lambda rows: np.roll(rows, 1, axis=0)),
    ),
    Mutant(
        name="block scales are in the order of tensor cores",
        models=FOUR_BITS,
        spoil=_tensors(_scales, swizzled),
    ),
    Mutant(
        name="the scale of a matrix is its inverse",
        models=("fp8", "nvfp4", "nvfp4-modelopt", "mtp-nvfp4"),
        spoil=_tensors(
            re.compile(r".*v_proj\.weight_(scale_2|global_scale|scale)").fullmatch, _inverse
        ),
    ),
    Mutant(
        name="words are sent to the expert after theirs",
        models=("moe", "moe-nvfp4"),
        spoil=_tensors(
            lambda name: name.endswith("mlp.gate.weight"), lambda rows: np.roll(rows, 1, axis=0)
        ),
    ),
    Mutant(
        name="the router chooses the same experts for every word",
        models=("moe", "moe-nvfp4"),
        spoil=_tensors(lambda name: name.endswith("mlp.gate.weight"), lambda rows: rows * 0),
    ),
    Mutant(
        name="the convolution passes on the word three places before",
        models=("hybrid",),
        spoil=_tensors(
            lambda name: name.endswith("conv1d.weight"),
            lambda rows: np.roll(rows, rows.shape[1] // 4, axis=1),
        ),
    ),
    Mutant(
        name="the state is hardly written to",
        models=("hybrid",),
        spoil=_tensors(lambda name: name.endswith("in_proj_ba.weight"), _negative),
    ),
    Mutant(
        name="projections of heads are taken for heads of projections",
        models=("hybrid",),
        spoil=_tensors(lambda name: name.endswith("in_proj_qkvz.weight"), _regrouped),
    ),
    Mutant(
        name="the head takes the embedding for the hidden state",
        models=("mtp", "mtp-nvfp4"),
        spoil=_tensors(
            lambda name: name.endswith("input_proj.weight"),
            lambda rows: np.roll(rows, rows.shape[1] // 2, axis=1),
        ),
    ),
    Mutant(name="the head is quantized", models=("mtp-nvfp4",), spoil=_unlike_config),
)
