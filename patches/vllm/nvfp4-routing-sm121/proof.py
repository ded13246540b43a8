"""Runs vLLM's own choice of NVFP4 kernels for several GPUs and user settings.

The functions that choose are taken out of the sources and run with stand-ins for what they call.
Every kernel says that it can do the layer, except Marlin, whose own answer is taken from its
source. By saying no to each kernel that was chosen and asking again, the whole order of preference
comes out. It must be: on capability 12.1 Marlin first and then the order of 12.0; on 12.0, 12.2,
13.0, 10.3, 10.0 and 9.0 nothing moved; and what a user asked for (flag or variable) is what a user
gets, on 12.1 too.

Files read, below ``vllm/model_executor``: ``kernels/linear/__init__.py`` (from 0.20) or
``layers/quantization/utils/nvfp4_utils.py``, and ``layers/fused_moe/oracle/nvfp4.py``; where they
exist also Marlin's ``kernels/linear/nvfp4/marlin.py``,
``layers/quantization/utils/marlin_utils_fp4.py`` and its experts.
"""

import ast
import contextlib
import enum
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import proofkit

EXPERTS = ("experts/marlin_moe.py", "fused_marlin_moe.py")
GB10, MODEL = (12, 1), (12, 0)
#: Two are above 12.1: "from 12.1 on" is wrong, too.
OTHERS = [(13, 0), (12, 2), MODEL, (10, 3), (10, 0), (9, 0)]
LINEAR_HELPERS = (
    "_LINEAR_BACKEND_KERNEL_MAP",
    "_get_linear_backend",
    "_filter_kernels_by_backend",
    "_resolve_backend_kernels",
    "_POSSIBLE_NVFP4_KERNELS",
    "_NVFP4_BACKEND_TO_KERNEL",
)
MOE_HELPERS = (
    "NvFp4MoeBackend",
    "FLASHINFER_NVFP4_MOE_BACKENDS",
    "fi_2_vllm_backend_map",
    "map_nvfp4_backend",
    "_use_a16",
)
#: What a user can choose with VLLM_NVFP4_GEMM_BACKEND.
GEMM_BACKENDS = (
    "cutlass",
    "flashinfer-cutlass",
    "flashinfer-trtllm",
    "flashinfer-cudnn",
    "marlin",
)
Pair = tuple[int, int]


FlashinferMoeBackend = enum.Enum("FlashinferMoeBackend", ["CUTLASS", "TENSORRT_LLM", "CUTEDSL"])


class Capability(NamedTuple):
    """A compute capability as vLLM has it."""

    major: int
    minor: int

    def to_int(self) -> int:
        return self.major * 10 + self.minor


class Platform:
    """A GPU of one compute capability, as far as choosing asks."""

    _enum = "cuda"

    def __init__(self, capability: Pair) -> None:
        self.capability = Capability(*capability)

    @staticmethod
    def _pair(capability: Pair | int) -> Pair:
        return capability if isinstance(capability, tuple) else divmod(capability, 10)

    def is_device_capability(self, capability: Pair | int, device_id: int = 0) -> bool:
        return self.capability == self._pair(capability)

    def has_device_capability(self, capability: Pair | int, device_id: int = 0) -> bool:
        return self.capability >= self._pair(capability)

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        return self.capability.major == capability // 10

    def get_device_capability(self, device_id: int = 0) -> Capability:
        return self.capability

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False


class Envs:
    """vLLM's environment variables, unset but for the given ones."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.given = given

    def __getattr__(self, name: str) -> object:
        unset = {"VLLM_NVFP4_GEMM_BACKEND": None, "VLLM_DISABLED_KERNELS": list[str]()}
        return self.given.get(name, unset.get(name, False))

    def is_set(self, name: str) -> bool:
        return name in self.given


@functools.cache
def marlin_for_linear(folder: Path, capability: Pair) -> bool:
    """Marlin's own answer for a linear layer."""
    space: proofkit.Space = {"current_platform": Platform(capability)}
    utilities = folder / "layers/quantization/utils/marlin_utils_fp4.py"
    if utilities.is_file():
        proofkit.Source(utilities).run(["is_fp4_marlin_supported"], space, proofkit.mocked)
    marlin = folder / "kernels/linear/nvfp4/marlin.py"
    if not marlin.is_file():
        return bool(space.get("is_fp4_marlin_supported", lambda: True)())
    source, name = proofkit.Source(marlin), "MarlinNvFp4LinearKernel"
    own = proofkit.bare(source.cls(name), {"is_supported", "can_implement"})
    kernel = source.run([own], space, proofkit.mocked)[name]
    return bool(kernel.is_supported()[0] and kernel.can_implement(None)[0])


