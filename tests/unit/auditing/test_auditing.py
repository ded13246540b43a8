"""What is wrong with the wheels of a cell, and what could not be found out."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.audited_wheels import FILES, NAMES, TENSOR, audited, changed, machine, subject
from support.elf_files import X86_64, Elf, wheel
from support.plans import deb

from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit, State
from imagefactory.auditing.reading import Reader
from imagefactory.auditing.verdicts import Verdict, Verdicts
from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import WHEELHOUSE, TorchBuild

#: A symbol of torch, one of CUDA's runtime, one that torch has loaded, and those of the platform.


def test_wheels_that_belong_together_are_good(tmp_path: Path) -> None:
    found = audited(tmp_path)
    assert (found.problems, found.unknown, found.state) == ((), None, State.GOOD)
    shown = {one.name: one.way for one in found.extensions}
    assert shown == {"_C": "family", "_flash_C": "none", "_D": "none"}
    assert auditing.error([found]) is None


LIB = "torch/lib/libc10.so"
RUNTIME = "nvidia/cu13/lib/libcudart.so.13"
EXTENSION = "vllm/_C.abi3.so"


@pytest.mark.parametrize(
    ("files", "code", "what", "fix"),
    [
        (
            changed("torch", LIB, Elf(exports=["_ZN2at6Tensor4plusEv"])),
            "audit-symbols",
            "_C of vllm 0.19.0 does not load with torch 2.12.0+cu130: 1 symbol is defined nowhere",
            "pin torch==2.10.0, which vllm 0.19.0 requires",
        ),
        (
            changed("runtime", RUNTIME, Elf(exports=["cudaFree@libcudart.so.13"])),
            "audit-symbols",
            "1 symbol is defined nowhere",
            "",
        ),
        (
            changed("runtime", RUNTIME, Elf(exports=["cudaMalloc@libcudart.so.12"])),
            "audit-symbols",
            "1 symbol is defined nowhere",
            "",
        ),
        (
            changed("vllm", "vllm/_moe_C.abi3.so", Elf(needed=["libcudart.so.12"])),
            "audit-library",
            "vllm 0.19.0 needs libcudart.so.12, which no locked wheel",
            "nvidia-cuda-runtime 13.0.96 has libcudart.so.13",
        ),
        (
            changed("vllm", "vllm/_moe_C.abi3.so", Elf(needed=["libtorch_cuda_linalg.so"])),
            "audit-library",
            "needs libtorch_cuda_linalg.so",
            "another vllm",
        ),
        (
            changed("torch", "other/libnear.so", Elf())
            | changed("vllm", "vllm/libfar/libfar.so", Elf())
            | {"vllm": {"vllm/libfar/libfar.so": Elf(), "vllm/_C.so": Elf(needed=["libfar.so"])}},
            "audit-library",
            "libfar.so, which vllm has at vllm/libfar/libfar.so, where the dynamic linker does not",
            "",
        ),
        (
            changed("vllm", "vllm/_x.so", Elf(imports=["f@GLIBC_2.38@libc.so.6"])),
            "audit-glibc",
            "vllm 0.19.0 needs GLIBC 2.38 (_x.so), and the base has 2.36",
            "choose a newer base",
        ),
        (
            changed(
                "torch", LIB, Elf(exports=[TENSOR], imports=["f@GLIBCXX_3.4.32@libstdc++.so.6"])
            ),
            "audit-glibcxx",
            "torch 2.12.0 needs GLIBCXX 3.4.32 (libc10.so), and the base has 3.4.30",
            "",
        ),
        (
            changed("vllm", "vllm/_moe_C.abi3.so", Elf(gpu=["sm_90a", "sm_120a"])),
            "audit-gpu",
            "_moe_C.abi3.so of vllm 0.19.0 has no code that a GPU of sm_121 runs: sm_120a, sm_90a",
            "",
        ),
        (
            changed("vllm", "vllm/gemm/_D.cpython-313-aarch64-linux-gnu.so", None),
            "audit-python",
            "vllm 0.19.0 has vllm/gemm/_D for Python 3.12 only",
            "choose a base with Python 3.12",
        ),
        (
            FILES | {"vllm": {"vllm/__init__.py": b"", "vllm.libs/libgomp.so.1": Elf()}},
            "audit-extensions",
            "vllm 0.19.0 has no compiled extensions: there is no shared library below vllm/",
            "take a wheel of vllm that has them, or compile it (`build`)",
        ),
        (
            {
                "vllm": {"vllm/spinloop.abi3.so": Elf()},
                "torch": {"torch/version.py": b"", "torchgen/x.so": Elf()},
            },
            "audit-extensions",
            "torch 2.12.0 has no compiled extensions: there is no shared library below torch/",
            "take a wheel of torch that has them",
        ),
        (
            changed("vllm", "vllm/_x.so", Elf(machine=X86_64)),
            "audit-machine",
            "vllm/_x.so of vllm-0.19.0-cp38-abi3-manylinux_2_31_aarch64.whl is for x86_64",
            "",
        ),
    ],
)
def test_wheels_that_do_not_belong_together_are_a_problem(
    tmp_path: Path, files: Any, code: str, what: str, fix: str
) -> None:
    found = audited(tmp_path, files)
    assert [(one.code, one.where) for one in found.problems] == [(code, "matrix.yaml:9")]
    assert what in found.problems[0].what
    assert fix in found.problems[0].fix
    assert isinstance(auditing.error([found]), CheckFailedError)


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"python": "3.7"}, ["audit-tags", "audit-tags", "audit-python"]),
        ({"glibc": "2.28"}, ["audit-tags", "audit-glibc"]),
        ({"channel": "cu126"}, ["torch-other-channel"]),
        ({"capability": 100}, []),  # by PTX
        ({"capability": 80}, ["audit-gpu"]),
        ({"capability": None}, []),
        ({"base": None}, []),
    ],
)
def test_the_target_decides(tmp_path: Path, changes: dict[str, Any], codes: list[str]) -> None:
    assert [one.code for one in audited(tmp_path, **changes).problems] == codes


EXTRA = "fast_sum-1.0-cp313-cp313-linux_aarch64.whl"


def with_extra(folder: Path, **libraries: Elf) -> Audit:
    """The audit of a cell with an extra that has these libraries."""
    files = {f"{name}.abi3.so": library for name, library in libraries.items()}
    extra = replace(wheel(folder, EXTRA, files), index=WHEELHOUSE)
    own = machine(folder)
    kept = wheelhouse.path_of(extra.sha256, extra.filename, own)
    wheelhouse.store(kept, folder / EXTRA)
    beside = subject(folder)
    resolution = replace(beside.resolution, wheels=(*beside.resolution.wheels, extra))
    return auditing.audit(replace(beside, resolution=resolution), Reader(own))


def test_an_extra_has_to_have_code_for_the_gpu_in_one_of_its_extensions(tmp_path: Path) -> None:
    hopper, spark, none = Elf(gpu=["sm_90a"]), Elf(gpu=["sm_121a"]), Elf()
    assert with_extra(tmp_path, _a=hopper, _b=spark).problems == ()
    assert with_extra(tmp_path, _a=none).problems == ()
    found = with_extra(tmp_path, _a=hopper, _b=none)
    (problem,) = found.problems
    assert problem.code == "audit-gpu"
    assert "fast-sum 1.0 has no code that a GPU of sm_121 runs: sm_90a" in problem.what
    assert "TORCH_CUDA_ARCH_LIST" in problem.fix


def test_the_symbols_of_an_extra_are_looked_up_like_those_of_vllm(tmp_path: Path) -> None:
    found = with_extra(tmp_path, _a=Elf(needed=["libc10.so"], imports=["_ZN2at4goneEv"]))
    assert [one.code for one in found.problems] == ["audit-symbols"]
    assert "_a of fast-sum 1.0 does not load" in found.problems[0].what


def test_any_shared_library_below_the_package_counts(tmp_path: Path) -> None:
    path = "vllm-0.19.0.data/platlib/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"
    assert audited(tmp_path, FILES | {"vllm": {path: Elf(), "vllm/x.py": b""}}).problems == ()


def test_an_extension_of_another_project_for_another_python_is_only_a_note(tmp_path: Path) -> None:
    path = "vllm/third_party/deep_gemm/_C.cpython-312-aarch64-linux-gnu.so"
    found = audited(tmp_path, changed("vllm", path, Elf()))
    assert found.state is State.GOOD
    assert found.notes == ("vllm 0.19.0 has vllm/third_party/deep_gemm/_C for Python 3.12 only",)


def test_an_image_of_a_registry_may_have_any_library_but_those_of_wheels(tmp_path: Path) -> None:
    base = subject(tmp_path).base
    assert base
    image = replace(base, suite=None, digest="sha256:1", debs=())
    for needed, codes in (("libnuma.so.1", []), ("libcudart.so.12", ["audit-library"])):
        files = changed("vllm", "vllm/_x.so", Elf(needed=[needed]))
        assert [one.code for one in audited(tmp_path, files, base=image).problems] == codes


def test_a_cpu_build_of_torch_lacks_the_libraries_of_cuda(tmp_path: Path) -> None:
    build = TorchBuild(version="2.10.0+cpu", cuda=None)
    files = changed("torch", "torch/lib/libtorch_cuda.so", None)
    found = audited(tmp_path, files, torch=build)
    cpu, library, _ = found.problems
    assert (cpu.code, library.code) == ("torch-cpu-build", "audit-library")
    assert "torch 2.10.0+cpu is a CPU build" in library.fix


def test_a_package_of_the_base_counts_only_if_the_base_has_it(tmp_path: Path) -> None:
    base = subject(tmp_path).base
    assert base
    without = replace(base, debs=(deb("libstdc++6", "12.2"),))
    (problem,) = audited(tmp_path, base=without).problems
    assert "needs libnuma.so.1, which no locked wheel and no package" in problem.what


def test_a_wheel_that_cannot_be_read_is_never_good(tmp_path: Path) -> None:
    known = subject(tmp_path)
    (tmp_path / NAMES["runtime"]).unlink()
    found = auditing.audit(known, Reader(machine(tmp_path)))
    assert found.state is State.UNKNOWN
    assert found.unknown
    assert found.unknown.code == "not-audited"
    assert f"cell is not audited: {NAMES['runtime']}: not found" in found.unknown.what
    assert isinstance(auditing.error([found]), SetupError)
    damaged = audited(
        tmp_path, changed("vllm", EXTENSION, None) | {"vllm": {EXTENSION: b"\x7fELF"}}
    )
    assert (damaged.state, "cannot be read" in damaged.unknown.what) == (State.UNKNOWN, True)  # type: ignore[union-attr]


def _rewritten(data: bytes, method: int, flags: int = 0) -> bytes:
    """A wheel whose first member claims to be compressed by ``method``."""
    found, entry = bytearray(data), data.index(b"PK\x01\x02")
    for at in (6, entry + 8):
        struct.pack_into("<HH", found, at, flags, method)
    return bytes(found)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (partial(_rewritten, method=8), "invalid"),
        (partial(_rewritten, method=99), "compression method is not supported"),
        (partial(_rewritten, method=14), "Corrupt|CRC"),
        (partial(_rewritten, method=8, flags=1), "is encrypted"),
        (lambda data: data[: len(data) // 2], "not a zip file"),
        (lambda _: b"<html>log in</html>", "not a zip file"),
    ],
    ids=["no-deflate", "unknown-method", "no-lzma", "encrypted", "cut-off", "a-page"],
)
def test_a_damaged_wheel_is_never_good_and_no_error_of_ours(
    tmp_path: Path, damage: Callable[[bytes], bytes], why: str
) -> None:
    known, path = subject(tmp_path), tmp_path / NAMES["vllm"]
    data = damage(path.read_bytes())
    path.write_bytes(data)
    wheels = tuple(
        replace(one, sha256=hashlib.sha256(data).hexdigest()) if one.name == "vllm" else one
        for one in known.resolution.wheels
    )
    known = replace(known, resolution=replace(known.resolution, wheels=wheels))
    found = auditing.audit(known, Reader(machine(tmp_path)))
    assert found.unknown
    assert re.search(why, found.unknown.what), found.unknown.what


def test_what_was_read_is_kept_by_the_hash_of_the_wheel(tmp_path: Path) -> None:
    known = subject(tmp_path)
    first = auditing.audit(known, Reader(machine(tmp_path)))
    for name in NAMES.values():
        (tmp_path / name).unlink()
    again = auditing.audit(known, Reader(machine(tmp_path)))
    assert replace(again, seconds=0) == replace(first, seconds=0)
    for path in (tmp_path / "cache" / "audits").rglob("*.json"):
        path.write_text('{"gpu": 1}')
    assert auditing.audit(known, Reader(machine(tmp_path))).state is State.UNKNOWN


def test_a_verdict_is_kept_for_the_same_wheels_base_and_gpu(tmp_path: Path) -> None:
    known, verdicts = subject(tmp_path), Verdicts(machine(tmp_path))
    made = audited(tmp_path, changed("torch", LIB, Elf()))
    verdict = Verdict(made.problems, ("a note",), made.extensions)
    verdicts.keep(known, verdict)
    found = verdicts.find(replace(known, where="matrix.yaml:1"))
    assert found
    assert (found.extensions, found.notes) == (verdict.extensions, verdict.notes)
    assert found.problems == tuple(replace(one, where=None) for one in verdict.problems)
    for other in (
        replace(known, capability=90),
        replace(known, base=None),
        replace(known, resolution=replace(known.resolution, wheels=known.resolution.wheels[:2])),
        replace(known, resolution=replace(known.resolution, glibc="2.41")),
    ):
        assert verdicts.find(other) is None


def test_a_verdict_by_earlier_rules_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, verdicts = subject(tmp_path), Verdicts(machine(tmp_path))
    monkeypatch.setattr("imagefactory.auditing.verdicts.RULES", 1)  # without audit-extensions
    verdicts.keep(known, Verdict((), (), ()))
    assert verdicts.find(known)
    monkeypatch.undo()
    assert verdicts.find(known) is None
