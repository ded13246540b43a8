"""Runs vLLM's fastsafetensors loader as the second machine of a cluster does, and looks which GPU it loads to.

    python proof.py TREE

``fastsafetensors_weights_iterator`` is executed with stand-ins for torch and fastsafetensors: this process has rank 1 of 2, and
one GPU, as each of two machines with a GPU each. The only device that it can load to is ``cuda:0``.
"""

import ast
import builtins
import pathlib
import sys
import types
from unittest import mock

UTILITIES = pathlib.Path(sys.argv[1], "vllm/model_executor/model_loader/weight_utils.py")
NAME = "fastsafetensors_weights_iterator"


class Loader:
    """fastsafetensors' loaders, old and new, as far as they are used; remembers its device."""

    devices = []

    def __init__(self, *arguments, device=None, **_named):
        Loader.devices.append(str(device or next(a for a in arguments if "cuda" in str(a))))

    def __getattr__(self, _name):
        return mock.MagicMock()

    def iterate_weights(self):
        yield "name", object()


def main():
    """Exit 0 or 1, with one sentence."""
    tree = ast.parse(UTILITIES.read_text())
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == NAME)
    node.decorator_list, node.returns = [], None
    group = types.SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    distributed = types.SimpleNamespace(is_initialized=lambda: True, group=types.SimpleNamespace(WORLD=group))
    space = {name: mock.MagicMock(name=name) for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}}
    for name in dir(builtins):
        space.pop(name, None)
    space["torch"] = types.SimpleNamespace(distributed=distributed, device=str, Tensor=object)
    space["current_platform"] = types.SimpleNamespace(current_device=lambda: 0)
    space["tqdm"] = lambda items, **_named: items
    space["_init_loader"] = space["_init_fastsafetensors_loader"] = Loader
    space["_natural_sort_key"] = str
    module = types.ModuleType("fastsafetensors.parallel_loader")
    module.ParallelLoader = Loader
    made = {"fastsafetensors": types.ModuleType("fastsafetensors"), "fastsafetensors.parallel_loader": module}
    with mock.patch.dict(sys.modules, made):
        exec(compile(ast.fix_missing_locations(ast.Module([node], [])), "vllm", "exec"), space)
        list(space[NAME](["a.safetensors", "b.safetensors"], False))
    if not Loader.devices:
        raise LookupError("no loader was made")
    wrong = sorted(set(Loader.devices) - {"cuda:0"})
    print(f"rank 1 with one GPU loads to {', '.join(wrong)}: invalid device ordinal" if wrong else "loads to its own GPU, cuda:0")
    return 1 if wrong else 0


try:
    code = main()
except Exception as reason:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {reason!r}")
    code = 3
sys.exit(code)