@functools.cache
def marlin_for_experts(folder: Path, capability: Pair) -> bool:
    """Marlin's own answer for experts with NVFP4 weights and activations."""
    paths = (folder / "layers/fused_moe" / name for name in EXPERTS)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return True
    weights, activations = object(), object()
    asked = {"_supports_current_device": (), "_supports_quant_scheme": (weights, activations)}
    source, name = proofkit.Source(path), "MarlinExpertsBase"
    space = {"current_platform": Platform(capability), "kNvfp4Static": weights}
    source.run([proofkit.bare(source.cls(name), asked)], space, proofkit.mocked)
    return all(getattr(space[name], method)(*given) for method, given in asked.items())


def imported(platform: Platform, flag: str) -> contextlib.AbstractContextManager[None]:
    """What the choosing functions import while they run."""
    kernels = SimpleNamespace(linear_backend=flag, linear_backend_per_quant=None)
    config = SimpleNamespace(kernel_config=kernels)
    return proofkit.modules(
        {
            "vllm.platforms": {"current_platform": platform},
            "vllm.config": {"get_current_vllm_config_or_none": lambda: config},
            "fbgemm_gpu": {},
        }
    )


class Linear:
    """The choice of a kernel for NVFP4 linear layers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kernels = folder / "kernels/linear/__init__.py"
        utilities = folder / "layers/quantization/utils/nvfp4_utils.py"
        choose = "init_nvfp4_linear_kernel"
        self.by_list = kernels.is_file() and choose in proofkit.Source(kernels).definitions
        self.source = proofkit.Source(kernels if self.by_list else utilities)

    def __call__(
        self,
        capability: Pair,
        refused: Collection[str] = (),
        flag: str = "auto",
        **variables: object,
    ) -> str | None:
        """The name of what is chosen, None if nothing is left."""
        platform = Platform(capability)
        space = {
            "current_platform": platform,
            "envs": Envs(variables),
            "Enum": enum.Enum,
        }
        choose = self._of_list if self.by_list else self._of_branches
        with imported(platform, flag):
            try:
                return choose(platform, refused, space)
            except ValueError:
                return None

    def _of_list(
        self, platform: Platform, refused: Collection[str], space: proofkit.Space
    ) -> str | None:
        marlin = marlin_for_linear(self.folder, platform.capability)

        def stand_in(name: str) -> object:
            if not name.endswith("Kernel"):
                return proofkit.mocked(name)
            can = name not in refused and (marlin or name != "MarlinNvFp4LinearKernel")
            answer = classmethod(lambda *_: (can, None))
            methods = {"is_supported": answer, "can_implement": answer}
            return type(name, (), {**methods, "__init__": lambda *_: None})

        space["PlatformEnum"] = proofkit.mocked("PlatformEnum", CUDA="cuda")
        space["prefers_humming"] = lambda *_: False
        space["prioritize_humming"] = lambda kernels, *_: kernels
        helpers = [name for name in LINEAR_HELPERS if name in self.source.definitions]
        self.source.run([*helpers, "init_nvfp4_linear_kernel"], space, stand_in)
        return type(space["init_nvfp4_linear_kernel"]()).__name__

    def _of_branches(
        self, platform: Platform, refused: Collection[str], space: proofkit.Space
    ) -> str | None:
        marlin = marlin_for_linear(self.folder, platform.capability)
        space["has_flashinfer"] = lambda: "FLASHINFER_CUTLASS" not in refused
        space["cutlass_fp4_supported"] = lambda: "VLLM_CUTLASS" not in refused
        space["is_fp4_marlin_supported"] = lambda: marlin and "MARLIN" not in refused
        wanted = ["NvFp4LinearBackend", "select_nvfp4_linear_backend"]
        self.source.run(wanted, space, proofkit.mocked)
        return str(space["select_nvfp4_linear_backend"]().name)

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every way in which a user can ask for a linear kernel of one kind."""
        yield from self._flags()
        for name in ("VLLM_USE_FBGEMM", "VLLM_USE_NVFP4_CT_EMULATIONS", "VLLM_BATCH_INVARIANT"):
            if f"envs.{name}" in self.source.text:
                yield {name: True}
        if "envs.VLLM_NVFP4_GEMM_BACKEND" in self.source.text:
            for backend in GEMM_BACKENDS:
                yield {"VLLM_NVFP4_GEMM_BACKEND": backend}

    def _flags(self) -> Iterator[dict[str, Any]]:
        table = getattr(self.source.definitions.get("_LINEAR_BACKEND_KERNEL_MAP"), "value", None)
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                kernels = proofkit.names_in([value])
                of_nvfp4 = any("NvFp4" in kernel for kernel in kernels)
                if of_nvfp4 and "W4A16" not in "".join(kernels) and isinstance(key, ast.Constant):
                    yield {"flag": key.value}


class OneOrMany(type):
    """0.16 has one class of experts for a backend, later there are lists: these are both."""

    def __iter__(cls) -> Iterator[type]:
        return iter([cls])


