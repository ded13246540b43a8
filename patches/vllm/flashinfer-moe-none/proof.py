"""Runs vLLM's choice of experts for NVFP4 on capability 12.1, and looks whether a class comes with the backend.

    python proof.py TREE

``select_nvfp4_moe_backend`` and ``backend_to_kernel_cls`` are executed with stand-ins for the classes that they import; every
class says that it can do the layer, but for FlashInfer's TRT-LLM kernels, which refuse 12.x. Asked in each way in which a user
can ask for FlashInfer, and not asked at all, the answer must be a backend together with its class: with None in its place, the
layer that is built from it stops at an assertion.
"""

import ast
import enum
import pathlib
import sys
import types
from unittest import mock

ORACLE = pathlib.Path(sys.argv[1], "vllm/model_executor/layers/fused_moe/oracle/nvfp4.py")
WANTED = {
    "NvFp4MoeBackend",
    "FLASHINFER_NVFP4_MOE_BACKENDS",
    "fi_2_vllm_backend_map",
    "backend_to_kernel_cls",
    "map_nvfp4_backend",
    "_use_a16",
    "select_nvfp4_moe_backend",
}
#: What a user can set, as far as a release reads it.
WAYS = ({}, {"VLLM_USE_FLASHINFER_MOE_FP4": True}, {"VLLM_USE_FLASHINFER_MOE_FP4": False}, {"VLLM_TEST_FORCE_FP8_MARLIN": True})


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class Envs:
    """vLLM's environment variables, unset but for the given ones."""

    def __init__(self, given):
        self.given = given

    def __getattr__(self, name):
        return self.given.get(name, [] if name == "VLLM_DISABLED_KERNELS" else False)

    def is_set(self, name):
        return name in self.given


def experts(name):
    """A class of experts that can do the layer; those of TRT-LLM cannot on 12.x."""
    can = not name.lower().startswith("trtllm")
    return type(name, (), {"is_supported_config": staticmethod(lambda *_arguments: (can, "12.x" if not can else None))})


def modules(tree):
    """Stand-ins for every module of vLLM that the functions import while they run."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
            parts = node.module.split(".")
            for end in range(1, len(parts) + 1):
                found.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
            for alias in node.names:
                made = experts(alias.name) if alias.name.endswith(("Experts", "ExpertsFp4", "Modular", "Monolithic")) else mock.MagicMock()
                setattr(found[node.module], alias.name, made)
    return found


def choose(tree, way):
    """What is chosen on 12.1: the backend's name, and its class."""
    flashinfer = enum.Enum("FlashinferMoeBackend", ["CUTLASS", "TENSORRT_LLM", "CUTEDSL"])
    platform = mock.MagicMock()
    platform.is_device_capability = lambda capability: capability in ((12, 1), 121)
    space = {
        "Enum": enum.Enum,
        "envs": Envs(way),
        "is_supported_config_trtllm": lambda *_, **__: (False, "12.x"),
        "prioritize_humming": lambda backends, *_: backends,
        "FlashinferMoeBackend": flashinfer,
        "get_flashinfer_moe_backend": lambda: flashinfer.CUTLASS,
        "current_platform": platform,
    }
    nodes = []
    for node in tree.body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names += [target.id for target in targets if isinstance(target, ast.Name)]
        nodes += [node] if WANTED & set(names) else []
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    for name in {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)} - set(space) - WANTED:
        if name not in vars(__import__("builtins")):
            space[name] = mock.MagicMock(name=name)
    config = mock.MagicMock(moe_backend="auto", swiglu_limit=None, is_lora_enabled=False)
    config.moe_parallel_config.use_batched_activation_format = False
    config.moe_parallel_config.use_deepep_ll_kernels = config.moe_parallel_config.use_pplx_kernels = False
    with mock.patch.dict(sys.modules, modules(tree)):
        exec(compile(ast.fix_missing_locations(ast.Module([future, *nodes], [])), "vllm", "exec"), space)
        if "select_nvfp4_moe_backend" not in space or "backend_to_kernel_cls" not in space:
            raise Unknown("the functions that choose are not where they were")
        backend, chosen = space["select_nvfp4_moe_backend"](config, None, None)
    return backend.name, chosen


def main():
    """Exit 0 or 1, with one sentence."""
    text = ORACLE.read_text()
    tree = ast.parse(text)
    wrong, right = [], set()
    for way in WAYS:
        if not all(name in text for name in way):
            continue
        backend, chosen = choose(tree, way)
        asked = ", ".join(f"{name}={int(value)}" for name, value in way.items()) or "unasked"
        right.add(backend)
        if not isinstance(chosen, type):
            wrong.append(f"{asked}: {backend} without a class ({chosen})")
    print("; ".join(wrong) or f"every choice comes with its class: {', '.join(sorted(right))}")
    return 1 if wrong else 0


try:
    code = main()
except Exception as reason:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {reason!r}")
    code = 3
sys.exit(code)
