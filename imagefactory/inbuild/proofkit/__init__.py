"""What the proofs of patches share. Standard library only: it lies beside them in images, too.

A proof is a program, ``python proof.py TREE`` with this folder on PYTHONPATH. It prints what it saw
in one line and exits 0 (the behaviour is right), 1 (the symptom is there) or 3 (inconclusive)::

    import proofkit

    def judge(tree: Path) -> proofkit.Verdict:
        pick = proofkit.Source(tree / "vllm/kernels.py").run(["pick"])["pick"]
        wrong = [] if pick((12, 1)) == "marlin" else [f"12.1 gets {pick((12, 1))}"]
        return proofkit.verdict(wrong, right="12.1 gets Marlin")

    if __name__ == "__main__":
        proofkit.main(judge)
"""

from .files import SEARCH, SEARCHED, found_in, holding, read
from .source import Source, Space, bare, evaluate, names_in
from .stand_ins import Anything, Fields, Known, Unknown, hide_special, mocked, modules
from .tools import (
    CUDA,
    TRACER,
    Need,
    again,
    command,
    cuda_home,
    first_error,
    missing,
    nvcc,
    require,
)
from .verdicts import INCONCLUSIVE, RIGHT, SYMPTOM, Inconclusive, Verdict, end, main, verdict

__all__ = [
    "CUDA",
    "INCONCLUSIVE",
    "RIGHT",
    "SEARCH",
    "SEARCHED",
    "SYMPTOM",
    "TRACER",
    "Anything",
    "Fields",
    "Inconclusive",
    "Known",
    "Need",
    "Source",
    "Space",
    "Unknown",
    "Verdict",
    "again",
    "bare",
    "command",
    "cuda_home",
    "end",
    "evaluate",
    "first_error",
    "found_in",
    "hide_special",
    "holding",
    "main",
    "missing",
    "mocked",
    "modules",
    "names_in",
    "nvcc",
    "read",
    "require",
    "verdict",
]
