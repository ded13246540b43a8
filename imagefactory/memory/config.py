"""Reads a config.json into a model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagefactory.memory import layers
from imagefactory.memory.fields import MOST, Fields
from imagefactory.memory.model import DTYPES, Cache, Model, Part

#: What transformers takes for keys that are not there.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
    },
    "falcon_mamba": {"max_position_embeddings": 1 << 20},
    "mamba": {"max_position_embeddings": 1 << 20},
}
#: Activations of a feed-forward layer with two matrices instead of three.
UNGATED = ("relu2", "relu", "gelu_new")
CHUNKED = (
    "vLLM keeps layers with chunked attention like full attention, unless "
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE=1"
)


def read(raw: object, name: str, where: str) -> Model:
    """The model ``name`` of the configuration ``raw``, which is the file ``where``.

    Raises InputError for all values that are missing or cannot be.
    """
    outer = raw if isinstance(raw, Mapping) else {}
    nested = next((outer[key] for key in ("text_config", "llm_config") if outer.get(key)), None)
    values = {**outer, **nested} if isinstance(nested, Mapping) else dict(outer)
    kind = str(values.get("model_type"))
    fields = Fields(DEFAULTS.get(kind, {}) | _derived(kind, values) | _set(values), where)
    if not isinstance(raw, Mapping):
        fields.wrong("it is not a JSON object")
        fields.finish()
    if fields.flag("is_encoder_decoder"):
        fields.wrong("it has an encoder and a decoder, which this version cannot plan for")
    model = _model(fields, name, vision=outer.get("vision_config"))
    fields.finish()
    return model


def _derived(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What newer files of Nemotron-H leave out: the number of layers, and their letters."""
    named = values.get("layers_block_type")
    if kind != "nemotron_h" or not isinstance(named, list):
        return {}
    letters = {name: letter for letter, name in layers.LETTERS.items()}
    pattern = "".join(letters.get(str(one), "?") for one in named)
    return {"num_hidden_layers": len(named), "hybrid_override_pattern": pattern}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _model(fields: Fields, name: str, vision: object) -> Model:
    number = fields.number("num_hidden_layers", "n_layer")
    hidden = fields.number("hidden_size")
    vocabulary = fields.number("vocab_size")
    dtype = fields.text("dtype", "torch_dtype", default="bfloat16")
    if dtype not in DTYPES:
        fields.wrong(f"dtype is {dtype!r:.60}, not one of {', '.join(DTYPES)}")
        dtype = "bfloat16"
    if number > 10_000:  # each is planned for
        fields.wrong(f"num_hidden_layers is {number}, not 1 to 10000")
        fields.finish()
    kinds = layers.kinds(fields, number)
    shared = fields.number("num_kv_shared_layers", default=0, least=0)
    mixers = {kind: layers.mixer(kind, fields, hidden, dtype) for kind in dict.fromkeys(kinds)}
    parts = [Part(module="embed_tokens", elements=vocabulary * hidden, layer=-1, linear=False)]
    if not fields.flag("tie_word_embeddings"):
        parts.append(Part(module="lm_head", elements=vocabulary * hidden, layer=number))
    caches: list[tuple[int, Cache]] = []
    for at, kind in enumerate(kinds):
        caches += [(at, cache) for cache in mixers[kind].caches if at < number - shared]
        parts += _matrices(mixers[kind], at) + _feed_forward(fields, at, hidden)
        norm = Part(module=f"layers.{at}.norm", elements=2 * hidden, layer=at, linear=False)
        parts.append(norm)
    if not caches:
        fields.wrong("no layer keeps a KV cache or a state")
    drafts = _draft_layers(fields)
    full = mixers.get("full") or mixers.get("window") or layers.Mixer()
    for at in range(number, number + drafts):
        parts += _matrices(full, at, draft=True) + _feed_forward(fields, at, hidden, draft=True)
        parts.append(Part(module=f"mtp.{at}.fc", elements=2 * hidden**2, layer=at, draft=True))
    parts += _vision(vision)
    widest = max((one.widest for one in mixers.values()), default=0)
    return Model(
        name=name,
        layers=number,
        caches=tuple(caches),
        draft_caches=tuple((at, c) for at in range(number, number + drafts) for c in full.caches),
        parts=tuple(parts),
        context=fields.number("max_position_embeddings", "model_max_length", "n_positions"),
        vocabulary=vocabulary,
        width=4 * hidden + max(widest, _feed_forward_width(fields, hidden)),
        heads=_heads(fields, kinds),
        dtype=dtype,
        notes=(CHUNKED,) if fields.has("attention_chunk_size") else (),
    )


