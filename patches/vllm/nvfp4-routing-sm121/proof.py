"""Runs vLLM's own choice of NVFP4 kernels, taken out of its sources, for several GPUs and user settings.

    python proof.py TREE

The functions that choose are executed with stand-ins for what they call. Every kernel says that it can do the layer,
except Marlin, whose own answer is taken from its source. By saying no to each kernel that was chosen and asking again,
the whole order of preference comes out. It must be: on capability 12.1 Marlin first and then the order of 12.0; on 12.0,
12.2, 13.0, 10.3, 10.0 and 9.0 nothing moved; and what a user asked for (flag or variable) is what a user gets, on 12.1 too.

Files read, below ``vllm/model_executor``: ``kernels/linear/__init__.py`` (from 0.20) or
``layers/quantization/utils/nvfp4_utils.py``, and ``layers/fused_moe/oracle/nvfp4.py``; where present also Marlin's
``kernels/linear/nvfp4/marlin.py``, ``layers/quantization/utils/marlin_utils_fp4.py`` and its experts.
"""

import ast
import enum
import functools
import itertools
import pathlib
import sys
import types
from unittest import mock

TREE = pathlib.Path(sys.argv[1], "vllm/model_executor")
KERNELS = TREE / "kernels/linear/__init__.py"
MARLIN = TREE / "kernels/linear/nvfp4/marlin.py"
UTILS = TREE / "layers/quantization/utils/nvfp4_utils.py"
MARLIN_UTILS = TREE / "layers/quantization/utils/marlin_utils_fp4.py"
MOE = TREE / "layers/fused_moe/oracle/nvfp4.py"
EXPERTS = [TREE / "layers/fused_moe" / name for name in ("experts/marlin_moe.py", "fused_marlin_moe.py")]
GB10, OTHERS = (12, 1), [(13, 0), (12, 2), (12, 0), (10, 3), (10, 0), (9, 0)]  # two above 12.1: "from 12.1 on" is wrong, too


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class Platform:
    """A GPU of one compute capability, as far as choosing asks."""

    _enum = "cuda"

    def __init__(self, capability):
        self.capability = capability

    @staticmethod
    def _pair(capability):
        return capability if isinstance(capability, tuple) else divmod(capability, 10)

    def is_device_capability(self, capability, device_id=0):
        return self.capability == self._pair(capability)

    def has_device_capability(self, capability, device_id=0):
        return self.capability >= self._pair(capability)

    def is_device_capability_family(self, capability, device_id=0):
        return self.capability[0] == capability // 10

    def get_device_capability(self, device_id=0):
        pair = self.capability
        return types.SimpleNamespace(major=pair[0], minor=pair[1], to_int=lambda: pair[0] * 10 + pair[1])

    def is_cuda(self):
        return True

    def is_rocm(self):
        return False


class Envs:
    """vLLM's environment variables, unset but for the given ones."""

    def __init__(self, given):
        self.given = given

    def __getattr__(self, name):
        unset = {"VLLM_NVFP4_GEMM_BACKEND": None, "VLLM_DISABLED_KERNELS": []}
        return self.given.get(name, unset.get(name, False))

    def is_set(self, name):
        return name in self.given


class Source:
    """A module's text: its definitions, and the names that it has."""

    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8")
        self.found = {}
        self.names = set()
        for node in ast.parse(self.text).body:
            for name in self._made(node):
                self.found[name] = node
            for inner in ast.walk(node) if isinstance(node, ast.If | ast.Try | ast.Import | ast.ImportFrom) else ():
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    self.names |= {(alias.asname or alias.name).partition(".")[0] for alias in inner.names}
        self.names |= set(self.found)

    @staticmethod
    def _made(node):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return [node.name]
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        return [target.id for target in targets if isinstance(target, ast.Name)]

    def run(self, wanted, space, stand_in=mock.MagicMock):
        """Execute definitions in ``space``. What else they use becomes a stand-in if the module has a thing of that name.

        A name that the module does not have stays undefined, so that using it fails as it would in vLLM.
        """
        used, code = self._compiled(tuple(wanted))
        for name in used - set(space):
            space[name] = stand_in(name=name)
        exec(code, space)
        return space

    @functools.cache
    def _compiled(self, wanted):
        if missing := [name for name in wanted if name not in self.found]:
            raise Unknown(f"{missing[0]} is not where it was")
        nodes = [self.found[name] for name in wanted]
        used = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
        module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *nodes], [])
        return (used & self.names) - set(wanted), compile(ast.fix_missing_locations(module), "vllm", "exec")


def bare(node, methods):
    """A class without its bases, with only some methods."""
    node.bases, node.keywords, node.decorator_list = [], [], []
    node.body = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name in methods]
    return node


