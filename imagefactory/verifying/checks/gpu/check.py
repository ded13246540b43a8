"""The checks that an image computes right on the GPU of this machine.

They judge what the probes in ``verifying/gpu`` reported from a container. A GPU that lacks an
instruction excuses its check; a library that is not there does not.
"""

from __future__ import annotations

from imagefactory.verifying.check_registry import Verdict, check, excused, failed, passed, unknown
from imagefactory.verifying.gpu import judging
from imagefactory.verifying.subject import Subject


@check("gpu-identity", needs="gpu")
def identity(subject: Subject) -> Verdict:
    """Driver, CUDA runtime and torch's code fit the GPU, and one of torch's kernels runs.

    Fails for a driver that is too old without forward compatibility, and for a torch without code
    for this GPU.
    """
    return _judged("identity", subject)


@check("gpu-gemm-bf16", needs="gpu")
def gemm_bf16(subject: Subject) -> Verdict:
    """Products of matrices in bf16 are exact for small integers, and near for random values.

    Fails for a single element that is not the nearest bf16, as after a wrong order or rounding.
    """
    return _judged("gemm-bf16", subject)


@check("gpu-gemm-fp8", needs="gpu", excusable=True)
def gemm_fp8(subject: Subject) -> Verdict:
    """Products of matrices in FP8 with scales are exact for small integers, and near for others.

    Fails for a single wrong element. A GPU without FP8 is excused.
    """
    return _judged("gemm-fp8", subject)


@check("gpu-gemm-fp4", needs="gpu", excusable=True)
def gemm_fp4(subject: Subject) -> Verdict:
    """Products of matrices in NVFP4, with block scales, are exact.

    Fails for a single wrong element. A GPU without FP4 is excused.
    """
    return _judged("gemm-fp4", subject)


@check("gpu-triton", needs="gpu")
def triton(subject: Subject) -> Verdict:
    """A Triton kernel is compiled for this very GPU, and computes right.

    Fails for code for another architecture, and for wrong sums.
    """
    return _judged("triton", subject)


@check("gpu-flashinfer", needs="gpu")
def flashinfer(subject: Subject) -> Verdict:
    """FlashInfer's JIT compiles a kernel in the image, and it computes right.

    Fails for wrong values. Without FlashInfer or nvcc nothing is shown.
    """
    return _judged("flashinfer", subject)


@check("gpu-e2m1-software", needs="gpu")
def e2m1_software(subject: Subject) -> Verdict:
    """The conversion to E2M1 in software is right for all 2^32 inputs.

    Fails for a single input, such as a tie or a negative NaN.
    """
    return _judged("e2m1-software", subject)


@check("gpu-e2m1-hardware", needs="gpu", excusable=True)
def e2m1_hardware(subject: Subject) -> Verdict:
    """The instruction that converts to E2M1 is right for all 2^32 inputs.

    Fails for a single input. A GPU without the instruction is excused.
    """
    return _judged("e2m1-hardware", subject)


@check("gpu-memory", needs="gpu")
def memory(subject: Subject) -> Verdict:
    """1 GiB is read as it was written, and the memory is known: on unified memory by the kernel.

    Fails for a lost write, and for figures of kernel and CUDA that contradict each other.
    """
    return _judged("memory", subject)


def _judged(name: str, subject: Subject) -> Verdict:
    run = subject.gpu
    if run is None or run.report is None:
        return failed(run.error if run else "the probes did not run")
    judged = judging.judge(name, run.report)
    seconds = run.report["probes"].get(name, {}).get("seconds", 0.0)
    if judged.outcome == judging.SKIP:
        return excused(judged.detail) if judged.excused else unknown(judged.detail)
    verdict = passed if judged.outcome == judging.PASS else failed
    return verdict(judged.detail, seconds=seconds)
