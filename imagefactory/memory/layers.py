"""What each layer of a model caches, and the weights of its mixer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from imagefactory.memory.fields import Fields
from imagefactory.memory.model import DTYPES, Attention, Cache, Latent, State

#: Names that configurations have for what a layer does, and what it is here.
KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "full",
    "linear_attention": "delta",
    "mamba": "mamba2",
    "mlp": "none",
    "moe": "none",
}
#: The letters of Nemotron-H.
LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
#: Keys of caches that this version does not know.
UNKNOWN = (
    *("compress_ratios", "linear_attn_config", "attn_type_list", "conv_L_cache"),
    *("hybrid_layer_pattern", "sparse_attention_config", "block_configs"),
)


@dataclass(slots=True)
class Mixer:
    """What a layer does beside its experts.

    Attributes:
        caches: what it keeps.
        matrices: name -> elements.
        widest: outputs of its widest matrix.
    """

    caches: list[Cache] = field(default_factory=list)
    matrices: dict[str, int] = field(default_factory=dict)
    widest: int = 0


def kinds(fields: Fields, layers: int) -> list[str]:
    """The kind of each layer, as the configuration says it in one of several ways."""
    for name in UNKNOWN:
        if fields.has(name) and not _are_full(name, fields.values[name]):
            fields.wrong(
                f"{name}: this version cannot plan for such a cache",
                fix="start vLLM: it reports its KV cache",
            )
    pattern = fields.text("hybrid_override_pattern")
    if pattern:
        strange = {letter for letter in pattern if letter not in LETTERS}
        if strange or len(pattern) != layers:
            fields.wrong(
                f"hybrid_override_pattern has not one of {''.join(LETTERS)} for each layer"
            )
            return ["none"] * layers
        return [KINDS[LETTERS[letter]] for letter in pattern]
    for name in ("layer_types", "layers_block_type"):
        named = fields.texts(name, layers, tuple(KINDS))
        if named:
            return [KINDS[one] for one in named]
    if fields.has("linear_num_value_heads"):
        every = fields.number("full_attention_interval", default=4)
        return ["full" if (at + 1) % every == 0 else "delta" for at in range(layers)]
    if not fields.has("num_attention_heads"):
        return ["mamba1"] * layers
    return _windows(fields, layers)


def _are_full(name: str, value: object) -> bool:
    """Whether all layers have full attention, which is 1 in MiniMax's list, as in its M2."""
    return name == "attn_type_list" and isinstance(value, list) and all(one == 1 for one in value)


def _windows(fields: Fields, layers: int) -> list[str]:
    if not fields.has("sliding_window") or not fields.flag("use_sliding_window", default=True):
        return ["full"] * layers
    every = fields.number("sliding_window_pattern", "_sliding_window_pattern", default=0, least=0)
    if every:
        return ["full" if (at + 1) % every == 0 else "window" for at in range(layers)]
    if fields.has("use_sliding_window"):  # as in Qwen2
        first = fields.number("max_window_layers", default=0, least=0)
        return ["window" if at >= first else "full" for at in range(layers)]
    return ["window"] * layers


def mixer(kind: str, fields: Fields, hidden: int, dtype: str) -> Mixer:
    """What a layer of ``kind`` keeps, and its weights."""
    if kind == "delta":
        return _delta(fields, hidden, dtype)
    if kind == "mamba2":
        return _mamba2(fields, hidden, dtype)
    if kind == "mamba1":
        return _mamba1(fields, hidden, dtype)
    if kind == "none":
        return Mixer()
    return _latent(fields, hidden) if fields.has("kv_lora_rank") else _heads(kind, fields, hidden)


