"""Plans the memory of a model on one or more Sparks. Pure: a configuration in, a plan out.

What a server takes is its weights, what vLLM needs to run, and the KV cache of as many sequences as
were asked for. vLLM gets a budget of about that much, and has to leave the rest of the machine's
memory, which the GPU shares with everything else, to the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, floor
from typing import Any

from packaging.version import InvalidVersion, Version

from imagefactory.errors import InputError, Problem
from imagefactory.memory import config, kv_cache, machine, quantization
from imagefactory.memory.kv_cache import Options, Pool
from imagefactory.memory.machine import GIB, Share
from imagefactory.memory.model import CACHE_DTYPES, DTYPES, Model

#: Contexts that the table of what fits has, besides the one that was asked for.
CONTEXTS = (8192, 32768, 65536, 131072, 262144)
#: The release of vLLM whose rules are followed. Since 0.26 a window is kept for each of the batches
#: that run at the same time, and since 0.29 layers with Mamba-2 keep one more state.
VLLM = "0.32.0"
WINDOW_OF_EACH_BATCH, MORE_STATES = Version("0.26"), Version("0.29")
#: Nodes that are tried when a model does not fit.
MOST_NODES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be served, and on what.

    Attributes:
        context: tokens of a sequence; None is as many as the model was made for.
        seqs: sequences at the same time.
        pipeline: whether nodes divide the layers and not each layer; None is what the model allows.
        total: bytes that CUDA reports on a node.
        speculative: tokens of a draft by the model's own head.
        batched: tokens of one forward pass (``--max-num-batched-tokens``).
        eager: without CUDA graphs.
        vllm: release of vLLM.
    """

    context: int | None = None
    seqs: int = 4
    nodes: int = 1
    pipeline: bool | None = None
    cache_dtype: str = "auto"
    total: int = round(machine.TOTAL * GIB)
    speculative: int = 0
    batched: int = 8192
    eager: bool = False
    vllm: str = VLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a node of a server needs and gets, in bytes.

    Attributes:
        measured: whether the size of the weights was read, and not computed from shapes.
        runtime: what vLLM needs besides weights and cache.
        needed: of the KV cache, for all sequences.
        ceiling: the largest budget that leaves enough to the rest of the machine.
        budget: of vLLM: weights, runtime, and a KV cache of at least what is needed.
        utilization: the budget as ``--gpu-memory-utilization``; the cache may be a little larger.
        most_seqs: context -> sequences of that length that fit below the ceiling.
        longest: the longest context that fits for all sequences below the ceiling; 0 if none does.
    """

    model: Model
    request: Request
    context: int
    cache_dtype: str
    tensor: int
    pipeline: int
    weights: int
    measured: bool
    runtime: tuple[Share, ...]
    pool: Pool
    needed: int
    ceiling: int
    budget: int
    utilization: float
    most_seqs: Mapping[int, int]
    longest: int

    @property
    def fits(self) -> bool:
        """Whether the budget leaves enough to the rest of the machine."""
        return self.budget <= self.ceiling

    @property
    def cache(self) -> int:
        """Bytes of the KV cache at the planned utilization, at most below the ceiling."""
        allowed = min(self.utilization * self.request.total, max(self.ceiling, self.budget))
        return self.cache_in(int(allowed))

    def cache_in(self, budget: int) -> int:
        """Bytes of the KV cache if vLLM gets ``budget``."""
        return max(budget - self.weights - sum(one.bytes for one in self.runtime), 0)

    def settings(self) -> dict[str, str]:
        """Options of ``vllm serve``."""
        found = {
            "--max-model-len": str(self.context),
            "--max-num-seqs": str(self.request.seqs),
            "--gpu-memory-utilization": f"{self.utilization:.2f}",
        }
        if self.request.cache_dtype != "auto":
            found["--kv-cache-dtype"] = self.request.cache_dtype
        if self.request.speculative:
            drafts = {"method": "mtp", "num_speculative_tokens": self.request.speculative}
            found["--speculative-config"] = json.dumps(drafts)
        for option, number in (("tensor", self.tensor), ("pipeline", self.pipeline)):
            if number > 1:
                found[f"--{option}-parallel-size"] = str(number)
        return found

    @property
    def budget_gib(self) -> float:
        """The budget for ``--gpu-memory-utilization-gb``, in steps of half a GiB."""
        return ceil(self.budget / GIB * 2) / 2

    def as_dict(self) -> dict[str, object]:
        """The plan as plain JSON values."""
        return {
            "model": self.model.name,
            "fits": self.fits,
            "quantization": self.model.quantization or None,
            "context": self.context,
            "seqs": self.request.seqs,
            "nodes": self.request.nodes,
            "kv_cache_dtype": self.cache_dtype,
            "bytes_per_node": {
                "total": self.request.total,
                "weights": self.weights,
                "weights_measured": self.measured,
                "runtime": [asdict(one) for one in self.runtime],
                "kv_cache_needed": self.needed,
                "kv_cache": self.cache,
                "budget": self.budget,
                "ceiling": self.ceiling,
                "outside": [asdict(one) for one in (machine.SYSTEM, machine.SERVER)],
            },
            "kv_cache": {
                "block_bytes": self.pool.block_bytes,
                "blocks": self.pool.blocks(self.cache),
                "tokens": self.pool.tokens(self.cache),
                "blocks_per_sequence": self.pool.per_request(self.context),
                "groups": [
                    {"kind": one.kind, "layers": len(one.layers), "block_tokens": one.tokens}
                    for one in self.pool.groups
                ],
            },
            "most_seqs": {str(context): seqs for context, seqs in self.most_seqs.items()},
            "longest_context": self.longest,
            "settings": {**self.settings(), "--gpu-memory-utilization-gb": self.budget_gib},
            "notes": list(self.model.notes),
        }


def read(raw: object, name: str, where: str, *, size: int | None = None) -> Model:
    """The model of a configuration, the file ``where``. Raises InputError.

    ``size`` is that of its weights, if it is known: how they are quantized need not be, then.
    """
    model = config.read(raw, name, where)
    values: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    nested = values.get("text_config")
    if "quantization_config" not in values and isinstance(nested, Mapping):
        values = nested
    try:
        scheme = quantization.scheme(values, where)
    except InputError:
        if size is None:
            raise
        scheme = quantization.Scheme("unknown", lambda _: None)
    element = DTYPES[model.dtype]
    sizes = tuple(
        replace(part, bytes=quantization.weight_bytes(part, scheme, element))
        for part in model.parts
    )
    return replace(
        model, parts=sizes, quantization=scheme.name, cache_dtype=scheme.cache or model.dtype
    )


def plan(model: Model, request: Request, size: int | None = None) -> Plan:
    """The plan for ``model``, whose weights have ``size`` bytes if that is known.

    Raises InputError for a request that vLLM would refuse.
    """
    vllm = _check(model, request)
    tensor, pipeline = _division(model, request)
    options = Options(
        context=request.context or model.context,
        dtype=model.cache_dtype if request.cache_dtype == "auto" else request.cache_dtype,
        tensor=tensor,
        pipeline=pipeline,
        in_flight=request.batched * (pipeline + 1 if vllm >= WINDOW_OF_EACH_BATCH else 1),
        speculative=request.speculative,
        checkpoints=vllm >= MORE_STATES,
    )
    drafts = model.draft_caches if request.speculative else ()
    pool = kv_cache.pool([*model.caches, *drafts], options, model.layers)
    weights = _weights(model, request, pool, tensor, size)
    runtime = _runtime(model, request, tensor)
    fixed = weights + sum(one.bytes for one in runtime)
    needed = pool.bytes_for(request.seqs, options.context)
    budget = fixed + needed
    ceiling = max(request.total - machine.SYSTEM.bytes - machine.SERVER.bytes, 0)
    room = ceiling - fixed
    contexts = sorted({*(c for c in CONTEXTS if c <= model.context), options.context})
    return Plan(
        model=model,
        request=request,
        context=options.context,
        cache_dtype=options.dtype,
        tensor=tensor,
        pipeline=pipeline,
        weights=weights,
        measured=size is not None,
        runtime=runtime,
        pool=pool,
        needed=needed,
        ceiling=ceiling,
        budget=budget,
        utilization=_utilization(budget, ceiling, request.total),
        most_seqs={
            context: max(pool.blocks(max(room, 0)) - 1, 0) // pool.per_request(context)
            for context in contexts
        },
        longest=_longest(pool, request.seqs, room, model.context),
    )


def fewest_nodes(plan_: Plan, size: int | None = None) -> int | None:
    """The fewest nodes on which a plan fits that does not; None if that takes too many."""
    for nodes in range(plan_.request.nodes + 1, min(MOST_NODES, plan_.model.layers) + 1):
        wider = replace(plan_.request, nodes=nodes, pipeline=None)
        if plan(plan_.model, wider, size).fits:
            return nodes
    return None


def _check(model: Model, request: Request) -> Version:
    """The version of vLLM. Raises InputError for all that it would refuse."""
    problems = []
    try:
        vllm = Version(request.vllm)
    except InvalidVersion:
        what = f"{request.vllm!r} is not a version of vLLM"
        problems.append(Problem(code="memory-vllm", what=what, fix=f"write one such as {VLLM}"))
        vllm = Version(VLLM)
    if request.context and request.context > model.context:
        what = f"a context of {request.context} tokens: {model.name} was made for {model.context}"
        fix = "plan for less; rope scaling belongs into config.json"
        problems.append(Problem(code="memory-context", what=what, fix=fix))
    if request.cache_dtype not in CACHE_DTYPES:
        what = f"--kv-cache-dtype {request.cache_dtype}: this version cannot plan for it"
        fix = f"it knows {', '.join(CACHE_DTYPES)}"
        problems.append(Problem(code="memory-cache-dtype", what=what, fix=fix))
    if request.speculative and not model.draft_caches:
        what = f"{model.name} has no head for speculative decoding"
        fix = "leave --speculative out; a draft model needs a plan of its own"
        problems.append(Problem(code="memory-speculative", what=what, fix=fix))
    if request.nodes > model.layers:
        what = f"{request.nodes} nodes for {model.layers} layers"
        problems.append(Problem(code="memory-nodes", what=what, fix="plan for fewer nodes"))
    if request.pipeline is False and not _divides(model, request.nodes):
        numbers = " and ".join(map(str, dict.fromkeys(model.heads))) or "0"
        what = f"{request.nodes} nodes cannot divide the {numbers} heads of {model.name} evenly"
        problems.append(Problem(code="memory-nodes", what=what, fix="plan with --pipeline"))
    if problems:
        raise InputError(problems)
    return vllm


def _divides(model: Model, nodes: int) -> bool:
    return all(heads % nodes == 0 for heads in model.heads)


def _division(model: Model, request: Request) -> tuple[int, int]:
    """Nodes that divide each layer, and nodes that divide the layers."""
    pipeline = request.pipeline
    if pipeline is None:
        pipeline = not _divides(model, request.nodes)
    return (1, request.nodes) if pipeline else (request.nodes, 1)


def _weights(model: Model, request: Request, pool: Pool, tensor: int, size: int | None) -> int:
    """Bytes of the weights on the node that has most of them."""
    parts = [part for part in model.parts if request.speculative or not part.draft]
    scale = 1.0
    if size is not None:  # a checkpoint has the head, and vLLM loads it only for drafts
        scale = size / sum(part.bytes for part in model.parts)
    return ceil(
        scale
        * max(
            sum(part.bytes / (tensor if part.split else 1) for part in parts if part.layer in node)
            for node in pool.nodes
        )
    )


def _runtime(model: Model, request: Request, tensor: int) -> tuple[Share, ...]:
    width = ceil(model.width / tensor)
    each = request.seqs * (1 + request.speculative)
    found = [
        machine.CONTEXT,
        machine.activations(width, request.batched, each, ceil(model.vocabulary / tensor)),
    ]
    found += [] if request.eager else [machine.GRAPHS]
    found += [machine.NCCL] if request.nodes > 1 else []
    return tuple(found)


def _utilization(budget: int, ceiling: int, total: int) -> float:
    """The budget as a fraction in hundredths, rounded up where that stays below the ceiling."""
    wanted = ceil(budget / total * 100) / 100
    most = floor(ceiling / total * 100) / 100
    return min(wanted, most) if most * total >= budget else wanted


def _longest(pool: Pool, seqs: int, room: int, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if pool.bytes_for(seqs, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low
