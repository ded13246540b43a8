"""Asks vLLM's own code which FP8 kernels it takes on capability 12.1, linear and experts.

The modules of the tree that choose, and all the kernels and experts that they choose from with what
these say about themselves, are imported as they are. Torch, FlashInfer, the rest of vLLM and the
GPU are stand-ins. FlashInfer and DeepGEMM count as installed, so that nothing but the GPU can rule
them out. A Python of its own asks for each capability, as vLLM keeps answers.

DeepGEMM stays the choice for blocks on 9.0, 10.0 and 10.3, and is for no GPU without its kernels.
On 12.1 the choice must be that of 12.0, and a kernel that has code for 12.x. DeepGEMM has it or not
by the commit that vLLM takes: an installed tree has its headers to look at, sources name the
commit. That the CUTLASS kernels are built and reached is for the proofs of cmake-arch-121 and
scaled-mm-sm121-dispatch.
"""

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import proofkit

LAYERS = "vllm.model_executor.layers"
OLD, NEW = f"{LAYERS}.quantization.kernels.scaled_mm", "vllm.model_executor.kernels.linear"
UTILS = f"{LAYERS}.quantization.utils"
#: What is imported from the tree; all else is a stand-in.
REAL = (
    OLD,
    NEW,
    f"{LAYERS}.fused_moe",
    "vllm.scalar_type",
    "vllm.utils.deep_gemm",
    "vllm.utils.flashinfer",
    f"{UTILS}.quant_utils",
    f"{UTILS}.w8a8_utils",
    f"{UTILS}.fp8_utils",
    f"{UTILS}.flashinfer_utils",
    f"{UTILS}.marlin_utils_fp8",
)
NOT_REAL = f"{LAYERS}.fused_moe.prepare_finalize"
RUNS = {
    "FlashInferFP8ScaledMMLinearKernel",  # FlashInfer's bmm_fp8 names 120 and 121 in every version
    *("CutlassFP8ScaledMMLinearKernel", "CutlassFp8BlockScaledMMKernel", "_run_cutlass"),
    *("TritonFp8BlockScaledMMKernel", "_run_triton", "FLASHINFER_CUTLASS", "TRITON", "MARLIN"),
    *("PerTensorTorchFP8ScaledMMLinearKernel", "ChannelWiseTorchFP8ScaledMMLinearKernel"),
    "MarlinFP8ScaledMMLinearKernel",
}
DEEP_GEMM = {"DeepGemmFp8BlockScaledMMKernel", "DEEPGEMM", "_run_deepgemm"}
#: FlashInfer's own choice between kernels, which DeepGEMM is one of.
DEEP_GEMM_TOO = {"FlashInferFp8DeepGEMMDynamicBlockScaledKernel"}
NO_CODE = {"FLASHINFER_TRTLLM", "VLLM_CUTLASS", "refused"} | DEEP_GEMM_TOO
#: DeepGEMM at the commits that vLLM takes: whether the official wheel that was made with it holds
#: kernels for 12.x.
COMMITS = {
    "891d57b4db1071624b5c8fa0d1e51cb317fa709f": False,
    "a6b593d2826719dcf4892609af7b84ee23aaf32a": True,
    "e21c821f39a2056d68067a466c64ddc942200106": False,
    "8b1392b978f5a03c828dd1711090d7fb50958b8a": True,
    "e1f418c2a4f20818221f6b0e578b4c2f634d4c3f": True,
    "1e1842a833699298f7afc02eefb2ed168fff6938": True,
    "0820030756945b2daec208e8e8255268360f337d": True,
}
KINDS = {
    "per tensor": ("kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    "per token": ("kFp8StaticChannelSym", "kFp8DynamicTokenSym"),
    "per block": ("kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
}
#: Other GPUs with the choice for blocks that DeepGEMM has kernels for, and GPUs without.
WITH_DEEP_GEMM, WITHOUT = ((9, 0), (10, 0), (10, 3)), ((8, 9), (7, 5), (8, 0), (8, 6), (11, 0))
#: What vllm.envs has; all other variables are not set.
SETTINGS: dict[str, object] = {
    "VLLM_DISABLED_KERNELS": [],
    "VLLM_USE_DEEP_GEMM": True,
    "VLLM_MOE_USE_DEEP_GEMM": True,
    "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": True,
    "VLLM_USE_DEEP_GEMM_E8M0": True,
    "VLLM_HAS_FLASHINFER_CUBIN": True,
    "VLLM_CACHE_ROOT": "",
    "is_set": lambda _name: False,
}
PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm", "CPU": "cpu", "XPU": "xpu", "TPU": "tpu", "OOT": "oot"}
Pair = tuple[int, int]


@functools.cache
def methods(source: proofkit.Source) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name, be they in a class or not; the first of each."""
    found = [node for node in ast.walk(source.module) if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in reversed(found)}


class OwnPlatform:
    """vLLM's own CUDA platform for the questions that it asks itself."""

    def __init__(self, platform: "Platform", cuda: proofkit.Source) -> None:
        self._platform, self._cuda = platform, cuda

    def __getattr__(self, name: str) -> Any:
        if name in vars(Platform):
            return getattr(self._platform, name)
        if (method := methods(self._cuda).get(name)) is None:
            raise proofkit.Inconclusive(f"vLLM's platform is asked for {name}")
        space = self._cuda.in_tree(self._platform.tree.root, {"current_platform": self._platform})
        made = self._cuda.run([proofkit.bare(method)], space)[name]
        is_static = any(ast.unparse(each) == "staticmethod" for each in method.decorator_list)
        return made if is_static else functools.partial(made, self)


class Tree(NamedTuple):
    """The tree's files, by the names of modules."""

    root: Path

    def file(self, name: str) -> Path | None:
        """Where a module of vLLM is, or None."""
        path = self.root.joinpath(*name.split("."))
        paths = (path / "__init__.py", path.with_suffix(".py"))
        return next((path for path in paths if path.is_file()), None)

    def has_deep_gemm(self) -> bool:
        """Whether the DeepGEMM that comes with this vLLM has an FP8 kernel for 12.x."""
        headers = self.root / "vllm/third_party/deep_gemm/include/deep_gemm/impls"
        if headers.is_dir():
            return any(headers.glob("sm120_fp8*gemm*.cuh"))
        text = proofkit.read(self.root / "cmake/external_projects/deepgemm.cmake")
        named = [commit for commit in re.findall(r"\b[0-9a-f]{40}\b", text) if commit in COMMITS]
        if len(named) != 1:
            raise proofkit.Inconclusive("the DeepGEMM that is taken is not known to this proof")
        return COMMITS[named[0]]


class StandIn(types.ModuleType):
    """A module that has everything."""

    tree_files: Tree
    dtype: Callable[[], object]

    def __getattr__(self, name: str) -> object:
        proofkit.hide_special(name)
        if self.__name__ == "vllm.envs":
            return SETTINGS.get(name, False)
        inside = f"{self.__name__}.{name}"
        if inside in sys.modules or (
            self.__name__.startswith("vllm") and self.tree_files.file(inside)
        ):
            return importlib.import_module(inside)
        pattern = r"u?int\d+|b?float\d+\w*|half|bool"
        is_dtype = self.__name__ == "torch" and re.fullmatch(pattern, name)
        setattr(self, name, self.dtype() if is_dtype else proofkit.Anything())
        return self.__dict__[name]


class Capability(NamedTuple):
    """A compute capability as vLLM has it."""

    major: int
    minor: int

    def to_int(self) -> int:
        return self.major * 10 + self.minor


class Platform(proofkit.Anything):
    """A GPU of one compute capability, as far as choosing asks."""

    _enum, device_type = "cuda", "cuda"

    def __init__(self, capability: Pair, tree: Tree) -> None:
        self.capability, self.tree = Capability(*capability), tree
        self.cuda = proofkit.Source(tree.root / "vllm/platforms/cuda.py")

    def __getattr__(self, name: str) -> Any:
        """vLLM's own answer, where its CUDA platform has one."""
        is_own = name in methods(self.cuda)
        return getattr(OwnPlatform(self, self.cuda), name) if is_own else super().__getattr__(name)

    @staticmethod
    def _pair(capability: Pair | int) -> Pair:
        return capability if isinstance(capability, tuple) else divmod(capability, 10)

    def get_device_capability(self, device_id: int = 0) -> Capability:
        return self.capability

    def is_device_capability(self, capability: Pair | int, device_id: int = 0) -> bool:
        return device_id == 0 and self.capability == self._pair(capability)

    def has_device_capability(self, capability: Pair | int, device_id: int = 0) -> bool:
        return device_id == 0 and self.capability >= self._pair(capability)

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        return device_id == 0 and self.capability.major == capability // 10

    def is_cuda(self) -> bool:
        return True

    is_cuda_alike = supports_fp8 = is_cuda

    def fp8_dtype(self) -> object:
        return importlib.import_module("torch").float8_e4m3fn


class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports what chooses from the tree, stand-ins for all else that is not Python's own."""

    def __init__(self, tree: Tree, platform: Platform) -> None:
        self.tree, self.platform = tree, platform

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        if not name.startswith(REAL) or name.startswith(NOT_REAL):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if not (file := self.tree.file(name)):
            return None
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        module = StandIn(spec.name)
        module.tree_files = self.tree
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Gives the stand-ins the answers that they must have."""
        answers: dict[str, dict[str, object]] = {
            "torch": {"dtype": type("dtype", (), {}), "Tensor": type("Tensor", (), {})},
            "vllm.platforms": {
                "current_platform": self.platform,
                "PlatformEnum": types.SimpleNamespace(**PLATFORMS),
            },
            "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
            "vllm.utils.import_utils": {"has_deep_gemm": lambda: True},
            f"{UTILS}.humming": {"prioritize_humming": lambda kernels, *_, **__: kernels},
            "vllm._custom_ops": {
                "cutlass_scaled_mm_supports_fp8": lambda _: True,
                "cutlass_scaled_mm_supports_block_fp8": lambda _: True,
                "cutlass_group_gemm_supported": lambda capability: 90 <= capability < 110,
            },
        }
        vars(module).update(answers.get(module.__name__, {}))


class Values:
    """Named values, and False for every other name."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> object:
        proofkit.hide_special(name)
        return False


def known_to(function: Callable[..., object], **arguments: object) -> dict[str, object]:
    """The arguments that a function has by now."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


def linear(tree: Tree, keys: tuple[object, object], kind: str, dtype: object) -> str:
    """The kernel that is chosen for a linear layer."""
    kernels = importlib.import_module(NEW if tree.file(NEW) else OLD)
    table = "_POSSIBLE_FP8_BLOCK_KERNELS" if kind == "per block" else "_POSSIBLE_FP8_KERNELS"
    if not hasattr(kernels, table) and kind == "per block":
        utils = importlib.import_module(f"{UTILS}.fp8_utils")
        op = utils.W8A8BlockFp8LinearOp(Values(), Values())
        return "_run_deepgemm" if op.is_deep_gemm_supported else str(op.w8a8_blockscale_op.__name__)
    config = types.SimpleNamespace(
        weight_quant_key=keys[0],
        activation_quant_key=keys[1],
        input_dtype=dtype,
        out_dtype=dtype,
        weight_shape=(4096, 4096),
    )
    choose = kernels.choose_scaled_mm_linear_kernel
    more = known_to(choose, quantization="fp8")
    try:
        return str(choose(config, getattr(kernels, table), **more).__name__)
    except ValueError:
        return "refused"


def experts(tree: Tree, keys: tuple[object, object], kind: str, dtype: object) -> str:
    """The backend that is chosen for experts."""
    choose = importlib.import_module(f"{LAYERS}.fused_moe.oracle.fp8").select_fp8_moe_backend
    parts = importlib.import_module(f"{LAYERS}.fused_moe.config")
    silu, activation = "silu", f"{LAYERS}.fused_moe.activation"
    if tree.file(activation):
        silu = importlib.import_module(activation).MoEActivation.SILU
    config = Values(
        in_dtype=dtype,
        moe_backend="auto",
        is_act_and_mul=True,
        swiglu_limit=None,
        activation=silu,
        hidden_dim=2048,
        intermediate_size_per_partition=1024,
        num_experts=128,
        experts_per_token=8,
        moe_parallel_config=Values(tp_size=1, dp_size=1, ep_size=1, pcp_size=1, sp_size=1),
        routing_method=parts.RoutingMethodType.Renormalize,
    )
    more = known_to(choose, allow_vllm_cutlass=kind != "per block")
    try:
        return str(choose(config, *keys, **more)[0].name)
    except (NotImplementedError, ValueError):
        return "refused"


def installed(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
    """Of what is not Python's own FlashInfer is installed, and nothing else."""
    is_there = name.startswith("flashinfer")
    return importlib.machinery.ModuleSpec(name, None) if is_there else None


def ask(root: Path, capability: Pair, bytecode: str) -> dict[str, str]:
    """{kind of layer: choice} on one capability. In a Python of its own: it replaces importing."""
    sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    tree = Tree(root)
    sys.meta_path.insert(0, Modules(tree, Platform(capability, tree)))
    importlib.util.find_spec = installed
    dtype = importlib.import_module("torch").bfloat16
    keys = importlib.import_module(f"{UTILS}.quant_utils")
    supports = importlib.import_module("vllm.utils.deep_gemm").is_deep_gemm_supported
    found = {"DeepGEMM": "supported" if supports() else "not supported"}
    for kind, (weight, activation) in KINDS.items():
        both = getattr(keys, weight), getattr(keys, activation)
        found[f"linear {kind}"] = linear(tree, both, kind, dtype)
        found[f"experts {kind}"] = experts(tree, both, kind, dtype)
    return found


def answers(root: Path, bytecode: str, capability: Pair) -> dict[str, str]:
    """{kind of layer: choice}, asked in another Python."""
    code, said = proofkit.again(str(root), json.dumps(capability), bytecode)
    if code:
        raise proofkit.Inconclusive(f"choosing fails on {capability}: {said[-300:]}")
    return dict(json.loads(next(line for line in said.splitlines() if line.startswith("{"))))


def elsewhere(tree: Tree) -> Iterator[str]:
    """Other GPUs for which vLLM's platform says, since 0.19, that DeepGEMM has kernels."""
    for platform in (Platform(capability, tree) for capability in WITHOUT[1:]):
        if "support_deep_gemm" in methods(platform.cuda) and platform.support_deep_gemm():
            yield f"DeepGEMM on {'.'.join(map(str, platform.capability))}: supported"


def symptoms(tree: Tree, gb10: dict[str, str], bytecode: str) -> Iterator[str]:
    """Everything that is not as it should be, one line each."""
    with ThreadPoolExecutor(2) as pool:
        capabilities = [(12, 0), *WITH_DEEP_GEMM, WITHOUT[0]]
        model, *asked = pool.map(functools.partial(answers, tree.root, bytecode), capabilities)
    # else stand-ins may hide what a GPU rules out
    if asked[0]["experts per token"] != "VLLM_CUTLASS":
        raise proofkit.Inconclusive(f"on 9.0 the choice is not what is known of vLLM: {asked[0]}")
    for capability, seen in zip(capabilities[1:], asked, strict=True):
        wanted = "supported" if capability in WITH_DEEP_GEMM else "not supported"
        gpu = ".".join(map(str, capability))
        if seen["DeepGEMM"] != wanted:
            yield f"DeepGEMM on {gpu}: {seen['DeepGEMM']}"
        is_taken = seen["linear per block"] in DEEP_GEMM | DEEP_GEMM_TOO
        if is_taken != (capability in WITH_DEEP_GEMM):
            yield f"linear per block on {gpu}: {seen['linear per block']}"
    for kind, name in gb10.items():
        if name not in RUNS | NO_CODE | DEEP_GEMM:
            raise proofkit.Inconclusive(f"{kind} on 12.1: {name}, which this proof does not know")
        if name != model[kind]:
            yield f"{kind} on 12.1: {name}; on 12.0: {model[kind]}"
        if name in NO_CODE or (name in DEEP_GEMM and not tree.has_deep_gemm()):
            yield f"{kind} on 12.1: {name}, which has no code for 12.x"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a choice on 12.1 that is not that of 12.0, or has no code for 12.x."""
    with tempfile.TemporaryDirectory() as bytecode:
        gb10 = answers(tree, bytecode, (12, 1))
        gb10.pop("DeepGEMM")
        found = [*symptoms(Tree(tree), gb10, bytecode), *elsewhere(Tree(tree))]
    chosen = ", ".join(f"{kind}: {name}" for kind, name in gb10.items())
    return proofkit.verdict(found, right=f"FP8 on 12.1 is as on 12.0, with code for 12.x: {chosen}")


if __name__ == "__main__":
    if len(sys.argv) > 2:  # as `answers` runs it
        found = ask(Path(sys.argv[1]), tuple(json.loads(sys.argv[2])), sys.argv[3])
        proofkit.end(0, json.dumps(found))
    proofkit.main(judge)
