"""Files of tuned configurations: what their names say, and what is wrong with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefactory.errors import Problem
from imagefactory.system import strict_json
from imagefactory.tuning.release import Release

#: What vLLM calls the GPU of a DGX Spark in the name of a file.
GB10 = "NVIDIA_GB10"
#: A key beside the batch sizes, which vLLM ignores.
TRITON = "triton_version"
#: Bytes of a file; one for all batch sizes has some 4 kB.
LARGEST = 1 << 20
_NAME = re.compile(
    r"E=(?P<experts>[1-9][0-9]*),N=(?P<size>[1-9][0-9]*),device_name=(?P<device>[^,/\s]+)"
    r"(?:,dtype=(?P<dtype>[^,/]+))?(?:,block_shape=\[(?P<n>[0-9]+),(?P<k>[0-9]+)\])?\.json"
)
#: Tile sizes, and how many warps work on one: Triton takes powers of two alone.
_POWERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a file is for, as its name says it.

    Attributes:
        experts: how many there are.
        size: the intermediate size of one on each GPU.
        device: the GPU.
        dtype: how weights are quantized; empty if they are not.
        block: the sides of the blocks that share a scale, if there are blocks.
    """

    experts: int
    size: int
    device: str
    dtype: str = ""
    block: tuple[int, int] | None = None


def shape_of(name: str) -> Shape | None:
    """What the name of a file says; None if vLLM names no file like this."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Shape(
        experts=int(found["experts"]),
        size=int(found["size"]),
        device=found["device"],
        dtype=found["dtype"] or "",
        block=(int(found["n"]), int(found["k"])) if found["n"] else None,
    )


def check(
    name: str,
    content: bytes,
    release: Release,
    *,
    device: str,
    batch_sizes: Sequence[int] = (),
    where: str | None = None,
) -> list[Problem]:
    """What is wrong with a file for ``release`` on ``device``.

    It has to have ``batch_sizes``, or those that the release tries by default.
    """
    found = [*_of_name(name, release, device), *_of_text(name, content, release, batch_sizes)]
    return [
        Problem(code=f"tuning-{code}", where=where or name, what=what, fix=fix)
        for code, what, fix in found
    ]


_Wrong = Iterator[tuple[str, str, str]]
_AGAIN = "tune again: imagefactory tune"


def _of_name(name: str, release: Release, device: str) -> _Wrong:
    shape = shape_of(name)
    if shape is None:
        example = f"E=512,N=512,device_name={GB10},dtype=fp8_w8a8,block_shape=[128,128].json"
        what = f"vLLM {release.version} looks for no file of this name"
        yield "name", what, f"name it as vLLM's log does: {example}"
        return
    if shape.device != device:
        what = f"it is for {shape.device}, and {device} ignores it"
        yield "device", what, "tune on the machine that it is for, or check it with --device"
    if shape.dtype and shape.dtype not in release.dtypes:
        what = f"vLLM {release.version} has no dtype {shape.dtype}, and looks for no such file"
        yield "dtype", what, f"it is one of {', '.join(sorted(release.dtypes))}, or left out"


def _of_text(name: str, content: bytes, release: Release, batch_sizes: Sequence[int]) -> _Wrong:
    try:
        data = strict_json.loads(content, LARGEST)
    except ValueError as error:
        what = f"it is not JSON: {error}" if content.strip() else "it is empty"
        yield "format", f"{what}; vLLM does not start with it", _AGAIN
        return
    if not isinstance(data, dict):
        yield "format", "it is not a JSON object; vLLM does not start with it", _AGAIN
        return
    rows = {key: row for key, row in data.items() if key != TRITON}
    block = shape.block if (shape := shape_of(name)) else None
    for key, row in rows.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) > 0):
            yield "batch", f"{key!r:.40} is no batch size; vLLM does not start with it", _AGAIN
        else:
            yield from _of_row(key, row, release, block)
    wanted = batch_sizes or release.batch_sizes
    missing = [str(one) for one in wanted if str(one) not in rows]
    if missing:
        what = f"it has no configuration for batch sizes {', '.join(missing)}"
        yield "batch", what, "tune them too, or say with --batch-size which it should have"


def _of_row(batch: str, row: object, release: Release, block: tuple[int, int] | None) -> _Wrong:
    of = f"batch size {batch}"
    if not isinstance(row, dict):
        yield "format", f"{of} has no object of settings, but {row!r:.40}", _AGAIN
        return
    unknown = row.keys() - release.required - release.optional
    if unknown:
        what = f"{of} has {', '.join(sorted(unknown))}, which the kernel of vLLM {release.version}"
        yield "key", f"{what} does not take: its first request fails", "remove it, or tune again"
    missing = release.required - row.keys()
    if missing:
        what = f"{of} lacks {', '.join(sorted(missing))}, which the kernel needs"
        yield "key", what, _AGAIN
    yield from _of_values(of, {key: row[key] for key in row if key not in unknown}, block)


def _of_values(of: str, row: Mapping[str, Any], block: tuple[int, int] | None) -> _Wrong:
    for key, value in row.items():
        if type(value) is not int or value < 1:
            yield "value", f"{of} has {key} {value!r:.40}: it must be a positive integer", _AGAIN
        elif key in _POWERS and value & (value - 1):
            yield "value", f"{of} has {key} {value}, which is no power of two", _AGAIN
        elif block and all(block) and key in ("BLOCK_SIZE_N", "BLOCK_SIZE_K"):
            side = block[key == "BLOCK_SIZE_K"]
            if value % side and side % value:
                what = f"{of} has {key} {value}, which does not fit blocks of {side}"
                yield "value", what, _AGAIN
