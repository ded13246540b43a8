"""Runs vLLM's choice of experts for NVFP4 on capability 12.1: does a class come with the backend?

``select_nvfp4_moe_backend`` and ``backend_to_kernel_cls`` run with stand-ins for the classes that
they import; every class says that it can do the layer, but for FlashInfer's TRT-LLM kernels, which
refuse 12.x. Asked in each way in which a user can ask for FlashInfer, and not asked at all, the
answer must be a backend together with its class: with None instead, the layer that is built from it
stops at an assertion.
"""

import enum
from collections.abc import Mapping
from pathlib import Path

import proofkit

ORACLE = "vllm/model_executor/layers/fused_moe/oracle/nvfp4.py"
CHOOSE, CLASS_OF = "select_nvfp4_moe_backend", "backend_to_kernel_cls"
EXPERTS = r"\w+(Experts|ExpertsFp4|Modular|Monolithic)"
#: What a user can set, as far as a release reads it.
WAYS: tuple[dict[str, bool], ...] = (
    {},
    {"VLLM_USE_FLASHINFER_MOE_FP4": True},
    {"VLLM_USE_FLASHINFER_MOE_FP4": False},
    {"VLLM_TEST_FORCE_FP8_MARLIN": True},
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


def experts(name: str) -> type:
    """A class of experts that can do the layer; those of TRT-LLM cannot on 12.x."""
    can = not name.lower().startswith("trtllm")
    answer = staticmethod(lambda *_arguments: (can, None if can else "12.x"))
    return type(name, (), {"is_supported_config": answer})


def choose(oracle: proofkit.Source, way: Mapping[str, bool]) -> tuple[str, object]:
    """What is chosen on 12.1: the backend's name, and its class."""
    platform = proofkit.Fields(is_device_capability=lambda capability: capability in ((12, 1), 121))
    known = proofkit.Known(
        EXPERTS,
        experts,
        envs=Envs(way),
        is_supported_config_trtllm=lambda *_, **__: (False, "12.x"),
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
    backend, chosen = oracle.in_tree(oracle.path.parents[5], known)[CHOOSE](config, None, None)
    return backend.name, chosen


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a backend without a class."""
    oracle = proofkit.Source(tree / ORACLE)
    oracle.function(CHOOSE)
    oracle.function(CLASS_OF)
    wrong, right = [], set()
    for way in WAYS:
        if not all(name in oracle.text for name in way):
            continue
        backend, chosen = choose(oracle, way)
        asked = ", ".join(f"{name}={int(value)}" for name, value in way.items()) or "unasked"
        right.add(backend)
        if not isinstance(chosen, type):
            wrong.append(f"{asked}: {backend} without a class ({chosen})")
    return proofkit.verdict(
        wrong, right=f"every choice comes with its class: {', '.join(sorted(right))}"
    )


if __name__ == "__main__":
    proofkit.main(judge)
