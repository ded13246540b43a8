"""Runs vLLM's fastsafetensors loader as the second machine of a cluster does: which GPU is loaded?

``fastsafetensors_weights_iterator`` runs with stand-ins for torch and fastsafetensors: this process
has rank 1 of 2, and one GPU, as each of two machines with a GPU each. The only device that it can
load to is ``cuda:0``.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import proofkit

UTILITIES = "vllm/model_executor/model_loader/weight_utils.py"
NAME = "fastsafetensors_weights_iterator"


class Loader:
    """fastsafetensors' loaders, old and new, as far as they are used; remembers its device."""

    devices: ClassVar[list[str]] = []

    def __init__(self, *arguments: object, device: object = None, **_named: object) -> None:
        Loader.devices.append(str(device or next(a for a in arguments if "cuda" in str(a))))

    def __getattr__(self, name: str) -> object:
        return proofkit.mocked(name)

    def iterate_weights(self) -> Iterator[tuple[str, object]]:
        yield "name", object()


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a loader for any device but the only one."""
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    distributed = SimpleNamespace(is_initialized=lambda: True, group=SimpleNamespace(WORLD=group))
    space: proofkit.Space = {
        "torch": SimpleNamespace(distributed=distributed, device=str, Tensor=object),
        "current_platform": SimpleNamespace(current_device=lambda: 0),
        "tqdm": lambda items, **_named: items,
        "_init_loader": Loader,
        "_init_fastsafetensors_loader": Loader,
        "_natural_sort_key": str,
    }
    utilities = proofkit.Source(tree / UTILITIES)
    iterator = proofkit.bare(utilities.function(NAME))
    with proofkit.modules({"fastsafetensors.parallel_loader": {"ParallelLoader": Loader}}):
        utilities.run([iterator], space, proofkit.mocked)
        list(space[NAME](["a.safetensors", "b.safetensors"], False))
    if not Loader.devices:
        raise proofkit.Inconclusive("no loader was made")
    wrong = sorted(set(Loader.devices) - {"cuda:0"})
    symptom = f"rank 1 with one GPU loads to {', '.join(wrong)}: invalid device ordinal"
    return proofkit.verdict([symptom] if wrong else [], right="loads to its own GPU, cuda:0")


if __name__ == "__main__":
    proofkit.main(judge)
