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
    "119.7 GiB less the 111.27 GiB that were free on the tightest of four Sparks",
)
SERVER = Share("server", 3 * GIB, "vLLM's processes outside CUDA, as reported from a Spark")
CONTEXT = Share("CUDA context", round(1.5 * GIB), "and libraries, as reported from a Spark")
GRAPHS = Share(
    "CUDA graphs", round(0.6 * GIB), "as reported from a Spark; none with --enforce-eager"
)
NCCL = Share("NCCL", GIB, "buffers of connections between nodes: an estimate")
PAGE_CACHE = "page cache, which CUDA may not get back: see docs/memory.md"


def activations(width: int, tokens: int, seqs: int, vocabulary: int) -> Share:
    """What one forward pass needs at most.

    ``tokens`` pass at once, each ``width`` elements wide; the last of each of ``seqs`` sequences
    gets a logit in single precision for each word, twice, as sampling copies them.
    """
    size = 2 * width * tokens + 2 * 4 * seqs * vocabulary
    return Share("activations", size, f"{tokens} tokens at once: an estimate")
