"""How tensors are written down: only values that a format holds exactly, so that the right text is
exact too.

E2M1, the four-bit float of NVFP4, shares one E4M3 scale among 16 weights of a row, and one float32
scale among all weights of a matrix.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

#: What the eight positive codes of E2M1 stand for.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
#: Weights that share a block scale.
BLOCK = 16
#: Block scales that are tried. None is below 1: such are lost where half precision multiplies them.
BLOCK_SCALES = (*(part * 2.0**power for power in range(8) for part in (1, 1.5)), 256.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as it is stored; ``dtype`` is what safetensors calls it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, the same bytes every time.

    By hand: the library writes what numpy has types for, and those do not include FP8.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, one in sorted(tensors.items()):
        begin, end = end, end + len(one.data)
        header[name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(one.data for _, one in sorted(tensors.items()))
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def float32(values: Array) -> Tensor:
    """``values`` as float32."""
    return Tensor(dtype="F32", shape=values.shape, data=values.astype("<f4").tobytes())


def scale_of(value: float, *shape: int) -> Tensor:
    """The scale of a whole matrix, in float32."""
    return Tensor(dtype="F32", shape=shape, data=struct.pack("<f", value))


def bfloat16(values: Array) -> Tensor:
    """``values`` as bfloat16, the upper half of float32. Raises ValueError if it is not exact."""
    bits = values.astype("<f4").view("<u4")
    if (bits & 0xFFFF).any():
        raise ValueError("bfloat16 does not hold these values")
    return Tensor(dtype="BF16", shape=values.shape, data=(bits >> 16).astype("<u2").tobytes())


def e4m3_values() -> Array:
    """What the 256 codes of E4M3 (fn) stand for; codes 127 and 255 are NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(
        exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * np.exp2(exponent.astype(float) - 10)
    )
    size[[127, 255]] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


def e4m3(values: Array) -> Tensor:
    """``values`` in E4M3. Raises ValueError if it is not exact."""
    table = e4m3_values()[:127]
    codes = np.searchsorted(table, np.abs(values)).clip(max=126)
    if not np.array_equal(table[codes], np.abs(values)):
        raise ValueError("E4M3 does not hold these values")
    codes |= np.where(values < 0, 128, 0)
    return Tensor(dtype="F8_E4M3", shape=values.shape, data=codes.astype(np.uint8).tobytes())


def nvfp4(values: Array, scale: float) -> tuple[Tensor, Tensor]:
    """A matrix in E2M1, two codes a byte with the first in the lower half, and its block scales.

    A value can be written as several products of code and block scale. Rows and blocks take them
    in turn, so that a block with the scale of another has other values. ``scale`` is that of the
    matrix.

    Raises ValueError if it is not exact.
    """
    rows, columns = values.shape
    blocks = (values / np.float32(scale)).reshape(rows, columns // BLOCK, BLOCK)
    scales = np.zeros(blocks.shape[:2], np.float32)
    for row, column in zip(*np.nonzero(blocks.any(axis=2)), strict=True):
        found = _block_scales(frozenset(np.abs(blocks[row, column]).tolist()))
        scales[row, column] = found[(row + column) % len(found)]
    quotients = blocks / np.where(scales, scales, 1)[:, :, None]
    codes = np.searchsorted(E2M1, np.abs(quotients)) | np.where(quotients < 0, 8, 0)
    flat = codes.reshape(rows, columns).astype(np.uint8)
    packed = flat[:, 0::2] | flat[:, 1::2] << 4
    return (
        Tensor(dtype="U8", shape=packed.shape, data=packed.tobytes()),
        e4m3(scales),
    )


@cache
def _block_scales(values: frozenset[float]) -> tuple[float, ...]:
    """The scales with which E2M1 holds all ``values``. Raises ValueError if there is none."""
    codes = {*E2M1.tolist()}
    found = tuple(one for one in BLOCK_SCALES if all(value / one in codes for value in values))
    if not found:
        raise ValueError(f"E2M1 does not hold {sorted(values)} with any block scale")
    return found