def _heads(fields: Fields, kinds: list[str]) -> tuple[int, ...]:
    """What nodes must divide evenly to divide each layer among them."""
    found = [fields.number("num_attention_heads")] if {*kinds} & {"full", "window"} else []
    if "delta" in kinds:
        found += [fields.number("linear_num_key_heads"), fields.number("linear_num_value_heads")]
    if "mamba2" in kinds:
        found.append(fields.number("mamba_num_heads", "mamba_n_heads"))
    return tuple(found)


def _draft_layers(fields: Fields) -> int:
    implied = 1 if fields.text("model_type") == "qwen3_next" else 0
    names = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    return min(fields.number(*names, default=implied, least=0), 64)


def _matrices(mixer: layers.Mixer, at: int, *, draft: bool = False) -> list[Part]:
    return [
        Part(
            module=f"layers.{at}.{name}",
            elements=elements,
            layer=at,
            linear=not name.endswith(("conv1d", "A_log")),
            draft=draft,
        )
        for name, elements in mixer.matrices.items()
    ]


def _experts(fields: Fields) -> int:
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    return fields.number(*names, default=0, least=0)


def _shared_experts(fields: Fields) -> int:
    implied = 1 if fields.text("model_type") == "llama4_text" else 0
    return fields.number("n_shared_experts", default=implied, least=0)


def _is_sparse(fields: Fields, at: int) -> bool:
    """Whether the feed-forward layer ``at`` has experts."""
    pattern = fields.text("hybrid_override_pattern")
    if at < len(pattern):
        return pattern[at] == "E"
    only_dense = fields.values.get("mlp_only_layers")
    if at in (only_dense if isinstance(only_dense, list) else ()):
        return False
    each = fields.values.get("moe_layer_freq")
    if isinstance(each, list):
        return _experts(fields) > 0 and (at >= len(each) or each[at] == 1)
    steps = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")
    step = fields.number(*steps, default=1)
    first = fields.number("first_k_dense_replace", default=0, least=0)
    return _experts(fields) > 0 and at >= first and (at + 1) % step == 0


def _matrices_of_expert(fields: Fields) -> int:
    return 2 if fields.text("mlp_hidden_act", "hidden_act") in UNGATED else 3


def _feed_forward(fields: Fields, at: int, hidden: int, *, draft: bool = False) -> list[Part]:
    pattern = fields.text("hybrid_override_pattern")
    if at < len(pattern) and pattern[at] in "M*":
        return []
    if fields.text("model_type").endswith("mamba"):
        return []
    each = _matrices_of_expert(fields)
    if not _is_sparse(fields, at):
        # the first is what Llama 4 calls that of layers without experts
        size = each * hidden * fields.number("intermediate_size_mlp", "intermediate_size")
        return [Part(module=f"layers.{at}.mlp.gate_up_proj", elements=size, layer=at, draft=draft)]
    number = _experts(fields)
    inner = fields.number("moe_intermediate_size", "intermediate_size")
    outer = fields.number("moe_latent_size", default=hidden)
    shared = fields.number(
        *("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
        default=_shared_experts(fields) * inner,
        least=0,
    )
    sizes = {
        "mlp.experts": number * each * outer * inner,
        "mlp.shared_expert": each * hidden * shared,
        "mlp.latent_proj": 2 * hidden * outer if outer != hidden else 0,
    }
    found = [
        Part(module=f"layers.{at}.{name}", elements=size, layer=at, draft=draft)
        for name, size in sizes.items()
        if size
    ]
    router = Part(
        module=f"layers.{at}.mlp.gate",
        elements=hidden * number,
        layer=at,
        linear=False,
        draft=draft,
        split=False,
    )
    return [*found, router]


def _feed_forward_width(fields: Fields, hidden: int) -> int:
    """Elements that one token takes in a feed-forward layer."""
    dense = 3 * fields.number("intermediate_size", default=0, least=0)
    if not _experts(fields):
        return dense
    inner = fields.number("moe_intermediate_size", "intermediate_size")
    chosen = fields.number("num_experts_per_tok", "experts_per_token", default=1)
    return chosen * (3 * inner + fields.number("moe_latent_size", default=hidden))


def _vision(vision: object) -> list[Part]:
    """The encoder for images, without what its layers are not quantized for."""
    if not isinstance(vision, Mapping):
        return []
    keys = ("depth", "num_hidden_layers"), ("hidden_size",), ("intermediate_size",)
    depth, hidden, inner = (
        next((vision[key] for key in names if _is_size(vision.get(key))), 0) for names in keys
    )
    size = depth * (4 * hidden**2 + 2 * hidden * inner)
    return [Part(module="visual", elements=size, layer=-1, linear=False)] if size else []


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 < value < MOST
