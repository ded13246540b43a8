"""What a Spark has, and what of it a server does not get. Pure.

All of it is an assumption with a source, which the output shows. GiB are 2**30 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the memory.

    Attributes:
        source: where the number comes from.
    """

    name: str
    bytes: int
    source: str


#: What CUDA reports in total, in GiB. Other machines report up to 121.7.
TOTAL = 119.7
SYSTEM = Share(
    "system",
    round(8.43 * GIB),
    "kernel, driver and desktop: 119.7 GiB in total, 111.27 GiB free on the tightest of four nodes",
)
SERVER = Share(
    "server",
    3 * GIB,
    "vLLM's processes outside CUDA: 2.9 to 3.0 GB above the budget at 0.2 and 0.3 of 121.6 GiB",
)
CONTEXT = Share(
    "CUDA context",
    round(1.5 * GIB),
    "context, libraries and workspaces, the rest of what servers took beside weights and cache",
)
GRAPHS = Share(
    "CUDA graphs",
    round(0.6 * GIB),
    "20.6 GiB beside the cache with graphs, 20.0 GiB with --enforce-eager (Nemotron-3-Nano)",
)
NCCL = Share("NCCL", GIB, "buffers of connections between nodes: an estimate, not measured")
PAGE_CACHE = (
    "what is left is page cache: files of weights fill it while they are loaded, and CUDA may not "
    "get it back. Before a large model: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
)


def activations(width: int, tokens: int, seqs: int, vocabulary: int) -> Share:
    """What one forward pass needs at most.

    ``tokens`` pass at once, each ``width`` elements wide; the last of each of ``seqs`` sequences
    gets a logit in single precision for each word, twice, as sampling copies them.
    """
    size = 2 * width * tokens + 2 * 4 * seqs * vocabulary
    return Share("activations", size, f"{tokens} tokens at once, in half precision: an estimate")
