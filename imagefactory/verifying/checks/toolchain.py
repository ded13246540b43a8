"""Can the image compile what is compiled at run time, for the GPU that it is made for?"""

from __future__ import annotations

from imagefactory.verifying.registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject


@check("toolchain", needs="facts")
def toolchain(subject: Subject) -> Verdict:
    """The compilers that the environment names are there.

    Ptxas and nvcc make code for the GPU, FP4 in hardware.
    """
    facts = subject.facts.get("toolchain")
    if facts is None:
        return passed("no toolchain in this image")
    seconds, target = facts["seconds"], facts["architecture"]
    faults = [f"{named} is not there" for named in facts["missing"]]
    faults += [
        f"{program} for {target} exits {facts[program]['code']}: {_last(facts[program]['output'])}"
        for program in ("ptxas", "nvcc")
        if facts[program]["code"] != 0
    ]
    if not faults and not facts["hardware_conversions"]:
        faults.append(f"nvcc for {target} makes no FP4 instruction: the target has lost its suffix")
    if faults:
        return failed("; ".join(faults), seconds=seconds)
    versions = subject.manifest["toolchain"]
    return passed(
        f"nvcc {versions.get('nvidia-cuda-nvcc', '?')} compiles FP4 for {target}", seconds=seconds
    )


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
