"""Asks vLLM's own code which FP8 kernels it takes on capability 12.1, for linear layers and for experts.

    python proof.py TREE

The modules of TREE that choose, and all the kernels and experts that they choose from with what these say about
themselves, are imported as they are. Torch, FlashInfer, the rest of vLLM and the GPU are stand-ins. FlashInfer and DeepGEMM
count as installed, so that nothing but the GPU can rule them out. A Python of its own asks for each capability, as vLLM
keeps answers.

On 12.1 the choice must be that of 12.0, and a kernel that has code for 12.x. DeepGEMM has it or not by the commit that vLLM
takes: an installed tree has its headers to look at, sources name the commit. That the CUTLASS kernels are built and reached
is for the proofs of cmake-arch-121 and scaled-mm-sm121-dispatch.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import pathlib
import re
import subprocess
import sys
import types
import warnings

TREE = pathlib.Path(sys.argv[1]).resolve()
LAYERS = "vllm.model_executor.layers"
OLD, NEW = f"{LAYERS}.quantization.kernels.scaled_mm", "vllm.model_executor.kernels.linear"
UTILS = f"{LAYERS}.quantization.utils"
REAL = (OLD, NEW, f"{LAYERS}.fused_moe", "vllm.scalar_type", "vllm.utils.deep_gemm", "vllm.utils.flashinfer")
REAL += tuple(f"{UTILS}.{name}" for name in ("quant_utils", "w8a8_utils", "fp8_utils", "flashinfer_utils", "marlin_utils_fp8"))
NOT_REAL = f"{LAYERS}.fused_moe.prepare_finalize"
RUNS = {
    "FlashInferFP8ScaledMMLinearKernel",  # FlashInfer's bmm_fp8 names 120 and 121 in every version that vLLM pins
    "CutlassFP8ScaledMMLinearKernel",
    "CutlassFp8BlockScaledMMKernel",
    "_run_cutlass",
    "_run_triton",
    "TritonFp8BlockScaledMMKernel",
    "PerTensorTorchFP8ScaledMMLinearKernel",
    "ChannelWiseTorchFP8ScaledMMLinearKernel",
    "MarlinFP8ScaledMMLinearKernel",
    "FLASHINFER_CUTLASS",
    "TRITON",
    "MARLIN",
}
NO_CODE = {"FLASHINFER_TRTLLM", "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "VLLM_CUTLASS", "refused"}
DEEP_GEMM = {"DeepGemmFp8BlockScaledMMKernel", "DEEPGEMM", "_run_deepgemm"}
# DeepGEMM at the commits that vLLM takes: whether the official wheel that was made with it holds kernels for 12.x.
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
SETTINGS = {"VLLM_DISABLED_KERNELS": [], "VLLM_USE_DEEP_GEMM": True, "VLLM_MOE_USE_DEEP_GEMM": True}
SETTINGS |= {"VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": True, "VLLM_USE_DEEP_GEMM_E8M0": True, "VLLM_HAS_FLASHINFER_CUBIN": True}
SETTINGS |= {"VLLM_CACHE_ROOT": ""}


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class Thing:
    """Stands for anything: a base class, a decorator, a function, a flag that is not set."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, Thing())

    def __call__(self, *given, **named):
        decorates = len(given) == 1 and not named and isinstance(given[0], type | types.FunctionType)
        return given[0] if decorates else Thing()

    def __mro_entries__(self, bases):
        return ()

    def __or__(self, other):
        return self

    def __getitem__(self, key):
        return Thing()

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    __ror__ = __or__


class StandIn(types.ModuleType):
    """A module that has everything."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        inside = f"{self.__name__}.{name}"
        if inside in sys.modules or (self.__name__.startswith("vllm") and file_of(inside)):
            return importlib.import_module(inside)
        dtype = self.__name__ == "torch" and re.fullmatch(r"u?int\d+|b?float\d+\w*|half|bool", name)
        setattr(self, name, self.dtype() if dtype else Thing())
        return self.__dict__[name]


class Envs(StandIn):
    """vLLM's environment variables: unset."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return SETTINGS.get(name, False)

    def is_set(self, name):
        return False


class Capability(tuple):
    major = property(lambda self: self[0])
    minor = property(lambda self: self[1])

    def to_int(self):
        return self[0] * 10 + self[1]


