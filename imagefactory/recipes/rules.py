"""What people learned about serving on a GB10, as rules that recipes are checked against.

A rule is a function of a recipe's settings for one release. A recipe that breaks a rule for a
reason says so under ``accepts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from imagefactory.errors import Problem
from imagefactory.recipes.recipe import Setup, contains

#: GiB of unified memory that vLLM sees on a GB10 of 128 GB: what is lost to the kernel and the
#: driver varies by a GiB or two; and the most that it can be given of these.
VISIBLE_GIB, MOST_GIB = 119.7, 110.0
#: GiB that a server needs beside its weights: the CUDA context, activations, a small KV cache.
RUNTIME_GIB = 5.0
#: The fraction of memory below which no server was seen to start.
FLOOR = 0.2
#: The releases with ``--moe-backend``.
_MOE_BACKEND = SpecifierSet(">=0.17")
#: Draft tokens of MTP from which on verification costs more than accepted tokens save.
MOST_MTP = 3
SPECULATIVE = "speculative-config"
UTILIZATION, UTILIZATION_GB = "gpu-memory-utilization", "gpu-memory-utilization-gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that some settings break; ``setting`` is the option or variable to change."""

    setting: str
    what: str
    fix: str


Rule = Callable[[Setup], Iterator[Broken]]
#: The rules by name.
RULES: dict[str, Rule] = {}
#: The rules that hold on every machine; the others are about GB10.
ANYWHERE = frozenset({"tool-parser", "context"})


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rule."""

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def broken(setup: Setup, *, hardware: str) -> Iterator[Problem]:
    """A problem for each rule that the settings break and the recipe does not accept."""
    recipe = setup.recipe
    for name, check in RULES.items():
        if name in recipe.accepts or (hardware != "gb10" and name not in ANYWHERE):
            continue
        for one in check(setup):
            yield Problem(
                code=f"recipe-{name}",
                where=setup.where(one.setting),
                what=f"{one.what} (recipe {recipe.name}, vLLM {setup.release})",
                fix=one.fix,
            )


@rule("quantization")
def quantization(setup: Setup) -> Iterator[Broken]:
    """ModelOpt checkpoints need ``--quantization``; compressed-tensors ones must not have it."""
    given, weights = setup.text("quantization"), setup.recipe.weights
    if weights == "nvfp4-modelopt" and not given.startswith("modelopt"):
        what = f"quantization is {given or 'not set'}, but the weights are ModelOpt's NVFP4"
        yield Broken(setting="quantization", what=what, fix="write quantization: modelopt")
    if weights == "nvfp4-compressed-tensors" and given:
        what = f"quantization is {given}, but vLLM finds compressed-tensors by itself"
        yield Broken(setting="quantization", what=what, fix="remove quantization")


@rule("nvfp4-experts")
def nvfp4_experts(setup: Setup) -> Iterator[Broken]:
    """NVFP4 experts need Marlin on sm_121; what vLLM chooses itself answers ``!!!!!``."""
    if not setup.recipe.experts or not setup.recipe.weights.startswith("nvfp4"):
        return
    if contains(_MOE_BACKEND, setup.release):
        given = setup.text("moe-backend")
        if given != "marlin":
            what = f"moe-backend is {given or 'not set'}, and NVFP4 experts need marlin on sm_121"
            yield Broken(setting="moe-backend", what=what, fix="write moe-backend: marlin")
    elif setup.env.get("VLLM_USE_FLASHINFER_MOE_FP4") != "0":
        name = "VLLM_USE_FLASHINFER_MOE_FP4"
        what = f"{name} is not 0, and this release has no --moe-backend to choose Marlin with"
        yield Broken(setting=name, what=what, fix=f'write {name}: "0" under env')


@rule("memory")
def memory(setup: Setup) -> Iterator[Broken]:
    """A share of memory is given; it is 0.2 or more, holds the weights, and leaves some."""
    share, gib = setup.text(UTILIZATION), setup.text(UTILIZATION_GB)
    name = UTILIZATION_GB if gib else UTILIZATION
    text = gib or share
    try:
        budget = float(text) if gib else float(share or 0) * VISIBLE_GIB
    except ValueError:
        yield Broken(setting=name, what=f"{name} is {text!r}, no number", fix="write a number")
        return
    if not text:
        what = "no memory is reserved for it, so vLLM takes 0.9 or more of what all share"
        yield Broken(setting=name, what=what, fix=f"write {UTILIZATION}, such as 0.85")
        return
    needed = (setup.recipe.weights_gib or 0) / setup.nodes + RUNTIME_GIB
    if budget < FLOOR * VISIBLE_GIB:
        what = f"{name} {text} is less than {FLOOR} of memory, with which no server started"
        yield Broken(setting=name, what=what, fix=f"write {UTILIZATION} {FLOOR} or more")
    elif budget < needed:
        what = f"{name} {text} is {budget:.0f} GiB, and weights and runtime need {needed:.0f}"
        yield Broken(setting=name, what=what, fix="give it more, or use more nodes")
    elif budget > MOST_GIB:
        what = f"{name} {text} is {budget:.0f} GiB, and a GB10 has {MOST_GIB:.0f} to give"
        yield Broken(setting=name, what=what, fix="give it less")


@rule("context")
def context(setup: Setup) -> Iterator[Broken]:
    """Sequences are not longer than the model allows, unless its positions are scaled."""
    most, text = setup.recipe.context, setup.text("max-model-len")
    scaled = "rope" in setup.text("hf-overrides")
    if most and text.isdecimal() and int(text) > most and not scaled:
        what = f"max-model-len {text} is more than the {most} positions of the model"
        yield Broken(setting="max-model-len", what=what, fix=f"write {most} or less")
    allowed = setup.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")
    if allowed not in ("0", "") and not scaled:
        what = "VLLM_ALLOW_LONG_MAX_MODEL_LEN without scaled positions gives NaN, not answers"
        fix = "remove it, or scale the positions (rope) in hf-overrides"
        yield Broken(setting="VLLM_ALLOW_LONG_MAX_MODEL_LEN", what=what, fix=fix)


@rule("tool-parser")
def tool_parser(setup: Setup) -> Iterator[Broken]:
    """Without either of the two, a request with tools is refused with HTTP 400."""
    automatic = setup.options.get("enable-auto-tool-choice") is True
    parser = bool(setup.text("tool-call-parser"))
    if parser and not automatic:
        what = "tool-call-parser without enable-auto-tool-choice: requests with tools get HTTP 400"
        fix = "write enable-auto-tool-choice: true"
        yield Broken(setting="tool-call-parser", what=what, fix=fix)
    if automatic and not parser:
        what = "enable-auto-tool-choice without tool-call-parser: vLLM does not start"
        fix = "write the tool-call-parser of the model"
        yield Broken(setting="enable-auto-tool-choice", what=what, fix=fix)


@rule("mtp")
def mtp(setup: Setup) -> Iterator[Broken]:
    """MTP proposes few tokens; a draft model of its own needs a KV cache in fp8."""
    config = setup.keys_of(SPECULATIVE)
    if not str(config.get("method", "")).endswith("mtp"):
        return
    tokens = config.get("num_speculative_tokens", 1)
    if isinstance(tokens, int) and tokens > MOST_MTP:
        what = (
            f"MTP with {tokens} tokens: each costs a pass, and more than {MOST_MTP} crash or slow"
        )
        fix = f"write num_speculative_tokens: {MOST_MTP} or less"
        yield Broken(setting=SPECULATIVE, what=what, fix=fix)
    cache = setup.text("kv-cache-dtype")
    if "model" in config and not cache.startswith("fp8"):
        what = f"a draft model of MTP with a KV cache in {cache or 'auto'}: its drafts break"
        yield Broken(setting="kv-cache-dtype", what=what, fix="write kv-cache-dtype: fp8")


@rule("dflash")
def dflash(setup: Setup) -> Iterator[Broken]:
    """DFlash needs a KV cache in bfloat16, Triton attention on sm_121, and no DeepGEMM."""
    if setup.keys_of(SPECULATIVE).get("method") != "dflash":
        return
    cache = setup.text("kv-cache-dtype")
    if cache not in ("", "auto", "bfloat16"):
        what = f"DFlash with a KV cache in {cache}: its drafts are wrong"
        yield Broken(setting="kv-cache-dtype", what=what, fix="remove kv-cache-dtype")
    if setup.text("attention-backend").lower() != "triton_attn":
        what = "DFlash without attention-backend triton_attn: the others crash on sm_121"
        fix = "write attention-backend: triton_attn"
        yield Broken(setting="attention-backend", what=what, fix=fix)
    if setup.env.get("VLLM_USE_DEEP_GEMM") != "0":
        what = "DFlash with DeepGEMM, which fails silently"
        fix = 'write VLLM_USE_DEEP_GEMM: "0" under env'
        yield Broken(setting="VLLM_USE_DEEP_GEMM", what=what, fix=fix)


@rule("nodes")
def nodes(setup: Setup) -> Iterator[Broken]:
    """Each node has one GPU, and all of them are used."""
    sizes: Mapping[str, str] = {
        name: setup.text(name) or "1" for name in ("tensor-parallel-size", "pipeline-parallel-size")
    }
    if not all(size.isdecimal() for size in sizes.values()):
        return  # vLLM's own checks are of their type
    used = int(sizes["tensor-parallel-size"]) * int(sizes["pipeline-parallel-size"])
    if used != setup.nodes:
        what = (
            f"tensor and pipeline parallelism use {used} GPUs of {setup.nodes} nodes with one each"
        )
        fix = f"write tensor-parallel-size: {setup.nodes}"
        yield Broken(setting="tensor-parallel-size", what=what, fix=fix)