def _heads(kind: str, fields: Fields, hidden: int) -> Mixer:
    heads = fields.number("num_attention_heads")
    own = fields.number("num_key_value_heads", default=heads)
    size = fields.number("head_dim", "attention_head_dim", default=max(1, hidden // heads))
    if kind == "full" and fields.has("global_head_dim"):  # as in Gemma 4
        size = fields.number("global_head_dim")
        if fields.flag("attention_k_eq_v"):
            own = fields.number("num_global_key_value_heads", default=own)
    value = fields.number("v_head_dim", default=size)
    window = fields.number("sliding_window") if kind == "window" else None
    queries = heads * size * (2 if fields.flag("attn_output_gate", default=_gated(fields)) else 1)
    return Mixer(
        caches=[Attention(kv_heads=own, key=size, value=value, window=window)],
        matrices={
            "self_attn.q_proj": hidden * queries,
            "self_attn.k_proj": hidden * own * size,
            "self_attn.v_proj": hidden * own * value,
            "self_attn.o_proj": hidden * heads * value,
        },
        widest=queries + own * (size + value),
    )


def _gated(fields: Fields) -> bool:
    return fields.text("model_type") == "qwen3_next"


def _latent(fields: Fields, hidden: int) -> Mixer:
    heads, latent = fields.number("num_attention_heads"), fields.number("kv_lora_rank")
    rope = fields.number("qk_rope_head_dim")
    key = fields.number("qk_nope_head_dim") + rope
    value = fields.number("v_head_dim")
    low = fields.number("q_lora_rank", default=0, least=0)
    queries = (
        {"self_attn.q_a_proj": hidden * low, "self_attn.q_b_proj": low * heads * key}
        if low
        else {"self_attn.q_proj": hidden * heads * key}
    )
    found = Mixer(
        caches=[Latent(width=latent + rope)],
        matrices={
            **queries,
            "self_attn.kv_a_proj_with_mqa": hidden * (latent + rope),
            "self_attn.kv_b_proj": latent * heads * (key - rope + value),
            "self_attn.o_proj": heads * value * hidden,
        },
        widest=heads * (key + value),
    )
    if fields.has("index_topk"):  # sparse attention looks its tokens up by keys in FP8
        size = fields.number("index_head_dim")
        found.caches.append(Latent(width=size, fixed=size + 4 * -(-size // 128)))
        own = fields.number("index_n_heads") * size
        found.matrices["self_attn.indexer.wq_b"] = max(low, 1) * own
        found.matrices["self_attn.indexer.wk"] = hidden * size
    return found


def _state_bytes(fields: Fields, dtype: str, *names: str, default: str) -> int:
    name = fields.text(*names, default=default)
    if name not in DTYPES:
        fields.wrong(f"{' or '.join(names)} is {name!r:.60}, not one of {', '.join(DTYPES)}")
    return DTYPES.get(name, DTYPES[dtype])


def _delta(fields: Fields, hidden: int, dtype: str) -> Mixer:
    keys = fields.number("linear_num_key_heads") * fields.number("linear_key_head_dim")
    heads, size = fields.number("linear_num_value_heads"), fields.number("linear_value_head_dim")
    kernel, values = fields.number("linear_conv_kernel_dim"), heads * size
    state = State(
        channels=2 * keys + values,
        kernel=kernel,
        matrix=values * fields.number("linear_key_head_dim"),
        conv_bytes=DTYPES[dtype],
        matrix_bytes=_state_bytes(fields, dtype, "mamba_ssm_dtype", default=dtype),
    )
    return Mixer(
        caches=[state],
        matrices={
            "linear_attn.in_proj_qkvz": hidden * 2 * (keys + values),
            "linear_attn.in_proj_ba": hidden * 2 * heads,
            "linear_attn.out_proj": values * hidden,
            "linear_attn.conv1d": (2 * keys + values) * kernel,
        },
        widest=2 * (keys + values),
    )


def _mamba2(fields: Fields, hidden: int, dtype: str) -> Mixer:
    heads = fields.number("mamba_num_heads", "mamba_n_heads")
    inner = heads * fields.number("mamba_head_dim", "mamba_d_head")
    groups = fields.number("n_groups", "mamba_n_groups")
    size = fields.number("ssm_state_size", "mamba_d_state")
    kernel, channels = fields.number("conv_kernel", "mamba_d_conv"), inner + 2 * groups * size
    default = "float32" if fields.text("model_type").startswith("nemotron_h") else dtype
    state = State(
        channels=channels,
        kernel=kernel,
        matrix=inner * size,
        conv_bytes=DTYPES[dtype],
        matrix_bytes=_state_bytes(fields, dtype, "mamba_ssm_cache_dtype", default=default),
        groups=groups,
        group_channels=2 * size,
        checkpoints=1,
    )
    return Mixer(
        caches=[state],
        matrices={
            "mixer.in_proj": hidden * (inner + channels + heads),
            "mixer.out_proj": inner * hidden,
            "mixer.conv1d": channels * kernel,
        },
        widest=inner + channels + heads,
    )


def _mamba1(fields: Fields, hidden: int, dtype: str) -> Mixer:
    if not fields.text("model_type").endswith("mamba"):
        fields.wrong("num_attention_heads is missing")
        return Mixer()
    inner = fields.number("intermediate_size", "d_inner", default=2 * hidden)
    size, kernel = fields.number("state_size"), fields.number("conv_kernel", default=4)
    rank = fields.number("time_step_rank", default=-(-hidden // 16))
    state = State(
        channels=inner,
        kernel=kernel,
        matrix=inner * size,
        conv_bytes=DTYPES[dtype],
        matrix_bytes=DTYPES[dtype],
        drafts=False,
    )
    return Mixer(
        caches=[state],
        matrices={
            "mixer.in_proj": hidden * 2 * inner,
            "mixer.x_proj": inner * (rank + 2 * size),
            "mixer.dt_proj": inner * (rank + 1),
            "mixer.out_proj": inner * hidden,
            "mixer.A_log": inner * size,
            "mixer.conv1d": inner * (kernel + 2),
        },
        widest=2 * inner,
    )