class Platform(Thing):
    """A GPU of one compute capability, as far as choosing asks."""

    _enum, device_type = "cuda", "cuda"

    def __init__(self, capability):
        self.capability = Capability(capability)

    @staticmethod
    def _pair(capability):
        return capability if isinstance(capability, tuple) else divmod(capability, 10)

    def get_device_capability(self, device_id=0):
        return self.capability

    def is_device_capability(self, capability, device_id=0):
        return self.capability == self._pair(capability)

    def has_device_capability(self, capability, device_id=0):
        return self.capability >= self._pair(capability)

    def is_device_capability_family(self, capability, device_id=0):
        return self.capability[0] == capability // 10

    def support_deep_gemm(self):
        """vLLM's own answer, since 0.19 a method of its CUDA platform."""
        tree = ast.parse((TREE / "vllm/platforms/cuda.py").read_text(encoding="utf-8"))
        found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "support_deep_gemm"]
        found[0].decorator_list, space = [], {}
        exec(compile(ast.Module(found[:1], []), "vllm", "exec"), space)
        return space["support_deep_gemm"](self)

    def is_cuda(self):
        return True

    def supports_fp8(self):
        return True

    is_cuda_alike = is_cuda

    def fp8_dtype(self):
        return importlib.import_module("torch").float8_e4m3fn


def file_of(name):
    """Where a module of vLLM is, or None."""
    path = TREE.joinpath(*name.split("."))
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports what chooses from TREE, stand-ins for all else that is not Python's own."""

    def __init__(self, platform):
        self.platform = platform

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.stdlib_module_names:
            return None
        if not name.startswith(REAL) or name.startswith(NOT_REAL):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if not (path := file_of(name)):
            return None
        inside = [str(path.parent)] if path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)

    def create_module(self, spec):
        return (Envs if spec.name == "vllm.envs" else StandIn)(spec.name)

    def exec_module(self, module):
        """What of the stand-ins must have an answer."""
        yes, same = (lambda *_: True), (lambda kernels, *_, **__: kernels)
        answers = {
            "torch": {"dtype": type("dtype", (), {}), "Tensor": type("Tensor", (), {})},
            "vllm.platforms": {"current_platform": self.platform, "PlatformEnum": types.SimpleNamespace(**PLATFORMS)},
            "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
            "vllm.utils.import_utils": {"has_deep_gemm": yes},
            f"{UTILS}.humming": {"prioritize_humming": same},
            "vllm._custom_ops": {
                "cutlass_scaled_mm_supports_fp8": yes,
                "cutlass_scaled_mm_supports_block_fp8": yes,
                "cutlass_group_gemm_supported": lambda capability: 90 <= capability < 110,
            },
        }
        vars(module).update(answers.get(module.__name__, {}))


PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm", "CPU": "cpu", "XPU": "xpu", "TPU": "tpu", "OOT": "oot"}


class Values:
    """Named values, and False for every other name."""

    def __init__(self, **values):
        vars(self).update(values)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def named(function, **arguments):
    """The arguments that a function has by now."""
    return {name: value for name, value in arguments.items() if name in inspect.signature(function).parameters}


def linear(keys, kind, dtype):
    """The kernel that is chosen for a linear layer."""
    kernels = importlib.import_module(NEW if file_of(NEW) else OLD)
    tables = ["_POSSIBLE_FP8_BLOCK_KERNELS" if kind == "per block" else "_POSSIBLE_FP8_KERNELS"]
    if not hasattr(kernels, tables[0]) and kind == "per block":
        op = importlib.import_module(f"{UTILS}.fp8_utils").W8A8BlockFp8LinearOp(Values(), Values())
        return "_run_deepgemm" if op.is_deep_gemm_supported else op.w8a8_blockscale_op.__name__
    weight, activation = keys
    config = types.SimpleNamespace(weight_quant_key=weight, activation_quant_key=activation, out_dtype=dtype)
    config.input_dtype, config.weight_shape = dtype, (4096, 4096)
    choose = kernels.choose_scaled_mm_linear_kernel
    try:
        return choose(config, getattr(kernels, tables[0]), **named(choose, quantization="fp8")).__name__
    except ValueError:
        return "refused"


