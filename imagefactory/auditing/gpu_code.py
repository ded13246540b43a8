"""GPU code in an extension: which GPUs its fat binaries are for, read from their headers.

A fat binary is a header and entries, one for each target: machine code (cubin) or PTX, which a
driver compiles. An entry's header names the target, and by two flags whether the code is for that
GPU alone (``sm_120a``) or for its family (``sm_120f``). cuobjdump does not print the latter.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAGIC = b"\x50\xed\x55\xba"
_OUTER, _ENTRY = struct.Struct("<4sHHQ"), struct.Struct("<HHIQIIHHIIIQ")
_PTX, _CUBIN = 1, 2
#: Flags of an entry's header, as nvcc sets them for ``sm_120a`` and ``sm_120f``.
_ONE_GPU, _FAMILY = 1 << 20, 1 << 21
#: The largest entry header and the largest fat binary that are believed.
_LONGEST_HEADER, _LARGEST = 1 << 12, 1 << 36


class Way(StrEnum):
    """How a GPU runs an extension's code, the best way first."""

    NATIVE = "native"
    FAMILY = "family"
    COMPATIBLE = "compatible"
    PTX = "PTX"
    NONE = "none"


_ORDER = tuple(Way)


class Finder:
    """Finds fat binaries in a library that is read from beginning to end.

    ``targets`` counts entries by target, such as ``sm_120f`` or ``compute_90`` (PTX); ``damaged``
    counts fat binaries that could not be read to their end.
    """

    def __init__(self) -> None:
        self.targets: Counter[str] = Counter()
        self.damaged = 0
        self._rest = b""
        #: Bytes to skip, and bytes that are left of the fat binary around them.
        self._skip = self._left = 0

    def feed(self, data: bytes) -> None:
        """Read on in ``data``, which follows what was read before."""
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        data = self._rest + data[self._skip :]
        self._rest, self._skip, at = b"", 0, 0
        while at < len(data):
            step = self._entry(data, at) if self._left else self._outer(data, at)
            if step is None:
                return
            at = step
        self._skip = at - len(data)

    def _outer(self, data: bytes, at: int) -> int | None:
        """The position after the next header; None if it is not in ``data`` yet."""
        found = data.find(MAGIC, at)
        if found < 0:
            self._rest = data[max(at, len(data) - len(MAGIC) + 1) :]
            return None
        if len(data) - found < _OUTER.size:
            self._rest = data[found:]
            return None
        version, header, size = map(int, _OUTER.unpack_from(data, found)[1:])
        if (version, header) != (1, _OUTER.size) or size > _LARGEST:
            return found + len(MAGIC)  # the bytes of an instruction
        self._left = size
        return found + header

    def _entry(self, data: bytes, at: int) -> int | None:
        """The position after the next entry; None if its header is not in ``data`` yet."""
        if self._left < _ENTRY.size:
            skipped, self._left = self._left, 0
            return at + skipped
        if len(data) - at < _ENTRY.size:
            self._rest = data[at:]
            return None
        row = [int(one) for one in _ENTRY.unpack_from(data, at)]
        kind, _, header, payload, *_, sm, _, _, flags = row
        size = header + payload
        if not _ENTRY.size <= header <= _LONGEST_HEADER or size > self._left:
            self.damaged += 1
            size = self._left
        elif kind in {_PTX, _CUBIN}:
            suffix = "f" if flags & _FAMILY else "a" if flags & _ONE_GPU else ""
            self.targets[f"{'compute' if kind == _PTX else 'sm'}_{sm}{suffix}"] += 1
        self._left -= size
        return at + size


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """The GPU code of one extension.

    Attributes:
        targets: how many pieces there are, by target: ``sm_120f``, ``compute_90`` (PTX).
        damaged: fat binaries that could not be read to their end.
    """

    targets: Mapping[str, int] = field(default_factory=dict)
    damaged: int = 0

    def way(self, capability: int) -> Way:
        """The best way in which a GPU of ``capability``, such as 121, runs any of it."""
        ways = [_way(target, capability) for target in self.targets]
        return min(ways, key=_ORDER.index, default=Way.NONE)

    def count(self, capability: int, way: Way) -> int:
        """How many pieces that GPU runs in this ``way``."""
        return sum(n for target, n in self.targets.items() if _way(target, capability) is way)


def _way(target: str, capability: int) -> Way:
    """How a GPU runs the code for ``target``.

    Code for one GPU runs on no other; code for a family runs on its later members. Other machine
    code runs on later GPUs of its generation, without what is special to them, and other PTX on all
    later GPUs.
    """
    kind, _, name = target.partition("_")
    suffix = name[-1] if name[-1] in "af" else ""
    sm = int(name.removesuffix(suffix))
    same_generation = sm // 10 == capability // 10 and sm <= capability
    if suffix == "a" and sm != capability:
        return Way.NONE
    if kind == "compute":
        return Way.PTX if same_generation or (sm <= capability and not suffix) else Way.NONE
    if sm == capability:
        return Way.NATIVE
    if not same_generation:
        return Way.NONE
    return Way.FAMILY if suffix == "f" else Way.COMPATIBLE
