"""Runs vLLM's fastsafetensors loader in several processes of a cluster: which GPU is loaded?

``fastsafetensors_weights_iterator`` runs with stand-ins for torch and fastsafetensors, for ranks of
one machine and of several: each has the GPU that vLLM gave it, which is its rank on one machine
only. The second of two machines with a GPU each has ``cuda:0``.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import proofkit

UTILITIES = "vllm/model_executor/model_loader/weight_utils.py"
NAME = "fastsafetensors_weights_iterator"
FILES = ["a.safetensors", "b.safetensors", "c.safetensors"]
#: Rank, size of the group, and the number of the process's own GPU.
PROCESSES = [(1, 2, 0), (0, 2, 0), (0, 1, 0), (3, 4, 3), (5, 8, 1), (2, 4, 2), (0, 2, 1)]


class Loader:
    """fastsafetensors' loaders, old and new, as far as they are used.

    It notes its device, and the files that it gets.
    """

    def __init__(self, seen: "Seen", arguments: tuple[object, ...], device: object) -> None:
        seen.devices.add(str(device or next(a for a in arguments if "cuda" in str(a))))
        self.key_to_rank_lidx, self.seen = {"name": (0, 0)}, seen

    def add_filenames(self, files: dict[int, list[str]]) -> None:
        self.seen.files += [name for names in files.values() for name in names]

    def __getattr__(self, name: str) -> object:
        return proofkit.Unknown(name)

    def copy_files_to_device(self, *_: object, **_named: object) -> "Loader":
        return self

    def get_tensor(self, name: str, *_: object, **_named: object) -> object:
        return object()

    def iterate_weights(self) -> Iterator[tuple[str, object]]:
        yield "name", object()


class Seen:
    """The devices that a process loads its weights to, and the files that these come from."""

    def __init__(self) -> None:
        self.devices, self.files = set[str](), list[str]()


def device_of(kind: str, index: int | None = None) -> str:
    """A device as torch makes it, of one text or of two parts."""
    return kind if index is None else f"{kind}:{index}"


def loaded(tree: Path, rank: int, size: int, gpu: int) -> Seen:
    """What a process loads, and where to."""
    seen = Seen()

    def loader(
        *arguments: object,
        device: object = None,
        hf_weights_files: list[str] | None = None,
        **_named: object,
    ) -> Loader:
        seen.files += hf_weights_files or []
        return Loader(seen, arguments, device)

    group = SimpleNamespace(rank=lambda: rank, size=lambda: size)
    distributed = SimpleNamespace(is_initialized=lambda: size > 1)
    distributed.group = SimpleNamespace(WORLD=group)
    distributed.get_rank, distributed.get_world_size = group.rank, group.size
    cuda = SimpleNamespace(current_device=lambda: gpu)
    made: dict[str, dict[str, object]] = {
        "fastsafetensors": {"SafeTensorsFileLoader": loader, "SingleGroup": lambda: group},
        "fastsafetensors.parallel_loader": {"ParallelLoader": loader},
    }
    known: proofkit.Space = {
        "torch": SimpleNamespace(distributed=distributed, device=device_of, cuda=cuda),
        "current_platform": SimpleNamespace(current_device=lambda: gpu, is_cuda_alike=lambda: True),
        "tqdm": lambda items, **_named: items,
        "enable_tqdm": lambda _: False,
        "logger": proofkit.Unknown("logger"),
    }
    utilities = proofkit.Source(tree / UTILITIES)
    with proofkit.modules(made):
        space = utilities.in_tree(tree, known)
        utilities.run([proofkit.bare(utilities.function(NAME))], space)
        names = {name for name, _ in space[NAME](FILES, False)}
    if not seen.devices or not seen.files or names != {"name"}:
        raise proofkit.Inconclusive("nothing was loaded")
    return seen


def symptoms(tree: Path) -> Iterator[str]:
    """Processes that load to another GPU than their own, or not each file once."""
    for rank, size, gpu in PROCESSES:
        seen, process = loaded(tree, rank, size, gpu), f"rank {rank} of {size} with cuda:{gpu}"
        if wrong := sorted(seen.devices - {f"cuda:{gpu}"}):
            where = f"{process} loads to {', '.join(wrong)}"
            yield f"{where}: invalid device ordinal, or another process's GPU"
        if sorted(seen.files) != FILES:
            yield f"{process} loads {', '.join(seen.files)} of {', '.join(FILES)}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a loader for any device but the process's own."""
    return proofkit.verdict(symptoms(tree), right="each process loads to its own GPU")


if __name__ == "__main__":
    proofkit.main(judge)
