"""How vLLM divides memory for the KV cache into blocks. Pure.

It follows ``vllm/v1/core/kv_cache_utils.py`` and ``Platform._align_hybrid_block_size`` of vLLM
0.32: layers are divided into groups that have about equally many bytes in a block, all groups take
their blocks from one pool, and a request takes blocks for each group. docs/memory.md has its
results beside vLLM's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from imagefactory.memory.model import Attention, Cache, Latent, State

#: Tokens of a block, where nothing else demands more, and what it must be a multiple of.
BLOCK = 16
#: As above, for states beside latent attention.
LATENT_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of vLLM that decide about blocks.

    Attributes:
        tensor, pipeline: nodes that divide each layer, and nodes that divide the layers.
        in_flight: tokens that may be scheduled and not yet settled.
        speculative: tokens of a draft.
        prefix_caching: whether prompts that begin alike share blocks, which is the default.
        checkpoints: whether layers with Mamba-2 keep one state more of a prompt.
        kernel_block: what the attention kernels need block sizes to be a multiple of.
    """

    context: int
    dtype: str
    tensor: int = 1
    pipeline: int = 1
    in_flight: int = 2 * 8192
    speculative: int = 0
    prefix_caching: bool = True
    checkpoints: bool = True
    kernel_block: int = BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share a block table.

    Attributes:
        window: the tokens that its layers see; None is all.
        tokens: tokens of a block; 0 for states, of which a block has one.
        states: states that a request keeps.
        layers: number of each layer, and its bytes of a block.
    """

    kind: str
    window: int | None = None
    tokens: int = 0
    states: int = 0
    layers: tuple[tuple[int, int], ...]

    @property
    def page(self) -> int:
        """Bytes of a block in the largest layer."""
        return max(page for _, page in self.layers)

    def per_request(self, context: int, in_flight: int) -> int:
        """Blocks that one request of ``context`` tokens takes."""
        if not self.tokens:
            return self.states
        if self.window is None:
            return -(-context // self.tokens)
        # a window may begin inside a block
        return -(-min(self.window - 1 + in_flight, context) // self.tokens) + 1


@dataclass(frozen=True)
class Pool:
    """The groups of a model, and the layers of each node."""

    groups: tuple[Group, ...]
    nodes: tuple[range, ...]
    options: Options

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block: of the largest group, on the node that has most of it."""
        return max(
            sum(page for number, page in group.layers if number in node)
            for node in self.nodes
            for group in self.groups
        )

    def per_request(self, context: int) -> int:
        """Blocks that one request of ``context`` tokens takes."""
        return sum(group.per_request(context, self.options.in_flight) for group in self.groups)

    def blocks(self, memory: int) -> int:
        """Blocks in ``memory`` bytes."""
        return memory // self.block_bytes

    def tokens(self, memory: int) -> int:
        """What vLLM reports as the size of the cache, in tokens."""
        context = self.options.context
        return int(self.blocks(memory) / self.per_request(context) * context)

    def bytes_for(self, requests: int, context: int) -> int:
        """Bytes for ``requests`` of ``context`` tokens, and for the block that vLLM reserves."""
        return (requests * self.per_request(context) + 1) * self.block_bytes


def pool(caches: Sequence[tuple[int, Cache]], options: Options, layers: int) -> Pool:
    """The groups of the layers in ``caches``; the model has ``layers`` of them."""
    token = _token_bytes(caches, options)
    block = _block(caches, options, token)
    single = [_alone(number, cache, block, block * token, options) for number, cache in caches]
    kinds = {(one.kind, one.window, one.tokens) for one in single}
    groups = (_joined(single),) if len(kinds) == 1 else _groups(_unified(single))
    return Pool(groups=groups, nodes=stages(layers, options.pipeline), options=options)


def stages(layers: int, nodes: int) -> tuple[range, ...]:
    """The layers on each of ``nodes`` in a pipeline, as vLLM divides them.

    What is left over goes to the last nodes but one: the last has the head of the model. The
    embedding is numbered -1, and what comes after the layers has higher numbers.
    """
    sizes = [layers // nodes] * nodes
    for at in range(2, layers % nodes + 2):
        sizes[-at] += 1
    starts = [sum(sizes[:at]) for at in range(nodes)]
    found = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    found[0] = range(-1, found[0].stop)
    found[-1] = range(found[-1].start, 2 * layers + 1)
    return tuple(found)


def _token_bytes(caches: Iterable[tuple[int, Cache]], options: Options) -> int:
    """Bytes of a token in the first layer that has attention; 0 if none has."""
    attention = (cache for _, cache in caches if isinstance(cache, Attention | Latent))
    return next((cache.token_bytes(options.dtype, options.tensor) for cache in attention), 0)


def _block(caches: Iterable[tuple[int, Cache]], options: Options, token: int) -> int:
    """Tokens of a block: with states, as many as make a page of attention at least as large."""
    kinds = [cache for _, cache in caches]
    states = [c.bytes(options.tensor, options.speculative) for c in kinds if isinstance(c, State)]
    if not states or not token:
        return options.kernel_block
    latent = any(isinstance(cache, Latent) for cache in kinds)
    multiple = max(options.kernel_block, LATENT_BLOCK if latent else 0)
    return multiple * -(-max(states) // (multiple * token))


def _alone(number: int, cache: Cache, block: int, page: int, options: Options) -> Group:
    """A layer as a group of its own; ``page`` is what states are padded to."""
    if isinstance(cache, State):
        states = 1 + options.speculative
        if options.prefix_caching and page:  # the state at the end of a block is kept, too
            states += 1 + (cache.checkpoints if options.checkpoints else 0)
        size = max(cache.bytes(options.tensor, options.speculative), page)
        return Group(kind="state", states=states, layers=((number, size),))
    kind = "latent" if isinstance(cache, Latent) else "window" if cache.window else "full"
    size = block * cache.token_bytes(options.dtype, options.tensor)
    return Group(kind=kind, window=cache.window, tokens=block, layers=((number, size),))


def _joined(groups: Sequence[Group]) -> Group:
    return replace(groups[0], layers=tuple(layer for group in groups for layer in group.layers))


def _unified(groups: Sequence[Group]) -> list[Group]:
    """The same layers with one page size: more tokens in a block, else padding."""
    largest = max(group.page for group in groups)
    return [
        replace(
            group,
            tokens=group.tokens * (1 if largest % group.page else largest // group.page),
            layers=tuple((number, largest) for number, _ in group.layers),
        )
        for group in groups
    ]


def _groups(single: Sequence[Group]) -> tuple[Group, ...]:
    """Layers of a kind, divided into groups of about as many as the rarest kind has."""
    buckets: dict[tuple[str, int | None, int], list[Group]] = {}
    for one in single:
        buckets.setdefault((one.kind, one.window, one.tokens), []).append(one)
    fewest, most = (extreme(map(len, buckets.values())) for extreme in (min, max))
    # a little padding is better than twice as many groups
    size = most if most < 1.5 * fewest else fewest
    found = []
    for bucket in buckets.values():
        number = -(-len(bucket) // size)
        found += [_joined(bucket[at::number]) for at in range(number)]
    return tuple(found)
