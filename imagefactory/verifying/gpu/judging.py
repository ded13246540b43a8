"""Judges the report of the probes: a verdict for each, from what it observed.

Standard library only, and no import from imagefactory: ``probe_runner.py`` loads it in any Python.
Where a report has another shape than that of the probes, functions raise LookupError, TypeError or
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

PASS, FAIL, SKIP = "pass", "fail", "skip"
#: Relative errors that products may have: of the rounding to bf16, and of FP8's accumulators.
LARGEST_ERROR = {"gemm-bf16": 0.004, "gemm-fp8": 0.01, "flashinfer": 0.01}
#: How much two figures for the same memory may differ.
LARGEST_DIFFERENCE = 0.25
ALL_INPUTS = 1 << 32

Facts = Mapping[str, Any]


class Judged(NamedTuple):
    """A verdict on one probe; ``excused`` is a skip because the GPU itself lacks something."""

    outcome: str
    detail: str
    excused: bool = False


def judge(name: str, report: Facts) -> Judged:
    """The verdict on the probe ``name`` of a report of ``probe_runner.py``."""
    ran = report["probes"].get(name)
    if ran is None:
        return Judged(FAIL, "the report has no such probe")
    if ran["error"]:
        return Judged(FAIL, str(ran["error"]))
    facts = ran["facts"]
    if "unsupported" in facts:
        return _unsupported(name, str(facts["unsupported"]), report)
    if "missing" in facts:
        return Judged(SKIP, str(facts["missing"]))
    return JUDGES[name](name, facts)


def _unsupported(name: str, reason: str, report: Facts) -> Judged:
    """Only a GPU that is known to lack something is excused."""
    major, minor = report["probes"]["identity"]["facts"]["capability"]
    if (major, minor) < NEEDS.get(name, (0, 0)):
        return Judged(SKIP, f"not on this GPU: {reason}", excused=True)
    return Judged(FAIL, f"left out on sm_{major}{minor}, which has it: {reason}")


def _identity(_: str, facts: Facts) -> Judged:
    major, minor = facts["capability"]
    target = f"sm_{major}{minor}"
    driver, runtime = tuple(facts["driver_cuda"]), tuple(facts["runtime_cuda"])
    faults = []
    if driver < runtime and not facts["forward_compatible"] and driver[0] != runtime[0]:
        faults.append(f"the driver is for CUDA {_dotted(driver)}, torch for {_dotted(runtime)}")
    archs = [str(arch) for arch in facts["archs"]]
    if not any(_runs(arch, major, minor) for arch in archs):
        faults.append(f"torch has no code for {target}: {', '.join(archs) or 'none'}")
    if facts["sum"] != 2000:
        faults.append(f"1000 times 1 + 1 is {facts['sum']}")
    compat = ", by forward compatibility" if facts["forward_compatible"] else ""
    said = f"{facts['name']}, {target}, driver {facts['driver'] or 'unknown'} (CUDA "
    said += f"{_dotted(driver)}{compat}), torch's CUDA {_dotted(runtime)}"
    return Judged(FAIL, "; ".join(faults)) if faults else Judged(PASS, said)


def _runs(arch: str, major: int, minor: int) -> bool:
    """Whether code for ``arch`` (sm_80, sm_90a, compute_90) runs on a GPU of a capability."""
    kind, _, text = arch.partition("_")
    number = int(text.rstrip("af"))
    if text.endswith("a"):
        return (number // 10, number % 10) == (major, minor)
    if kind == "compute":
        return number <= major * 10 + minor
    return number // 10 == major and number % 10 <= minor


def _gemm(name: str, facts: Facts) -> Judged:
    exact, error = facts["exact"], facts.get("error", 0.0)
    wrong = [one for one in exact if one["wrong"]]
    if wrong or not exact:
        shown = "; ".join(
            f"{one['wrong']} of {one['elements']} elements wrong in {_by(one['shape'])}"
            for one in wrong
        )
        return Judged(FAIL, shown or "nothing was compared")
    if not error <= LARGEST_ERROR.get(name, 0.0):
        return Judged(FAIL, f"relative error {error:.2g}, at most {LARGEST_ERROR.get(name, 0):g}")
    shapes = ", ".join(_by(one["shape"]) for one in exact)
    return Judged(PASS, f"{shapes} exact; relative error of random values {error:.1e}")


def _triton(_: str, facts: Facts) -> Judged:
    major, minor = facts["capability"]
    if facts["arch"] != major * 10 + minor:
        return Judged(FAIL, f"compiled for sm_{facts['arch']}, this GPU is sm_{major}{minor}")
    return _counted(facts, f"Triton {facts['version']} compiled for sm_{facts['arch']}")


def _flashinfer(name: str, facts: Facts) -> Judged:
    if not facts["compiled"]:
        return Judged(FAIL, "nothing was compiled")
    if not facts["error"] <= LARGEST_ERROR[name]:
        limit = LARGEST_ERROR[name]
        return Judged(FAIL, f"RMSNorm has a relative error of {facts['error']:.2g}, over {limit:g}")
    made = ", ".join(sorted(str(one) for one in facts["compiled"]))
    said = f"FlashInfer {facts['version']} compiled {made}; relative error {facts['error']:.1e}"
    return Judged(PASS, said)


def _e2m1(_: str, facts: Facts) -> Judged:
    if facts["inputs"] != ALL_INPUTS:
        return Judged(FAIL, f"{facts['inputs']} of {ALL_INPUTS} inputs were compared")
    if facts["wrong"]:
        return Judged(FAIL, f"{facts['wrong']} inputs are wrong, the first {facts['first_wrong']}")
    return Judged(PASS, "right for all 2^32 inputs")


def _memory(_: str, facts: Facts) -> Judged:
    if facts["wrong"]:
        return Judged(FAIL, f"{facts['wrong']} words of {_gib(facts['bytes'])} were lost")
    kernel, cuda = facts["meminfo_total"], facts["cuda_total"]
    if not kernel or not cuda:
        return Judged(FAIL, f"no figure: /proc/meminfo {_gib(kernel)}, CUDA {_gib(cuda)}")
    said = f"CUDA {_gib(facts['cuda_free'])} free of {_gib(cuda)}"
    smi = str(facts["smi_total"]) or "nothing"
    if not facts["integrated"]:
        return Judged(PASS, f"{said}; nvidia-smi says {smi}")
    if abs(kernel - cuda) > LARGEST_DIFFERENCE * kernel:
        return Judged(FAIL, f"unified, but /proc/meminfo has {_gib(kernel)} and CUDA {_gib(cuda)}")
    available = _gib(facts["meminfo_available"])
    said += f"; unified: /proc/meminfo has {available} available of {_gib(kernel)}"
    return Judged(PASS, f"{said}, nvidia-smi says {smi}")


def _counted(facts: Facts, said: str) -> Judged:
    if facts["wrong"] or not facts["elements"]:
        return Judged(FAIL, f"{facts['wrong']} of {facts['elements']} elements wrong: {said}")
    return Judged(PASS, f"{said}; {facts['elements']} elements right")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _by(shape: list[int]) -> str:
    return "x".join(str(size) for size in shape)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


JUDGES: Mapping[str, Callable[[str, Facts], Judged]] = {
    "identity": _identity,
    "gemm-bf16": _gemm,
    "gemm-fp8": _gemm,
    "gemm-fp4": _gemm,
    "triton": _triton,
    "flashinfer": _flashinfer,
    "e2m1-software": _e2m1,
    "e2m1-hardware": _e2m1,
    "memory": _memory,
}
#: The compute capability from which on GPUs have what a probe needs; all others run everywhere.
NEEDS: Mapping[str, tuple[int, int]] = {
    "gemm-fp8": (8, 9),
    "gemm-fp4": (10, 0),
    "e2m1-hardware": (10, 0),
}