@functools.cache
def marlin_for_linear(capability):
    """Marlin's own answer for a linear layer."""
    space = {"current_platform": Platform(capability)}
    if MARLIN_UTILS.is_file():
        Source(MARLIN_UTILS).run(["is_fp4_marlin_supported"], space)
    if not MARLIN.is_file():
        return space.get("is_fp4_marlin_supported", lambda: True)()
    source = Source(MARLIN)
    bare(source.found["MarlinNvFp4LinearKernel"], {"is_supported", "can_implement"})
    kernel = source.run(["MarlinNvFp4LinearKernel"], space)["MarlinNvFp4LinearKernel"]
    return kernel.is_supported()[0] and kernel.can_implement(None)[0]


@functools.cache
def marlin_for_experts(capability):
    """Marlin's own answer for experts with NVFP4 weights and activations."""
    path = next((path for path in EXPERTS if path.is_file()), None)
    if path is None:
        return True
    weights, activations = object(), object()
    asked = {"_supports_current_device": (), "_supports_quant_scheme": (weights, activations)}
    source = Source(path)
    bare(source.found["MarlinExpertsBase"], asked)
    space = source.run(["MarlinExpertsBase"], {"current_platform": Platform(capability), "kNvfp4Static": weights})
    return all(getattr(space["MarlinExpertsBase"], name)(*arguments) for name, arguments in asked.items())


def modules(platform, flag):
    """What the choosing functions import while they run."""
    config = types.SimpleNamespace(linear_backend=flag, linear_backend_per_quant=None)
    made = {
        "vllm": {},
        "vllm.platforms": {"current_platform": platform},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: types.SimpleNamespace(kernel_config=config)},
        "fbgemm_gpu": {},
    }
    found = {}
    for name, contents in made.items():
        found[name] = types.ModuleType(name)
        vars(found[name]).update(contents)
    return mock.patch.dict(sys.modules, found)


class Linear:
    """The choice of a kernel for NVFP4 linear layers."""

    def __init__(self):
        self.by_list = KERNELS.is_file() and "init_nvfp4_linear_kernel" in Source(KERNELS).found
        if not self.by_list and not UTILS.is_file():
            raise Unknown("neither kernels/linear nor nvfp4_utils.py chooses a linear kernel")
        self.source = Source(KERNELS if self.by_list else UTILS)

    def __call__(self, capability, refused=(), flag="auto", **variables):
        """The name of what is chosen, None if nothing is left."""
        platform = Platform(capability)
        space = {"current_platform": platform, "envs": Envs(variables), "Enum": enum.Enum}
        with modules(platform, flag):
            try:
                return self._of_list(platform, refused, space) if self.by_list else self._of_branches(platform, refused, space)
            except ValueError:
                return None

    def _of_list(self, platform, refused, space):
        marlin = marlin_for_linear(platform.capability)

        def stand_in(name):
            if not name.endswith("Kernel"):
                return mock.MagicMock(name=name)
            can = name not in refused and (marlin or name != "MarlinNvFp4LinearKernel")
            answer = classmethod(lambda *_arguments: (can, None))
            return type(name, (), {"is_supported": answer, "can_implement": answer, "__init__": lambda *_: None})

        space["PlatformEnum"] = mock.MagicMock(CUDA="cuda")
        space["prefers_humming"] = lambda *_: False
        space["prioritize_humming"] = lambda kernels, *_: kernels
        helpers = ["_LINEAR_BACKEND_KERNEL_MAP", "_get_linear_backend", "_filter_kernels_by_backend"]
        helpers += ["_resolve_backend_kernels", "_POSSIBLE_NVFP4_KERNELS", "_NVFP4_BACKEND_TO_KERNEL"]
        wanted = [name for name in helpers if name in self.source.found]
        self.source.run([*wanted, "init_nvfp4_linear_kernel"], space, stand_in)
        return type(space["init_nvfp4_linear_kernel"]()).__name__

    def _of_branches(self, platform, refused, space):
        marlin = marlin_for_linear(platform.capability)
        space["has_flashinfer"] = lambda: "FLASHINFER_CUTLASS" not in refused
        space["cutlass_fp4_supported"] = lambda: "VLLM_CUTLASS" not in refused
        space["is_fp4_marlin_supported"] = lambda: marlin and "MARLIN" not in refused
        self.source.run(["NvFp4LinearBackend", "select_nvfp4_linear_backend"], space)
        return space["select_nvfp4_linear_backend"]().name

    def settings(self):
        """Every way in which a user can ask for a linear kernel of one kind."""
        flags = self.source.found.get("_LINEAR_BACKEND_KERNEL_MAP")
        for key in flags.value.keys if flags else ():
            kernels = {n.id for n in ast.walk(flags.value.values[flags.value.keys.index(key)]) if isinstance(n, ast.Name)}
            if any("NvFp4" in kernel for kernel in kernels) and "W4A16" not in "".join(kernels):
                yield {"flag": key.value}
        for name in ("VLLM_USE_FBGEMM", "VLLM_USE_NVFP4_CT_EMULATIONS", "VLLM_BATCH_INVARIANT"):
            if f"envs.{name}" in self.source.text:
                yield {name: True}
        if "envs.VLLM_NVFP4_GEMM_BACKEND" in self.source.text:
            for backend in ("cutlass", "flashinfer-cutlass", "flashinfer-trtllm", "flashinfer-cudnn", "marlin"):
                yield {"VLLM_NVFP4_GEMM_BACKEND": backend}


