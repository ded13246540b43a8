"""What is read of shared libraries, and of the GPU code in them."""

from __future__ import annotations

import io
import random

import pytest
from support import ROOT
from support.elf_files import Elf, fat_binary

from imagefactory.auditing import elf
from imagefactory.auditing.elf import Import, UnreadableError
from imagefactory.auditing.gpu_code import Finder, GpuCode, Way

FATBINS = ROOT / "tests" / "data" / "fatbins"


def read(library: Elf | bytes) -> elf.Library:
    data = library if isinstance(library, bytes) else library.build()
    return elf.read(io.BytesIO(data).read)


@pytest.mark.parametrize("moved", [False, True])
def test_a_library_is_read_wherever_its_tables_are(moved: bool) -> None:
    found = read(
        Elf(
            needed=["liba.so.1", "libb.so"],
            imports=["plain", "open@GLIBC_2.17@libc.so.6", "new@GLIBCXX_3.4@libstdc++.so.6"],
            weak=["__gmon_start__"],
            exports=["first", "second@V_2"],
            runpath="$ORIGIN:$ORIGIN/../lib",
            gpu=["sm_120f", "sm_120f", "compute_90"],
            moved=moved,
        )
    )
    assert found.machine == "EM_AARCH64"
    assert found.needed == ("liba.so.1", "libb.so")
    assert found.runpath == ("$ORIGIN", "$ORIGIN/../lib")
    assert found.imports == (
        Import("plain"),
        Import("open", "GLIBC_2.17", "libc.so.6"),
        Import("new", "GLIBCXX_3.4", "libstdc++.so.6"),
    )
    assert found.exports == b"".join(n.tobytes() for n in sorted(elf.hashed(["first", "second"])))
    assert found.defines == {"V_2"}
    assert found.versions == {"libc.so.6": ("GLIBC_2.17",), "libstdc++.so.6": ("GLIBCXX_3.4",)}
    assert found.gpu.targets == {"sm_120f": 2, "compute_90": 1}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a shared library"),
        (b"#!/bin/sh\n", "not a shared library"),
        (Elf().build()[:200], "not a shared library"),
        (Elf(needed=["liba.so"], exports=["a"]).build()[:-300], "not a shared library"),
        (b"\x7fELF\x01\x01\x01" + bytes(60), "64-bit"),
    ],
)
def test_what_is_no_library_or_ends_early_cannot_be_read(data: bytes, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        read(data)


#: Damage after which the file was read for ever, or ended in an error of the parser's own.
DAMAGE = (33, 49, 262, 302, 533, 815, 876)


@pytest.mark.parametrize("seed", DAMAGE)
def test_a_damaged_library_is_unreadable_at_once(seed: int) -> None:
    versioned = ["plain", "open@GLIBC_2.17@libc.so.6", "new@GLIBCXX_3.4@libstdc++.so.6"]
    exports, needed = ["first", "second@V_2"], ["liba.so.1"]
    data = bytearray(
        Elf(needed=needed, imports=versioned, exports=exports, runpath="$ORIGIN").build()
    )
    chosen = random.Random(seed)  # noqa: S311 - equal in each run
    for _ in range(4):
        data[chosen.randrange(len(data))] = chosen.choice((0, 255, chosen.randrange(256)))
    with pytest.raises(UnreadableError):
        read(bytes(data))


def test_fat_binaries_of_nvcc_are_found_in_pieces_of_any_size() -> None:
    data = b"".join(
        [
            b"some code \x50\xed\x55\xba, not a header",
            (FATBINS / "one-gpu.fatbin").read_bytes(),
            bytes(100),
            (FATBINS / "family.fatbin").read_bytes(),
            fat_binary("sm_121"),
        ]
    )
    wanted = {"sm_120a": 1, "compute_121a": 1, "compute_120f": 1, "sm_121": 1}
    for size in (1, 7, 64, len(data)):
        finder = Finder()
        for at in range(0, len(data), size):
            finder.feed(data[at : at + size])
        assert (finder.targets, finder.damaged) == (wanted, 0)


def test_a_fat_binary_that_cannot_be_read_is_counted() -> None:
    finder = Finder()
    damaged = bytearray(fat_binary("sm_120"))
    damaged[20:24] = b"\xff" * 4  # the length of the entry's header
    finder.feed(bytes(damaged) + fat_binary("sm_90"))
    assert (finder.targets, finder.damaged) == ({"sm_90": 1}, 1)


@pytest.mark.parametrize(
    ("targets", "way"),
    [
        (["sm_121"], Way.NATIVE),
        (["sm_121a", "sm_120"], Way.NATIVE),
        (["sm_120f", "sm_120"], Way.FAMILY),
        (["sm_120", "compute_90"], Way.COMPATIBLE),
        (["compute_80", "sm_80"], Way.PTX),
        (["compute_120f"], Way.PTX),
        (["sm_120a"], Way.NONE),
        (["compute_120a"], Way.NONE),
        (["compute_100f"], Way.NONE),
        (["sm_100f", "sm_90a", "sm_110"], Way.NONE),
        (["sm_122", "compute_122"], Way.NONE),
        ([], Way.NONE),
    ],
)
def test_the_best_way_in_which_a_gb10_runs_code(targets: list[str], way: Way) -> None:
    assert GpuCode(targets=dict.fromkeys(targets, 1)).way(121) is way
