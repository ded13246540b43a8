"""A model as far as its memory goes: its weights, and what each layer caches. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

#: Bytes of an element.
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}
#: What a token takes in one layer of latent attention in the formats of FlashMLA, whatever its
#: width.
PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
#: Values of --kv-cache-dtype.
CACHE_DTYPES = (
    *("auto", "float16", "bfloat16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4"),
    *("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", *PACKED_LATENT),
)


def _content(size: int, dtype: str) -> float:
    """Bytes of the key or value of one token in one head, in the cache type ``dtype``."""
    if dtype == "nvfp4":  # two elements a byte, and a scale for each sixteen
        return size / 2 + size / 16
    if dtype.endswith("_per_token_head"):  # with a float32 scale
        return size / (2 if dtype.startswith("int4") else 1) + 4
    return size * (1 if dtype.startswith("fp8") else DTYPES[dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values of a layer with full or sliding-window attention.

    Attributes:
        key, value: elements of one head.
        window: the tokens that it sees; None is all.
    """

    kv_heads: int
    key: int
    value: int
    window: int | None = None

    def token_bytes(self, dtype: str, tensor: int) -> int:
        """Bytes of one token on each of ``tensor`` nodes."""
        one = _content(self.key, dtype) + _content(self.value, dtype)
        return ceil(max(1, self.kv_heads // tensor) * one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """What a layer with latent attention (MLA) keeps of a token, on every node alike.

    Attributes:
        width: its elements.
        fixed: its bytes, where the type of the cache does not decide them.
    """

    width: int
    fixed: int | None = None
    window: None = None

    def token_bytes(self, dtype: str, tensor: int) -> int:  # noqa: ARG002 - as Attention
        """Bytes of one token."""
        packed = PACKED_LATENT.get(dtype)
        return self.fixed or packed or ceil(_content(self.width, dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a layer with Mamba or linear attention keeps of a sequence, however long it is.

    Attributes:
        channels, kernel: of its convolution, which keeps ``kernel - 1`` inputs.
        groups, group_channels: groups of Mamba-2 that nodes cannot divide are repeated.
        matrix: elements of the recurrent state.
        conv_bytes, matrix_bytes: of one element.
        drafts: whether the convolution also keeps the tokens of a draft.
        checkpoints: states more that vLLM may keep of a prompt.
    """

    channels: int
    kernel: int
    matrix: int
    conv_bytes: int
    matrix_bytes: int
    groups: int = 0
    group_channels: int = 0
    drafts: bool = True
    checkpoints: int = 0

    def bytes(self, tensor: int, speculative: int) -> int:
        """Bytes of one state on each of ``tensor`` nodes."""
        repeated = tensor - self.groups if self.groups % tensor else 0
        channels = self.channels + repeated * self.group_channels
        kept = self.kernel - 1 + (speculative if self.drafts else 0)
        return (channels * kept * self.conv_bytes + self.matrix * self.matrix_bytes) // tensor


Cache = Attention | Latent | State


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Weights of a model that lie together.

    Attributes:
        module: path of the module, as lists of what is not quantized name it; those of all experts
            of a layer are one part.
        layer: number of its layer; -1 is before all layers, and the number of layers is after them.
        linear: whether it is a matrix that quantization may apply to.
        draft: whether it belongs to a head for speculative decoding, loaded only for that.
        split: whether nodes divide it among them.
        bytes: of all of it.
    """

    module: str
    elements: int
    layer: int
    linear: bool = True
    draft: bool = False
    split: bool = True
    bytes: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model.

    Attributes:
        layers: number of layers, without those of a head for speculative decoding.
        caches: layer number and cache, of those that cache something.
        draft_caches: the same, of the head for speculative decoding.
        context: the most tokens that it was made for.
        dtype: of its activations, and of weights that are not quantized.
        cache_dtype: what ``--kv-cache-dtype auto`` means for it.
        width: elements that one token takes in the widest place of a forward pass, an estimate.
        heads: heads of attention, which nodes must divide evenly.
        notes: what is not as the configuration may suggest.
    """

    name: str
    layers: int
    caches: tuple[tuple[int, Cache], ...]
    draft_caches: tuple[tuple[int, Cache], ...]
    parts: tuple[Part, ...]
    context: int
    vocabulary: int
    width: int
    heads: tuple[int, ...]
    dtype: str
    cache_dtype: str = ""
    quantization: str = ""
    notes: tuple[str, ...] = ()
