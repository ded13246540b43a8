"""The check that the image can compile, at run time, for the GPU that it is made for."""

from __future__ import annotations

from imagefactory.verifying.check_registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject


@check("toolchain", needs=("facts", "manifest"))
def compile_for_the_gpu(subject: Subject) -> Verdict:
    """``ptxas`` and ``nvcc`` make code with FP4 conversions for the GPU in TORCH_CUDA_ARCH_LIST.

    Fails for a compiler that is missing or of another CUDA release than its headers, or a target
    without its suffix (plain ``sm_121``). Images without a toolchain, of their own or of their
    base, have nothing to check. Where the image is emulated, only the code for the GPU is compiled.
    """
    toolchain, home = subject.manifest.get("toolchain") or {}, subject.manifest.get("cuda_home")
    if not toolchain and not home:
        return passed("no toolchain in this image")
    facts = subject.facts["compilers"]
    seconds, target = facts["seconds"], facts["architecture"]
    faults = [f"{named} does not exist" for named in facts["missing"]]
    faults += [
        f"{program} for {target} {_end(facts[program])}"
        for program in ("ptxas", "nvcc")
        if facts[program]["code"] != 0
    ]
    if not faults and not facts["hardware_conversions"]:
        faults.append(f"nvcc for {target} makes no FP4 instruction: the target lacks its suffix")
    if faults:
        return failed("; ".join(faults), seconds=seconds)
    version = toolchain.get("nvidia-cuda-nvcc", f"in {home}")
    return passed(f"nvcc {version} compiles FP4 for {target}", seconds=seconds)


def _end(done: dict[str, object]) -> str:
    lines = str(done["output"]).strip().splitlines()
    last = lines[-1] if lines else "no output"
    return f"exits {done['code']}: {last}" if done["code"] is not None else f"does not run: {last}"
