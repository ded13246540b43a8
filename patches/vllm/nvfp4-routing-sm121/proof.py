"""Runs vLLM's own choice of NVFP4 kernels, taken out of its sources, for several GPUs and user settings.

Kernels are stand-ins that say they can do everything, so that what comes out is vLLM's order of preference. On 12.1 that
must be Marlin unless the user chose; on 12.0, 10.0 and 9.0 it must be what it is without the patch, that is, not changed
by the capability alone.
"""

import ast
import enum
import pathlib
import sys
import types
from unittest import mock

TREE = pathlib.Path(sys.argv[1], "vllm/model_executor")
KERNELS = TREE / "kernels/linear/__init__.py"
UTILS = TREE / "layers/quantization/utils/nvfp4_utils.py"
MOE = TREE / "layers/fused_moe/oracle/nvfp4.py"


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class Platform:
    """A GPU of one compute capability, as far as selection code asks."""

    def __init__(self, major, minor):
        self.capability = (major, minor)
        self._enum = "cuda"

    @staticmethod
    def _pair(capability):
        return capability if isinstance(capability, tuple) else (capability // 10, capability % 10)

    def is_device_capability(self, capability, device_id=0):
        return self.capability == self._pair(capability)

    def has_device_capability(self, capability, device_id=0):
        return self.capability >= self._pair(capability)

    def is_device_capability_family(self, capability, device_id=0):
        return self.capability[0] == capability // 10

    def get_device_capability(self, device_id=0):
        major, minor = self.capability
        return types.SimpleNamespace(major=major, minor=minor, to_int=lambda: major * 10 + minor)

    def is_cuda(self):
        return True


class Envs:
    """vLLM's environment variables, unset but for the given ones."""

    def __init__(self, **given):
        self.given = given

    def __getattr__(self, name):
        defaults = {"VLLM_NVFP4_GEMM_BACKEND": None, "VLLM_DISABLED_KERNELS": []}
        return self.given.get(name, defaults.get(name, False))

    def is_set(self, name):
        return name in self.given


def top_level(path):
    """Name -> node of what a module defines."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        found.update({target.id: node for target in targets if isinstance(target, ast.Name)})
    return found


def run(path, names, space):
    """Execute the definitions ``names`` of a module in ``space``; names that they use and ``space`` lacks are mocks."""
    nodes = top_level(path)
    if missing := [name for name in names if name not in nodes]:
        raise Unknown(f"{path.name} has no {missing[0]}")
    chosen = [nodes[name] for name in names]
    for node in chosen:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id not in space and inner.id not in dir(__builtins__):
                space[inner.id] = kernel(inner.id) if inner.id.endswith("Kernel") else mock.MagicMock(name=inner.id)
    code = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *chosen], [])
    exec(compile(ast.fix_missing_locations(code), str(path), "exec"), space)
    return space


def kernel(name):
    """A kernel that can do everything."""
    yes = classmethod(lambda cls, *_args, **_named: (True, None))
    return type(name, (), {"is_supported": yes, "can_implement": yes, "__init__": lambda self, *_: None})


def linear(platform, backend="auto", **variables):
    """Name of the kernel chosen for an NVFP4 linear layer."""
    space = {"current_platform": platform, "envs": Envs(**variables)}
    if KERNELS.is_file() and "init_nvfp4_linear_kernel" in top_level(KERNELS):
        space |= {
            "PlatformEnum": mock.MagicMock(CUDA="cuda"),
            "prioritize_humming": lambda kernels, *_args, **_named: kernels,
            "_get_linear_backend": lambda *_args, **_named: backend,
            "_filter_kernels_by_backend": lambda wanted, kernels: [k for k in kernels if k.__name__.lower().startswith(wanted)],
        }
        optional = ["_POSSIBLE_NVFP4_KERNELS", "_NVFP4_BACKEND_TO_KERNEL", "_resolve_backend_kernels"]
        names = [*optional, "init_nvfp4_linear_kernel"]
        run(KERNELS, [name for name in names if name in top_level(KERNELS)], space)
        return type(space["init_nvfp4_linear_kernel"]()).__name__
    if not UTILS.is_file():
        raise Unknown("neither kernels/linear nor nvfp4_utils.py chooses a linear kernel")
    space |= {name: (lambda: True) for name in ("has_flashinfer", "cutlass_fp4_supported", "is_fp4_marlin_supported")}
    space["Enum"] = enum.Enum
    run(UTILS, ["NvFp4LinearBackend", "select_nvfp4_linear_backend"], space)
    return space["select_nvfp4_linear_backend"]().name


def moe(platform, backend="auto", **variables):
    """Name of the backend chosen for NVFP4 experts."""
    space = {"current_platform": platform, "envs": Envs(**variables), "Enum": enum.Enum}
    wanted = ["NvFp4MoeBackend", "FLASHINFER_NVFP4_MOE_BACKENDS", "map_nvfp4_backend", "select_nvfp4_moe_backend"]
    space["backend_to_kernel_cls"] = lambda _backend: Experts
    space["prioritize_humming"] = lambda backends: backends
    space["is_supported_config_trtllm"] = lambda *_args, **_named: (True, None)
    names = [name for name in wanted if name in top_level(MOE) or name.startswith("select")]
    run(MOE, names, space)
    config = mock.MagicMock(moe_backend=backend, swiglu_limit=None, is_lora_enabled=False)
    config.moe_parallel_config.use_batched_activation_format = False
    platforms = types.ModuleType("vllm.platforms")
    platforms.current_platform = platform
    with mock.patch.dict(sys.modules, {"vllm": types.ModuleType("vllm"), "vllm.platforms": platforms}):
        chosen = space["select_nvfp4_moe_backend"](config, None, None)
    return (chosen[0] if isinstance(chosen, tuple) else chosen).name


class OneOrMany(type):
    """Up to 0.16 a backend has one class of experts, later a list of them: this class is its own list."""

    def __iter__(cls):
        return iter([cls])


class Experts(metaclass=OneOrMany):
    """Experts that can do everything."""

    @staticmethod
    def is_supported_config(*_args, **_named):
        return True, None


def symptoms():
    """Everything that is not as it should be, one line each."""
    gb10, others = Platform(12, 1), [Platform(12, 0), Platform(10, 0), Platform(9, 0)]
    for what, choose in (("linear", linear), ("MoE", moe)):
        chosen = choose(gb10)
        if "marlin" not in chosen.lower():
            yield f"{what} on 12.1: {chosen}"
        for other in others:
            if "marlin" in choose(other).lower():
                yield f"{what} on {other.capability[0]}.{other.capability[1]}: Marlin, which no user asked for"
    if KERNELS.is_file() and "_get_linear_backend" in KERNELS.read_text(encoding="utf-8"):
        if "marlin" in linear(gb10, backend="cutlass").lower():
            yield "--linear-backend cutlass on 12.1 gives Marlin"
    elif "marlin" in linear(gb10, VLLM_NVFP4_GEMM_BACKEND="cutlass").lower():
        yield "VLLM_NVFP4_GEMM_BACKEND=cutlass on 12.1 gives Marlin"
    if "map_nvfp4_backend" in top_level(MOE) and "marlin" in moe(gb10, backend="cutlass").lower():
        yield "--moe-backend cutlass on 12.1 gives Marlin"


try:
    seen = list(symptoms())
except (Unknown, OSError, SyntaxError, TypeError, ValueError, KeyError, AttributeError, NameError) as error:
    print(f"cannot be told: {error!r}")
    sys.exit(3)
print("; ".join(seen) or "Marlin on 12.1 unless the user chose; 12.0, 10.0 and 9.0 as before")
sys.exit(1 if seen else 0)