class Moe:
    """The choice of a backend for NVFP4 experts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = proofkit.Source(folder / "layers/fused_moe/oracle/nvfp4.py")

    def __call__(
        self,
        capability: Pair,
        refused: Collection[str] = (),
        flag: str = "auto",
        **variables: object,
    ) -> str | None:
        """The name of what is chosen, None if nothing is left."""
        platform = Platform(capability)
        marlin = marlin_for_experts(self.folder, capability)

        def experts(backend: enum.Enum) -> type:
            can = backend.name not in refused and (marlin or backend.name != "MARLIN")
            answer = staticmethod(lambda *_: (can, None))
            return OneOrMany("Experts", (), {"is_supported_config": answer})

        space: proofkit.Space = {
            "Enum": enum.Enum,
            "envs": Envs(variables),
            "backend_to_kernel_cls": experts,
            "is_supported_config_trtllm": lambda *_, **__: (
                "FLASHINFER_TRTLLM" not in refused,
                None,
            ),
            "prioritize_humming": lambda backends, *_: backends,
            "FlashinferMoeBackend": FlashinferMoeBackend,
            "get_flashinfer_moe_backend": lambda: FlashinferMoeBackend.CUTLASS,
        }
        if "current_platform" in self.source.names:
            space["current_platform"] = platform
        helpers = [name for name in MOE_HELPERS if name in self.source.definitions]
        self.source.run([*helpers, "select_nvfp4_moe_backend"], space, proofkit.mocked)
        config = proofkit.mocked(
            "config", moe_backend=flag, swiglu_limit=None, is_lora_enabled=False
        )
        config.moe_parallel_config.use_batched_activation_format = False
        with imported(platform, "auto"):
            try:
                return str(space["select_nvfp4_moe_backend"](config, None, None)[0].name)
            except (ValueError, NotImplementedError):
                return None

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every way in which a user can ask for experts of one kind."""
        flags = self.source.definitions.get("map_nvfp4_backend")
        for node in ast.walk(flags) if flags else ():
            for key in node.keys if isinstance(node, ast.Dict) else ():
                yield {"flag": key.value} if isinstance(key, ast.Constant) else {}
        if '"VLLM_USE_FLASHINFER_MOE_FP4"' in self.source.text:
            asked = {"VLLM_USE_FLASHINFER_MOE_FP4": True}
            yield asked
            yield {**asked, "VLLM_FLASHINFER_MOE_BACKEND": "throughput"}
        if "envs.VLLM_TEST_FORCE_FP8_MARLIN" in self.source.text:
            yield {"VLLM_TEST_FORCE_FP8_MARLIN": True}


def order(choose: Linear | Moe, capability: Pair) -> list[str]:
    """All that can be chosen, most preferred first."""
    chosen: list[str] = []
    while (name := choose(capability, tuple(chosen))) is not None:
        if name in chosen:
            what = f"{name} is chosen although it says that it cannot do the layer"
            raise proofkit.Inconclusive(what)
        chosen.append(name)
    return chosen


def is_marlin(name: str | None) -> bool:
    """Whether this is the name of a Marlin kernel or backend."""
    return "marlin" in (name or "").lower()


def symptoms_of(what: str, choose: Linear | Moe) -> Iterator[str]:
    """What is not as it should be in one choice, one line each."""
    orders = {capability: order(choose, capability) for capability in [GB10, *OTHERS]}
    first = orders[GB10][0] if orders[GB10] else None
    if not is_marlin(first):
        yield f"{what} on 12.1 prefers {first} to Marlin"
    for capability in OTHERS:
        names = itertools.takewhile(lambda name: not is_marlin(name), orders[capability])
        if not any("CUTLASS" in name.upper() for name in names):
            gpu = ".".join(map(str, capability))
            yield f"{what} on {gpu}: Marlin, which no user asked for"
    rest, model = ([n for n in orders[pair] if not is_marlin(n)] for pair in (GB10, MODEL))
    if rest != model:
        yield f"{what} on 12.1, after Marlin: {', '.join(rest)}; on 12.0: {', '.join(model)}"
    for setting in choose.settings():
        got, meant = choose(GB10, **setting), choose(MODEL, **setting)
        if got != meant:
            yield f"{what} on 12.1 with {setting}: {got}, not {meant}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is another order than Marlin first on 12.1, and only there."""
    folder = tree / "vllm/model_executor"
    choices: dict[str, Linear | Moe] = {"linear": Linear(folder), "MoE": Moe(folder)}
    seen: list[str] = []
    for what, choose in choices.items():
        try:
            seen += symptoms_of(what, choose)
        except (NameError, AssertionError) as error:
            seen.append(f"{what}: choosing fails: {error!r}")
    right = "Marlin on 12.1 unless the user chose; 13.0, 12.2, 12.0, 10.3, 10.0 and 9.0 as before"
    return proofkit.verdict(seen, right)


if __name__ == "__main__":
    proofkit.main(judge)
