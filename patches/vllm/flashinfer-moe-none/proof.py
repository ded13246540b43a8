"""Runs vLLM's choice of experts for NVFP4 on capability 12.1: does a class come with the backend?

``select_nvfp4_moe_backend`` and ``backend_to_kernel_cls`` run with stand-ins for the classes that
they import; every class says that it can do the layer, but for FlashInfer's TRT-LLM kernels, which
refuse 12.x. Asked in each way in which a user can ask for FlashInfer, and not asked at all, the
answer must be a backend that was asked for, together with its own class: with None instead, the
layer that is built from it stops at an assertion. Where TRT-LLM's kernels run and have no such
class, it stays None.
"""

import enum
import functools
import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import proofkit

ORACLE = "vllm/model_executor/layers/fused_moe/oracle/nvfp4.py"
CHOOSE, CLASS_OF = "select_nvfp4_moe_backend", "backend_to_kernel_cls"
EXPERTS = r"\w+(Experts|ExpertsFp4|Modular|Monolithic)"
#: What a user can set, as far as a release reads it, and the backends that may be chosen then.
WAYS: tuple[tuple[dict[str, bool], str], ...] = (
    ({}, r".*"),
    ({"VLLM_USE_FLASHINFER_MOE_FP4": True}, r"FLASHINFER_.*"),
    ({"VLLM_USE_FLASHINFER_MOE_FP4": False}, r"(?!FLASHINFER_).*"),
    ({"VLLM_TEST_FORCE_FP8_MARLIN": True}, r"MARLIN"),
)
FlashinferMoeBackend = enum.Enum("FlashinferMoeBackend", ["CUTLASS", "TENSORRT_LLM", "CUTEDSL"])


class Envs:
    """vLLM's environment variables, unset but for the given ones."""

    def __init__(self, given: Mapping[str, bool]) -> None:
        self.given = given

    def __getattr__(self, name: str) -> object:
        return self.given.get(name, [] if name == "VLLM_DISABLED_KERNELS" else False)

    def is_set(self, name: str) -> bool:
        return name in self.given


def experts(name: str, *, trtllm: bool) -> type:
    """A class of experts that can do the layer; those of TRT-LLM only where ``trtllm`` says so."""
    can = trtllm or not name.lower().startswith("trtllm")
    answer = staticmethod(lambda *_arguments: (can, None if can else "12.x"))
    return type(name, (), {"is_supported_config": answer})


def choose(
    oracle: proofkit.Source, way: Mapping[str, bool], *, trtllm: bool = False
) -> tuple[str, object, list[object]]:
    """What is chosen: the backend's name, a class, and the classes of this backend.

    That is on 12.1, or, with ``trtllm``, on another GPU, for which TRT-LLM has kernels.
    """
    gpus = ((10, 0), 100) if trtllm else ((12, 1), 121)
    platform = proofkit.Fields(is_device_capability=lambda capability: capability in gpus)
    known = proofkit.Known(
        EXPERTS,
        functools.partial(experts, trtllm=trtllm),
        envs=Envs(way),
        is_supported_config_trtllm=lambda *_, **__: (trtllm, None if trtllm else "12.x"),
        prioritize_humming=lambda backends, *_: backends,
        FlashinferMoeBackend=FlashinferMoeBackend,
        get_flashinfer_moe_backend=lambda: FlashinferMoeBackend.CUTLASS,
        current_platform=platform,
        logger=proofkit.Unknown("logger"),
    )
    parallel = proofkit.Fields(
        use_batched_activation_format=False, use_deepep_ll_kernels=False, use_pplx_kernels=False
    )
    config = proofkit.Fields(
        moe_backend="auto",
        swiglu_limit=None,
        is_lora_enabled=False,
        moe_parallel_config=parallel,
    )
    space = oracle.in_tree(oracle.path.parents[5], known)
    backend, chosen = space[CHOOSE](config, None, None)
    try:
        own = space[CLASS_OF](backend)
    except NotImplementedError:
        own = None
    return backend.name, chosen, own if isinstance(own, list) else [own]


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a backend without its class, or one that was not asked for."""
    oracle = proofkit.Source(tree / ORACLE)
    oracle.function(CHOOSE)
    oracle.function(CLASS_OF)
    wrong, right = [], set()
    for (way, pattern), trtllm in itertools.product(WAYS, (False, True)):
        if not all(name in oracle.text for name in way):
            continue
        backend, chosen, own = choose(oracle, way, trtllm=trtllm)
        asked = ", ".join(f"{name}={int(value)}" for name, value in way.items()) or "unasked"
        asked += " where TRT-LLM runs" * trtllm
        right.add(backend)
        if not re.fullmatch(pattern, backend):
            wrong.append(f"{asked}: {backend}")
        if chosen not in own:
            what = "with another's class" if isinstance(chosen, type) else "without a class"
            wrong.append(f"{asked}: {backend} {what} ({chosen})")
    return proofkit.verdict(
        wrong, right=f"every choice comes with its class: {', '.join(sorted(right))}"
    )


if __name__ == "__main__":
    proofkit.main(judge)