class OneOrMany(type):
    """In 0.16 a backend has one class of experts, later a list of them: these classes are lists of themselves."""

    def __iter__(cls):
        return iter([cls])


class Moe:
    """The choice of a backend for NVFP4 experts."""

    def __init__(self):
        self.source = Source(MOE)

    def __call__(self, capability, refused=(), flag="auto", **variables):
        """The name of what is chosen, None if nothing is left."""
        platform = Platform(capability)
        marlin = marlin_for_experts(capability)

        def experts(backend):
            can = backend.name not in refused and (marlin or backend.name != "MARLIN")
            answer = staticmethod(lambda *_arguments: (can, None))
            return OneOrMany("Experts", (), {"is_supported_config": answer})

        flashinfer = enum.Enum("FlashinferMoeBackend", ["CUTLASS", "TENSORRT_LLM", "CUTEDSL"])
        space = {
            "Enum": enum.Enum,
            "envs": Envs(variables),
            "backend_to_kernel_cls": experts,
            "is_supported_config_trtllm": lambda *_, **__: ("FLASHINFER_TRTLLM" not in refused, None),
            "prioritize_humming": lambda backends, *_: backends,
            "FlashinferMoeBackend": flashinfer,
            "get_flashinfer_moe_backend": lambda: flashinfer.CUTLASS,
        }
        if "current_platform" in self.source.names:
            space["current_platform"] = platform
        helpers = ["NvFp4MoeBackend", "FLASHINFER_NVFP4_MOE_BACKENDS", "fi_2_vllm_backend_map", "map_nvfp4_backend", "_use_a16"]
        self.source.run([*(n for n in helpers if n in self.source.found), "select_nvfp4_moe_backend"], space)
        config = mock.MagicMock(moe_backend=flag, swiglu_limit=None, is_lora_enabled=False)
        config.moe_parallel_config.use_batched_activation_format = False
        with modules(platform, "auto"):
            try:
                return space["select_nvfp4_moe_backend"](config, None, None)[0].name
            except (ValueError, NotImplementedError):
                return None

    def settings(self):
        """Every way in which a user can ask for experts of one kind."""
        if flags := self.source.found.get("map_nvfp4_backend"):
            for node in ast.walk(flags):
                yield from ({"flag": key.value} for key in (node.keys if isinstance(node, ast.Dict) else ()))
        if '"VLLM_USE_FLASHINFER_MOE_FP4"' in self.source.text:
            yield {"VLLM_USE_FLASHINFER_MOE_FP4": True}
            yield {"VLLM_USE_FLASHINFER_MOE_FP4": True, "VLLM_FLASHINFER_MOE_BACKEND": "throughput"}
        if "envs.VLLM_TEST_FORCE_FP8_MARLIN" in self.source.text:
            yield {"VLLM_TEST_FORCE_FP8_MARLIN": True}


def order(choose, capability):
    """All that can be chosen, most preferred first."""
    chosen = []
    while (name := choose(capability, tuple(chosen))) is not None:
        if name in chosen:
            raise Unknown(f"{name} is chosen although it says that it cannot do the layer")
        chosen.append(name)
    return chosen


def is_marlin(name):
    """Whether this is the name of a Marlin kernel or backend."""
    return "marlin" in (name or "").lower()


def symptoms_of(what, choose):
    """What is not as it should be in one choice, one line each."""
    orders = {capability: order(choose, capability) for capability in [GB10, *OTHERS]}
    first = orders[GB10][0] if orders[GB10] else None
    if not is_marlin(first):
        yield f"{what} on 12.1 prefers {first} to Marlin"
    for capability in OTHERS:
        names = list(itertools.takewhile(lambda name: not is_marlin(name), orders[capability]))
        if not any("CUTLASS" in name.upper() for name in names):
            yield f"{what} on {capability[0]}.{capability[1]}: Marlin, which no user asked for"
    rest, model = ([n for n in orders[capability] if not is_marlin(n)] for capability in (GB10, (12, 0)))
    if rest != model:
        yield f"{what} on 12.1, after Marlin: {', '.join(rest)}; on 12.0: {', '.join(model)}"
    for setting in choose.settings():
        got, meant = choose(GB10, **setting), choose((12, 0), **setting)
        if got != meant:
            yield f"{what} on 12.1 with {setting}: {got}, not {meant}"


try:
    seen = []
    for what, choose in (("linear", Linear()), ("MoE", Moe())):
        try:
            seen += symptoms_of(what, choose)
        except (NameError, AssertionError) as error:
            seen.append(f"{what}: choosing fails: {error!r}")
except Exception as error:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {error!r}")
    sys.exit(3)
print("; ".join(dict.fromkeys(seen)) or "Marlin on 12.1 unless the user chose; 13.0, 12.2, 12.0, 10.3, 10.0 and 9.0 as before")
sys.exit(1 if seen else 0)