def experts(keys, kind, dtype):
    """The backend that is chosen for experts."""
    choose = importlib.import_module(f"{LAYERS}.fused_moe.oracle.fp8").select_fp8_moe_backend
    parts = importlib.import_module(f"{LAYERS}.fused_moe.config")
    silu = "silu"
    if file_of(f"{LAYERS}.fused_moe.activation"):
        silu = importlib.import_module(f"{LAYERS}.fused_moe.activation").MoEActivation.SILU
    sizes = {"hidden_dim": 2048, "intermediate_size_per_partition": 1024, "num_experts": 128, "experts_per_token": 8}
    parallel = Values(tp_size=1, dp_size=1, ep_size=1, pcp_size=1, sp_size=1)
    config = Values(in_dtype=dtype, moe_backend="auto", is_act_and_mul=True, swiglu_limit=None, activation=silu, **sizes)
    config.moe_parallel_config, config.routing_method = parallel, parts.RoutingMethodType.Renormalize
    try:
        return choose(config, *keys, **named(choose, allow_vllm_cutlass=kind != "per block"))[0].name
    except (NotImplementedError, ValueError):
        return "refused"


def ask(capability):
    """{kind of layer: choice} on one capability. Only in a Python of its own: this replaces importing."""
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, Modules(Platform(capability)))
    importlib.util.find_spec = lambda name, package=None: name.split(".")[0].startswith("flashinfer") or None
    dtype, keys = importlib.import_module("torch").bfloat16, importlib.import_module(f"{UTILS}.quant_utils")
    found = {}
    for kind, (weight, activation) in KINDS.items():
        for what, choose in (("linear", linear), ("experts", experts)):
            found[f"{what} {kind}"] = choose((getattr(keys, weight), getattr(keys, activation)), kind, dtype)
    return found


def answers(capability):
    """{kind of layer: choice}, asked in another Python."""
    argv = [sys.executable, "-B", __file__, str(TREE), json.dumps(capability)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        raise Unknown(f"choosing fails on {capability}: {' '.join(done.stderr.split())[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def deep_gemm_runs():
    """Whether the DeepGEMM that comes with this vLLM has an FP8 kernel for 12.x."""
    headers = TREE / "vllm/third_party/deep_gemm/include/deep_gemm/impls"
    if headers.is_dir():
        return any(headers.glob("sm120_fp8*gemm*.cuh"))
    text = (TREE / "cmake/external_projects/deepgemm.cmake").read_text(encoding="utf-8")
    named = [commit for commit in re.findall(r"\b[0-9a-f]{40}\b", text) if commit in COMMITS]
    if len(named) != 1:
        raise Unknown("DeepGEMM is taken at a commit of which this proof does not know whether it has code for 12.x")
    return COMMITS[named[0]]


def symptoms():
    """Everything that is not as it should be, one line each."""
    gb10, model, hopper = answers((12, 1)), answers((12, 0)), answers((9, 0))
    if hopper["experts per token"] != "VLLM_CUTLASS":  # else the stand-ins may hide what a GPU rules out
        raise Unknown(f"on 9.0 the choice is not what is known of vLLM: {hopper}")
    for kind, name in gb10.items():
        if name not in RUNS | NO_CODE | DEEP_GEMM:
            raise Unknown(f"{kind} on 12.1: {name}, of which this proof does not know whether it runs there")
        if name != model[kind]:
            yield f"{kind} on 12.1: {name}; on 12.0: {model[kind]}"
        if name in NO_CODE or (name in DEEP_GEMM and not deep_gemm_runs()):
            yield f"{kind} on 12.1: {name}, which has no code for 12.x"
    print("on 12.1:", ", ".join(f"{kind}: {name}" for kind, name in gb10.items()))


if len(sys.argv) > 2:
    warnings.simplefilter("ignore")
    print(json.dumps(ask(json.loads(sys.argv[2]))))
    sys.exit(0)
try:
    seen = list(symptoms())
except Exception as error:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {error!r}")
    sys.exit(3)
print("; ".join(seen) or "on 12.1 FP8 linear layers and experts get what they get on 12.0, kernels with code for 12.x")
sys.exit(1 if seen else 0)
